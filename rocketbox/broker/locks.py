"""Which client of a group may consume which queue in order.

Holds the locks of orderly consumers: one for each (group, queue), kept by being asked for again, free after
``lifetime`` seconds without that. Moving them to other brokers is not offered (one broker holds its own queues).

Source: Apache RocketMQ 5.x ``RebalanceLockManager``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from rocketbox.broker.limits import PeerShares
from rocketbox.broker.options import MAX_LOCKED_QUEUES
from rocketbox.clock import Clock
from rocketbox.message import MessageQueue
from rocketbox.safe_repr import also_when_unmade

__all__ = ["LOCK_LIFETIME", "QueueLocks"]

LOCK_LIFETIME = 60.0  # seconds; consumers renew every 20 s (rocketmq.broker.rebalance.lockMaxLiveTime)


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed: float
    by: str


class QueueLocks:
    """The locks of all groups."""

    def __init__(
        self,
        clock: Clock,
        lifetime: float = LOCK_LIFETIME,
        most: int = MAX_LOCKED_QUEUES,
        most_for_each_address: int = MAX_LOCKED_QUEUES,
    ) -> None:
        self._clock = clock
        self._shares = PeerShares(most, most_for_each_address, "max-locked-queues", "queues", "locked", soon=True)
        self._renewals: OrderedDict[tuple[str, MessageQueue], float] = OrderedDict()  # the oldest first
        self._lifetime = lifetime
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def __len__(self) -> int:
        return len(self._renewals)

    @property
    def refused(self) -> int:
        """How many requests asked for more locks than there may be."""
        return self._shares.refused

    @also_when_unmade
    def __repr__(self) -> str:
        return f"<QueueLocks {len(self._groups)} groups, {len(self)} queues>"

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], by: str = "") -> list[MessageQueue]:
        """Take or renew the locks; what comes back is held by ``client_id`` now, the rest by others.

        ``by`` is the client's address. Raises LimitError when there are too many locks; those before the one too many
        are taken.
        """
        now = self._clock.monotonic()
        locks = self._groups.get(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                self._shares.check(by)
                self._groups[group] = locks
            if lock is None or lock.client_id == client_id or self._expired(lock, now):
                if lock is None or lock.by != by:
                    if lock is not None:
                        self._shares.add(lock.by, -1)
                    self._shares.add(by)
                locks[queue] = _Lock(client_id, now, by)
                self._renewals[group, queue] = now
                self._renewals.move_to_end((group, queue))
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; those of other clients stay."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                self._forget(group, queue)

    def is_locked(self, group: str) -> bool:
        """Whether the group holds any lock that is still valid, so whether it consumes in order."""
        locks = self._groups.get(group)
        if not locks:
            return False
        now = self._clock.monotonic()
        return any(not self._expired(lock, now) for lock in locks.values())

    def first_expiry(self) -> float:
        """When the first lock would be no longer valid if nobody renews it, or one that is taken now."""
        return next(iter(self._renewals.values()), self._clock.monotonic()) + self._lifetime

    def expire(self) -> None:
        """Forget the locks that are no longer valid: queues and groups may have any name, and Apache keeps them all."""
        now = self._clock.monotonic()
        while self._renewals:
            (group, queue), renewed = next(iter(self._renewals.items()))
            if now - renewed <= self._lifetime:
                return
            self._forget(group, queue)

    def _forget(self, group: str, queue: MessageQueue) -> None:
        del self._renewals[group, queue]
        locks = self._groups[group]
        self._shares.add(locks.pop(queue).by, -1)
        if not locks:
            del self._groups[group]

    def _expired(self, lock: _Lock, now: float) -> bool:
        return now - lock.renewed > self._lifetime
