"""The broker's tables and their files: read at the start, written by one task each when they have changed.

A table says that it changed (``TableFile.mark``); its task encodes it in steps of the loop, writes it in a thread, and
says up to which change it is on disk. Who needs to know waits (``TableFile.written``): the first send to a new topic
does, and many new topics share a write; groups and offsets wait for nobody. What cannot be written is tried again, told
once (``Troubles``).

Source: Apache RocketMQ 5.x ``ConfigManager``, ``BrokerController.initializeBrokerScheduledTasks``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import anyio
import anyio.lowlevel

from rocketbox.blocking import run_blocking
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.troubles import Troubles
from rocketbox.clock import Clock
from rocketbox.errors import StoreError
from rocketbox.storage.file_system import Storage
from rocketbox.tasks import Supervisor
from rocketbox.waiters import make_waiter

__all__ = ["Persister", "Table", "TableFile"]

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)

GROUPS_INTERVAL = 1.0  # seconds that changes of groups gather before they are written
ASKERS_INTERVAL = 1.0  # what a killed broker forgets of them: who asks has given up soon after that
SHARE_OF_TIME = 0.1  # at most this much of it goes into writing a table that nobody waits for
WRITE_TIMEOUT = 5.0  # seconds that somebody waits for a write
FIRST_BACKOFF = 0.1  # seconds until a failed write is tried again; doubles up to LONGEST_BACKOFF
LONGEST_BACKOFF = 30.0


class Table(Protocol):
    """What a file holds."""

    def load(self, text: str, file: str, /) -> None:
        """Take over what a file held. Raises StoreCorruptError when it is not such a table."""

    def pieces(self) -> Iterator[bytes]:
        """The table's text, in pieces each of which takes little time. What changes meanwhile may be in it or not."""


class TableFile:
    """A table's file as the table sees it. A change is known by the number that :meth:`mark` gave it."""

    def __init__(self, file: ConfigFile, clock: Clock, interval: float = 0.0) -> None:
        self.file = file
        self.interval = interval
        self._clock = clock
        self.marked = 0
        self.done = 0
        self.changed = anyio.Event()
        self.wanted = anyio.Event()
        self._line: list[_Place[Any]] = []

    def mark(self) -> int:
        """The table has changed; the number of the change."""
        self.marked += 1
        self.changed.set()
        return self.marked

    def is_written(self, change: int) -> bool:
        return self.done >= change

    def in_turn(self, change: int, handle: Callable[[], ResultT]) -> Awaitable[ResultT]:
        """What ``handle`` returns, called when a change is on the disk; asks for that to be soon.

        Who waits for a change stands in line from this call on: all are called in one go and in their order, so nobody
        to whom it :meth:`is_written` comes before them. Raises StoreError, when awaited, if an attempt fails.
        """
        place = _Place(change, handle)
        if self.done >= change:
            place.go()
        else:
            self._line.append(place)
            self.wanted.set()
        return self._turn(place)

    async def _turn(self, place: _Place[ResultT]) -> ResultT:
        try:
            with self._clock.move_on_after(WRITE_TIMEOUT):
                await place.result
        finally:
            place.left = True
        if place.told:  # also when that was in the moment in which the time was over
            result: ResultT = await place.result
            return result
        raise StoreError(f"{self.file.path.name} could not be written within {WRITE_TIMEOUT:.0f} s")

    async def written(self, change: int) -> None:
        """Return when a change is on the disk; ask for that to be soon. Raises StoreError when an attempt fails."""
        await self.in_turn(change, _nothing)

    def attempted(self, change: int, failure: str | None) -> None:
        """What an attempt to write everything up to a change has come to."""
        if failure is None:
            self.done = max(self.done, change)
        line, self._line = self._line, []
        for place in line:
            if self.done >= place.change:
                place.go()
            elif failure is not None:
                place.fail(
                    StoreError(
                        f"{self.file.path.name} could not be written ({failure}); see that the disk of "
                        f"{self.file.path.parent} has room and works, then try again"
                    )
                )
            else:
                self._line.append(place)
                self.wanted.set()


class _Place(Generic[ResultT]):
    """Of one who waits for a change: what is done then, and what it comes to."""

    __slots__ = ("_handle", "change", "left", "result", "told")

    def __init__(self, change: int, handle: Callable[[], ResultT]) -> None:
        self.change = change
        self._handle = handle
        self.result = make_waiter()
        self.left = False
        self.told = False

    @property
    def _is_over(self) -> bool:
        """Whether nobody awaits the result: who did has left, or was cancelled a moment ago and is about to."""
        return self.left or self.result.done()

    def go(self) -> None:
        if self._is_over:
            return
        self.told = True
        try:
            result = self._handle()
        except Exception as error:
            self.result.set_exception(error)
        else:
            self.result.set_result(result)

    def fail(self, error: StoreError) -> None:
        if not self._is_over:
            self.told = True
            self.result.set_exception(error)


def _nothing() -> None:
    """For who only waits."""


class Persister:
    """``topics``, ``subscriptionGroup``, ``consumerOffset``, ``delayOffset``, ``authUsers`` and ``askers`` under
    ``config/``.

    Intervals, in seconds, are those in which tables are written that change all the time and nobody waits for.
    ``sync_log`` syncs the commit log, and says whether it could: what tables say of messages must not be ahead of it.
    """

    def __init__(
        self,
        directory: Path,
        storage: Storage,
        clock: Clock,
        troubles: Troubles,
        *,
        sync_log: Callable[[], Awaitable[bool]],
        offsets_interval: float = 5.0,
        delay_interval: float = 10.0,
    ) -> None:
        self._clock = clock
        self._troubles = troubles
        self._sync_log = sync_log

        def file(name: str, interval: float, *, private: bool = False) -> TableFile:
            return TableFile(ConfigFile(directory / f"{name}.json", storage, private=private), clock, interval)

        self.topics = file("topics", 0.0)
        self.groups = file("subscriptionGroup", GROUPS_INTERVAL)
        self.offsets = file("consumerOffset", offsets_interval)
        self.delays = file("delayOffset", delay_interval)
        self.users = file("authUsers", 0.0, private=True)
        self.askers = file("askers", ASKERS_INTERVAL, private=True)
        self._tables: list[tuple[TableFile, Table]] = []

    def load(
        self,
        *,
        topics: Table,
        groups: Table,
        offsets: Table,
        delays: Table,
        users: Table | None = None,
        askers: Table | None = None,
    ) -> None:
        """Read each table's file, if there is one. Raises StoreError, StoreCorruptError; not for that of the askers,
        without which replies to the requests of before are refused.
        """
        self._tables = [(self.topics, topics), (self.groups, groups), (self.offsets, offsets), (self.delays, delays)]
        if users is not None:
            self._tables.append((self.users, users))
        if askers is not None:
            self._tables.append((self.askers, askers))
        for file, table in self._tables:
            try:
                text = file.file.load()
                if text is not None:
                    table.load(text, str(file.file.path))
            except StoreError as error:
                text = None  # there may be passwords in it, and what shows the variables of a failure shows none
                if file is not self.askers:
                    raise
                _log.warning(
                    "%s cannot be used, and replies to requests of before are refused: %s", file.file.path, error
                )

    def start(self, tasks: Supervisor) -> None:
        """Begin to write what changes."""
        for file, table in self._tables:
            tasks.start(f"write {file.file.path.name}", self._keep_written, file, table)

    async def finish(self) -> None:
        """Write what has changed since it was last written, and what has no file yet; when nothing else changes it."""
        with anyio.CancelScope(shield=True):
            for file, table in self._tables:
                try:
                    if not file.is_written(file.marked) or not file.file.exists():
                        await self._write(file, table)
                except Exception as error:  # the stop must go on: messages are in the store, which closes next
                    foreseen = isinstance(error, OSError)
                    _log.error("%s could not be written: %s", file.file.path, error, exc_info=not foreseen)

    async def _keep_written(self, file: TableFile, table: Table) -> None:
        backoff, seconds = FIRST_BACKOFF, 0.0
        what = f"writing {file.file.path}"
        while True:
            while file.is_written(file.marked):
                file.changed = anyio.Event()
                await file.changed.wait()
            await self._wait(file, max(file.interval, seconds / SHARE_OF_TIME if file.interval else 0.0))
            started = self._clock.monotonic()
            try:
                await self._write(file, table)
            except Exception as error:
                self._troubles.begin(what, error)
                await self._clock.sleep(FIRST_BACKOFF)
                await self._wait(file, backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF)
            else:
                self._troubles.end(what)
                backoff = FIRST_BACKOFF
            seconds = self._clock.monotonic() - started

    async def _wait(self, file: TableFile, seconds: float) -> None:
        """Let changes gather, until somebody waits for one of them."""
        with self._clock.move_on_after(seconds):
            await file.wanted.wait()

    async def _write(self, file: TableFile, table: Table) -> None:
        change = file.marked
        file.wanted = anyio.Event()
        try:
            pieces = []
            for piece in table.pieces():
                pieces.append(piece)
                await anyio.lowlevel.checkpoint()  # others have their turn between the pieces
            await self._sync_before(file)
            await run_blocking(file.file.persist, pieces)
        except Exception as error:
            file.attempted(change, str(error) or repr(error))
            raise
        file.attempted(change, None)

    async def _sync_before(self, file: TableFile) -> None:
        """Have the log synced up to what a table says is done with: what a power failure takes from the one must not
        be said in the other. Offsets of groups are written in any case, and a start brings them back to their queues.
        """
        if file in (self.delays, self.offsets) and not await self._sync_log() and file is self.delays:
            raise StoreError("the commit log is not synced, and the table must not be ahead of it")
