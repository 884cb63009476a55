"""`ozy` under a real terminal: a pty of a given size, and what a person would see on it.

The screen understands what `ozy` writes and nothing else; a sequence that it does not know fails
the test. Lines that scrolled away are kept.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

from tests.integration.api.rig import Cluster

_PIECE = re.compile(r"\x1b\[(\?)?([\d;]*)([A-Za-z])|\x1b.?|[\r\n]|[^\x1b\r\n]+")


class Screen:
    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[str] = [""]  # from the first one ever written
        self.colours: set[str] = set()
        self._row, self._column = 0, 0
        self._wraps = True

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)

    def feed(self, text: str) -> None:
        for match in _PIECE.finditer(text):
            private, argument, final = match.groups()
            if final:
                self._control(private or "", argument, final)
            elif match[0] == "\n":
                self._row += 1
            elif match[0] == "\r":
                self._column = 0
            else:
                assert not match[0].startswith("\x1b"), f"unknown: {match[0]!r}"
                self._write(match[0])
            self.lines += [""] * (self._row + 1 - len(self.lines))

    def _control(self, private: str, argument: str, final: str) -> None:
        match private + final:
            case "m":
                self.colours.add(argument)
            case "A":
                top = max(0, len(self.lines) - self.rows)
                self._row = max(top, self._row - int(argument or 1))  # what scrolled is gone
            case "K":
                self.lines[self._row] = ""
            case "J":
                del self.lines[self._row + 1 :]
                self.lines[self._row] = self.lines[self._row][: self._column]
            case "?l" | "?h":
                assert argument == "7"
                self._wraps = final == "h"
            case _:
                raise AssertionError(f"unknown: {argument}{final}")

    def _write(self, text: str) -> None:
        for character in text:
            if self._column >= self.columns:
                if not self._wraps:
                    self._column = self.columns - 1
                else:
                    self._row, self._column = self._row + 1, 0
                    self.lines += [""] * (self._row + 1 - len(self.lines))
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1


class Terminal:
    """One run of `ozy` on a terminal. Use as a context manager."""

    def __init__(
        self, cluster: Cluster, *arguments: str, columns: int = 100, rows: int = 30, **more: str
    ) -> None:
        self.screen = Screen(columns, rows)
        self.raw = ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        mode = termios.tcgetattr(slave)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, mode)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ozymandias.cli", *arguments],
            env=cluster.environment | {"TERM": "xterm-256color"} | more,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cluster.folder,
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    def until(self, condition: Callable[[str], object], seconds: float = 20) -> str:
        """Read until the screen shows something."""
        end = time.monotonic() + seconds
        while not condition(self.screen.text):
            assert time.monotonic() < end, self.screen.text
            assert self._read(0.2) or self._process.poll() is None, self.screen.text
        return self.screen.text

    def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self.end()

    def end(self, seconds: float = 20) -> int:
        """Read to the end; the exit code."""
        end = time.monotonic() + seconds
        while self._read(0.2) or self._process.poll() is None:
            assert time.monotonic() < end, self.screen.text
        return self._process.wait()

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        # A read may end within a character; the terminal's driver writes whole lines here.
        text = data.decode("utf-8", "replace")
        self.raw += text
        self.screen.feed(text)
        return bool(data)
