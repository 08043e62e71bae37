"""RocketBox: a service. It scans its package, reads its settings, starts what they ask for, runs, and stops in order.

What can be known before the start is found out in ``autoconfigure.assembly``; phases and their order are those of
``boot.lifecycle``. Here they are put together, and here signals and exit codes are dealt with.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
from pydantic import BaseModel

from rocketbox.autoconfigure.assembly import Assembly, AssemblyError, assemble
from rocketbox.autoconfigure.hooks import HookDecorators
from rocketbox.autoconfigure.kinds import Listeners
from rocketbox.autoconfigure.loading import Launch, find_others, refuse_text, settings_models
from rocketbox.autoconfigure.log_setup import set_up_logging
from rocketbox.autoconfigure.scan import being_imported, home_of, load_modules
from rocketbox.boot.bean_providers import DynamicContainer
from rocketbox.boot.beans import BeanContainer
from rocketbox.boot.failures import render_failure
from rocketbox.boot.log_masking import thread_failures_logged
from rocketbox.boot.masking import mask, masked_traceback
from rocketbox.boot.overrides import replacements_in
from rocketbox.boot.report import ConditionsReport
from rocketbox.boot.secrets import secrets_of
from rocketbox.boot.settings import Settings, SettingsError
from rocketbox.boot.settings_file import find_settings_file
from rocketbox.errors import ClientStateError, ConfigurationError, ForkedError, NotStartedError
from rocketbox.frozen_heap import freeze_program, freeze_run
from rocketbox.loops import loop_options
from rocketbox.management.health import ApplicationHealth
from rocketbox.running import Run
from rocketbox.safe_repr import also_when_unmade, safe_str
from rocketbox.stop_guard import STOP_CUT_SHORT, StopGuard
from rocketbox.template import RocketMQTemplate

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from rocketbox.background import Background

__all__ = ["Lifespan", "RocketBox"]

_log = logging.getLogger(__name__)

AppT = TypeVar("AppT")
BeanT = TypeVar("BeanT")

STOPPED, FAILED = 0, 1  # exit codes, beside those of stop_guard


class Lifespan(AbstractAsyncContextManager[None]):
    """What an ASGI framework takes as its lifespan: it is called with its application, and entered.

    ``async with`` it directly in a lifespan of one's own.
    """

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        self._start = start
        self._stack = AsyncExitStack()

    def __call__(self, asgi: object) -> Lifespan:
        return Lifespan(self._start)  # a framework may start, and end, more than once

    async def __aenter__(self) -> None:
        await self._stack.enter_async_context(self._start())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)


class _Start(AbstractAsyncContextManager[AppT]):
    """A start that may be made, and ended, more than once, one after the other."""

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[AppT]]) -> None:
        self._start = start
        self._entered: list[AbstractAsyncContextManager[AppT]] = []

    async def __aenter__(self) -> AppT:
        manager = self._start()
        app = await manager.__aenter__()
        self._entered.append(manager)
        return app

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._entered.pop().__aexit__(kind, error, trace)


class RocketBox(HookDecorators):
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
        super().__init__()
        refuse_text(scan=scan, exclude=exclude)
        self.name = name
        self._home = home_of(str(sys._getframe(1).f_globals.get("__name__", "__main__")))
        self._scan = scan
        self._config = config
        self._exclude = tuple(exclude)
        self._run: Run | None = None
        self._host: BlockingPortal | None = None
        self._masks_all_logs = False
        self._planned: BeanContainer | None = None

    @also_when_unmade
    def __repr__(self) -> str:
        return f"RocketBox({self.name!r}, {'running' if self._run is not None else 'not started'})"

    # --- starting and stopping ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._enter(self._new_run(self._assemble(Launch())))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._running.__aexit__(kind, error, trace)
        finally:
            self._run = None

    def started(
        self,
        *,
        config: Path | str | None = None,
        profiles: Sequence[str] = (),
        arguments: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
        beans: Mapping[Any, object] | None = None,
    ) -> AbstractAsyncContextManager[Self]:
        """``async with app:`` with a settings file, profiles and ``--key=value`` arguments of its own: for jobs, tests.

        ``settings`` win over all others. ``beans`` maps what a parameter's type would be (``Desk``, or
        ``Annotated[Desk, Qualifier("night")]``) to the object that takes the place of that bean, which is then not
        built, started or closed; of a ``@configuration_properties`` class no setting is required then. What is returned
        may be entered again when it was left.
        """
        return self.launched(Launch(config, profiles, arguments, settings or {}, beans or {}))

    def launched(self, launch: Launch) -> AbstractAsyncContextManager[Self]:
        """As :meth:`started`, with all that a launch carries, such as the machine to run on: for tools of tests."""
        return _Start(partial(self._launched, launch))

    @asynccontextmanager
    async def _launched(self, launch: Launch, ask_host: Callable[[], object] | None = None) -> AsyncIterator[Self]:
        run = self._new_run(self._assemble(launch))
        run.ask_host = ask_host
        await self._enter(run)
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self.__aexit__)
            yield self

    def lifespan(
        self,
        asgi: object = None,
        /,
        *,
        config: Path | str | None = None,
        profiles: Sequence[str] = (),
        arguments: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
        beans: Mapping[Any, object] | None = None,
    ) -> Lifespan:
        """The application as the lifespan of an ASGI framework: ``FastAPI(lifespan=app.lifespan)``.

        It starts before the first request and stops after the last one. Signals and logging are the server's. With
        options, which are those of :meth:`started`: ``FastAPI(lifespan=app.lifespan(settings=...))``.
        """
        launch = Launch(config, profiles, arguments, settings or {}, beans or {})
        return Lifespan(partial(self._launched, launch, partial(_ask_server, self.name)))

    def background(
        self,
        *,
        config: Path | str | None = None,
        profiles: Sequence[str] = (),
        arguments: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
        beans: Mapping[Any, object] | None = None,
    ) -> Background:
        """The application on a loop of its own, in a thread: for Flask, Django, Celery and scripts.

        ``with app.background() as background: background.call(app.template.send, "departures", departure)``, or
        :meth:`Background.start` where there is no block to stand around. The options are those of :meth:`started`.
        """
        from rocketbox.background import Background  # here, because few need it, and a portal costs the start 4 ms

        launch = Launch(config, profiles, arguments, settings or {}, beans or {})
        return Background(self.name, partial(self._in_background, launch), lambda: self._host)

    @asynccontextmanager
    async def _in_background(self, launch: Launch) -> AsyncIterator[Run]:
        async with self._launched(launch):
            yield self._running

    @contextmanager
    def hosting(self, portal: BlockingPortal) -> Iterator[None]:
        """While it runs in the loop of a portal: its backgrounds call into that one. For tools of tests."""
        self._host = portal
        try:
            yield
        finally:
            self._host = None

    def _assemble(self, launch: Launch) -> Assembly:
        assembly = self._look(launch)
        launch.machine.settings_read(assembly.settings)
        assembly.check()
        return assembly

    def _look(self, launch: Launch, *, with_any_settings: bool = False) -> Assembly:
        return assemble(
            self.name,
            self._home,
            launch,
            scan=self._scan,
            config=self._config,
            exclude=self._exclude,
            hooks=self._hooks if launch.hooks else (),
            instances=(self,),
            replacements=() if self._planned is None else replacements_in(self._planned.providers),
            with_any_settings=with_any_settings,
        )

    def _new_run(self, assembly: Assembly) -> Run:
        if self._run is not None and self._run.process == os.getpid():
            raise ClientStateError(f"{self.name} is running already")
        self._run = Run(assembly)
        self._run.masks_all_logs = self._masks_all_logs
        return self._run

    async def _enter(self, run: Run) -> None:
        try:
            await run.__aenter__()
        except BaseException:
            self._run = None
            raise

    def shutdown(self) -> None:
        """Ask for the end, from a handler, a bean or any thread; what ends depends on how the application runs.

        :meth:`run` and :meth:`background` stop in order. A server that has it as its :meth:`lifespan` is asked to stop
        by SIGTERM, and stops the application then; ClientStateError where nobody there listens to that signal. In the
        block of ``async with app:`` and of :meth:`started` it is :meth:`wait_for_shutdown` that returns.
        """
        self._running.ask_to_stop()

    def mask_logs(self) -> None:
        """Take the secrets of the settings out of all that is logged in this process, by whatever logger.

        For services inside of other programs, where rocketbox masks what its own loggers say, and no more, by itself.
        Holds for all later starts; fields of ``extra=`` are masked in those handlers which the root logger has by the
        end of a start. ``rocketbox run`` and :meth:`run` do so anyway.
        """
        self._masks_all_logs = True
        if self._run is not None:
            self._run.masks_all_logs = True
            self._run.mask_logs()

    async def wait_for_shutdown(self) -> None:
        """Return when somebody has called :meth:`shutdown`."""
        await self._running.wait_until_wanted()

    # --- what it has -------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> Run:
        if self._run is None:
            raise NotStartedError(f"RocketBox {self.name}")
        if self._run.process != os.getpid():
            raise ForkedError(self.name, self._run.process)
        return self._run

    @property
    def template(self) -> RocketMQTemplate:
        """The main cluster's template; ConfigurationError, saying why and what to set, when there is none."""
        return self.get(RocketMQTemplate)

    def get(self, kind: type[BeanT], qualifier: str | None = None) -> BeanT:
        """The bean of a type; ``qualifier`` is a bean's or cluster's name. ConfigurationError for none or several."""
        return self._running.assembly.container.get(kind, qualifier)

    def provider(self, kind: type[BeanT], qualifier: str | None = None) -> Callable[[], Coroutine[Any, Any, BeanT]]:
        """A coroutine function without parameters that returns the bean: FastAPI's ``Depends(app.provider(T))``.

        It asks when it is called, so it may be written before the application runs. Code that is not async asks by
        :meth:`get`.
        """

        async def provide() -> BeanT:
            return self.get(kind, qualifier)

        return provide

    @property
    def container(self) -> DynamicContainer:
        """dependency-injector's container with a provider for each bean, by its name, to look at and to override.

        While the application runs, that of this run. Before and afterwards the application's own, which is planned when
        it is first used: modules are scanned and settings read, nothing is built or connected. It knows all beans,
        whatever their conditions. What overrides one there takes its place in all later starts, whatever their
        settings, and for all who ask for it, until it is taken back: ``with app.container.desk.override(fake): ...``.
        """
        if self._run is not None and self._run.process == os.getpid():
            return self._run.assembly.container.providers.container
        if self._planned is None:
            if (module := being_imported(self._home, self._scan)) is not None:
                raise ClientStateError(
                    f"app.container of {self.name} was used while the module {module} is being imported, before all "
                    "of its beans are known: use it in a function or a fixture, or below if __name__ == '__main__'"
                )
            self._planned = self._look(Launch(), with_any_settings=True).container
            self._planned.providers.add_left_out()
        return self._planned.providers.container

    @property
    def listeners(self) -> Listeners:
        """The running containers of listeners, of all kinds, by their consumer group.

        ``app.listeners["desk"]``; of a further cluster ``app.listeners["audit-cluster", "desk"]``.
        """
        return self._running.listeners

    @property
    def is_ready(self) -> bool:
        """Whether it runs, does not stop, and all of its parts that count are well: see :meth:`health`."""
        return self.health().ready

    @property
    def not_ready_because(self) -> list[str]:
        """Why it is not ready, in words for people; empty when it is."""
        return list(self.health().reasons)

    def health(self) -> ApplicationHealth:
        """Whether it is ready for work, if not why not, and how each of its parts is: its ``HealthIndicator`` beans.

        As data, cheap, and without I/O: ``app.health().as_dict()`` is what an endpoint may answer.
        """
        if self._run is None or self._run.process != os.getpid():
            return ApplicationHealth.not_ready("it does not run")
        return self._run.health()

    def conditions(self) -> ConditionsReport:
        """Which auto-configurations were taken, which were not, and why; without a start, as it would be now."""
        assembly = self._run.assembly if self._run is not None else self.look()
        return assembly.container.report

    @property
    def assembly(self) -> Assembly:
        """What was found out about the application before this run of it: settings, beans, listeners."""
        return self._running.assembly

    def look(
        self,
        *,
        config: Path | str | None = None,
        profiles: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> Assembly:
        """All that can be known without a start: settings, beans, listeners, and what is wrong (``findings``).

        Connects to nothing. Raises ConfigurationError when not even modules or settings can be read.
        """
        assembly = self._look(Launch(config, profiles, arguments))
        if assembly.wrong_settings:
            raise ConfigurationError(assembly.wrong_settings)
        return assembly

    def check(
        self,
        *,
        config: Path | str | None = None,
        profiles: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> Assembly:
        """As :meth:`look`, but raise ConfigurationError with everything that a start would be refused for.

        Connects to nothing: for a test that says whether a service could start in production.
        """
        return self._assemble(Launch(config, profiles, arguments))

    def checked(self, launch: Launch) -> Assembly:
        """As :meth:`check`, of a start with all that a launch carries: for tools of tests."""
        return self._assemble(launch)

    def settings_file(self, *, config: Path | str | None = None, directory: Path | None = None) -> Path | None:
        """The file that a start in ``directory`` (else where the process is) has its settings of; None: there is none.

        Raises ConfigurationError for one that is named and does not exist.
        """
        module_file = getattr(sys.modules.get(self._home), "__file__", None)
        beside = None if module_file is None else Path(module_file)
        return find_settings_file(config or self._config, directory=directory, beside=beside)

    def settings_models(self) -> dict[str, type[BaseModel]]:
        """The models of all settings of the application, by their prefixes; ConfigurationError if modules fail."""
        modules = load_modules(self._home, self._scan)
        return settings_models(modules, find_others(modules, self._home, Launch(), self._config, self._exclude))

    # --- running as a program ----------------------------------------------------------------------------------------

    def run(
        self,
        *,
        config: Path | str | None = None,
        profiles: Sequence[str] = (),
        arguments: Sequence[str] = (),
        debug: bool = False,
        on_ready: Callable[[Settings], object] | None = None,
        patient: bool = False,
    ) -> None:
        """Run until :meth:`shutdown`, SIGTERM or SIGINT, then stop in order; a second signal ends the process at once.

        ``arguments`` are settings as ``--key=value``. Sets up logging as ``rocketbox.logging.*`` says. ``on_ready`` is
        called when everything has started. ``patient`` takes a second signal for the first one once more: in a process
        whose parent kills it when it shall end at once. Raises SystemExit with 1 when the start fails, 3 when the stop
        took longer than ``rocketbox.shutdown.timeout``.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ClientStateError(
                f"app.run() of {self.name} was called in thread {threading.current_thread().name!r}, and takes the "
                "process's signals, which only the main thread can; in a thread use 'with app.background():', or "
                "'async with app:' in a loop of your own"
            )
        freeze_program()
        with StopGuard(self.name, patient=patient) as guard, thread_failures_logged():
            try:
                assembly = self._assemble(Launch(config, profiles, arguments))
            except Exception as error:
                self.print_failure(error, debug=debug)
                raise SystemExit(FAILED) from None
            set_up_logging(assembly.rocketbox.logging, debug=debug, secrets=assembly.settings.secrets)
            guard.limit(assembly.rocketbox.shutdown.timeout.total_seconds())
            try:
                code = anyio.run(self._serve, assembly, debug, on_ready, guard, backend_options=loop_options())
            except SystemExit as wish:  # of a startup hook, or a bean
                if wish.code is None or isinstance(wish.code, int):
                    raise
                print(mask(safe_str(wish.code), assembly.settings.secrets), file=sys.stderr)  # noqa: T201
                raise SystemExit(FAILED) from None
        if code:
            raise SystemExit(code)

    async def _serve(
        self, assembly: Assembly, debug: bool, on_ready: Callable[[Settings], object] | None, guard: StopGuard
    ) -> int:
        run = self._new_run(assembly)
        run.guard = guard
        with anyio.CancelScope() as starting:
            guard.attach(lambda: run.wanted.set() if run.is_started else starting.cancel())
            try:
                await self._enter(run)
            except Exception as error:
                self.print_failure(error, debug=debug, secrets=assembly.settings.secrets)
                return FAILED
            freeze_run()
            failure: BaseException | None = None
            try:
                if on_ready is not None:
                    on_ready(assembly.settings)
                await run.wait_until_wanted()
            except BaseException as error:
                failure = error
            try:
                swallowed = await self.__aexit__(type(failure) if failure else None, failure, None)
            except Exception as error:
                failure, swallowed = error, False
            if isinstance(failure, Exception):
                self._print_end(failure, run, debug)
                return FAILED
            if swallowed:
                self._print_end(ClientStateError("a bean has cancelled a scope that is around the service"), run, debug)
                return FAILED
            if failure is not None:
                raise failure
        if run.lifecycle.cut_short is not None:
            return STOP_CUT_SHORT
        _log.info("%s has stopped", self.name)
        return STOPPED

    def _print_end(self, error: Exception, run: Run, debug: bool) -> None:
        """Write to stderr why the application has stopped by itself; with ``debug`` the traceback first."""
        if debug:
            _log.error("%s has failed\n%s", self.name, masked_traceback(error, run.assembly.settings.secrets))
        print(run.told_of_end(error), file=sys.stderr)  # noqa: T201

    @staticmethod
    def print_failure(error: BaseException, *, debug: bool = False, secrets: frozenset[str] = frozenset()) -> None:
        """Write to stderr why an application did not start; with ``debug`` the traceback first."""
        report = None
        secrets = secrets or secrets_of(os.environ)  # nothing else is known before the settings are
        if isinstance(error, AssemblyError):
            report, secrets = error.report, error.secrets
        elif isinstance(error, SettingsError):
            secrets = secrets | error.secrets
        if debug:
            logging.getLogger(__name__).error("the start failed\n%s", masked_traceback(error, secrets))
        print(render_failure(error, report=report, secrets=secrets), file=sys.stderr)  # noqa: T201


def _ask_server(name: str) -> None:
    """Ask the ASGI server around an application to stop, in the way that all of them understand."""
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.SIG_IGN):
        raise ClientStateError(
            f"app.shutdown() of {name}, which runs as the lifespan of another program: it stops when that one does, "
            "and that one listens to no SIGTERM, by which servers are asked; stop it in its own way"
        )
    os.kill(os.getpid(), signal.SIGTERM)
