"""What goes wrong in a simulation: which kinds of faults a seed has, when, and for how long.

A fault says what it touches (see ``history.Fault``): what it does not touch has to go on as if nothing had happened,
and nothing else may come twice because of it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rocketbox.errors import RocketBoxError
from tests.simulation.clients import GROUPS, OTHER, QUEUES, TOPIC, Clients
from tests.simulation.cluster import HostClock, SimulatedBroker, SimulatedNameServer
from tests.simulation.history import AT_ONCE, EVERYTHING, NOTHING, PATIENCE, ROUTES_ASKED, SOON, GroupKind, History
from tests.simulation.network import SimulatedNetwork

__all__ = ["KINDS", "Faults"]

LONGEST = 40.0
FIRST = 5.0
HANDOVER = 1.0  # seconds that a handler may take to be waited for when its queue goes to another member
KINDS_OF_A_SEED = 5
LINK_HOLDS = 10.0  # seconds of silence in which no connection is given up
NOT_FAULTS = {
    "_at",
    "_be_silent",
    "_delete_other",
    "_end_and_begin",
    "_have_slow_packets",
    "_join",
    "_make_other",
    "_until_done",
}
NEAR_BEFORE, NEAR_AFTER = 12.0, 12.0  # seconds around a fault in which there is much traffic
Fault = Callable[[], Coroutine[Any, Any, None]]


class Faults:
    """``planned(until)`` are coroutines, one for each fault; all of them are over at ``until`` or soon after."""

    def __init__(
        self,
        chance: random.Random,
        network: SimulatedNetwork,
        history: History,
        clients: Clients,
        brokers: Sequence[SimulatedBroker],
        name_servers: Sequence[SimulatedNameServer],
        disk: Callable[[float], object],
    ) -> None:
        self._random = chance
        self._network = network
        self._history = history
        self._clients = clients
        self._brokers = brokers
        self._name_servers = name_servers
        self._disk = disk
        self._until = 0.0
        self._begins: list[float] = []
        self._busy = False

    def planned(self, kinds: Sequence[str], until: float) -> list[Coroutine[Any, Any, None]]:
        """Between none and six faults of a few kinds, each at its time: few kinds meet each other more often.

        Of fewer kinds than a seed has there are four to eight.
        """
        of_this_seed = self._random.sample(kinds, min(len(kinds), KINDS_OF_A_SEED))
        self._until = until
        planned = []
        for _ in range(self._random.choice([0, 1, 2, 3, 4, 6] if len(kinds) > KINDS_OF_A_SEED else [4, 6, 8])):
            fault: Fault = getattr(self, f"_{self._random.choice(of_this_seed).replace(' ', '_').replace('-', '_')}")
            when = self._random.uniform(FIRST, until - LONGEST)
            self._begins.append(when)
            planned.append(self._at(when, fault))
        self._begins.sort()
        self._busy = len(kinds) <= KINDS_OF_A_SEED  # a few chosen kinds are to be met by much
        return planned

    def calm_for(self) -> float:
        """Seconds until a fault is near: 0 from some time before each until some time after it."""
        now = self._history.now()
        if self._busy or any(fault.begin <= now <= fault.end + NEAR_AFTER for fault in self._history.faults):
            return 0.0
        return next((max(0.0, when - NEAR_BEFORE - now) for when in self._begins if when >= now), math.inf)

    async def _at(self, when: float, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, when - self._history.now()))
        await fault()

    def _seconds(self, least: float = 1.0, most: float = LONGEST) -> float:
        """Most faults are short."""
        return least * math.exp(self._random.uniform(0.0, math.log(most / least)))

    # --- the network -------------------------------------------------------------------------------------------------

    def _any_host(self) -> tuple[str, frozenset[str], frozenset[str]]:
        """A host, what a fault of it touches, and of what something may come twice then."""
        servers = [broker.host for broker in self._brokers] + [server.host for server in self._name_servers]
        host = self._random.choice(servers + list(self._clients.groups_of))
        for broker in self._brokers:
            if broker.host == host:
                return host, frozenset({broker.name}), frozenset({broker.name})
        if host in self._clients.groups_of:
            group = self._clients.groups_of[host]
            return host, frozenset({group}) if group else EVERYTHING, frozenset({group}) if group else EVERYTHING
        return host, EVERYTHING, NOTHING  # a name server

    async def _slow_network(self) -> None:
        await self._have_slow_packets(self._seconds(), self._random.choice([0.05, 0.5, 2.0]))

    async def _have_slow_packets(self, seconds: float, slowest: float) -> None:
        self._history.fault(f"packets take up to {slowest} s", seconds)
        self._network.conditions.slowest = slowest
        await asyncio.sleep(seconds)
        self._network.conditions.slowest = 0.002

    async def _lossy_network(self) -> None:
        seconds = self._seconds()
        self._network.conditions.loss = self._random.choice([0.01, 0.1, 0.3])
        self._history.fault(f"{self._network.conditions.loss:.0%} of the packets are lost", seconds)
        await asyncio.sleep(seconds)
        self._network.conditions.loss = 0.0

    async def _reset_connections(self) -> None:
        host, touched, doubled = self._any_host()
        self._history.fault(f"the connections of {host} are reset", 0, touches=touched, doubles=doubled)
        for link in self._network.links_of(host):
            link.reset()

    async def _half_open_connections(self) -> None:
        host, touched, doubled = self._any_host()
        self._history.fault(f"the connections of {host} are half-open", 20, touches=touched, doubles=doubled)
        for link in self._network.links_of(host):
            link.cut = True

    async def _silent_host(self) -> None:
        await self._be_silent(*self._any_host(), self._seconds())

    async def _broker_that_is_silent_for_some_seconds(self) -> None:
        """Too short to be taken for dead, and long enough for requests to fail."""
        broker = self._random.choice(self._brokers)
        seconds = self._random.uniform(3.0, LINK_HOLDS)
        await self._be_silent(broker.host, frozenset({broker.name}), frozenset({broker.name}), seconds)

    async def _be_silent(self, host: str, touched: frozenset[str], doubled: frozenset[str], seconds: float) -> None:
        patience = SOON if seconds < LINK_HOLDS else PATIENCE
        self._history.fault(f"{host} is silent", seconds, touches=touched, doubles=doubled, patience=patience)
        silent = self._network.conditions.silent
        silent[host] = max(silent.get(host, 0.0), self._network.loop.time() + seconds)
        await asyncio.sleep(seconds)

    # --- servers -----------------------------------------------------------------------------------------------------

    def _free_broker(self) -> SimulatedBroker | None:
        free = [broker for broker in self._brokers if not broker.busy]
        return self._random.choice(free) if free else None

    async def _stopped_broker(self) -> None:
        if (broker := self._free_broker()) is None:
            return
        broker.busy = True
        seconds = self._seconds(0.1, 20)
        self._history.fault(f"{broker.name} is stopped", seconds + 10, touches={broker.name},
                            doubles=frozenset({broker.name}))  # fmt: skip
        await broker.stop()
        self._history.unrouted(broker.name)  # also if it is back before anybody looks
        await asyncio.sleep(seconds)
        await broker.start()
        broker.busy = False

    async def _killed_broker(self) -> None:
        await self._end_and_begin("is killed", power=False, moves=False)

    async def _moved_broker(self) -> None:
        await self._end_and_begin("is killed and comes back at another address", power=False, moves=True)

    async def _power_failure(self) -> None:
        await self._end_and_begin("loses its power", power=True, moves=False)

    async def _end_and_begin(
        self, text: str, *, power: bool, moves: bool, broker: SimulatedBroker | None = None
    ) -> None:
        broker = broker or self._free_broker()
        if broker is None:
            return
        broker.busy = True
        seconds = self._seconds(0.1, 20)
        # started anew it has no locks; clients learn of another address when they ask for routes, each 30 s
        self._history.fault(f"{broker.name} {text}", seconds + (40 if moves else 10), touches={broker.name},
                            doubles=frozenset({broker.name}))  # fmt: skip
        before = self._history.now()
        self._history.kills[broker.name].append(before)
        if power and broker.flush == "ASYNC_FLUSH":
            self._history.losses[broker.name].append(before)
        broker.kill(power=power)
        if moves:
            broker.move()
        await asyncio.sleep(seconds)
        await broker.start()
        if power:
            self._forget_lost(broker)
        broker.busy = False

    def _forget_lost(self, broker: SimulatedBroker) -> None:
        """What the disk lost; nothing of it was synced."""
        assert broker.running is not None
        store = broker.running.store
        for topic in (TOPIC, OTHER):
            for queue_id in range(QUEUES):
                self._history.forget_end((topic, broker.name, queue_id), store.max_offset(topic, queue_id))
        self._clients.arrivals.forget_lost(broker)
        if broker.flush == "ASYNC_FLUSH":
            for body, sent in self._history.acknowledged.items():
                if sent.broker == broker.name and self._history.is_lost(broker.name, sent.at):
                    self._history.excused.update((group, body) for group in GROUPS)

    def _other_routes(self) -> frozenset[str]:
        """Members who know some of the brokers only, and not the same ones, share queues in different ways."""
        return EVERYTHING if len(self._brokers) > 1 else NOTHING

    async def _stopped_name_server(self) -> None:
        server, seconds = self._random.choice(self._name_servers), self._seconds(0.1)
        if not server.running:
            return
        # brokers register each 30 s
        self._history.fault(f"name server {server.host} is stopped", seconds + 30, doubles=self._other_routes())
        await server.stop()
        await asyncio.sleep(seconds)
        await server.start()

    async def _disagreeing_name_servers(self) -> None:
        """One of them is started anew, and a broker cannot tell it that it is there."""
        server, broker = self._random.choice(self._name_servers), self._random.choice(self._brokers)
        if not server.running:
            return
        seconds = self._seconds()
        self._history.fault(f"name server {server.host} hears nothing of {broker.name}", seconds + 30,
                            doubles=self._other_routes())  # fmt: skip
        self._network.conditions.apart[frozenset({server.host, broker.host})] = self._network.loop.time() + seconds
        await server.stop()
        await server.start()
        await asyncio.sleep(seconds)

    async def _slow_disks(self) -> None:
        seconds, slowest = self._seconds(), self._random.choice([0.1, 1.0])
        self._history.fault(f"calls of disks, and def handlers, take up to {slowest} s", seconds)
        self._disk(slowest)
        await asyncio.sleep(seconds)
        self._disk(0.002)

    # --- members of groups -------------------------------------------------------------------------------------------

    async def _joining_member(self) -> None:
        await self._join(self._random.choice(sorted(GROUPS)))

    async def _member_that_joins_beside_a_silent_broker(self) -> None:
        """The silent one delays nothing of the others: two of each kind of machine are there in half of the seeds."""
        if len(self._brokers) > 1:
            broker = self._random.choice(self._brokers)
            silence = asyncio.create_task(
                self._be_silent(
                    broker.host, frozenset({broker.name}), frozenset({broker.name}), self._random.uniform(20, LONGEST)
                )
            )
            await asyncio.sleep(self._random.uniform(0.5, 5.0))
            await self._join(self._random.choice(sorted(GROUPS)))
            await silence

    async def _join(self, group: str) -> None:
        self._history.fault(f"a member joins {group}", 0, touches={group}, doubles=NOTHING, patience=SOON)
        await self._clients.join(group)

    async def _leaving_member(self) -> None:
        group = self._random.choice(sorted(GROUPS))
        if len(self._clients.members[group]) > 1:
            self._history.fault(f"a member leaves {group}", 5, touches={group}, doubles=NOTHING, patience=SOON)
            await self._clients.leave(self._clients.choose(group))

    async def _restarted_member(self) -> None:
        group, seconds = self._random.choice(sorted(GROUPS)), self._seconds(0.1, 20)
        if self._clients.members[group]:
            member = self._clients.choose(group)
            self._history.fault(f"{member.name} of {group} is restarted", seconds + 5, touches={group}, doubles=NOTHING)
            await self._clients.leave(member, for_good=False)
            await asyncio.sleep(seconds)
            await self._clients.come_back(member)

    async def _killed_member(self) -> None:
        group, seconds = self._random.choice(sorted(GROUPS)), self._seconds(0.1, 20)
        if self._clients.members[group]:
            member = self._clients.choose(group)
            locked = 30.0 if GROUPS[group] is GroupKind.ORDERLY else 0.0  # its locks run out after a minute
            self._history.fault(f"{member.name} of {group} is killed", seconds + 5 + locked, touches={group})
            self._clients.kill(member)
            await asyncio.sleep(seconds)
            await self._clients.come_back(member)

    async def _slow_handlers(self) -> None:
        seconds, slowest = self._seconds(), self._random.choice([0.5, 3.0, 8.0])
        self._clients.slowest_handler = slowest
        doubles = EVERYTHING if slowest > HANDOVER else NOTHING  # of a queue that is handed over meanwhile
        self._history.fault(f"handlers take up to {slowest} s", seconds, doubles=doubles, aftermath=10.0)
        await asyncio.sleep(seconds)
        self._clients.slowest_handler = 0.02

    async def _raising_handlers(self) -> None:
        seconds = self._seconds()
        self._clients.raising = self._random.choice([0.1, 0.5])
        patience = max(SOON, _last_wait(seconds) + AT_ONCE)
        self._history.fault(f"handlers raise {self._clients.raising:.0%}", seconds, doubles=NOTHING, patience=patience)
        await asyncio.sleep(seconds)
        self._clients.raising = 0.0

    # --- clocks, topics, offsets -------------------------------------------------------------------------------------

    async def _jumping_clock(self) -> None:
        clocks: list[HostClock] = [broker.clock for broker in self._brokers]
        clocks += [member.clock for group in GROUPS for member in self._clients.members[group]]
        by_ms = self._random.choice([-3_600_000, -5_000, 5_000, 3_600_000])
        self._history.fault(f"a clock jumps by {by_ms} ms", 0, doubles=NOTHING, patience=SOON)
        self._random.choice(clocks).jump(by_ms)

    async def _deleted_topic(self) -> None:
        """The other topic is deleted, and made again with more or fewer queues."""
        clients = self._clients
        if not clients.other_is_there.is_set():
            return
        seconds = self._seconds(0.1, LONGEST)
        self._history.fault(f"{OTHER} is deleted", seconds + 40, touches={OTHER})
        await self._delete_other()
        await asyncio.sleep(seconds)
        await self._make_other()
        clients.other_is_there.set()

    async def _delete_other(self) -> None:
        self._clients.other_is_there.clear()
        await asyncio.sleep(5.0)  # what is on its way arrives, or is given up
        await self._until_done(lambda: self._clients.administer(lambda admin: admin.delete_topic(OTHER)))
        # One that is away keeps the topic; had it deleted it before, its queues would begin further on when made anew.
        running = {broker.name for broker in self._brokers if broker.running is not None}
        self._history.forget_topic(OTHER, running)

    async def _broker_that_moves_after_a_topic_is_gone(self) -> None:
        """A route that no name server knows any more names its old address, and another topic's route changes then."""
        clients, broker = self._clients, self._brokers[0]
        takes = 5.0 + 20.0 + 2 * ROUTES_ASKED + 5.0
        if len(self._brokers) < 2 or broker.busy or not clients.other_is_there.is_set():
            return
        if self._history.now() + takes > self._until:
            return
        self._history.fault(f"{OTHER} is deleted, and {broker.name} will move", takes, touches={OTHER})
        await self._delete_other()
        await self._end_and_begin("is killed and comes back at another address", power=False, moves=True, broker=broker)
        await asyncio.sleep(ROUTES_ASKED + 5.0)
        await self._until_done(clients.make_elsewhere)
        await asyncio.sleep(ROUTES_ASKED)
        await self._make_other()
        # The broker may have been away for longer than was foreseen.
        self._history.fault(f"{OTHER} is made again", 40, touches={OTHER})
        clients.other_is_there.set()

    async def _other_number_of_queues(self) -> None:
        """More; fewer would leave messages behind that nobody reads."""
        if self._clients.other_is_there.is_set():
            self._history.fault(
                f"{OTHER} gets other queues", 30, touches={OTHER}
            )  # seen by each when it asks for the route
            await self._make_other(QUEUES)

    async def _make_other(self, queues: int = 0) -> None:
        count = queues or self._random.randint(1, QUEUES)
        await self._until_done(lambda: self._clients.administer(lambda admin: admin.create_topic(OTHER, queues=count)))

    async def _until_done(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except RocketBoxError as error:
                self._history.trace(f"the admin failed: {type(error).__name__}")
                await asyncio.sleep(1.0)
            else:
                return

    async def _reset_offset(self) -> None:
        """A group is set back in a queue, or to its end, as Apache's brokers do it: the next pull is told."""
        broker, queue_id = self._random.choice(self._brokers), self._random.randrange(QUEUES)
        group = self._random.choice([group for group, kind in GROUPS.items() if kind is not GroupKind.BROADCAST])
        self._reset(broker, group, queue_id)

    async def _group_that_is_reset_while_a_member_joins(self) -> None:
        """The queues that are reset are just being handed on, with their locks, and that takes long."""
        group = self._random.choice([group for group, kind in GROUPS.items() if kind is GroupKind.ORDERLY])
        slow = asyncio.create_task(self._have_slow_packets(20.0, 0.7))
        joining = asyncio.create_task(self._join(group))
        places = [(broker, queue_id) for broker in self._brokers for queue_id in range(QUEUES)]
        for broker, queue_id in self._random.sample(places, len(places)) * 2:
            await asyncio.sleep(self._random.uniform(0.0, 1.0))
            self._reset(broker, group, queue_id)
        await joining
        await slow

    def _reset(self, broker: SimulatedBroker, group: str, queue_id: int) -> None:
        committed = None if broker.running is None else broker.running.offsets.get(group, TOPIC, queue_id)
        if broker.running is None or committed is None:
            return
        to = max(0, committed - self._random.choice([0, 1, 3, 20]))
        self._history.fault(f"{group} is set to {to} of {broker.name}/{queue_id}", 20, touches={group})
        self._history.moved(group, (TOPIC, broker.name, queue_id), to)
        broker.running.offsets.commit(group, TOPIC, queue_id, to)
        broker.rules.resets[group, TOPIC, queue_id] = to

    async def _broker_that_moves_nobody(self) -> None:
        """It says of every pull of a group that its offset is wrong, and names the same one as the right one."""
        broker, group, seconds = (
            self._random.choice(self._brokers),
            self._random.choice(sorted(GROUPS)),
            self._seconds(),
        )
        self._history.fault(f"{broker.name} gives {group} its own offsets as the right ones", seconds, touches={group})
        broker.rules.stuck[group] = self._network.loop.time() + seconds
        await asyncio.sleep(seconds)


KINDS = sorted(
    name.removeprefix("_").replace("_", " ")
    for name, value in vars(Faults).items()
    if asyncio.iscoroutinefunction(value) and name not in NOT_FAULTS
)
"""All kinds of faults."""


def _last_wait(seconds: float) -> float:
    """The longest wait for its next try of a message that has failed again and again for so long.

    After the first time it waits in the third delay level, then in the fourth, and so on; level n takes n seconds here
    (``cluster.LEVELS``).
    """
    wait = 3
    while (seconds := seconds - wait) > 0:
        wait += 1
    return float(wait)
