"""HTTP as `ozy` speaks it, against a socket that plays the server byte by byte."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ozymandias.cli.wire import Answer, ConnectFailed, NoAnswer, quoted, send


@contextmanager
def server(*parts: bytes, close: bool = True) -> Iterator[tuple[str, list[bytes]]]:
    """Takes one connection, reads the request's head, sends the parts, closes."""
    received: list[bytes] = []
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                received.append(connection.recv(65536))
                for part in parts:
                    connection.sendall(part)
                if not close:
                    done.wait(5)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            done.set()
            thread.join(5)


def ask(endpoint: str, timeout: float = 5.0) -> Answer:
    return send(endpoint, "GET", "/v1/x", {"A": "b"}, b"", connect_timeout=2, timeout=timeout)


def test_a_counted_body() -> None:
    """Content-Length says how much to read; headers are found in lower case."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Y: z\r\n\r\n"
    with server(head + b"he", b"llo and more") as (endpoint, received):
        answer = ask(endpoint)
        assert (answer.status, answer.headers["x-y"], answer.body()) == (200, "z", b"hello")
        answer.close()
    assert received[0].startswith(b"GET /v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nA: b\r\n" in received[0]


def test_chunks_are_put_together_and_split_into_lines() -> None:
    """Lines come out whole, however the chunks cut them."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with server(head, b"3\r\none\r\n", b"6;x=y\r\n\ntwo\nt\r\n", b"4\r\nhree\r\n0\r\n\r\n") as (
        where,
        _,
    ):
        answer = ask(where)
        assert list(answer.lines()) == [b"one", b"two", b"three"]
        answer.close()


def test_a_body_that_ends_with_the_connection() -> None:
    """Without a length the end of the connection is the end."""
    with server(b"HTTP/1.1 200 OK\r\n\r\nall of it") as (endpoint, _):
        answer = ask(endpoint)
        assert answer.body() == b"all of it"
        answer.close()


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",),
    ],
)
def test_a_body_that_breaks_off_is_no_answer(parts: tuple[bytes, ...]) -> None:
    """Half an answer is never taken for a whole one."""
    with server(*parts) as (endpoint, _):
        answer = ask(endpoint)
        with pytest.raises(NoAnswer):
            answer.body()
        answer.close()


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 what\r\n\r\n"])
def test_what_is_not_http_is_no_answer(said: bytes) -> None:
    """A closed connection and another protocol are told apart from an answer."""
    with server(said) as (endpoint, _), pytest.raises(NoAnswer):
        ask(endpoint)


def test_silence_ends() -> None:
    """A server that accepts and says nothing is given up at the timeout."""
    with server(close=False) as (endpoint, _), pytest.raises(NoAnswer, match="in time"):
        ask(endpoint, timeout=0.2)


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:1", "unix:///nowhere.sock", "http://127.0.0.1:x", "http://:0"]
)
def test_nobody_there(endpoint: str) -> None:
    """A refused connection and a nonsensical endpoint both say that nothing was sent."""
    with pytest.raises(ConnectFailed):
        ask(endpoint)


def test_names_are_quoted() -> None:
    """Nothing in a name can reach beyond its segment of the path."""
    assert quoted("../a b?c#d/é") == "..%2Fa%20b%3Fc%23d%2F%C3%A9"
