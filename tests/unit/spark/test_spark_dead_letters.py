"""Dead letters of rows that were read, on a broker in memory: what is fetched once more, and what cannot be."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import types as t

from rocketbox.client import Admin, Producer, PulledRecords, PullStatus
from rocketbox.errors import ClientError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import MessageSysFlag, RequestCode
from rocketbox.protocol.stored_message import INNER_BATCH, StoredMessage, encode_batch, encode_stored_message
from rocketbox.spark.dead_letters import DeadLetter, DeadLetterPlan, fetch_body, send_dead_lot
from rocketbox.spark.outgoing import RowError
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.spark.log_of_a_broker import LogOfABroker, Queue
from tests.support.spark.stores import Store, store
from tests.support.store.retention import expire_first_files

pytestmark = [pytest.mark.anyio, pytest.mark.spark]

QUEUE = MessageQueue("orders", "broker-a", 0)
DLQ = "%DLQ%lake"


def unread(offset: int) -> DeadLetter:
    """One whose body could not be read, so that it is to be fetched."""
    return DeadLetter(DLQ, None, {"DLQ_REASON": "unknown codec"}, QUEUE, offset)


async def send(here: Store, *letters: DeadLetter) -> dict[int, Exception]:
    async with Producer("spark", name_server=here.name_server, network=here.network) as producer:
        return dict(await send_dead_lot(producer, letters, 3.0))


async def found(admin: Admin) -> list[bytes]:
    (queue,) = await admin.queues(DLQ)
    ends = range(await admin.max_offset(queue))
    return [(await admin.pull(queue, offset, 1)).messages[0].body for offset in ends]


async def test_a_message_that_is_deleted_before_it_is_fetched_is_told_and_the_others_are_dead_lettered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    chances = random.Random(0)  # bodies that do not shrink
    bodies = [b"%05d" % number + chances.randbytes(600_000) for number in range(12)]  # a file of the log holds six
    async with store("orders", queues=1, storage=storage) as before:
        await before.send(QUEUE, bodies)
    expire_first_files(storage, "/store")
    async with store("orders", queues=1, storage=storage) as here:
        first = await here.admin.min_offset(QUEUE)
        assert 0 < first < 11
        letters = [unread(offset) for offset in range(12)]
        assert await send(here, *letters) == {}
        assert sorted(await found(here.admin)) == bodies[first:]
        assert (
            f"{first} of 12 messages for {DLQ} could not be read, and are deleted or damaged: they are lost "
            "(orders broker-a/0 0, orders broker-a/0 1, "
        ) in caplog.text


async def test_a_message_that_its_broker_does_not_have_yet_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with store("orders", queues=1) as here:
        await here.send(QUEUE, [b"0", b"1"])
        failed = await send(here, unread(0), unread(2))
        assert [*failed] == [1]
        assert "orders broker-a/0 ends at 2, and its message 2 was read before" in str(failed[1])
        assert await found(here.admin) == [b"0"]
    assert "lost" not in caplog.text


async def test_a_dead_letter_topic_is_made_on_the_broker_of_the_messages_whatever_clusters_there_are() -> None:
    async with store("orders", queues=1) as here, here.another_broker("broker-b", cluster="other") as other:
        await here.admin.create_topic("orders", queues=1, cluster="other")
        there = MessageQueue("orders", "broker-b", 0)
        await here.send(there, [b"0"])
        letter = DeadLetter(DLQ, b"0", {"DLQ_REASON": "late"}, there, 0)
        assert await send(here, letter) == {}
        assert {*await here.admin.queues_on_brokers(DLQ)} == {other.options.broker_name}
        assert here.requests.by_code[RequestCode.UPDATE_AND_CREATE_TOPIC] == 2, "those of this test"


SCHEMA = t.StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in {
                "body": "binary", "topic": "string", "broker_name": "string", "queue_id": "integer",
                "queue_offset": "long", "born_timestamp": "timestamp", "reason": "string",
            }.items()
        ],
    }
)  # fmt: skip


def letters_of(**columns: Any) -> list[DeadLetter]:
    row = {
        "body": pa.array([b"body"]),
        "topic": pa.array(["orders"]),
        "broker_name": pa.array(["broker-a"]),
        "queue_id": pa.array([0], pa.int32()),
        "queue_offset": pa.array([0]),
        "born_timestamp": pa.array([0], pa.timestamp("us", tz="UTC")),
        "reason": pa.array(["too late"]),
        **columns,
    }
    batch = pa.RecordBatch.from_arrays(list(row.values()), list(row))
    found: list[DeadLetter] = []
    for letter in DeadLetterPlan(SCHEMA, "lake").messages(batch, lambda number, digest: digest):
        assert not isinstance(letter, RowError), letter
        found.append(letter)
    return found


@pytest.mark.parametrize(
    ("zone", "time"), [("GMT+5", 0), ("UTC", 2**60), ("America/New_York", -62_135_596_800_000_000)]
)
async def test_times_of_a_message_are_not_looked_at(zone: str, time: int) -> None:
    (letter,) = letters_of(born_timestamp=pa.array([time], pa.timestamp("us", tz=zone)))
    assert (letter.body, letter.properties["DLQ_REASON"]) == (b"body", "too late")


async def test_a_body_that_is_too_large_unpacked_goes_as_its_broker_has_it() -> None:
    async with store("orders", queues=1) as here:
        async with Producer("spark-writer", name_server=here.name_server, network=here.network) as producer:
            unpacked = b"x" * (producer.options.max_message_size + 1)
            packed = zlib.compress(unpacked)
            await producer.send_prepared("orders", packed, {}, sys_flag=int(MessageSysFlag.COMPRESSED))
            (letter,) = letters_of(body=pa.array([unpacked]))
            assert await send_dead_lot(producer, [letter], 3.0) == {}
        (dead,) = (await here.admin.pull(MessageQueue("%DLQ%lake", QUEUE.broker_name, 0), 0, 1)).messages
        assert dead.body == unpacked
        assert dead.properties["DLQ_REASON"] == "too late"


class OneBatch(LogOfABroker):
    """Its queue is one inner batch: whatever is asked for, a pull goes on behind it, as Apache's brokers say."""

    async def pull_records(self, queue: MessageQueue, offset: int, *args: Any, **options: Any) -> PulledRecords:
        return replace(await super().pull_records(queue, offset, *args, **options), next_begin_offset=13)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "compressed"])
async def test_the_body_of_a_message_within_an_inner_batch_is_its_own(packed: bool) -> None:
    """Such a batch, of Apache's topics with BatchCQ, is one record, in whichever place of it a pull begins."""
    body = encode_batch([(0, b"one", b""), (0, b"two", b""), (0, b"three", b"")])
    flags = INNER_BATCH | (MessageSysFlag.COMPRESSED if packed else 0)
    batch = StoredMessage("orders", 0, zlib.compress(body) if packed else body, sys_flag=int(flags), queue_offset=10)
    record = encode_stored_message(batch)
    log = OneBatch({QUEUE: Queue(dict.fromkeys((10, 11, 12), record), 10, 13)})
    found = [await fetch_body(log, unread(offset)) for offset in (10, 11, 12)]
    assert found == [(b"one", 0), (b"two", 0), (b"three", 0)]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "compressed"])
async def test_the_dead_letter_of_what_says_to_be_an_inner_batch_and_has_not_the_places_is_the_whole_record(
    packed: bool,
) -> None:
    """As its row is: brokers before 5.0 take such a message from anybody."""
    body = encode_batch([(0, b"one", b""), (0, b"two", b"")])
    flags = int(INNER_BATCH | (MessageSysFlag.COMPRESSED if packed else 0))
    made_up = StoredMessage("orders", 0, zlib.compress(body) if packed else body, sys_flag=flags, queue_offset=10)
    another = StoredMessage("orders", 0, b"another", queue_offset=11)
    log = LogOfABroker({QUEUE: Queue({10: encode_stored_message(made_up), 11: encode_stored_message(another)}, 10, 12)})
    assert [await fetch_body(log, unread(offset)) for offset in (10, 11)] == [(body, 0), (b"another", 0)]


async def test_an_inner_batch_that_cannot_be_read_is_damaged() -> None:
    record = encode_stored_message(StoredMessage("orders", 0, b"\0\0", sys_flag=INNER_BATCH, queue_offset=10))
    assert await fetch_body(LogOfABroker({QUEUE: Queue({10: record}, 10, 11)}), unread(10)) is None


class Younger(LogOfABroker):
    """Its master is away, and the replica that answers pulls in its place begins later."""

    async def pull_records(self, queue: MessageQueue, offset: int, *args: Any, **options: Any) -> PulledRecords:
        return PulledRecords(PullStatus.OFFSET_ILLEGAL, 100, 100, 200)


async def test_where_a_replica_begins_is_no_reason_to_give_a_message_up() -> None:
    log = Younger({QUEUE: Queue({}, 0, 200)})
    with pytest.raises(ClientError, match="has message 5, and the machine that was asked has none before 100"):
        await fetch_body(log, unread(5))
    log = Younger({QUEUE: Queue({}, 6, 200)})
    assert await fetch_body(log, unread(5)) is None
