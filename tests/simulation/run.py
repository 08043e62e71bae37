"""One simulated run: what a seed decides, and ten virtual minutes of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rocketbox.blocking import blocking_in_loop
from rocketbox.client import ClientOptions, ConsumerOptions, Producer, PushConsumer
from rocketbox.errors import RocketBoxError
from rocketbox.loops import callbacks_in_asyncio
from rocketbox.message import ConsumeFromWhere, ConsumeMode, Message, MessageExt, MessageQueue
from tests.simulation.cluster import HostClock, Process, SimulatedBroker, SimulatedNameServer
from tests.simulation.history import History
from tests.simulation.loop import BEGIN, Deadlock, SeededLoop
from tests.simulation.network import SimulatedNetwork

__all__ = ["Outcome", "simulate"]

TOPIC = "T"
LENGTH = 600.0  # virtual seconds
QUIET = 80.0  # at its end, without faults
GROUPS = {"concurrent": False, "orderly": True}
QUEUES = 4
LONGEST_FAULT = 40.0


@dataclass(frozen=True)
class Outcome:
    """What came of a seed. Equal seeds have equal outcomes."""

    seed: int
    violations: list[str]
    faults: list[str]
    digest: str
    acknowledged: int
    handled: int


def simulate(seed: int, *, talk: Callable[[str], object] | None = None) -> Outcome:
    """Run a seed; ``talk`` hears of everything that happens."""
    gc.collect()
    gc.disable()  # nothing is to end when the collector happens to come by
    loop = SeededLoop(seed)
    history = History(lambda: loop.time() - BEGIN, talk)
    noticed = _Failures(history)
    logging.getLogger("rocketbox").addHandler(noticed)
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_run(seed, loop, history))
        left = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if left:
            history.violate(f"timers are left: {left}")
    except Deadlock as deadlock:
        history.violate(f"all tasks wait for ever {deadlock}")
    finally:
        logging.getLogger("rocketbox").removeHandler(noticed)
        asyncio.set_event_loop(None)
        loop.close()
        gc.enable()
    faults = [f"{begin:.1f}-{end:.1f} s {text}" for begin, end, text in history.faults]
    return Outcome(seed, history.violations, faults, history.digest, len(history.acknowledged), history.handled)


async def _run(seed: int, loop: SeededLoop, history: History) -> None:
    def failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        history.violate(f"{context['message'].partition('<')[0]}: {context.get('exception')!r}")

    loop.set_exception_handler(failed)
    with callbacks_in_asyncio():
        await _Run(seed, loop, history).run()


class _Failures(logging.Handler):
    """A task that failed is a fault of the product, whatever was done to it."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.WARNING)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._history.trace(f"log {record.msg}")  # without its values: message ids hold the number of the process
        if self._history.talk is not None:
            self._history.talk(text)
        if record.name == "rocketbox.tasks":
            error = record.exc_info[1] if record.exc_info else None
            self._history.violate(f"{text}: {error!r}")


class _Run:
    def __init__(self, seed: int, loop: SeededLoop, history: History) -> None:
        self.random = random.Random(seed)
        self.loop = loop
        self.history = history
        self.history.groups = dict(GROUPS)
        self.network = SimulatedNetwork(random.Random(self.random.random()), history.trace)
        self.slowest_handler = 0.02
        self.raising = 0.0
        self.producing = True
        self.name_servers = [
            SimulatedNameServer(self.network, number, self.random.getrandbits(32))
            for number in range(1, self.random.choice([2, 3]))
        ]
        addresses = [server.address for server in self.name_servers]
        self.brokers = [
            SimulatedBroker(self.network, number, addresses, self.random.getrandbits(32))
            for number in range(1, self.random.choice([2, 3]))
        ]
        self.addresses = addresses
        self.members: dict[str, list[tuple[str, Process, str, HostClock]]] = {group: [] for group in GROUPS}
        self.client_hosts: list[str] = []
        self._made = 0

    # --- the run -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        with blocking_in_loop(self._later):
            for name_server in self.name_servers:
                await name_server.start()
            for broker in self.brokers:
                await broker.start()
            for group in GROUPS:
                for _ in range(self.random.choice([1, 2, 3])):
                    await self._join(group)
            tasks = [asyncio.create_task(self._produce(broker, queue)) for broker in self.brokers
                     for queue in range(QUEUES)]  # fmt: skip
            looking = asyncio.create_task(self._look())
            tasks += [asyncio.create_task(fault) for fault in self._planned()]
            await asyncio.sleep(LENGTH - 45.0)
            self.producing = False
            await asyncio.gather(*tasks)
            await asyncio.sleep(45.0)
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            self.history.check()
            for group, members in self.members.items():
                while members:
                    await self._leave(group)
            for broker in self.brokers:
                await broker.stop()
                await broker.gone()
            for name_server in self.name_servers:
                await name_server.stop()
            await asyncio.sleep(5.0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left or self.network.links or self.network.listeners:
            names = sorted(task.get_name() for task in left)
            self.history.violate(f"left: tasks {names}, {len(self.network.links)} links, {self.network.listeners}")

    def _later(self, call: Callable[[], object]) -> None:
        seconds = self.random.uniform(0.00005, 0.002)
        self.loop.call_later(seconds, call)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 1.5))
            for broker in self.brokers:
                if broker.running is not None:
                    for group in GROUPS:
                        for queue in range(QUEUES):
                            offset = broker.running.offsets.get(group, TOPIC, queue)
                            if offset is not None:
                                self.history.committed(group, (broker.name, queue), offset)

    # --- clients -----------------------------------------------------------------------------------------------------

    def _client_options(self) -> tuple[ClientOptions, HostClock, str]:
        self._made += 1
        host = f"10.0.2.{self._made}"
        self.client_hosts.append(host)
        return ClientOptions(client_ip=host, instance_name="c"), HostClock(self.random.getrandbits(32)), host

    async def _produce(self, broker: SimulatedBroker, queue_id: int) -> None:
        """Numbers into one queue, each until it is acknowledged."""
        options, clock, host = self._client_options()
        producer = Producer(
            f"p-{broker.name}-{queue_id}", name_server=self.addresses, client_options=options, clock=clock,
            network=self.network.host(host),
        )  # fmt: skip
        queue, number = MessageQueue(TOPIC, broker.name, queue_id), 0
        await asyncio.sleep(self.random.random())
        async with producer:
            while self.producing:
                body = f"{broker.name}/{queue_id}-{number}"
                try:
                    result = await producer.send(Message(TOPIC, body.encode()), queue=queue)
                except RocketBoxError as error:
                    self.history.trace(f"{body} failed: {type(error).__name__}")
                    await asyncio.sleep(self.random.uniform(0.5, 2.0))
                    continue
                self.history.sent(body, (broker.name, queue_id), result.queue_offset)
                number += 1
                await asyncio.sleep(self.random.uniform(1.0, 10.0))

    async def _join(self, group: str) -> None:
        options, clock, host = self._client_options()
        name, orderly = f"m{self._made}", GROUPS[group]
        consumer = PushConsumer(
            group,
            name_server=self.addresses,
            options=ConsumerOptions(
                consume_mode=ConsumeMode.ORDERLY if orderly else ConsumeMode.CONCURRENTLY,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                wait_for_servers=True,
            ),
            client_options=options,
            clock=clock,
            network=self.network.host(host),
        )  # fmt: skip
        handler = self._def_handler(group, name) if self.random.random() < 0.3 else self._handler(group, name)
        await consumer.subscribe(TOPIC, "*", handler)
        process = Process(lambda: consumer)
        self.members[group].append((name, process, host, clock))
        self.history.trace(f"{group} {name} joins")
        await process.start()

    async def _leave(self, group: str) -> None:
        members = self.members[group]
        name, process, _, _ = members.pop(self.random.randrange(len(members)))
        self.history.trace(f"{group} {name} leaves")
        await process.stop()
        self.history.trace(f"{group} {name} has left")

    def _handler(self, group: str, name: str) -> Callable[[list[MessageExt]], Coroutine[Any, Any, None]]:
        async def handle(batch: list[MessageExt]) -> None:
            for message in batch:
                self.history.begins(group, name, message)
                well = False
                try:
                    await asyncio.sleep(self.random.uniform(0, self.slowest_handler))
                    self._maybe_raise()
                    well = True
                finally:
                    self.history.ends(group, name, message, well=well)

        return handle

    def _def_handler(self, group: str, name: str) -> Callable[[list[MessageExt]], None]:
        def handle(batch: list[MessageExt]) -> None:
            for message in batch:
                self.history.begins(group, name, message)
                well = False
                try:
                    self._maybe_raise()
                    well = True
                finally:
                    self.history.ends(group, name, message, well=well)

        return handle

    def _maybe_raise(self) -> None:
        if self.raising and self.random.random() < self.raising:
            raise ValueError("as the simulation wants it")

    # --- faults ------------------------------------------------------------------------------------------------------

    def _planned(self) -> list[Coroutine[Any, Any, None]]:
        """Between none and six faults, each at its time."""
        kinds = [
            self._slow_network, self._lossy_network, self._reset, self._cut, self._silent, self._restart_broker,
            self._kill_broker, self._restart_name_server, self._join_member, self._leave_member, self._jump,
            self._slow_handlers, self._raising_handlers,
        ]  # fmt: skip
        planned = []
        for _ in range(self.random.choice([0, 1, 2, 3, 4, 6])):
            kind = self.random.choice(kinds)
            planned.append(self._at(self.random.uniform(5.0, LENGTH - QUIET - LONGEST_FAULT), kind))
        return planned

    async def _at(self, when: float, fault: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await asyncio.sleep(when)
        await fault()

    def _server_hosts(self) -> list[str]:
        return [broker.host for broker in self.brokers] + [server.host for server in self.name_servers]

    async def _slow_network(self) -> None:
        seconds = self.random.uniform(1, LONGEST_FAULT)
        conditions, slowest = self.network.conditions, self.random.choice([0.05, 0.5, 2.0])
        self.history.fault(f"packets take up to {slowest} s", seconds)
        conditions.slowest = slowest
        await asyncio.sleep(seconds)
        conditions.slowest = 0.002

    async def _lossy_network(self) -> None:
        seconds = self.random.uniform(1, LONGEST_FAULT)
        self.network.conditions.loss = self.random.choice([0.01, 0.1, 0.3])
        self.history.fault(f"{self.network.conditions.loss:.0%} of the packets are lost", seconds)
        await asyncio.sleep(seconds)
        self.network.conditions.loss = 0.0

    async def _reset(self) -> None:
        host = self.random.choice(self._server_hosts() + self.client_hosts)
        self.history.fault(f"the connections of {host} are reset", 0)
        for link in self.network.links_of(host):
            link.reset()

    async def _cut(self) -> None:
        host = self.random.choice(self._server_hosts() + self.client_hosts)
        self.history.fault(f"the connections of {host} are half-open", 20)
        for link in self.network.links_of(host):
            link.cut = True

    async def _silent(self) -> None:
        seconds = self.random.uniform(1, LONGEST_FAULT)
        host = self.random.choice(self._server_hosts() + self.client_hosts)
        self.history.fault(f"{host} is silent", seconds)
        silent = self.network.conditions.silent
        silent[host] = max(silent.get(host, 0.0), self.loop.time() + seconds)

    async def _restart_broker(self) -> None:
        broker, seconds = self.random.choice(self.brokers), self.random.uniform(0.1, 20)
        if broker.running is not None:
            self.history.fault(f"{broker.name} is stopped", seconds + 10)
            await broker.stop()
            await asyncio.sleep(seconds)
            await broker.start()

    async def _kill_broker(self) -> None:
        broker, seconds = self.random.choice(self.brokers), self.random.uniform(0.1, 20)
        if broker.running is not None:
            self.history.fault(f"{broker.name} is killed", seconds + 5)
            broker.kill()
            await asyncio.sleep(seconds)
            await broker.start()

    async def _restart_name_server(self) -> None:
        server, seconds = self.random.choice(self.name_servers), self.random.uniform(0.1, LONGEST_FAULT)
        self.history.fault(f"name server {server.host} is stopped", seconds + 30)  # brokers register each 30 s
        await server.stop()
        await asyncio.sleep(seconds)
        await server.start()

    async def _join_member(self) -> None:
        group = self.random.choice(sorted(GROUPS))
        self.history.fault(f"a member joins {group}", 0)
        await self._join(group)

    async def _leave_member(self) -> None:
        group = self.random.choice(sorted(GROUPS))
        if len(self.members[group]) > 1:
            self.history.fault(f"a member leaves {group}", 5)
            await self._leave(group)

    async def _jump(self) -> None:
        members = [member for group in GROUPS for member in self.members[group]]
        clock = self.random.choice([broker.clock for broker in self.brokers] + [member[3] for member in members])
        by_ms = self.random.choice([-3_600_000, -5_000, 5_000, 3_600_000])
        self.history.fault(f"a clock jumps by {by_ms} ms", 0)
        clock.ahead_ms += by_ms

    async def _slow_handlers(self) -> None:
        seconds = self.random.uniform(1, LONGEST_FAULT)
        self.slowest_handler = self.random.choice([0.5, 3.0])
        self.history.fault(f"handlers take up to {self.slowest_handler} s", seconds)
        await asyncio.sleep(seconds)
        self.slowest_handler = 0.02

    async def _raising_handlers(self) -> None:
        seconds = self.random.uniform(1, LONGEST_FAULT)
        self.raising = self.random.choice([0.1, 0.5])
        self.history.fault(f"handlers raise {self.raising:.0%}", seconds)
        await asyncio.sleep(seconds)
        self.raising = 0.0
