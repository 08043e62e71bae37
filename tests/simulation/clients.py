"""The clients of a simulation: producers that number what they send, and members of groups that tell what they get."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketbox.client import Admin, ClientOptions, ConsumerOptions, Producer, ProducerOptions, PushConsumer
from rocketbox.client.api.topics import put_topic
from rocketbox.client.instance import MQClientInstance
from rocketbox.errors import RocketBoxError, SendManyError
from rocketbox.message import (
    ConsumeFromWhere,
    ConsumeMode,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    SendResult,
)
from rocketbox.protocol.registration_bodies import TopicConfig
from tests.simulation.arrivals import Arrivals
from tests.simulation.cluster import HostClock, Process, SimulatedBroker
from tests.simulation.history import GroupKind, History
from tests.simulation.network import Host, SimulatedNetwork
from tests.simulation.requests import Requests
from tests.simulation.timers import Timers
from tests.simulation.transactions import Transactions
from tests.support.store.machine_disk import Disk

__all__ = ["ELSEWHERE", "GROUPS", "OTHER", "QUEUES", "TOPIC", "TOPICS", "WAYS", "Clients", "Member"]

TOPIC = "T"
OTHER = "D"  # which may be deleted, made again, and have other numbers of queues
ELSEWHERE = "E"  # which only the last of several brokers has, and nobody consumes
QUEUES = 3  # of TOPIC on each broker, and as many of the others at most
CALM = 5.0  # times as long as near a fault do producers wait: what no fault touches is worth less of a seed's time
GROUPS = {"concurrent": GroupKind.CONCURRENT, "orderly": GroupKind.ORDERLY, "broadcast": GroupKind.BROADCAST}
TOPICS = {"concurrent": frozenset({TOPIC, OTHER}), "orderly": frozenset({TOPIC}), "broadcast": frozenset({TOPIC})}
TRACED_ONE_IN = 4  # members of groups; the producer at the first broker has message trace as well
WAYS = ("transactions", "timers", "requests")
SHARE = 0.25  # of the seeds in which there is each of them: more would cost more than it finds
CONSUME_TIMEOUTS = (5.0, 900.0, 900.0)  # seconds; handlers may be slower than the first


@dataclass
class Member:
    """A consumer, and the machine that it runs on."""

    group: str
    name: str
    host: str
    clock: HostClock
    disk: Disk
    process: Process
    network: Host
    instance: MQClientInstance
    consumer: PushConsumer
    life: _Life


class _Life:
    """What handlers of one process tell; once it is killed nobody hears them any more."""

    def __init__(self, group: str, name: str, history: History) -> None:
        self.over = False
        self._group = group
        self._name = name
        self._history = history

    def begins(self, message: MessageExt) -> None:
        if not self.over:
            self._history.begins(self._group, self._name, message)

    def ends(self, message: MessageExt, *, well: bool) -> None:
        if not self.over:
            self._history.ends(self._group, self._name, message, well=well)


class Clients:
    """Those that are there. ``slowest_handler`` (seconds) and ``raising`` (a share) are changed by faults.

    ``ways`` are those of :data:`WAYS` in which they send besides; None: some, as ``chance_of_ways`` has it.
    """

    def __init__(
        self, chance: random.Random, network: SimulatedNetwork, history: History, name_servers: list[str],
        brokers: list[SimulatedBroker], *, quiet_at: float, chance_of_ways: random.Random,
        ways: frozenset[str] | None = None,
    ) -> None:  # fmt: skip
        self.slowest_handler = 0.02
        self.raising = 0.0
        self.producing = True
        self.calm_for: Callable[[], float] = lambda: 0.0
        """Seconds until there is to be much traffic."""
        self.other_is_there = asyncio.Event()
        """The topic that may be deleted is there."""
        self.members: dict[str, list[Member]] = {group: [] for group in GROUPS}
        self.groups_of: dict[str, str] = {}
        """By host: the group of the member that runs or ran there; "" for producers."""
        self.producers: dict[str, MQClientInstance] = {}
        """By host."""
        self._random = chance
        self._network = network
        self._history = history
        self._name_servers = name_servers
        self._brokers = brokers
        self._elsewhere = 0  # queues
        self._made = 0
        self._consume_timeout = chance.choice(CONSUME_TIMEOUTS)
        self.ways = frozenset(way for way in WAYS if chance_of_ways.random() < SHARE) if ways is None else ways
        self.arrivals = Arrivals(history, brokers)
        self.transactions = Transactions(chance_of_ways, history, self.arrivals, quiet_at)
        self.timers = Timers(chance_of_ways, history, self.arrivals, {broker.name: broker for broker in brokers})
        self.requests = Requests(chance_of_ways, history, [broker.name for broker in brokers])
        self._dying: list[asyncio.Task[None]] = []
        self._numbers: dict[str, int] = {}  # by stream

    def _instance(self, host: str, clock: HostClock, network: Host, disk: Disk | None = None) -> MQClientInstance:
        options = ClientOptions(client_ip=host, instance_name="c")
        return MQClientInstance(self._name_servers, options=options, clock=clock, network=network, storage=disk)

    def _machine(self, group: str) -> tuple[str, HostClock]:
        self._made += 1
        host = f"10.0.2.{self._made}"
        self.groups_of[host] = group
        return host, HostClock(self._random.getrandbits(32))

    # --- producers ---------------------------------------------------------------------------------------------------

    def _for_admins(self) -> MQClientInstance:
        host = "10.0.3.1"
        return self._instance(host, HostClock(self._random.getrandbits(32)), self._network.host(host))

    async def administer(self, work: Callable[[Admin], Coroutine[Any, Any, None]]) -> None:
        """Have an admin do it, which is there only for that long."""
        async with self._for_admins() as instance, Admin(instance=instance) as admin:
            await work(admin)

    async def make_elsewhere(self) -> None:
        """The topic of the last of several brokers, or other queues of it."""
        if len(self._brokers) > 1:
            self._elsewhere = 1 + self._elsewhere % QUEUES
            address = f"{self._brokers[-1].host}:10911"
            topic = TopicConfig(ELSEWHERE, self._elsewhere, self._elsewhere)
            async with self._for_admins() as instance:
                await put_topic(instance.remoting, address, topic, timeout=3.0)

    def instances(self) -> Iterator[tuple[str, str, MQClientInstance]]:
        """Each client's name, its group ("" for producers), and what it knows of routes and brokers."""
        for host, instance in self.producers.items():
            yield f"the producer at {host}", "", instance
        for group, members in self.members.items():
            for member in members:
                yield member.name, group, member.instance

    async def produce(self, broker: SimulatedBroker) -> None:
        """Send in all ways until ``producing`` is over."""
        host, clock = self._machine("")
        instance = self.producers[host] = self._instance(host, clock, self._network.host(host))
        options = ProducerOptions(enable_msg_trace=broker is self._brokers[0])
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(instance)
            own = Producer(f"p-{broker.name}", instance=instance, options=options)
            producer = await stack.enter_async_context(own)
            ways = [self._fill(producer, broker, queue_id) for queue_id in range(QUEUES)]
            ways += [self._send_keyed(producer, f"key of {broker.name}"), self._send_others(producer, broker)]
            ways += [self._send_elsewhere(producer, broker)] if len(self._brokers) > 1 else []
            if self.ways:
                ways += await self._further(stack, instance, broker)
            await asyncio.gather(*ways)

    async def _further(
        self, stack: AsyncExitStack, instance: MQClientInstance, broker: SimulatedBroker
    ) -> list[Coroutine[Any, Any, None]]:
        """Of a producer beside: in transactions, for later, requests. What is sent so is sent once, without retries."""
        once = await stack.enter_async_context(
            Producer(
                "once",
                instance=instance,
                options=ProducerOptions(retry_times_when_send_failed=0),
                transaction_checker=self._check,
            )
        )
        runs = {"transactions": self.transactions.run, "timers": self.timers.run, "requests": self.requests.run}
        return [
            run(once, f"{way} of {broker.name}", lambda: self.producing, self._pause)
            for way, run in runs.items()
            if way in self.ways
        ]

    async def _check(self, message: MessageExt) -> LocalTransactionState:
        return self.transactions.check(message)

    async def reply(self) -> None:
        """Be a member of the group that replies, until nobody asks any more."""
        host, clock = self._machine("")
        instance = self._instance(host, clock, self._network.host(host), Disk())

        async def until() -> None:
            while self.producing:
                await asyncio.sleep(5.0)
            await asyncio.sleep(15.0)

        await self.requests.reply(instance, until)

    async def _fill(self, producer: Producer, broker: SimulatedBroker, queue_id: int) -> None:
        """Numbers into one queue, each until it is acknowledged; now and then some at once."""
        queue, stream = MessageQueue(TOPIC, broker.name, queue_id), f"{broker.name}/{queue_id}"
        await asyncio.sleep(self._random.random())
        while self.producing:
            if self._random.random() < 0.1:
                bodies = self._next(stream, self._random.randint(2, 4))
                batch = [Message(TOPIC, body.encode()) for body in bodies]
                await self._send(stream, bodies, producer.send_batch(batch, queue=queue))
            else:
                (body,) = self._next(stream)
                await self._send(stream, [body], producer.send(Message(TOPIC, body.encode()), queue=queue))
            await self._pause(1.0, 12.0)

    async def _send_keyed(self, producer: Producer, stream: str) -> None:
        while self.producing:
            (body,) = self._next(stream)
            await self._send(stream, [body], producer.send(Message(TOPIC, body.encode(), hash_key=stream)))
            await self._pause(2.0, 15.0)

    async def _send_others(self, producer: Producer, broker: SimulatedBroker) -> None:
        """To the other topic, to whichever queue: one, some at once, or without an answer."""
        stream = f"other of {broker.name}"
        await asyncio.sleep(self._random.random())  # most learn of the route of TOPIC first
        while self.producing:
            await self.other_is_there.wait()
            way = self._random.random()
            if way < 0.2:
                (body,) = self._next(f"one-way of {broker.name}")
                self._numbers[f"one-way of {broker.name}"] += 1
                self._history.tries(body)
                try:
                    await producer.send_one_way(Message(OTHER, body.encode()))
                except RocketBoxError as error:
                    self._history.trace(f"{body} failed: {type(error).__name__}")
            else:
                bodies = self._next(stream, 1 if way < 0.7 else self._random.randint(2, 5))
                messages = [Message(OTHER, body.encode()) for body in bodies]
                sends = producer.send(messages[0]) if len(messages) == 1 else producer.send_many(messages)
                await self._send(stream, bodies, sends)
            await self._pause(2.0, 15.0)

    async def _pause(self, least: float, most: float) -> None:
        """So long near a fault; longer in between, but not far into the next one."""
        seconds = self._random.uniform(least, most)
        await asyncio.sleep(min(CALM * seconds, max(seconds, self.calm_for())))

    async def _send_elsewhere(self, producer: Producer, broker: SimulatedBroker) -> None:
        stream = f"elsewhere of {broker.name}"
        while self.producing:
            (body,) = self._next(stream)
            await self._send(stream, [body], producer.send(Message(ELSEWHERE, body.encode())))
            await self._pause(5.0, 25.0)

    def _next(self, stream: str, count: int = 1) -> list[str]:
        number = self._numbers.setdefault(stream, 0)
        return [f"{stream}-{number + more}" for more in range(count)]

    async def _send(
        self, stream: str, bodies: list[str], sends: Coroutine[Any, Any, SendResult | list[SendResult]]
    ) -> None:
        """What is not acknowledged is sent again; of some that were sent each on its own, it is given up."""
        for body in bodies:
            self._history.tries(body)
        try:
            answer = await sends
        except SendManyError as failed:
            results: Iterable[SendResult | Exception] = failed.results
        except RocketBoxError as error:
            self._history.trace(f"{bodies} failed: {type(error).__name__}")
            await asyncio.sleep(self._random.uniform(0.5, 2.0))
            return
        else:
            results = answer if isinstance(answer, list) else [answer]
        self._numbers[stream] += len(bodies)
        for body, result in zip(bodies, results, strict=True):
            if isinstance(result, SendResult):
                place = (result.topic, result.broker_name, result.queue.queue_id)
                self._history.sent(body, place, result.queue_offset)

    # --- members of groups -------------------------------------------------------------------------------------------

    async def join(self, group: str) -> None:
        """A member more."""
        host, clock = self._machine(group)
        await self._start(group, f"m{self._made}", host, clock, Disk())

    async def _start(self, group: str, name: str, host: str, clock: HostClock, disk: Disk) -> None:
        network = self._network.host(host)
        instance = self._instance(host, clock, network, disk)
        kind = GROUPS[group]
        consumer = PushConsumer(
            group,
            instance=instance,
            options=ConsumerOptions(
                consume_mode=ConsumeMode.ORDERLY if kind is GroupKind.ORDERLY else ConsumeMode.CONCURRENTLY,
                message_model=MessageModel.BROADCASTING if kind is GroupKind.BROADCAST else MessageModel.CLUSTERING,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                consume_timeout=self._consume_timeout,
                local_offset_dir=Path("/offsets"),
                wait_for_servers=True,
                enable_msg_trace=self._made % TRACED_ONE_IN == 0,
            ),
        )
        life = _Life(group, name, self._history)
        handler = self._def_handler(life) if self._random.random() < 0.3 else self._handler(life)
        for topic in sorted(TOPICS[group]):
            await consumer.subscribe(topic, "*", handler)

        @asynccontextmanager
        async def running() -> AsyncIterator[PushConsumer]:
            async with instance, consumer:
                yield consumer

        process = Process(running)
        self.members[group].append(Member(group, name, host, clock, disk, process, network, instance, consumer, life))
        self._history.trace(f"{group} {name} joins")
        times = self._history.members[group]
        if name not in {known for known, _, _ in times}:
            times.append((name, self._history.now(), None))
        await process.start()

    def choose(self, group: str) -> Member:
        """One of a group's members."""
        return self._random.choice(self.members[group])

    async def leave(self, member: Member, *, for_good: bool = True) -> None:
        """A member ends as it should."""
        group, now = member.group, self._history.now()
        self.members[group].remove(member)
        if for_good:
            times = self._history.members[group]
            times[:] = [(name, begin, now if name == member.name else end) for name, begin, end in times]
        self._history.trace(f"{group} {member.name} leaves")
        await member.process.stop()
        self._history.trace(f"{group} {member.name} has left")

    def kill(self, member: Member) -> None:
        """A member's process is killed: it is not heard any more, whatever it still does here."""
        self.members[member.group].remove(member)
        member.life.over = True
        member.network.die()
        member.disk = member.disk.after_a_kill()
        self._history.killed(member.group, member.name)
        self._dying.append(asyncio.create_task(member.process.stop()))

    async def come_back(self, member: Member) -> None:
        """A member that has left, or was killed, is started again on its machine."""
        await self._start(member.group, member.name, member.host, member.clock, member.disk)

    async def gone(self) -> None:
        """Return when nothing of those that were killed runs on, unheard, in this process."""
        for task in self._dying:
            await task
        self._dying.clear()

    # --- handlers ----------------------------------------------------------------------------------------------------

    def _handler(self, life: _Life) -> Callable[[list[MessageExt]], Coroutine[Any, Any, None]]:
        async def handle(batch: list[MessageExt]) -> None:
            for message in batch:
                life.begins(message)
                well = False
                try:
                    await asyncio.sleep(self._random.uniform(0, self.slowest_handler))
                    self._maybe_raise()
                    well = True
                finally:
                    life.ends(message, well=well)

        return handle

    def _def_handler(self, life: _Life) -> Callable[[list[MessageExt]], None]:
        def handle(batch: list[MessageExt]) -> None:
            for message in batch:
                life.begins(message)
                well = False
                try:
                    self._maybe_raise()
                    well = True
                finally:
                    life.ends(message, well=well)

        return handle

    def _maybe_raise(self) -> None:
        if self.raising and self._random.random() < self.raising:
            raise ValueError("as the simulation wants it")
