"""When a message is to be delivered: what a sender says, as properties.

A delay that is just one of RocketMQ's levels is that level, which every broker knows. Any other delay, and a time of
delivery, is a timer property: brokers from 5.0 on deliver then. Older ones would deliver at once and say nothing, so
they are never sent one (``timer_support``).

Source: Apache RocketMQ 5.x ``Message.setDelayTimeMs``, ``setDeliverTimeMs``, ``HookUtils.checkIfTimerMessage``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar, Self

from rocketbox.errors import InvalidMessageError
from rocketbox.message import DELAY_LEVEL_SECONDS, MAX_PROPERTIES_BYTES, Message
from rocketbox.protocol.prepared_sends import PLAIN_NUMBERS, SendRequest

__all__ = ["TimerSendRequest", "exact_level", "is_timed", "milliseconds", "time_properties"]

MAX_LEVEL = 2**31 - 1  # brokers read it as an int of Java's
MAX_MS = 2**62
ADDED_BY_BROKERS = 512  # bytes, to the properties, until the time has come: where it is to go, its cluster, its times
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimerSendRequest(SendRequest):
    """A message for which only brokers will do that know timer properties.

    Raises InvalidMessageError for properties that leave no room for what brokers add to them: Apache's (5.5.0) takes
    such a message, and cannot put it into its topic when its time has come.
    """

    __slots__ = ()

    timer: ClassVar[bool] = True

    def __init__(
        self, topic: str, body: bytes, properties: bytes, msg_id: str, born_ms: int, *, numbers: bytes = PLAIN_NUMBERS
    ) -> None:
        most = MAX_PROPERTIES_BYTES - ADDED_BY_BROKERS
        if len(properties) > most:
            raise InvalidMessageError(
                f"the message's properties take {len(properties)} bytes; at most {most} are allowed where it has a "
                "time of delivery, since the broker adds to them"
            )
        super().__init__(topic, body, properties, msg_id, born_ms, numbers=numbers)

    @classmethod
    def of(cls, request: SendRequest) -> Self:
        """The same for a request whose body is compressed, or will be."""
        timed = cls(
            request.topic, request.body, request.properties, request.msg_id, request.born_ms, numbers=request.numbers
        )
        timed.packing, timed.flag, timed.sys_flag = request.packing, request.flag, request.sys_flag
        return timed


def exact_level(delay: timedelta) -> int:
    """The level that is just as long as ``delay``; 0 when none is."""
    seconds = delay.total_seconds()
    return DELAY_LEVEL_SECONDS.index(seconds) + 1 if seconds in DELAY_LEVEL_SECONDS else 0


def milliseconds(delay: timedelta) -> int:
    """Whole milliseconds that are not shorter than ``delay``."""
    return delay // _MILLISECOND + bool(delay % _MILLISECOND)


def is_timed(message: Message) -> bool:
    """Whether it takes a broker that knows timer properties."""
    if message.deliver_at is not None:
        return True
    delay = message.delay
    return delay is not None and bool(delay) and not exact_level(delay)


def time_properties(message: Message) -> str:
    """What a message says of its delivery, as property text; empty for one that says nothing.

    Raises InvalidMessageError for what is no level, no delay or no time, and for more than one of them.
    """
    level, delay, deliver_at = message.delay_level, message.delay, message.deliver_at
    if (level != 0) + (delay is not None) + (deliver_at is not None) > 1:
        raise InvalidMessageError(
            f"the message to {message.topic!r} has more than one of delay_level, delay and deliver_at; give one of them"
        )
    if deliver_at is not None:
        return f"TIMER_DELIVER_MS\x01{_epoch_ms(deliver_at)}\x02"
    if delay is not None:
        if not isinstance(delay, timedelta) or delay < timedelta(0) or milliseconds(delay) > MAX_MS:
            raise InvalidMessageError(f"delay is {delay!r}; it must be a timedelta that is not negative")
        if not delay:
            return ""
        level = exact_level(delay)
        return f"DELAY\x01{level}\x02" if level else f"TIMER_DELAY_MS\x01{milliseconds(delay)}\x02"
    if not isinstance(level, int) or isinstance(level, bool) or not 0 <= level <= MAX_LEVEL:
        raise InvalidMessageError(f"delay_level is {level}; it must be 0 (none) or a level from 1 on")
    return f"DELAY\x01{level}\x02"


def _epoch_ms(deliver_at: datetime) -> int:
    if not isinstance(deliver_at, datetime) or deliver_at.utcoffset() is None:
        raise InvalidMessageError(
            f"deliver_at is {deliver_at!r}; it must be a datetime with a time zone: datetime(2030, 1, 1, tzinfo=UTC)"
        )
    return max(0, milliseconds(deliver_at - _EPOCH))
