"""What stands around the handlers of a server: hooks that refuse, count and time, and hear once how a request ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from rocketbox.errors import RemotingError
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand, encode_response
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.remoting.hooks import NO_ANSWER, RequestHook
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.server import RemotingServer
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


class Recorder:
    """Writes down what it sees; refuses the codes that it is told to refuse."""

    def __init__(self, clock: VirtualClock, name: str = "", refused: Sequence[int] = ()) -> None:
        self.seen: list[str] = []
        self.took: list[float] = []
        self.bytes = 0
        self._clock = clock
        self._name = name
        self._refused = refused
        self._began: dict[RemotingCommand, float] = {}

    def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.seen.append(f"{self._name}> {request.code}")
        self._began[request] = self._clock.monotonic()
        if request.code in self._refused:
            return RemotingCommand.response(ResponseCode.NO_PERMISSION, "not you")
        return None

    def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None:
        self.seen.append(f"{self._name}< {request.code}: {code}")
        self.took.append(self._clock.monotonic() - self._began.pop(request))
        self.bytes += frame_bytes

    @property
    def under_way(self) -> int:
        return len(self._began)


class Caller:
    """Asks a server; answers by number."""

    def __init__(self, client: RemotingClient, server: RemotingServer) -> None:
        self.client = client
        self.server = server

    async def ask(self, code: int) -> RemotingCommand:
        return await self.client.request(self.server.address, RemotingCommand.request(code), timeout=60)

    async def tell(self, code: int) -> None:
        await self.client.send_oneway(self.server.address, RemotingCommand.request(code), timeout=5)
        await settle()


@asynccontextmanager
async def serving(
    clock: VirtualClock, handlers: dict[int, RequestHandler], *hooks: RequestHook
) -> AsyncIterator[Caller]:
    network = MemoryNetwork()
    async with (
        RemotingServer(handlers, host="server", port=0, clock=clock, network=network, hooks=hooks) as server,
        RemotingClient(clock=clock, network=network) as client,
    ):
        yield Caller(client, server)


def well(_: Connection, __: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response()


async def test_hooks_are_called_in_order_before_and_in_reverse_after() -> None:
    clock = VirtualClock()
    outer, inner = Recorder(clock, "outer"), Recorder(clock, "inner")
    inner.seen = outer.seen
    async with serving(clock, {34: well}, outer, inner) as caller:
        assert (await caller.ask(34)).code == 0
    assert outer.seen == ["outer> 34", "inner> 34", "inner< 34: 0", "outer< 34: 0"]


async def test_a_hook_that_answers_spares_the_handler_and_the_hooks_behind_it() -> None:
    clock = VirtualClock()
    handled: list[int] = []
    outer, refusing, inner = Recorder(clock, "o"), Recorder(clock, "r", refused=[34]), Recorder(clock, "i")

    def handler(_: Connection, request: RemotingCommand) -> RemotingCommand:
        handled.append(request.code)
        return RemotingCommand.response()

    async with serving(clock, {34: handler, 35: handler}, outer, refusing, inner) as caller:
        answer = await caller.ask(34)
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not you")
        assert (await caller.ask(35)).code == 0
    assert handled == [35]
    assert outer.seen[:2] == ["o> 34", "o< 34: 16"]
    assert refusing.seen[:2] == ["r> 34", "r< 34: 16"]
    assert inner.seen == ["i> 35", "i< 35: 0"]


async def test_an_answer_given_later_is_timed_and_counted_when_it_is_given() -> None:
    clock = VirtualClock()
    hook = Recorder(clock)
    held: list[tuple[Connection, RemotingCommand]] = []

    def hold(connection: Connection, request: RemotingCommand) -> None:
        held.append((connection, request))

    async def work(_: Connection, __: RemotingCommand) -> RemotingCommand:
        await clock.sleep(2)
        return RemotingCommand.response(ResponseCode.SYSTEM_BUSY)

    async with serving(clock, {11: hold, 12: work}, hook) as caller, anyio.create_task_group() as group:
        group.start_soon(caller.ask, 11)
        group.start_soon(caller.ask, 12)
        await settle()
        assert hook.took == []
        await clock.advance(5)
        ((connection, request),) = held
        frame = encode_response(request, RemotingCommand.response(ResponseCode.PULL_NOT_FOUND))
        connection.reply_frame(request, frame, code=ResponseCode.PULL_NOT_FOUND)
        connection.reply(request, RemotingCommand.response())  # a second answer is its giver's fault, not the hook's
        await settle()
    assert sorted(hook.seen) == ["< 11: 19", "< 12: 2", "> 11", "> 12"]
    assert sorted(hook.took) == [2.0, 5.0]
    assert hook.bytes > len(frame)


async def test_a_one_way_request_is_over_when_its_handler_is() -> None:
    clock = VirtualClock()
    hook = Recorder(clock)

    async def work(_: Connection, request: RemotingCommand) -> RemotingCommand | None:
        await clock.sleep(2)
        return RemotingCommand.response(ResponseCode.SYSTEM_BUSY) if request.code == 35 else None

    def fail(_: Connection, __: RemotingCommand) -> RemotingCommand:
        raise ValueError

    handlers: dict[int, RequestHandler] = {33: well, 34: lambda *_: None, 35: work, 36: work, 37: fail}
    async with serving(clock, handlers, hook) as caller:
        for code in (33, 34, 37, 9999):
            await caller.tell(code)
        assert [line for line in hook.seen if "<" in line] == ["< 33: 0", "< 34: 0", "< 37: 1", "< 9999: 3"]
        await caller.tell(35)
        await caller.tell(36)
        assert hook.under_way == 2
        await clock.advance(2)
        assert sorted(hook.seen[-2:]) == ["< 35: 2", "< 36: 0"]
    assert hook.bytes == 0


async def test_a_handler_that_fails_is_an_answer_as_well() -> None:
    clock = VirtualClock()
    hook = Recorder(clock)

    def fail(_: Connection, __: RemotingCommand) -> RemotingCommand:
        raise ValueError("no such thing")

    async with serving(clock, {34: fail}, hook) as caller:
        assert (await caller.ask(34)).code == 1
    assert hook.seen == ["> 34", "< 34: 1"]


async def test_requests_whose_connection_is_lost_are_over_once() -> None:
    clock = VirtualClock()
    hook = Recorder(clock)
    held: list[tuple[Connection, RemotingCommand]] = []

    def hold(connection: Connection, request: RemotingCommand) -> None:
        held.append((connection, request))

    async def work(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        hold(connection, request)
        await clock.sleep(2)
        return RemotingCommand.response()

    async def ask(caller: Caller, code: int) -> None:
        with pytest.raises(RemotingError):
            await caller.ask(code)

    async with serving(clock, {11: hold, 12: work}, hook) as caller, anyio.create_task_group() as group:
        group.start_soon(ask, caller, 11)
        group.start_soon(ask, caller, 12)
        await settle()
        held[0][0].abort()
        await settle()
        assert sorted(hook.seen) == [f"< 11: {NO_ANSWER}", f"< 12: {NO_ANSWER}", "> 11", "> 12"]
        for connection, request in held:
            connection.reply(request, RemotingCommand.response())
        await clock.advance(2)
    assert len(hook.seen) == 4
    assert hook.under_way == 0


async def test_a_connection_that_a_hook_closes_serves_nothing_more() -> None:
    clock = VirtualClock()
    hook = Recorder(clock)

    class Closing(Recorder):
        def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
            super().before(connection, request)
            connection.close("enough of this peer")
            return None

    closing, behind = Closing(clock), Recorder(clock)
    async with serving(clock, {34: well}, hook, closing, behind) as caller:
        with pytest.raises(RemotingError):
            await caller.ask(34)
    assert hook.seen == closing.seen == ["> 34", f"< 34: {NO_ANSWER}"]
    assert behind.seen == []


async def test_a_hook_that_fails_is_answered_1_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()

    class Failing(Recorder):
        def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
            super().before(connection, request)
            if request.code == 34:
                raise ValueError("bad before")
            return None

        def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None:
            raise ValueError("bad after")

    outer, failing = Recorder(clock), Failing(clock)
    async with serving(clock, {34: well, 35: well}, outer, failing) as caller:
        assert (await caller.ask(34)).code == 1
        assert len(caplog.records) == 1
        assert (await caller.ask(35)).code == 0
        assert len(caplog.records) == 2
    assert outer.seen == ["> 34", "< 34: 1", "> 35", "< 35: 0"]


async def test_a_hook_that_fails_behind_each_request_is_told_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()

    class Failing(Recorder):
        def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None:
            raise ValueError("bad after")

    async with serving(clock, {34: well}, Failing(clock)) as caller:
        for _ in range(100):
            await caller.ask(34)
        (line,) = caplog.records
        assert "Failing" in line.getMessage()
        assert caller.server.counters.failed_hooks == 100
        await clock.advance(10)
        await caller.ask(34)
        assert "and 99 more like it" in caplog.records[-1].getMessage()


async def test_answers_that_are_too_large_are_told_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    body = bytes(17 << 20)
    async with serving(clock, {34: lambda *_: RemotingCommand.response(body=body)}) as caller:
        for _ in range(10):
            answer = await caller.ask(34)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "too large" in str(answer.remark)
        assert len(caplog.records) == 1
        assert caller.server.counters.too_large_answers == 10
