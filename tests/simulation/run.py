"""One simulated run: what a seed decides, and ten virtual minutes of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from rocketbox.blocking import blocking_in_loop
from rocketbox.client import Admin
from rocketbox.loops import callbacks_in_asyncio
from tests.simulation.arrivals import ASKED, COMMITTED, TIMED
from tests.simulation.clients import GROUPS, OTHER, QUEUES, TOPIC, TOPICS, Clients
from tests.simulation.cluster import PullRules, SimulatedBroker, SimulatedNameServer
from tests.simulation.faults import KINDS, Faults
from tests.simulation.history import GroupKind, History
from tests.simulation.loop import BEGIN, Deadlock, SeededLoop, count_anew
from tests.simulation.network import SimulatedNetwork
from tests.simulation.onlooker import Onlooker

__all__ = ["Outcome", "simulate"]

LENGTH = 600.0  # virtual seconds
QUIET = 120.0  # at its end, without faults


@dataclass(frozen=True)
class Outcome:
    """What came of a seed. Equal seeds have equal outcomes."""

    seed: int
    violations: list[str]
    faults: list[str]
    digest: str
    acknowledged: int
    handled: int


def simulate(
    seed: int, *, talk: Callable[[str], object] | None = None, kinds: Sequence[str] = tuple(KINDS),
    ways: Sequence[str] | None = None, until_violated: bool = False,
) -> Outcome:  # fmt: skip
    """Run a seed with faults of these kinds; ``talk`` hears of everything that happens.

    ``ways`` are those in which clients send besides (``clients.WAYS``); None: some of them, as the seed has it.

    ``until_violated``: no further than to the first violation. The process has to end then, for nothing is put away.
    """
    gc.collect()
    gc.disable()  # nothing is to end when the collector happens to come by
    count_anew()
    loop = SeededLoop(seed)
    history = History(lambda: loop.time() - BEGIN, talk)
    noticed = _Failures(history)
    logging.getLogger("rocketbox").addHandler(noticed)
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(
            _run(seed, loop, history, kinds, None if ways is None else frozenset(ways), until_violated)
        )
        if (left := loop.timers()) and not (until_violated and history.violations):
            history.violate(f"timers are left: {left}")
    except Deadlock as deadlock:
        history.violate(f"all tasks wait for ever {deadlock}")
    finally:
        logging.getLogger("rocketbox").removeHandler(noticed)
        asyncio.set_event_loop(None)
        loop.close()
        gc.enable()
    faults = [f"{fault.begin:.1f}-{fault.end:.1f} s {fault.text}" for fault in history.faults]
    return Outcome(seed, history.violations, faults, history.digest, len(history.acknowledged), history.handled)


async def _run(
    seed: int, loop: SeededLoop, history: History, kinds: Sequence[str], ways: frozenset[str] | None,
    until_violated: bool,
) -> None:  # fmt: skip
    def failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        history.violate(f"{context['message'].partition('<')[0]}: {context.get('exception')!r}")

    loop.set_exception_handler(failed)
    with callbacks_in_asyncio():
        run = _Run(seed, loop, history, ways)
        running = run.run(kinds)
        if until_violated:
            await _until_violated(running, history, run.check)
        else:
            await running


async def _until_violated(running: Coroutine[Any, Any, None], history: History, check: Callable[..., object]) -> None:
    task = asyncio.create_task(running)
    while not task.done() and not history.violations:
        await asyncio.wait([task], timeout=5.0)
        check(at_rest=False)
    if not history.violations:
        await task


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
        if record.name.startswith("rocketbox.nameserver") and "is dropped" in record.msg:
            assert isinstance(record.args, tuple)
            self._history.unrouted(str(record.args[0]))
        if record.name == "rocketbox.tasks":
            error = record.exc_info[1] if record.exc_info else None
            self._history.violate(f"{text}: {error!r}")


class _Run:
    def __init__(self, seed: int, loop: SeededLoop, history: History, ways: frozenset[str] | None) -> None:
        self.random = random.Random(seed)
        self.loop = loop
        self.history = history
        history.groups, history.topics = dict(GROUPS), dict(TOPICS)
        self.network = SimulatedNetwork(random.Random(self.random.random()), history.trace)
        self.slowest_call = 0.002
        self.name_servers = [
            SimulatedNameServer(self.network, number, self.random.getrandbits(32))
            for number in range(1, self.random.choice([2, 3]))
        ]
        addresses = [server.address for server in self.name_servers]
        self.brokers = [
            SimulatedBroker(
                self.network, number, addresses, self.random.getrandbits(32),
                flush=self.random.choice(["SYNC_FLUSH", "SYNC_FLUSH", "ASYNC_FLUSH"]),
                rules=PullRules(loop.time, history.violate),
            )
            for number in range(1, self.random.choice([2, 3]))
        ]  # fmt: skip
        self.clients = Clients(
            self.random, self.network, history, addresses, self.brokers, quiet_at=LENGTH - QUIET,
            chance_of_ways=random.Random(f"ways of {seed}"), ways=ways,
        )  # fmt: skip
        self.faults = Faults(
            self.random, self.network, history, self.clients, self.brokers, self.name_servers, self._calls_take
        )
        self.onlooker = Onlooker(history, self.clients, self.brokers, self.name_servers)
        self.clients.calm_for = self.faults.calm_for

    async def run(self, kinds: Sequence[str]) -> None:
        clients, others = self.clients, asyncio.all_tasks()
        with blocking_in_loop(self._later):
            for name_server in self.name_servers:
                await name_server.start()
            for broker in self.brokers:
                await broker.start()
            await clients.administer(self._make_topics)
            await clients.make_elsewhere()
            clients.other_is_there.set()
            for group, kind in GROUPS.items():
                for _ in range(self.random.choice([1, 2, 3] if kind is GroupKind.ORDERLY else [1, 2])):
                    await clients.join(group)
            tasks = [asyncio.create_task(clients.produce(broker)) for broker in self.brokers]
            if "requests" in clients.ways:
                tasks.append(asyncio.create_task(clients.reply()))
            looking = asyncio.create_task(self._look())
            tasks += [asyncio.create_task(fault) for fault in self.faults.planned(kinds, LENGTH - QUIET)]
            await asyncio.sleep(LENGTH - 45.0 - self.history.now())
            clients.producing = False
            await asyncio.gather(*tasks)
            await asyncio.sleep(45.0)
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            self.onlooker.look_at_owners(at_rest=True)
            self.check(at_rest=True)
            for members in clients.members.values():
                for member in list(members):
                    await clients.leave(member)
            await clients.gone()
            for broker in self.brokers:
                await broker.stop()
                await broker.gone()
            for name_server in self.name_servers:
                await name_server.stop()
            await asyncio.sleep(5.0)
        left = asyncio.all_tasks() - others
        if left or self.network.links or self.network.listeners:
            names = sorted(task.get_name() for task in left)
            self.history.violate(f"left: tasks {names}, {len(self.network.links)} links, {self.network.listeners}")

    def check(self, *, at_rest: bool) -> None:
        """Whether all is well that can be told by now; ``at_rest``: all that was to come has come."""
        self.history.check(at_rest=at_rest)
        clients = self.clients
        if at_rest:
            clients.arrivals.read_all()
            for broker in self.brokers:
                clients.transactions.check_open(broker)
        clients.transactions.check_all(at_rest=at_rest)
        clients.timers.check_all(at_rest=at_rest)

    async def _make_topics(self, admin: Admin) -> None:
        await admin.create_topic(TOPIC, queues=QUEUES)
        await admin.create_topic(OTHER, queues=2)
        for way, topic in (("transactions", COMMITTED), ("timers", TIMED), ("requests", ASKED)):
            if way in self.clients.ways:
                await admin.create_topic(topic, queues=1)

    def _calls_take(self, at_most: float) -> None:
        self.slowest_call = at_most

    def _later(self, call: Callable[[], object]) -> None:
        self.loop.call_later(self.random.uniform(0.00005, self.slowest_call), call)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 1.5) if not self.faults.calm_for() else 3.0)
            self.onlooker.look()
