"""Which client of a group may consume which queue in order.

Holds the locks of orderly consumers: one for each (group, queue), kept by being asked for again, free after
``lifetime`` seconds without that. Moving them to other brokers is not offered (one broker holds its own queues).

Source: Apache RocketMQ 5.x ``RebalanceLockManager``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from rocketbox.broker.limits import LimitError, host_of
from rocketbox.broker.options import MAX_LOCKED_QUEUES
from rocketbox.clock import Clock
from rocketbox.message import MessageQueue

__all__ = ["LOCK_LIFETIME", "QueueLocks"]

LOCK_LIFETIME = 60.0  # seconds; consumers renew every 20 s (rocketmq.broker.rebalance.lockMaxLiveTime)


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed: float
    host: str


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
        self._most = most
        self._most_for_each_address = most_for_each_address
        self._held: dict[str, int] = {}  # by host
        self._renewals: OrderedDict[tuple[str, MessageQueue], float] = OrderedDict()  # the oldest first
        self.refused = 0
        """How many requests asked for more locks than there may be."""
        self._lifetime = lifetime
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def __len__(self) -> int:
        return len(self._renewals)

    def __repr__(self) -> str:
        return f"<QueueLocks {len(self._groups)} groups, {len(self)} queues>"

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], by: str = "") -> list[MessageQueue]:
        """Take or renew the locks; what comes back is held by ``client_id`` now, the rest by others.

        ``by`` is the client's address. Raises LimitError when there are too many locks; those before the one too many
        are taken.
        """
        now, host = self._clock.monotonic(), host_of(by)
        locks = self._groups.get(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                self._check_limits(host)
                self._groups[group] = locks
            if lock is None or lock.client_id == client_id or self._expired(lock, now):
                if lock is not None:
                    self._count(lock.host, -1)
                self._count(host, 1)
                locks[queue] = _Lock(client_id, now, host)
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
        self._count(locks.pop(queue).host, -1)
        if not locks:
            del self._groups[group]

    def _check_limits(self, host: str) -> None:
        limit = None
        if len(self) >= self._most:
            limit = LimitError(f"{len(self)} queues are locked", self._most, "max-locked-queues", soon=True)
        elif host and self._held.get(host, 0) >= self._most_for_each_address:
            limit = LimitError(
                f"clients at {host} have locked {self._held[host]} queues",
                self._most_for_each_address, "max-locked-queues-per-address", soon=True,
            )  # fmt: skip
        if limit is not None:
            self.refused += 1
            raise limit

    def _count(self, host: str, change: int) -> None:
        self._held[host] = self._held.get(host, 0) + change
        if not self._held[host]:
            del self._held[host]

    def _expired(self, lock: _Lock, now: float) -> bool:
        return now - lock.renewed > self._lifetime
