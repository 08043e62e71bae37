"""Where a read begins or ends, as users write it: a word, a point in time, or offsets as JSON.

``places_of`` reads the text; :class:`Places` then knows what is meant for each queue. The resolving functions ask a
broker what a place is now. Source: Apache Spark 4.3.0, ``KafkaOffsetReader`` (its options), Apache RocketMQ 5.x
``getOffsetInQueueByTime``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from rocketbox.message import MessageQueue
from rocketbox.spark.looking import look_at
from rocketbox.spark.offsets import in_words

if TYPE_CHECKING:
    from rocketbox.client import Admin  # options are read without loading the client

__all__ = [
    "CLOCKS_DIFFER_MS",
    "EARLIEST",
    "GROUP",
    "LATEST",
    "Place",
    "PlaceKind",
    "Places",
    "begun_at",
    "places_of",
    "resolve",
    "text_of",
    "within",
]

_log = logging.getLogger(__name__)

TIME_EXAMPLE = "2026-01-31T12:00:00Z, 2026-01-31T12:00:00+01:00, 1769860800s or 1769860800000ms"
CLOCKS_DIFFER_MS = 60_000  # between a broker's clock and that of who asks it, at most
_NUMBER = re.compile(r"(\d+)\s*(ms|s)", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-?\d\d")
_BELOW_MICROSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PlaceKind(Enum):
    """What a place in a queue is given by."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    TIME = "time"
    OFFSET = "offset"


@dataclass(frozen=True)
class Place:
    """A place in a queue; ``value`` is an offset, or a time in milliseconds."""

    kind: PlaceKind
    value: int = 0


EARLIEST, LATEST, GROUP = Place(PlaceKind.EARLIEST), Place(PlaceKind.LATEST), Place(PlaceKind.GROUP)
WORDS = {place.kind.value: place for place in (EARLIEST, LATEST, GROUP)}
WORD_OF: Mapping[PlaceKind, str] = {place.kind: word for word, place in WORDS.items()}
NUMBER_OF: Mapping[PlaceKind, int] = {PlaceKind.EARLIEST: -2, PlaceKind.LATEST: -1}


@dataclass(frozen=True)
class Places:
    """A place for each queue: that of its name, else the one of all others."""

    others: Place
    named: Mapping[MessageQueue, Place] = field(default_factory=dict)

    def of(self, queue: MessageQueue) -> Place:
        return self.named.get(queue, self.others)

    def of_new(self, queue: MessageQueue, since_ms: int | None) -> Place:
        """For a queue that the query, which began at ``since_ms``, has found later.

        Either all of its messages came later, or its broker was away; clocks may differ a little.
        """
        place = self.of(queue)
        if place.kind is not PlaceKind.LATEST:
            return place
        return EARLIEST if since_ms is None else Place(PlaceKind.TIME, max(0, since_ms - CLOCKS_DIFFER_MS))

    def has(self, kind: PlaceKind) -> bool:
        return any(place.kind is kind for place in (self.others, *self.named.values()))


def places_of(option: str, text: str, words: Sequence[str], others: Place) -> Places:
    """What the text of an option means; ``others`` is for the queues that JSON does not name.

    Raises ValueError that says what is wrong, and what could have stood there.
    """
    text = text.strip()
    if text.lower() in words:
        return Places(WORDS[text.lower()])
    try:
        if _looks_like_a_time(text):
            return Places(Place(PlaceKind.TIME, _milliseconds(text)))
        named = {
            MessageQueue(topic, broker, int(queue_id)): _place(value)
            for topic, brokers in json.loads(text).items()
            for broker, queues in brokers.items()
            for queue_id, value in queues.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        reason = "" if isinstance(error, json.JSONDecodeError) else f" ({error})"
        raise ValueError(
            f"option {option} must be {', '.join(words)}, a time such as {TIME_EXAMPLE}, or JSON such as "
            f'{{"topic": {{"broker-a": {{"0": 23}}}}}}; {text!r} is none of them{reason}'
        ) from error
    return Places(others, named)


def text_of(places: Places) -> str:
    """The one text for where a stream begins, however it was said; :func:`begun_at` reads it."""
    if not places.named:
        return str(_value_of(places.others, WORD_OF))
    tree: dict[str, dict[str, dict[str, int | str]]] = {}
    for queue, place in sorted(places.named.items()):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = _value_of(
            place, NUMBER_OF
        )
    return json.dumps(tree, sort_keys=True)


def begun_at(text: str) -> Places:
    """What a text of :func:`text_of` means. Raises ValueError."""
    return places_of("startingOffsets", text, tuple(WORDS), EARLIEST)


def _value_of(place: Place, plain: Mapping[PlaceKind, int | str]) -> int | str:
    match place.kind:
        case PlaceKind.OFFSET:
            return place.value
        case PlaceKind.TIME:
            return f"{place.value}ms"
    return plain[place.kind]


def _place(value: Any) -> Place:
    if isinstance(value, str):
        if not _looks_like_a_time(value):
            raise ValueError(f"{value!r} is neither an offset nor a time")
        return Place(PlaceKind.TIME, _milliseconds(value))
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no offset")
    if value < -2:
        raise ValueError(f"offset {value}: -2 is the beginning, -1 the end")
    kind = next((kind for kind, number in NUMBER_OF.items() if number == value), None)
    return Place(PlaceKind.OFFSET, value) if kind is None else Place(kind)


def _looks_like_a_time(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text) or _DATE.match(text))


def _milliseconds(text: str) -> int:
    """The first millisecond that is not before the time: a broker knows no finer ones."""
    if match := _NUMBER.fullmatch(text):
        return int(match[1]) * (1000 if match[2].lower() == "s" else 1)
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no time zone, and it is read on several machines: write {text}Z or {text}+01:00")
    passed = time - _EPOCH
    if _BELOW_MICROSECONDS.search(text):  # which a datetime cuts off
        passed += timedelta(microseconds=1)
    return -(-passed // timedelta(milliseconds=1))


async def resolve(admin: Admin, place: Place, queue: MessageQueue, group: str | None) -> int:
    """The offset that a place is in a queue now. Raises what the client raises."""
    match place.kind:
        case PlaceKind.OFFSET:
            return place.value
        case PlaceKind.LATEST:
            return await admin.max_offset(queue)
        case PlaceKind.TIME:
            return await offset_at(admin, queue, place.value)
        case PlaceKind.GROUP:
            assert group is not None
            committed = await admin.committed(group, queue)
            if committed is not None:
                return committed
    return await admin.min_offset(queue)


def within(option: str, place: Place, queue: MessageQueue, offset: int, end: int) -> int:
    """The offset that a place has come to, in a queue that ends at ``end``. Raises ValueError for one beyond it."""
    if offset <= end:
        return offset
    if place.kind is PlaceKind.OFFSET:
        raise ValueError(f"option {option} has offset {offset} for {in_words(queue)}, which ends at {end}")
    if place.kind is PlaceKind.GROUP:
        _log.warning(
            "%s: the group stands at %d, and the queue ends at %d: its store was made anew or has lost messages, and "
            "what is before its end is not read (startingOffsets=earliest reads it)",
            in_words(queue), offset, end,
        )  # fmt: skip
    return end


async def offset_at(admin: Admin, queue: MessageQueue, time_ms: int) -> int:
    """The offset of the first message stored at a time or later; the end of the queue when there is none.

    Apache 4.9 answers with the message that is nearest: it may be an older one, the last of all for a late time, and of
    several that were stored in the same millisecond it is any (``ConsumeQueue.getOffsetInQueueByTime``).
    """
    found = await admin.search_offset(queue, time_ms)
    stored = await _stored_at(admin, queue, found)
    if stored is not None and stored < time_ms:
        return found + 1

    async def is_late_enough(offset: int) -> bool:
        stored = await _stored_at(admin, queue, offset)
        return stored is not None and stored >= time_ms

    first, low, step = found, found, 1
    while low == first > 0:  # back in longer and longer steps, as long as they lead to one of that time or later
        low = max(0, first - step)
        if await is_late_enough(low):
            first, step = low, step * 2
    while first - low > 1:
        middle = (low + first) // 2
        if await is_late_enough(middle):
            first = middle
        else:
            low = middle
    return first


async def _stored_at(admin: Admin, queue: MessageQueue, offset: int) -> int | None:
    """When the message at an offset was stored (epoch ms); None where there is none that can be read."""
    result = await look_at(admin, queue, offset)
    times = (m.store_timestamp_ms for m in (result.messages if result else ()) if m.queue_offset == offset)
    return next(times, None)
