"""The locks of queues that are had: confirmed before they end, and at once when they are doubted.

A lock is confirmed every 20 s, and every second when that failed. When the connection to a broker is lost, or routes
name another address, it may have none of its locks when it is back, for it keeps them in its memory only. What comes of
that for a queue (its lock is confirmed, doubted, or another member's) are events of ``assignment``.

Source: Apache RocketMQ 5.x ``RebalanceImpl.lockAll``. Unlike there, a lock that a refresh did not get is asked for
again before it ends.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import anyio

from rocketbox.client.failure_log import PERIOD
from rocketbox.client.membership import Membership
from rocketbox.client.owned_queue import OwnedQueue
from rocketbox.client.process_queue import LOCK_EXPIRY
from rocketbox.client.queue_locks import QueueLocks
from rocketbox.errors import AccessDeniedError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.rare_log import RareLog
from rocketbox.tasks import SupervisedTask

__all__ = ["LockUpkeep"]

_log = logging.getLogger(__name__)

REFRESH_INTERVAL = 20.0  # seconds between two confirmations of a lock
REFRESH_AGAIN = 1.0  # seconds until the next try when one failed


class LockUpkeep:
    """Asks for locks of what is in ``table``, which is ``assignment``'s.

    It tells what it finds out by ``confirmed``, ``doubted`` and ``dropped`` (with a reason), and by ``answered`` for
    which queues an answer has come, since some may have left the table meanwhile.
    """

    def __init__(
        self,
        membership: Membership,
        locks: QueueLocks,
        table: Mapping[MessageQueue, OwnedQueue],
        *,
        confirmed: Callable[[OwnedQueue], None],
        doubted: Callable[[OwnedQueue], None],
        dropped: Callable[[OwnedQueue, str], None],
        answered: Callable[[Sequence[OwnedQueue]], None],
    ) -> None:
        self._group = membership.group
        self._instance = membership.instance
        self._clock = membership.instance.clock
        self._tasks = membership.tasks
        self._locks = locks
        self._table = table
        self._confirmed = confirmed
        self._doubted = doubted
        self._dropped = dropped
        self._answered = answered
        self._refreshes: dict[str, SupervisedTask] = {}  # by broker name
        self._refusals = membership.refusals
        self._losses = 0  # of connections to brokers
        self._told = RareLog(_log, PERIOD)

    @property
    def refreshes(self) -> list[SupervisedTask]:
        """Those under way."""
        return list(self._refreshes.values())

    def _had(self) -> list[OwnedQueue]:
        """The queues whose messages count while their lock does."""
        return [owned for owned in self._table.values() if owned.counts]

    async def keep(self) -> None:
        """Have the locks confirmed, for ever."""
        lost = self._instance.remoting.on_disconnected
        lost.append(self._connection_lost)
        try:
            while True:
                await self._clock.sleep(REFRESH_INTERVAL)
                for broker_name in {owned.queue.broker_name for owned in self._had()}:
                    self._refresh(broker_name)
        finally:
            lost.remove(self._connection_lost)

    def _refresh(self, broker_name: str) -> None:
        """Have the broker's locks confirmed now, unless that is under way."""
        if broker_name not in self._refreshes:
            name = f"locks at {broker_name}"
            self._refreshes[broker_name] = self._tasks.start(name, self._refresh_at, broker_name, restart=False)

    def look_for_moved(self) -> None:
        """Doubt the locks of brokers that routes name at another address now."""
        for owned in list(self._table.values()):
            address = self._instance.routes.master(owned.queue.broker_name)
            if address is not None and owned.locked_by not in (None, address):
                self._doubt(owned)

    def _doubt(self, owned: OwnedQueue) -> None:
        self._doubted(owned)
        if owned.messages is not None and owned.messages.lock_doubted:
            self._refresh(owned.queue.broker_name)

    def _connection_lost(self, address: str) -> None:
        """Its broker may have been started anew, without any locks."""
        self._losses += 1
        for owned in list(self._table.values()):
            if self._instance.routes.master(owned.queue.broker_name) == address:
                self._doubt(owned)

    async def _refresh_at(self, broker_name: str) -> None:
        """Have a broker's locks confirmed: asked again each second, until it answers or they have really ended."""
        begun = self._clock.monotonic()
        try:
            while True:
                now = self._clock.monotonic()
                open_ = [owned for owned in self._had() if owned.queue.broker_name == broker_name]
                open_ = [owned for owned in open_ if owned.must_confirm(begun)]
                for owned in open_:
                    assert owned.locked_at is not None
                    if now - owned.locked_at >= LOCK_EXPIRY:
                        self._dropped(owned, "its lock was not confirmed in time")
                open_ = [owned for owned in open_ if owned.locked_at is not None]
                if not open_:
                    return
                try:
                    await self._confirm_at(broker_name, open_)
                except AccessDeniedError as error:
                    self._refusals.refused(f"confirming locks at {broker_name}", error)
                    await self._refusals.pause(f"confirming locks at {broker_name}")
                except RocketBoxError as error:
                    self._told.tell(
                        logging.WARNING, self._clock.monotonic(), ("refresh", broker_name),
                        "group %s: %s did not confirm locks, it is asked again: %s", self._group, broker_name, error,
                    )  # fmt: skip
                    await self._clock.sleep(REFRESH_AGAIN)
        finally:
            del self._refreshes[broker_name]

    async def settle_doubts(self) -> None:
        """Ask once more of locks that are doubted, for without them nothing of their queues may be committed."""
        doubted: dict[str, list[OwnedQueue]] = defaultdict(list)
        for owned in self._had():
            if owned.messages is not None and owned.messages.lock_doubted:
                doubted[owned.queue.broker_name].append(owned)
        if doubted:
            async with anyio.create_task_group() as tasks:
                for broker_name, some in doubted.items():
                    tasks.start_soon(self._settle_doubts_at, broker_name, some)

    async def _settle_doubts_at(self, broker_name: str, doubted: Sequence[OwnedQueue]) -> None:
        try:
            await self._confirm_at(broker_name, doubted)
        except RocketBoxError as error:
            _log.warning("group %s: %s did not confirm locks, so what was consumed last is not committed: %s",
                         self._group, broker_name, error)  # fmt: skip

    async def _confirm_at(self, broker_name: str, asked: Sequence[OwnedQueue]) -> None:
        """Have a broker say which of these locks this member still has. Raises RocketBoxError."""
        now, losses, address = self._clock.monotonic(), self._losses, self._instance.routes.master(broker_name)
        given = await self._locks.lock(broker_name, [owned.queue for owned in asked])
        self._refusals.allowed(f"confirming locks at {broker_name}")
        self._answered(asked)  # the request may have overtaken their unlocking
        if losses != self._losses:
            return  # the broker may have forgotten what it just said
        for owned in asked:
            if not owned.counts or owned.locked_at is None:
                continue  # it was let go meanwhile
            if owned.queue not in given:
                self._dropped(owned, "its lock is another member's")
                continue
            owned.confirm_lock(now, address)
            self._confirmed(owned)
