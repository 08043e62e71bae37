"""The rules of a consumer, one by one, on a broker that does as the test says and in time that the test moves."""

from __future__ import annotations

import asyncio
import dataclasses
import tracemalloc
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rocketbox.autoconfigure.properties import RocketMQProperties
from rocketbox.client import ClientOptions, ConsumerOptions, PushConsumer
from rocketbox.client.middleware import ConsumeContext, ConsumeNext
from rocketbox.client.outcomes import Outcome
from rocketbox.errors import (
    BatchFailed,
    ClientError,
    ConfigurationError,
    ConnectError,
    InvalidMessageError,
    Reject,
    RetryLater,
)
from rocketbox.message import Compression, ConsumeFromWhere, ConsumeMode, MessageExt, MessageQueue
from rocketbox.protocol.bodies import decode_heartbeat
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.compression import compress, sys_flag_of
from tests.support.client.scripted_broker import BROKER, ScriptedBroker
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

Result = Sequence[Outcome] | None
Behaviour = Callable[[list[MessageExt]], Awaitable[Result]]
PATIENT = ClientOptions(client_ip="10.0.0.9", instance_name="c1", api_timeout=60.0)


class Recorder:
    """A handler that remembers bodies, and then does what it is told."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.messages: list[MessageExt] = []
        self.behaviour = behaviour

    async def __call__(self, batch: list[MessageExt]) -> Result:
        self.messages.extend(batch)
        return await self.behaviour(batch) if self.behaviour else None

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


class PatientError(RetryLater):
    """One that does not ask its base class whether it may wait for so long."""

    def __init__(self) -> None:
        self.delay = timedelta(hours=3)


def raising(*errors: Exception) -> Behaviour:
    """Raises each of errors once, then consumes."""
    left = list(errors)

    async def behave(batch: list[MessageExt]) -> Result:
        if left:
            raise left.pop(0)
        return None

    return behave


class Setting:
    """A clock, a broker with topic T of one queue and the group's retry topic, and one consumer."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.broker = ScriptedBroker(self.clock)
        self.broker.topics = {"T": 1, "%RETRY%g": 1}
        self.client_options = PATIENT

    def new_consumer(self, **options: object) -> PushConsumer:
        return PushConsumer(
            "g",
            name_server=self.broker.address,
            options=ConsumerOptions(**options),  # type: ignore[arg-type] # options of many types
            client_options=self.client_options,
            clock=self.clock,
            network=self.broker.network,
        )

    @asynccontextmanager
    async def consumer(self, **options: object) -> AsyncIterator[PushConsumer]:
        async with self.broker, self.new_consumer(**options) as consumer:
            yield consumer

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await settle(200)


@pytest.fixture
def setting() -> Setting:
    return Setting()


# --- start ---------------------------------------------------------------------------------------------------------


async def test_the_heartbeat_goes_out_before_the_first_pull_and_pulls_refer_to_it(
    setting: Setting, anyio_backend: str
) -> None:
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "A || B", Recorder())
        await settle(200)
        told: dict[str, int] = {}
        pulls = 0
        for request in setting.broker.requests:
            if request.code == RequestCode.HEART_BEAT:
                (group,) = decode_heartbeat(request.body).consumer_data_set
                told.update({data.topic: data.sub_version for data in group.subscription_data_set})
            elif request.code == RequestCode.PULL_MESSAGE:
                pulls += 1
                assert int(request.ext_fields["subVersion"]) <= told[request.ext_fields["topic"]]
        assert pulls
        assert set(told) == {"T", "%RETRY%g"}


async def test_last_offset_asks_for_the_end_first_so_that_nothing_in_between_is_skipped(
    setting: Setting, anyio_backend: str
) -> None:
    broker, seen = setting.broker, Recorder()
    broker.first_offset["T", 0] = 100

    def store_meanwhile(request: RemotingCommand) -> None:
        if request.ext_fields["topic"] == "T" and not broker.records["T", 0]:
            broker.store("T", b"in between")

    broker.overrides[RequestCode.QUERY_CONSUMER_OFFSET] = store_meanwhile
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", seen)
        await settle(200)
        assert seen.bodies == [b"in between"]
        assert broker.committed["T", 0] == 100, "the start is committed at once"


@pytest.mark.parametrize(
    ("where", "expected"),
    [(ConsumeFromWhere.LAST_OFFSET, 103), (ConsumeFromWhere.TIMESTAMP, 100), (ConsumeFromWhere.FIRST_OFFSET, 0)],
)
async def test_where_a_new_group_begins(
    setting: Setting, anyio_backend: str, where: ConsumeFromWhere, expected: int
) -> None:
    broker = setting.broker
    broker.first_offset["T", 0] = 100
    broker.store("T", b"1", b"2", b"3")
    async with setting.consumer(consume_from_where=where) as consumer:
        started = setting.clock.time_ms()
        await consumer.subscribe("T", "*", Recorder())
        await setting.advance(2.5)  # the retry topic's route is asked for by the second
        begun: dict[str, str] = {}
        for topic, offset in broker.fields(RequestCode.PULL_MESSAGE, "topic", "queueOffset"):
            begun.setdefault(topic, offset)
        assert begun == {"T": str(expected), "%RETRY%g": "0"}
        if where is ConsumeFromWhere.TIMESTAMP:
            ((timestamp,),) = broker.fields(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "timestamp")
            assert int(timestamp) == started - 30 * 60 * 1000


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("begin", [NOON, NOON.astimezone().replace(tzinfo=None)], ids=["UTC", "local time"])
async def test_a_new_group_begins_at_the_time_that_was_said(
    setting: Setting, anyio_backend: str, begin: datetime
) -> None:
    broker = setting.broker
    broker.first_offset["T", 0] = 100
    broker.store("T", b"1", b"2")
    async with setting.consumer(consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp=begin) as consumer:
        await consumer.subscribe("T", "*", Recorder())
        await settle(200)
        ((timestamp,),) = broker.fields(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "timestamp")
        assert int(timestamp) == NOON.timestamp() * 1000


async def test_a_stored_offset_counts_whatever_from_where_says(setting: Setting, anyio_backend: str) -> None:
    broker, seen = setting.broker, Recorder()
    broker.store("T", b"0", b"1", b"2")
    broker.committed["T", 0] = 1
    async with setting.consumer(consume_from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        await consumer.subscribe("T", "*", seen)
        await settle(200)
        assert seen.bodies == [b"1", b"2"]


async def test_a_topic_and_queues_that_appear_later_begin_at_zero(setting: Setting, anyio_backend: str) -> None:
    broker, seen = setting.broker, Recorder()
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", seen)
        await consumer.subscribe("later", "*", seen)
        broker.topics = {"T": 2, "later": 1, "%RETRY%g": 1}
        broker.store("later", b"first of its topic")
        broker.store("T", b"first of its queue", queue_id=1)
        await setting.advance(2)
        assert seen.bodies == [b"first of its topic"]
        await setting.advance(32)
        assert seen.bodies == [b"first of its topic", b"first of its queue"]


async def test_no_name_server_is_an_error_unless_waiting_was_asked_for(setting: Setting, anyio_backend: str) -> None:
    seen = Recorder()
    async with setting.new_consumer() as hasty:
        with pytest.raises(ConnectError, match="10911"):
            await hasty.subscribe("T", "*", seen)
    async with setting.new_consumer(wait_for_servers=True) as patient:
        await patient.subscribe("T", "*", seen)
        async with setting.broker:
            setting.broker.store("T", b"there")
            await setting.advance(3)
            assert patient.state().queues
            setting.broker.store("T", b"new")
            await setting.advance(1)
            assert b"new" in seen.bodies
            await patient.drain(1)


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST])
async def test_a_broker_that_does_not_know_the_subscription_is_told_again(
    setting: Setting, anyio_backend: str, code: ResponseCode
) -> None:
    broker, seen = setting.broker, Recorder()
    refusals = [1, 1]

    def refuse(request: RemotingCommand) -> RemotingCommand | None:
        if request.ext_fields["topic"] == "T" and refusals:
            refusals.pop()
            return RemotingCommand.response(code, "subscription")
        return None

    broker.overrides[RequestCode.PULL_MESSAGE] = refuse
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", seen)
        await settle(200)
        broker.store("T", b"x")
        before = len(broker.heartbeats)
        await setting.advance(2.1)
        assert seen.bodies == [b"x"]
        assert len(broker.heartbeats) > before


def test_bad_options_are_all_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConsumerOptions(concurrency=0, pull_batch_size=2000)
    assert "concurrency is 0" in str(caught.value)
    assert "pull_batch_size is 2000" in str(caught.value)


async def test_bad_subscriptions_are_refused(setting: Setting, anyio_backend: str) -> None:
    async with setting.consumer() as consumer:
        with pytest.raises(ClientError, match="batch_max_size"):
            await consumer.subscribe("T", "*", Recorder(), batch_max_size=0)
        with pytest.raises(InvalidMessageError, match="names no tag"):
            await consumer.subscribe("T", " || ", Recorder())


# --- outcomes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ValueError("x"), "0"),
        (RetryLater(timedelta(seconds=20)), "4"),
        (RetryLater("2h"), "18"),
        (PatientError(), "18"),
        (Reject("no"), "-1"),
    ],
)
async def test_what_fails_is_sent_back_with_its_level(
    setting: Setting, anyio_backend: str, error: Exception, level: str
) -> None:
    broker = setting.broker
    broker.overrides[RequestCode.SEND_MESSAGE_V2] = lambda _: RemotingCommand.response(13, "no other times")
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", Recorder(raising(error)))
        broker.store("T", b"bad", b"good")
        await setting.advance(6)
        (back,) = broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert dict(back.ext_fields) == {
            "offset": "1000", "group": "g", "delayLevel": level, "originMsgId": "ID-T-0-0", "originTopic": "T",
            "unitMode": "false", "maxReconsumeTimes": "16", "bname": BROKER,
        }  # fmt: skip
        assert broker.committed["T", 0] == 2


async def test_a_delay_that_is_no_level_is_sent_to_the_retry_topic_as_it_is(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", Recorder(raising(RetryLater(timedelta(seconds=20)))))
        broker.store("T", b"bad", b"good")
        await setting.advance(6)
        assert broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK) == []
        (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
        assert (sent.body, sent.ext_fields["b"], sent.ext_fields["j"]) == (b"bad", "%RETRY%g", "1")
        assert "TIMER_DELAY_MS\x0120000\x02" in sent.ext_fields["i"]
        assert "DELAY\x01" not in sent.ext_fields["i"].replace("TIMER_DELAY_MS", "")
        assert broker.committed["T", 0] == 2


async def test_a_failed_send_back_goes_to_the_retry_topic(setting: Setting, anyio_backend: str) -> None:
    broker = setting.broker
    broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda _: RemotingCommand.response(1, "no")
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", Recorder(raising(ValueError("x"))))
        broker.store("T", b"bad")
        await setting.advance(6)
        (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
        fields = sent.ext_fields
        assert (fields["b"], fields["j"], fields["l"], sent.body) == ("%RETRY%g", "1", "16", b"bad")
        properties = dict(pair.split("\x01") for pair in fields["i"].split("\x02") if pair)
        assert properties["RETRY_TOPIC"] == "T"
        assert properties["ORIGIN_MESSAGE_ID"] == properties["UNIQ_KEY"] == "ID-T-0-0"
        assert properties["DELAY"] == "3"
        assert broker.committed["T", 0] == 1


@pytest.mark.parametrize(("topic", "origin"), [("%DLQ%board", "orders"), ("T", None)], ids=["dead letter", "forged"])
async def test_a_message_that_says_to_be_of_another_topic_comes_back_to_the_handler_that_it_failed_in(
    setting: Setting, anyio_backend: str, topic: str, origin: str | None
) -> None:
    """A broker copies what it says: a dead letter its first topic, any other what its sender has written."""
    broker, seen = setting.broker, Recorder(raising(ValueError("x")))
    broker.topics[topic] = 1
    async with setting.consumer() as consumer:
        await consumer.subscribe(topic, "*", seen)
        broker.store(topic, b"bad", retry_topic="orders")
        await setting.advance(6)
        assert broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK) == []
        (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
        fields = sent.ext_fields
        assert (fields["b"], fields["j"], fields["l"], sent.body) == ("%RETRY%g", "1", "16", b"bad")
        properties = dict(pair.split("\x01") for pair in fields["i"].split("\x02") if pair)
        assert properties["RETRY_TOPIC"] == topic
        assert properties.get("DLQ_ORIGIN_TOPIC") == origin
        assert properties["DELAY"] == "3"
        broker.store("%RETRY%g", b"bad", retry_topic=topic, reconsume_times=1)
        await setting.advance(6)
        assert [message.topic for message in seen.messages] == [topic, topic]


async def test_a_dead_letter_says_which_topic_it_was_in_not_which_its_sender_made_up(
    setting: Setting, anyio_backend: str
) -> None:
    """Who looks at dead letters sends them to that topic once more, by his own rights."""
    broker = setting.broker
    async with setting.consumer(max_reconsume_times=5) as consumer:
        await consumer.subscribe("T", "*", Recorder(raising(Reject("bad"))))
        broker.store("T", b"bad", retry_topic="payments")
        await setting.advance(6)
        assert broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK) == []
        (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
        fields = sent.ext_fields
        assert (fields["b"], fields["j"], fields["l"]) == ("%RETRY%g", "6", "5"), "brokers bury it by these numbers"
        assert "RETRY_TOPIC\x01T\x02" in fields["i"]
        assert "payments" not in fields["i"]
        assert broker.committed["T", 0] == 1


async def test_a_dead_letter_that_is_buried_again_says_its_first_topic_still(
    setting: Setting, anyio_backend: str
) -> None:
    broker, topic = setting.broker, "%DLQ%board"
    broker.topics[topic] = 1
    async with setting.consumer() as consumer:
        await consumer.subscribe(topic, "*", Recorder(raising(Reject("bad"))))
        broker.store(topic, b"bad", retry_topic="orders")
        await setting.advance(6)
        assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
        assert broker.asked(RequestCode.SEND_MESSAGE_V2) == []


async def test_a_rejected_message_that_cannot_be_sent_back_is_sent_as_one_that_has_used_up_its_tries(
    setting: Setting, anyio_backend: str
) -> None:
    """A broker puts what comes to the retry topic into the dead-letter topic by these two numbers alone."""
    broker = setting.broker
    broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda _: RemotingCommand.response(1, "no")
    async with setting.consumer(max_reconsume_times=5) as consumer:
        await consumer.subscribe("T", "*", Recorder(raising(Reject("x"))))
        broker.store("T", b"bad")
        await setting.advance(6)
        (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
        fields = sent.ext_fields
        assert (fields["b"], fields["j"], fields["l"], sent.body) == ("%RETRY%g", "6", "5", b"bad")
        assert broker.committed["T", 0] == 1


async def test_what_goes_to_the_retry_topic_is_as_it_came_whatever_the_handler_made_of_it(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda _: RemotingCommand.response(1, "no")

    async def spoil(batch: list[MessageExt]) -> None:
        batch[0].body = b"decrypted"
        batch[0].set_property("mine", "yes")
        raise ValueError("x")

    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", spoil)
        broker.store("T", b"as it came")
        await setting.advance(6)
        (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
        assert sent.body == b"as it came"
        assert "mine" not in sent.ext_fields["i"]


@pytest.mark.parametrize(
    ("stored", "sys_flag", "body", "sent_flag"),
    [(zlib.compress(b"text"), 0x301, b"text", "0"), (b"type 4 bytes", 0x401, b"type 4 bytes", "1025")],
    ids=["read here", "not readable here"],
)
async def test_a_compressed_message_goes_to_the_retry_topic_with_the_flags_of_its_body(
    setting: Setting, stored: bytes, sys_flag: int, body: bytes, sent_flag: str, anyio_backend: str
) -> None:
    broker = setting.broker
    broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda _: RemotingCommand.response(1, "no")
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", Recorder(raising(ValueError("x"))))
        broker.store("T", stored, sys_flag=sys_flag)
        await setting.advance(6)
        (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
        assert (sent.body, sent.ext_fields["f"]) == (body, sent_flag)


async def test_what_cannot_be_sent_back_is_handled_again_here_and_never_committed_before(
    setting: Setting, anyio_backend: str
) -> None:
    broker, seen = setting.broker, Recorder(raising(ValueError("x")))
    broker.committed["T", 0] = 0
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        broker.overrides[code] = lambda _: RemotingCommand.response(ResponseCode.NO_PERMISSION, "no")
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", seen)
        broker.store("T", b"bad", b"good")
        await setting.advance(4.5)
        assert sorted(seen.bodies) == [b"bad", b"good"]
        assert broker.committed["T", 0] == 0
        await setting.advance(2)
        assert seen.bodies.count(b"bad") == 2
        assert [message.reconsume_times for message in seen.messages if message.body == b"bad"][-1] == 1
        await setting.advance(6)
        assert broker.committed["T", 0] == 2


async def test_messages_of_the_retry_topic_get_their_topic_and_handler_back(
    setting: Setting, anyio_backend: str
) -> None:
    broker, seen = setting.broker, Recorder()
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "A", seen)
        broker.store("%RETRY%g", b"not mine any more")  # without RETRY_TOPIC it belongs to nobody
        await setting.advance(1)
        assert seen.bodies == []
        assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1


async def test_a_handler_that_takes_too_long_is_cancelled_and_its_message_comes_back(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    cancelled: list[bytes] = []

    async def hang(batch: list[MessageExt]) -> Result:
        if batch[0].body == b"hangs":
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.append(batch[0].body)
        return None

    seen = Recorder(hang)
    async with setting.consumer(consume_timeout=10.0, concurrency=1) as consumer:
        await consumer.subscribe("T", "*", seen)
        broker.store("T", b"hangs", b"next")
        await setting.advance(9)
        assert seen.bodies == [b"hangs"]
        await setting.advance(7)
        assert cancelled == [b"hangs"]
        assert seen.bodies == [b"hangs", b"next"]
        assert broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "delayLevel") == [("3",)]
        assert broker.committed["T", 0] == 2
        assert consumer.state().busy_workers == 0


async def test_a_handler_that_ignores_its_cancellation_leaves_no_message_behind(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    broker.committed["T", 0] = 0

    async def ignore(batch: list[MessageExt]) -> Result:
        try:
            await setting.clock.sleep(1000 if batch[0].body == b"hangs" else 1)
        except anyio.get_cancelled_exc_class():
            if batch[0].body != b"hangs":
                raise
        return None

    seen = Recorder(ignore)
    async with setting.consumer(consume_timeout=10.0, concurrency=1) as consumer:
        await consumer.subscribe("T", "*", seen)
        broker.store("T", b"hangs", b"a", b"b", b"c")
        await setting.advance(30)
        assert seen.bodies == [b"hangs", b"a", b"b", b"c"]
        assert broker.committed["T", 0] == 4


@pytest.mark.parametrize("mode", list(ConsumeMode))
@pytest.mark.parametrize("raised", ["CancelledError", "SystemExit"])
async def test_what_a_handler_raises_to_end_its_task_or_the_process_is_its_failure(
    setting: Setting, mode: ConsumeMode, raised: str
) -> None:
    broker = setting.broker
    broker.committed["T", 0] = 0

    async def ends(batch: list[MessageExt]) -> Result:
        if batch[0].body == b"a" and batch[0].reconsume_times < 2:
            raise SystemExit(3) if raised == "SystemExit" else asyncio.CancelledError
        return None

    seen = Recorder(ends)
    async with setting.consumer(concurrency=1, consume_mode=mode, suspend_current_queue_time=0.1) as consumer:
        await consumer.subscribe("T", "*", seen)
        broker.store("T", b"a", b"b")
        await setting.advance(6)
        if mode is ConsumeMode.CONCURRENTLY:
            assert seen.bodies == [b"a", b"b"], "the worker goes on"
            assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
        else:
            assert seen.bodies == [b"a", b"a", b"a", b"b"]
        assert broker.committed["T", 0] == 2


@pytest.mark.parametrize(
    ("body", "sys_flag", "level", "codecs"),
    [(b"compressed with type 4", 0x401, "0", ("type 4",)), (b"no zlib at all", 0x301, "-1", ())],
    ids=["a codec that is missing", "poison"],
)
async def test_a_message_that_cannot_be_read_does_not_hold_up_the_others(
    setting: Setting, body: bytes, sys_flag: int, level: str, codecs: tuple[str, ...], anyio_backend: str
) -> None:
    broker, seen = setting.broker, Recorder()
    async with setting.consumer() as consumer:
        broker.store("T", b"0", b"1")
        broker.committed["T", 0] = 0
        broker.store("T", body, sys_flag=sys_flag)
        broker.store("T", b"3", b"4")
        await consumer.subscribe("T", "*", seen)
        await setting.advance(6)
        assert sorted(seen.bodies) == [b"0", b"1", b"3", b"4"]
        assert broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel") == [("1002", level)]
        assert broker.committed["T", 0] == 5
        assert consumer.state().missing_codecs == codecs


@pytest.mark.parametrize("way", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
async def test_a_bomb_is_put_aside_at_the_cost_of_what_a_body_may_have(
    setting: Setting, way: Compression, anyio_backend: str
) -> None:
    """Row C15 of the catalogue of failures. What may be unpacked is 1 MiB here, and the bomb has 32."""
    most, bomb = 1 << 20, compress(bytes(32 << 20), way, 9)
    broker, seen = setting.broker, Recorder()
    setting.client_options = dataclasses.replace(PATIENT, max_unpacked_bytes=most)
    async with setting.consumer() as consumer:
        broker.committed["T", 0] = 0
        broker.store("T", b"0")
        broker.store("T", bomb, sys_flag=sys_flag_of(way))
        broker.store("T", b"2")
        tracemalloc.start()
        try:
            await consumer.subscribe("T", "*", seen)
            await setting.advance(6)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sorted(seen.bodies) == [b"0", b"2"]
        assert broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel") == [("1001", "-1")]
        assert broker.committed["T", 0] == 3
        assert peak < 3 * most + 16 * len(bomb), "frames of the bomb come several times"


@pytest.mark.parametrize(
    ("said", "most"),
    [({}, 64 << 20), ({"max-message-size": "5MB"}, 80 << 20), ({"max-message-size": "1MB"}, 64 << 20)],
    ids=["default", "raised", "below 4 MiB"],
)
async def test_a_body_is_unpacked_to_16_times_the_max_message_size_of_the_settings_and_to_no_byte_more(
    setting: Setting, said: dict[str, str], most: int, anyio_backend: str
) -> None:
    settings = RocketMQProperties.model_validate({"producer": said}).client_options()
    setting.client_options = dataclasses.replace(PATIENT, max_unpacked_bytes=settings.max_unpacked_bytes)
    broker, sizes, way = setting.broker, list[int](), Compression.ZSTD

    async def measure(batch: list[MessageExt]) -> Result:
        sizes.extend(len(message.body) for message in batch)
        return None

    async with setting.consumer() as consumer:
        broker.committed["T", 0] = 0
        for size in (most, most + 1):
            broker.store("T", compress(bytes(size), way, 1), sys_flag=sys_flag_of(way))
        broker.store("T", b"last")
        await consumer.subscribe("T", "*", measure)
        await setting.advance(6)
        assert sorted(sizes) == [len(b"last"), most]
        assert broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel") == [("1001", "-1")]
        assert broker.committed["T", 0] == 3


# --- offsets, flow, pause ------------------------------------------------------------------------------------------


async def test_offsets_are_committed_every_five_seconds_and_only_when_they_moved(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    release = anyio.Event()

    async def first_waits(batch: list[MessageExt]) -> Result:
        if batch[0].body == b"0":
            await release.wait()
        return None

    async with setting.consumer() as consumer:
        broker.store("T", b"0", b"1", b"2")
        broker.committed["T", 0] = 0
        await consumer.subscribe("T", "*", Recorder(first_waits))

        def commits() -> list[str]:
            return [
                offset
                for topic, offset in broker.fields(RequestCode.UPDATE_CONSUMER_OFFSET, "topic", "commitOffset")
                if topic == "T"
            ]

        await setting.advance(11)
        assert commits() == [], "1 and 2 are consumed, but 0 is not"
        release.set()
        await setting.advance(11)
        assert commits() == ["3"]


async def test_a_refused_commit_does_not_keep_other_queues_from_theirs(setting: Setting, anyio_backend: str) -> None:
    broker = setting.broker
    broker.topics["A"] = 1
    broker.committed.update({("A", 0): 0, ("T", 0): 0})

    def refuse_one(request: RemotingCommand) -> RemotingCommand | None:
        if request.ext_fields["topic"] == "A":  # deleted meanwhile
            return RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, "no topic A")
        return None

    broker.overrides[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse_one
    async with setting.consumer() as consumer:
        await consumer.subscribe("A", "*", Recorder())
        await consumer.subscribe("T", "*", Recorder())
        broker.store("A", b"0")
        broker.store("T", b"0")
        await setting.advance(6)
        assert broker.committed == {("A", 0): 0, ("T", 0): 1, ("%RETRY%g", 0): 0}


async def test_a_pull_waits_at_the_broker_and_carries_no_commit(setting: Setting, anyio_backend: str) -> None:
    broker = setting.broker
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", Recorder())
        broker.store("T", b"0")
        await settle(200)
        broker.store("T", b"1")
        await settle(200)
        pulls = broker.fields(RequestCode.PULL_MESSAGE, "topic", "queueOffset", "sysFlag", "commitOffset")
        assert [pull for pull in pulls if pull[0] == "T"] == [("T", str(offset), "2", "0") for offset in range(3)]


async def test_a_full_queue_is_not_pulled_until_there_is_room(setting: Setting, anyio_backend: str) -> None:
    broker = setting.broker
    release = anyio.Event()

    async def wait(batch: list[MessageExt]) -> Result:
        await release.wait()
        return None

    seen = Recorder(wait)
    options = {"pull_threshold_for_queue": 10, "pull_batch_size": 4, "concurrency": 2}
    async with setting.consumer(**options) as consumer:
        broker.store("T", *(str(number).encode() for number in range(40)))
        broker.committed["T", 0] = 0
        await consumer.subscribe("T", "*", seen)
        await setting.advance(3)
        (queue,) = (state for state in consumer.state().queues if state.queue.topic == "T")
        assert (queue.held, queue.in_process, queue.lag) == (12, 2, 40)
        release.set()
        await setting.advance(1)
        assert sorted(seen.bodies, key=int) == [str(number).encode() for number in range(40)]


@pytest.mark.parametrize("queues", [1, 8])
async def test_what_waits_for_handlers_has_one_budget_and_no_queue_starves(
    setting: Setting, queues: int, anyio_backend: str
) -> None:
    broker, release = setting.broker, anyio.Event()
    broker.topics |= {"T": queues, "U": 1}

    async def slow(batch: list[MessageExt]) -> Result:
        await release.wait()
        return None

    budget = 10_000
    client = ClientOptions(client_ip="10.0.0.9", instance_name="c1", max_cached_bytes=budget)
    options = ConsumerOptions(pull_batch_size=8, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, concurrency=99)
    network, address = broker.network, broker.address
    async with (
        broker,
        PushConsumer("g", name_server=address, options=options, client_options=client,
                     clock=setting.clock, network=network) as consumer,
    ):  # fmt: skip
        seen = Recorder()
        await consumer.subscribe("T", "*", Recorder(slow))
        for queue_id in range(queues):
            broker.store("T", *[b"x" * 1000] * 60, queue_id=queue_id)
        await setting.advance(3)
        one_batch, one_message = 8 * 1000, 1000
        assert consumer._instance.cached_bytes.total <= budget + one_batch + queues * one_message
        await consumer.subscribe("U", "*", seen)
        broker.store("U", *[b"y" * 1000] * 5)
        await setting.advance(1)
        assert len(seen.messages) == 5, "another group of handlers goes on, one message at a time"
        release.set()
        for _ in range(40):
            await setting.advance(0.5)
        assert consumer._instance.cached_bytes.total == 0
        assert sum(state.commit_offset for state in consumer.state().queues if state.queue.topic == "T") == 60 * queues


async def test_the_broker_may_move_the_offset_and_what_was_held_no_longer_counts(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    release = anyio.Event()
    reset_to: list[int] = []

    def reset(request: RemotingCommand) -> RemotingCommand | None:
        if request.ext_fields["topic"] == "T" and reset_to:
            return broker.pulled(ResponseCode.PULL_OFFSET_MOVED, reset_to.pop(), ("T", 0))
        return None

    async def wait(batch: list[MessageExt]) -> Result:
        if not release.is_set():
            await release.wait()
        return None

    seen = Recorder(wait)
    broker.overrides[RequestCode.PULL_MESSAGE] = reset
    async with setting.consumer(concurrency=1, pull_batch_size=2, pull_interval=1.0) as consumer:
        broker.store("T", *(str(number).encode() for number in range(10)))
        broker.committed["T", 0] = 4
        await consumer.subscribe("T", "*", seen)
        await settle(200)
        assert seen.bodies == [b"4"]
        reset_to.append(8)
        await setting.advance(1.1)
        assert broker.committed["T", 0] == 8
        release.set()
        await setting.advance(6)
        assert seen.bodies == [b"4", b"8", b"9"]
        assert broker.committed["T", 0] == 10


async def test_what_a_pull_brings_during_a_pause_is_asked_for_again(setting: Setting, anyio_backend: str) -> None:
    broker, seen = setting.broker, Recorder()
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", seen)
        await settle(200)
        consumer.pause()
        broker.store("T", b"x")
        await setting.advance(10)
        assert seen.bodies == []
        consumer.resume()
        await settle(200)
        assert seen.bodies == [b"x"]


# --- rebalance -----------------------------------------------------------------------------------------------------


async def test_rounds_keep_their_distance_however_often_the_group_changes(setting: Setting, anyio_backend: str) -> None:
    broker = setting.broker

    def rounds() -> int:
        return len(broker.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP))  # one for topic and retry topic

    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", Recorder())
        await setting.advance(5)
        before = rounds()
        for _ in range(20):
            broker.notify("g")
            await setting.advance(0.05)
        assert 5 <= rounds() - before <= 6, "one in 0.2 s"
        before = rounds()
        await setting.advance(45)
        assert rounds() - before in (2, 3), "every 20 s in any case"


async def test_a_queue_that_goes_to_another_member_is_committed_and_left(setting: Setting, anyio_backend: str) -> None:
    broker, seen = setting.broker, Recorder()
    broker.topics["T"] = 2
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", seen)
        broker.store("T", b"0", b"1", queue_id=0)
        broker.store("T", b"a", queue_id=1)
        await settle(200)
        broker.other_members = ["10.0.0.8@c0"]  # sorts before this member, which keeps queue 1
        broker.notify("g")
        await setting.advance(1.5)
        assert broker.committed["T", 0] == 2
        assert [state.queue for state in consumer.state().queues if state.queue.topic == "T"] == [
            MessageQueue("T", BROKER, 1)
        ]
        broker.store("T", b"not ours", queue_id=0)
        broker.store("T", b"ours", queue_id=1)
        await settle(200)
        assert sorted(seen.bodies) == [b"0", b"1", b"a", b"ours"]


# --- orderly -------------------------------------------------------------------------------------------------------


async def test_an_orderly_queue_is_consumed_only_with_its_lock(setting: Setting, anyio_backend: str) -> None:
    broker, seen = setting.broker, Recorder()
    queue = MessageQueue("T", BROKER, 0)
    broker.foreign_locks = {queue}
    async with setting.consumer(consume_mode=ConsumeMode.ORDERLY) as consumer:
        await consumer.subscribe("T", "*", seen)
        broker.store("T", b"0")
        await setting.advance(5)
        assert seen.bodies == []
        assert not [topic for (topic,) in broker.fields(RequestCode.PULL_MESSAGE, "topic") if topic == "T"]
        broker.foreign_locks = set()
        broker.committed["T", 0] = 0
        await setting.advance(1.5)
        assert seen.bodies == [b"0"]
        broker.foreign_locks = {queue}  # taken by another member, as after a long silence
        await setting.advance(22)
        broker.store("T", b"1")
        await setting.advance(5)
        assert seen.bodies == [b"0"]
        assert [state.queue.topic for state in consumer.state().queues] == ["%RETRY%g"]


async def test_a_queue_whose_lock_ran_out_begins_anew_where_the_group_is_by_then(
    setting: Setting, anyio_backend: str
) -> None:
    broker, seen = setting.broker, Recorder()
    broker.committed["T", 0] = 0
    asked_in_vain = (RequestCode.LOCK_BATCH_MQ, RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    async with setting.consumer(consume_mode=ConsumeMode.ORDERLY) as consumer:
        await consumer.subscribe("T", "*", seen)
        await setting.advance(5)
        for code in asked_in_vain:  # the broker is ill for longer than a lock counts
            broker.overrides[code] = lambda request: RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "ill")
        await setting.advance(28)
        broker.store("T", b"0", b"1", b"2")
        await setting.advance(3)
        assert seen.bodies == []
        broker.committed["T", 0] = 2  # another member had the queue meanwhile
        del broker.overrides[RequestCode.LOCK_BATCH_MQ]
        await setting.advance(6)  # the refresh of the locks comes first
        del broker.overrides[RequestCode.GET_CONSUMER_LIST_BY_GROUP]
        await setting.advance(5)
        assert seen.bodies == [b"2"]


async def test_leaving_commits_then_unlocks_then_says_goodbye(setting: Setting, anyio_backend: str) -> None:
    broker = setting.broker
    async with broker:
        async with setting.new_consumer(consume_mode=ConsumeMode.ORDERLY) as consumer:
            broker.store("T", b"0")
            broker.committed["T", 0] = 0
            await consumer.subscribe("T", "*", Recorder())
            await settle(200)
            del broker.requests[:]
        codes = [request.code for request in broker.requests]
        order = [RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNLOCK_BATCH_MQ, RequestCode.UNREGISTER_CLIENT]
        assert list(dict.fromkeys(code for code in codes if code in order)) == order
        assert broker.committed["T", 0] == 1
        assert broker.fields(RequestCode.UNREGISTER_CLIENT, "clientID")[0] == ("10.0.0.9@c1",)


async def test_a_failed_orderly_message_holds_up_its_queue_and_no_other(setting: Setting, anyio_backend: str) -> None:
    broker = setting.broker
    broker.topics["T"] = 2
    broker.committed.update({("T", 0): 0, ("T", 1): 0})
    seen = Recorder()

    async def behave(batch: list[MessageExt]) -> Result:
        if batch[0].body == b"bad" and seen.bodies.count(b"bad") < 3:
            raise ValueError("not yet")
        return None

    seen.behaviour = behave
    options = {"consume_mode": ConsumeMode.ORDERLY, "suspend_current_queue_time": 2.0}
    async with setting.consumer(**options) as consumer:
        broker.store("T", b"bad", b"after", queue_id=0)
        broker.store("T", b"x", b"y", queue_id=1)
        await consumer.subscribe("T", "*", seen)
        await setting.advance(1)
        assert sorted(seen.bodies) == [b"bad", b"x", b"y"]
        await setting.advance(2)
        assert seen.bodies[-1] == b"bad"
        await setting.advance(2)
        assert seen.bodies[-2:] == [b"bad", b"after"]
        assert not broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)
        await setting.advance(5)
        assert broker.committed["T", 0] == 2


async def test_of_a_failed_orderly_batch_only_the_message_that_failed_runs_out_of_tries(
    setting: Setting, anyio_backend: str
) -> None:
    broker, consumed = setting.broker, []
    broker.committed["T", 0] = 0

    async def behave(batch: list[MessageExt]) -> Result:
        for index, message in enumerate(batch):
            if message.body == b"bad":
                raise BatchFailed(index)
            consumed.append(message.body)
        return None

    async with setting.consumer(consume_mode=ConsumeMode.ORDERLY, max_reconsume_times=2) as consumer:
        broker.store("T", b"0", b"bad", b"1", b"2")
        await consumer.subscribe("T", "*", Recorder(behave), batch_max_size=4)
        await setting.advance(10)
        assert consumed == [b"0", b"1", b"2"]
        assert broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel") == [("1001", "-1")]
        assert broker.committed["T", 0] == 4


async def test_what_nobody_handles_any_more_does_not_hold_up_an_orderly_retry_queue(
    setting: Setting, anyio_backend: str
) -> None:
    broker, seen = setting.broker, Recorder()
    broker.store("%RETRY%g", b"orphan", retry_topic="gone")
    broker.store("%RETRY%g", b"mine", retry_topic="T")
    async with setting.consumer(consume_mode=ConsumeMode.ORDERLY) as consumer:
        await consumer.subscribe("T", "*", seen)
        await setting.advance(30)
        assert seen.bodies == [b"mine"]
        assert broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel") == [("1000", "-1")]


async def test_a_cancelled_subscription_leaves_the_one_before(setting: Setting, anyio_backend: str) -> None:
    broker, seen, other = setting.broker, Recorder(), Recorder()
    broker.committed["T", 0] = 0
    async with setting.consumer() as consumer:
        await consumer.subscribe("T", "*", seen)
        await settle(200)
        with anyio.CancelScope() as scope:
            broker.overrides[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda request: scope.cancel()
            await consumer.subscribe("T", "other", other)  # cancelled after the brokers were told
        del broker.overrides[RequestCode.GET_CONSUMER_LIST_BY_GROUP]
        assert scope.cancelled_caught
        with anyio.CancelScope() as scope:
            scope.cancel()
            await consumer.subscribe("U", "*", other)
        assert consumer.topics() == {"T", "%RETRY%g"}
        broker.store("T", b"first")
        broker.store("T", b"second")
        await setting.advance(2)
        assert (seen.bodies, other.bodies) == ([b"first", b"second"], [])
        (group,) = broker.heartbeats[-1].consumer_data_set
        assert {data.topic: data.sub_string for data in group.subscription_data_set} == {"T": "*", "%RETRY%g": "*"}


# --- what a message costs ------------------------------------------------------------------------------------------


class CountingClock(VirtualClock):
    """Counts how often it is looked at."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic()


async def test_handlers_that_do_not_wait_are_called_with_one_look_at_the_clock_each(anyio_backend: str) -> None:
    setting = Setting()
    clock = setting.clock = CountingClock()
    setting.broker = ScriptedBroker(clock)
    setting.broker.topics = {"T": 1, "%RETRY%g": 1}
    for number in range(64):
        setting.broker.store("T", b"%d" % number)
    looks: list[int] = []

    async def handle(batch: list[MessageExt]) -> None:
        looks.append(clock.looks)

    async with setting.consumer(consume_from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        await consumer.subscribe("T", "*", handle)
        await settle(200)
    assert len(looks) == 64
    between = Counter(after - before for before, after in pairwise(looks))
    assert between.most_common(1)[0][0] == 1
    assert between[1] >= 55, "all but the first of each slice and pull"


async def test_handlers_that_begin_to_wait_have_as_many_beside_them_as_there_are_workers(
    setting: Setting, anyio_backend: str
) -> None:
    for number in range(40):
        setting.broker.store("T", b"%d" % number)
    go = anyio.Event()
    begun = 0

    async def handle(batch: list[MessageExt]) -> None:
        nonlocal begun
        begun += 1
        if begun > 10:  # the first ones do not wait
            await go.wait()

    async with setting.consumer(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, concurrency=8) as consumer:
        await consumer.subscribe("T", "*", handle)
        await settle(200)
        assert begun == 10 + 8, "each worker has one that waits"
        go.set()
        await settle(200)
        assert begun == 40


async def test_sixteen_are_awaited_one_by_one_after_one_that_waited_and_then_some_are_called_in_one_step_again(
    setting: Setting, anyio_backend: str
) -> None:
    setting.broker.store("T", *(b"%d" % number for number in range(30)))
    behind: list[int] = []  # how many were consumed before each in the same step

    async def handle(batch: list[MessageExt]) -> None:
        (queue,) = (state for state in consumer.state().queues if state.queue.topic == "T")
        behind.append(int(batch[0].body) - queue.commit_offset)
        if batch[0].body == b"3":
            await settle(3)

    async with setting.consumer(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, concurrency=1) as consumer:
        await consumer.subscribe("T", "*", handle)
        await settle(200)
    assert behind == [0, 1, 2, 3, *[0] * 16, *range(10)]


async def test_what_was_consumed_before_a_handler_waits_counts_at_once(setting: Setting, anyio_backend: str) -> None:
    setting.broker.store("T", *(b"%d" % number for number in range(20)))
    go, tasks = anyio.Event(), list[object]()

    async def handle(batch: list[MessageExt]) -> None:
        if batch[0].body == b"10":
            tasks.append(anyio.get_current_task())
            await go.wait()
            tasks.append(anyio.get_current_task())

    async with setting.consumer(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, concurrency=1) as consumer:
        await consumer.subscribe("T", "*", handle)
        await settle(200)
        (queue,) = (state for state in consumer.state().queues if state.queue.topic == "T")
        assert (queue.commit_offset, queue.held, queue.in_process) == (10, 10, 1)
        go.set()
        await settle(200)
        (queue,) = (state for state in consumer.state().queues if state.queue.topic == "T")
        assert (queue.commit_offset, queue.held, queue.in_process) == (20, 0, 0)
    assert tasks[0] == tasks[1], "a handler runs in one task"


class Later:
    """Something to await that is no coroutine."""

    def __init__(self, call: Awaitable[Result]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, Any, Result]:
        return self._call.__await__()


@pytest.mark.parametrize("error", [ValueError("x"), Reject("no"), asyncio.CancelledError(), SystemExit(3)])
@pytest.mark.parametrize("first_waits", [False, True])
async def test_handlers_that_fail_among_others_that_do_not_wait_fail_their_own_messages(
    setting: Setting, error: BaseException, first_waits: bool, anyio_backend: str
) -> None:
    setting.broker.store("T", *(b"%d" % number for number in range(60)))
    came: list[bytes] = []

    async def handle(batch: list[MessageExt]) -> list[Exception | None] | None:
        body = batch[0].body
        came.append(body)
        batch.clear()  # its own list
        if body in (b"20", b"21"):
            if first_waits:
                await settle(3)
            raise error
        if body == b"30":
            return [Reject("an outcome")]
        return None

    async with setting.consumer(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, concurrency=4) as consumer:
        await consumer.subscribe("T", "*", handle)
        await setting.advance(1)
        assert consumer.state().busy_workers == 0
        sent_back = setting.broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel")
        level = "-1" if isinstance(error, Reject) else "0"
        assert sorted(sent_back) == [("1020", level), ("1021", level), ("1030", "-1")]
        await setting.advance(6)
        assert setting.broker.committed["T", 0] == 60
    assert len(came) == len(set(came)) == 60


async def test_a_middleware_may_return_anything_that_can_be_awaited(setting: Setting, anyio_backend: str) -> None:
    setting.broker.store("T", *(b"%d" % number for number in range(5)))
    seen = Recorder()

    def middleware(context: ConsumeContext, call_next: ConsumeNext) -> Awaitable[Result]:
        if context.messages[0].body == b"3":
            raise Reject("before anything is awaited")
        return Later(call_next(context))

    setting.client_options = ClientOptions(client_ip="10.0.0.9", instance_name="c1", consume_middleware=(middleware,))
    async with setting.consumer(consume_from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        await consumer.subscribe("T", "*", seen)
        await setting.advance(6)
        assert seen.bodies == [b"0", b"1", b"2", b"4"]
        assert setting.broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel") == [("1003", "-1")]
        assert setting.broker.committed["T", 0] == 5
