"""RocketBox: a service. It scans its package, reads its settings, starts what they ask for, runs, and stops in order.

What can be known before the start is found out in ``autoconfigure.assembly``; phases and their order are those of
``boot.lifecycle``. Here they are put together, and here signals and exit codes are dealt with.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio

from rocketbox.autoconfigure.assembly import Assembly, AssemblyError, Launch, assemble, of_cluster
from rocketbox.autoconfigure.log_setup import set_up_logging
from rocketbox.autoconfigure.spark_listening import spark_container, spark_runtime
from rocketbox.boot.beans import DynamicContainer
from rocketbox.boot.failures import render_failure
from rocketbox.boot.lifecycle import Lifecycle
from rocketbox.boot.marks import Phase
from rocketbox.boot.report import ConditionsReport
from rocketbox.client import MQClientInstance
from rocketbox.clock import RealClock
from rocketbox.errors import ClientStateError, ConfigurationError, Finding, NotStartedError
from rocketbox.handoff import call_soon_from_thread
from rocketbox.hints import parameters_of, resolve_hint
from rocketbox.listeners import ListenerContainer
from rocketbox.listeners.registrar import describe
from rocketbox.tasks import Supervisor
from rocketbox.template import MessageConverter, RocketMQTemplate

if TYPE_CHECKING:
    from rocketbox.spark.listener import SparkListenerContainer

__all__ = ["Listeners", "RocketBox"]

_log = logging.getLogger(__name__)

BeanT = TypeVar("BeanT")
HookT = TypeVar("HookT", bound=Callable[..., Any])

DRAIN_SHARE = 0.75  # of the time for the stop: running handlers have this much
STOPPED, FAILED, STOP_CUT_SHORT = 0, 1, 3  # exit codes; 128 + n is a second signal n


class Listeners(Mapping["str | tuple[str, str]", ListenerContainer]):
    """The listener containers by group; those of a further cluster by ``(cluster, group)``."""

    def __init__(self) -> None:
        self._containers: dict[str | tuple[str, str], ListenerContainer] = {}

    def _add(self, container: ListenerContainer) -> None:
        key = (container.cluster, container.group) if container.cluster else container.group
        self._containers[key] = container

    def __getitem__(self, key: str | tuple[str, str]) -> ListenerContainer:
        try:
            return self._containers[key]
        except KeyError:
            known = ", ".join(map(repr, self._containers)) or "none"
            raise KeyError(f"no listeners of group {key!r} run here; there are: {known}") from None

    def __iter__(self) -> Iterator[str | tuple[str, str]]:
        return iter(self._containers)

    def __len__(self) -> int:
        return len(self._containers)


class _Run:
    """One start of an application, from its assembly to its stop."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.listeners = Listeners()
        self.spark_listeners: dict[str, SparkListenerContainer] = {}
        self.is_started = False
        self.stopping = False
        self.wanted = anyio.Event()
        self.call_soon = call_soon_from_thread()
        self.drain_timeout = assembly.rocketbox.shutdown.timeout.total_seconds() * DRAIN_SHARE
        self.lifecycle = Lifecycle(
            assembly.service.name,
            assembly.service.clock,
            stop_timeout=assembly.rocketbox.shutdown.timeout.total_seconds(),
        )
        for phase in Phase:
            self.lifecycle.add(phase, partial(assembly.container.start, phase))
        self.lifecycle.add(Phase.STARTUP, self._tell_templates)  # a template of the user's may start as late as this
        self.lifecycle.add(Phase.STARTUP, self._run_hooks)
        self.lifecycle.add(Phase.LISTENERS, self._start_listeners)

    async def _tell_templates(self, stack: AsyncExitStack) -> None:
        container = self.assembly.container
        for cluster in (None, *self.assembly.rocketmq.clusters):
            if container.has(of_cluster(RocketMQTemplate, cluster)):
                producer = container.resolve(of_cluster(RocketMQTemplate, cluster)).producer
                _log.info(
                    "template%s: producer group %s, name server %s, send timeout %g s",
                    f" of cluster {cluster}" if cluster else "",
                    producer.group,
                    ";".join(producer.instance.name_servers),
                    producer.options.send_message_timeout,
                )

    async def _run_hooks(self, stack: AsyncExitStack) -> None:
        container = self.assembly.container
        for hook in self.assembly.hooks:
            given = {}
            for parameter in parameters_of(hook):
                hint = resolve_hint(hook, parameter.annotation)
                if parameter.default is parameter.empty or container.has(hint):
                    given[parameter.name] = container.resolve(hint)
            if inspect.iscoroutinefunction(hook):
                await hook(**given)
            else:
                await anyio.to_thread.run_sync(partial(hook, **given))

    async def _start_listeners(self, stack: AsyncExitStack) -> None:
        assembly = self.assembly
        for plan in assembly.plans:
            for line in describe(plan):
                _log.info("%s", line)
            cluster = assembly.rocketmq.cluster(plan.cluster or "")
            container = ListenerContainer(
                plan,
                instance=assembly.container.resolve(of_cluster(MQClientInstance, plan.cluster)),
                beans=assembly.beans,
                converter=assembly.container.resolve(MessageConverter),
                template_of=lambda name: assembly.container.resolve(of_cluster(RocketMQTemplate, name)),
                clock=assembly.service.clock,
                await_termination=self.drain_timeout,
                wait_for_servers=cluster.startup == "retry",
            )
            if cluster.consumer.missing_topic == "fail":  # type: ignore[attr-defined]  # its model is made at run time
                await self._expect_topics(container)
            await stack.enter_async_context(container)
            self.listeners._add(container)
        if assembly.spark_plans:
            await self._start_spark(stack)
        stack.push_async_callback(self._drain)  # first of all at the stop: everybody drains at the same time

    async def _expect_topics(self, container: ListenerContainer) -> None:
        instance: MQClientInstance = self.assembly.container.resolve(of_cluster(MQClientInstance, container.cluster))
        findings = [
            Finding(
                f"topic {function.topic} of listener {function.signature.name} does not exist at name server "
                f"{', '.join(instance.name_servers)}",
                function.signature.where,
                "create it, or set rocketmq.consumer.missing-topic: wait",
            )
            for function in container.plan.functions
            if await instance.find_route(function.topic) is None
        ]
        if findings:
            raise ConfigurationError(findings)

    async def _start_spark(self, stack: AsyncExitStack) -> None:
        assembly = self.assembly
        runtime = await stack.enter_async_context(spark_runtime(assembly.service.name, assembly.rocketbox.spark))
        for plan in assembly.spark_plans:
            _log.info("%s", plan.describe())
            instance: MQClientInstance = assembly.container.resolve(of_cluster(MQClientInstance, plan.cluster))
            container = spark_container(
                plan,
                runtime,
                name_server=";".join(instance.name_servers),
                resolve=assembly.container.resolve,
                service=assembly.service,
                drain_timeout=self.drain_timeout,
            )
            self.spark_listeners[plan.group] = await stack.enter_async_context(container)

    async def _drain(self) -> None:
        self.stopping = True
        _log.info("%s is stopping", self.assembly.service.name)
        async with Supervisor("drain", self.assembly.service.clock) as tasks:
            drains = [
                tasks.start(f"group {container.group}", container.drain, self.drain_timeout, restart=False)
                for container in self.listeners.values()
            ]
            for drain in drains:
                await drain.wait()


class RocketBox:
    """A service by its name: ``app = RocketBox("flight-desk")`` in the module whose package it scans.

    Making it does nothing. It is started by :meth:`run`, by ``async with app:`` or by ``rocketbox run module:app``, as
    often as one likes: each start has a container of its own. ``scan`` names packages or modules instead of the
    module's own package, ``config`` the settings file, ``exclude`` auto-configurations that are left out.

    A start that fails raises ConfigurationError with everything that is wrong.
    """

    def __init__(
        self,
        name: str,
        *,
        scan: Sequence[str] | None = None,
        config: Path | str | None = None,
        exclude: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._home = str(sys._getframe(1).f_globals.get("__name__", "__main__"))
        self._scan = scan
        self._config = config
        self._exclude = tuple(exclude)
        self._hooks: list[Callable[..., Any]] = []
        self._run: _Run | None = None

    def __repr__(self) -> str:
        return f"RocketBox({self.name!r}, {'running' if self._run is not None else 'not started'})"

    def on_startup(self, hook: HookT) -> HookT:
        """Run a function at start, when all beans are there and before the listeners; parameters by their type.

        A ``def`` runs in a thread. What it raises ends the start.
        """
        self._hooks.append(hook)
        return hook

    # --- starting and stopping ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._start(self._assemble(Launch()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        run = self._running
        run.stopping = True
        try:
            return await run.lifecycle.__aexit__(kind, error, trace)
        finally:
            self._run = None

    @asynccontextmanager
    async def started(
        self, *, config: Path | str | None = None, profiles: Sequence[str] = (), arguments: Sequence[str] = ()
    ) -> AsyncIterator[Self]:
        """``async with app:`` with a settings file, profiles and settings (``--key=value``) of its own: for jobs."""
        await self._start(self._assemble(Launch(config, profiles, arguments)))
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self.__aexit__)
            yield self

    def _assemble(self, launch: Launch) -> Assembly:
        assembly = self._look(launch)
        assembly.check()
        return assembly

    def _look(self, launch: Launch) -> Assembly:
        return assemble(
            self.name,
            self._home,
            launch,
            scan=self._scan,
            config=self._config,
            exclude=self._exclude,
            hooks=self._hooks,
            instances=(self,),
            clock=RealClock(),
        )

    async def _start(self, assembly: Assembly) -> _Run:
        if self._run is not None:
            raise ClientStateError(f"{self.name} is running already")
        files = ", ".join(map(str, assembly.settings.files)) or "none"
        profiles = ", ".join(assembly.settings.profiles) or "none"
        _log.info("%s is starting; settings: %s; profiles: %s", self.name, files, profiles)
        for warning in assembly.warnings:
            where, fix = (f" ({text})" if text else "" for text in (warning.where, warning.fix))
            _log.warning("%s%s%s", warning.what, where, fix)
        since = assembly.service.clock.monotonic()
        run = self._run = _Run(assembly)
        try:
            await run.lifecycle.__aenter__()
        except BaseException:
            self._run = None
            raise
        run.is_started = True
        _log.info("%s is ready after %.2f s", self.name, assembly.service.clock.monotonic() - since)
        return run

    def shutdown(self) -> None:
        """Ask for the end, from a handler, a bean or any thread: :meth:`run` then stops in order and returns."""
        run = self._running
        run.call_soon(run.wanted.set)

    async def wait_for_shutdown(self) -> None:
        """Return when somebody has called :meth:`shutdown`."""
        await self._running.wanted.wait()

    # --- what it has -------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> _Run:
        if self._run is None:
            raise NotStartedError(f"RocketBox {self.name}")
        return self._run

    @property
    def template(self) -> RocketMQTemplate:
        """The main cluster's template; ConfigurationError, saying why and what to set, when there is none."""
        return self.get(RocketMQTemplate)

    def get(self, kind: type[BeanT], qualifier: str | None = None) -> BeanT:
        """The bean of a type; ``qualifier`` is a bean's or cluster's name. ConfigurationError for none or several."""
        return self._running.assembly.container.get(kind, qualifier)

    @property
    def container(self) -> DynamicContainer:
        """dependency-injector's container with a provider for each bean, to look at and to override."""
        return self._running.assembly.container.container

    @property
    def listeners(self) -> Listeners:
        """The running listener containers: ``app.listeners["desk"]``, ``app.listeners["audit-cluster", "desk"]``."""
        return self._running.listeners

    @property
    def spark_listeners(self) -> Mapping[str, SparkListenerContainer]:
        """The running Spark listeners by their group."""
        return self._running.spark_listeners

    @property
    def is_ready(self) -> bool:
        """Whether it runs, does not stop, and every listener container does its work."""
        run = self._run
        return (
            run is not None
            and run.is_started
            and not run.stopping
            and all(each.state().ready for each in run.listeners.values())
        )

    def report(self) -> ConditionsReport:
        """Which auto-configurations were taken, which were not, and why; without a start, as it would be now."""
        assembly = self._run.assembly if self._run is not None else self._look(Launch())
        return assembly.container.report

    # --- running as a program ----------------------------------------------------------------------------------------

    def run(
        self,
        *,
        config: Path | str | None = None,
        profiles: Sequence[str] = (),
        arguments: Sequence[str] = (),
        debug: bool = False,
    ) -> None:
        """Run until :meth:`shutdown`, SIGTERM or SIGINT, then stop in order; a second signal ends the process at once.

        ``arguments`` are settings as ``--key=value``. Sets up logging as ``rocketbox.logging.*`` says. Raises
        SystemExit with 1 when the start fails, 3 when the stop took longer than ``rocketbox.shutdown.timeout``.
        """
        try:
            assembly = self._assemble(Launch(config, profiles, arguments))
        except Exception as error:
            self.print_failure(error, debug=debug)
            raise SystemExit(FAILED) from None
        set_up_logging(assembly.rocketbox.logging, debug=debug)
        code = anyio.run(self._serve, assembly, debug)
        if code:
            raise SystemExit(code)

    async def _serve(self, assembly: Assembly, debug: bool) -> int:
        clock = assembly.service.clock
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with Supervisor(f"{self.name} signals", clock) as tasks:
                with anyio.CancelScope() as starting:
                    tasks.start("signals", self._watch, signals, starting, restart=False)
                    try:
                        run = await self._start(assembly)
                    except Exception as error:
                        self.print_failure(error, debug=debug, secrets=assembly.settings.secrets)
                        return FAILED
                    failure: BaseException | None = None
                    try:
                        await run.wanted.wait()
                    except BaseException as error:
                        failure = error
                        raise
                    finally:
                        await self.__aexit__(type(failure) if failure else None, failure, None)
                    if run.lifecycle.cut_short is not None:
                        return STOP_CUT_SHORT
                    _log.info("%s has stopped", self.name)
        return STOPPED

    async def _watch(self, signals: Any, starting: anyio.CancelScope) -> None:
        """The first signal asks for the stop (or ends a start that is under way), the second ends the process."""
        asked = False
        async for number in signals:
            name = signal.Signals(number).name
            if asked:
                _log.error("%s again: %s ends at once, without a stop in order", name, self.name)
                logging.shutdown()
                os._exit(128 + number)
            asked = True
            _log.info("%s: %s stops; once more ends it at once", name, self.name)
            run = self._run
            if run is not None and run.is_started:
                run.wanted.set()
            else:
                starting.cancel()

    def check(
        self,
        *,
        config: Path | str | None = None,
        profiles: Sequence[str] = (),
        arguments: Sequence[str] = (),
        debug: bool = False,
    ) -> int:
        """Look for everything that can be wrong, without connecting, and print it; 0 when there is nothing, else 1."""
        try:
            assembly = self._assemble(Launch(config, profiles, arguments))
        except Exception as error:
            self.print_failure(error, debug=debug)
            return FAILED
        for plan in assembly.plans:
            for line in describe(plan):
                print(line)  # noqa: T201 - a command's output
        for spark in assembly.spark_plans:
            print(spark.describe())  # noqa: T201
        for warning in assembly.warnings:
            print(f"warning: {warning}")  # noqa: T201
        print(f"{self.name}: nothing is wrong")  # noqa: T201
        return STOPPED

    def print_conditions(
        self,
        *,
        config: Path | str | None = None,
        profiles: Sequence[str] = (),
        arguments: Sequence[str] = (),
        debug: bool = False,
    ) -> int:
        """Print the conditions report; 1 when modules or settings cannot be read, else 0."""
        try:
            assembly = self._look(Launch(config, profiles, arguments))
        except Exception as error:
            self.print_failure(error, debug=debug)
            return FAILED
        print(assembly.container.report.render())  # noqa: T201
        return STOPPED

    @staticmethod
    def print_failure(error: BaseException, *, debug: bool = False, secrets: frozenset[str] = frozenset()) -> None:
        """Write to stderr why an application did not start; with ``debug`` the traceback first."""
        if debug:
            logging.getLogger(__name__).error("the start failed", exc_info=error)
        report = None
        if isinstance(error, AssemblyError):
            report, secrets = error.report, error.secrets
        print(render_failure(error, report=report, secrets=secrets), file=sys.stderr)  # noqa: T201
