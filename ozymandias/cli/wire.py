"""One HTTP/1.1 request and its answer over a socket; as much of it as our own API speaks.

The standard library's client brings its e-mail parser along and costs half of what starting `ozy`
may take, so this speaks HTTP itself: a status line, headers, and a body that is counted, chunked,
or ends with the connection. Nothing here knows what is asked.
"""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

HEADER_LINES_MAX = 100
LINE_BYTES_MAX = 65536
_UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")


class ConnectFailed(Exception):
    """Nobody listens there: the request was not sent."""


class NoAnswer(Exception):
    """The request was sent, and no whole answer came back."""


def quoted(text: str) -> str:
    """Percent-encoded, as one segment of a path or one value of a query."""
    return "".join(chr(b) if b in _UNRESERVED else f"%{b:02X}" for b in text.encode())


class Answer:
    """Status, headers in lower case, and the body, read once, by lines or as a whole."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._file: Any = sock.makefile("rb")
        self.headers: dict[str, str] = {}
        self.status = 0
        try:
            self._read_head()
        except (OSError, ValueError) as error:
            self.close()
            raise NoAnswer(_said(error)) from error

    def _read_head(self) -> None:
        line = self._file.readline(LINE_BYTES_MAX)
        if not line.startswith(b"HTTP/1."):
            raise ValueError("the connection was closed" if not line else "this is not HTTP")
        self.status = int(line.split(None, 2)[1])
        for _ in range(HEADER_LINES_MAX):
            line = self._file.readline(LINE_BYTES_MAX)
            if line in (b"\r\n", b"\n", b""):
                return
            name, _, value = line.decode("latin-1").partition(":")
            self.headers[name.strip().lower()] = value.strip()
        raise ValueError("too many headers")

    def parts(self) -> Iterator[bytes]:
        """The body as it comes. NoAnswer when it breaks off."""
        try:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                yield from self._chunks()
            elif "content-length" in self.headers:
                left = int(self.headers["content-length"])
                while left > 0:
                    part = self._file.read(min(left, 65536))
                    if not part:
                        raise ValueError("the answer broke off")
                    left -= len(part)
                    yield part
            else:
                while part := self._file.read1(65536):
                    yield part
        except (OSError, ValueError) as error:
            raise NoAnswer(_said(error)) from error

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = self._file.readline(LINE_BYTES_MAX)
            if not line:
                raise ValueError("the answer broke off")
            left = int(line.split(b";")[0], 16)
            if left == 0:
                return
            while left > 0:
                part = self._file.read1(left)
                if not part:
                    raise ValueError("the answer broke off")
                left -= len(part)
                yield part
            self._file.readline(LINE_BYTES_MAX)

    def body(self) -> bytes:
        return b"".join(self.parts())

    def lines(self) -> Iterator[bytes]:
        """Whole lines without their ends, each as soon as it is there."""
        rest = b""
        for part in self.parts():
            *whole, rest = (rest + part).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def send(
    endpoint: str,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes,
    *,
    connect_timeout: float,
    timeout: float,
    ca: str = "",
) -> Answer:
    """Send one request. ConnectFailed and NoAnswer say how far it got.

    ``ca`` is the PEM of the only authority that is believed; "" for those of the machine.
    """
    sock, host = _connect(endpoint, connect_timeout, ca)
    sock.settimeout(timeout)
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"
    try:
        sock.sendall(head + body)
    except TimeoutError as error:
        sock.close()
        raise NoAnswer(_said(error)) from error
    except OSError:
        pass  # an answer may have come before all was sent, for example "too large"
    return Answer(sock)


def _connect(endpoint: str, timeout: float, ca: str) -> tuple[socket.socket, str]:
    scheme, separator, rest = endpoint.partition("://")
    if not separator:
        scheme, rest = "http", endpoint
    try:
        if scheme == "unix":
            return _connect_unix(rest, timeout), "localhost"
        authority = rest.split("/", 1)[0]
        name, _, port = authority.rpartition(":")
        address = (name.strip("[]"), int(port)) if name else (authority, 443)
        sock = socket.create_connection(_encoded(address), timeout=timeout)
        if scheme == "https":
            import ssl

            tls = ssl.create_default_context(cadata=ca or None)
            with contextlib.ExitStack() as stack:
                stack.callback(sock.close)  # unless the other side proves who it is
                sock = tls.wrap_socket(sock, server_hostname=address[0])
                stack.pop_all()
        return sock, authority
    except (OSError, ValueError, OverflowError) as error:
        raise ConnectFailed(_said(error)) from error


def _connect_unix(path: str, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def _encoded(address: tuple[str, int]) -> tuple[str, int]:
    """An ASCII host as bytes: given text, the socket module would load its IDNA tables."""
    host, port = address
    return (host.encode(), port) if host.isascii() else address  # type: ignore[return-value]


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text)[:1].lower() + str(text)[1:]
