"""Which client of a group may consume which queue in order.

Holds the locks of orderly consumers: one for each (group, queue), kept by being asked for again, free after
``lifetime`` seconds without that. Moving them to other brokers is not offered (one broker holds its own queues).

Source: Apache RocketMQ 5.x ``RebalanceLockManager``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rocketbox.clock import Clock
from rocketbox.message import MessageQueue

__all__ = ["LOCK_LIFETIME", "QueueLocks"]

LOCK_LIFETIME = 60.0  # seconds; consumers renew every 20 s (rocketmq.broker.rebalance.lockMaxLiveTime)


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed: float


class QueueLocks:
    """The locks of all groups."""

    def __init__(self, clock: Clock, lifetime: float = LOCK_LIFETIME) -> None:
        self._clock = clock
        self._lifetime = lifetime
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def __len__(self) -> int:
        return sum(len(locks) for locks in self._groups.values())

    def __repr__(self) -> str:
        return f"<QueueLocks {len(self._groups)} groups, {len(self)} queues>"

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Take or renew the locks; what comes back is held by ``client_id`` now, the rest by others."""
        now = self._clock.monotonic()
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or self._expired(lock, now):
                locks[queue] = _Lock(client_id, now)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; those of other clients stay."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            self._groups.pop(group, None)

    def is_locked(self, group: str) -> bool:
        """Whether the group holds any lock that is still valid, so whether it consumes in order."""
        locks = self._groups.get(group)
        if not locks:
            return False
        now = self._clock.monotonic()
        return any(not self._expired(lock, now) for lock in locks.values())

    def expire(self) -> None:
        """Forget the locks that are no longer valid: queues and groups may have any name, and Apache keeps them all."""
        now = self._clock.monotonic()
        for group, locks in list(self._groups.items()):
            valid = {queue: lock for queue, lock in locks.items() if not self._expired(lock, now)}
            if not valid:
                del self._groups[group]
            elif len(valid) < len(locks):
                self._groups[group] = valid

    def _expired(self, lock: _Lock, now: float) -> bool:
        return now - lock.renewed > self._lifetime
