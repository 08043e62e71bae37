"""``rocketbox run --reload``: the service in a process of its own, which is restarted when its files change.

The parent imports none of the service's code, so that it outlives whatever is wrong with it. Which files count is
decided in ``cli.watching``; a child with ``--workers`` restarts all of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from rocketbox.autoconfigure.log_setup import set_up_logging
from rocketbox.autoconfigure.properties import RocketBoxProperties, RocketMQProperties
from rocketbox.boot.root_settings import load_settings
from rocketbox.boot.settings_file import find_settings_file
from rocketbox.cli.children import GRACE, Child
from rocketbox.cli.watching import Watch, places_of_code, places_of_settings
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import ConfigurationError
from rocketbox.stop_guard import StopGuard
from rocketbox.tasks import Supervisor

__all__ = ["Reloading"]

_log = logging.getLogger(__name__)

DEFAULT_FILES = ("rocketbox.yaml", "config/rocketbox.yaml", ".env")


class Reloading:
    """One service under ``--reload``; ``command`` is the command line of its process, without ``rocketbox``."""

    def __init__(
        self,
        target: str,
        command: Sequence[str],
        *,
        config: Path | None,
        profiles: Sequence[str],
        arguments: Sequence[str],
        debug: bool,
        clock: Clock | None = None,
    ) -> None:
        self._module = target.partition(":")[0]
        self._command = command
        self._config = config
        self._profiles = profiles
        self._arguments = arguments
        self._clock = clock or RealClock()
        self._own = RocketBoxProperties()
        self._files = {Path(file) for file in (*DEFAULT_FILES, config, os.environ.get("ROCKETBOX_CONFIG")) if file}
        self._changes: set[Path] = set()
        self._stopping = False
        self._woken = anyio.Event()
        self._child: Child | None = None
        self._read_settings()
        set_up_logging(self._own.logging, debug=debug)
        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of each change, and so do we

    def run(self) -> int:
        """Run until a signal, or until the service ends with status 0; the exit code is that of the service."""
        with StopGuard("the service", before_end=self._kill) as guard:
            return anyio.run(self._serve, guard)

    async def _serve(self, guard: StopGuard) -> int:
        status = 0
        guard.attach(self._stop)
        async with Supervisor("reload", self._clock) as tasks:
            watch = Watch(tasks, self._note)
            while not self._stopping:
                self._read_settings()
                await watch.follow((*places_of_code(self._module, Path.cwd()), *places_of_settings(self._files)))
                self._changes.clear()
                status, is_over = await self._one_round(watch, tasks)
                if is_over:
                    break
            await watch.close()
        return status

    async def _one_round(self, watch: Watch, tasks: Supervisor) -> tuple[int, bool]:
        """One process from its start to its end, and on to the next change; its status, and whether it was the last."""
        child = self._child = await Child.start("the service", self._command, tasks, self._wake)
        await self._until(lambda: child.ready.is_set() or child.ended.is_set())
        await watch.follow(places_of_settings(child.files))
        await self._until(child.ended.is_set)
        if not child.ended.is_set():
            if not self._stopping:
                _log.info("%s: the service restarts", self._changed_files())
            return await self._stop_child(child), self._stopping
        if child.status == 0:
            _log.info("the service has ended by itself, and so does watching")
            return 0, True
        what = "has failed" if child.ready.is_set() else "did not start"
        _log.error("the service %s (status %d); the next change of a file starts it again", what, child.status)
        await self._until(lambda: False)
        if self._changes:
            _log.info("%s: the service starts again", self._changed_files())
        return child.status, self._stopping

    async def _stop_child(self, child: Child) -> int:
        timeout = child.stop_timeout or self._own.shutdown.timeout.total_seconds()
        child.ask_to_stop()
        with self._clock.move_on_after(timeout + GRACE):
            await child.ended.wait()
        return await child.end(timeout)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, files have changed, or the end is wanted."""
        while not (condition() or self._changes or self._stopping):
            self._woken = anyio.Event()
            await self._woken.wait()

    def _wake(self) -> None:
        self._woken.set()

    def _note(self, files: set[Path]) -> None:
        self._changes |= files
        self._wake()

    def _stop(self) -> None:
        self._stopping = True
        self._wake()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _changed_files(self) -> str:
        here = Path.cwd()
        names = sorted(str(file.relative_to(here) if file.is_relative_to(here) else file) for file in self._changes)
        return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''} changed"

    def _read_settings(self) -> None:
        """Find out the settings files and the time for the stop; what is wrong with them is told by the service."""
        dotenv = Path(".env")
        try:
            settings = load_settings(
                {"rocketmq": RocketMQProperties, "rocketbox": RocketBoxProperties},
                file=find_settings_file(self._config),
                profiles=self._profiles,
                env_file=dotenv if dotenv.is_file() else None,
                arguments=self._arguments,
            )
        except ConfigurationError:
            return
        self._own = settings.get("rocketbox")
        self._files |= set(settings.files)
