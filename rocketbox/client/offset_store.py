"""Where a group's offsets are kept: at the brokers. For broadcasting they are in a file instead (``local_offsets``).

What may be committed is said by ``process_queue``; the stores only read and write.

Source: Apache RocketMQ 5.x ``RemoteBrokerOffsetStore``. Unlike there a commit is acknowledged by the broker and
repeated until it is, an unchanged one is not sent again, and of one queue there is one under way at a time: brokers may
carry two of them out in any order.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

import anyio

from rocketbox.client.api.offsets import query_consumer_offset, update_consumer_offset
from rocketbox.client.failure_log import PERIOD
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.errors import AccessDeniedError, RemotingError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.rare_log import RareLog
from rocketbox.tasks import Supervisor

__all__ = ["OffsetStore", "RemoteOffsetStore"]

_log = logging.getLogger(__name__)

OFFSET_TIMEOUT = 5.0  # seconds


class OffsetStore(Protocol):
    """Reads and writes the offsets of one group."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The committed offset; None when there is none. Raises RocketBoxError when it cannot be found out."""

    def behind(self, queues: Iterable[ProcessQueue]) -> list[ProcessQueue]:
        """Those of queues whose commit offset is not written, or is just being written: what :meth:`persist` is for."""

    async def persist(self, queues: Iterable[ProcessQueue], *, wait: bool = False) -> None:
        """Write the commit offsets that queues have when their turn comes, if they are not dropped by then.

        What cannot be written is logged, and written with the next call that has it. Where an earlier call is still at
        work, this one leaves all to the next one, or with ``wait``, for there will be none, waits for it.
        """

    def forget(self, queue: MessageQueue) -> None:
        """The queue is another member's now: nothing known of it counts any longer."""


class RemoteOffsetStore:
    """Offsets at the queue's broker (codes 14 and 15): its master, or a slave while that is away."""

    def __init__(self, group: str, instance: MQClientInstance) -> None:
        self._group = group
        self._instance = instance
        self._acknowledged: dict[MessageQueue, int] = {}
        self._under_way: dict[MessageQueue, anyio.Event] = {}
        self._busy: set[str] = set()  # names of brokers at which a call is at work
        self._told = RareLog(_log, PERIOD)

    async def read(self, queue: MessageQueue) -> int | None:
        instance = self._instance
        address = instance.broker_address(queue.broker_name, master=False)
        offset = await query_consumer_offset(instance.remoting, address, self._group, queue, timeout=OFFSET_TIMEOUT)
        if offset is not None:
            self._acknowledged[queue] = offset
        return offset

    def behind(self, queues: Iterable[ProcessQueue]) -> list[ProcessQueue]:
        return [
            messages for messages in queues
            if self._acknowledged.get(messages.queue) != messages.commit_offset or messages.queue in self._under_way
        ]  # fmt: skip

    async def persist(self, queues: Iterable[ProcessQueue], *, wait: bool = False) -> None:
        by_broker: dict[str, list[ProcessQueue]] = defaultdict(list)
        for messages in queues:
            by_broker[messages.queue.broker_name].append(messages)
        if len(by_broker) <= 1:
            for name, some in by_broker.items():
                await self._persist_at(name, some, wait)
            return
        async with Supervisor(f"offsets of {self._group}", self._instance.clock) as tasks:
            brokers = [  # side by side: a silent one must not use up the time of the others
                tasks.start(name, self._persist_at, name, some, wait, restart=False) for name, some in by_broker.items()
            ]
            for broker in brokers:
                await broker.wait()

    async def _persist_at(self, broker_name: str, queues: Sequence[ProcessQueue], wait: bool) -> None:
        if wait:
            await self._persist_each(queues, last=True)
        elif broker_name not in self._busy:
            self._busy.add(broker_name)
            try:
                await self._persist_each(queues)
            finally:
                self._busy.remove(broker_name)

    async def _persist_each(self, queues: Sequence[ProcessQueue], *, last: bool = False) -> None:
        """Those of one broker; ``last``: nobody tries again, so that what was refused is asked for once more."""
        instance = self._instance
        refusals = instance.refusals(self._group)
        for messages in queues:
            while (under_way := self._under_way.get(messages.queue)) is not None:
                await under_way.wait()
            # Read now, not before: a queue may have been given up while its neighbours were written, and an old offset
            # would overwrite what its next owner has committed.
            queue, offset = messages.queue, messages.commit_offset
            if self._acknowledged.get(queue) == offset or messages.dropped:
                continue
            doing = f"committing offsets of {queue.topic}"
            if not last and refusals.rest(doing):
                continue
            over = self._under_way[queue] = anyio.Event()
            try:
                await update_consumer_offset(
                    instance.remoting,
                    instance.broker_address(queue.broker_name, master=False),
                    self._group,
                    queue,
                    offset,
                    timeout=OFFSET_TIMEOUT,
                )
            except AccessDeniedError as error:
                refusals.refused(doing, error)
            except RocketBoxError as error:
                self._told.tell(
                    logging.WARNING, instance.clock.monotonic(), queue.broker_name,
                    "group %s: offset %d of %s is not committed yet: %s", self._group, offset, queue, error,
                )  # fmt: skip
                if isinstance(error, RemotingError):
                    return  # its other queues would only wait as long
            else:
                self._acknowledged[queue] = offset
                refusals.allowed(doing)
                self._told.over(queue.broker_name)
            finally:
                del self._under_way[queue]
                over.set()

    def forget(self, queue: MessageQueue) -> None:
        self._acknowledged.pop(queue, None)
