"""Hooks and background work: what decorators of the application register, what is wrong with it, how it is called.

    @app.on_startup        once, when all beans are there and before the listeners
    @app.on_shutdown       once, at the stop, when the listeners have ended and before the beans close
    @app.background_task   from the start to the stop; one that fails is started again
    @app.every("5m")       again and again, in each process

Parameters are given by their types, as those of beans are. When each runs is ``running``'s business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, TypeVar, overload

from rocketbox.autoconfigure.listening import ResolveText
from rocketbox.blocking import WorkerPool
from rocketbox.boot.beans import BeanContainer
from rocketbox.boot.conditions import Condition, Verdict
from rocketbox.boot.dependencies import misplaced_qualifier
from rocketbox.boot.failures import failure_findings
from rocketbox.durations import parse_duration
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.hints import makes_coroutine, name_of, parameters_of, place_of, resolve_hint

__all__ = ["Hook", "HookDecorators", "HookPlans", "HookRole", "PlannedHook", "plan_hooks"]

HookT = TypeVar("HookT", bound=Callable[..., Any])


class HookRole(Enum):
    """What a function was registered as, in the words that it is told of with."""

    STARTUP = "startup hook"
    SHUTDOWN = "shutdown hook"
    BACKGROUND = "background task"
    EVERY = "scheduled function"


@dataclass(frozen=True)
class Hook:
    """A function that the application calls by itself, and the condition under which it does."""

    role: HookRole
    function: Callable[..., Any]
    when: Condition | None = None
    interval: timedelta | str | None = None

    @property
    def name(self) -> str:
        return name_of(self.function)

    @property
    def label(self) -> str:
        return f"{self.role.value} {self.name}"

    @property
    def where(self) -> str:
        return place_of(self.function)

    @property
    def is_async(self) -> bool:
        return makes_coroutine(self.function)


class HookDecorators:
    """The decorators by which an application takes hooks and background work; each returns the function as it was.

    So they may stand above one another: ``@app.on_startup`` above ``@app.every("5m")`` runs a function at once as well.
    ``when`` is a condition such as ``on_profile("demo")``: without it holding the function is left alone.
    """

    def __init__(self) -> None:
        self._hooks: list[Hook] = []

    @overload
    def on_startup(self, hook: HookT, /) -> HookT: ...

    @overload
    def on_startup(self, /, *, when: Condition | None = None) -> Callable[[HookT], HookT]: ...

    def on_startup(self, hook: Any = None, /, *, when: Condition | None = None) -> Any:
        """Run a function at start, when all beans are there and before the listeners; parameters by their type.

        A ``def`` runs in a thread. What it raises ends the start.
        """
        return self._take(HookRole.STARTUP, hook, when)

    @overload
    def on_shutdown(self, hook: HookT, /) -> HookT: ...

    @overload
    def on_shutdown(self, /, *, when: Condition | None = None) -> Callable[[HookT], HookT]: ...

    def on_shutdown(self, hook: Any = None, /, *, when: Condition | None = None) -> Any:
        """Run a function at the stop, when listeners and background tasks have ended and before beans close.

        The last one registered runs first. Those of an application whose startup hooks have not all succeeded do not
        run. A ``def`` runs in a thread. What one raises is logged, and the stop goes on; when the time of the stop
        (``rocketbox.shutdown.timeout``) is up, it is cancelled.
        """
        return self._take(HookRole.SHUTDOWN, hook, when)

    @overload
    def background_task(self, task: HookT, /) -> HookT: ...

    @overload
    def background_task(self, /, *, when: Condition | None = None) -> Callable[[HookT], HookT]: ...

    def background_task(self, task: Any = None, /, *, when: Condition | None = None) -> Any:
        """Run an ``async def`` from the start, after the startup hooks, to the stop, where it is cancelled.

        One that raises is logged and started again, after 0.1 s at first and up to 30 s when it goes on to fail; until
        then the application is not ready. One that returns is done.
        """
        return self._take(HookRole.BACKGROUND, task, when)

    def every(self, interval: timedelta | str, /, *, when: Condition | None = None) -> Callable[[HookT], HookT]:
        """Run a function again and again: ``@app.every("5m")``, or a timedelta; ``"${key:5m}"`` comes from settings.

        For the first time one interval after the start; in each process of the application; never twice at once: what
        would begin while it still runs is skipped. A ``def`` runs in a thread. What it raises is logged and counted,
        and the next run comes all the same. At the stop one that runs may end, in the time that handlers have.
        """
        if callable(interval):
            raise TypeError('every takes the time between two runs: write @app.every("5m")')
        return self._decorator(HookRole.EVERY, when, interval)

    def _take(self, role: HookRole, hook: Any, when: Condition | None) -> Any:
        if hook is None:
            return self._decorator(role, when)
        if not callable(hook):
            name = _DECORATORS[role]
            raise TypeError(f"{name} takes a function, not {hook!r}; a condition is written @app.{name}(when=...)")
        return self._decorator(role, when)(hook)

    def _decorator(
        self, role: HookRole, when: Condition | None, interval: timedelta | str | None = None
    ) -> Callable[[HookT], HookT]:
        if when is not None and not callable(getattr(when, "evaluate", None)):
            raise TypeError(f"when= takes a condition such as on_profile(...) or on_property(...), not {when!r}")

        def take(function: HookT) -> HookT:
            self._hooks.append(Hook(role, function, when, interval))
            return function

        return take


_DECORATORS = {
    HookRole.STARTUP: "on_startup",
    HookRole.SHUTDOWN: "on_shutdown",
    HookRole.BACKGROUND: "background_task",
}


@dataclass(frozen=True)
class PlannedHook:
    """A hook that will be called: with what, and, of a scheduled one, after how many seconds each time."""

    hook: Hook
    arguments: tuple[tuple[str, Any, bool], ...] = ()  # parameter, hint, whether it goes by its position only
    interval: float = 0.0

    async def call(self, resolve: Callable[[Any], Any], threads: WorkerPool) -> None:
        """Call it; a ``def`` in a thread, which a cancellation leaves to itself."""
        positional = [resolve(hint) for _, hint, by_position in self.arguments if by_position]
        named = {name: resolve(hint) for name, hint, by_position in self.arguments if not by_position}
        call = partial(self.hook.function, *positional, **named)
        returned: Any = call() if self.hook.is_async else await threads.run(call)
        if isinstance(returned, Awaitable):  # of a def, too; and what a decorator returns may be awaited already
            await returned


@dataclass
class HookPlans:
    """The hooks of an application: those that will be called, in the order of registration, and those that are off."""

    planned: list[PlannedHook] = field(default_factory=list)
    off: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def blocking(self) -> int:
        """How many of them need a thread."""
        return sum(not each.hook.is_async for each in self.planned)

    def of(self, role: HookRole) -> list[PlannedHook]:
        return [each for each in self.planned if each.hook.role is role]


def plan_hooks(hooks: Sequence[Hook], container: BeanContainer, resolve_text: ResolveText) -> HookPlans:
    """Decide which hooks are called and with what; everything that is wrong is among the findings."""
    plans = HookPlans()
    for hook in hooks:
        try:
            verdict = Verdict(True, "") if hook.when is None else container.evaluate(hook.when)
            if not isinstance(verdict, Verdict):
                raise TypeError(f"its evaluate() returned {type(verdict).__name__}, and must return a Verdict")
        except Exception as error:  # a condition of the user's own
            plans.findings += failure_findings(f"the condition of {hook.label} failed", hook.where, error)
            continue
        if not verdict.matched:
            plans.off.append(Finding(f"{hook.label} is off: {verdict.reason}", hook.where, verdict.fix))
            continue
        findings: list[Finding] = []
        arguments = _arguments(hook, container, findings)
        interval = _interval(hook, resolve_text, findings)
        if hook.role is HookRole.BACKGROUND and not hook.is_async:
            findings.append(
                Finding(
                    f"{hook.label} is a plain def, and a thread cannot be cancelled at the stop",
                    hook.where,
                    "write it as async def, and await anyio.to_thread.run_sync(...) for what blocks",
                )
            )
        plans.findings += findings
        plans.planned.append(PlannedHook(hook, arguments, interval))
    return plans


def _arguments(hook: Hook, container: BeanContainer, findings: list[Finding]) -> tuple[tuple[str, Any, bool], ...]:
    found = []
    for parameter in parameters_of(hook.function):
        who = f"parameter {parameter.name} of {hook.label}"
        optional = parameter.default is not parameter.empty
        if parameter.annotation is parameter.empty:
            if (wrong := misplaced_qualifier(parameter.name, parameter.empty, parameter.default)) is not None:
                findings.append(Finding(f"{who} {wrong[0]}", hook.where, wrong[1]))
            elif not optional:
                fix = f"give {parameter.name} the type of a bean, or a default"
                findings.append(Finding(f"{who} has no type", hook.where, fix))
            continue
        try:
            hint = resolve_hint(hook.function, parameter.annotation)
        except Exception as error:  # evaluating an annotation can raise anything
            if not optional:
                what = f"{who} has a type that is not known at run time: {error}"
                findings.append(Finding(what, hook.where))
            continue
        if (wrong := misplaced_qualifier(parameter.name, hint, parameter.default)) is not None:
            findings.append(Finding(f"{who} {wrong[0]}", hook.where, wrong[1]))
            continue
        if optional and not container.has(hint):
            continue
        if finding := container.finding(hint, who, hook.where):
            findings.append(finding)
        found.append((parameter.name, hint, parameter.kind is parameter.POSITIONAL_ONLY))
    return tuple(found)


def _interval(hook: Hook, resolve_text: ResolveText, findings: list[Finding]) -> float:
    if hook.role is not HookRole.EVERY:
        return 0.0
    written, text = hook.interval, hook.interval
    try:
        if isinstance(text, str) and "${" in text:
            text = resolve_text(text, f"the interval of {hook.label}", hook.where)
        seconds = parse_duration(text, bare_numbers=False).total_seconds()
        if seconds <= 0:
            raise ValueError("it must be longer than nothing")
    except ConfigurationError as error:
        findings += error.findings
    except ValueError as error:
        stands_for = f", which stands for {text!r}" if text != written else ""
        what = f"{hook.label} is to run every {written!r}{stands_for}: {error}"
        findings.append(Finding(what, hook.where, 'write the time between two runs with its unit: @app.every("5m")'))
    else:
        return seconds
    return 1.0
