"""A program's word that it is ready, as systemd takes it from services of `Type=notify`.

The program finds a socket's path in its environment and writes `READY=1` to it; whoever started it
waits for that. What the program is and what happens to one that stays silent is not known here.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "NOTIFY_SOCKET"
MESSAGE_SIZE_MAX_BYTES = 4096


class Readiness:
    def __init__(self, channel: socket.socket, path: Path) -> None:
        self._channel = channel
        self.environment = {VARIABLE: str(path)}  # for the program

    async def wait(self) -> None:
        """Until the program has said it; other words (a status) are let by."""
        loop = asyncio.get_running_loop()
        while True:
            words = await loop.sock_recv(self._channel, MESSAGE_SIZE_MAX_BYTES)
            if b"READY=1" in words.splitlines():
                return


@contextlib.contextmanager
def listening(path: Path) -> Iterator[Readiness]:
    """From before the program is started until it has ended; nothing is left of the socket."""
    path.unlink(missing_ok=True)  # of one whose supervisor was killed
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
        channel.bind(str(path))
        try:
            path.chmod(0o600)
            yield Readiness(channel, path)
        finally:
            path.unlink(missing_ok=True)
