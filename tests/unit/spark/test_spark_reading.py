"""Reading ranges of queues: order, gaps, filters, limits of bytes, loss, broken records, and brokers that are away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import anyio

from rocketbox.client import PulledRecords, PullResult, PullStatus
from rocketbox.clock import Clock
from rocketbox.errors import AccessDeniedError, BrokerError, ClientError, ConnectError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import MASTER_ID, ResponseCode
from rocketbox.protocol.stored_message import INNER_BATCH, StoredMessage, encode_batch, encode_stored_message
from rocketbox.protocol.tags import parse_subscription
from rocketbox.spark import pull_plan
from rocketbox.spark.answers import AnswerError
from rocketbox.spark.beginnings import Beginnings
from rocketbox.spark.checkpoint import QueueProgress, Witness
from rocketbox.spark.identity import difference
from rocketbox.spark.loss import DELETED_BY_NOW, SETTLE, DataLossError
from rocketbox.spark.offsets import QueueRange
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.pull_plan import PULLS_IN_FLIGHT, ROWS_PER_RECORD_BATCH
from rocketbox.spark.query import is_permanent
from rocketbox.spark.reading import NotReadError, Reading
from rocketbox.spark.record_columns import BYTES_PER_RECORD_BATCH, RecordDecoder
from tests.support.clocks import VirtualClock, idle
from tests.support.spark.log_of_a_broker import QUEUE, LogOfABroker, Queue, StillClock, record

pytestmark = pytest.mark.anyio


def queue_of(
    offsets: Iterable[int], first: int = 0, end: int | None = None, size: Callable[[int], int] = lambda _: 10
) -> Queue:
    records = {offset: record(offset, size(offset)) for offset in offsets}
    return Queue(records, first, max(records, default=-1) + 1 if end is None else end)


def options(**changed: str) -> SourceOptions:
    return SourceOptions({"nameServer": "127.0.0.1:9876", "topic": "orders", **changed})


async def batches(
    log: LogOfABroker,
    ranges: Sequence[QueueRange],
    clock: Clock | None = None,
    beginnings: Beginnings | None = None,
    **changed: str,
) -> list[Any]:
    """The record batches of the ranges."""
    chosen = options(**changed)
    decoder = RecordDecoder(chosen.columns, parse_subscription("", chosen.tags).tags_set)
    clock = clock or StillClock()
    reading = Reading(ranges, chosen, clock, beginnings or Beginnings(clock))
    found: list[Any] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(reading.run, log)
            try:
                while pulled := await reading.take():
                    found += decoder.record_batches(pulled)
            except RocketBoxError as error:  # as it is, not in the group's
                raised: RocketBoxError | None = error
            else:
                raised = None
            group.cancel_scope.cancel()
    if raised:
        raise raised
    return found


async def read(log: LogOfABroker, start: int, end: int, clock: StillClock | None = None, **changed: str) -> list[int]:
    """The offsets that were read of the one queue, whose bodies say the same."""
    offsets: list[int] = []
    for batch in await batches(log, [QueueRange(QUEUE, start, end)], clock, None, **changed):
        rows = batch.select(["queue_offset", "body"]).to_pylist()
        assert all(int(row["body"].split()[0]) == row["queue_offset"] for row in rows)
        offsets += [row["queue_offset"] for row in rows]
    return offsets


# --- order ---


async def test_a_range_is_read_in_order_whatever_its_gaps() -> None:
    kept = [offset for offset in range(1000) if offset % 7 and not 300 <= offset < 320]
    log = LogOfABroker({QUEUE: queue_of(kept, end=1000)})
    assert await read(log, 10, 990) == [offset for offset in kept if 10 <= offset < 990]


async def test_what_says_to_be_an_inner_batch_at_the_end_of_a_pull_is_one_row() -> None:
    """The next message has one of its places: so it is none, wherever a pull ends."""
    queue, body = queue_of(range(70)), encode_batch([(0, b"%d" % number, b"") for number in range(5)])
    flags = int(INNER_BATCH)
    for offset in (31, 40):
        queue.records = {
            **queue.records,
            offset: encode_stored_message(StoredMessage("orders", 0, body, sys_flag=flags, queue_offset=offset)),
        }
    log = LogOfABroker({QUEUE: queue})
    found = [
        row
        for batch in await batches(log, [QueueRange(QUEUE, 0, 70)])
        for row in batch.select(["queue_offset", "body"]).to_pylist()
    ]
    assert (QUEUE, 32) in log.pulls
    assert [row["queue_offset"] for row in found] == [*range(70)]
    assert [row["body"] for row in found if row["queue_offset"] in (31, 40)] == [body, body]


@pytest.mark.parametrize("most", [1, 2, 32])
async def test_what_says_to_be_an_inner_batch_is_one_row_with_a_filter_too(most: int) -> None:
    """Of the messages that have its places the answer tells nothing, where they have other tags."""
    queue, body = queue_of(range(70)), encode_batch([(0, b"%d" % number, b"TAGS\x01A\x02") for number in range(5)])
    queue.tags = {offset: "B" for offset in range(70) if offset % 10}
    flags, tag = int(INNER_BATCH), b"TAGS\x01A\x02"
    queue.records = {offset: record(offset, tag=queue.tags.get(offset, "A")) for offset in range(70)}
    for offset in (30, 60):
        message = StoredMessage("orders", 0, body, tag, sys_flag=flags, queue_offset=offset)
        queue.records = {**queue.records, offset: encode_stored_message(message)}
    found = [
        row
        for batch in await batches(LogOfABroker({QUEUE: queue}, most=most), [QueueRange(QUEUE, 0, 70)], tags="A")
        for row in batch.select(["queue_offset", "body"]).to_pylist()
    ]
    assert [row["queue_offset"] for row in found] == [*range(0, 70, 10)]
    assert [row["body"] for row in found if row["queue_offset"] in (30, 60)] == [body, body]


async def test_each_row_comes_once_in_many_record_batches() -> None:
    log = LogOfABroker({QUEUE: queue_of(range(3 * ROWS_PER_RECORD_BATCH))})
    found = await batches(log, [QueueRange(QUEUE, 5, 3 * ROWS_PER_RECORD_BATCH)])
    offsets = [offset for batch in found for offset in batch.column("queue_offset").to_pylist()]
    assert offsets == list(range(5, 3 * ROWS_PER_RECORD_BATCH))
    assert [4_096 <= batch.num_rows <= 16_384 for batch in found[:-1]] == [True, True]
    assert log.messages <= 1.1 * len(offsets)


@pytest.mark.parametrize("tags", ["*", "A"])
@pytest.mark.parametrize("seed", range(6))
async def test_several_queues_come_one_after_another_however_answers_overtake(seed: int, tags: str) -> None:
    chance = Random(seed)
    queues = {
        MessageQueue("orders", f"broker-{name}", number): queue_of(
            [offset for offset in range(chance.randrange(1000)) if chance.random() < 0.8],
            end=1000,
            size=lambda offset: 5000 if seed % 3 == 0 and offset % 97 == 0 else 10,
        )
        for name in "ab"
        for number in range(3)
    }
    if tags != "*":
        for queue in queues.values():
            rare = chance.choice([0.05, 0.5])
            queue.tags = {offset: "B" for offset in queue.offsets if chance.random() > rare}
    ranges = [QueueRange(queue, chance.randrange(500), chance.randrange(500, 1000)) for queue in queues]
    most = chance.choice([1, 8, 32, 100])
    log = LogOfABroker(queues, most=most, most_bytes=20_000, scanned=37 if tags != "*" else 800, chance=chance)
    found = await batches(log, ranges, tags=tags)
    columns = ("broker_name", "queue_offset")
    rows = [
        place for batch in found for place in zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    ]
    assert rows == [
        (piece.queue.broker_name, offset)
        for piece in ranges
        for offset in queues[piece.queue].offsets
        if piece.start <= offset < piece.end and offset not in queues[piece.queue].tags
    ]
    again = await batches(log, ranges, tags=tags)
    assert [batch.to_pydict() for batch in again] == [batch.to_pydict() for batch in found]


async def test_pulls_of_a_task_are_in_flight_together() -> None:
    queues = {MessageQueue("orders", "broker-a", number): queue_of(range(20)) for number in range(20)}
    log = LogOfABroker(queues)
    found = await batches(log, [QueueRange(queue, 0, 20) for queue in queues])
    assert sum(batch.num_rows for batch in found) == 400
    assert (log.most_in_flight, len(log.pulls)) == (PULLS_IN_FLIGHT, 20)
    one = LogOfABroker({QUEUE: queue_of(range(5000))})
    assert len(await read(one, 0, 5000)) == 5000
    assert one.most_in_flight == PULLS_IN_FLIGHT


@pytest.mark.parametrize("most", [8, 32, 500])
async def test_pulls_are_as_many_as_the_brokers_answers_make_them(most: int) -> None:
    log = LogOfABroker({QUEUE: queue_of(range(8000))}, most=most)
    assert len(await read(log, 0, 8000)) == 8000
    assert len(log.pulls) <= 1.2 * 8000 / most + 2
    assert log.messages <= 8000 + 8 * most


async def test_pulls_in_flight_lie_close_together_where_each_covers_the_same() -> None:
    log = LogOfABroker({QUEUE: queue_of(range(20_000))}, chance=Random(7))
    assert len(await read(log, 0, 20_000)) == 20_000
    offsets = [offset for _, offset in log.pulls][100:]
    behind = [farthest - offset for farthest, offset in zip(accumulate(offsets, max), offsets, strict=True)]
    assert max(behind) <= 3 * PULLS_IN_FLIGHT * 2 * 32
    assert len(log.pulls) <= 1.02 * 20_000 / 32


async def test_nothing_is_asked_where_there_is_nothing_to_read() -> None:
    log = LogOfABroker({QUEUE: queue_of(range(10))})
    assert await read(log, 5, 5) == []
    assert log.pulls == []


# --- filters ---


async def test_a_filter_that_matches_nothing_follows_the_brokers_scan() -> None:
    same = queue_of(range(50_000))
    queues = {MessageQueue("orders", "broker-a", number): same for number in range(4)}
    log = LogOfABroker(queues)
    assert await batches(log, [QueueRange(queue, 0, 50_000) for queue in queues], tags="B") == []
    looks = log.asked_for.count(1)  # whether the message is still there from which on nothing has matched
    assert 250 <= len(log.pulls) - looks <= 270
    assert looks <= 270


async def test_a_sparse_filter_brings_each_match_once() -> None:
    queue = queue_of(range(20_000))
    queue.tags = {offset: "B" for offset in range(20_000) if offset % 900 and not 5000 <= offset < 5400}
    log = LogOfABroker({QUEUE: queue})
    matches = [offset for offset in range(20_000) if offset not in queue.tags]
    assert await read(log, 0, 20_000, tags="A || C") == matches
    assert len(log.pulls) <= 80
    assert log.messages <= 1.2 * len(matches)


# --- bytes ---


@pytest.mark.parametrize("first_large", [0, 200])
async def test_large_messages_are_held_and_batched_by_their_bytes(
    monkeypatch: pytest.MonkeyPatch, first_large: int
) -> None:
    # Everything a hundredth of its size: messages of 40 KB instead of 4 MB.
    for name in ("HELD_BYTES", "STRETCH_BYTES", "FIRST_PULL_BYTES", "BYTES_PER_RECORD_BATCH"):
        monkeypatch.setattr(pull_plan, name, getattr(pull_plan, name) // 100)
    large = 4 * 1024 * 1024 // 100
    log = LogOfABroker(
        {QUEUE: queue_of(range(300), size=lambda offset: large if offset >= first_large else 1)}, most_bytes=2600
    )
    clock, chosen = StillClock(), options()
    reading = Reading([QueueRange(QUEUE, 0, 300)], chosen, clock, Beginnings(clock))
    taken: list[int] = []
    async with anyio.create_task_group() as group:
        group.start_soon(reading.run, log)
        while True:
            for _ in range(100):  # a slow taker: all that may be fetched is
                await anyio.lowlevel.checkpoint()
            held = log.messages - len(taken)
            if log.messages > first_large:
                assert held * large <= pull_plan.HELD_BYTES + PULLS_IN_FLIGHT * large or len(taken) < first_large
            if not (pulled := await reading.take()):
                break
            assert len(pulled) == 1 or sum(len(part.data) for part in pulled) <= BYTES_PER_RECORD_BATCH // 100
            for batch in RecordDecoder(["queue_offset"]).record_batches(pulled):
                taken += batch.column(0).to_pylist()
    assert taken == list(range(300))


# --- loss ---


async def test_offsets_that_are_gone_are_loss_unless_that_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    trimmed = LogOfABroker({QUEUE: queue_of(range(50, 100), first=50)})
    with pytest.raises(DataLossError, match=r"offsets 0 to 49 \(50 in all\) are gone, its first message is 50"):
        await read(trimmed, 0, 100)
    assert caplog.messages == []
    assert await read(trimmed, 0, 100, failOnDataLoss="false") == list(range(50, 100))
    assert len(caplog.messages) == 1
    assert "offsets 0 to 49 (50 in all) are gone" in caplog.messages[0]


async def test_a_queue_that_ends_early_is_asked_for_some_seconds(caplog: pytest.LogCaptureFixture) -> None:
    short = LogOfABroker({QUEUE: queue_of(range(90, 100), first=0)})
    clock = StillClock()
    with pytest.raises(DataLossError, match=r"offsets 100 to 119 \(20 in all\) are gone, the queue ends at 100"):
        await read(short, 90, 120, clock)
    assert SETTLE <= clock.slept <= 4 * SETTLE
    assert await read(short, 90, 120, failOnDataLoss="false") == list(range(90, 100))
    assert sum("20 in all" in message for message in caplog.messages) == 1


class Lagging(LogOfABroker):
    """Its queue is filled by and by, as after a broker's start."""

    async def pull_records(self, *arguments: Any, **options: Any) -> Any:
        self.logs[QUEUE].end = min(100, self.logs[QUEUE].end + 7)
        return await super().pull_records(*arguments, **options)


@pytest.mark.parametrize("fail", ["true", "false"])
async def test_what_a_broker_has_not_dispatched_yet_is_not_lost(fail: str, caplog: pytest.LogCaptureFixture) -> None:
    log = Lagging({QUEUE: queue_of(range(100), end=3)})
    assert await read(log, 0, 100, failOnDataLoss=fail) == list(range(100))
    assert caplog.messages == []


async def test_offsets_without_messages_are_told(caplog: pytest.LogCaptureFixture) -> None:
    log = LogOfABroker({QUEUE: queue_of([*range(40), *range(100, 200)], end=200)}, most=20)
    assert await read(log, 0, 200) == [*range(40), *range(100, 200)]
    (told,) = caplog.messages
    assert "orders broker-a/0 has no message at 60 of its offsets, from 40 to 99" in told
    caplog.clear()
    await read(log, 0, 200, tags="A")
    await read(log, 110, 200)
    assert caplog.messages == []


class Trimming(LogOfABroker):
    """Its messages are being deleted: the queue's minimum is known a moment later."""

    async def pull_records(self, *arguments: Any, **options: Any) -> Any:
        result = await super().pull_records(*arguments, **options)
        self.logs[QUEUE].first = 64
        return result


@pytest.mark.parametrize("tags", ["*", "A"])
async def test_messages_that_are_being_deleted_are_loss(tags: str) -> None:
    log = Trimming({QUEUE: queue_of(range(64, 200))})
    with pytest.raises(DataLossError, match="offsets 0 to 63"):
        await read(log, 0, 200, tags=tags)


@pytest.mark.parametrize("left", [1, 20, 31, 90])
async def test_messages_of_which_a_pull_brings_the_rest_while_they_are_deleted_are_loss(
    left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue's minimum is known only when all files of the log are deleted, which takes a while."""
    clock = StillClock()

    class Deleting(LogOfABroker):
        async def pull_records(self, *arguments: Any, **options: Any) -> Any:
            self.logs[QUEUE].first = left if clock.slept > 12 else 0
            return await super().pull_records(*arguments, **options)

    log = Deleting({QUEUE: queue_of(range(left, 200))}, most=100)
    with pytest.raises(DataLossError, match=f"orders broker-a/0: offsets 0.* are gone, its first message is {left}"):
        await read(log, 0, 200, clock)
    clock.slept = 0
    assert await read(log, 0, 200, clock, failOnDataLoss="false") == list(range(left, 200))
    assert f"({left} in all) are gone" in caplog.text


async def test_messages_that_a_queue_never_had_at_its_beginning_are_told_and_waited_for_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = StillClock()
    log = LogOfABroker({QUEUE: queue_of(range(5000, 5200))})
    log.logs[QUEUE].first = 0
    assert await read(log, 0, 5200, clock) == list(range(5000, 5200))
    assert "orders broker-a/0 has no message at 5000 of its offsets, from 0 to 4999" in caplog.text
    assert DELETED_BY_NOW <= clock.slept < DELETED_BY_NOW + 10


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_queues_that_lack_their_first_messages_are_waited_for_once_and_all_at_the_same_time() -> None:
    """In tasks and batches one after another, by one process."""
    queues = [MessageQueue("orders", f"broker-{name}", number) for name in "ab" for number in range(20)]
    log = LogOfABroker({queue: replace(queue_of(range(4000, 4050)), first=0) for queue in queues})
    log.logs[queues[7]] = queue_of(range(4050))
    clock = VirtualClock(settle=idle)
    beginnings = Beginnings(clock)
    rows: list[int] = []

    async def read_all() -> None:
        for start, end in ((0, 500), (500, 4050)):
            for some in (queues[:10], queues[10:30], queues[30:]):
                ranges = [QueueRange(queue, start, end) for queue in some]
                rows.extend(batch.num_rows for batch in await batches(log, ranges, clock, beginnings))

    await clock.run(read_all)
    assert sum(rows) == 39 * 50 + 4050
    assert DELETED_BY_NOW <= clock.now < DELETED_BY_NOW + 10
    assert len(log.pulls) < 40 * 4050 / 32 + 40 * 150


async def test_what_is_deleted_behind_a_gap_that_is_known_is_a_loss_nevertheless() -> None:
    clock = StillClock()
    beginnings = Beginnings(clock)
    log = LogOfABroker({QUEUE: replace(queue_of(range(100, 300)), first=0)})
    assert len(await batches(log, [QueueRange(QUEUE, 0, 150)], clock, beginnings)) == 1
    began = clock.slept

    class Deleting(LogOfABroker):
        async def pull_records(self, *arguments: Any, **options: Any) -> Any:
            self.logs[QUEUE].first = 200 if clock.slept > began + 12 else 0
            return await super().pull_records(*arguments, **options)

    deleting = Deleting({QUEUE: replace(queue_of(range(200, 300)), first=0)})
    with pytest.raises(DataLossError, match="offsets 150 to 199"):
        await batches(deleting, [QueueRange(QUEUE, 150, 300)], clock, beginnings)


async def test_messages_that_a_broker_lacks_for_a_moment_are_read(caplog: pytest.LogCaptureFixture) -> None:
    def late(offset: int, asked: int, right: PulledRecords) -> PulledRecords:
        return replace(right, records=of(range(offset + 3, right.next_begin_offset)))

    def without_one(offset: int, asked: int, right: PulledRecords) -> PulledRecords:
        return replace(right, records=of(set(range(offset, right.next_begin_offset)) - {offset + 7}))

    for answer in (late, without_one):
        assert await read(Wrong(answer, times=1), 0, 200) == list(range(200))
    assert caplog.messages == []


@pytest.mark.parametrize("lacking", [range(5, 9), range(40, 41), range(200)])
async def test_messages_that_a_replica_lacks_are_read_from_its_master(
    lacking: range, caplog: pytest.LogCaptureFixture
) -> None:
    """As one whose store was damaged, and of which those files were taken out."""

    class Replicated(LogOfABroker):
        async def pull_records(
            self, queue: MessageQueue, offset: int, *arguments: Any, **options: Any
        ) -> PulledRecords:
            right = await super().pull_records(queue, offset, *arguments, **options)
            if options.get("broker_id", MASTER_ID) == MASTER_ID:
                return right
            return replace(right, records=of(set(range(offset, right.next_begin_offset)) - set(lacking)))

    log = Replicated({QUEUE: queue_of(range(200))})
    log.suggests = 1
    assert await read(log, 0, 200) == list(range(200))
    assert 1 in log.brokers
    assert caplog.messages == []


async def test_messages_that_are_missing_are_asked_for_twice_and_no_more() -> None:
    log = LogOfABroker({QUEUE: queue_of([*range(1, 40), *range(42, 90, 2)], first=1, end=90)}, most=10)
    await read(log, 1, 90)
    often = Counter(offset for _, offset in log.pulls if offset > 1)  # where the queue begins is asked for besides
    assert max(often.values()) == 2


async def test_a_gap_behind_messages_that_are_there_is_told_though_the_task_begins_in_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = LogOfABroker({QUEUE: queue_of([*range(10), *range(50, 200)])}, most=100)
    assert await read(log, 20, 200) == list(range(50, 200))
    assert "orders broker-a/0 has no message at 30 of its offsets, from 20 to 49" in caplog.text


# --- answers that cannot be ---


class Wrong(LogOfABroker):
    """Answers with what ``answer`` makes of the right one, until it has done so ``times``."""

    def __init__(self, answer: Callable[[int, int, PulledRecords], PulledRecords], times: int = 1_000_000) -> None:
        super().__init__({QUEUE: queue_of(range(200))})
        self.wrong, self.times = answer, times

    async def pull_records(
        self, queue: MessageQueue, offset: int, max_messages: int = 32, *arguments: Any, **options: Any
    ) -> PulledRecords:
        right = await super().pull_records(queue, offset, max_messages, *arguments, **options)
        answer = self.wrong(offset, max_messages, right) if self.times else right
        if answer != right:
            self.times -= 1
        return answer


def of(offsets: Iterable[int]) -> bytes:
    return b"".join(record(offset) for offset in offsets)


def twice(offset: int, asked: int, right: PulledRecords) -> PulledRecords:
    return replace(right, records=right.records + right.records)


def one_twice(offset: int, asked: int, right: PulledRecords) -> PulledRecords:
    return replace(right, records=of([7, 7])) if offset == 7 and asked == 1 else twice_if_many(offset, asked, right)


def twice_if_many(offset: int, asked: int, right: PulledRecords) -> PulledRecords:
    return twice(offset, asked, right) if asked > 1 and offset < 8 else right


def backwards(offset: int, asked: int, right: PulledRecords) -> PulledRecords:
    return replace(right, records=of(reversed(range(offset, right.next_begin_offset)))) if asked > 1 else right


def from_before(offset: int, asked: int, right: PulledRecords) -> PulledRecords:
    return replace(right, records=of(range(offset - 3, right.next_begin_offset))) if asked > 1 and offset else right


def far_beyond(offset: int, asked: int, right: PulledRecords) -> PulledRecords:
    return replace(right, next_begin_offset=right.next_begin_offset + 64)


@pytest.mark.parametrize("answer", [twice_if_many, backwards, from_before, far_beyond])
async def test_an_answer_that_cannot_be_neither_doubles_nor_loses_a_row(
    answer: Callable[[int, int, PulledRecords], PulledRecords], caplog: pytest.LogCaptureFixture
) -> None:
    assert await read(Wrong(answer), 0, 200) == list(range(200))
    assert caplog.messages == []


@pytest.mark.parametrize("answer", [twice_if_many, backwards, from_before])
async def test_nor_does_one_with_a_filter(answer: Callable[[int, int, PulledRecords], PulledRecords]) -> None:
    assert await read(Wrong(answer), 0, 200, tags="A") == list(range(200))


async def test_two_messages_where_one_was_asked_for_are_an_error() -> None:
    with pytest.raises(AnswerError) as refused:
        await read(Wrong(one_twice), 0, 200)
    assert str(refused.value).startswith(
        "orders broker-a/0: the broker's answer to a pull of the message at offset 7 cannot be: a message of offset 7 "
        "comes behind that of 7"
    )


async def test_a_message_of_another_offset_is_a_row_that_says_so() -> None:
    def another(offset: int, asked: int, right: PulledRecords) -> PulledRecords:
        if not offset <= 50 < right.next_begin_offset:
            return right
        offsets = range(offset, right.next_begin_offset)
        return replace(right, records=of(2**40 if each == 50 else each for each in offsets))

    found = await batches(Wrong(another), [QueueRange(QUEUE, 0, 200)])
    rows = {row["queue_offset"]: row["_error"] for batch in found for row in batch.to_pylist()}
    assert list(rows) == list(range(200))
    assert {offset: error for offset, error in rows.items() if error} == {
        50: f"it has a message of offset {2**40}, and goes from 50 to 50"
    }


@pytest.mark.parametrize("tags", ["*", "A"])
async def test_what_a_broker_passes_over_without_a_look_is_loss(tags: str, caplog: pytest.LogCaptureFixture) -> None:
    """As it does with a file of its queue that is gone: further than any search for the next message goes."""

    def jump(offset: int, asked: int, right: PulledRecords) -> PulledRecords:
        return replace(right, status=PullStatus.NO_MATCHED_MSG, next_begin_offset=3000, records=b"")

    clock = StillClock()
    log = Wrong(jump)
    log.logs[QUEUE].end = 3001
    with pytest.raises(DataLossError, match=r"offsets 0 to 2999 \(3000 in all\) are gone"):
        await read(log, 0, 3000, clock, tags=tags)
    assert clock.slept >= SETTLE
    assert await read(log, 0, 3000, failOnDataLoss="false", tags=tags) == []
    assert "offsets 0 to 2999 (3000 in all) are gone" in caplog.text
    log = Wrong(jump, times=2)
    assert await read(log, 0, 200, tags=tags) == list(range(200)), "it was so for a moment only"


async def test_a_broker_that_may_look_further_for_a_tag_is_believed() -> None:
    queue = queue_of(range(20_000))
    queue.tags = {offset: "B" for offset in range(20_000) if offset % 7000}
    log = LogOfABroker({QUEUE: queue}, scanned=5000)
    assert await read(log, 0, 20_000, tags="A") == [0, 7000, 14_000]
    assert len(log.pulls) <= 12


# --- records that cannot be read ---


@pytest.mark.parametrize("wrong", [[0], [77], [199], [31, 32, 100, 101]])
async def test_a_record_that_is_none_costs_no_other_message(wrong: list[int]) -> None:
    queue = queue_of(range(200))
    queue.records = {
        offset: b"\x00\x00\x00\x08junk" if offset in wrong else data for offset, data in queue.records.items()
    }
    found = await batches(LogOfABroker({QUEUE: queue}), [QueueRange(QUEUE, 0, 200)])
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [row["queue_offset"] for row in rows] == list(range(200))
    assert [row["queue_offset"] for row in rows if row["body"] is None] == wrong
    assert all("no whole message" in row["_error"] for row in rows if row["body"] is None)


async def test_a_message_that_cannot_be_read_does_not_end_a_topic() -> None:
    queue = queue_of(range(100))
    odd = bytearray(queue.records[50])
    odd[40:48] = (2**62).to_bytes(8, "big")
    queue.records = {**queue.records, 50: bytes(odd)}
    found = await batches(LogOfABroker({QUEUE: queue}), [QueueRange(QUEUE, 0, 100)])
    errors = {row["queue_offset"]: row["_error"] for batch in found for row in batch.to_pylist()}
    assert [offset for offset, error in errors.items() if error] == [50]
    assert "born timestamp 4611686018427387904" in errors[50]


# --- brokers ---


async def test_a_broker_that_is_away_is_asked_for_a_minute() -> None:
    away = ConnectError("127.0.0.1:1", "refused")
    log = LogOfABroker({QUEUE: queue_of(range(100))}, [away] * 5)
    assert await read(log, 0, 100) == list(range(100))


async def test_after_that_minute_the_error_names_the_broker_and_the_range_that_was_not_read() -> None:
    clock, away = StillClock(), ConnectError("127.0.0.1:1", "refused")
    log = LogOfABroker({QUEUE: queue_of(range(100))}, [away] * 1000)
    with pytest.raises(NotReadError) as raised:
        await read(log, 10, 100, clock)
    assert str(raised.value) == (
        f"orders {QUEUE.broker_name}/{QUEUE.queue_id}: offsets 10 to 99 (90 in all) were not read, since broker "
        f"{QUEUE.broker_name} did not answer for 60 s: cannot connect to 127.0.0.1:1: refused"
    )
    assert raised.value.unread == QueueRange(QUEUE, 10, 100)
    assert raised.value.__cause__ is away
    assert not is_permanent(raised.value), "the batch is tried again"


async def test_what_is_named_as_not_read_begins_behind_what_was_read() -> None:
    away, log = ConnectError("127.0.0.1:1", "refused"), LogOfABroker({QUEUE: queue_of(range(100))}, most=10)
    answer = log.pull_records

    async def pull(queue: MessageQueue, offset: int, *arguments: Any, **options: Any) -> Any:
        if offset >= 42:  # where a pull begins, behind the one from 32 on
            raise away
        return await answer(queue, offset, *arguments, **options)

    log.pull_records = pull  # type: ignore[method-assign] # of this one
    with pytest.raises(NotReadError, match=r"offsets 42 to 99 \(58 in all\) were not read"):
        await read(log, 0, 100)


@pytest.mark.parametrize(
    "error",
    [
        AccessDeniedError(ResponseCode.NO_PERMISSION, "no user", "127.0.0.1:1"),
        BrokerError(ResponseCode.NO_PERMISSION, "the topic[orders] pulling message is forbidden", "127.0.0.1:1"),
    ],
    ids=["user", "topic"],
)
async def test_what_is_refused_is_told_at_once(error: RocketBoxError) -> None:
    clock = StillClock()
    log = LogOfABroker({QUEUE: queue_of(range(10))}, [error])
    with pytest.raises(type(error)) as raised:
        await read(log, 0, 10, clock)
    assert (raised.value, clock.slept) == (error, 0)


async def test_the_machine_that_a_broker_suggests_is_asked_and_the_master_when_it_fails() -> None:
    log = LogOfABroker({QUEUE: queue_of(range(70))}, most=10)
    log.suggests = 2
    assert await read(log, 0, 40) == list(range(40))
    assert (log.brokers[0], set(log.brokers[1:])) == (MASTER_ID, {2})
    log.brokers.clear()
    log.failures = [ConnectError("127.0.0.1:1", "refused")]
    await read(log, 0, 40)
    assert log.brokers[:3] == [MASTER_ID, MASTER_ID, 2]


class WithoutItsReplica(LogOfABroker):
    """Its master suggests a replica that nobody reaches."""

    async def pull_records(self, *arguments: Any, **options: Any) -> Any:
        if options["broker_id"] != MASTER_ID:
            self.failures.append(ConnectError("127.0.0.1:1", "refused"))
        return await super().pull_records(*arguments, **options)


async def test_a_suggested_machine_that_is_away_is_given_up_for_the_master() -> None:
    log = WithoutItsReplica({QUEUE: queue_of(range(70))}, most=10)
    log.suggests = 2
    assert await read(log, 0, 40) == list(range(40))
    assert set(log.brokers) == {MASTER_ID, 2}


async def test_a_task_that_ends_early_pulls_no_more() -> None:
    log = LogOfABroker({QUEUE: queue_of(range(100_000, 100_100), first=0, end=200_000)})
    reading = Reading([QueueRange(QUEUE, 0, 200_000)], options(tags="B"), StillClock(), Beginnings(StillClock()))
    with anyio.move_on_after(5) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(reading.run, log)
            while len(log.pulls) < 10:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert not scope.cancelled_caught
    assert log.in_flight == 0
    assert len(log.pulls) < 30


# --- replicas ---


class Younger(LogOfABroker):
    """Its master suggests a replica that begins at 100. That answers as Apache's: 'again', and the master's number.

    Source: Apache RocketMQ 5.x ``DefaultPullMessageResultHandler``.
    """

    suggested = 1

    async def pull_records(
        self, queue: MessageQueue, offset: int, max_messages: int = 32, *args: Any, **named: Any
    ) -> PulledRecords:
        right = await super().pull_records(queue, offset, max_messages, *args, **named)
        if named["broker_id"] == MASTER_ID or offset >= 100:
            return replace(right, suggest_which_broker_id=self.suggested)
        return PulledRecords(PullStatus.NO_MATCHED_MSG, offset, 100, self.logs[queue].end, b"", MASTER_ID)


@pytest.mark.parametrize("fails", ["true", "false"])
async def test_what_a_replica_lacks_at_its_beginning_is_read_from_its_master(fails: str) -> None:
    log = Younger({QUEUE: queue_of(range(200))})
    assert await read(log, 0, 200, failOnDataLoss=fails) == list(range(200))
    assert 1 in log.brokers


class MasterAway(LogOfABroker):
    """Until ``back_at`` its replica answers, which has 98 messages, whoever is asked for."""

    def __init__(self, queues: dict[MessageQueue, Queue], clock: StillClock, back_at: float) -> None:
        super().__init__(queues)
        self._clock = clock
        self._back_at = back_at

    @property
    def _is_away(self) -> bool:
        return self._clock.monotonic() < self._back_at

    async def max_offset(self, queue: MessageQueue) -> int:
        if self._is_away:
            raise ClientError("broker broker-a has no master")
        return await super().max_offset(queue)

    async def pull_records(
        self, queue: MessageQueue, offset: int, max_messages: int = 32, *args: Any, **named: Any
    ) -> PulledRecords:
        if not self._is_away:
            return await super().pull_records(queue, offset, max_messages, *args, **named)
        await anyio.lowlevel.checkpoint()
        if offset >= 98:
            return PulledRecords(PullStatus.NO_NEW_MSG, offset, 0, 98, b"", MASTER_ID)
        return await super().pull_records(queue, offset, min(max_messages, 98 - offset), *args, **named)


@pytest.mark.parametrize("fails", ["true", "false"])
async def test_the_end_of_a_range_that_a_replica_has_not_got_is_waited_for(fails: str) -> None:
    clock = StillClock()
    log = MasterAway({QUEUE: queue_of(range(100))}, clock, back_at=clock.monotonic() + 20)
    assert await read(log, 90, 100, clock, failOnDataLoss=fails) == list(range(90, 100))


class Behind(LogOfABroker):
    """A replica answers what is looked at, and has a message less than its master."""

    async def pull(self, queue: MessageQueue, offset: int, *args: Any, **named: Any) -> PullResult:
        return PullResult(PullStatus.NO_NEW_MSG, offset, 0, 99, [], MASTER_ID)


async def test_a_queue_is_no_other_one_because_a_replica_is_behind() -> None:
    log = Behind({QUEUE: queue_of(range(99), end=99)})
    read_to_100 = QueueProgress(0, 100, Witness(1, 1))
    told = "it was read up to offset 100, and the queue ends at 99"
    assert await difference(log, QUEUE, read_to_100, StillClock()) == told
    with pytest.raises(ClientError, match="no master"):
        await difference(Masterless({}), QUEUE, read_to_100, StillClock())


class Masterless(Behind):
    async def max_offset(self, queue: MessageQueue) -> int:
        raise ClientError("broker broker-a has no master")
