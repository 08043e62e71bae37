"""What is read of the log and of queues beyond what was asked, for consumers that catch up.

A consumer that is far behind asks for the messages that lie next, and so do those of the queues beside. So a thread
that reads for one whose records lie close together reads on: a run of the log, which is kept as it is, and more units
of the queue than it needs. Who asks next is answered in the loop, from memory; when he comes near the end of a run the
next one is read already, and nobody waits for it.

Records are found in a run by their entries, and looked at when they are served. So a run that is read again costs
little: a consumer's queues drift apart, by a thousand messages each with Apache's clients, and what one of them needs
may have gone when the others were served.

What is read in vain is bounded by an account: what is served pays for what is read. It is charged by the byte; each
byte that is served from here earns :data:`EARNED`, and without credit nothing is read ahead. So one queue of very many,
or reads here and there, cost little more than they did; and those whose records lie far apart are not read for at all.

Nothing here decides what is served. A record is served only if it is sound and agrees with its entry
(``record_reading``), and units only as long as their queue has not changed them (``ConsumeQueue.changes``); all else is
as if it were not here, and is read from the disk.

Source: rocketbox' own; Apache RocketMQ 5.x leaves it to the page cache and the kernel's read-ahead.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from rocketbox.blocking import Job
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import ConsumeQueue
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT
from rocketbox.broker.store.record_cache import RecordCache
from rocketbox.broker.store.records import Place
from rocketbox.errors import StoreError

__all__ = ["ReadAhead", "ReadOn"]

_log = logging.getLogger(__name__)

RUN_BYTES = 512 << 10  # of the log that are read at once
LEAST_RUN = 4 << 10  # with less nothing is kept
UNITS = 800  # of a queue; a read without a filter needs 32
MANY = 8  # so many records must be wanted at once ...
DENSE = 8  # ... which lie in no more than this multiple of their bytes
EARNED = (
    4  # bytes that may be read ahead for each that was served: as many as cost less than going to the disk each time
)
EARNED_BY_DISK = 4  # bytes read from the disk, for one that may be read ahead again when there is no credit


@dataclass(slots=True, eq=False)
class _Run:
    """A part of the log, without a gap, in one file; ``data`` when it is ``read``."""

    start: int
    end: int
    data: bytes = b""
    read: threading.Event = field(default_factory=threading.Event)
    is_followed: bool = False
    """The next one was asked for."""


class ReadAhead:
    """Of one log and its queues, ``size`` bytes at most: three quarters of the log, the others units; 0: nothing.

    Any thread may call. ``cache`` has the newest records, which are not read again.
    """

    def __init__(self, log: CommitLog, cache: RecordCache, size: int) -> None:
        self.due: int | None = None
        """Where a run is to be read now, before it is asked for; :class:`ReadOn` does it."""
        self._log = log
        self._cache = cache
        self._most_queues = size // 4 // (UNITS * CONSUME_QUEUE_UNIT)
        self._most = size - size // 4
        self._run_bytes = min(RUN_BYTES, self._most // 4)
        self._runs: list[_Run] = []  # the oldest first
        self._held = 0
        self._credit = self._most if self._run_bytes >= LEAST_RUN else 0
        self._most_credit = self._credit
        self._units: dict[ConsumeQueue, tuple[int, int, bytes]] = {}  # changes of the queue then, first offset, units
        self._guard = threading.Lock()

    # --- records ---

    def read_for(self, place: Place, count: int, size: int, span: int) -> None:
        """Have the record that is missing here, and those behind it, if that is worth it; blocks.

        ``count`` records of ``size`` bytes are wanted, which lie in ``span`` bytes of the log.
        """
        if count < MANY or span > DENSE * size:
            return
        if self._credit <= 0:
            with self._guard:
                self._credit = min(self._most_credit, self._credit + size // EARNED_BY_DISK)
        self.read_run(place[0], place[0] + place[1])

    def data_at(self, start: int, size: int) -> tuple[bytes, int]:
        """Bytes that hold ``size`` of the log from ``start`` on, and where they begin; none when not all are here."""
        end = start + size
        with self._guard:
            run = self._run_at(start)
            if run is not None and end <= run.end and run.data:
                return run.data, run.start
            pieces, position = [], start
            while run is not None and run.data and position < end:  # it lies in several
                pieces.append(run.data[position - run.start : end - run.start])
                position = run.end
                run = self._run_at(position)
        return (b"".join(pieces), start) if pieces and position >= end else (b"", 0)

    def _run_at(self, offset: int) -> _Run | None:
        for run in self._runs:
            if run.start <= offset < run.end:
                return run
        return None

    def read_run(self, start: int, end: int, *, wait: bool = True) -> None:
        """Read a run from ``start`` on, or the first of the log that is not here up to ``end``; blocks.

        Where another thread reads it already: ``wait`` for that, or do nothing.
        """
        while True:
            with self._guard:
                while (run := self._run_at(start)) is not None and run.data and run.end < end:
                    start = run.end
                is_new = run is None and self._credit > 0
                if is_new:
                    run = self._begin_run(start)
            if run is None or run.data or not (is_new or wait):
                return
            if is_new:
                try:
                    self._read(run)
                finally:
                    run.read.set()
                return
            run.read.wait()

    def _begin_run(self, start: int) -> _Run:
        """A run up to the next one, if that is nearer than it could be long."""
        end = min([start + self._run_bytes, *(run.start for run in self._runs if run.start > start)])
        run = _Run(start, end)
        self._credit -= end - start
        self._runs.append(run)
        return run

    def _read(self, run: _Run) -> None:
        data = b""
        try:
            if self._log.start <= run.start < self._log.written:
                data = self._log.read(run.start, min(run.end, self._log.written) - run.start)
        except (OSError, StoreError) as error:
            _log.debug("nothing is read ahead at %d: %s", run.start, error)
        finally:
            with self._guard:
                self._keep(run, data)

    def _keep(self, run: _Run, data: bytes) -> None:
        if not data:
            self._runs.remove(run)
            return
        run.end = run.start + len(data)
        run.data = data
        self._held += len(data)
        while self._held > self._most:
            oldest = next(each for each in self._runs if each.data)
            self._runs.remove(oldest)
            self._held -= len(oldest.data)

    def served(self, size: int, last: int) -> None:
        """So many bytes of records were served from here, the last one at this offset."""
        with self._guard:
            self._credit = min(self._most_credit, self._credit + EARNED * size)
            run = self._run_at(last)
            if run is not None and not run.is_followed and last - run.start >= (run.end - run.start) // 4:
                run.is_followed = True
                self._follow(run.end)

    def _follow(self, start: int) -> None:
        if self._run_at(start) is None and start < self._log.written and not self._cache.reaches(start):
            self.due = start

    # --- units ---

    def keep_units(self, queue: ConsumeQueue, changes: int, offset: int, units: bytes) -> None:
        """Keep units that were read from a queue's files when it had been changed so often."""
        if not self._most_queues:
            return
        with self._guard:
            self._units.pop(queue, None)
            self._units[queue] = changes, offset, units[: UNITS * CONSUME_QUEUE_UNIT]
            if len(self._units) > self._most_queues:
                del self._units[next(iter(self._units))]

    def units(self, queue: ConsumeQueue, offset: int, count: int) -> bytes | None:
        """Up to ``count`` units of a queue from ``offset`` on, as they are stored; None if they are not here."""
        kept = self._units.get(queue)
        if kept is None or kept[0] != queue.changes:
            return None
        position = (offset - kept[1]) * CONSUME_QUEUE_UNIT
        return kept[2][position : position + count * CONSUME_QUEUE_UNIT] or None if position >= 0 else None


class ReadOn(Job):
    """Reads the run that is due."""

    __slots__ = ("_ahead", "_start")

    def __init__(self, ahead: ReadAhead, start: int) -> None:
        super().__init__()
        self._ahead = ahead
        self._start = start

    def run(self) -> None:
        self._ahead.read_run(self._start, self._start + 1, wait=False)

    def ended(self) -> None:
        if self.failure is not None:
            _log.error("reading the log ahead failed", exc_info=self.failure)
