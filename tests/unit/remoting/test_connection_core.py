"""The connection core on a driver that only records: who waits, who is answered, who is let go."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from rocketbox.errors import (
    ConnectionClosedError,
    LocalProtocolError,
    RequestTimeoutError,
    RocketBoxError,
    StoreError,
    TooManyRequestsError,
)
from rocketbox.protocol.bodies import decode_heartbeat
from rocketbox.protocol.codes import SerializeType
from rocketbox.protocol.command import RemotingCommand, encode_command, encode_response
from rocketbox.protocol.framing import FrameReader
from rocketbox.protocol.headers import ViewMessageRequestHeader
from rocketbox.remoting.connection import MAX_OPAQUE, Connection, RemotingOptions, RequestHandler, Role
from rocketbox.remoting.sweep_times import SweepTimes
from rocketbox.tasks import Supervisor
from tests.support.clocks import VirtualClock, settle
from tests.support.remoting.by_hand import RecordingDriver

pytestmark = pytest.mark.anyio


class Bench:
    """A connection, its driver and its peer's view of the bytes."""

    def __init__(
        self,
        clock: VirtualClock,
        tasks: Supervisor,
        *,
        accepted: bool = False,
        options: RemotingOptions | None = None,
        handlers: dict[int, RequestHandler] | None = None,
        opaques: Iterator[int] | None = None,
    ) -> None:
        self.clock = clock
        self.driver = RecordingDriver()
        self.closed: list[Connection] = []
        role = Role(
            accepted=accepted,
            clock=clock,
            options=options or RemotingOptions(),
            opaques=opaques or itertools.count(),
            handlers=handlers or {},
            handler_tasks=tasks,
            sweeps=SweepTimes(clock, 0.1),
            closed=self.closed.append,
        )
        self.connection = Connection(self.driver, role, local_address="here:1", remote_address="there:2")
        self.results: dict[str, RemotingCommand | RocketBoxError] = {}
        self._peer = FrameReader()

    def sent(self) -> list[RemotingCommand]:
        """What the connection has written since the last time."""
        data = self.connection.take_output()
        commands = self._peer.feed(data)
        self.connection.flushed(len(data))
        return commands

    def answer(self, request: RemotingCommand, body: bytes = b"", **options: SerializeType) -> None:
        self.connection.received(encode_response(request, RemotingCommand.response(body=body), **options))

    def ask(self, code: int, opaque: int = 1, *, oneway: bool = False, body: bytes = b"") -> None:
        self.connection.received(encode_command(RemotingCommand.request(code, body=body), opaque, oneway=oneway))

    async def request(self, name: str, timeout: float = 3.0) -> None:
        try:
            self.results[name] = await self.connection.request(
                RemotingCommand.request(34, body=name.encode()), timeout=timeout
            )
        except RocketBoxError as error:
            self.results[name] = error

    async def begin(self, group: anyio.abc.TaskGroup, name: str, timeout: float = 3.0) -> None:
        """Start a request and let it come to its wait; trio would start several in any order."""
        group.start_soon(self.request, name, timeout)
        await settle(3)

    def body(self, name: str) -> bytes:
        result = self.results[name]
        assert isinstance(result, RemotingCommand), result
        return result.body

    def assert_no_trace(self) -> None:
        assert self.connection.requests_in_flight == 0
        assert not self.connection._line
        assert self.connection._line.admitted == 0


MakeBench = Callable[..., Bench]


@asynccontextmanager
async def benches() -> AsyncIterator[tuple[MakeBench, anyio.abc.TaskGroup]]:
    clock = VirtualClock()
    async with Supervisor("handlers", clock) as tasks, anyio.create_task_group() as group:

        def make(**options: object) -> Bench:
            return Bench(clock, tasks, **options)  # type: ignore[arg-type]  # passed on as they are

        yield make, group
        group.cancel_scope.cancel()


# --- sending -------------------------------------------------------------------------------------------------------


async def test_answers_in_any_order_reach_those_who_asked() -> None:
    async with benches() as (make, group):
        bench = make()
        for name in ("a", "b", "c"):
            await bench.begin(group, name)
        await settle()
        requests = {request.body: request for request in bench.sent()}
        assert bench.driver.flushes == 1, "frames of one turn leave together"
        for body in (b"c", b"a", b"b"):
            bench.answer(requests[body], b"to " + body)
        await settle()
        assert [bench.body(name) for name in ("a", "b", "c")] == [b"to a", b"to b", b"to c"]
        bench.assert_no_trace()


@pytest.mark.parametrize("answered_in", [SerializeType.JSON, SerializeType.ROCKETMQ])
@pytest.mark.parametrize("asked_in", [SerializeType.JSON, SerializeType.ROCKETMQ])
async def test_both_forms_of_answer_are_understood(asked_in: SerializeType, answered_in: SerializeType) -> None:
    async with benches() as (make, group):
        bench = make(options=RemotingOptions(serialization=asked_in))
        await bench.begin(group, "a")
        await settle()
        (request,) = bench.sent()
        assert request.serialization == asked_in
        bench.answer(request, b"yes", serialization=answered_in)
        await settle()
        assert bench.body("a") == b"yes"


async def test_a_request_times_out_and_its_late_answer_is_dropped() -> None:
    async with benches() as (make, group):
        bench = make()
        await bench.begin(group, "slow", 3.0)
        await bench.begin(group, "patient", 30.0)
        await settle()
        slow, patient = bench.sent()
        await bench.clock.advance(2.99)
        bench.connection.sweep()
        await settle()
        assert bench.results == {}
        await bench.clock.advance(0.01)
        bench.connection.sweep()
        await settle()
        error = bench.results["slow"]
        assert isinstance(error, RequestTimeoutError)
        assert "request 34 to there:2" in str(error)
        assert "3 s" in str(error)
        bench.answer(slow, b"late")
        bench.answer(patient, b"in time")
        await settle()
        assert bench.body("patient") == b"in time"
        assert not bench.connection.closed
        bench.assert_no_trace()


async def test_answers_that_come_twice_or_that_nobody_asked_for_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with benches() as (make, group):
        bench = make()
        await bench.begin(group, "one")
        await bench.begin(group, "other")
        await settle()
        one, other = bench.sent()
        bench.answer(one, b"right")
        bench.answer(one, b"again")
        unasked = RemotingCommand.request(34)
        unasked.opaque = other.opaque + 1000
        bench.answer(unasked, b"nobody asked")
        bench.answer(other, b"right as well")
        await settle()
        assert (bench.body("one"), bench.body("other")) == (b"right", b"right as well")
        assert not bench.connection.closed
        assert caplog.records == []
        bench.assert_no_trace()


async def test_a_timeout_of_nothing_sends_nothing() -> None:
    async with benches() as (make, _):
        bench = make()
        with pytest.raises(RequestTimeoutError):
            await bench.connection.request(RemotingCommand.request(34), timeout=0)
        assert bench.sent() == []
        bench.assert_no_trace()


async def test_a_cancelled_request_leaves_the_table() -> None:
    async with benches() as (make, _):
        bench = make()
        async with anyio.create_task_group() as own:
            await bench.begin(own, "a")
            await settle()
            assert bench.connection.requests_in_flight == 1
            own.cancel_scope.cancel()
        bench.assert_no_trace()
        (request,) = bench.sent()
        bench.answer(request)


async def test_an_encoder_that_fails_leaves_the_table() -> None:
    async with benches() as (make, _):
        bench = make()

        def encode(opaque: int) -> bytes:
            raise KeyError(opaque)

        with pytest.raises(KeyError):
            await bench.connection.request_frame(encode, timeout=1)
        bench.assert_no_trace()


async def test_loss_fails_all_pending_requests_at_once() -> None:
    async with benches() as (make, group):
        bench = make(options=RemotingOptions(max_requests_in_flight=2))
        for name in ("a", "b", "in line"):
            await bench.begin(group, name)
        await settle()
        bench.connection.lost("reset by peer")
        await settle()
        errors = list(bench.results.values())
        assert len(errors) == 3
        assert all(isinstance(error, ConnectionClosedError) and error.reason == "reset by peer" for error in errors)
        assert len(set(map(id, errors))) == 3, "each has an error of its own, with its own traceback"
        assert bench.closed == [bench.connection]
        bench.assert_no_trace()
        with pytest.raises(ConnectionClosedError, match="reset by peer"):
            await bench.connection.request(RemotingCommand.request(34), timeout=1)
        with pytest.raises(ConnectionClosedError):
            bench.connection.send_oneway(RemotingCommand.request(34))


async def test_closing_twice_tells_the_owner_once() -> None:
    async with benches() as (make, _):
        bench = make()
        bench.connection.close("enough")
        bench.connection.close("really")
        assert (bench.connection.closed, bench.connection.gone) == (True, False)
        bench.connection.lost("closed by the other side")
        assert (bench.connection.closed, bench.connection.gone) == (True, True)
        assert bench.closed == [bench.connection]
        assert "closed (enough)" in repr(bench.connection)


async def test_opaques_stay_within_31_bits_and_skip_those_in_use() -> None:
    async with benches() as (make, group):
        numbers = iter([MAX_OPAQUE - 1, MAX_OPAQUE, MAX_OPAQUE + 1, MAX_OPAQUE + 1, MAX_OPAQUE, MAX_OPAQUE + 2])
        bench = make(opaques=numbers)
        for name in ("a", "b", "c", "d"):
            await bench.begin(group, name)
        await settle()
        assert sorted(request.opaque for request in bench.sent()) == [0, 1, MAX_OPAQUE - 1, MAX_OPAQUE]


async def test_requests_beyond_the_bound_wait_for_a_place() -> None:
    async with benches() as (make, group):
        bench = make(options=RemotingOptions(max_requests_in_flight=2))
        for name in ("a", "b", "c", "d"):
            await bench.begin(group, name)
            await settle()
        first, second = bench.sent()
        bench.answer(first)
        await settle()
        (third,) = bench.sent()
        assert third.body == b"c", "first come, first served"
        bench.answer(second)
        bench.answer(third)
        await settle()
        (fourth,) = bench.sent()
        bench.answer(fourth)
        await settle()
        assert set(bench.results) == {"a", "b", "c", "d"}
        bench.assert_no_trace()


async def test_no_place_within_the_timeout_is_too_many_requests() -> None:
    async with benches() as (make, group):
        bench = make(options=RemotingOptions(max_requests_in_flight=1))
        await bench.begin(group, "a", 30.0)
        await settle()
        await bench.begin(group, "b", 1.0)
        await settle()
        await bench.clock.advance(1)
        bench.connection.sweep()
        await settle()
        error = bench.results["b"]
        assert isinstance(error, TooManyRequestsError)
        assert error.limit == 1
        (first,) = bench.sent()
        bench.answer(first)
        await settle()
        bench.assert_no_trace()


async def test_a_cancelled_request_in_line_gives_its_turn_to_the_next() -> None:
    async with benches() as (make, group):
        bench = make(options=RemotingOptions(max_requests_in_flight=1))
        await bench.begin(group, "a")
        await settle()
        async with anyio.create_task_group() as own:
            await bench.begin(own, "gone")
            await settle()
            await bench.begin(group, "c")
            await settle()
            own.cancel_scope.cancel()
        (first,) = bench.sent()
        bench.answer(first)
        await settle()
        (third,) = bench.sent()
        assert third.body == b"c"
        bench.answer(third)
        await settle()
        bench.assert_no_trace()


async def test_a_request_that_is_cancelled_as_its_turn_comes_does_not_keep_the_place() -> None:
    async with benches() as (make, group):
        bench = make(options=RemotingOptions(max_requests_in_flight=1))
        async with anyio.create_task_group() as holder, anyio.create_task_group() as own:
            await bench.begin(holder, "a")
            await settle()
            await bench.begin(own, "b")
            await settle()
            await bench.begin(group, "c")
            await settle()
            (first,) = bench.sent()
            bench.answer(first)  # calls b from the line, or will in the turn in which b is cancelled
            own.cancel_scope.cancel()
        await settle()
        assert [request.body for request in bench.sent()] in ([b"c"], [b"b"], [b"b", b"c"])
        assert bench.connection._line.admitted == 0


async def test_requests_wait_while_the_peer_takes_no_bytes() -> None:
    async with benches() as (make, group):
        bench = make(options=RemotingOptions(max_unwritten_bytes=10))
        await bench.begin(group, "a")
        await settle()
        await bench.begin(group, "b")
        await settle()
        assert "peer takes no bytes" in repr(bench.connection)
        assert [request.body for request in bench.sent()] == [b"a"]
        await settle()
        assert [request.body for request in bench.sent()] == [b"b"]
        bench.connection.pause_writing()
        await bench.begin(group, "c")
        await settle()
        assert bench.sent() == []
        bench.connection.resume_writing()
        await settle()
        assert [request.body for request in bench.sent()] == [b"c"]


async def test_a_peer_that_takes_no_bytes_is_named_when_the_wait_is_over() -> None:
    async with benches() as (make, _):
        bench = make()
        bench.connection.pause_writing()
        error: list[TooManyRequestsError] = []

        async def write() -> None:
            try:
                await bench.connection.writable(timeout=2)
            except TooManyRequestsError as caught:
                error.append(caught)

        async with anyio.create_task_group() as own:
            own.start_soon(write)
            await bench.clock.advance(2)
            bench.connection.sweep()
        assert "bytes on their way to there:2" in str(error[0])
        bench.assert_no_trace()


async def test_a_oneway_request_waits_for_nothing() -> None:
    async with benches() as (make, _):
        bench = make()
        bench.connection.send_oneway(RemotingCommand.request(40))
        (request,) = bench.sent()
        assert request.is_oneway
        bench.assert_no_trace()


async def test_a_frame_that_no_peer_would_take_is_not_sent() -> None:
    async with benches() as (make, _):
        bench = make(options=RemotingOptions(max_frame_bytes=100))
        with pytest.raises(LocalProtocolError, match="too large"):
            await bench.connection.request(RemotingCommand.request(34, body=b"x" * 100), timeout=1)
        assert bench.sent() == []
        bench.assert_no_trace()


# --- receiving -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serialization", [SerializeType.JSON, SerializeType.ROCKETMQ])
async def test_a_plain_answer_goes_out_at_once_as_the_request_came_in(serialization: SerializeType) -> None:
    async with benches() as (make, _):
        bench = make(accepted=True, handlers={34: lambda _, request: RemotingCommand.response(body=request.body)})
        command = RemotingCommand.request(34, body=b"hi")
        bench.connection.received(encode_command(command, 7, serialization=serialization))
        (response,) = bench.sent()
        assert (response.code, response.opaque, response.body, response.is_response) == (0, 7, b"hi", True)
        assert response.serialization == serialization


async def test_an_unknown_code_is_answered_3() -> None:
    async with benches() as (make, _):
        bench = make()
        bench.ask(9999, 5)
        (response,) = bench.sent()
        assert (response.code, response.opaque, response.remark) == (3, 5, " request type 9999 not supported")


async def test_a_oneway_request_is_never_answered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "rocketbox.remoting")

    def fail(_: Connection, __: RemotingCommand) -> RemotingCommand:
        raise ValueError

    async with benches() as (make, _):
        bench = make(accepted=True, handlers={34: lambda *_: RemotingCommand.response(), 35: fail})
        for code in (34, 35, 9999):
            bench.ask(code, oneway=True)
        assert bench.sent() == []


async def test_a_failing_handler_is_answered_1_and_says_why_in_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Connection, __: RemotingCommand) -> RemotingCommand:
        raise ValueError("no such thing")

    async def fail_later(_: Connection, __: RemotingCommand) -> RemotingCommand:
        await settle(1)
        raise ValueError("no such thing")

    async with benches() as (make, _):
        bench = make(accepted=True, handlers={34: fail, 35: fail_later})
        for code in (34, 35):
            bench.ask(code)
            await settle()
            (response,) = bench.sent()
            assert response.code == 1
            assert response.remark == f"request {code} has failed here; the log of this process says why"
        assert ["no such thing" in (record.exc_text or "") for record in caplog.records] == [True, True]
        assert not bench.connection.closed


async def test_a_handler_whose_failure_has_words_for_the_peer_sends_them_without_the_kind_of_error() -> None:
    def fail(_: Connection, __: RemotingCommand) -> RemotingCommand:
        raise StoreError("the disk is full")

    async with benches() as (make, _):
        bench = make(accepted=True, handlers={34: fail})
        bench.ask(34)
        (response,) = bench.sent()
        assert (response.code, response.remark) == (1, "the disk is full")


async def test_a_request_that_cannot_be_read_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def read_header(_: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(remark=str(ViewMessageRequestHeader.decode(request.ext_fields)))

    def read_body(_: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(remark=str(decode_heartbeat(request.body)))

    async with benches() as (make, _):
        bench = make(accepted=True, handlers={33: read_header, 34: read_body})
        for code, said in ((33, "field offset is missing"), (34, "a heartbeat cannot be read")):
            bench.ask(code)
            (response,) = bench.sent()
            assert response.code == 1
            assert said in (response.remark or "")
        assert [record.exc_info for record in caplog.records] == [None, None]
        assert not bench.connection.closed


async def test_a_deferred_answer_is_given_by_somebody_else() -> None:
    held: list[tuple[Connection, RemotingCommand]] = []

    def hold(connection: Connection, request: RemotingCommand) -> None:
        held.append((connection, request))

    async with benches() as (make, _):
        bench = make(accepted=True, handlers={11: hold})
        bench.ask(11, 1)
        bench.ask(11, 2)
        assert bench.sent() == []
        for connection, request in reversed(held):
            connection.reply(request, RemotingCommand.response(19))
        assert [response.opaque for response in bench.sent()] == [2, 1]
        bench.connection.lost("gone")
        held[0][0].reply(held[0][1], RemotingCommand.response(19))
        assert bench.connection.take_output() == b""


async def test_an_answer_too_large_for_a_frame_becomes_an_error() -> None:
    async with benches() as (make, _):
        bench = make(
            accepted=True,
            options=RemotingOptions(max_frame_bytes=200),
            handlers={34: lambda *_: RemotingCommand.response(body=b"x" * 300)},
        )
        bench.ask(34)
        (response,) = bench.sent()
        assert response.code == 1
        assert "too large" in (response.remark or "")


async def test_a_server_stops_reading_while_its_handlers_are_busy() -> None:
    gate = anyio.Event()
    started: list[bytes] = []

    async def wait(_: Connection, request: RemotingCommand) -> RemotingCommand:
        started.append(request.body)
        await gate.wait()
        return RemotingCommand.response()

    async with benches() as (make, _):
        bench = make(accepted=True, options=RemotingOptions(max_running_handlers=2), handlers={34: wait})
        for number in range(5):
            bench.ask(34, number, body=b"%d" % number)
        await settle()
        assert sorted(started) == [b"0", b"1"]
        assert "not reading" in repr(bench.connection)
        gate.set()
        await settle(60)
        assert len(started) == 5
        assert bench.driver.reading
        assert sorted(response.opaque for response in bench.sent()) == [0, 1, 2, 3, 4]


async def test_of_many_requests_that_come_at_once_others_have_their_turn_in_between() -> None:
    handled: list[tuple[str, int]] = []

    def note(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        handled.append((connection.attributes["name"], request.opaque))
        return RemotingCommand.response()

    async with benches() as (make, _):
        many, one = (make(accepted=True, handlers={34: note}) for _ in range(2))
        many.connection.attributes["name"], one.connection.attributes["name"] = "many", "one"
        frames = [encode_command(RemotingCommand.request(34), number) for number in range(5_000)]
        many.connection.received(b"".join(frames))
        assert 100 < len(handled) <= 1_000
        assert "not reading" in repr(many.connection)
        await settle(2)
        one.ask(34, 7)
        await settle(60)
        assert [number for name, number in handled if name == "many"] == list(range(5_000))
        assert handled.index(("one", 7)) <= 4_000
        assert many.driver.reading
        assert [response.opaque for response in many.sent()] == list(range(5_000))
        many.ask(34, 5_000)
        assert handled[-1] == ("many", 5_000)


@pytest.mark.parametrize("count", [511, 512, 513, 2_047, 2_048, 2_049, 4_096, 4_608])
async def test_half_a_request_behind_many_is_read_on(count: int) -> None:
    handled: list[int] = []

    def note(_: Connection, request: RemotingCommand) -> None:
        handled.append(request.opaque)

    async with benches() as (make, _):
        bench = make(accepted=True, handlers={34: note})
        frames = [encode_command(RemotingCommand.request(34, body=b"body"), number) for number in range(count + 1)]
        data = b"".join(frames)
        bench.connection.received(data[:-5])
        await settle()
        assert handled == list(range(count))
        assert "not reading" not in repr(bench.connection)
        bench.connection.received(data[-5:])
        assert handled[-1] == count


async def test_many_requests_that_wait_for_handlers_are_all_answered() -> None:
    async def later(_: Connection, request: RemotingCommand) -> RemotingCommand:
        await anyio.lowlevel.checkpoint()
        return RemotingCommand.response()

    def at_once(_: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response()

    async with benches() as (make, _):
        options = RemotingOptions(max_running_handlers=3)
        bench = make(accepted=True, options=options, handlers={34: later, 35: at_once})
        codes = [34 if number % 100 < 2 else 35 for number in range(5_000)]
        frames = [encode_command(RemotingCommand.request(code), number) for number, code in enumerate(codes)]
        bench.connection.received(b"".join(frames))
        answered: list[int] = []
        for _ in range(100):
            await settle(10)
            answered += [response.opaque for response in bench.sent()]
        assert sorted(answered) == list(range(5_000))
        assert bench.driver.reading


@pytest.mark.parametrize("turns", [0, 2, 8])
async def test_requests_that_wait_for_their_turn_are_dropped_with_their_connection(turns: int) -> None:
    handled: list[int] = []

    def note(_: Connection, request: RemotingCommand) -> None:
        handled.append(request.opaque)

    async with benches() as (make, _):
        bench = make(accepted=True, handlers={34: note})
        frames = [encode_command(RemotingCommand.request(34), number) for number in range(9_000)]
        bench.connection.received(b"".join(frames))
        await settle(turns)
        bench.connection.abort()
        bench.connection.lost("gone")
        count = len(handled)
        await settle(60)
        assert len(handled) == count < 9_000
        assert "0 handlers running" in repr(bench.connection)


async def test_many_requests_that_come_while_the_server_stops_are_dropped_and_disturb_nobody() -> None:
    frames = b"".join([encode_command(RemotingCommand.request(34), number) for number in range(5_000)])
    async with benches() as (make, _):
        bench = make(accepted=True)
    bench.connection.stop_serving()
    bench.connection.received(frames)
    bench.connection.received(frames)
    assert bench.sent() == []
    assert "closed" not in repr(bench.connection), "answers to what came before are still given"


async def test_a_client_takes_all_that_has_come_at_once() -> None:
    handled: list[int] = []

    def note(_: Connection, request: RemotingCommand) -> None:
        handled.append(request.opaque)

    async with benches() as (make, _):
        bench = make(handlers={34: note})
        bench.connection.received(
            b"".join([encode_command(RemotingCommand.request(34), number) for number in range(5_000)])
        )
        assert handled == list(range(5_000))
        assert bench.driver.reading


async def test_a_server_stops_reading_while_its_peer_does_not_read() -> None:
    async with benches() as (make, _):
        bench = make(
            accepted=True,
            options=RemotingOptions(max_unwritten_bytes=100),
            handlers={34: lambda *_: RemotingCommand.response(body=b"x" * 100)},
        )
        frames = b"".join(encode_command(RemotingCommand.request(34), number) for number in range(3))
        bench.connection.received(frames)
        assert "not reading" in repr(bench.connection)
        answered = [response.opaque for response in bench.sent()]
        assert answered == [0], "further requests of the same read wait as well"
        answered += [response.opaque for _ in range(2) for response in bench.sent()]
        assert answered == [0, 1, 2]
        assert bench.driver.reading


async def test_a_client_with_too_many_handlers_reads_on_and_answers_busy() -> None:
    gate = anyio.Event()

    async def wait(_: Connection, __: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return RemotingCommand.response()

    async with benches() as (make, group):
        bench = make(options=RemotingOptions(max_running_handlers=1), handlers={307: wait})
        await bench.begin(group, "a")
        await settle()
        (request,) = bench.sent()
        bench.ask(307, 1)
        bench.ask(307, 2)
        bench.answer(request, b"still heard")
        await settle()
        assert [(response.opaque, response.code) for response in bench.sent()] == [(2, 2)]
        assert bench.body("a") == b"still heard"
        assert bench.driver.reading
        gate.set()
        await settle()
        assert [(response.opaque, response.code) for response in bench.sent()] == [(1, 0)]


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        bytes.fromhex("0000000405000000"),
        bytes.fromhex("0000000a00000006") + b"{nope}",
        bytes.fromhex("7fffffff00000000"),
        bytes.fromhex("00ffff0000500000"),
    ],
    ids=["http", "negative", "empty", "serialization", "no JSON", "too large", "large header"],
)
async def test_garbage_closes_the_connection_with_one_line_in_the_log(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with benches() as (make, group):
        bench = make(accepted=True)
        await bench.begin(group, "a")
        await settle()
        bench.connection.received(garbage)
        bench.connection.received(garbage)
        await settle()
        assert bench.driver.state == "closed"
        assert isinstance(bench.results["a"], ConnectionClosedError)
        assert len(caplog.records) == 1
        assert caplog.records[0].exc_info is None


async def test_garbled_ext_fields_close_the_connection_when_a_handler_meets_them() -> None:
    def read(_: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(remark=str(len(request.ext_fields)))

    async with benches() as (make, _):
        bench = make(accepted=True, handlers={34: read})
        frame = bytearray(encode_command(RemotingCommand.request(34, {"a": "b"}), 1))
        frame[-6:-1] = b"\xff\xff\xff\xff\xff"  # the lengths of an entry run past the header
        bench.connection.received(bytes(frame))
        assert bench.driver.state == "closed"


async def test_a_frame_in_single_bytes_is_understood_when_it_is_whole() -> None:
    async with benches() as (make, _):
        bench = make(accepted=True, handlers={34: lambda *_: RemotingCommand.response()})
        for byte in encode_command(RemotingCommand.request(34), 3):
            assert bench.sent() == []
            bench.connection.received(bytes([byte]))
        assert [response.opaque for response in bench.sent()] == [3]


# --- the sweep -----------------------------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed_after_120_s() -> None:
    async with benches() as (make, _):
        bench = make(accepted=True)
        await bench.clock.advance(100)
        bench.connection.sweep()
        bench.ask(9999)
        bench.connection.sweep()
        await bench.clock.advance(119)
        bench.connection.sweep()
        assert not bench.connection.closed
        await bench.clock.advance(1)
        bench.connection.sweep()
        assert "idle for 120 s" in repr(bench.connection)


async def test_a_connection_that_awaits_an_answer_is_not_idle() -> None:
    async with benches() as (make, group):
        bench = make()
        await bench.begin(group, "long", 500.0)
        await settle()
        bench.sent()
        bench.connection.sweep()
        await bench.clock.advance(300)
        bench.connection.sweep()
        assert not bench.connection.closed


async def test_a_silent_peer_is_given_up_when_a_request_times_out() -> None:
    async with benches() as (make, group):
        bench = make()
        bench.connection.sweep()
        await bench.begin(group, "short", 3.0)
        await bench.begin(group, "long", 12.0)
        await settle()
        await bench.clock.advance(3)
        bench.connection.sweep()
        await settle()
        assert not bench.connection.closed, "a short silence is no proof"
        await bench.clock.advance(9)
        bench.connection.sweep()
        await settle()
        assert isinstance(bench.results["long"], RequestTimeoutError)
        assert bench.driver.state == "closed"


async def test_a_peer_that_takes_no_bytes_and_sends_none_is_given_up_when_a_request_cannot_be_written() -> None:
    async with benches() as (make, group):
        bench = make()
        bench.connection.sweep()
        bench.connection.pause_writing()
        for seconds in (3, 6):
            await bench.begin(group, f"after {seconds}", 3.0)
            await bench.clock.advance(3)
            bench.connection.sweep()
            assert not bench.connection.closed, "a short while is no proof"
        await bench.begin(group, "last", 4.0)
        await bench.begin(group, "in line", 60.0)
        await bench.clock.advance(4)
        bench.connection.sweep()
        await settle()
        assert isinstance(bench.results["last"], TooManyRequestsError)
        assert isinstance(bench.results["in line"], ConnectionClosedError)
        assert bench.driver.state == "closed"
        assert "nothing was taken for 10 s" in repr(bench.connection)


@pytest.mark.parametrize("does", ["takes", "sends"])
async def test_a_slow_peer_is_not_given_up_for_requests_that_cannot_be_written(does: str) -> None:
    async with benches() as (make, group):
        bench = make()
        bench.connection.pause_writing()
        for seconds in range(0, 24, 3):
            await bench.begin(group, f"after {seconds}", 3.0)
            await bench.clock.advance(3)
            if does == "sends":
                bench.connection.received(encode_command(RemotingCommand.request(40), 1, oneway=True))
            bench.connection.sweep()
            assert not bench.connection.closed
            if does == "takes":
                bench.connection.resume_writing()
                bench.connection.send_oneway(RemotingCommand.request(40))
                assert bench.sent()
                bench.connection.pause_writing()
        assert all(isinstance(result, TooManyRequestsError) for result in bench.results.values())


async def test_a_closed_connection_whose_peer_does_not_read_is_aborted() -> None:
    async with benches() as (make, _):
        bench = make()
        bench.connection.close()
        bench.connection.sweep()
        assert bench.driver.state == "closed"
        await bench.clock.advance(1)
        bench.connection.sweep()
        assert bench.driver.state == "aborted"


async def test_a_connection_that_is_gone_holds_none_of_its_bytes_any_more() -> None:
    """Nothing but a collection of garbage ends the connection itself, and full ones are rare."""
    frame = encode_command(RemotingCommand.request(10, body=b"x" * 200_000), 1)
    async with benches() as (make, _):
        for half in (frame[:20], frame[:150_000]):
            bench = make(accepted=True)
            connection, reader = bench.connection, bench.connection._intake.reader
            connection.received(half)
            buffer = connection.get_buffer(-1)
            connection.send_oneway(RemotingCommand.request(40, body=b"y" * 1000))
            assert reader.buffered_bytes > 0
            connection.abort()
            assert reader.buffered_bytes == 0
            connection.lost("aborted")
            assert reader._pool.take() is buffer
            assert connection.take_output() == b""


async def test_many_failures_of_all_kinds_leave_nothing_behind() -> None:
    async with benches() as (make, group):
        bench = make(options=RemotingOptions(max_requests_in_flight=10))
        random = bench.clock.random
        for step in range(300):
            kind = random.randrange(4)
            if kind == 0:
                await bench.begin(group, f"{step}", random.uniform(0.1, 2.0))
            elif kind == 1:
                for request in bench.sent():
                    if random.random() < 0.6:
                        bench.answer(request)
            elif kind == 2:
                await bench.clock.advance(0.2)
                bench.connection.sweep()
            else:
                scope = anyio.CancelScope()

                async def cancelled(scope: anyio.CancelScope = scope, name: str = f"{step}") -> None:
                    with scope:
                        await bench.request(name)

                group.start_soon(cancelled)
                await settle(2)
                scope.cancel()
            await settle(3)
        await bench.clock.advance(5)
        bench.connection.sweep()
        await settle()
        bench.assert_no_trace()
        await bench.begin(group, "last")
        bench.answer(bench.sent()[-1], b"works")
        await settle()
        assert bench.body("last") == b"works"
