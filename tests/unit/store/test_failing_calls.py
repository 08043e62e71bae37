"""A call of the file system fails, whichever it is: nothing acknowledged is lost, nothing hangs, the truth is told."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import anyio
import pytest

from rocketbox.broker.store.options import StoreOptions
from rocketbox.errors import StoreError
from tests.support.clocks import idle
from tests.support.store.crash_checks import inline_pools, observe, verify
from tests.support.store.crash_workloads import ASYNC, STEPS, SYNC, CrashTester, Machine

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

SCENARIO = ("put", "together", "large", "flush", "offsets", "large", "stop", "put")
DESCRIPTORS = {"open", "create", "list", "sync directory", "lock"}  # calls that need a file descriptor
ROOM = {"create", "write", "truncate", "allocate", "rename", "make directory"}  # and those that need room on the disk
ERRORS = {
    errno.EIO: None,
    errno.ENOSPC: ROOM,
    errno.EMFILE: DESCRIPTORS,
}
ALL = os.environ.get("ROCKETBOX_TESTS") == "all"
PATIENCE = 40  # seconds of the clock that anything may take


@dataclasses.dataclass
class Fault:
    """The ``number``-th call (from 0), or all from it on, fails with ``code``, if it is one that can."""

    code: int
    number: int
    for_ever: bool
    calls: int = 0
    failed: tuple[str, str] | None = None
    healed: bool = False

    def on_call(self, name: str, path: str, offset: int, size: int) -> None:
        if self.healed:
            return
        number, self.calls = self.calls, self.calls + 1
        kinds = ERRORS[self.code]
        if number < self.number or (kinds is not None and name not in kinds):
            return
        if number == self.number or (self.for_ever and self.failed is not None):
            self.failed = self.failed or (name, path)
            raise OSError(self.code, os.strerror(self.code), path)

    @property
    def of_the_log(self) -> bool:
        """Whether it is a failed write or sync of the commit log, after which the store may stop for good."""
        name, path = self.failed or ("", "")
        return "/commitlog/" in path and name in {"write", "sync"} and self.code != errno.EMFILE


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Run:
    """The scenario on a storage with a fault. ``wrong`` is what should not have been."""

    def __init__(self, options: StoreOptions, fault: Fault) -> None:
        self.machine = Machine(options)
        self.fault = fault
        self.wrong: list[str] = []
        self.refused: Counter[str] = Counter()
        self.step = ""
        self.stepped = anyio.Event()
        self.began = 0.0
        self.ended = False
        before = self.machine.storage.before_call
        assert before is not None

        def before_call(name: str, path: str, offset: int, size: int) -> None:
            fault.on_call(name, path, offset, size)
            before(name, path, offset, size)

        self.machine.storage.before_call = before_call

    async def run(self) -> None:
        """Take all steps, in a task of their own; the clock is moved on when nothing goes on without it."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._take_steps)
            await idle()
            while not self.ended:
                if self.step in {"flush", "wait"}:  # these move the clock themselves
                    await self.stepped.wait()
                    continue
                await self.machine.clock.advance(1)
                if self.machine.clock.now > self.began + PATIENCE:
                    self.wrong.append(f"{self.step} hangs")
                    group.cancel_scope.cancel()
                    break

    async def _take_steps(self) -> None:
        machine = self.machine
        if await self._take("open", machine.open):  # in the task that closes it
            for name in SCENARIO:
                if not await self._take(name, partial(STEPS[name], machine)) and name == "stop":
                    break
            else:
                if not self.fault.for_ever:
                    await self._take("wait", partial(machine.clock.advance, PATIENCE))
                    await self._expect_health()
                await self._take("close", machine.close)
        self.ended = True
        self.stepped.set()

    async def _expect_health(self) -> None:
        store, ledger = self.machine.store, self.machine.ledger
        self.fault.healed = True
        if store.failure is not None:
            if not self.fault.of_the_log:
                self.wrong.append(f"the store has failed for good: {store.failure}")
        else:
            if not await self._take("put", self.machine.put):
                self.wrong.append("it takes no more puts")
            outcome = await observe(store)
            if outcome.trouble:  # it may have just begun; what passes is told no longer
                await self._take("wait", partial(self.machine.clock.advance, PATIENCE))
                outcome = await observe(store)
            self.wrong += verify(outcome, ledger, ledger.mark())

    async def _take(self, name: str, step: Callable[[], Awaitable[None]]) -> bool:
        """Whether the step was done. It may be refused by an error of the store, or the fault itself."""
        self.step, self.began = name, self.machine.clock.now
        self.stepped.set()
        self.stepped = anyio.Event()
        try:
            await step()
        except (StoreError, TimeoutError) as error:
            self.refused[type(error).__name__] += 1
        except OSError as error:
            if error.errno != self.fault.code:
                raise
            self.refused["OSError"] += 1
        except Exception as error:
            self.wrong.append(f"{name} raised {type(error).__name__}: {error}")
        else:
            return True
        return False


async def outcome_of(options: StoreOptions, fault: Fault, tester: CrashTester) -> str | None:
    """What is wrong when this fault meets the scenario and the machine fails behind it; None if nothing is."""
    run = Run(options, fault)
    await run.run()
    wrong = [*run.wrong]
    fault.healed = True
    before = len(tester.failures)
    storage, mark = run.machine.storage, run.machine.ledger.mark()
    chance = random.Random(fault.number)
    for image in (storage.image(), *(storage.sample(chance) for _ in range(2))):
        await tester.check(image, run.machine.ledger, mark, "afterwards")
    wrong += tester.failures[before:]
    del tester.failures[before:]
    if not wrong or fault.failed is None:
        return None
    kind = "for ever" if fault.for_ever else "once"
    return (
        f"{errno.errorcode[fault.code]} {kind} at call {fault.number}, {' of '.join(fault.failed)}: {'; '.join(wrong)}"
    )


@pytest.mark.parametrize("code", list(ERRORS), ids=[errno.errorcode[code] for code in ERRORS])
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("options", [SYNC, ASYNC], ids=["sync", "async"])
async def test_whichever_call_fails_nothing_acknowledged_is_lost(
    options: StoreOptions, for_ever: bool, code: int
) -> None:
    wrong = []
    tester = CrashTester(options)
    with inline_pools():
        calls = (await counted(options)).calls
        assert calls > 100
        for number in range(0, calls, 1 if ALL or options is SYNC else 5):
            found = await outcome_of(options, Fault(code, number, for_ever), tester)
            if found is not None:
                wrong.append(found)
    assert not wrong, f"{len(wrong)} of {calls} calls:\n" + "\n".join(text[:400] for text in wrong[:20])


async def counted(options: StoreOptions) -> Fault:
    """The scenario without a fault: how many calls it has."""
    fault = Fault(errno.EIO, 1 << 60, for_ever=False)
    run = Run(options, fault)
    await run.run()
    assert not run.wrong
    return fault
