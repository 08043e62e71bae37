"""The connections of a harness's network: what the driver above a transport may count on."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

import pytest

from rocketbox.testing import Harness
from rocketbox.testing.memory_transport import HIGH_WATER, MemoryTransport, connect_pair
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

QUIET = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("quiet", scan=[__name__])

@rocketmq_listener(topic="orders", consumer_group="billing")
async def bill(order: str) -> None:
    pass
"""

SERVER, CLIENT = ("broker", 10911), ("127.0.0.1", 20000)


@dataclass
class Driver:
    """One that keeps what it is told; its buffer takes ``room`` bytes at a time."""

    room: int = 1 << 20
    read: bytearray = field(default_factory=bytearray)
    told: list[str] = field(default_factory=list)
    error: Exception | None = None
    pauses_at: int | None = None
    fails: bool = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        self.buffer = bytearray(self.room)
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        if self.fails:
            raise ValueError("what is this")
        self.read += self.buffer[:nbytes]
        if self.pauses_at is not None and len(self.read) >= self.pauses_at:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.told.append("end")
        return False

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.told.append("lost")
        self.error = error


class Pair:
    def __init__(self, client: Driver, server: Driver) -> None:
        self.silent = False
        loop = asyncio.get_running_loop()
        self.client = MemoryTransport(loop, client, (CLIENT, SERVER), copy_context())  # type: ignore[arg-type]
        self.server = MemoryTransport(
            loop, server, (SERVER, CLIENT), copy_context(), lambda: self.silent  # type: ignore[arg-type]
        )  # fmt: skip
        connect_pair(self.client, self.server)


async def turns(count: int = 6) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_bytes_arrive_in_order_however_little_the_other_end_takes_at_once() -> None:
    client, server = Driver(), Driver(room=3)
    pair = Pair(client, server)
    pair.client.write(b"one two ")
    pair.client.write(bytearray(b"three"))
    assert not server.read  # never inside of the write
    await turns()
    assert bytes(server.read) == b"one two three"
    assert pair.server.get_extra_info("peername") == CLIENT
    assert pair.client.get_extra_info("peername") == SERVER


async def test_who_writes_more_than_is_taken_is_paused_until_it_is() -> None:
    client, server = Driver(), Driver(room=HIGH_WATER // 8, pauses_at=1)
    pair = Pair(client, server)
    pair.client.write(bytes(HIGH_WATER + 1))
    assert client.told == ["pause"]
    await turns()
    assert len(server.read) == HIGH_WATER // 8  # and it has asked for no more
    assert client.told == ["pause"]
    server.pauses_at = None
    pair.server.resume_reading()
    await turns()
    assert len(server.read) == HIGH_WATER + 1
    assert client.told == ["pause", "resume"]


async def test_what_is_written_before_a_close_arrives_before_the_end() -> None:
    client, server = Driver(), Driver(pauses_at=1)
    pair = Pair(client, server)
    pair.client.write(b"a")
    await turns()
    pair.client.write(b"bye")
    pair.client.close()
    pair.client.write(b"too late")
    await turns()
    assert client.told == []  # nobody has taken it yet
    server.pauses_at = None
    pair.server.resume_reading()
    await turns()
    assert bytes(server.read) == b"abye"
    assert server.told == ["end", "lost"]
    assert client.told == ["lost"]


async def test_ends_that_close_while_neither_reads_come_to_their_end() -> None:
    client, server = Driver(), Driver()
    pair = Pair(client, server)
    pair.client.pause_reading()
    pair.server.pause_reading()
    pair.client.write(b"a")
    pair.server.write(b"b")
    pair.client.close()
    pair.server.abort()
    await turns()
    assert client.told == ["lost"]
    assert server.told == ["lost"]


async def test_what_is_kept_back_comes_in_its_order_and_is_lost_with_the_connection() -> None:
    client, server = Driver(), Driver()
    pair = Pair(client, server)
    pair.silent = True
    pair.server.write(b"one ")
    pair.client.write(b"heard")
    await turns()
    assert (bytes(client.read), bytes(server.read)) == (b"", b"heard")
    pair.silent = False
    pair.server.write(b"two ")  # behind what is kept back
    pair.server.pass_on()
    await turns()
    assert bytes(client.read) == b"one two "
    pair.silent = True
    pair.server.write(bytes(HIGH_WATER + 1))
    assert server.told == []  # it does not wait
    pair.server.close()
    await turns()
    assert bytes(client.read) == b"one two "
    assert client.told == ["end", "lost"]
    assert server.told == ["lost"]


async def test_a_driver_that_raises_loses_its_connection_and_no_other() -> None:
    client, server = Driver(), Driver(fails=True)
    pair = Pair(client, server)
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))
    try:
        pair.client.write(b"a")
        await turns()
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
    assert [str(error) for error in seen] == ["what is this"]
    assert server.told == ["lost"]
    assert isinstance(server.error, ValueError)
    assert client.told == ["end", "lost"]
    assert client.error is None


async def test_an_hour_in_which_nothing_is_sent_takes_few_calls_of_the_loop(service: ServiceMaker) -> None:
    """They are what a day of virtual time costs: 14,000 when connections had tasks, and groups were shared anew
    each 20 s."""
    module = service(QUIET)
    loop: Any = asyncio.get_running_loop()
    calls = 0
    async with Harness(module.app) as harness:
        call_soon = loop.call_soon

        def counting(*args: Any, **named: Any) -> asyncio.Handle:
            nonlocal calls
            calls += 1
            return call_soon(*args, **named)  # type: ignore[no-any-return]  # as it is

        loop.call_soon = counting
        try:
            await harness.advance("1h")
        finally:
            del loop.call_soon
    assert 500 < calls < 9_000
