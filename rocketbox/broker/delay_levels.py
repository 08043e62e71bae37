"""Delay levels on the way into the store: a message with one is parked in SCHEDULE_TOPIC_XXXX until its time comes.

Holds the transform of the put stage and the form in which a message is parked; delivering is ``delay``'s part, and the
form of those with a time of their own ``timer_messages``'.

Source: Apache RocketMQ 5.x ``HookUtils.handleScheduleMessage``, ``HookUtils.transformDelayLevelMessage``.
"""

from __future__ import annotations

from dataclasses import replace

from rocketbox.broker.property_text import find_property, remove_properties, set_property
from rocketbox.broker.put_stage import PutOrigin
from rocketbox.broker.store.dispatch import TRANSACTION, is_queued
from rocketbox.broker.timer_messages import TIMER_PROPERTIES, TimerParking, without_timer
from rocketbox.errors import InvalidMessageError
from rocketbox.protocol.codes import SCHEDULE_TOPIC
from rocketbox.protocol.stored_message import StoredMessage

__all__ = ["DelayLevels", "park", "read_level"]


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


class DelayLevels:
    """The transform: parks what has a level above 0, at the highest level there is if it asks for more, and what has a
    time of its own.

    What is delivered still has its level in its properties, as Apache leaves it, and goes on to its topic.
    """

    looks_at = frozenset({b"DELAY", *TIMER_PROPERTIES})

    def __init__(self, levels: int, timers: TimerParking) -> None:
        self._levels = levels
        self._timers = timers

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

    @staticmethod
    def _parked(message: StoredMessage, properties: bytes, level: int) -> StoredMessage:
        topic, queue_id, properties = park(message.topic, message.queue_id, properties, level)
        return replace(message, topic=topic, queue_id=queue_id, properties=properties)
