"""Delivery of delayed messages: moved from SCHEDULE_TOPIC_XXXX, a queue for each level, to their topic when due.

How they are parked stands in ``delay_levels``. How far each level is delivered is kept in ``delayOffset.json``; an
offset counts only when what it delivered is durable, so a crash repeats messages and loses none.

Source: Apache RocketMQ 5.x ``ScheduleMessageService``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import anyio

from rocketbox.broker.property_text import find_property, remove_properties
from rocketbox.broker.put_stage import PutOrigin, PutStage
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.clock import Clock
from rocketbox.errors import InvalidMessageError, StoreCorruptError, StoreFailedError
from rocketbox.message import MessageExt
from rocketbox.protocol.bodies import DataVersion, loads_loose
from rocketbox.protocol.codes import SCHEDULE_TOPIC
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.tasks import Supervisor

__all__ = ["DelayedDelivery", "record_of"]

_log = logging.getLogger(__name__)

DELIVERIES_FOR_EACH_VERSION = 200  # Apache's delayOffsetUpdateVersionStep
BATCH = 32  # records read at once


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


class DelayedDelivery:
    """Moves messages to their topics when their delay is over; one task for each level."""

    def __init__(
        self,
        store: MessageStore,
        puts: PutStage,
        level_ms: tuple[int, ...],
        persist: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._puts = puts
        self._level_ms = level_ms
        self._persist = persist
        self._clock = clock
        self._offsets: dict[int, int] = {}
        self._version = DataVersion(timestamp=clock.time_ms())
        self._moves = 0
        self._arrived = [anyio.Event() for _ in level_ms]
        self._changed = False

    def offset(self, level: int) -> int:
        """The first parked message of a level that is not delivered for certain."""
        return self._offsets.get(level, 0)

    def start(self, tasks: Supervisor) -> None:
        """Begin to deliver, from where the last run came to."""
        for level in range(1, len(self._level_ms) + 1):
            least, end = (
                self._store.min_offset(SCHEDULE_TOPIC, level - 1),
                self._store.max_offset(SCHEDULE_TOPIC, level - 1),
            )
            if level in self._offsets or end:
                self._offsets[level] = max(least, min(self._offsets.get(level, 0), end))
            tasks.start(f"delay level {level}", self._deliver_level, level)

    def on_arrival(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        """A message became readable; the levels' tasks wait for theirs."""
        if topic == SCHEDULE_TOPIC and queue_id < len(self._arrived):
            self._arrived[queue_id].set()

    async def _deliver_level(self, level: int) -> None:
        queue_id = level - 1
        while True:
            arrived = self._arrived[queue_id] = anyio.Event()
            offset = self.offset(level)
            found = self._store.get(SCHEDULE_TOPIC, queue_id, offset, BATCH)
            if found.records:
                try:
                    await self._deliver(
                        level, [decode_message(record, decompress=False)[0] for record in found.records]
                    )
                except StoreFailedError as error:
                    _log.error("delay level %d delivers no more: %s", level, error)
                    return
            elif found.next_begin_offset > offset:
                self._advance(level, found.next_begin_offset, 1)  # entries whose records are gone
            else:
                await arrived.wait()

    async def _deliver(self, level: int, messages: list[MessageExt]) -> None:
        """Deliver messages of one level, in order, each when it is due."""
        end_offset: int | None = None
        done = moved = 0
        for message in messages:
            while (wait := self._due_in_ms(level, message)) > 0:
                if end_offset is not None:
                    await self._settle(level, end_offset, done, moved)
                    end_offset, moved = None, 0
                await self._clock.sleep(wait / 1000)
            try:
                end_offset = self._puts.put(self._unparked(message), PutOrigin.DELIVERY).end_offset
            except InvalidMessageError as error:  # it was accepted once: nothing but a changed limit can refuse it
                _log.error("a delayed message cannot be delivered and stays in %s: %s", SCHEDULE_TOPIC, error)
            done = message.queue_offset + 1
            moved += 1
        await self._settle(level, end_offset, done, moved)

    async def _settle(self, level: int, end_offset: int | None, done: int, moved: int) -> None:
        """Count what was put as delivered, once it is durable; a stop that comes meanwhile waits for that."""
        with anyio.CancelScope(shield=True):
            while end_offset is not None:
                try:
                    await self._store.durable(end_offset)
                    break
                except TimeoutError:  # it is in the log: putting it once more would only deliver it twice
                    _log.warning("delay level %d waits for a slow disk", level)
            self._advance(level, done, moved)

    def _due_in_ms(self, level: int, message: MessageExt) -> int:
        now, delay = self._clock.time_ms(), self._level_ms[level - 1]
        return min(message.store_timestamp_ms + delay, now + delay) - now  # a clock set back waits one delay, not more

    @staticmethod
    def _unparked(message: MessageExt) -> StoredMessage:
        """The message under its own topic; its property text stays as Apache leaves it, DELAY included."""
        text = message.raw_properties
        topic = find_property(text, b"REAL_TOPIC")
        if topic is None:
            raise InvalidMessageError(f"message {message.offset_msg_id} has no property REAL_TOPIC")
        queue_id = int(find_property(text, b"REAL_QID") or 0)
        text = remove_properties(text, (b"__CRC32#",))
        return record_of(message, topic.decode(), queue_id, text, message.reconsume_times)

    def _advance(self, level: int, offset: int, moved: int) -> None:
        self._offsets[level] = offset
        self._changed = True
        before, self._moves = self._moves, self._moves + moved
        if self._moves // DELIVERIES_FOR_EACH_VERSION != before // DELIVERIES_FOR_EACH_VERSION:
            self._version = self._version.next(self._clock.time_ms())

    def persist(self) -> None:
        """Write ``delayOffset.json`` if something was delivered since it was last written."""
        if self._changed:
            try:
                self._persist(self.encode())
            except OSError as error:
                _log.error("what is delivered of delayed messages could not be written, trying again: %s", error)
            else:
                self._changed = False

    def encode(self) -> str:
        """The text of ``delayOffset.json``."""
        return json.dumps(
            {"dataVersion": self._version.to_json(), "offsetTable": self._offsets}, indent="\t", sort_keys=True
        )

    def load(self, text: str, file: str = "delayOffset.json") -> None:
        """Take the offsets over from a file, ours or Apache's. Raises StoreCorruptError when it is not one."""
        try:
            values = loads_loose(text)
            self._offsets = {int(level): int(offset) for level, offset in values.get("offsetTable", {}).items()}
            self._version = DataVersion.from_json(values.get("dataVersion") or {})
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreCorruptError(file, 0, f"not a table of delay offsets ({error})") from error
