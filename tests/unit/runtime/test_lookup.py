"""Names that nobody answers for keep no other name waiting."""

import asyncio
import socket
import threading
from typing import Any

import pytest
import uvloop

from ozymandias.runtime.lookup import OwnThreads

HANGING = 50  # more than any loop has threads


def found(address: str, port: int) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]


def test_a_name_is_found_while_many_others_hang() -> None:
    """Also when those who asked have gone; the threads end once they are answered."""
    released = threading.Event()

    def look_up(host: str, port: int, *_: object, **__: object) -> list[Any]:
        if host == "hangs":
            released.wait(60)
        return found("192.0.2.7", port)

    async def story() -> None:
        names = OwnThreads(look_up)
        asked = [asyncio.create_task(names.resolve("hangs", 80)) for _ in range(HANGING)]
        for task in asked[1:]:
            await asyncio.sleep(0)
            task.cancel()
        (one,) = await names.resolve("answers", 81)
        assert (one["host"], one["port"], one["hostname"]) == ("192.0.2.7", 81, "answers")
        assert not asked[0].done()
        released.set()
        assert [result["port"] for result in await asked[0]] == [80]

    uvloop.run(story())


def test_a_name_that_is_not_known_is_an_error_of_the_system() -> None:
    """As aiohttp expects it; and so is what can't be a name."""

    def unknown(*_: object, **__: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(socket.gaierror):
        uvloop.run(OwnThreads(unknown).resolve("nowhere", 80))
    with pytest.raises(ValueError):
        uvloop.run(OwnThreads().resolve("x" * 64 + ".example", 80))


def test_the_names_of_this_host_are_found() -> None:
    """By its own table and resolver."""
    addresses = {result["host"] for result in uvloop.run(OwnThreads().resolve("localhost", 80))}
    assert addresses & {"127.0.0.1", "::1"}
