"""What stands around a payload: the destination text, headers as message properties, times of a send.

Source: rocketmq-spring 2.3 ``RocketMQUtil`` (destination, reserved names; it drops reserved headers silently, here
they are refused), Apache RocketMQ 5.x ``MessageStoreConfig.messageDelayLevel``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import Enum

from rocketbox.durations import parse_duration, parse_time
from rocketbox.errors import InvalidMessageError
from rocketbox.message import DELAY_LEVEL_SECONDS, DELAY_LEVELS, RESERVED_PROPERTIES, Property

__all__ = ["delay_level", "keys_of", "split_destination", "timeout_seconds", "to_properties"]

OPTION_INSTEAD = {
    Property.KEYS: "keys=",
    Property.TAGS: "tag=",
    Property.DELAY: "delay=",
    Property.SHARDING_KEY: "hash_key=",
}


def split_destination(destination: str) -> tuple[str, str | None]:
    """Topic and tag of ``topic`` or ``topic:tag``, split at the first colon; InvalidMessageError for a blank part."""
    topic, colon, tag = destination.partition(":")
    if not topic.strip() or (colon and not tag.strip()):
        raise InvalidMessageError(f"destination {destination!r} is neither 'topic' nor 'topic:tag'")
    return topic, tag if colon else None


def keys_of(keys: str | Sequence[str] | None) -> tuple[str, ...]:
    """One key or several as a tuple; InvalidMessageError for a key with white space, which separates keys."""
    words = (keys,) if isinstance(keys, str) else tuple(keys or ())
    for word in words:
        if word.split() != [word]:
            raise InvalidMessageError(f"key {word!r} is blank or holds white space, by which RocketMQ separates keys")
    return words


def to_properties(headers: Mapping[str, object]) -> dict[str, str]:
    """Headers as message properties: text as it is, bool as Java's ``true``/``false``, an Enum by its value.

    Raises InvalidMessageError for a name that RocketMQ keeps for itself, and for None or empty text, which a property
    cannot hold.
    """
    properties = {}
    for name, value in headers.items():
        if name in RESERVED_PROPERTIES or name in OPTION_INSTEAD:
            instead = OPTION_INSTEAD.get(name)
            raise InvalidMessageError(
                f"header {name!r} is a property of RocketMQ's own" + (f"; use {instead}" if instead else "")
            )
        text = _text(value)
        if not name or not text:
            raise InvalidMessageError(f"header {name!r} is {value!r}: a property has a name and a value; leave it out")
        properties[name] = text
    return properties


def _text(value: object) -> str | None:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def delay_level(delay: timedelta | str | None) -> int:
    """The level 1..18 that is exactly ``delay``, a timedelta or text with a unit; 0 for none.

    Raises InvalidMessageError, naming the levels, for another time, and for what is none.
    """
    if delay is None:
        return 0
    try:
        seconds = parse_duration(delay, bare_numbers=False).total_seconds()
    except ValueError as error:
        raise InvalidMessageError(f"delay={delay!r}: {error}, or a timedelta") from None
    if not seconds:
        return 0
    try:
        return DELAY_LEVEL_SECONDS.index(seconds) + 1
    except ValueError:
        raise InvalidMessageError(
            f"a delay of {delay} is none of RocketMQ's delay levels; take one of {DELAY_LEVELS}"
        ) from None


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
