"""What was parked under another topic goes on to its own: the last step of delayed and timer messages.

When it is due is ``delay``'s and ``timers``' part. What cannot be delivered goes to :data:`UNDELIVERED_TOPIC`, as it
was parked; what is due for a deleted topic is dropped.

Source: Apache RocketMQ 5.x ``ScheduleMessageService.messageTimeUp``, ``TimerMessageStore.convertMessage``.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from rocketbox.broker.delay_levels import without_park_time
from rocketbox.broker.limits import LimitError
from rocketbox.broker.property_text import find_property, remove_properties
from rocketbox.broker.put_stage import PutOrigin, PutStage
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.topics import TopicTable
from rocketbox.clock import Clock
from rocketbox.errors import InvalidMessageError
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import SEND_FORBIDDEN_TOPICS, UNDELIVERED_TOPIC
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.protocol.tags import is_valid_name
from rocketbox.rare_log import RareLog

__all__ = ["LONGEST_SLEEP", "RETRY_INTERVAL", "Unparking", "in_queue_there_is", "real_topic", "record_of"]

_log = logging.getLogger(__name__)

LONGEST_SLEEP = 10.0  # seconds of a delivery; a clock that was put right meanwhile is looked at again
RETRY_INTERVAL = 1.0  # seconds until a delivery tries again, while the store has no room
LONGEST_SHOWN = 100  # characters of a wrong name that the log repeats


def record_of(message: MessageExt, topic: str, queue_id: int, properties: bytes, reconsume_times: int) -> StoredMessage:
    """A new record with what ``message`` holds, under another topic and queue and with other properties."""
    fields = message.fields
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=(fields[9], fields[10]),
        reconsume_times=reconsume_times,
    )


class Unparking:
    """Stores messages under their own topics. ``kind`` is what the log calls them: ``delayed``."""

    def __init__(self, store: MessageStore, puts: PutStage, topics: TopicTable, clock: Clock, kind: str) -> None:
        self._store = store
        self._puts = puts
        self._topics = topics
        self._clock = clock
        self._kind = kind
        self._log = RareLog(_log)
        self.undelivered = 0
        """How many messages could not be delivered, in this run."""
        self.dropped = 0
        """How many were not delivered because their topic was deleted, in this run."""

    def put(self, message: MessageExt, added: bytes = b"") -> int | None:
        """Store the message under its topic; where it ends in the log, None when it is not stored anywhere.

        With its topic a message is deleted that was waiting for it, unless the topic was made again by now. What is of
        a topic that merely is not in the table is stored: it is read when the topic is made. What is for a queue that
        the topic has no more goes to one that it has. ``added`` are properties that it gets. Raises StoreError when the
        store does not take it now.
        """
        try:
            unparked = _unparked(message, added)
            topic = self._topics.get(unparked.topic)
            if topic is None and self._store.was_deleted(unparked.topic):
                self._drop(message, unparked.topic)
                return None
            unparked = in_queue_there_is(unparked, topic)
            return self._puts.put(unparked, PutOrigin.DELIVERY).end_offset
        except InvalidMessageError as error:
            reason = error
        self.show_undelivered()
        text = remove_properties(message.raw_properties, (b"__CRC32#",))
        kept = record_of(message, UNDELIVERED_TOPIC, 0, text, message.reconsume_times)
        end_offset: int | None = None
        where = f"kept in topic {UNDELIVERED_TOPIC}"
        try:
            end_offset = self._puts.put(kept, PutOrigin.DELIVERY).end_offset
        except InvalidMessageError as error:
            where = f"left in {message.topic}, since it cannot be stored under another topic either ({error})"
        self.undelivered += 1
        _log.error(
            "the %s message %s cannot be delivered and is %s: %s", self._kind, message.offset_msg_id, where, reason
        )
        return end_offset

    def _drop(self, message: MessageExt, topic: str) -> None:
        self.dropped += 1
        self._log.tell(
            logging.WARNING, self._clock.monotonic(), "deleted",
            "the %s message %s is not delivered: topic %s was deleted", self._kind, message.offset_msg_id, topic,
        )  # fmt: skip

    def show_undelivered(self) -> None:
        """Have the topic of what cannot be delivered known, so that it can be read."""
        try:
            self._topics.create_for_group(UNDELIVERED_TOPIC, 1)
        except LimitError as error:  # the messages are stored all the same; the next start tries again
            _log.error("what could not be delivered cannot be read now: %s", error)


def in_queue_there_is(message: StoredMessage, topic: TopicConfig | None) -> StoredMessage:
    """The message; in another queue of its topic when that has no such queue any more, where nobody would read it."""
    queue_id = message.queue_id
    if topic is None or queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
        return message
    return replace(message, queue_id=queue_id % max(1, min(topic.read_queue_nums, topic.write_queue_nums)))


def real_topic(message: MessageExt) -> tuple[str, int]:
    """Topic and queue that a delayed or half message is for. Raises InvalidMessageError when it does not say so."""
    text = message.raw_properties
    topic, queue = find_property(text, b"REAL_TOPIC"), find_property(text, b"REAL_QID") or b"0"
    if topic is None:
        raise InvalidMessageError("it has no property REAL_TOPIC")
    try:
        name, queue_id = topic.decode(), int(queue)
    except ValueError as error:
        raise InvalidMessageError(f"its properties REAL_TOPIC and REAL_QID are no topic and queue: {error}") from error
    if not is_valid_name(name):
        raise InvalidMessageError(f"its property REAL_TOPIC is no topic's name: {name[:LONGEST_SHOWN]!r}")
    return name, queue_id


def _unparked(message: MessageExt, added: bytes) -> StoredMessage:
    """The message under its own topic; its property text stays as Apache leaves it, DELAY included."""
    name, queue_id = real_topic(message)
    if name in SEND_FORBIDDEN_TOPICS:  # somebody has parked it himself: it would be due again, or be taken for a mark
        raise InvalidMessageError(f"its property REAL_TOPIC is {name}, which is the broker's own")
    text = without_park_time(remove_properties(message.raw_properties, (b"__CRC32#",))) + added
    return record_of(message, name, queue_id, text, message.reconsume_times)
