"""The queues a consumer has: which ones it should have, taking them, giving them up, and where to begin in each.

One table, changed by one round of rebalancing at a time, and by a broker that says "go on elsewhere". When a round runs
is in ``rebalance``, as is how queues are shared; commits and locks are carried out by ``offset_store`` and
``queue_locks``, in the order that is decided here.

Source: Apache RocketMQ 5.x ``RebalanceImpl``, ``RebalancePushImpl``. Unlike there: to start at the end of a queue the
end is asked for before the stored offset, so that a message stored in between is not skipped; queues of a topic that
came up after the start begin at 0; a start offset is committed at once; an orderly queue is handed on only after its
running batch, whose offset counts; one whose lock was lost is given up, and begins anew when it comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from rocketbox.client.allocation import sort_client_ids
from rocketbox.client.api.groups import consumer_ids
from rocketbox.client.api.offsets import max_offset, search_offset
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.offset_store import OffsetStore
from rocketbox.client.options import ConsumerOptions
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.client.queue_locks import QueueLocks
from rocketbox.errors import BrokerError, ClientError, RocketBoxError
from rocketbox.message import ConsumeFromWhere, MessageQueue
from rocketbox.protocol.codes import ResponseCode, retry_topic
from rocketbox.tasks import SupervisedTask

__all__ = ["QueueAssignment"]

_log = logging.getLogger(__name__)

HALF_AN_HOUR_MS = 30 * 60 * 1000
COMMIT_SHARE = 0.6  # of the time for the end
ORDERLY_HANDOVER = 0.5  # seconds a rebalance waits for an orderly queue's running batch before it tries again


class QueueAssignment:
    """The table of a consumer's queues.

    ``topics`` are those it wants queues of; ``announce`` is called after the queues of a topic changed and before the
    new ones are pulled; ``pull`` starts pulling one. ``locks`` None: queues need no lock.
    """

    def __init__(
        self,
        group: str,
        instance: MQClientInstance,
        options: ConsumerOptions,
        *,
        offsets: OffsetStore,
        locks: QueueLocks | None,
        topics: Callable[[], set[str]],
        announce: Callable[[str], Awaitable[None]],
        pull: Callable[[ProcessQueue], SupervisedTask],
    ) -> None:
        self._group = group
        self._retry_topic = retry_topic(group)
        self._instance = instance
        self._clock = instance.clock
        self._options = options
        self._offsets = offsets
        self._locks = locks
        self._topics = topics
        self._announce = announce
        self._pull = pull
        self._table: dict[MessageQueue, ProcessQueue] = {}
        self._pulls: dict[MessageQueue, SupervisedTask] = {}
        self._first_queues: dict[str, frozenset[MessageQueue]] = {}  # of each topic's first route; others begin at 0
        self._started_ms = self._clock.time_ms()
        self._closed = False

    @property
    def queues(self) -> Iterable[ProcessQueue]:
        """The queues this consumer has."""
        return self._table.values()

    def count(self, topic: str) -> int:
        """How many queues of topic there are."""
        return sum(queue.topic == topic for queue in self._table)

    def note_first_route(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """These queues were there when the consumer began with topic; only the first call counts."""
        self._first_queues.setdefault(topic, frozenset(queues))

    def forget_topic(self, topic: str) -> None:
        """The consumer is done with topic; a later subscription begins with a first route of its own."""
        self._first_queues.pop(topic, None)

    def owns(self, held: ProcessQueue) -> bool:
        """Whether the queue is this member's for certain; an orderly one is so only while its lock counts."""
        return self._locks is None or held.lock_holds(self._clock.monotonic())

    async def persist(self, *, final: bool = False) -> None:
        """Commit how far each queue is consumed; final: also of those that are being given up."""
        await self._offsets.persist([held for held in self._table.values() if self.owns(held)], final=final)

    async def stop_pulling(self) -> None:
        """Take no more queues and pull nothing more; the queues stay."""
        self._closed = True
        pulls = list(self._pulls.values())
        for pull in pulls:
            pull.cancel()
        for pull in pulls:
            await pull.wait()

    async def release(self, timeout: float) -> None:
        """Commit for the last time and give locks back, within timeout seconds; then forget all queues."""
        with self._clock.move_on_after(timeout * COMMIT_SHARE):  # a silent broker leaves time for the locks of others
            await self.persist(final=True)
        with self._clock.move_on_after(timeout * (1 - COMMIT_SHARE)):
            if self._locks is not None:
                await self._locks.unlock_all()
        for held in self._table.values():
            held.drop()
        self._table.clear()
        self._pulls.clear()

    async def rebalance(self, *, paused: bool) -> bool:
        """Bring the table in line with what this member should have; whether it now has all of that.

        While the consumer is paused only the queues of topics that are no longer wanted are given up.
        """
        balanced = not paused
        wanted = self._topics()
        topics = {queue.topic for queue in self._table} | wanted
        for topic in sorted(topics - wanted if paused else topics):
            try:
                balanced &= await self._rebalance_topic(topic)
            except RocketBoxError as error:
                _log.warning("group %s: rebalance of %s failed, it is tried again: %s", self._group, topic, error)
                balanced = False
        return balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        wanted = await self._wanted_queues(topic)
        if wanted is None:
            return False
        balanced = True
        changed = False
        for queue, held in list(self._table.items()):
            if queue.topic == topic and (queue not in wanted or held.dropped or not self.owns(held)):
                changed = True
                balanced &= await self._lose(held)
        for queue in wanted:
            if queue not in self._table and not self._closed and topic in self._topics():
                gained = await self._gain(queue)
                changed |= gained
                balanced &= gained
        if changed:
            await self._announce(topic)
        for queue, held in self._table.items():
            if queue.topic == topic and queue not in self._pulls and not held.dropped and not self._closed:
                self._pulls[queue] = self._pull(held)
        return balanced

    async def _wanted_queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues of topic this member should have; None when that cannot be said now."""
        if topic not in self._topics():
            return []
        route = self._instance.cached_route(topic)
        if route is None:
            return []  # the instance keeps asking, and says when there is one
        if self._options.broadcasting:
            return route.subscribe_queues
        members = await self._members(topic)
        if self._instance.client_id not in members:
            self._instance.request_heartbeat()  # that broker does not know this member (yet, or any more)
            return None
        queues = sorted(route.subscribe_queues)
        if not queues:
            return []
        try:
            return self._options.allocation(self._instance.client_id, queues, sort_client_ids(members))
        except Exception as error:  # a strategy may be anybody's
            raise ClientError(f"the allocation strategy of group {self._group} failed: {error!r}") from error

    async def _members(self, topic: str) -> list[str]:
        """The client ids of the group, as one broker of topic knows them."""
        instance = self._instance
        address = instance.broker_address_for_topic(topic)
        try:
            return await consumer_ids(instance.remoting, address, self._group, timeout=instance.options.api_timeout)
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR:
                return []  # how a broker says that it knows no member
            raise

    async def _gain(self, queue: MessageQueue) -> bool:
        """Take queue into the table, locked and with its start offset; False when that does not work now."""
        held = ProcessQueue(queue, 0, now=self._clock.monotonic())
        if self._locks is not None and not await self._locks.lock(held):
            return False  # another member still has it
        try:
            start, stored = await self._start_offset(queue)
        except RocketBoxError as error:
            _log.warning("group %s: no start offset for %s, it is tried again: %s", self._group, queue, error)
            return False
        held.pulled_to = held.end_offset = start
        self._table[queue] = held
        _log.info(
            "group %s: takes %s from offset %d%s", self._group, queue, start, "" if stored else " (new to the group)"
        )
        if not stored:
            await self._offsets.persist([held])  # a restart goes on here, whatever happens before the first commit
        return True

    async def _start_offset(self, queue: MessageQueue) -> tuple[int, bool]:
        """Where to begin, and whether that is the group's stored offset."""
        where = self._options.consume_from_where
        known = self._first_queues.get(queue.topic)
        from_zero = queue.topic == self._retry_topic or (known is not None and queue not in known)
        remoting, timeout = self._instance.remoting, self._instance.options.api_timeout
        end = 0
        if where is ConsumeFromWhere.LAST_OFFSET and not from_zero:  # before the stored one is asked for: see the head
            end = await max_offset(remoting, self._instance.broker_address(queue.broker_name), queue, timeout=timeout)
        stored = await self._offsets.read(queue)
        if stored is not None:
            return stored, True
        if where is ConsumeFromWhere.TIMESTAMP and not from_zero:
            begin = self._options.consume_timestamp_ms
            end = await search_offset(
                remoting,
                self._instance.broker_address(queue.broker_name),
                queue,
                self._started_ms - HALF_AN_HOUR_MS if begin is None else begin,
                timeout=timeout,
            )
        return end, False

    async def _lose(self, held: ProcessQueue) -> bool:
        """Give a queue up; False when its running batch must end first."""
        queue = held.queue
        if (pull := self._pulls.pop(queue, None)) is not None:
            pull.cancel()
        held.drop()
        if self._options.orderly and held.in_process:
            with self._clock.move_on_after(ORDERLY_HANDOVER):
                await held.idle()
            if held.in_process:
                return False  # its lock stays, so nobody else begins; the next round tries again
        if self.owns(held):  # without its lock another member may be further already
            await self._offsets.persist([held], final=True)
        self._offsets.forget(queue)
        if self._locks is not None:
            await self._locks.unlock(held)
        if self._table.get(queue) is held:
            del self._table[queue]
        _log.info("group %s: gave up %s at offset %d", self._group, queue, held.commit_offset)
        return True

    async def reset(self, held: ProcessQueue, offset: int) -> None:
        """The broker says that queue goes on at offset: what is held no longer counts.

        Either the group's offset was reset at the broker, or messages were removed before they were read.
        """
        queue = held.queue
        if self._table.get(queue) is not held or held.dropped:
            return
        moved = held.pulled_to
        _log.log(
            logging.WARNING if moved else logging.INFO,  # from 0, which FIRST_OFFSET begins at, nothing is lost
            "group %s: %s goes on at offset %d instead of %d (%+d), as its broker says",
            self._group, queue, offset, moved, offset - moved,
        )  # fmt: skip
        held.drop()
        if self._options.orderly:
            await held.idle()
        fresh = ProcessQueue(queue, offset, now=self._clock.monotonic())
        fresh.locked_at = held.locked_at
        if self._table.get(queue) is not held:
            return
        self._table[queue] = fresh
        await self._offsets.persist([fresh])
        if self._table.get(queue) is fresh and not self._closed:
            self._pulls[queue] = self._pull(fresh)
