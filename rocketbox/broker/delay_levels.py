"""Delay levels on the way into the store: a message with one is parked in SCHEDULE_TOPIC_XXXX until its time comes.

Holds the transform of the put stage and the form in which a message is parked; delivering is ``delay``'s part, and the
form of those with a time of their own ``timer_messages``'.

Store times never go back: after a clock that was ahead is put right, everything is stored under the same time until the
clock has caught up, which can be months. What is parked meanwhile says itself when that was (``__PARKED_MS__``).

Source: Apache RocketMQ 5.x ``HookUtils.handleScheduleMessage``, ``HookUtils.transformDelayLevelMessage``.
"""

from __future__ import annotations

from dataclasses import replace

from rocketbox.broker.property_text import add_property, find_property, remove_properties, set_property
from rocketbox.broker.put_stage import PutOrigin
from rocketbox.broker.store.dispatch import TRANSACTION, is_queued
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.timer_messages import CORRECTION_MS, TIMER_PROPERTIES, TimerParking, without_timer
from rocketbox.clock import Clock
from rocketbox.errors import InvalidMessageError
from rocketbox.message import MAX_PROPERTIES_BYTES
from rocketbox.protocol.codes import SCHEDULE_TOPIC
from rocketbox.protocol.stored_message import CHECKSUM_BYTES, StoredMessage

__all__ = ["DelayLevels", "park", "parked_ms", "read_level", "without_park_time"]

_PARKED = b"__PARKED_MS__"
LONGEST_TIME = 18  # digits


def read_level(properties: bytes) -> int:
    """The delay level in a property text; 0 without one. Raises InvalidMessageError when it is no number."""
    value = find_property(properties, b"DELAY") if b"DELAY\x01" in properties else None
    if value is None:
        return 0
    try:
        return int(value or 0)
    except ValueError as error:
        raise InvalidMessageError(f"the delay level is {value!r}, not a number") from error


def park(topic: str, queue_id: int, properties: bytes, level: int) -> tuple[str, int, bytes]:
    """Topic, queue and properties under which a message for (topic, queue) waits for its level's delay."""
    if b"REAL_TOPIC\x01" in properties or b"REAL_QID\x01" in properties:
        properties = remove_properties(properties, (b"REAL_TOPIC", b"REAL_QID"))
    properties = set_property(properties, b"DELAY", b"%d" % level)
    return (
        SCHEDULE_TOPIC,
        level - 1,
        b"%bREAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (properties, topic.encode(), queue_id),
    )


def parked_ms(properties: bytes) -> int | None:
    """When a parked message was, where its store time does not tell it."""
    value = find_property(properties, _PARKED)
    return int(value) if value is not None and value.isdigit() and len(value) <= LONGEST_TIME else None


def without_park_time(properties: bytes) -> bytes:
    """The property text without that."""
    return remove_properties(properties, (_PARKED,)) if _PARKED in properties else properties


class DelayLevels:
    """The transform: parks what has a level above 0, at the highest level there is if it asks for more, and what has a
    time of its own.

    What is delivered still has its level in its properties, as Apache leaves it, and goes on to its topic.
    """

    looks_at = frozenset({b"DELAY", *TIMER_PROPERTIES})

    def __init__(self, levels: int, timers: TimerParking, store: MessageStore, clock: Clock) -> None:
        self._levels = levels
        self._timers = timers
        self._store = store
        self._clock = clock

    def __call__(self, message: StoredMessage, origin: PutOrigin) -> StoredMessage:
        properties = message.properties
        if b"TIMER_DEL" in properties:
            return self._with_timer(message, origin)
        if b"DELAY\x01" not in properties or origin is PutOrigin.DELIVERY or origin is PutOrigin.BATCH:
            return message  # a batch with a level is refused before; Apache does not look at its single messages either
        level = min(read_level(properties), self._levels)
        if level <= 0 or (message.sys_flag & TRANSACTION and not is_queued(message.sys_flag)):
            return message
        return self._parked(message, properties, level)

    def _with_timer(self, message: StoredMessage, origin: PutOrigin) -> StoredMessage:
        """One with a time of its own, or the name of one: a level wins over it."""
        if origin is PutOrigin.DELIVERY or origin is PutOrigin.BATCH:
            return message
        if message.sys_flag & TRANSACTION and not is_queued(message.sys_flag):
            return message
        level = min(read_level(message.properties), self._levels)
        if level <= 0:
            return self._timers.park(message)
        return self._parked(message, without_timer(message.properties), level)

    def _parked(self, message: StoredMessage, properties: bytes, level: int) -> StoredMessage:
        properties = without_park_time(properties)  # another broker's, where it was sent on
        topic, queue_id, properties = park(message.topic, message.queue_id, properties, level)
        now = self._clock.time_ms()
        if self._store.last_timestamp_ms > now + CORRECTION_MS:
            said = add_property(properties, _PARKED, b"%d" % now)
            if len(said) + CHECKSUM_BYTES <= MAX_PROPERTIES_BYTES:
                properties = said
        return replace(message, topic=topic, queue_id=queue_id, properties=properties)
