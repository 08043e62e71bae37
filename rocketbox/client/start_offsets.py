"""Where a consumer begins in a queue: at the group's stored offset, or where ``consume_from_where`` says.

Source: Apache RocketMQ 5.x ``RebalancePushImpl.computePullFromWhere``. Unlike there: to start at the end of a queue the
end is asked for before the stored offset, so that a message stored in between is not skipped; queues of a topic that
came up after the start begin at 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketbox.client.api.offsets import max_offset, search_offset
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.offset_store import OffsetStore
from rocketbox.client.options import ConsumerOptions
from rocketbox.message import ConsumeFromWhere, MessageQueue
from rocketbox.protocol.codes import retry_topic

__all__ = ["StartOffsets"]

HALF_AN_HOUR_MS = 30 * 60 * 1000


class StartOffsets:
    """Finds out start offsets; any replica of a queue's broker may say them."""

    def __init__(self, group: str, instance: MQClientInstance, options: ConsumerOptions, offsets: OffsetStore) -> None:
        self._retry_topic = retry_topic(group)
        self._instance = instance
        self._options = options
        self._offsets = offsets
        self._started_ms = instance.clock.time_ms()
        self._first_queues: dict[str, frozenset[MessageQueue]] = {}  # of each topic's first route; others begin at 0

    def note_first_route(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """These queues were there when the consumer began with topic; only the first call counts."""
        self._first_queues.setdefault(topic, frozenset(queues))

    def forget_topic(self, topic: str) -> None:
        """The consumer is done with topic; a later subscription begins with a first route of its own."""
        self._first_queues.pop(topic, None)

    async def find(self, queue: MessageQueue) -> tuple[int, bool]:
        """Where to begin, and whether that is the group's stored offset. Raises RocketBoxError."""
        where = self._options.consume_from_where
        known = self._first_queues.get(queue.topic)
        from_zero = queue.topic == self._retry_topic or (known is not None and queue not in known)
        instance = self._instance
        address, timeout = instance.broker_address(queue.broker_name, master=False), instance.options.api_timeout
        end = 0
        if where is ConsumeFromWhere.LAST_OFFSET and not from_zero:  # before the stored one is asked for: see the head
            end = await max_offset(instance.remoting, address, queue, timeout=timeout)
        stored = await self._offsets.read(queue)
        if stored is not None:
            return stored, True
        if where is ConsumeFromWhere.TIMESTAMP and not from_zero:
            begin = self._options.consume_timestamp
            timestamp_ms = self._started_ms - HALF_AN_HOUR_MS if begin is None else round(begin.timestamp() * 1000)
            end = await search_offset(instance.remoting, address, queue, timestamp_ms, timeout=timeout)
        return end, False
