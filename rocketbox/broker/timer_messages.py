"""Timer messages on their way into the store and out: how one is parked in rmq_sys_wheel_timer, and when it is due.

A message with TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS (the first of them counts) is stored in queue 0 of
that topic, with its time in TIMER_OUT_MS and its own topic and queue in REAL_TOPIC and REAL_QID. One with
TIMER_DEL_UNIQKEY recalls another: it waits for the same time, and comes before it. Which of them wait is
``timer_wheel``'s part, delivering ``timers``'.

TIMER_OUT_MS is as Apache writes it: the time of delivery, rounded up to ``timer-precision-ms``, less that precision.
When a parked message is due follows from its record alone (:func:`due_ms`), whatever the precision was when it was
stored, and whoever stored it: never before the time its sender said, and at most the precision after it.

Source: Apache RocketMQ 5.x ``HookUtils.transformTimerMessage``, ``TimerMessageStore``, ``RecallMessageProcessor``.
"""

from __future__ import annotations

from dataclasses import replace

from rocketbox.broker.limits import LimitError
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.property_text import find_property, remove_properties, set_property
from rocketbox.clock import Clock
from rocketbox.errors import InvalidMessageError
from rocketbox.protocol.codes import RETRY_PREFIX, TIMER_TOPIC
from rocketbox.protocol.recall_handles import RecallHandle, encode_recall_handle
from rocketbox.protocol.stored_message import StoredMessage

__all__ = [
    "CORRECTION_MS",
    "TIMER_PROPERTIES",
    "TimerParking",
    "delete_key",
    "due_ms",
    "is_brought_forward",
    "is_rolled",
    "recall_handle_of",
    "recalled_key",
    "rolled",
    "without_timer",
]

TIMER_PROPERTIES = (b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
MOST_DIGITS = 19  # of a number of Java's long
APACHES_PRECISION_MS = 1000  # the coarsest: what was parked with it is due that long after TIMER_OUT_MS at the latest
CORRECTION_MS = 1000  # a clock put right by less is an ordinary correction: nobody's delay ends because of it
MOST_ROLL_TIMES = 1_000_000  # that are counted; a sender may have written any number, of any length
RECALLS_TO_MESSAGES = 2  # of those that wait, so many times the most messages may be there with what recalls them


def without_timer(properties: bytes) -> bytes:
    """The property text without what makes a message a timer message: a delay level wins over it."""
    return remove_properties(properties, TIMER_PROPERTIES)


def recalled_key(topic: str, uniq_key: bytes) -> bytes:
    """By what a message that waits is named in TIMER_DEL_UNIQKEY."""
    return b"%b+%b" % (topic.encode(), uniq_key)


def delete_key(properties: bytes) -> bytes | None:
    """The key of the message that this one recalls; None when it is a message to be delivered.

    Brokers before 5.3 write the bare UNIQ_KEY: then it is one of the same topic.
    """
    if b"TIMER_DEL_UNIQKEY\x01" not in properties:
        return None
    key = find_property(properties, b"TIMER_DEL_UNIQKEY")
    if not key or b"+" in key:
        return key or None
    return b"%b+%b" % (find_property(properties, b"REAL_TOPIC") or b"", key)


def due_ms(properties: bytes, stored_ms: int, now_ms: int, precision_ms: int = 1) -> int:
    """When a parked message is due (epoch ms); 0, so at once, when its properties do not say it.

    A delay that would end later than now and the delay itself was begun by a clock that was ahead, and is put right by
    now: it has ended. Of a message that recalls another, just before that one.
    """
    out = _number(find_property(properties, b"TIMER_OUT_MS"))
    if out is None:
        return 0
    if delete_key(properties) is not None:
        return out
    try:
        delay = _delay_ms(properties)
    except InvalidMessageError:  # somebody has sent it to this topic himself
        return 0
    if delay is not None:
        # Reckoned from when it was stored, but for store times that are ahead of the clock: they never go back.
        end = stored_ms + delay
        if is_rolled(properties):  # it was stored later than when it began to wait
            end = _number(find_property(properties, b"TIMER_DELIVER_MS")) or end
        exact = max(out + 1, min(end, out + APACHES_PRECISION_MS))
        if exact > now_ms + delay + CORRECTION_MS:
            return now_ms
    else:
        at = _number(find_property(properties, b"TIMER_DELIVER_MS"))
        exact = out + APACHES_PRECISION_MS if at is None else max(out + 1, min(at, out + APACHES_PRECISION_MS))
    return -(-exact // precision_ms) * precision_ms


def rolled(properties: bytes, due: int) -> bytes:
    """The property text with which a message that is due then is parked anew."""
    said = find_property(properties, b"TIMER_ROLL_TIMES") or b""
    times = int(said) if said.isdigit() and len(said) < len(str(MOST_ROLL_TIMES)) else 0
    text = set_property(properties, b"TIMER_ROLL_TIMES", b"%d" % (times + 1))
    return text if delete_key(properties) is not None else set_property(text, b"TIMER_DELIVER_MS", b"%d" % due)


def is_rolled(properties: bytes) -> bool:
    """Whether a parked message was parked anew."""
    return b"TIMER_ROLL_TIMES\x01" in properties


def is_brought_forward(properties: bytes, due: int) -> bool:
    """Whether a parked message is due before the time under which it was parked, so before what recalls it."""
    out = _number(find_property(properties, b"TIMER_OUT_MS"))
    return out is not None and due <= out


def recall_handle_of(stored: StoredMessage, broker_name: str) -> str | None:
    """What the sender of a message is told, by which it can be recalled; None of one that is not parked so.

    What comes back to a group's retry topic cannot be recalled.
    """
    properties = stored.properties
    if stored.topic != TIMER_TOPIC or delete_key(properties) is not None:
        return None
    topic = (find_property(properties, b"REAL_TOPIC") or b"").decode("utf-8", "replace")
    out, uniq_key = _number(find_property(properties, b"TIMER_OUT_MS")), find_property(properties, b"UNIQ_KEY")
    if out is None or not topic or not uniq_key or b" " in uniq_key or topic.startswith(RETRY_PREFIX):
        return None  # a handle's parts are separated by spaces
    return encode_recall_handle(RecallHandle(topic, broker_name, out + 1, uniq_key.decode("utf-8", "replace")))


class TimerParking:
    """Parks what is to be delivered at a time of its own."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        store = options.store
        self._enabled = store.timer_wheel_enable
        self._precision = store.timer_precision_ms
        self._most_delay = store.timer_max_delay_sec * 1000
        self._most = options.max_timer_messages
        self._clock = clock
        self.waiting = 0
        """How many wait now, those that recall others among them; kept up to date by who delivers them."""
        self.refused = 0
        """How many were not taken because too many waited."""

    def park(self, message: StoredMessage) -> StoredMessage:
        """The message as it is parked; itself when it is no timer message, or its time is over.

        Raises InvalidMessageError for a time that is none or too far away, or while timer messages are switched off,
        LimitError when too many wait.
        """
        properties = message.properties
        if message.topic == TIMER_TOPIC or find_property(properties, b"TIMER_OUT_MS") is not None:
            return message  # it was parked before, and is sent on
        delay = _delay_ms(properties)
        if delay is None and find_property(properties, b"TIMER_DELIVER_MS") is None:
            return message
        if not self._enabled:
            raise InvalidMessageError("accurate timer message is not enabled, timerWheelEnable is false")
        now = self._clock.time_ms()
        deliver = _number(find_property(properties, b"TIMER_DELIVER_MS")) if delay is None else now + delay
        if deliver is None:
            raise InvalidMessageError(
                "timer message illegal: TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS is not a number"
            )
        recalls = delete_key(properties) is not None
        if recalls:
            self._check_recall(message)
        if deliver <= now:
            if recalls:
                raise InvalidMessageError("timer message illegal: what recalls another has to come before its time")
            return message
        if deliver - now > self._most_delay:
            raise InvalidMessageError(
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{self._most_delay}ms (timer-max-delay-sec)"
            )
        most = self._most * RECALLS_TO_MESSAGES if recalls else self._most
        if self.waiting >= most:
            self.refused += 1
            raise LimitError(
                f"timer message is under flow control, {self.waiting} wait for their time", self._most,
                "max-timer-messages", soon=True,
            )  # fmt: skip
        out = -(-deliver // self._precision) * self._precision - self._precision
        if b"REAL_TOPIC\x01" in properties or b"REAL_QID\x01" in properties:
            properties = remove_properties(properties, (b"REAL_TOPIC", b"REAL_QID"))
        properties = b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02%b" % (
            out, message.topic.encode(), message.queue_id, properties,
        )  # fmt: skip
        return replace(message, topic=TIMER_TOPIC, queue_id=0, properties=properties)

    def _check_recall(self, message: StoredMessage) -> None:
        """Who may send to one topic may not recall what was sent to another."""
        key = find_property(message.properties, b"TIMER_DEL_UNIQKEY") or b""
        if b"+" in key and not key.startswith(message.topic.encode() + b"+"):
            raise InvalidMessageError(f"timer message illegal: it recalls no message of topic {message.topic}")


def _delay_ms(properties: bytes) -> int | None:
    """The delay that was asked for; None where a time was, or nothing. Raises InvalidMessageError for no number."""
    for name, unit in ((b"TIMER_DELAY_SEC", 1000), (b"TIMER_DELAY_MS", 1)):
        text = find_property(properties, name)
        if text is not None:
            number = _number(text)
            if number is None:
                raise InvalidMessageError(f"timer message illegal: {name.decode()} is not a number")
            return number * unit
    return None


def _number(text: bytes | None) -> int | None:
    """A number as Java's Long.parseLong reads it; None for anything else."""
    digits = (text or b"").lstrip(b"+-")
    if text is None or not digits.isdigit() or len(digits) > MOST_DIGITS or len(text) - len(digits) > 1:
        return None
    return int(text)
