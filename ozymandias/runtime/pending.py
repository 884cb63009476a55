"""How much work is waiting for a pool: asked of a URL, or of a command that this node allows.

Whoever may submit a job chooses what is asked, so nothing is trusted. Over HTTP one GET is sent, by
the daemon itself: no redirect is followed, no cookie, proxy or password is used, and only a number
ever comes of the answer. A command is run only if the node's settings list it word for word, as a
user without rights, without a shell, in a session of its own that is killed as a whole. An answer
is at most 64 KiB and takes at most 10 s.
"""

import asyncio
import contextlib
import os
import pwd
import shlex
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator

import aiohttp
from yarl import URL

from ozymandias.model.job import Autoscale, PendingSource
from ozymandias.ports import SourceFailed
from ozymandias.runtime.heard import HEARD_BYTES_MAX, SentTooMuch, connector_for_strangers

ANSWER_BYTES_MAX = 64 * 2**10
ASK_SECONDS_MAX = 10.0
OOM_SCORE_COMMAND = 900  # as of a pod that matters least
HEADERS = {"User-Agent": "ozymandias-pool", "Accept": "application/json"}
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


class OutsideWork:
    """Pending work outside of the cluster. ``commands`` are those that may be run on ``node``."""

    def __init__(
        self,
        *,
        node: str = "this node",
        commands: tuple[str, ...] = (),
        user: str = "nobody",
        ask_seconds_max: float = ASK_SECONDS_MAX,
    ) -> None:
        self._node = node
        self._allowed = {tuple(shlex.split(command)) for command in commands}
        self._user = user
        self._seconds = ask_seconds_max

    async def ask(self, source: Autoscale) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                if source.source is PendingSource.URL:
                    return await self._get(source.target)
                return await self._run_here(tuple(shlex.split(source.target)))
        except TimeoutError:
            raise SourceFailed(f"no whole answer within {self._seconds:g} s") from None

    async def _get(self, url: str) -> bytes:
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector_for_strangers(),
                    timeout=timeout,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    trust_env=False,
                    headers=HEADERS,
                ) as session,
                session.get(URL(url), allow_redirects=False) as answer,
            ):
                if 300 <= answer.status < 400:
                    raise SourceFailed(f"HTTP {answer.status}, and redirects are not followed")
                if answer.status != 200:
                    raise SourceFailed(f"HTTP {answer.status}")
                return await _bounded(answer.content)
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SourceFailed(_words(error)) from error

    async def _run_here(self, command: tuple[str, ...]) -> bytes:
        """What is wrong with a command may be wrong on one node alone, so it is named."""
        try:
            return await self._run(command)
        except SourceFailed as error:
            raise SourceFailed(f"on {self._node} {error}") from error

    async def _run(self, command: tuple[str, ...]) -> bytes:
        if command not in self._allowed:
            raise SourceFailed(
                "the command is not listed under [autoscale] commands, word for word"
            )
        if shutil.which(command[0], path=ENVIRONMENT["PATH"]) is None:
            raise SourceFailed("the command can't be run: there is no such program")
        async with _pipe() as (reader, writing):
            try:
                process = _started((*self._as_whom(), *command), writing)
            except (OSError, ValueError) as error:
                raise SourceFailed(f"the command can't be run: {_words(error)}") from error
            finally:
                os.close(writing)
            try:
                answer = await _bounded(reader)
                await _ended(process)
            finally:
                # Whatever happened, nothing of it is left, children included.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(_ended(process))
                code = process.wait()
        if code:
            raise SourceFailed(f"the command ended with exit code {code}")
        return answer

    def _as_whom(self) -> tuple[str, ...]:
        """As a user without rights; a daemon that is not root has none to give away.

        By programs of Debian's util-linux: `Popen` can't keep it from gaining rights, and copies a
        large daemon where it is to change the user. What spares the daemon when the host is out of
        memory must not spare a command.
        """
        expendable = ("/usr/bin/choom", "-n", str(OOM_SCORE_COMMAND), "--")
        if os.geteuid() != 0:
            return expendable
        try:
            found = pwd.getpwnam(self._user)
        except KeyError:
            raise SourceFailed(f"there is no user {self._user} ([autoscale] user)") from None
        if found.pw_uid == 0:
            raise SourceFailed("[autoscale] user is root, and commands are not run as root")
        ids = (f"--reuid={found.pw_uid}", f"--regid={found.pw_gid}", "--clear-groups")
        return (*expendable, "/usr/bin/setpriv", *ids, "--no-new-privs", "--")


@contextlib.asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """What is written to the descriptor can be read; closed at the end, whoever still has it.

    A child that left the session keeps its end open for as long as it likes.
    """
    reading, writing = os.pipe()
    reader = asyncio.StreamReader(limit=ANSWER_BYTES_MAX)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
    )
    try:
        yield reader, writing
    finally:
        transport.close()


def _started(command: tuple[str, ...], output: int) -> subprocess.Popen[bytes]:
    """Not by the loop: of what uvloop hands to a process it has a second copy, and whatever it
    starts has one too, so that a pipe stays open without their knowing of it."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=ENVIRONMENT,
        start_new_session=True,
    )


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """It has, but its number is still its own: nobody has asked for its exit code yet."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    handle = os.pidfd_open(process.pid)
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def _bounded(stream: aiohttp.StreamReader | asyncio.StreamReader) -> bytes:
    """All of it, or SourceFailed as soon as it is too much."""
    answer = bytearray()
    while chunk := await stream.read(ANSWER_BYTES_MAX):
        answer += chunk
        if len(answer) > ANSWER_BYTES_MAX:
            raise SourceFailed(f"the answer is over {ANSWER_BYTES_MAX // 1024} KiB")
    return bytes(answer)


def _words(error: Exception) -> str:
    """Why, in words that hold nothing of an answer."""
    if isinstance(error, SentTooMuch):
        return f"it sent over {HEARD_BYTES_MAX // 1024} KiB"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the host's name is not known"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "its certificate is not trusted"
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror).lower()
    return {"ServerDisconnectedError": "the server hung up"}.get(
        type(error).__name__, "the answer is not HTTP as it should be"
    )
