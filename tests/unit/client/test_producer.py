"""The producer against brokers that do what the test says: queues, tries, deadlines, and what failures are called."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from rocketbox.client.instance import MQClientInstance
from rocketbox.client.middleware import SendContext, SendNext
from rocketbox.client.options import ClientOptions
from rocketbox.client.producer import Producer
from rocketbox.client.sending import Sender
from rocketbox.errors import (
    BrokerError,
    ClientError,
    ClientStateError,
    ConnectError,
    ConnectionClosedError,
    InvalidGroupError,
    InvalidMessageError,
    NoRouteError,
    NotDurableError,
    NotStartedError,
    RequestTimeoutError,
    SendManyError,
    SendTimeoutError,
)
from rocketbox.message import Compression, Message, MessageQueue, SendResult, SendStatus, decode_properties
from rocketbox.protocol.codes import RequestCode, ResponseCode, SerializeType
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.recall_handles import RecallHandle, encode_recall_handle
from rocketbox.protocol.stored_message import decode_batch
from rocketbox.remoting.options import RemotingOptions
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

CLIENT = ClientOptions(client_ip="192.0.2.7")
TWO = ("broker-a", "broker-b")


def message(topic: Any = "T", **fields: Any) -> Message:
    return Message(topic, b"body", **fields)


def refuse(code: int, remark: str = "no") -> Callable[[RemotingCommand], RemotingCommand]:
    return lambda _: RemotingCommand.response(code, remark)


def never(_: RemotingCommand) -> None:
    return None


async def in_time(clock: VirtualClock, seconds: float, act: Callable[[], Awaitable[Any]]) -> Any:
    """What act returns while the clock moves on by seconds; raises what it raises."""
    outcome: list[Any] = []

    async def run() -> None:
        try:
            outcome.append(await act())
        except Exception as error:
            outcome.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await clock.advance(seconds)
        assert outcome, f"not done after {seconds} s"
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


# --- header and result --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serialization", [SerializeType.ROCKETMQ, SerializeType.JSON])
async def test_send_carries_the_fields_that_java_sends(serialization: SerializeType) -> None:
    clock = VirtualClock()
    client = {"remoting": RemotingOptions(serialization=serialization)}
    async with ScriptedCluster(clock, ["broker-b"]) as cluster:
        cluster.add_topic("T1a", queues=1)
        async with producer_of(cluster, client=client) as producer:
            result = await producer.send(Message("T1a", b"hello", tag="TagA", keys=["k1"]))
        (request,) = cluster.broker.sends
    fields = dict(request.ext_fields)
    properties = decode_properties(fields.pop("i").encode())
    assert request.code == RequestCode.SEND_MESSAGE_V2
    assert request.serialization == serialization
    assert request.body == b"hello"
    assert fields == {
        "a": "PG1",
        "b": "T1a",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": str(clock.time_ms()),
        "h": "0",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-b",
    }
    assert properties == {"KEYS": "k1", "UNIQ_KEY": result.msg_id, "WAIT": "true", "TAGS": "TagA"}


async def test_result_says_where_the_message_is() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T", queues=1)
        async with producer_of(cluster) as producer:
            await producer.send(message())
            result = await producer.send(message())
    assert result.status is SendStatus.SEND_OK
    assert result.queue == MessageQueue("T", "broker-a", 0)
    assert result.queue_offset == 1
    assert len(result.msg_id) == 32
    assert result.offset_msg_id == f"{1:032X}"


async def test_flag_and_non_ascii_text_arrive() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send(message(flag=7, properties={"stadt": "Zürich"}, keys=["ключ"]))
        (request,) = cluster.broker.sends
    assert request.ext_fields["h"] == "7"
    properties = decode_properties(request.ext_fields["i"].encode())
    assert properties["stadt"] == "Zürich"
    assert properties["KEYS"] == "ключ"


# --- queues -------------------------------------------------------------------------------------------------------


async def test_messages_go_round_all_queues_of_all_brokers() -> None:
    async with ScriptedCluster(VirtualClock(), TWO) as cluster:
        cluster.add_topic("T", queues=3)
        async with producer_of(cluster) as producer:
            for _ in range(12):
                await producer.send(message())
        for broker in cluster.brokers.values():
            assert Counter(broker.queues) == {0: 2, 1: 2, 2: 2}


async def test_hash_key_picks_javas_queue() -> None:
    async with ScriptedCluster(VirtualClock(), TWO) as cluster:
        cluster.add_topic("T", queues=4)
        async with producer_of(cluster) as producer:
            # "polygenelubricants".hashCode() is Java's smallest int, whose abs() overflows there
            results = [await producer.send(message(hash_key=key)) for key in ("UA1545", "UA1545", "polygenelubricants")]
    everywhere = [MessageQueue("T", name, number) for name in TWO for number in range(4)]
    hash_of = 0
    for letter in "UA1545":
        hash_of = (hash_of * 31 + ord(letter)) & 0xFFFFFFFF
    hash_of -= (hash_of >> 31) << 32
    assert results[0].queue == results[1].queue == everywhere[abs(hash_of) % 8]
    assert results[2].queue == everywhere[0]


async def test_chosen_queue_is_taken_and_one_of_another_topic_refused() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            chosen = MessageQueue("T", "broker-a", 3)
            assert [(await producer.send(message(), queue=chosen)).queue for _ in range(2)] == [chosen, chosen]
            with pytest.raises(InvalidMessageError, match="queue of 'U'"):
                await producer.send(message(), queue=MessageQueue("U", "broker-a", 0))
            with pytest.raises(ClientError, match="broker-z"):
                await producer.send(message(), queue=MessageQueue("T", "broker-z", 0))


# --- tries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
async def test_refusal_that_may_pass_is_tried_on_another_broker(code: int) -> None:
    remark = "the broker[192.0.2.1] sending message is forbidden" if code == 16 else "no"
    async with ScriptedCluster(VirtualClock(), TWO) as cluster:
        cluster.add_topic("T", queues=4)
        cluster.brokers["broker-a"].on_send = refuse(code, remark)
        async with producer_of(cluster) as producer:
            results = [await producer.send(message()) for _ in range(8)]
        assert {result.broker_name for result in results} == {"broker-b"}
        assert len(cluster.brokers["broker-b"].sends) == 8
        ids = [decode_properties(request.ext_fields["i"].encode())["UNIQ_KEY"]
               for request in cluster.brokers["broker-a"].sends]  # fmt: skip
        assert set(ids) <= {result.msg_id for result in results}, "a retry keeps the message's id"


@pytest.mark.parametrize("code", [13, 26, 29, 604])
async def test_refusal_for_good_is_raised_at_once(code: int) -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        cluster.broker.on_send = refuse(code, "illegal")
        async with producer_of(cluster) as producer:
            with pytest.raises(BrokerError, match=f"code {code}: illegal") as caught:
                await producer.send(message())
        assert caught.value.code == code
        assert len(cluster.broker.sends) == 1


async def test_all_tries_refused_raises_the_last_with_the_story() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        for broker in cluster.brokers.values():
            broker.on_send = refuse(14, "busy")
        async with producer_of(cluster) as producer:
            with pytest.raises(BrokerError, match="busy") as caught:
                await in_time(clock, 2, lambda: producer.send(message()))
        assert sum(len(broker.sends) for broker in cluster.brokers.values()) == 3
    assert "3 tries" in caught.value.__notes__[0]


async def test_dead_broker_is_left_for_the_other_one() -> None:
    async with ScriptedCluster(VirtualClock(), TWO) as cluster:
        cluster.add_topic("T")
        await cluster.brokers["broker-a"].stop()
        async with producer_of(cluster) as producer:
            results = [await producer.send(message()) for _ in range(8)]
    assert {result.broker_name for result in results} == {"broker-b"}


async def test_nobody_there_says_who_was_tried_and_that_nothing_was_sent() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        for broker in cluster.brokers.values():
            await broker.stop()
        async with producer_of(cluster) as producer:
            with pytest.raises(ConnectError) as caught:
                await in_time(clock, 3.3, lambda: producer.send(message()))
    assert "broker-a" in str(caught.value)
    assert "broker-b" in str(caught.value)
    assert "may have been stored" not in str(caught.value)


@pytest.mark.parametrize("keyed", [True, False])
async def test_send_to_one_queue_is_tried_again_on_that_queue_only(keyed: bool) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        answers = [1, 1, 0]
        for broker in cluster.brokers.values():
            broker.on_send = lambda request, broker=broker: (  # type: ignore[misc] # mypy knows no default of a lambda
                broker.store(request) if (code := answers.pop(0)) == 0 else RemotingCommand.response(code, "try again")
            )
        async with producer_of(cluster) as producer:
            if keyed:
                result = await in_time(clock, 2, lambda: producer.send(message(hash_key="k")))
            else:
                queue = MessageQueue("T", "broker-b", 2)
                result = await in_time(clock, 2, lambda: producer.send(message(), queue=queue))
        (tried,) = [broker for broker in cluster.brokers.values() if broker.sends]
        assert tried.queues == [result.queue.queue_id] * 3


async def test_silent_broker_uses_up_the_time_and_says_that_it_may_be_stored() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        cluster.broker.on_send = never
        async with producer_of(cluster) as producer:
            with pytest.raises(SendTimeoutError, match="may have been stored") as caught:
                await in_time(clock, 3.2, lambda: producer.send(message()))
        assert len(cluster.broker.sends) == 1
    assert caught.value.timeout == 3.0
    assert caught.value.msg_id in str(caught.value)
    assert isinstance(caught.value, RequestTimeoutError)


async def test_all_tries_share_one_deadline() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        for broker in cluster.brokers.values():
            broker.on_send = never
        async with producer_of(cluster, send_msg_max_timeout_per_request=0.5) as producer:
            with pytest.raises(SendTimeoutError):
                await in_time(clock, 3.2, lambda: producer.send(message()))
        assert sum(len(broker.sends) for broker in cluster.brokers.values()) == 3


async def test_messages_of_send_many_have_a_number_of_tries_of_their_own() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        for broker in cluster.brokers.values():
            broker.on_send = refuse(ResponseCode.SYSTEM_BUSY)

        def tries() -> int:
            return sum(len(broker.sends) for broker in cluster.brokers.values())

        async with producer_of(
            cluster, retry_times_when_send_failed=1, retry_times_when_send_async_failed=4
        ) as producer:
            with pytest.raises(SendManyError):
                await in_time(clock, 1.0, lambda: producer.send_many([message(), message()]))
            assert tries() == 2 * (1 + 4)
            with pytest.raises(BrokerError):
                await in_time(clock, 1.0, lambda: producer.send(message()))
            assert tries() == 10 + (1 + 1)


async def test_time_limit_of_one_try_leaves_time_for_the_other_broker() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        cluster.brokers["broker-a"].on_send = never
        async with producer_of(cluster, send_msg_max_timeout_per_request=0.5) as producer:
            for _ in range(2):
                result = await in_time(clock, 0.7, lambda: producer.send(message()))
                assert result.broker_name == "broker-b"


async def test_own_timeout_of_a_send_holds() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        cluster.broker.on_send = never
        async with producer_of(cluster) as producer:
            with pytest.raises(SendTimeoutError, match=r"within 0\.5 s"):
                await in_time(clock, 0.7, lambda: producer.send(message(), timeout=0.5))


async def test_connection_that_breaks_says_that_it_may_be_stored() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        cluster.broker.on_send = never
        async with producer_of(cluster, retry_times_when_send_failed=0) as producer, anyio.create_task_group() as tasks:
            caught: list[Exception] = []

            async def send() -> None:
                try:
                    await producer.send(message())
                except ConnectionClosedError as error:
                    caught.append(error)

            tasks.start_soon(send)
            await settle(40)
            await cluster.broker.stop()
            await settle(40)
            assert "may have been stored" in str(caught[0])


async def test_broker_that_comes_back_is_found_again() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send(message())
            await cluster.broker.stop()
            with pytest.raises(ConnectError):
                await in_time(clock, 3.3, lambda: producer.send(message()))
            await cluster.restart(cluster.broker)
            assert (await producer.send(message())).queue_offset >= 0


async def test_broker_that_moved_is_found_within_a_second_by_the_send_that_missed_it() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T", brokers=["broker-a"])
        async with producer_of(cluster) as producer:
            await producer.send(message())
            await cluster.brokers["broker-a"].stop()
            cluster.name_server.routes["T"] = cluster.route(brokers=["broker-b"])
            result = await in_time(clock, 1.5, lambda: producer.send(message()))
            assert result.broker_name == "broker-b"


async def test_first_send_succeeds_within_a_second_of_the_brokers_port_opening() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer, anyio.create_task_group() as tasks:
            await producer.send(message())
            await cluster.broker.stop()
            done: list[float] = []

            async def send() -> None:
                await producer.send(message())
                done.append(clock.now)

            tasks.start_soon(send)
            await clock.advance(2)
            assert done == []
            await cluster.restart(cluster.broker)
            opened = clock.now
            await clock.advance(0.9)
            assert done
            assert done[0] - opened < 1
        assert len(cluster.broker.sends) == 2, "what was not sent was not stored twice"


async def test_silent_broker_leaves_time_for_the_other_one_and_is_then_avoided() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        cluster.brokers["broker-a"].on_send = never
        async with producer_of(cluster) as producer:
            first = [await in_time(clock, 3.1, lambda: producer.send(message())) for _ in range(2)]
            assert {result.broker_name for result in first} == {"broker-b"}
            assert len(cluster.brokers["broker-a"].sends) == 1
            for _ in range(20):
                assert (await producer.send(message())).broker_name == "broker-b"
            assert len(cluster.brokers["broker-a"].sends) == 1
            await clock.advance(5)
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(producer.send, message())
                await clock.advance(3)
            assert len(cluster.brokers["broker-a"].sends) == 2, "one message tries whether it is back"
            cluster.brokers["broker-a"].on_send = cluster.brokers["broker-a"].store
            await clock.advance(12)
            for _ in range(8):
                await producer.send(message())
            assert len(cluster.brokers["broker-a"].sends) >= 5, "it takes its share again"


async def test_where_no_broker_is_well_none_is_avoided() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        for broker in cluster.brokers.values():
            broker.on_send = never
        async with producer_of(cluster) as producer:
            with pytest.raises(SendTimeoutError):
                await in_time(clock, 3.3, lambda: producer.send(message()))
            for broker in cluster.brokers.values():
                broker.on_send = broker.store
            assert (await producer.send(message())).status is SendStatus.SEND_OK


async def test_latency_table_stays_away_from_a_broker_that_was_slow() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        slow = cluster.brokers["broker-a"]

        async def store_slowly(request: RemotingCommand) -> RemotingCommand:
            await clock.sleep(0.6)
            return slow.store(request)

        slow.on_send = store_slowly
        async with producer_of(cluster, send_latency_fault_enable=True) as producer:
            while not slow.sends:
                await in_time(clock, 0.8, lambda: producer.send(message()))
            for _ in range(10):
                assert (await producer.send(message())).broker_name == "broker-b"
            await clock.advance(2)  # what Apache's table says of 550 ms and more
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(producer.send, message())
                await clock.advance(1)
            assert len(slow.sends) >= 5, "and then it has its share again"


@pytest.mark.parametrize("keyed", [True, False])
async def test_send_to_one_queue_goes_on_while_no_route_names_its_broker(keyed: bool) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T", queues=1)
        async with producer_of(cluster) as producer:
            first = (await producer.send(message(hash_key="k"))).queue
            broker = cluster.brokers[first.broker_name]
            await broker.stop()
            results: list[SendResult] = []

            async def send() -> None:
                chosen = {"hash_key": "k"} if keyed else {}
                results.append(await producer.send(message(**chosen), queue=None if keyed else first, timeout=5))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                await settle(40)
                cluster.add_topic("T", queues=1, brokers=[name for name in TWO if name != first.broker_name])
                await producer.instance.route("T", refresh=True)
                await clock.advance(2)
                await cluster.restart(broker)
                await clock.advance(1)
            assert results[0].queue == first


async def test_refusal_does_not_hide_that_an_earlier_try_may_have_stored_the_message() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T", queues=1)
        answers: list[int | None] = [None, 13]

        def answer(_: RemotingCommand) -> RemotingCommand | None:
            code = answers.pop(0)
            return None if code is None else RemotingCommand.response(code, "illegal")

        for broker in cluster.brokers.values():
            broker.on_send = answer
        async with producer_of(cluster) as producer:
            with pytest.raises(SendTimeoutError, match="may have been stored") as caught:
                await in_time(clock, 4, lambda: producer.send(message()))
        assert "illegal" in str(caught.value)


async def test_refusal_for_good_behind_a_weak_acknowledgement_still_says_that_it_is_stored() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T", queues=1)
        codes = [10, 13]
        for broker in cluster.brokers.values():
            broker.on_send = lambda request: broker.store(request, codes.pop(0))  # noqa: B023 - any of the two will do
        async with producer_of(cluster, retry_another_broker_when_not_store_ok=True) as producer:
            with pytest.raises(NotDurableError, match="is stored with FLUSH_DISK_TIMEOUT"):
                await in_time(clock, 4, lambda: producer.send(message()))
        assert not codes


async def test_keyed_send_stays_on_its_queue_when_the_route_changes_between_its_tries() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T", queues=1)
        async with producer_of(cluster) as producer:
            first = (await producer.send(message(hash_key="k"))).queue
            broker = cluster.brokers[first.broker_name]
            codes = [1, 0]
            broker.on_send = lambda request: (
                broker.store(request) if (code := codes.pop(0)) == 0 else RemotingCommand.response(code, "again")
            )
            cluster.add_topic("T", queues=5)

            async def send() -> SendResult:
                return await producer.send(message(hash_key="k"))

            async with anyio.create_task_group() as tasks:
                results: list[SendResult] = []

                async def keep() -> None:
                    results.append(await send())

                tasks.start_soon(keep)
                await settle(40)
                await producer.instance.route("T", refresh=True)
                await clock.advance(1)
            assert results[0].queue == first


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**400])
async def test_a_timeout_without_end_is_one(timeout: Any) -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send(message(), timeout=timeout)
            await producer.send_many([message()], timeout=timeout)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(producer.request, message(), timeout=timeout))
                await settle(40)
                tasks.cancel_scope.cancel()
        assert len(cluster.broker.sends) == 3


@pytest.mark.parametrize("number", [-1, "0"])
async def test_a_queue_whose_number_is_none_is_refused(number: Any) -> None:
    """Brokers take a message for a negative one into any queue, and say nothing."""
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            with pytest.raises(InvalidMessageError, match="a number from 0 on"):
                await producer.send(message(), queue=MessageQueue("T", "broker-a", number))
        assert cluster.broker.sends == []


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "3"])
async def test_timeout_that_is_none_is_refused(timeout: Any) -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            for use in (
                producer.send(message(), timeout=timeout),
                producer.send_batch([message()], timeout=timeout),
                producer.send_many([message()], timeout=timeout),
            ):
                with pytest.raises(ClientError, match="more than 0 seconds"):
                    await use
        assert cluster.broker.sends == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tag": "\ud83d"}, "surrogate"),
        ({"keys": ["a\ud83d"]}, "surrogate"),
        ({"properties": {"name": "\udc00"}}, "surrogate"),
        ({"tag": 7}, "tag is 7, of type int"),
        ({"keys": (5,)}, "key is 5, of type int"),
        ({"hash_key": 5}, "hash_key is 5, of type int"),
        ({"delay_level": "3"}, "delay_level is '3'"),
        ({"flag": "x"}, "flag is 'x'"),
        ({"flag": 1 << 31}, "32 bits"),
        ({"topic": 5}, "topic is 5, of type int"),
        ({"properties": ["a"]}, r"properties is \['a'\]"),
    ],
)
async def test_message_of_wrong_types_is_refused_with_its_field(fields: dict[str, Any], reason: str) -> None:
    wrong = message(**fields)
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            for use in (producer.send(wrong), producer.send_one_way(wrong), producer.send_batch([wrong])):
                with pytest.raises(InvalidMessageError, match=reason if "delay" not in reason else "delay_level"):
                    await use
            with pytest.raises(InvalidMessageError, match="a str cannot be sent"):
                await producer.send("text")  # type: ignore[arg-type]  # what a user may do
            with pytest.raises(InvalidMessageError, match="it must be a MessageQueue"):
                await producer.send(message(), queue="T-0")  # type: ignore[arg-type]  # likewise
        assert cluster.broker.sends == []


async def test_message_that_fits_no_frame_is_refused_without_a_second_try() -> None:
    client = {"remoting": RemotingOptions(max_frame_bytes=1000)}
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, client=client) as producer:
            asked = cluster.name_server.asked("T")
            with pytest.raises(InvalidMessageError, match="1000 is the most"):
                await producer.send(Message("T", b"x" * 2000))
            assert cluster.name_server.asked("T") == asked + 1
            await producer.send(message())
        assert len(cluster.broker.sends) == 1


# --- weak acknowledgements ----------------------------------------------------------------------------------------

WEAK = {10: SendStatus.FLUSH_DISK_TIMEOUT, 11: SendStatus.SLAVE_NOT_AVAILABLE, 12: SendStatus.FLUSH_SLAVE_TIMEOUT}


@pytest.mark.parametrize("code", WEAK)
async def test_weak_acknowledgement_is_raised_with_its_result_and_not_tried_again(code: int) -> None:
    async with ScriptedCluster(VirtualClock(), TWO) as cluster:
        cluster.add_topic("T")
        for broker in cluster.brokers.values():
            broker.on_send = lambda request, broker=broker: broker.store(request, code)  # type: ignore[misc] # as above
        async with producer_of(cluster) as producer:
            with pytest.raises(NotDurableError, match="accept-weak-ack") as caught:
                await producer.send(message())
        assert caught.value.result.status is WEAK[code]
        assert caught.value.result.queue_offset == 0
        assert sum(len(broker.sends) for broker in cluster.brokers.values()) == 1


async def test_weak_acknowledgement_is_returned_when_accepted() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        cluster.broker.on_send = lambda request: cluster.broker.store(request, ResponseCode.FLUSH_DISK_TIMEOUT)
        async with producer_of(cluster, accept_weak_ack=True) as producer:
            assert (await producer.send(message())).status is SendStatus.FLUSH_DISK_TIMEOUT


@pytest.mark.parametrize("other_is_better", [True, False])
async def test_another_broker_is_asked_for_a_better_one_when_wanted(other_is_better: bool) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        a, b = cluster.brokers.values()
        a.on_send = lambda request: a.store(request, ResponseCode.FLUSH_DISK_TIMEOUT)
        b.on_send = b.store if other_is_better else lambda request: b.store(request, ResponseCode.SLAVE_NOT_AVAILABLE)
        async with producer_of(cluster, retry_another_broker_when_not_store_ok=True) as producer:
            if other_is_better:
                assert {(await producer.send(message())).broker_name for _ in range(4)} == {"broker-b"}
            else:
                with pytest.raises(NotDurableError):
                    await in_time(clock, 1, lambda: producer.send(message()))
                assert len(a.sends) + len(b.sends) == 3


# --- routes -------------------------------------------------------------------------------------------------------


async def test_unknown_topic_takes_the_queues_of_the_template_topic() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("TBW102", queues=8, perm=7)
        async with producer_of(cluster) as producer:
            for _ in range(8):
                await producer.send(message("New"))
            assert [Counter(broker.queues) for broker in cluster.brokers.values()] == [Counter(range(4))] * 2
            cluster.add_topic("New", queues=1, brokers=["broker-b"])  # as the name server knows it now
            await clock.advance(31)
            for broker in cluster.brokers.values():
                broker.requests.clear()
            for _ in range(3):
                await producer.send(message("New"))
        assert cluster.brokers["broker-a"].sends == []
        assert cluster.brokers["broker-b"].queues == [0, 0, 0]


async def test_a_topic_that_a_send_makes_follows_the_template_topic_until_it_has_a_route_of_its_own() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("TBW102", queues=8, perm=7, brokers=["broker-a"])
        async with producer_of(cluster) as producer:
            for _ in range(3):
                await producer.send(message("New"))
            assert len(cluster.brokers["broker-a"].sends) == 3
            cluster.add_topic("TBW102", queues=8, perm=7, brokers=["broker-b"])
            await clock.advance(31)
            for _ in range(3):
                await producer.send(message("New"))
        assert [len(broker.sends) for broker in cluster.brokers.values()] == [3, 3]


async def test_no_route_names_the_name_servers() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster, producer_of(cluster) as producer:
        with pytest.raises(NoRouteError, match=r"no route for topic 'Nowhere' at name server ns:9876"):
            await producer.send(message("Nowhere"))


async def test_topic_without_write_permission_is_refused() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T", perm=4)
        async with producer_of(cluster) as producer:
            with pytest.raises(NoRouteError, match="written"):
                await producer.send(message())


async def test_dead_name_server_is_named() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        await cluster.name_server.stop()
        async with producer_of(cluster) as producer:
            with pytest.raises(NoRouteError, match=r"ns:9876.*refused"):
                await producer.send(message())


async def test_slow_name_server_does_not_outlast_the_send() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda *_: None
        async with producer_of(cluster) as producer:
            with pytest.raises(NoRouteError, match="no answer within 1 s, the time of the send; nothing was sent"):
                await in_time(clock, 1.1, lambda: producer.send(message(), timeout=1))


async def test_many_first_sends_ask_for_the_route_once() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send_many([message()] * 50)
        assert cluster.name_server.asked("T") == 1


async def test_topic_that_is_not_sent_to_for_ten_minutes_is_asked_for_no_more() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        for number in range(5):
            cluster.add_topic(f"T{number}")
        async with producer_of(cluster) as producer:
            for number in range(5):
                await producer.send(message(f"T{number}"))
            await clock.advance(31)
            clock.now += 600
            await producer.send(message("T0"))
            await clock.advance(2)
            asked = [cluster.name_server.asked(f"T{number}") for number in range(5)]
            await clock.advance(31)
            assert [cluster.name_server.asked(f"T{number}") for number in range(1, 5)] == asked[1:]
            assert cluster.name_server.asked("T0") > asked[0]
            assert set(producer._sender.lanes._lanes) == {"T0"}, "nothing is kept of the others"
            assert (await producer.send(message("T3"))).queue.topic == "T3", "it is found again when it is needed"


async def test_topic_whose_send_failed_is_not_remembered() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, producer_of(cluster) as producer:
        with pytest.raises(NoRouteError):
            await producer.send(message("Nowhere"))
        asked = cluster.name_server.asked("Nowhere")
        await clock.advance(31)
        assert cluster.name_server.asked("Nowhere") == asked


async def test_quiet_producer_keeps_the_brokers_that_may_ask_it() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        cluster.add_topic("U")
        async with producer_of(cluster) as producer:
            await producer.send(message("T"))
            await producer.send(message("U"))
            await clock.advance(31)
            clock.now += 600
            await clock.advance(31)
            assert len(producer.instance.routes) == 1
            assert producer.instance.broker_addresses() == ["broker-a:10911"]
            assert producer.instance.remoting.connected("broker-a:10911")


# --- one-way ------------------------------------------------------------------------------------------------------


async def test_one_way_arrives_and_is_not_answered() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send_one_way(message(tag="UA"))
            await settle(40)
            (request,) = cluster.broker.sends
    assert request.is_oneway
    assert decode_properties(request.ext_fields["i"].encode())["TAGS"] == "UA"


async def test_one_way_to_a_dead_broker_goes_to_the_other_one() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        cluster.add_topic("T")
        await cluster.brokers["broker-a"].stop()
        async with producer_of(cluster) as producer:
            for _ in range(6):
                await producer.send_one_way(message())
            await settle(40)
        assert len(cluster.brokers["broker-b"].sends) == 6


async def test_one_way_to_nobody_raises() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        await cluster.broker.stop()
        async with producer_of(cluster) as producer:
            with pytest.raises(ConnectError):
                await in_time(clock, 3.3, lambda: producer.send_one_way(message()))


# --- batch --------------------------------------------------------------------------------------------------------


async def test_batch_is_one_request_with_the_ids_of_its_messages() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            results = await producer.send_batch([Message("T", b"b0", tag="TagA"), Message("T", b"b1", keys=["k"])])
        (request,) = cluster.broker.sends
    assert request.code == RequestCode.SEND_BATCH_MESSAGE
    assert request.ext_fields["m"] == "true"
    assert request.ext_fields["i"] == "WAIT\x01true\x02", "a 4.9 broker puts it on every message"
    elements = list(decode_batch(request.body))
    assert [bytes(element.body) for element in elements] == [b"b0", b"b1"]
    stored = [decode_properties(element.properties) for element in elements]
    assert stored[0]["TAGS"] == "TagA"
    assert stored[1]["KEYS"] == "k"
    assert [result.msg_id for result in results] == [properties["UNIQ_KEY"] for properties in stored]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "at least one"),
        ([message("T"), message("U")], "one topic"),
        ([message(), message(wait_store_ok=False)], "wait_store_ok"),
        ([message(hash_key="a"), message(hash_key="b")], "hash_key"),
        ([message(delay_level=1)], "delay_level"),
        ([message("%RETRY%g")], "retry topic"),
        ([message(), Message("T", b"")], "empty"),
        ([message(), Message("T", b"x" * 1001)], "message 1 of the batch: .* 1001 bytes, at most 1000 are allowed"),
        ([message(), message(), message(tag=" ")], "message 2 of the batch: the tag is blank"),
        ([message(), message(compression=Compression.ZLIB)], "message 1 of the batch: .*compression"),
        ([message(), "text"], "message 1 of the batch: a str cannot be sent"),
    ],
)
async def test_batch_that_breaks_a_rule_is_not_sent(messages: list[Message], reason: str) -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, max_message_size=1000) as producer:
            with pytest.raises(InvalidMessageError, match=reason):
                await producer.send_batch(messages)
        assert cluster.broker.sends == []


# --- many ---------------------------------------------------------------------------------------------------------


async def test_many_keeps_the_window_and_the_order_of_results() -> None:
    clock = VirtualClock()
    waiting: list[tuple[Any, RemotingCommand]] = []
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T", queues=1)
        cluster.broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda connection, request: waiting.append(
            (connection, request)
        )
        async with producer_of(cluster, send_many_window=4) as producer, anyio.create_task_group() as tasks:
            results: list[str] = []

            async def send() -> None:
                sent = await producer.send_many([message(tag=f"t{number}") for number in range(10)])
                results.extend(result.offset_msg_id for result in sent)

            tasks.start_soon(send)
            await settle(40)
            assert len(waiting) == 4
            while waiting:
                assert len(waiting) <= 4
                connection, request = waiting.pop()  # the last one first
                tag = decode_properties(request.ext_fields["i"].encode())["TAGS"]
                fields = {"msgId": tag, "queueId": "0", "queueOffset": "0"}
                connection.reply(request, RemotingCommand.response(ext_fields=fields))
                await settle(40)
    assert results == [f"t{number}" for number in range(10)]


async def test_many_tries_all_and_raises_with_every_outcome() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            with pytest.raises(SendManyError, match="1 of 3 messages failed; message 1") as caught:
                await producer.send_many([message(), Message("T", b""), message()])
        assert len(cluster.broker.sends) == 2
    assert [type(outcome).__name__ for outcome in caught.value.results] == [
        "SendResult", "InvalidMessageError", "SendResult",
    ]  # fmt: skip
    assert list(caught.value.errors) == [1]


async def test_many_tells_of_a_message_that_is_no_message_at_all() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, send_many_window=1) as producer:
            with pytest.raises(SendManyError, match="1 of 3 messages failed; message 0") as caught:
                await producer.send_many([message(tag=7), message(), message()])
        assert len(cluster.broker.sends) == 2
    assert list(caught.value.errors) == [0]


@pytest.mark.parametrize("exits", [False, True])
async def test_many_gives_an_error_to_a_message_whose_middleware_was_cancelled_from_outside_or_has_exited(
    exits: bool,
) -> None:
    async def cancelled(context: SendContext, call_next: SendNext) -> SendResult | None:
        if context.messages[0].tag == "doomed":
            raise SystemExit if exits else anyio.get_cancelled_exc_class()
        return await call_next(context)

    client = {"send_middleware": (cancelled,)}
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, client=client, send_many_window=1) as producer:
            with pytest.raises(SendManyError, match="1 of 3 messages failed; message 0") as caught:
                await producer.send_many([message(tag="doomed"), message(), message()])
        assert len(cluster.broker.sends) == 2
    assert list(caught.value.errors) == [0]


async def test_many_of_nothing_is_nothing() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster, producer_of(cluster) as producer:
        assert await producer.send_many([]) == []


# --- life ---------------------------------------------------------------------------------------------------------


async def test_cancelled_send_leaves_nothing_behind() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        cluster.broker.on_send = never
        async with producer_of(cluster) as producer:
            with anyio.move_on_after(0):
                await producer.send_many([message()] * 20)
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(producer.send, message())
                await settle(40)
                tasks.cancel_scope.cancel()
            open_connections = list(producer.instance.remoting._connections.values())
            assert open_connections
            assert [connection.requests_in_flight for connection in open_connections] == [0] * len(open_connections)


async def test_group_is_checked_when_the_producer_is_made() -> None:
    with pytest.raises(InvalidGroupError):
        Producer("bad group", name_server="ns:9876")
    with pytest.raises(ClientStateError, match="either name_server= or instance="):
        Producer("PG1")


async def test_producer_is_used_inside_its_block_only() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        producer = producer_of(cluster)
        with pytest.raises(NotStartedError, match="PG1"):
            await producer.send(message())
        async with producer:
            await producer.send(message())
        for use in (producer.send(message()), producer.send_one_way(message()), producer.send_batch([message()])):
            with pytest.raises(NotStartedError):
                await use
        with pytest.raises(ClientStateError, match="before"):
            async with producer:
                pass


async def test_two_producers_share_an_instance_but_not_a_group() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        instance = MQClientInstance(cluster.name_server.address, options=CLIENT, clock=clock, network=cluster.network)
        with pytest.raises(NotStartedError):
            async with Producer("A", instance=instance):
                pass
        async with instance, Producer("A", instance=instance) as one, Producer("B", instance=instance) as other:
            await one.send(message())
            await other.send(message())
            with pytest.raises(InvalidGroupError, match="in use"):
                async with Producer("A", instance=instance):
                    pass
            assert len(cluster.broker.connections) == 1
        assert [request.ext_fields["a"] for request in cluster.broker.sends] == ["A", "B"]


async def test_leaving_says_goodbye_for_the_group_and_last_for_the_inner_producer() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send(message())
            client_id = producer.instance.client_id
        goodbyes = cluster.broker.requested(RequestCode.UNREGISTER_CLIENT)
    assert [request.ext_fields["producerGroup"] for request in goodbyes] == ["PG1", "CLIENT_INNER_PRODUCER"]
    assert {request.ext_fields["clientID"] for request in goodbyes} == {client_id}


@pytest.mark.parametrize("moment", [0.1, 1.1])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_leaving_that_asyncio_cancels_leaves_no_task(moment: float, anyio_backend: str) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        before = asyncio.all_tasks()
        entered, leave = asyncio.Event(), asyncio.Event()

        async def use() -> None:
            async with producer_of(cluster) as producer:
                await producer.send(message())
                entered.set()
                await leave.wait()

        task = asyncio.ensure_future(use())
        await entered.wait()
        cluster.broker.scripts[RequestCode.UNREGISTER_CLIENT] = lambda *_: None
        leave.set()
        await clock.advance(moment)
        task.cancel()
        await clock.advance(5)
        assert task.cancelled()
        assert not [one for one in asyncio.all_tasks() - before if one.get_name().startswith("client")]


async def test_leaving_while_cancelled_is_bounded_by_a_silent_broker() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        cluster.broker.scripts[RequestCode.UNREGISTER_CLIENT] = lambda *_: None
        left = anyio.Event()

        async def use() -> None:
            try:
                async with producer_of(cluster) as producer:
                    await producer.send(message())
                    await anyio.Event().wait()
            finally:
                left.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await settle(40)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await clock.advance(6.5)
                assert left.is_set()


async def test_retry_send_keeps_its_id_and_moves_counts_into_the_header() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("%RETRY%G")
        async with producer_of(cluster) as producer:
            properties = {"UNIQ_KEY": "ID1", "RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16", "DELAY": "6"}
            inner = Sender("CLIENT_INNER_PRODUCER", producer.instance)
            result = await inner.send_prepared("%RETRY%G", b"x", properties, flag=2)
        (request,) = cluster.broker.sends
    fields = request.ext_fields
    assert (fields["a"], fields["j"], fields["l"], fields["h"]) == ("CLIENT_INNER_PRODUCER", "3", "16", "2")
    assert decode_properties(fields["i"].encode()) == {"WAIT": "true", "UNIQ_KEY": "ID1", "DELAY": "6"}
    assert result.msg_id == "ID1"


def test_a_producer_offers_sends_and_what_its_instance_asks_and_nothing_of_how_they_are_tried() -> None:
    producer = Producer("G", name_server="127.0.0.1:9876")
    sends = {
        "recall",
        "request",
        "send",
        "send_batch",
        "send_from_thread",
        "send_many",
        "send_one_way",
        "send_prepared",
    }
    assert {name for name in dir(producer) if not name.startswith("_")} == {
        *sends,
        *("transaction", "send_in_transaction", "add_transaction_checker", "check_transaction"),
        *("group", "instance", "options", "service_state", "topics_in_use", "trace"),
    }


async def test_a_recall_asks_again_where_a_broker_is_that_the_known_route_does_not_name() -> None:
    """The handle is of another process's send, to a broker that is new."""
    cluster = ScriptedCluster(VirtualClock(), TWO)
    cluster.brokers["broker-b"].scripts[RequestCode.RECALL_MESSAGE] = lambda connection, request: (
        RemotingCommand.response(ext_fields={"msgId": "ID"})
    )
    async with cluster:
        cluster.add_topic("T", brokers=["broker-a"])
        async with producer_of(cluster) as producer:
            await producer.send(message())
            cluster.add_topic("T")
            handle = encode_recall_handle(RecallHandle("T", "broker-b", 1_700_000_100_000, "ID"))
            assert await producer.recall(handle) == "ID"
            with pytest.raises(ClientError, match="no address of broker 'gone' is known"):
                await producer.recall(encode_recall_handle(RecallHandle("T", "gone", 1_700_000_100_000, "ID")))
