"""Putting messages: records are encoded for the log's end and appended to its buffer; ``log_writer`` does the rest.

A message is put by itself (:meth:`StorePutter.put`), a batch into one queue and one file, or a run: messages of one
connection, of as many topics and queues as it likes, that go the ordinary way. What a run's messages have in common
with those before them in their queue is looked up (:class:`PutLane`), and much is done once for each run. The records
are the same, byte for byte. A run ends where something is out of the ordinary: that message is put by itself, which
does, or refuses, whatever is right.

Source: Apache RocketMQ 5.5 ``DefaultMessageStore.asyncPutMessage``, ``CommitLog.asyncPutMessage``.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from typing import NamedTuple

from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import ConsumeQueue
from rocketbox.broker.store.dispatch import Derived, is_queued
from rocketbox.broker.store.log_writer import LogWriter
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.records import RecordKeys, find_keys, seems_damaged
from rocketbox.broker.store.state import StoreState
from rocketbox.broker.store.topic_deletion import TopicDeletion
from rocketbox.clock import Clock
from rocketbox.errors import InvalidMessageError, NotStartedError, StoreBusyError, StoreError, StoreFullError
from rocketbox.message import MAX_PROPERTIES_BYTES, format_offset_msg_id
from rocketbox.protocol.stored_message import CHECKSUM_BYTES, RecordTemplate, StoredMessage, encode_stored_message

__all__ = ["LaneMessage", "PutLane", "PutResult", "RunResult", "StorePutter"]

IPV4_BYTES = 4
LONGEST_PROPERTIES = MAX_PROPERTIES_BYTES - CHECKSUM_BYTES


class PutResult(NamedTuple):  # not a dataclass: one is made for each message, in a fifth of the time
    """Where a message, or a batch, was put. It is durable when the log is up to ``end_offset``."""

    commit_log_offset: int
    end_offset: int
    queue_offset: int
    """The (first) message's place in its queue."""
    store_timestamp_ms: int
    offsets: tuple[int, ...]
    """The commit-log offsets of all messages."""
    store_host: tuple[bytes, int]

    @property
    def msg_id(self) -> str:
        """The offset ids of the messages, joined with commas."""
        ip, port = self.store_host
        return ",".join([format_offset_msg_id(ip, port, offset) for offset in self.offsets])


class RunResult(NamedTuple):
    """Where messages of a run were put."""

    places: list[tuple[int, int]]
    """The commit-log offset and the queue offset of each, from the first on; others were not put."""
    end_offset: int
    """They are durable when the log is up to here."""
    store_host: tuple[bytes, int]


class PutLane(NamedTuple):
    """What messages have in common that go into one queue and differ in times, body and properties only."""

    queue: ConsumeQueue
    topic: str
    sys_flag: int
    template: RecordTemplate


LaneMessage = tuple[PutLane, int, bytes, bytes, RecordKeys]
"""A message of a run: its lane, born time (epoch ms), body, properties that end with 0x02, and the keys in them."""


class StorePutter:
    """The puts of one store; :meth:`begin` says what is put into. All methods are called in the loop."""

    def __init__(self, options: StoreOptions, clock: Clock, store_host: tuple[str | bytes, int]) -> None:
        self.is_open = False
        """Whether anything may be put."""
        self.last_timestamp = 0
        """The store time (epoch ms) of the newest message: what comes later is not older."""
        self.refused_busy = self.refused_full = 0
        """How many puts were refused because too many bytes waited, and because the disk had no room."""
        self.store_host = store_host
        self._clock = clock
        self._max_message_size = options.max_message_size
        self._most_waiting = options.max_waiting_bytes
        self._crc = options.enabled_append_prop_crc
        self._log: CommitLog
        self._derived: Derived
        self._writer: LogWriter
        self._state: StoreState
        self._deletion: TopicDeletion

    def begin(
        self, log: CommitLog, derived: Derived, writer: LogWriter, state: StoreState, deletion: TopicDeletion
    ) -> None:
        """What is put into from now on."""
        self._log, self._derived, self._writer, self._state, self._deletion = log, derived, writer, state, deletion

    @property
    def store_host(self) -> tuple[bytes, int]:
        """The address written into records: IP of 4 or 16 bytes, port. May be set as text, and while it runs."""
        return self._store_host

    @store_host.setter
    def store_host(self, host: tuple[str | bytes, int]) -> None:
        ip, port = host
        self._store_host = (ip if isinstance(ip, bytes) else ipaddress.ip_address(ip).packed, port)

    def check_open(self, size: int = 0) -> None:
        """Raise what :meth:`put` raises when nothing, or no message of ``size`` bytes more, may be put now."""
        if self._state.refuses:
            raise self._refused()
        if not self.is_open:
            raise NotStartedError("the message store")
        waiting = self._log.end - self._writer.durable
        if waiting and waiting + size > self._most_waiting:
            self.refused_busy += 1
            raise StoreBusyError(waiting, self._most_waiting, "max-waiting-bytes")

    def _refused(self) -> StoreError:
        error = self._state.error()
        assert error is not None
        self.refused_full += isinstance(error, StoreFullError)
        return error

    # --- one ---

    def put(self, message: StoredMessage, accepted: bool = False) -> PutResult:
        """Append a message; it is safe, and readable, when :meth:`MessageStore.when_durable` says so.

        ``accepted``: it was stored before under another topic, so max-message-size, lowered since, does not refuse it.
        Its queue offset, commit-log offset, store time and store host are set here. Raises InvalidMessageError for a
        message that cannot be stored, StoreFullError and StoreBusyError when it may be sent later, StoreFailedError
        when the store takes no more.
        """
        self.check_open(len(message.body))
        if self._deletion.topics:
            self._deletion.check(message.topic)
        queue = self._derived.queue(message.topic, message.queue_id)
        if not accepted:
            self._check_size(message)
        now = self._now()
        record, queue_offset = self._encode(message, queue.next_offset, now)
        if not self._log.fits(len(record)):
            self._log.roll()
            record, queue_offset = self._encode(message, queue.next_offset, now)
        offset = self._append(queue, message, record, now)
        if self._writer.idle is not None:
            self._writer.wake()
        return PutResult(offset, self._log.end, queue_offset, now, (offset,), self._store_host)

    def _now(self) -> int:
        """The time, which in the log never goes back."""
        now = self._clock.time_ms()
        if now < self.last_timestamp:
            return self.last_timestamp
        self.last_timestamp = now
        return now

    def _check_size(self, message: StoredMessage) -> None:
        if len(message.body) > self._max_message_size:
            raise InvalidMessageError(
                f"a body of {len(message.body)} bytes; max-message-size is {self._max_message_size}"
            )

    def _encode(self, message: StoredMessage, queue_offset: int, now: int, distance: int = 0) -> tuple[bytes, int]:
        """The record for the log's end (or ``distance`` behind it), and its queue offset."""
        if message.sys_flag and not is_queued(message.sys_flag):
            queue_offset = 0
        place = (queue_offset, self._log.end + distance, now, self._store_host)
        try:
            record = encode_stored_message(message, property_crc=self._crc, place=place)
            if not self._crc and seems_damaged(record, message.properties):
                record = encode_stored_message(message, property_crc=True, place=place)
            return record, queue_offset
        except struct.error as error:
            raise InvalidMessageError(f"a number of the message is out of its range: {error}") from error

    def _append(self, queue: ConsumeQueue, message: StoredMessage, record: bytes, now: int) -> int:
        offset = self._log.append(record)
        queued = is_queued(message.sys_flag)
        queue.next_offset += queued
        properties = message.properties
        self._writer.appended.append(
            (
                queue if queued else None, offset, now, message.topic, message.sys_flag, properties, record,
                find_keys(properties),
            )
        )  # fmt: skip
        return offset

    # --- a batch ---

    def put_batch(self, messages: Sequence[StoredMessage]) -> PutResult:
        """Append messages of one queue one behind the other, all in one commit-log file. Raises as :meth:`put` does."""
        self.check_open(sum([len(message.body) for message in messages]))
        if not messages:
            raise InvalidMessageError("a batch holds at least one message")
        first = messages[0]
        if self._deletion.topics:
            self._deletion.check(first.topic)
        if any(message.topic != first.topic or message.queue_id != first.queue_id for message in messages):
            raise InvalidMessageError("the messages of a batch belong to one queue")
        for message in messages:
            self._check_size(message)
        queue = self._derived.queue(first.topic, first.queue_id)
        now = self._now()
        records = self._encode_batch(messages, queue, now)
        if not self._log.fits(sum(map(len, records))):
            self._log.roll()
            records = self._encode_batch(messages, queue, now)
        queue_offset = queue.next_offset if is_queued(first.sys_flag) else 0
        offsets = tuple(
            [self._append(queue, message, record, now) for message, record in zip(messages, records, strict=True)]
        )
        if self._writer.idle is not None:
            self._writer.wake()
        return PutResult(offsets[0], self._log.end, queue_offset, now, offsets, self._store_host)

    def _encode_batch(self, messages: Sequence[StoredMessage], queue: ConsumeQueue, now: int) -> list[bytes]:
        records: list[bytes] = []
        queue_offset, distance = queue.next_offset, 0
        for message in messages:
            records.append(self._encode(message, queue_offset, now, distance)[0])
            distance += len(records[-1])
            queue_offset += is_queued(message.sys_flag)
        return records

    # --- a few that belong together ---

    def put_together(self, messages: Sequence[StoredMessage]) -> list[PutResult]:
        """Append messages of any queues one behind the other, all in one commit-log file, as :meth:`put` does.

        They are taken back together or not at all; a crash may leave the first of them without those behind it, and
        then nothing stands behind the last that is left. They were stored before: max-message-size does not count.
        Raises as :meth:`put` does; then none was put.
        """
        self.check_open(sum([len(message.body) for message in messages]))
        if self._deletion.topics:
            for message in messages:
                self._deletion.check(message.topic)
        queues = [self._derived.queue(message.topic, message.queue_id) for message in messages]
        now = self._now()
        records = self._encode_together(messages, queues, now)
        if not self._log.fits(sum([len(record) for record, _ in records])):
            self._log.roll()
            records = self._encode_together(messages, queues, now)
        results = []
        for queue, message, (record, queue_offset) in zip(queues, messages, records, strict=True):
            offset = self._append(queue, message, record, now)
            results.append(PutResult(offset, self._log.end, queue_offset, now, (offset,), self._store_host))
        if self._writer.idle is not None:
            self._writer.wake()
        return results

    def _encode_together(
        self, messages: Sequence[StoredMessage], queues: Sequence[ConsumeQueue], now: int
    ) -> list[tuple[bytes, int]]:
        records: list[tuple[bytes, int]] = []
        before: dict[int, int] = {}  # of the same queue, by its identity
        distance = 0
        for queue, message in zip(queues, messages, strict=True):
            earlier = before.get(id(queue), 0)
            records.append(self._encode(message, queue.next_offset + earlier, now, distance))
            distance += len(records[-1][0])
            before[id(queue)] = earlier + is_queued(message.sys_flag)
        return records

    # --- a run ---

    def lane(self, message: StoredMessage) -> PutLane | None:
        """The lane of messages as this one; None when they are to be put one by one.

        It may be kept until the topic is deleted. Raises InvalidMessageError for a queue that cannot be.
        """
        if not (self._crc and is_queued(message.sys_flag)):
            return None
        try:
            template = RecordTemplate(message)
        except struct.error:
            return None
        queue = self._derived.queue(message.topic, message.queue_id)
        return PutLane(queue, message.topic, message.sys_flag, template)

    def put_run(self, messages: Sequence[LaneMessage], born_host: tuple[bytes, int]) -> RunResult:
        """Append messages of one sender, in order.

        Those that were put may be fewer than were given, or none: the next one is for :meth:`put`, which raises, or
        does, what is right. Never raises.
        """
        places: list[tuple[int, int]] = []
        store_host, log, writer = self._store_host, self._log, self._writer
        if (
            self._state.refuses
            or not self.is_open
            or self._deletion.topics
            or len(born_host[0]) != IPV4_BYTES
            or len(store_host[0]) != IPV4_BYTES
        ):
            return RunResult(places, log.end, store_host)
        now = self._now()
        hosts = RecordTemplate.hosts(born_host, now, store_host)
        offset, limit = log.end, min(log.file_limit, writer.durable + self._most_waiting)
        most, appended = self._max_message_size, writer.appended
        for (queue, topic, sys_flag, template), born, body, properties, keys in messages:
            size = template.bytes_beside + len(body) + len(properties)
            if offset + size > limit or len(body) > most or len(properties) > LONGEST_PROPERTIES or queue.is_deleted:
                break
            queue_offset = queue.next_offset
            try:
                record = template.encode(queue_offset, offset, born, hosts, body, properties)
            except (struct.error, MemoryError):  # a number is out of its range, or a body too large for now
                break
            log.append(record)
            queue.next_offset = queue_offset + 1
            appended.append((queue, offset, now, topic, sys_flag, properties, record, keys))
            places.append((offset, queue_offset))
            offset += size
        if places and writer.idle is not None:
            writer.wake()
        return RunResult(places, offset, store_host)
