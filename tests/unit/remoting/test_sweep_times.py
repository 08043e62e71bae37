"""Deadlines are kept whenever they come, and who has none near is woken seldom."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import pytest

from rocketbox.errors import ConnectError, RequestTimeoutError, TooManyRequestsError
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection, Opened, RemotingOptions
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.server import RemotingServer
from rocketbox.tasks import Supervisor
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.anyio

ADDRESS = "127.0.0.1:10911"
ASK = RemotingCommand.request(35)


class CountingClock(VirtualClock):
    """Counts how often somebody begins to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    async def sleep(self, seconds: float) -> None:
        self.waits += 1
        await super().sleep(seconds)

    @contextmanager
    def move_on_after(self, seconds: float) -> Iterator[anyio.CancelScope]:
        self.waits += 1
        with super().move_on_after(seconds) as scope:
            yield scope


class SlowNetwork(MemoryNetwork):
    """Its connects never end."""

    async def connect(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Connection:
        await anyio.sleep_forever()
        raise AssertionError


@asynccontextmanager
async def connected(
    clock: VirtualClock, options: RemotingOptions | None = None
) -> AsyncIterator[tuple[RemotingClient, RemotingServer]]:
    """A client and a server, which never answers 35."""
    network = MemoryNetwork()
    server = RemotingServer(
        {34: lambda _, __: RemotingCommand.response(), 35: lambda _, __: None},
        host="127.0.0.1", port=10911, clock=clock, network=network,
    )  # fmt: skip
    async with server, RemotingClient(clock=clock, network=network, options=options) as client:
        await client.request(ADDRESS, RemotingCommand.request(34), timeout=3)
        yield client, server


async def timed_out(clock: VirtualClock, client: RemotingClient, timeout: float, late: list[float]) -> None:
    end = clock.monotonic() + timeout
    with pytest.raises(RequestTimeoutError):
        await client.request(ADDRESS, ASK, timeout=timeout)
    late.append(clock.monotonic() - end)


async def test_neither_a_client_nor_a_server_wakes_while_only_far_deadlines_are_awaited() -> None:
    clock = CountingClock()
    async with connected(clock) as (client, _), anyio.create_task_group() as group:
        late: list[float] = []
        group.start_soon(timed_out, clock, client, 30, late)
        await clock.advance(0.5)
        clock.waits = 0
        await clock.advance(20)
        assert clock.waits <= 3
        assert late == []
        await clock.advance(10)
        assert late == [pytest.approx(0, abs=0.1)]


@pytest.mark.parametrize("timeout", [0.05, 0.3, 0.49, 0.51, 0.7, 3.0])
async def test_a_timeout_of_any_length_is_at_most_one_sweep_late_whenever_it_begins(timeout: float) -> None:
    clock = VirtualClock()
    async with connected(clock) as (client, _), anyio.create_task_group() as group:
        late: list[float] = []
        for _ in range(12):
            group.start_soon(timed_out, clock, client, timeout, late)
            await clock.advance(0.09)
        await clock.advance(timeout + 0.1)
        assert len(late) == 12
        assert max(late) <= 0.1 + 1e-9


async def test_a_server_that_asks_its_client_is_told_in_time_that_no_answer_comes() -> None:
    clock = VirtualClock()
    async with connected(clock) as (client, server), anyio.create_task_group() as group:
        client.register_handler(36, lambda _, __: None)
        (accepted,) = server.connections
        late: list[float] = []

        async def ask(timeout: float) -> None:
            end = clock.monotonic() + timeout
            with pytest.raises(RequestTimeoutError):
                await accepted.request(RemotingCommand.request(36), timeout=timeout)
            late.append(clock.monotonic() - end)

        await clock.advance(0.27)
        for timeout in (0.2, 1.7):
            group.start_soon(ask, timeout)
        await clock.advance(1.81)
        assert late == [pytest.approx(0, abs=0.1)] * 2


async def test_who_stands_in_line_or_waits_for_a_connect_is_told_in_time() -> None:
    clock = VirtualClock()
    async with (
        connected(clock, RemotingOptions(max_requests_in_flight=1)) as (client, _),
        RemotingClient(clock=clock, network=SlowNetwork()) as unconnected,
        anyio.create_task_group() as group,
    ):
        late: list[float] = []
        group.start_soon(timed_out, clock, client, 5, [])
        await clock.advance(0.1)

        async def ask(asked: RemotingClient, error: type[Exception]) -> None:
            end = clock.monotonic() + 0.2
            with pytest.raises(error):
                await asked.request(ADDRESS, ASK, timeout=0.2)
            late.append(clock.monotonic() - end)

        group.start_soon(ask, client, TooManyRequestsError)
        group.start_soon(ask, unconnected, ConnectError)
        await clock.advance(0.31)
        assert late == [pytest.approx(0, abs=0.1)] * 2
        await clock.advance(5)
