"""Runs the few programs of the host that have no API (nft, mkfs.ext4), with a deadline."""

import asyncio
import os
from collections.abc import Sequence
from typing import BinaryIO

from ozymandias.ports import RuntimeFailed, RuntimeHung

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def run(
    arguments: Sequence[str],
    *,
    deadline_seconds: float,
    stdin: bytes = b"",
    pass_fds: Sequence[int] = (),
) -> bytes:
    """Its standard output. RuntimeFailed with its words when it fails, RuntimeHung when it stays.

    Whatever happens, also when the caller is cancelled, no process is left behind.
    """
    try:
        with _readable(stdin) as given:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=given,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=tuple(pass_fds),
                env=os.environ | {"PATH": PATH, "LC_ALL": "C"},
            )
    except OSError as error:
        raise RuntimeFailed(f"{arguments[0]} can't be run: {error}") from error
    try:
        async with asyncio.timeout(deadline_seconds):
            out, errors = await process.communicate()
    except TimeoutError:
        raise RuntimeHung(f"{arguments[0]} did not end within {deadline_seconds:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        words = errors.decode(errors="replace").strip() or f"exit code {process.returncode}"
        raise RuntimeFailed(f"{arguments[0]}: {words}")
    return out


def _readable(content: bytes) -> BinaryIO:
    """A file in memory, not a pipe: writing to a process that has ended already is an error."""
    file = os.fdopen(os.memfd_create("stdin"), "w+b")
    file.write(content)
    file.seek(0)
    return file
