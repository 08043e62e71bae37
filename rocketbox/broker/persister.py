"""The broker's tables and their files: read at the start, written by one task each when they have changed.

A table says that it changed (``TableFile.mark``); its task encodes it in steps of the loop, writes it in a thread, and
says up to which change it is on disk. Who needs to know waits (``TableFile.written``): the first send to a new topic
does, and many new topics share a write; groups and offsets wait for nobody. What cannot be written is tried again, told
once (``Troubles``).

Source: Apache RocketMQ 5.x ``ConfigManager``, ``BrokerController.initializeBrokerScheduledTasks``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import anyio
import anyio.lowlevel

from rocketbox.blocking import run_blocking
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.troubles import Troubles
from rocketbox.clock import Clock
from rocketbox.errors import StoreError
from rocketbox.storage.file_system import Storage
from rocketbox.tasks import Supervisor

__all__ = ["Persister", "Table", "TableFile"]

_log = logging.getLogger(__name__)

GROUPS_INTERVAL = 1.0  # seconds that changes of groups gather before they are written
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
        self.failure: str | None = None
        """Why the last attempt did not write it."""
        self._attempts = 0
        self.changed = anyio.Event()
        self.wanted = anyio.Event()
        self._attempted = anyio.Event()

    def mark(self) -> int:
        """The table has changed; the number of the change."""
        self.marked += 1
        self.changed.set()
        return self.marked

    def is_written(self, change: int) -> bool:
        return self.done >= change

    async def written(self, change: int) -> None:
        """Return when a change is on the disk; ask for that to be soon. Raises StoreError when an attempt fails."""
        with self._clock.move_on_after(WRITE_TIMEOUT):
            while self.done < change:
                attempt = self._attempts
                self.wanted.set()
                await self._attempted.wait()
                if self.done < change and self.failure is not None and self._attempts != attempt:
                    raise StoreError(
                        f"{self.file.path.name} could not be written ({self.failure}); see that the disk of "
                        f"{self.file.path.parent} has room and works, then try again"
                    )
        if self.done < change:
            raise StoreError(f"{self.file.path.name} could not be written within {WRITE_TIMEOUT:.0f} s")

    def attempted(self, change: int, failure: str | None) -> None:
        """What an attempt to write everything up to a change has come to."""
        self._attempts += 1
        self.failure = failure
        if failure is None:
            self.done = max(self.done, change)
        self._attempted.set()
        self._attempted = anyio.Event()


class Persister:
    """``topics``, ``subscriptionGroup``, ``consumerOffset`` and ``delayOffset`` under ``config/``.

    Intervals, in seconds, are those in which tables are written that change all the time and nobody waits for.
    """

    def __init__(
        self,
        directory: Path,
        storage: Storage,
        clock: Clock,
        troubles: Troubles,
        *,
        offsets_interval: float = 5.0,
        delay_interval: float = 10.0,
    ) -> None:
        self._clock = clock
        self._troubles = troubles

        def file(name: str, interval: float) -> TableFile:
            return TableFile(ConfigFile(directory / f"{name}.json", storage), clock, interval)

        self.topics = file("topics", 0.0)
        self.groups = file("subscriptionGroup", GROUPS_INTERVAL)
        self.offsets = file("consumerOffset", offsets_interval)
        self.delays = file("delayOffset", delay_interval)
        self._tables: list[tuple[TableFile, Table]] = []

    def load(self, *, topics: Table, groups: Table, offsets: Table, delays: Table) -> None:
        """Read each table's file, if there is one. Raises StoreError, StoreCorruptError."""
        self._tables = [(self.topics, topics), (self.groups, groups), (self.offsets, offsets), (self.delays, delays)]
        for file, table in self._tables:
            text = file.file.load()
            if text is not None:
                table.load(text, str(file.file.path))

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
            await run_blocking(file.file.persist, pieces)
        except Exception as error:
            file.attempted(change, str(error) or repr(error))
            raise
        file.attempted(change, None)
