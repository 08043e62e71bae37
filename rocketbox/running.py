"""One run of an application: from what was found out about it, through the phases of its start, to its stop.

The phases and their order are those of ``boot.lifecycle``; what is started in each was decided in
``autoconfigure.assembly``. Who asks for a run, and when it ends, is ``application``'s business.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.hooks import HookRole, PlannedHook
from rocketbox.autoconfigure.kinds import MessageListenerContainer, Starting
from rocketbox.autoconfigure.listener_plans import KindPlans
from rocketbox.autoconfigure.rocketmq import AwaitedServers
from rocketbox.autoconfigure.service import of_cluster
from rocketbox.blocking import WorkerPool
from rocketbox.boot.failures import failure_findings, render_failure, without_secrets
from rocketbox.boot.lifecycle import Lifecycle
from rocketbox.boot.log_masking import forget_with_the_next, mask_handlers, mask_records, masks_everywhere
from rocketbox.boot.marks import Phase
from rocketbox.boot.masking import mask
from rocketbox.boot.slow_start import SlowStart
from rocketbox.client import Producer
from rocketbox.errors import SHOW_TRACEBACK, ConfigurationError
from rocketbox.hints import place_of
from rocketbox.loops import call_soon_from_thread, loop_name
from rocketbox.management.health import ApplicationHealth, HealthIndicator, masked_health
from rocketbox.own_failures import failures_only, without_context
from rocketbox.tasks import Supervisor
from rocketbox.template import RocketMQTemplate
from rocketbox.version import __version__

if TYPE_CHECKING:
    from rocketbox.stop_guard import StopGuard

__all__ = ["Run"]

_log = logging.getLogger(__name__)

STOPPED_BECAUSE = "APPLICATION STOPPED BECAUSE"


class Run:
    """``async with Run(assembly):`` is started inside, and has stopped in order outside.

    ``wanted`` is set when somebody has asked for the end.
    """

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.process = os.getpid()
        self.listeners = assembly.parts.listeners
        self.is_started = False
        self.stopping = False
        self.wanted = anyio.Event()
        self.guard: StopGuard | None = None
        """Keeps the limit of the stop, where this process does nothing else than this run."""
        self.ask_host: Callable[[], object] | None = None
        """Asks the server in which this runs to stop; None where somebody waits here for the wish."""
        self.masks_all_logs = False
        """Whether all loggers of the process are kept from showing this run's secrets, not only rocketbox's own."""
        self._waiting = 0
        self._masked_for = object()
        assembly.service.lent_secrets.changed.append(self._mask_lent)
        self.call_soon = call_soon_from_thread()
        self.drain_timeout = assembly.rocketbox.shutdown.drain_timeout.total_seconds()
        self.lifecycle = Lifecycle(
            assembly.service.name,
            assembly.service.clock,
            stop_timeout=assembly.rocketbox.shutdown.timeout.total_seconds(),
            prepared=assembly.took,
        )
        self._indicators: list[HealthIndicator] = []
        self._failures: list[tuple[str, str | None, Exception]] = []
        """Containers of listeners that raised when they were left: what to say of it, the kind's place, the error."""
        self.slow_start = SlowStart(assembly.service.name, assembly.service.clock)
        self.lifecycle.add(Phase.INFRASTRUCTURE, self._watch_loop)
        self.lifecycle.add(Phase.INFRASTRUCTURE, self._watch_start)
        for phase in Phase:
            start = partial(assembly.container.start, phase, at=self.slow_start.at, is_cut_short=self._is_cut_short)
            self.lifecycle.add(phase, start)
        self.lifecycle.add(Phase.STARTUP, self._tell_clients)
        self.lifecycle.add(Phase.STARTUP, self._tell_templates)  # a template of the user's may start as late as this
        self.lifecycle.add(Phase.STARTUP, self._run_startup_hooks)
        self.lifecycle.add(Phase.STARTUP, self._start_background_work)
        self.lifecycle.add(Phase.LISTENERS, self._start_listeners)

    async def __aenter__(self) -> Self:
        service, settings = self.assembly.service, self.assembly.settings
        self.mask_logs()
        files = ", ".join(map(str, settings.files)) or "none"
        profiles = ", ".join(settings.profiles) or "none"
        _log.info(
            "%s is starting with rocketbox %s on %s; settings: %s; profiles: %s",
            service.name, __version__, loop_name(), files, profiles,
        )  # fmt: skip
        _log.info("%s", self.assembly.describe_found())
        for off in without_secrets(self.assembly.off, settings.secrets):
            _log.info("%s%s", off.what, f" ({off.where})" if off.where else "")
        for warning in without_secrets(self.assembly.warnings, settings.secrets):
            where, fix = (f" ({text})" if text else "" for text in (warning.where, warning.fix))
            _log.warning("%s%s%s", warning.what, where, fix)
        try:
            await self._start()
        except BaseException:
            forget_with_the_next(self._masked_for)
            raise
        self._slow_start_task.cancel()
        self.is_started = True
        self.mask_logs()  # beans may have asked for more of them meanwhile
        self._tell_readiness()
        return self

    def _tell_readiness(self) -> None:
        """Say that it is ready; or that it has started, for which servers it waits, and later that it is ready."""
        name, took = self.assembly.service.name, self.lifecycle.start_took
        container = self.assembly.container
        awaited = container.resolve(AwaitedServers) if container.has(AwaitedServers) else AwaitedServers()
        if awaited.problems:
            why = mask("; ".join(awaited.problems.values()), self.assembly.settings.secrets)
            _log.info("%s has started after %.2f s, and is not ready: %s", name, took, why)
            self._start_tasks.start("servers", self._wait_for, awaited, restart=False)
        else:
            _log.info("%s is ready after %.2f s: %s", name, took, self._counted)

    async def _wait_for(self, awaited: AwaitedServers) -> None:
        clock = self.assembly.service.clock
        since = clock.monotonic() - self.lifecycle.start_took
        await awaited.until_all_answer()
        took = clock.monotonic() - since
        _log.info("%s is ready after %.2f s: %s", self.assembly.service.name, took, self._counted)

    async def _start(self) -> None:
        try:
            await self.lifecycle.__aenter__()
        except ConfigurationError as error:  # what beans and hooks raise may quote a secret
            findings = without_secrets(error.findings, self.assembly.settings.secrets)
            if findings == list(error.findings):
                raise
            raise ConfigurationError(findings) from error.__cause__

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.stopping = True
        if self.guard is not None:
            self.guard.begin()
            self.lifecycle.stop_asked_at = self.guard.began
        try:
            return await self.lifecycle.__aexit__(kind, error, trace)
        finally:
            forget_with_the_next(self._masked_for)

    def mask_logs(self) -> None:
        """Take this run's secrets out of what is logged from now on."""
        secrets = self.assembly.settings.secrets
        mask_records(self.assembly.service.name, secrets, everywhere=self.masks_all_logs, owner=self._masked_for)
        if self.masks_all_logs:
            mask_handlers(secrets)

    def _mask_lent(self) -> None:
        """Take out what has come since as well: where all loggers are masked, of all of them."""
        everywhere = self.masks_all_logs or masks_everywhere()
        secrets = self.assembly.settings.secrets
        mask_records(self.assembly.service.name, secrets, everywhere=everywhere, owner=self._masked_for)
        if everywhere:
            mask_handlers(secrets)

    def ask_to_stop(self) -> None:
        """Let it end; in any thread."""
        if self.guard is not None:
            self.guard.begin()
        if self.ask_host is not None:
            self.ask_host()
        self.call_soon(partial(self._wanted, self.is_started))

    def _wanted(self, was_started: bool) -> None:
        self.wanted.set()
        if was_started and not self._waiting and self.ask_host is None and not self.stopping:
            _log.warning(
                "%s: app.shutdown() was called, and nobody waits for it: write 'await app.wait_for_shutdown()' in the "
                "block of 'async with app:', which stops when it is left",
                self.assembly.service.name,
            )

    async def wait_until_wanted(self) -> None:
        """Return when somebody has asked for the end."""
        self._waiting += 1
        try:
            await self.wanted.wait()
        finally:
            self._waiting -= 1

    def health(self) -> ApplicationHealth:
        """Whether it is ready, and how each part of it is; only a run that has started has parts."""
        if not self.is_started:
            return ApplicationHealth.not_ready("it has not started yet")
        if self.stopping:
            return ApplicationHealth.not_ready("it is stopping")
        return masked_health(ApplicationHealth.of(self._indicators), self.assembly.settings.secrets)

    def told_of_end(self, error: BaseException, see_traceback: str = SHOW_TRACEBACK) -> str:
        """What a failure that ended this run is to a user: which bean failed, with what, and at which line.

        ``see_traceback`` is what to do to see more of it.
        """
        findings = [
            replace(each, fix=see_traceback) if each.fix == SHOW_TRACEBACK else each
            for each in self.assembly.container.failures.findings(error, self._failures)
        ]
        return render_failure(findings, headline=STOPPED_BECAUSE, secrets=self.assembly.settings.secrets)

    def _is_cut_short(self) -> bool:
        return self.lifecycle.is_cut_short

    async def _watch_loop(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.assembly.parts.watchdog)

    async def _watch_start(self, stack: AsyncExitStack) -> None:
        self._start_tasks = await stack.enter_async_context(Supervisor("start", self.assembly.service.clock))
        self._slow_start_task = self._start_tasks.start("slow start", self.slow_start.watch)

    async def _tell_clients(self, stack: AsyncExitStack) -> None:
        for line in self.assembly.describe_clients():
            _log.info("%s", mask(line, self.assembly.settings.secrets))

    async def _tell_templates(self, stack: AsyncExitStack) -> None:
        container = self.assembly.container
        for cluster in (None, *self.assembly.rocketmq.clusters):
            if container.has(of_cluster(RocketMQTemplate, cluster)):
                template = container.resolve(of_cluster(RocketMQTemplate, cluster))
                of_which = f" of cluster {cluster}" if cluster else ""
                producer = getattr(template, "producer", None)
                if not isinstance(producer, Producer):  # somebody's own, such as one for tests
                    _log.info("template%s: a %s", of_which, type(template).__qualname__)
                    continue
                _log.info(
                    "template%s: producer group %s, name server %s, send timeout %g s",
                    of_which,
                    producer.group,
                    ";".join(producer.instance.name_servers),
                    producer.options.send_message_timeout,
                )

    async def _run_startup_hooks(self, stack: AsyncExitStack) -> None:
        pool = WorkerPool(self.assembly.hooks.blocking or 1, f"{self.assembly.service.name}-hooks")
        self._hook_threads = await stack.enter_async_context(pool)
        for each in self.assembly.hooks.of(HookRole.STARTUP):
            try:
                told = self.slow_start.at(f"{each.hook.label} ({each.hook.where})")
                with told, failures_only(exits=True, hosted=True):
                    await each.call(self.assembly.container.resolve, self._hook_threads)
            except ConfigurationError:
                raise
            except Exception as error:
                findings = failure_findings(f"{each.hook.label} failed", each.hook.where, error)
                raise ConfigurationError(findings) from error
        stack.push_async_callback(self._run_shutdown_hooks)  # from here on it has been started

    async def _run_shutdown_hooks(self) -> None:
        why_it_stops = sys.exception()
        for each in reversed(self.assembly.hooks.of(HookRole.SHUTDOWN)):
            try:
                with failures_only(hosted=True):
                    await each.call(self.assembly.container.resolve, self._hook_threads)
            except Exception as error:
                without_context(error, why_it_stops)  # the stop has nothing to do with what the hook did
                _log.exception("%s (%s) failed; the stop goes on", each.hook.label, each.hook.where)
                self.assembly.service.machine.hook_failed(f"{each.hook.label} ({each.hook.where})", error)

    async def _start_background_work(self, stack: AsyncExitStack) -> None:
        hooks = self.assembly.hooks
        work = await stack.enter_async_context(self.assembly.parts.work)
        for each in hooks.of(HookRole.BACKGROUND):
            name = f"{each.hook.label} ({each.hook.where})"
            work.start(name, partial(self._call_hook, name, each))
        for each in hooks.of(HookRole.EVERY):
            name = f"{each.hook.label} ({each.hook.where})"
            work.repeat(name, each.interval, partial(self._call_scheduled, name, each))

    async def _call_scheduled(self, name: str, planned: PlannedHook) -> None:
        with self.assembly.service.machine.scheduled_function_called(name):
            await self._call_hook(name, planned)

    async def _call_hook(self, name: str, planned: PlannedHook) -> None:
        """Call what runs in the background, whose failures are logged there."""
        try:
            with failures_only():
                await planned.call(self.assembly.container.resolve, self._hook_threads)
        except Exception as error:
            self.assembly.service.machine.hook_failed(name, error)
            raise

    async def _start_listeners(self, stack: AsyncExitStack) -> None:
        assembly = self.assembly
        listeners = 0
        starting = Starting(assembly.container.resolve, assembly.beans, stack, self.drain_timeout)
        for each in assembly.listeners:
            if not each.plans:
                continue
            with each.failing_in("start"):
                listeners += sum(len(plan.describe()) for plan in each.plans)
                containers = list(await each.kind.start(each.plans, starting))
                self.listeners.check_names(containers)
            for container in containers:
                with each.failing_in("start"), self.slow_start.at(f"the listeners of group {container.group}"):
                    for line in container.describe():
                        _log.info("%s", mask(line, assembly.settings.secrets))
                    await container.__aenter__()
                    stack.push_async_exit(partial(self._leave, each, container))
                self.listeners.add(container)
        self._counted = f"{listeners} listener{'' if listeners == 1 else 's'}"
        self._indicators = assembly.container.resolve(list[HealthIndicator])
        stack.push_async_callback(self._drain)  # first of all at the stop: everybody drains at the same time

    async def _leave(
        self,
        planned: KindPlans,
        listeners: MessageListenerContainer,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Leave a container of listeners, whose kind may be of another distribution: what it raises is told so."""
        try:
            with failures_only(hosted=True):
                return await listeners.__aexit__(kind, error, trace)
        except Exception as failure:
            if failure is not error:
                of = type(planned.kind)
                what = f"the container of group {listeners.group}, of the listeners of @{of.mark.__name__}, failed"
                self._failures.append((f"{what} when it was left", place_of(of), failure))
            raise

    async def _drain(self) -> None:
        self.stopping = True
        _log.info("%s is stopping", self.assembly.service.name)
        async with Supervisor("drain", self.assembly.service.clock) as tasks:
            drains = [
                tasks.start(f"group {container.group}", container.drain, self.drain_timeout, restart=False)
                for container in self.listeners.values()
            ]
            work = self.assembly.parts.work
            drains.append(tasks.start("background work", work.drain, self.drain_timeout, restart=False))
            for drain in drains:
                await drain.wait()
