"""Power failures: whatever a crash leaves of what was not synced, nothing acknowledged is lost, nothing is made up."""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Iterable, Iterator

import pytest

from rocketbox.broker.store.options import StoreOptions
from tests.support.store.crash_checks import Mark, inline_pools, rare_collections
from tests.support.store.crash_workloads import ASYNC, STEPS, SYNC, CrashTester, Machine
from tests.support.store.crashable_storage import CrashableStorage, Image

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Tens of thousands of recoveries say what they cut; nobody reads it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


ALL = os.environ.get("ROCKETBOX_TESTS") == "all"  # minutes instead of seconds
MOST_FAILURES = 20
SCENARIOS, ROUNDS, STATES = (10, 12, 1000) if ALL else (1, 3, 200)  # of each way to flush: 20,000 states, or 400
STATES_PER_CRASHED_RECOVERY = 60


class Recorder:
    """Collects what a crash of a machine may leave, each once: with ``chance`` one of it at each call, else all."""

    def __init__(self, machine: Machine, chance: random.Random | None = None) -> None:
        self.machine = machine
        self.name = "start"
        self.states: dict[tuple[object, Mark], tuple[Image, Mark, str]] = {}
        self._chance = chance

    def crash(self) -> None:
        storage, mark = self.machine.storage, self.machine.ledger.mark()
        name = f"{self.name}, call {storage.calls}"
        for image in storage.images() if self._chance is None else [storage.sample(self._chance)]:
            self.states[image.key, mark] = (image, mark, name)


async def explore(tester: CrashTester, *steps: Iterable[str]) -> None:
    """All states after a crash at any call of any workload: one of the first ``steps``, one of the next ..."""
    seen: set[tuple[str, ...]] = set()
    for workload in itertools.product(*steps):
        machine = Machine(tester.options)
        recorder = Recorder(machine)
        machine.on_point = None if seen else recorder.crash
        await machine.open()
        for number, step in enumerate(workload, 1):
            prefix = workload[:number]
            recorder.name = " ".join(prefix)
            machine.on_point = None if prefix in seen else recorder.crash
            seen.add(prefix)
            await STEPS[step](machine)
        recorder.crash()
        machine.on_point = None
        await machine.close()
        for image, mark, name in recorder.states.values():
            await tester.check(image, machine.ledger, mark, name)
        if len(tester.failures) > MOST_FAILURES:
            break


async def test_every_state_that_a_crash_leaves_of_a_put_and_a_step_is_recovered() -> None:
    tester = CrashTester(SYNC)
    with inline_pools(), rare_collections():
        await explore(tester, ["put"], STEPS)
    assert not tester.failures, report(tester)


@pytest.mark.parametrize("options", [SYNC, ASYNC], ids=["sync", "async"])
async def test_every_state_that_a_crash_leaves_of_a_short_workload_is_recovered(options: StoreOptions) -> None:
    tester = CrashTester(options)
    with inline_pools(), rare_collections():
        await explore(tester, *([STEPS] * 3 if ALL else [("put", "flush", "large"), STEPS]))
    print(dict(tester.counts))
    assert not tester.failures, report(tester)
    assert tester.counts["disks"] > 200


def report(tester: CrashTester) -> str:
    return f"{dict(tester.counts)}\n" + "\n".join(failure[:600] for failure in tester.failures[:10])


@pytest.mark.parametrize("seed", range(SCENARIOS))
@pytest.mark.parametrize("options", [SYNC, ASYNC], ids=["sync", "async"])
async def test_whatever_a_crash_leaves_of_a_long_scenario_is_recovered(options: StoreOptions, seed: int) -> None:
    """Each step several times, in an order that the seed decides."""
    chance = random.Random(seed)
    tester = CrashTester(options)
    machine = Machine(options)
    recorder = Recorder(machine, chance)
    steps = list(STEPS) * ROUNDS
    chance.shuffle(steps)
    with inline_pools(), rare_collections():
        machine.on_point = recorder.crash
        await machine.open()
        for recorder.name in steps:
            await STEPS[recorder.name](machine)
        recorder.crash()
        machine.on_point = None
        await machine.close()
        for number, (image, mark, name) in enumerate(chance.sample([*recorder.states.values()], STATES)):
            again = None if number % STATES_PER_CRASHED_RECOVERY else chance
            await tester.check(image, machine.ledger, mark, name, again=again)
    print(dict(tester.counts))
    assert not tester.failures, report(tester)


@pytest.mark.parametrize("options", [SYNC, ASYNC], ids=["sync", "async"])
async def test_what_a_killed_store_left_unsynced_is_safe_once_the_next_one_has_opened_it(options: StoreOptions) -> None:
    """Killed at any call, started again, one more put; then the power fails."""
    chance = random.Random(0)
    tester = CrashTester(options)
    machine = Machine(options)
    kills: dict[object, tuple[CrashableStorage, Mark, str]] = {}

    def kill() -> None:
        kills[machine.storage.calls] = (machine.storage.fork(), machine.ledger.mark(), name)

    with inline_pools(), rare_collections():
        machine.on_point = kill
        name = "start"
        await machine.open()
        for name in ("put", "together", "large", "flush", "large", "put", "stop", "put"):
            await STEPS[name](machine)
        machine.on_point = None
        await machine.close()
        for call, (storage, mark, name) in kills.items():
            again = Machine(options, storage)
            again.ledger = machine.ledger.at(mark)
            again.ledger.synced = 0 if tester.synced_only else mark.synced
            again.number = 1000
            await again.open()
            for sent in again.ledger.sent:  # what can be read now can be read for good
                again.ledger.acknowledged = again.ledger.synced = max(again.ledger.acknowledged, sent.end)
            await again.put()
            if tester.synced_only:
                again.ledger.acknowledged = again.ledger.sent[-1].place
            for _ in range(4):
                image, after = again.storage.sample(chance), again.ledger.mark()
                await tester.check(image, again.ledger, after, f"{name}, killed at call {call}")
            await again.close()
    assert not tester.failures, report(tester)
