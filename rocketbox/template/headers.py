"""What stands around a payload: the destination text, headers as message properties, times of a send.

Source: rocketmq-spring 2.3 ``RocketMQUtil`` (destination, reserved names; it drops reserved headers silently, here
they are refused), Apache RocketMQ 5.x ``MessageStoreConfig.messageDelayLevel``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum

from pydantic import BaseModel

from rocketbox.client.delays import exact_level
from rocketbox.durations import parse_duration, parse_time
from rocketbox.errors import InvalidMessageError
from rocketbox.message import RESERVED_PROPERTIES, Property
from rocketbox.template.spring_headers import OF_THE_MESSAGE

__all__ = ["DeliveryTime", "delivery_time", "keys_of", "split_destination", "timeout_seconds", "to_properties"]

NO_TEXT = (bytes, bytearray, memoryview, Mapping, Sequence, Set, BaseModel)
"""What Python writes as text that nobody is to read."""

OPTION_INSTEAD = {
    Property.KEYS: "keys=",
    Property.TAGS: "tag=",
    Property.DELAY: "delay=",
    "TIMER_DELAY_SEC": "delay=",
    "TIMER_DELAY_MS": "delay=",
    "TIMER_DELIVER_MS": "deliver_at=",
    Property.SHARDING_KEY: "hash_key=",
    "rocketmq_KEYS": "keys=",
    "rocketmq_TAGS": "tag=",
    "rocketmq_TOPIC": "the destination",
    "rocketmq_DELAY": "delay=",
}

MOST_SECONDS = 0xFFFF_FFFF
"""That pydantic reads in a duration, 136 years."""

REFUSED = RESERVED_PROPERTIES.union(OPTION_INSTEAD, OF_THE_MESSAGE)
"""Names that a header cannot have."""


def split_destination(destination: str) -> tuple[str, str | None]:
    """Topic and tag of ``topic`` or ``topic:tag``, split at the first colon; InvalidMessageError for a blank part."""
    if not isinstance(destination, str):
        raise InvalidMessageError(
            f"destination is {destination!r}, of type {type(destination).__name__}; it must be text, 'topic' or "
            "'topic:tag'"
        )
    topic, colon, tag = destination.partition(":")
    if not topic.strip() or (colon and not tag.strip()):
        raise InvalidMessageError(f"destination {destination!r} is neither 'topic' nor 'topic:tag'")
    return topic, tag if colon else None


def keys_of(keys: str | Sequence[str] | None) -> tuple[str, ...]:
    """One key or several as a tuple; InvalidMessageError for a key with white space, which separates keys, and for
    what is no text.
    """
    words: tuple[object, ...] = (keys,) if isinstance(keys, str) else ()
    if keys and not words:
        if isinstance(keys, Mapping | bytes) or not isinstance(keys, Iterable):
            raise InvalidMessageError(f"keys is {keys!r}, of type {type(keys).__name__}; it must be a text or a list")
        words = tuple(keys)
    found: list[str] = []
    for word in words:
        if not isinstance(word, str):
            raise InvalidMessageError(f"key {word!r} is of type {type(word).__name__}; it must be text")
        if word.split() != [word]:
            raise InvalidMessageError(f"key {word!r} is blank or holds white space, by which RocketMQ separates keys")
        found.append(word)
    return tuple(found)


def to_properties(headers: Mapping[str, object]) -> dict[str, str]:
    """Headers as message properties, which are text: a bool as Java's ``true``/``false``, an Enum by its value, times
    as in ISO 8601, and whatever has a text of its own (numbers, UUID, Path) as that: ``Header`` reads them again.

    Raises InvalidMessageError for a name that RocketMQ keeps for itself, for None or empty text, which a property
    cannot hold, and for what has no text: bytes, collections, models.
    """
    properties: dict[str, str] = {}
    if not isinstance(headers, Mapping):
        raise InvalidMessageError(f"headers is {headers!r}, of type {type(headers).__name__}; it must be a mapping")
    for name, value in headers.items():
        if type(name) is not str and not isinstance(name, str):
            raise InvalidMessageError(f"a header's name is {name!r}, of type {type(name).__name__}; it must be text")
        if name in REFUSED:
            instead = OPTION_INSTEAD.get(name)
            raise InvalidMessageError(
                f"header {name!r} is a property of RocketMQ's own" + (f"; use {instead}" if instead else "")
            )
        text = value if type(value) is str else _text(name, value)
        if not name or not text:
            raise InvalidMessageError(f"header {name!r} is {value!r}: a property has a name and a value; leave it out")
        properties[name] = text
    return properties


def _text(name: str, value: object) -> str | None:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return None
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        return _iso_duration(value)
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, NO_TEXT) or type(value).__str__ is object.__str__:
        raise InvalidMessageError(
            f"header {name!r} is of type {type(value).__name__}, and a header is text; write which text it is to be"
        )
    return str(value)


def _iso_duration(time_: timedelta) -> str:
    """As in ISO 8601: in seconds, and of a time that has more of them than readers take in days as well."""
    microseconds = abs(time_) // timedelta(microseconds=1)
    days, rest = divmod(microseconds, 86_400_000_000) if microseconds > MOST_SECONDS * 1_000_000 else (0, microseconds)
    seconds = f"{rest // 1_000_000}.{rest % 1_000_000:06d}".rstrip("0").rstrip(".")
    return f"{'-' if time_ < timedelta(0) else ''}P{f'{days}D' if days else ''}T{seconds}S"


@dataclass(frozen=True, slots=True)
class DeliveryTime:
    """When a message is delivered: the fields of :class:`~rocketbox.Message` that say it."""

    delay_level: int = 0
    delay: timedelta | None = None
    deliver_at: datetime | None = None


def delivery_time(
    delay: timedelta | str | None, delay_level: int | None, deliver_at: datetime | None
) -> DeliveryTime | None:
    """What the options of a send say, a delay that is just a level as that level; None where they say nothing.

    Raises InvalidMessageError for what is no time, and for more than one of them.
    """
    if delay is None and delay_level is None and deliver_at is None:
        return None
    if (delay is not None) + (delay_level is not None) + (deliver_at is not None) > 1:
        raise InvalidMessageError("a message has one of delay=, delay_level= and deliver_at=, not several")
    if delay_level is not None:
        return DeliveryTime(delay_level=delay_level)
    if deliver_at is not None:
        return DeliveryTime(deliver_at=deliver_at)
    try:
        waits = parse_duration(delay, bare_numbers=False)
    except ValueError as error:
        raise InvalidMessageError(f"delay={delay!r}: {error}, or a timedelta") from None
    if waits < timedelta(0):
        raise InvalidMessageError(f"delay={delay!r} is negative; it must be a time from now on")
    level = exact_level(waits)
    return DeliveryTime(delay_level=level) if level or not waits else DeliveryTime(delay=waits)


def timeout_seconds(timeout: timedelta | str | float | None) -> float | None:
    """The seconds that ``timeout`` means: a timedelta, text with a unit, or already a number of them.

    Raises InvalidMessageError for text that is no time.
    """
    if timeout is None or isinstance(timeout, int | float):
        return timeout
    try:
        return parse_time(timeout).total_seconds()
    except ValueError as error:
        raise InvalidMessageError(f"timeout={timeout!r}: {error}, a timedelta, or a number of seconds") from None
