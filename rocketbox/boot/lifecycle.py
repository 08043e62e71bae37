"""The life cycle of an application: phases that start in order and stop in reverse, in one task, each timed.

What starts is handed in as steps; what each step entered closes in reverse order. A start that fails half-way closes
what was started. The whole stop has one time limit: when it runs out, what is still waiting is cancelled, so that every
clean-up runs at least to its next wait.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import anyio

from rocketbox.boot.marks import Phase
from rocketbox.clock import Clock
from rocketbox.own_failures import as_failure
from rocketbox.tasks import Supervisor

__all__ = ["DEFAULT_STOP_TIMEOUT", "Lifecycle", "Phase", "PhaseTimes", "Step"]

_log = logging.getLogger(__name__)

DEFAULT_STOP_TIMEOUT = 20.0  # s, below the 30 s that Kubernetes grants

Step = Callable[[AsyncExitStack], Awaitable[None]]
"""Starts something and enters what it must leave again into the stack it is given."""


@dataclass
class PhaseTimes:
    """Seconds that a phase took; None: it did not get that far."""

    start: float | None = None
    stop: float | None = None


class Lifecycle:
    """``async with`` starts the steps phase by phase; leaving stops them in reverse within ``stop_timeout`` seconds.

    Leaving does not depend on why: a body that was cancelled is followed by the same ordered stop, shielded. After it
    ``cut_short`` names the phase whose stop was cancelled because the time ran out, else it is None.

    ``prepared`` are the seconds that went by before the first phase, which count for the start as well.
    """

    def __init__(
        self, name: str, clock: Clock, *, stop_timeout: float = DEFAULT_STOP_TIMEOUT, prepared: float = 0.0
    ) -> None:
        self.name = name
        self.stop_timeout = stop_timeout
        self.prepared = prepared
        self.times: dict[Phase, PhaseTimes] = {phase: PhaseTimes() for phase in Phase}
        self.cut_short: Phase | None = None
        self.stop_asked_at: float | None = None
        """When the stop was asked for, on the clock's monotonic time, if that was before it began: its time runs."""
        self._clock = clock
        self._steps: dict[Phase, list[Step]] = {phase: [] for phase in Phase}
        self._stopping_since: dict[Phase, float] = {}

    def add(self, phase: Phase, step: Step) -> None:
        """Run ``step`` in its phase, after the steps that were added to that phase before."""
        self._steps[phase].append(step)

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        self._supervisor = Supervisor(f"life cycle of {self.name}", self._clock)
        # Both surround everything that starts, because cancel scopes close in the reverse of their order: the timer of
        # the stop runs outside of the scope that it cancels.
        await self._supervisor.__aenter__()
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        try:
            for phase in Phase:
                await self._start(phase)
        except BaseException as error:
            if not await self._stop(error):
                raise
            # Something that was started swallowed its own cancellation and raised nothing in its place.
            raise RuntimeError(f"the start of {self.name} was cancelled from within") from error
        _log.debug("%s", self.start_summary())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await self._stop(error)

    @property
    def is_cut_short(self) -> bool:
        """Whether the time of the stop is up, so that what still waits is cancelled."""
        return self._scope.cancel_called

    @property
    def start_took(self) -> float:
        """Seconds from the beginning, preparations included, to the end of the phases that have started."""
        return self.prepared + sum(times.start for times in self.times.values() if times.start is not None)

    def start_summary(self) -> str:
        """How long the start took, and each part of it: ``desk: ready after 0.21 s: prepare 90 ms, client 12 ms``."""
        parts = {"prepare": self.prepared}
        parts |= {phase.name.lower(): times.start for phase, times in self.times.items() if times.start is not None}
        split = ", ".join(f"{name} {took * 1000:.0f} ms" for name, took in parts.items())
        return f"{self.name}: ready after {self.start_took:.2f} s: {split}"

    async def _start(self, phase: Phase) -> None:
        steps = self._steps[phase]
        if not steps:
            return
        started = self._clock.monotonic()
        self._stack.callback(self._stopped, phase)
        for step in steps:
            await step(self._stack)
        self._stack.callback(self._stopping, phase)
        took = self.times[phase].start = self._clock.monotonic() - started
        _log.debug("%s: phase %s started in %.1f ms", self.name, phase.name.lower(), took * 1000)

    def _stopping(self, phase: Phase) -> None:
        self._stopping_since[phase] = self._clock.monotonic()

    def _stopped(self, phase: Phase) -> None:
        if self._scope.cancel_called and self.cut_short is None:
            self.cut_short = phase
        if phase not in self._stopping_since:  # its start failed half-way
            return
        took = self.times[phase].stop = self._clock.monotonic() - self._stopping_since[phase]
        _log.debug("%s: phase %s stopped in %.1f ms", self.name, phase.name.lower(), took * 1000)

    async def _stop(self, error: BaseException | None) -> bool:
        """Close everything, in reverse. True when ``error`` is a cancellation that something inside had called for."""
        cancellation = anyio.get_cancelled_exc_class()
        self._scope.shield = True
        self._timer = anyio.CancelScope(shield=True)  # the cancellation that led here must leave the stop its limit
        self._supervisor.start("stop timer", self._cancel_when_late, restart=False)
        # What closes here is told of no error of the body: it would take the orderly way out of nobody's code. Only a
        # cancellation that one of the scopes inside has called for must come by that scope.
        inside = isinstance(error, cancellation) and anyio.current_effective_deadline() == -math.inf
        told = error if inside else None
        swallowed = False
        failed: BaseException | None = None
        try:
            swallowed = bool(await self._stack.__aexit__(*_triple(told)))
        except BaseException as closing:
            failed = closing if closing is error else as_failure(closing, exits=True, hosted=True)
            if failed is not closing:
                failed.__cause__ = closing
        if self._scope.__exit__(*_triple(failed)):  # it came from the timer
            failed = None
        self._timer.cancel()
        await self._supervisor.__aexit__(*_triple(failed if isinstance(failed, cancellation) else None))
        if self.cut_short is not None:
            _log.error(
                "%s: the stop took longer than %g s; phase %s was cut short",
                self.name,
                self.stop_timeout,
                self.cut_short.name.lower(),
            )
        if failed is None or failed is error:
            return swallowed
        if error is not None and not inside:
            _log.error("%s: the stop failed as well", self.name, exc_info=failed)
            return False
        raise failed

    async def _cancel_when_late(self) -> None:
        with self._timer:
            late = 0.0 if self.stop_asked_at is None else self._clock.monotonic() - self.stop_asked_at
            await self._clock.sleep(max(self.stop_timeout - late, 0.0))
            self._scope.cancel()


def _triple(error: BaseException | None) -> tuple[type[BaseException] | None, BaseException | None, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)
