"""The faults that a test lets a service meet: a broker that is silent or gone, a full disk, handlers that fail.

Each begins when it is called and lasts until it is ended, or to the end of the ``with`` that it stands in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from rocketbox.client import ConsumeContext
from rocketbox.client.middleware import ConsumeNext
from rocketbox.client.outcomes import Outcomes
from rocketbox.listeners.dispatch import Invocation
from rocketbox.storage.file_system import DiskUsage
from rocketbox.testing.changes import PlainBlock
from rocketbox.testing.errors import HarnessError, SimulatedError
from rocketbox.testing.listened import is_same
from rocketbox.testing.memory_cluster import FULL, MemoryCluster
from rocketbox.testing.records import told_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

__all__ = ["BrokerFaults", "ClusterFaults", "DiskFaults", "FailingHandler", "Faults", "HandlerFaults"]

ROOMY = DiskUsage(used=0, free=1 << 40)


class Fault(PlainBlock, AbstractContextManager[None]):
    """Something that has begun: ``with`` ends it."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()


class Stopped(AbstractAsyncContextManager[None]):
    """A broker that is stopped inside of ``async with``."""

    def __init__(self, broker: BrokerFaults) -> None:
        self._broker = broker

    def __enter__(self) -> NoReturn:
        raise HarnessError(
            "a broker takes its time to stop: write 'async with harness.broker.stopped():', and in a plain function "
            "harness.blocking.call(harness.broker.stop), and harness.broker.start at the end"
        )

    def __exit__(self, *error: object) -> None: ...

    async def __aenter__(self) -> None:
        await self._broker.stop()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._broker.runs:  # harness.fresh() has started it already
            await self._broker.start()


class Faults:
    """What faults need of a harness.

    ``run(coroutine)`` returns when it has ended, letting time pass for it; ``in_loop(call)`` calls in the loop of the
    harness; ``note(text)`` writes into its log.
    """

    def __init__(
        self,
        run: Callable[[Coroutine[Any, Any, None]], Awaitable[None]],
        in_loop: Callable[[Callable[[], object]], object],
        note: Callable[[str], object],
    ) -> None:
        self.run = run
        self.in_loop = in_loop
        self.note = note


class ClusterFaults:
    """A cluster of a harness: its ``broker`` and its ``disk``."""

    def __init__(self, cluster: MemoryCluster, faults: Faults) -> None:
        self.broker = BrokerFaults(cluster, faults)
        self.disk = DiskFaults(cluster, faults)


def _of(cluster: MemoryCluster) -> str:
    return f" of cluster {cluster.name}" if cluster.name else ""


class BrokerFaults:
    """``harness.broker``: silent, stopped, started again on what it has stored."""

    def __init__(self, cluster: MemoryCluster, faults: Faults) -> None:
        self._cluster = cluster
        self._faults = faults
        self._named = f"the broker{_of(cluster)}"

    @property
    def runs(self) -> bool:
        """Whether it does; not so between :meth:`stop` and :meth:`start`."""
        return self._cluster.runs

    def silence(self) -> Fault:
        """Let the broker take requests, do what they ask, and answer none until :meth:`resume`, or the end of ``with``.

        A message whose send goes unanswered is stored all the same: sent again, it is there twice. Consumers get no
        messages meanwhile. The name server goes on answering.
        """

        def begin() -> None:
            self._cluster.network.silence(self._cluster.address)
            self._faults.note(f"{self._named} falls silent")

        self._faults.in_loop(begin)
        return Fault(self.resume)

    def resume(self) -> None:
        """Let it answer again; answers that were kept back come now, to those who still wait for them."""

        def end() -> None:
            if self._cluster.network.is_silent(self._cluster.address):
                self._faults.note(f"{self._named} answers again")
                self._cluster.network.resume(self._cluster.address)

        self._faults.in_loop(end)

    async def restart(self) -> None:
        """Stop it in order and start it again, at its address, on what it has stored; clients connect again."""
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        """Stop it in order. The name server knows it no more, and nobody reaches it until :meth:`start`."""
        if not self._cluster.runs:
            raise HarnessError(f"{self._named} is stopped already; start it by await harness.broker.start()")
        self._faults.note(f"{self._named} stops")
        await self._faults.run(self._cluster.stop_broker())

    async def start(self) -> None:
        """Start it again, on what it has stored."""
        if self._cluster.runs:
            raise HarnessError(f"{self._named} runs; stop it before by await harness.broker.stop()")
        await self._faults.run(self._cluster.start_broker())
        self._faults.note(f"{self._named} has started")

    def stopped(self) -> Stopped:
        """``async with harness.broker.stopped():`` stops it inside of the block."""
        return Stopped(self)


class DiskFaults:
    """``harness.disk``: that of the broker."""

    def __init__(self, cluster: MemoryCluster, faults: Faults) -> None:
        self._cluster = cluster
        self._faults = faults

    def full(self) -> Fault:
        """Let the broker's disk be full until :meth:`free`, or the end of ``with``: it refuses messages, and reads on.

        It refuses as it does above ``disk-space-warning-level-ratio``: SERVICE_NOT_AVAILABLE, and nothing is stored.
        Producers learn from the name server that it takes no messages, when they ask it next.
        """
        self._set(FULL, "is full")
        return Fault(self.free)

    def free(self) -> None:
        """Let it have room again."""
        self._set(ROOMY, "has room again")

    def _set(self, usage: DiskUsage, told: str) -> None:
        def change() -> None:
            if self._cluster.disk_is_full == (usage is FULL):
                return
            self._cluster.set_disk(usage)
            self._faults.note(f"the disk{_of(self._cluster)} {told}")

        self._faults.in_loop(change)


class FailingHandler(PlainBlock, AbstractContextManager["FailingHandler"]):
    """A handler whose next ``left`` calls fail; ``with`` ends that."""

    def __init__(self, error: BaseException | type[BaseException], times: int, name: str) -> None:
        self.left = times
        self._error = error
        self._times = times
        self._name = name
        self._guard = threading.Lock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            self.left = 0

    def next_error(self) -> BaseException | None:
        """What this call is to raise; None: nothing. Any thread."""
        with self._guard:
            if not self.left:
                return None
            self.left -= 1
            number = self._times - self.left
        if self._error is SimulatedError:
            return SimulatedError(f"{self._name} fails, {number} of {self._times}, as the test said")
        return self._error() if isinstance(self._error, type) else self._error


class HandlerFaults:
    """The middleware next to the handlers of a harness, by which their calls fail as the test says."""

    def __init__(self) -> None:
        # A list: handlers may be objects that have no hash, or are equal to others.
        self._failing: list[tuple[Any, FailingHandler]] = []
        self._raised: list[BaseException] = []

    def add(self, function: Any, failing: FailingHandler) -> None:
        """The next calls of a handler; those that were said before come first."""
        self._failing.append((function, failing))

    def was_asked_for(self, error: BaseException) -> bool:
        """Whether a test has said that it is raised."""
        return any(error is each for each in self._raised)

    def forget(self) -> None:
        """Let no handler fail any more."""
        self._failing.clear()
        self._raised.clear()

    async def __call__(self, context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
        invocation = context.invocation
        if self._failing and isinstance(invocation, Invocation):
            handler = invocation.handler
            if failing := [each for function, each in self._failing if is_same(function, handler)]:
                invocation.check_before(lambda: self._check(failing))
        return await call_next(context)

    def _check(self, failing: Sequence[FailingHandler]) -> None:
        for each in failing:
            if (error := each.next_error()) is not None:
                self._raised.append(error)
                raise error


def _check_can_be_made(kind: type[Exception]) -> None:
    """Raises HarnessError for a class of which each call could not make an exception of its own."""
    try:
        kind()
    except Exception as error:
        raise HarnessError(
            f"error={kind.__qualname__} cannot be made without arguments ({told_error(error)}): give an object, "
            f"error={kind.__qualname__}(...)"
        ) from error


class HandlerHandle:
    """``harness.handler(pay)``."""

    def __init__(self, function: Any, name: str, faults: HandlerFaults, note: Callable[[str], object]) -> None:
        self._function = function
        self._name = name
        self._faults = faults
        self._note = note

    def fails(self, times: int = 1, error: Exception | type[Exception] = SimulatedError) -> FailingHandler:
        """Let its next ``times`` calls raise ``error`` where they would begin; the later ones run as ever.

        Binding, retries and all else are as if the function itself had raised it. :meth:`Harness.drain` does not raise
        it, for the test has asked for it. ``with`` ends it; ``left`` tells how many are still to fail. Of a class each
        call raises an object of its own, made without arguments.
        """
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise HarnessError(
                f"fails({times!r}): write how many calls are to fail, 1 or more, or fails(error=...) for what they "
                "raise"
            )
        if not isinstance(error, Exception) and not (isinstance(error, type) and issubclass(error, Exception)):
            raise HarnessError(f"error={error!r} is no exception: write error=ConnectionError('closed')")
        if isinstance(error, type):
            _check_can_be_made(error)
        failing = FailingHandler(error, times, self._name)
        self._faults.add(self._function, failing)
        self._note(
            f"the next {times} calls of {self._name} fail" if times > 1 else f"the next call of {self._name} fails"
        )
        return failing
