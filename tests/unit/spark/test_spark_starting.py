"""Where a time is in a queue, whatever a broker answers when it is asked for it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from rocketbox.client import Admin, PullResult, PullStatus
from rocketbox.message import MessageQueue
from rocketbox.protocol.stored_message import StoredMessage, decode_message, encode_stored_message
from rocketbox.spark.starting import EARLIEST, Place, PlaceKind, offset_at, places_of

pytestmark = pytest.mark.anyio

QUEUE = MessageQueue("orders", "broker-a", 0)
NOW_MS = 1_795_000_000_000


class QueueOf49(Admin):
    """A queue whose messages were stored at these times (ms from NOW_MS), the first of them at offset ``first``.

    Of messages of one millisecond its broker finds any, and beside a time that no message has the nearest.
    """

    def __init__(self, times: Sequence[int], first: int, chance: Random) -> None:
        self.times, self.first, self.chance = times, first, chance
        self.pulls = 0

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        time = timestamp_ms - NOW_MS
        begin, end = bisect_left(self.times, time), bisect_right(self.times, time)
        if begin < end:
            return self.first + self.chance.randrange(begin, end)
        return self.first + min(max(0, begin - self.chance.randrange(2)), len(self.times) - 1)

    async def pull(self, queue: MessageQueue, offset: int, *_: Any, **__: Any) -> PullResult:
        self.pulls += 1
        bounds = (self.first, self.first + len(self.times))
        if not bounds[0] <= offset < bounds[1]:
            return PullResult(PullStatus.OFFSET_ILLEGAL, bounds[0], *bounds)
        time = NOW_MS + self.times[offset - self.first]
        record = encode_stored_message(
            StoredMessage("orders", 0, b"", queue_offset=offset, born_timestamp_ms=time, store_timestamp_ms=time)
        )
        return PullResult(PullStatus.FOUND, offset + 1, *bounds, [decode_message(record)[0]])


@pytest.mark.parametrize("seed", range(10))
async def test_no_message_of_the_time_itself_is_passed_over(seed: int) -> None:
    chance = Random(seed)
    for first in (0, 7):
        times = sorted(chance.choices(range(12), k=chance.randrange(1, 60)))
        for time in range(-1, 13):
            expected = first + bisect_left(times, time)
            assert await offset_at(QueueOf49(times, first, chance), QUEUE, NOW_MS + time) == expected


async def test_many_messages_of_one_millisecond_cost_few_looks() -> None:
    queue = QueueOf49([0] * 10 + [5] * 100_000, 0, Random(1))
    assert await offset_at(queue, QUEUE, NOW_MS + 5) == 10
    assert queue.pulls < 50


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2026-11-18T11:06:40Z", NOW_MS),
        ("2026-11-18T11:06:40.001Z", NOW_MS + 1),
        ("2026-11-18T11:06:40.000001Z", NOW_MS + 1),
        ("2026-11-18T11:06:40.000400+00:00", NOW_MS + 1),
        ("2026-11-18T12:06:40,0012+01:00", NOW_MS + 2),
        ("2026-11-18T11:06:40.001000000Z", NOW_MS + 1),
        ("2026-11-18T11:06:40.0010000001Z", NOW_MS + 2),
        ("20261118T110640.001000999Z", NOW_MS + 2),
    ],
)
def test_nothing_of_before_a_time_is_read_however_finely_it_is_said(text: str, milliseconds: int) -> None:
    """Brokers know milliseconds: the first of those that are not before it."""
    assert places_of("startingOffsets", text, (), EARLIEST).others == Place(PlaceKind.TIME, milliseconds)
