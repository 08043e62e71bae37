"""send_many once routes and connections are there: no task for a message, and the same tries, errors and hooks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rocketbox.client.lanes import Lane, LaneTable
from rocketbox.client.producer import Producer
from rocketbox.errors import (
    BrokerError,
    ConnectionClosedError,
    HookFailedError,
    InvalidMessageError,
    NotDurableError,
    RemoteProtocolError,
    SendManyError,
    SendTimeoutError,
    TooManyRequestsError,
)
from rocketbox.message import Message, MessageQueue, SendStatus, decode_properties
from rocketbox.protocol.codes import RequestCode, ResponseCode, SerializeType
from rocketbox.protocol.command import RemotingCommand, encode_response
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.options import RemotingOptions
from rocketbox.tasks import Supervisor
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import ClusterBroker, ScriptedCluster
from tests.support.clocks import VirtualClock, settle
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

TWO = ("broker-a", "broker-b")


def messages(count: int, **fields: Any) -> list[Message]:
    return [Message("T", b"%d" % number, **fields) for number in range(count)]


async def warm(cluster: ScriptedCluster, producer: Producer) -> None:
    """Routes and a connection to each broker are there; nothing is counted yet."""
    for _ in cluster.brokers:
        await producer.send(Message("T", b"first"))
    for broker in cluster.brokers.values():
        assert broker.sends
        broker.requests.clear()


def in_flight(producer: Producer) -> int:
    return sum(connection.requests_in_flight for connection in producer.instance.remoting._connections.values())


def bodies(broker: ClusterBroker) -> list[int]:
    return [int(request.body) for request in broker.sends]


def only(broker: ClusterBroker, body: bytes, answer: Callable[[RemotingCommand], Any]) -> None:
    """The broker gives its own answer to the message with that body."""
    broker.on_send = lambda request: answer(request) if request.body == body else broker.store(request)


async def outcomes_of(clock: VirtualClock, seconds: float, producer: Producer, batch: list[Message]) -> list[Any]:
    """What send_many makes of each message, while the clock moves on by seconds."""
    found: list[Any] = []

    async def run() -> None:
        try:
            found.extend(await producer.send_many(batch))
        except SendManyError as error:
            found.extend(error.results)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await clock.advance(seconds)
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all tasks that send_many starts."""
    names: list[str] = []
    start = Supervisor.start

    def counted(self: Supervisor, name: str, *rest: Any, **options: Any) -> Any:
        if self.name.startswith("send_many"):
            names.append(name)
        return start(self, name, *rest, **options)

    monkeypatch.setattr(Supervisor, "start", counted)
    return names


async def test_messages_to_a_topic_that_no_name_server_knows_yet_start_no_task_either(started: list[str]) -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("TBW102", queues=8, perm=7)
        async with producer_of(cluster) as producer:
            await warm(cluster, producer)
            await producer.send_many(messages(10))
            assert started == []
            cluster.add_topic("T", queues=2)
            await cluster.clock.advance(31)  # type: ignore[attr-defined] # the virtual clock's own
            cluster.broker.requests.clear()
            await producer.send_many(messages(10))
        assert set(cluster.broker.queues) == {0, 1}, "once its route is known it is that one"


@pytest.mark.parametrize("topic", ["T", "TBW102"])
async def test_messages_that_wait_for_one_route_share_the_lanes_made_from_it(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    made: list[MessageQueue] = []
    lane_of = LaneTable.lane_of

    def counted(self: LaneTable, queue: MessageQueue, topic: str) -> Lane:
        made.append(queue)
        return lane_of(self, queue, topic)

    monkeypatch.setattr(LaneTable, "lane_of", counted)
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic(topic, queues=4, perm=7)
        async with producer_of(cluster) as producer:
            await producer.send_many(messages(100))
    assert len(made) == 4, "a lane costs more than a send: 10,000 messages would hold up the loop for longer than 3 s"


async def test_an_answer_whose_header_is_garbled_is_the_messages_own_failure_and_disturbs_no_other() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        broker = cluster.broker

        def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
            if request.body != b"1":
                return broker.store(request)
            frame = encode_response(request, RemotingCommand.response(ResponseCode.SYSTEM_BUSY, None, {"a": "b"}))
            connection.reply_frame(request, frame.replace(b"a\0\0\0\1b", b"a\0\0\0\2b"))
            return None

        async with producer_of(cluster, retry_times_when_send_async_failed=1) as producer:
            await warm(cluster, producer)
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = answer
            found = await outcomes_of(cluster.clock, 4.0, producer, messages(3))  # type: ignore[arg-type]
        assert [getattr(each, "status", None) for each in found] == [SendStatus.SEND_OK, None, SendStatus.SEND_OK]
        assert isinstance(found[1], RemoteProtocolError)
        assert "2 tries" in found[1].__notes__[0]
        assert "may have been stored" in found[1].__notes__[0]
        assert bodies(broker) == [0, 1, 2, 1]


async def test_messages_that_find_all_well_start_no_task(started: list[str]) -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T", queues=4)
        async with producer_of(cluster, send_many_window=16) as producer:
            await warm(cluster, producer)
            results = await producer.send_many(messages(100))
        assert sorted(bodies(cluster.broker)) == list(range(100))
        assert sorted(set(cluster.broker.queues)) == [0, 1, 2, 3]
    assert started == []
    sent = [decode_properties(request.ext_fields["i"].encode())["UNIQ_KEY"] for request in cluster.broker.sends]
    assert [result.msg_id for result in results] == sent, "results are those of the messages, in order"
    assert {result.status for result in results} == {SendStatus.SEND_OK}


async def test_message_whose_first_try_is_refused_goes_on_at_another_broker() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T", queues=1)
        async with producer_of(cluster) as producer:
            await warm(cluster, producer)
            refused = RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "no")
            cluster.brokers["broker-a"].on_send = lambda request: refused
            results = await outcomes_of(clock, 1, producer, messages(8))
        assert {result.broker_name for result in results} == {"broker-b"}
        assert sorted(bodies(cluster.brokers["broker-b"])) == list(range(8))
        assert len(cluster.brokers["broker-a"].sends) == 4, "those that were under way when it failed first"


async def test_keyed_message_stays_on_its_queue_after_its_first_try() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T", queues=2)
        async with producer_of(cluster, retry_times_when_send_async_failed=1) as producer:
            await warm(cluster, producer)
            queue = (await producer.send(Message("T", b"x", hash_key="k"))).queue
            broker = cluster.brokers[queue.broker_name]
            broker.requests.clear()
            tried: list[str] = []

            def busy(request: RemotingCommand) -> RemotingCommand:
                tried.append(request.ext_fields["e"])
                if len(tried) == 1:
                    return RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "no")
                return broker.store(request)

            broker.on_send = busy
            (result,) = await outcomes_of(clock, 1, producer, messages(1, hash_key="k"))
        assert tried == [str(queue.queue_id)] * 2
        assert result.queue == queue


async def test_refusal_for_good_is_the_error_of_its_message_alone() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await warm(cluster, producer)
            only(cluster.broker, b"1", lambda _: RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "no"))
            first, second, third = await outcomes_of(clock, 1, producer, messages(3))
        assert isinstance(second, BrokerError)
        assert second.code == ResponseCode.MESSAGE_ILLEGAL
        assert first.status is third.status is SendStatus.SEND_OK
        assert len(cluster.broker.sends) == 3


@pytest.mark.parametrize("accepted", [True, False])
async def test_weak_acknowledgement_is_what_the_options_make_of_it(accepted: bool) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, accept_weak_ack=accepted) as producer:
            await warm(cluster, producer)
            broker = cluster.broker
            only(broker, b"0", lambda request: broker.store(request, ResponseCode.FLUSH_DISK_TIMEOUT))
            weak, _ = await outcomes_of(clock, 1, producer, messages(2))
        if accepted:
            assert weak.status is SendStatus.FLUSH_DISK_TIMEOUT
        else:
            assert isinstance(weak, NotDurableError)
            assert weak.result.status is SendStatus.FLUSH_DISK_TIMEOUT


async def test_silent_broker_ends_in_the_same_error_as_with_one_send() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, retry_times_when_send_async_failed=0) as producer:
            await warm(cluster, producer)
            only(cluster.broker, b"1", lambda _: None)
            outcomes = await outcomes_of(clock, 3.3, producer, messages(3))
            assert in_flight(producer) == 0
        assert [type(outcome).__name__ for outcome in outcomes] == ["SendResult", "SendTimeoutError", "SendResult"]
        assert isinstance(outcomes[1], SendTimeoutError)
        assert "within 3 s" in str(outcomes[1])
        assert len(cluster.broker.sends) == 3


async def test_silent_broker_costs_a_message_its_share_and_no_more() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T", queues=1)
        cluster.brokers["broker-a"].on_send = cluster.brokers["broker-a"].store
        async with producer_of(cluster) as producer:
            await warm(cluster, producer)
            cluster.brokers["broker-a"].on_send = lambda _: None
            results = await outcomes_of(clock, 1.7, producer, messages(4))
        assert {result.broker_name for result in results} == {"broker-b"}, "half of three seconds, then the other one"


async def test_connection_that_breaks_has_the_messages_in_flight_tried_again() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await warm(cluster, producer)
            broker = cluster.broker

            def breaks(_: RemotingCommand) -> None:
                broker.on_send = broker.store
                for connection in list(broker.connections):
                    connection.abort()

            broker.on_send = breaks
            results = await outcomes_of(clock, 1, producer, messages(5))
        assert [result.status for result in results] == [SendStatus.SEND_OK] * 5


async def test_connection_that_breaks_with_no_tries_left_says_that_it_may_be_stored() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, retry_times_when_send_async_failed=0) as producer:
            await warm(cluster, producer)

            def breaks(_: RemotingCommand) -> None:
                for connection in list(cluster.broker.connections):
                    connection.abort()

            cluster.broker.on_send = breaks
            (error,) = await outcomes_of(clock, 1, producer, messages(1))
        assert isinstance(error, ConnectionClosedError)
        assert "may have been stored" in str(error)


@pytest.mark.parametrize("many", [False, True])
async def test_messages_in_flight_at_the_end_of_the_client_may_be_stored(many: bool) -> None:
    """Who is told that nothing was started would send them again."""
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        cluster.broker.on_send = lambda _: None
        found: list[BaseException] = []
        producer = producer_of(cluster)

        async def send() -> None:
            try:
                await (producer.send_many(messages(2)) if many else producer.send(Message("T", b"0")))
            except SendManyError as error:
                found.extend(error.errors.values())
            except ConnectionClosedError as error:
                found.append(error)

        async with anyio.create_task_group() as tasks:
            async with producer:
                tasks.start_soon(send)
                while not cluster.broker.sends:
                    await anyio.lowlevel.checkpoint()
            await clock.advance(1)
    assert len(found) == (2 if many else 1)
    assert all("may have been stored" in str(error) for error in found)


@pytest.mark.parametrize("ended_by", [SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("is_known", [False, True])
async def test_what_a_selector_ends_itself_with_is_the_error_of_its_message(
    anyio_backend: str, is_known: bool, ended_by: type[BaseException]
) -> None:
    """Whether it is called at once, or when the route is there."""
    cancelled = anyio.get_cancelled_exc_class() is ended_by

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        if message.body == b"1":
            raise ended_by
        return queues[0]

    if ended_by is asyncio.CancelledError and not cancelled:
        pytest.skip("of asyncio's")
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            if is_known:
                await warm(cluster, producer)
            with pytest.raises(SendManyError) as caught, anyio.fail_after(PATIENCE):
                await producer.send_many(messages(3), queue=select)
        assert list(caught.value.errors) == [1]
        assert sorted(bodies(cluster.broker)) == [0, 2]


async def test_broker_that_goes_away_has_its_messages_taken_to_a_new_connection() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, retry_times_when_send_async_failed=0) as producer:
            await warm(cluster, producer)
            (old,) = cluster.broker.connections
            cluster.broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda connection, request: (
                RemotingCommand.response(ResponseCode.GO_AWAY) if connection is old else cluster.broker.store(request)
            )
            results = await outcomes_of(clock, 1, producer, messages(3))
        assert [result.status for result in results] == [SendStatus.SEND_OK] * 3


async def test_cancelled_while_messages_are_in_flight_nothing_of_it_is_left() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, send_many_window=8) as producer:
            await warm(cluster, producer)
            for broker in cluster.brokers.values():
                broker.on_send = lambda _: None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send_many, messages(20))
                tasks.start_soon(producer.send, Message("T", b"99"))
                await settle(40)
                assert in_flight(producer) == 9
                tasks.cancel_scope.cancel()
            assert in_flight(producer) == 0


async def test_messages_of_another_send_many_go_on_when_one_is_cancelled() -> None:
    clock = VirtualClock()
    waiting: list[tuple[Any, RemotingCommand]] = []
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer, anyio.create_task_group() as stays:
            await warm(cluster, producer)
            cluster.broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda *asked: waiting.append(asked)
            results: list[Any] = []

            async def send() -> None:
                results.extend(await producer.send_many(messages(3)))

            stays.start_soon(send)
            await settle(40)
            with anyio.move_on_after(0):
                await producer.send_many(messages(3))
            async with anyio.create_task_group() as goes:
                goes.start_soon(producer.send_many, messages(3))
                await settle(40)
                goes.cancel_scope.cancel()
            for connection, request in waiting:
                connection.reply(request, cluster.broker.store(request))
            await settle(40)
            assert len(results) == 3


async def test_full_connection_has_messages_wait_for_their_turn() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        remoting = RemotingOptions(max_requests_in_flight=3)
        async with producer_of(cluster, client={"remoting": remoting}) as producer:
            await warm(cluster, producer)
            waiting: list[tuple[Any, RemotingCommand]] = []
            cluster.broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda *asked: waiting.append(asked)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send_many, messages(10))
                answered = 0
                while answered < 10:
                    await settle(40)
                    assert 0 < len(waiting) <= 3
                    connection, request = waiting.pop(0)
                    connection.reply(request, cluster.broker.store(request))
                    answered += 1
        assert sorted(bodies(cluster.broker)) == list(range(10))


async def test_headers_in_json_go_the_way_of_all_sends() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        remoting = RemotingOptions(serialization=SerializeType.JSON)
        async with producer_of(cluster, client={"remoting": remoting}) as producer:
            await warm(cluster, producer)
            await producer.send_many(messages(5, flag=7))
        assert {request.serialization for request in cluster.broker.sends} == {SerializeType.JSON}
        assert {request.ext_fields["h"] for request in cluster.broker.sends} == {"7"}


async def test_message_too_large_for_a_frame_is_refused_alone() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        remoting = RemotingOptions(max_frame_bytes=2_000)
        async with producer_of(cluster, client={"remoting": remoting}) as producer:
            await warm(cluster, producer)
            with pytest.raises(SendManyError) as caught:
                await producer.send_many([*messages(2), Message("T", b"x" * 3_000)])
            with pytest.raises(InvalidMessageError, match="too large"):
                await producer.send_one_way(Message("T", b"x" * 3_000))
            assert in_flight(producer) == 0
        (error,) = caught.value.errors.values()
        assert isinstance(error, InvalidMessageError)


class Hook:
    """Signs nothing, counts, and fails for one body."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.answers: list[int] = []
        self.doomed = b""

    def before_request(self, address: str, command: RemotingCommand) -> None:
        pass

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        self.asked.append(request.body)
        if request.body == self.doomed:
            raise ValueError("no")
        return b""

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        if code == RequestCode.SEND_MESSAGE_V2:
            self.answers.append(response.code)


async def test_hooks_see_each_message_once_and_each_answer() -> None:
    hook = Hook()
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, client={"hooks": (hook,)}) as producer:
            await warm(cluster, producer)
            hook.asked.clear()
            hook.answers.clear()
            hook.doomed = b"1"
            _, error, _ = await outcomes_of(clock, 1, producer, messages(3))
            await producer.send_one_way(Message("T", b"4"))
        assert isinstance(error, HookFailedError)
        assert hook.asked == [b"0", b"1", b"2", b"4"]
        assert hook.answers == [0, 0]


async def test_latency_table_hears_how_long_first_tries_took() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T", queues=1)
        async with producer_of(cluster, send_latency_fault_enable=True) as producer:
            await warm(cluster, producer)
            slow = cluster.brokers["broker-a"]

            async def later(request: RemotingCommand) -> RemotingCommand:
                await clock.sleep(0.7)
                return slow.store(request)

            slow.on_send = later
            await outcomes_of(clock, 1, producer, messages(2))
            before = len(slow.sends)
            results = await outcomes_of(clock, 0.5, producer, messages(4))
        assert {result.broker_name for result in results} == {"broker-b"}, "0.7 s mean two seconds away"
        assert len(slow.sends) == before


class CountingClock(VirtualClock):
    """Counts how often it is looked at."""

    looks = wall_looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic()

    def time_ms(self) -> int:
        self.wall_looks += 1
        return super().time_ms()


async def test_sends_look_at_the_clock_once_and_never_at_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CountingClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await warm(cluster, producer)

            def never() -> int:
                raise AssertionError("the process id is asked for with each message")

            monkeypatch.setattr("os.getpid", never)
            clock.looks = clock.wall_looks = 0
            for _ in range(10):
                await producer.send_one_way(Message("T", b"1"))
            assert (clock.looks, clock.wall_looks) == (0, 10), "nothing of it has a deadline"
            await settle(40)
            clock.looks = clock.wall_looks = 0
            first = producer.send(Message("T", b"1"))
            first.send(None)  # up to where it waits for its answer
            assert (clock.looks, clock.wall_looks) == (1, 1)
            first.close()


async def test_messages_that_time_out_make_room_for_who_stands_in_line() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        remoting = RemotingOptions(max_requests_in_flight=2)
        async with producer_of(
            cluster, client={"remoting": remoting}, retry_times_when_send_async_failed=0
        ) as producer:
            await warm(cluster, producer)
            broker = cluster.broker
            broker.on_send = lambda request: broker.store(request) if request.body == b"99" else None
            sent: list[float] = []

            async def many() -> None:
                with pytest.raises(SendManyError):
                    await producer.send_many(messages(2), timeout=1)

            async def one() -> None:
                with contextlib.suppress(TooManyRequestsError):
                    await producer.send(Message("T", b"99"), timeout=3)
                    sent.append(clock.now)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(many)
                await settle(40)
                began = clock.now
                tasks.start_soon(one)
                await clock.advance(3.3)
        assert sent, "it went when there was room"
        assert sent[0] - began < 1.3
