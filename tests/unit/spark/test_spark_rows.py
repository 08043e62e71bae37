"""Reading ranges of a queue to rows: gaps, filters, limits of bytes, loss, and a broker that is away for a moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

pytest.importorskip("pyarrow")

import anyio

from rocketbox.client import Admin, PullResult, PullStatus
from rocketbox.clock import RealClock
from rocketbox.errors import ConnectError
from rocketbox.message import MessageExt, MessageQueue
from rocketbox.protocol.stored_message import StoredMessage, decode_message, encode_stored_message
from rocketbox.spark import rows
from rocketbox.spark.loss import SETTLE, DataLossError
from rocketbox.spark.offsets import QueueRange
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.rows import ARROW_SCHEMA, read_chunk, read_stretch, to_record_batch

pytestmark = pytest.mark.anyio

QUEUE = MessageQueue("orders", "broker-a", 0)


class StillClock(RealClock):
    """Sleeps without waiting, and notes for how long it should have been."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.slept

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        await anyio.lowlevel.checkpoint()


def message(offset: int, size: int = 10) -> MessageExt:
    stored = StoredMessage(
        topic="orders", queue_id=0, body=b"x" * size, properties=b"KEYS\x01a b\x02run\x011\x02", queue_offset=offset
    )
    found, _ = decode_message(encode_stored_message(stored), broker_name="broker-a")
    return found


class LogOfAQueue(Admin):
    """Answers pulls as a broker does, from messages at chosen offsets."""

    def __init__(self, messages: list[MessageExt], first: int, end: int, failures: int = 0) -> None:
        self.messages = messages
        self.first = first
        self.end = end
        self.failures = failures
        self.pulls: list[int] = []
        self.asked: list[int] = []
        self.suggested = 0
        self.grows_after: int | None = None

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        expression: str = "*",
        *,
        broker_id: int = 0,
        decompress: bool = True,
    ) -> PullResult:
        self.asked.append(broker_id)
        await anyio.lowlevel.checkpoint()
        if self.failures:
            self.failures -= 1
            raise ConnectError("127.0.0.1:1", "refused")
        self.pulls.append(offset)
        if self.grows_after is not None and len(self.pulls) > self.grows_after:
            self.end = self.messages[-1].queue_offset + 1
        bounds = (self.first, self.end)
        if offset < self.first:
            return PullResult(PullStatus.OFFSET_ILLEGAL, self.first, *bounds)
        if offset >= self.end:
            return PullResult(PullStatus.OFFSET_ILLEGAL, self.end, *bounds)
        found = [found for found in self.messages if offset <= found.queue_offset < self.end][: min(max_messages, 32)]
        if not found:
            return PullResult(PullStatus.NO_MATCHED_MSG, self.end, *bounds)
        result = PullResult(PullStatus.FOUND, found[-1].queue_offset + 1, *bounds, messages=found)
        return dataclasses.replace(result, suggest_which_broker_id=self.suggested)


def options(**changed: str) -> SourceOptions:
    return SourceOptions({"nameServer": "127.0.0.1:9876", "topic": "orders", **changed})


@contextmanager
def limit_of_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(rows, "BYTES_PER_RECORD_BATCH", size)
        yield


async def read(log: LogOfAQueue, start: int, end: int, **changed: str) -> tuple[list[int], int]:
    clock = StillClock()
    found, reached = await read_chunk(log, QueueRange(QUEUE, start, end), options(**changed), clock)
    return [found.queue_offset for found in found], reached


async def test_a_range_is_read_in_order_whatever_its_gaps() -> None:
    kept = [offset for offset in range(1000) if offset % 7 and not 300 <= offset < 520]
    log = LogOfAQueue([message(offset) for offset in kept], 0, 1000)
    found, reached = await read(log, 10, 990)
    assert found == [offset for offset in kept if 10 <= offset < 990]
    assert reached == 990


async def test_a_filter_that_matches_nothing_comes_to_the_end() -> None:
    assert await read(LogOfAQueue([], 0, 1000), 0, 1000) == ([], 1000)


async def test_large_messages_end_a_chunk_early_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogOfAQueue([message(offset, 1000) for offset in range(1000)], 0, 1000)
    with limit_of_bytes(monkeypatch, 100_000):
        found, start = [], 0
        while start < 1000:
            part, reached = await read(log, start, 1000)
            assert start < reached
            assert len(part) <= 200
            found += part
            start = reached
    assert found == list(range(1000))


async def test_offsets_that_are_gone_are_loss_unless_that_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    trimmed = LogOfAQueue([message(offset) for offset in range(50, 100)], 50, 100)
    with pytest.raises(
        DataLossError, match=r"offsets (0 to 31 \(32|32 to 49 \(18) in all\) are gone, its first message is 50"
    ):
        await read(trimmed, 0, 100)
    assert await read(trimmed, 0, 100, failOnDataLoss="false") == (list(range(50, 100)), 100)
    with pytest.raises(DataLossError, match=r"offsets 100 to 119 \(20 in all\) are gone, the queue ends at 100"):
        await read(trimmed, 90, 120)
    assert await read(trimmed, 90, 120, failOnDataLoss="false") == (list(range(90, 100)), 120)
    assert "orders broker-a/0: offsets 100 to 119 (20 in all) are gone" in caplog.text
    assert "orders broker-a/0: offsets 0 to 31 (32 in all) are gone" in caplog.text


async def test_a_queue_that_a_broker_fills_still_is_waited_for_before_anything_counts_as_gone() -> None:
    log = LogOfAQueue([message(offset) for offset in range(20)], 0, 12)
    log.grows_after = 3
    clock = StillClock()
    found, reached = await read_chunk(log, QueueRange(QUEUE, 0, 20), options(failOnDataLoss="false"), clock)
    assert ([each.queue_offset for each in found], reached) == (list(range(20)), 20)
    assert 0 < clock.slept < SETTLE


async def test_pulls_follow_the_machine_that_the_broker_suggests() -> None:
    log = LogOfAQueue([message(offset) for offset in range(70)], 0, 70)
    log.suggested = 1
    await read_stretch(log, QueueRange(QUEUE, 0, 70), options(), StillClock())
    assert log.asked == [0, 1, 1]


async def test_a_broker_that_is_away_is_asked_for_a_minute() -> None:
    log = LogOfAQueue([message(offset) for offset in range(10)], 0, 10, failures=5)
    assert await read(log, 0, 10) == (list(range(10)), 10)
    with pytest.raises(ConnectError):
        await read(LogOfAQueue([], 0, 10, failures=1000), 0, 10)


def test_rows_have_exactly_the_declared_schema() -> None:
    batch = to_record_batch([message(3), message(4)])
    assert batch.schema.equals(ARROW_SCHEMA, check_metadata=True)
    batch.validate(full=True)
    assert batch.num_rows == 2
    row = batch.to_pylist()[1]
    assert (row["queue_offset"], row["keys"], row["tag"]) == (4, ["a", "b"], None)
    assert row["properties"] == [("KEYS", "a b"), ("run", "1")]
    assert to_record_batch([]).schema.equals(ARROW_SCHEMA)
