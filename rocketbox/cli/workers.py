"""``rocketbox run --workers N``: the service in N processes, which share its consumer groups, one client each.

The first worker starts alone, and so does the second, when the first is ready: what is wrong with the service, or with
several of it, is told once. Then the others follow together. A worker that dies later is started again after a pause,
which grows. With ``name-server: embedded`` the parent has the servers, once, and the workers get their address. What is
the service's own per machine, and would clash, is refused.

The processes themselves are dealt with in ``cli.children``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.embedded import embedded_servers
from rocketbox.autoconfigure.properties import cluster_prefix
from rocketbox.cli.children import GRACE, Child
from rocketbox.errors import ConfigurationError
from rocketbox.stop_guard import STOP_CUT_SHORT, StopGuard
from rocketbox.tasks import SupervisedTask, Supervisor

__all__ = ["Workers", "check_workers", "own_settings"]

_log = logging.getLogger(__name__)

FIRST_PAUSE = 1.0  # seconds until a worker that died is started again; doubles up to LONGEST_PAUSE
LONGEST_PAUSE = 30.0
HEALTHY_AFTER = 60.0  # a worker that ran this long before it died starts again after FIRST_PAUSE
ALONE = 2  # workers that start one after the other: the first shows what is wrong, the second what clashes
FAILED = 1

CLIENTS = ("producer", "consumer", "pull-consumer")  # the sections which may name the client instance


def check_workers(assembly: Assembly, count: int) -> None:
    """Raise ConfigurationError with all that several processes of this service would do to each other."""
    if count == 1:
        return

    def has_name(cluster: str | None) -> bool:
        return bool(dict(_instance_names(assembly, cluster_prefix(cluster))))

    findings = [
        finding
        for each in assembly.listeners
        for plan in each.plans
        for finding in each.kind.clashes(plan, count, has_name)
    ]
    if findings:
        raise ConfigurationError(findings)


def own_settings(assembly: Assembly, number: int, name_server: str | None) -> Iterator[str]:
    """The settings, as arguments, which a worker has of its own: the embedded servers' address, names of clients."""
    for cluster in (None, *assembly.rocketmq.clusters):
        section = cluster_prefix(cluster)
        if name_server is not None and assembly.rocketmq.cluster(cluster or "").is_embedded:
            yield f"--{section}.name-server={name_server}"
        for key, name in _instance_names(assembly, section):
            yield f"--{key}={name}-{number}"  # two clients of one name count as one, and would work on the same queues


def _instance_names(assembly: Assembly, section: str) -> Iterator[tuple[str, str]]:
    """The keys of a cluster that name its client instance, and what they say; DEFAULT is unique in each process."""
    for client in CLIENTS:
        key = f"{section}.{client}.instance-name"
        if assembly.settings.has(key) and (name := assembly.settings.value(key)) != "DEFAULT":
            yield key, name


class Workers:
    """The N processes of one service.

    ``command(settings)`` is a worker's command line, without ``rocketbox``, that ends with these settings;
    ``failed(error)`` tells of embedded servers that cannot start; ``ready(seconds)`` is called when all workers are
    ready, with the time that the whole stop may take. ``patient`` as in :class:`~rocketbox.stop_guard.StopGuard`.
    """

    def __init__(
        self,
        assembly: Assembly,
        count: int,
        *,
        command: Callable[[Sequence[str]], Sequence[str]],
        failed: Callable[[Exception], object],
        ready: Callable[[float], object],
        patient: bool = False,
    ) -> None:
        self._assembly = assembly
        self._name = assembly.service.name
        self._clock = assembly.service.clock
        self._stop_timeout = assembly.rocketbox.shutdown.timeout.total_seconds()
        self._count = count
        self._command = command
        self._failed = failed
        self._ready = ready
        self._patient = patient
        self._children: dict[int, Child] = {}
        self._keepers: list[SupervisedTask] = []
        self._proven: set[int] = set()  # the workers that have been ready once
        self._end = anyio.Event()  # somebody wants the end: a signal, the application, a worker that cannot start
        self._woken = anyio.Event()
        self._did_not_start = False

    def run(self) -> int:
        """Run until a signal, or until a worker ends by its application's own wish; returns the exit code."""
        with StopGuard(self._name, patient=self._patient, before_end=self._kill) as guard:
            return anyio.run(self._serve, guard)

    async def _serve(self, guard: StopGuard) -> int:
        guard.attach(self._want_end)
        async with Supervisor(f"workers of {self._name}", self._clock) as tasks, AsyncExitStack() as stack:
            try:
                name_server = await self._start_servers(stack)
            except Exception as error:
                self._failed(error)
                return FAILED
            await self._start_workers(name_server, tasks)
            await self._end.wait()
            status = await self._stop()
        if status == 0:
            _log.info("%s has stopped", self._name)
        return status

    async def _start_servers(self, stack: AsyncExitStack) -> str | None:
        """The address of the embedded name server, which runs until the stack closes; None if none is asked for."""
        if not self._assembly.rocketmq.enabled or not self._assembly.rocketmq.is_embedded:
            return None
        context = asynccontextmanager(embedded_servers)(self._assembly.rocketbox, self._assembly.service)
        servers = await stack.enter_async_context(context)
        _log.info("the workers share the embedded servers, name server %s", servers.name_server_address)
        return servers.name_server_address

    async def _start_workers(self, name_server: str | None, tasks: Supervisor) -> None:
        for number in range(1, self._count + 1):
            if number <= ALONE + 1:
                await self._until(lambda: len(self._proven) == number - 1)  # noqa: B023 - awaited at once
            if self._end.is_set():
                return
            settings = list(own_settings(self._assembly, number, name_server))
            name = f"worker {number}"
            self._keepers.append(tasks.start(name, self._keep, number, self._command(settings), tasks))
        await self._until(lambda: len(self._proven) == self._count)
        if not self._end.is_set():
            _log.info("%s: %d workers are ready", self._name, self._count)
            self._ready(self._stop_timeout + 2 * GRACE)  # once for workers that are ended, once for the servers

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds or the end is wanted."""
        while not (condition() or self._end.is_set()):
            self._woken = anyio.Event()
            await self._woken.wait()

    async def _keep(self, number: int, command: Sequence[str], tasks: Supervisor) -> None:
        """Run one worker, again and again, until the end is wanted or it ends by itself with status 0."""
        name, pause = f"worker {number}", FIRST_PAUSE
        while not self._end.is_set():
            since = self._clock.monotonic()
            child = await Child.start(name, command, tasks, lambda: self._note(number), label=name)
            self._children[number] = child
            _log.info("%s is process %d", name, child.pid)
            if self._end.is_set():  # while it was being started
                child.ask_to_stop()
            await child.ended.wait()
            if self._end.is_set():
                return
            if child.status == 0:
                _log.info("%s has ended by itself: all workers end", name)
                self._want_end()
            elif number not in self._proven:
                _log.error("%s did not start (status %d): all workers end", name, child.status)
                self._did_not_start = True
                self._want_end()
            else:
                if self._clock.monotonic() - since >= HEALTHY_AFTER:
                    pause = FIRST_PAUSE
                _log.error("%s (process %d) died with status %d; again in %g s", name, child.pid, child.status, pause)
                with self._clock.move_on_after(pause):
                    await self._end.wait()
                pause = min(pause * 2, LONGEST_PAUSE)

    def _note(self, number: int) -> None:
        if self._children[number].ready.is_set():
            self._proven.add(number)
        self._woken.set()

    def _want_end(self) -> None:
        self._end.set()
        self._woken.set()

    async def _stop(self) -> int:
        """Stop all workers together; the exit code that follows from theirs."""
        for child in self._children.values():
            child.ask_to_stop()
        with self._clock.move_on_after(self._stop_timeout + GRACE):
            for keeper in self._keepers:
                await keeper.wait()
        stopped = [child for child in self._children.values() if child.was_asked_to_stop]
        statuses = [await child.end(self._stop_timeout) for child in stopped]
        if self._did_not_start:
            return FAILED
        if STOP_CUT_SHORT in statuses:
            return STOP_CUT_SHORT
        return FAILED if any(statuses) else 0

    def _kill(self) -> None:
        for child in self._children.values():
            child.kill()
