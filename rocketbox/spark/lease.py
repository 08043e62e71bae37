"""The lease of a query: over all processes, one reads a topic for a group at a time.

Spark's checkpoint knows of one driver; a second one beside it (a replica, the old pod of a rollout) would read every
message once more. So a driver holds a lock for its topic on each broker that has it, under a group of the lease's own
(``lease_group``): a broker sends what comes back to a group that holds any lock to its dead letters at once, so the
group itself must have none. A lock is confirmed every 20 s and free at the broker 60 s after the last time.

    free     -> held      all brokers of the topic have given their locks: nobody holds one
    held     -> held      one broker confirms, whatever the others say: who comes needs all of them
    held     -> free      no broker has confirmed for 50 s, by whichever of the machine's clocks has gone further (one
                          stands still while the machine sleeps), or those that answer have given the locks to another;
                          brokers that have the topic no more confirm nothing against those that have it
    free     -> settling  as held, but somebody was seen to hold it before: a broker that was started anew has forgotten
                          the locks, and their holder hears of it when it asks next, which is within 20 s
    settling -> held      20 s later; a driver that has seen nobody also waits so long with its first query where the
                          checkpoint names another one that has not given it back (``batch_log``)
    held     -> free      given back; for 30 s also by a driver that has seen nobody, and whose checkpoint is new while
                          its group has read before: whom brokers have forgotten has it again by then

Who has lost it, or has given it back, takes it anew from the beginning: a confirmation that comes late changes nothing,
for another driver may have come meanwhile, read on, and gone.

What this is not: a driver that is paused for longer than 50 s (its machine sleeps) goes on with the batch it was in,
while another one has begun. Neither can Spark take back what a function has written: sinks stay idempotent.

Source: own design on Apache RocketMQ 5.x ``RebalanceLockManager`` (LOCK_BATCH_MQ, UNLOCK_BATCH_MQ).
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import Self

import anyio

from rocketbox.client import MQClientInstance
from rocketbox.client.api.groups import lock_queues, unlock_queues
from rocketbox.clock import Clock
from rocketbox.errors import AccessDeniedError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.protocol.namespaces import NO_NAMESPACE, Namespace
from rocketbox.rare_log import RareLog

__all__ = ["LEASE_LIFETIME", "LOCK_LIFETIME", "STAND_BACK", "Lease", "LeaseAnswer", "LeaseLostError", "lease_group"]

_log = logging.getLogger(__name__)

LOCK_LIFETIME = 60.0  # seconds for which a broker keeps a lock that nobody confirms
LEASE_LIFETIME = 50.0  # seconds from the last confirmation
CONFIRM_INTERVAL = 20.0  # seconds between two confirmations; also what a new holder waits for a former one to notice
CONFIRM_AGAIN = 2.0  # seconds until the next try when some broker has not confirmed
STAND_BACK = CONFIRM_INTERVAL + 10.0  # seconds in which a holder asks, or stops its query and takes the lease again
LOCK_TIMEOUT = 3.0  # seconds for a broker's answer
UNLOCK_TIMEOUT = 1.0
TOLD_AGAIN = 60.0  # seconds between two lines of the log about one broker
LONGEST_GROUP = 120  # characters of a group's name that Apache's tools take


class LeaseLostError(Exception):
    """Another driver may read the topic now; nothing more may be committed."""


@dataclass(frozen=True)
class LeaseAnswer:
    """Whether the lease is held; when not, why, and whether that is another driver's doing.

    ``refused``: the user lacks a permission, which will not pass soon.
    """

    held: bool
    why: str = ""
    by_another: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class _Moment:
    """A moment by both clocks: the monotonic one of Linux stands still while a machine sleeps, the other one is set."""

    monotonic: float
    wall_ms: int

    @classmethod
    def of(cls, clock: Clock) -> Self:
        return cls(clock.monotonic(), clock.time_ms())

    def age(self, clock: Clock) -> float:
        """Seconds since then, by the clock that has gone further."""
        return max(clock.monotonic() - self.monotonic, (clock.time_ms() - self.wall_ms) / 1000)


def lease_group(group: str, namespace: Namespace = NO_NAMESPACE) -> str:
    """The group in whose name the locks of a group's query are held; nothing else is ever done in it."""
    name = f"SPARK_LEASE_{group}"
    if len(namespace.wrap(name)) <= LONGEST_GROUP:
        return name
    return f"SPARK_LEASE_{hashlib.sha256(group.encode()).hexdigest()[:32]}"


class Lease:
    """The right to read ``topic`` for ``group``. ``holder`` is this driver's name for it: its own, and no other's."""

    def __init__(self, instance: MQClientInstance, group: str, topic: str, *, holder: str) -> None:
        self.holder = holder
        self._instance = instance
        self._clock = instance.clock
        self._group = group
        self._topic = topic
        self._lease_group = lease_group(group, instance.namespace)
        self._wanted = False  # from when it is taken until it is lost or given back; no lock is asked for else
        self._confirmed: dict[str, _Moment] = {}  # by broker: when the request was sent that it confirmed last
        self._asked: set[str] = set()  # brokers that have a lock of ours, or perhaps have: an answer may be lost
        self._doubt = anyio.Event()  # a connection was lost: the broker may have been started anew, without locks
        self._told = RareLog(_log, TOLD_AGAIN)

    @property
    def held(self) -> bool:
        """Whether nobody else can have it now, by this machine's clock."""
        if not self._wanted:
            return False
        return any(sent.age(self._clock) < LEASE_LIFETIME for sent in self._confirmed.values())

    async def take(self) -> LeaseAnswer:
        """Ask for it once. Raises RocketBoxError when the topic has no route, or no name server answers.

        The brokers are asked one after another, in the order of their names: of two candidates one gets the first.
        """
        brokers = await self._brokers()
        self._wanted = True
        for broker in brokers:
            try:
                given = await self._lock(broker)
            except RocketBoxError as error:
                await self.release()
                why = f"broker {broker} does not give its lock: {error}"
                return LeaseAnswer(False, why, refused=isinstance(error, AccessDeniedError))
            if not given:
                await self.release()
                return LeaseAnswer(False, f"another driver holds its lock at broker {broker}", by_another=True)
        if not brokers:
            return LeaseAnswer(False, f"no broker of topic {self._topic} can be read from")
        return LeaseAnswer(True)

    async def settle(self) -> LeaseAnswer:
        """Keep it until a former holder must have noticed; call it after :meth:`take` when there was one."""
        with self._clock.move_on_after(CONFIRM_INTERVAL):
            await self.keep()
        if self.held:
            return LeaseAnswer(True)
        return LeaseAnswer(False, "another driver has taken it again", by_another=True)

    async def until_noticed(self) -> None:
        """Return when a holder that brokers have forgotten must have asked them again, and has found this one."""
        await self._clock.sleep(CONFIRM_INTERVAL)

    async def stand_back(self) -> None:
        """Give it back, and return when a holder that brokers have forgotten must have it again.

        One that asks while this driver has the lease has to stop its query first.
        """
        await self.release()
        await self._clock.sleep(STAND_BACK)

    async def keep(self) -> None:
        """Have it confirmed, and return when it is lost."""
        lost = self._instance.remoting.on_disconnected
        lost.append(self._disconnected)
        try:
            pause = CONFIRM_INTERVAL
            while self.held:
                self._doubt = anyio.Event()
                with self._clock.move_on_after(pause):
                    await self._doubt.wait()
                pause = CONFIRM_INTERVAL if await self._confirm_everywhere() else CONFIRM_AGAIN
            self._wanted = False
        finally:
            lost.remove(self._disconnected)

    async def confirm(self) -> None:
        """Return when a broker has said right now that it is held. Raises LeaseLostError.

        While no broker answers, what they said last counts until it is 50 s old; from then on none is asked any more.
        """
        asked = self._clock.monotonic()
        async with anyio.create_task_group() as tasks:

            async def ask(broker: str) -> None:
                if await self._confirm(broker) and self._is_confirmed_since(broker, asked):
                    tasks.cancel_scope.cancel()  # one is enough

            for broker in self._asked | self._confirmed.keys():
                tasks.start_soon(ask, broker)
        if not self.held:
            self._doubt.set()  # who keeps it is to know at once
            raise LeaseLostError(
                f"the lease of topic {self._topic} for group {self._group} is lost: "
                + ("another driver has it" if not self._confirmed else "no broker has confirmed it for too long")
            )

    def _is_confirmed_since(self, broker: str, time: float) -> bool:
        sent = self._confirmed.get(broker)
        return sent is not None and sent.monotonic >= time

    async def release(self) -> None:
        """Give it back, so that a driver which stands by need not wait for its end."""
        self._wanted = False
        brokers, self._asked, self._confirmed = self._asked, set(), {}
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for broker in brokers:
                    tasks.start_soon(self._unlock, broker)

    async def _brokers(self) -> list[str]:
        """The brokers whose locks make the lease: those that the topic can be read from."""
        route = await self._instance.route(self._topic, refresh=True)
        return sorted({queue.broker_name for queue in route.subscribe_queues})

    def _queue(self, broker: str) -> MessageQueue:
        return MessageQueue(self._topic, broker, 0)  # one stands for all of a broker

    async def _lock(self, broker: str) -> bool:
        """Whether the broker's lock is ours now. Raises RocketBoxError."""
        sent = _Moment.of(self._clock)
        self._asked.add(broker)
        queue = self._queue(broker)
        given = await lock_queues(
            self._instance.remoting, self._instance.broker_address(broker), self._lease_group, self.holder, [queue],
            timeout=LOCK_TIMEOUT,
        )  # fmt: skip
        if broker in self._asked:  # not released meanwhile
            if queue in given:
                self._confirmed[broker] = sent
            else:
                self._confirmed.pop(broker, None)
        return queue in given

    async def _confirm_everywhere(self) -> bool:
        """Whether all brokers have confirmed it; also those that have the topic only now."""
        try:
            route = set(await self._brokers())
        except RocketBoxError:
            route = set()
        brokers = route | self._confirmed.keys() if route else self._asked | self._confirmed.keys()
        answers: dict[str, bool | None] = {}

        async def ask(broker: str) -> None:
            answers[broker] = await self._confirm(broker)

        async with anyio.create_task_group() as tasks:
            for broker in brokers:
                tasks.start_soon(ask, broker)
        if any(answers[broker] is False for broker in route) and not self._confirmed.keys() & route:
            self._confirmed.clear()  # the topic has moved, and who has its locks there needs no others
        return all(answers.values())

    async def _confirm(self, broker: str) -> bool | None:
        """Whether the broker's lock is ours still; None: it does not say, or it is too late to ask."""
        if not self.held:
            return None
        try:
            given = await self._lock(broker)
        except RocketBoxError as error:
            self._tell(broker, f"did not confirm it: {error}")
            return None
        if given:
            self._told.over(broker)
        else:
            self._tell(broker, "has given its lock to another driver")
        return given

    def _tell(self, broker: str, what: str) -> None:
        self._told.tell(
            logging.WARNING, self._clock.monotonic(), broker,
            "the lease of topic %s for group %s: broker %s %s", self._topic, self._group, broker, what,
        )  # fmt: skip

    async def _unlock(self, broker: str) -> None:
        try:
            await unlock_queues(
                self._instance.remoting, self._instance.broker_address(broker), self._lease_group, self.holder,
                [self._queue(broker)], timeout=UNLOCK_TIMEOUT,
            )  # fmt: skip
        except RocketBoxError as error:
            _log.debug("the lease of topic %s is not given back at broker %s: %s", self._topic, broker, error)

    def _disconnected(self, address: str) -> None:
        self._doubt.set()
