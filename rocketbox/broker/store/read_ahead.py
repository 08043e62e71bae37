"""What is read of the log and of queues beyond what was asked, for consumers that catch up.

A consumer that is far behind asks for the messages that lie next, and so do those of the queues beside. So a thread
that reads for one whose records lie close together reads on: a run of the log, whose records are checked and kept by
their offsets, and more units of the queue than it needs. Who asks next is answered in the loop, from memory; when he
comes near the end of a run the next one is read already, and nobody waits for it.

What is read in vain is bounded by an account: what is served pays for what is read. It is charged by the byte; each
byte that is served from here earns :data:`EARNED`, and without credit nothing is read ahead. So one queue of very many,
or reads here and there, cost little more than they did; and those whose records lie far apart are not read for at all.

Nothing here decides what is served. A record is served only if it agrees with its entry (``record_reading``), and units
only as long as their queue has not changed them (``ConsumeQueue.changes``); all else is as if it were not here, and is
read from the disk.

Source: rocketbox' own; Apache RocketMQ 5.x leaves it to the page cache and the kernel's read-ahead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rocketbox.blocking import Job
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import ConsumeQueue
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT
from rocketbox.broker.store.record_cache import RecordCache
from rocketbox.broker.store.records import Place
from rocketbox.errors import StoreError

__all__ = ["ReadAhead", "ReadOn"]

_log = logging.getLogger(__name__)
_NONE: Mapping[Place, bytes] = MappingProxyType({})

RUN_BYTES = 512 << 10  # of the log that are read at once
LEAST_RUN = 4 << 10  # with less nothing is kept
RUN_RECORDS = 1024  # small ones are not all of a run: a thread that checks more than a millisecond holds up the loop
UNITS = 800  # of a queue; a read without a filter needs 32
RECORD_OVERHEAD = 300  # bytes that a record takes beside its own
MANY = 8  # so many records must be wanted at once ...
DENSE = 8  # ... which lie in no more than this multiple of their bytes
EARNED = (
    4  # bytes that may be read ahead for each that was served: as many as cost less than going to the disk each time
)
EARNED_BY_DISK = 4  # bytes read from the disk, for one that may be read ahead again when there is no credit


_Kept = dict[Place, bytes]


@dataclass(slots=True, eq=False)
class _Run:
    """A part of the log, without a gap, whose records are here; or will be, when it is ``read``."""

    start: int
    end: int
    records: dict[tuple[bytes, int], _Kept] = field(default_factory=dict)
    """By topic and queue id."""
    size: int = 0
    read: threading.Event = field(default_factory=threading.Event)
    is_followed: bool = False
    """The next one was asked for."""


class ReadAhead:
    """Of one log and its queues, ``size`` bytes at most: three quarters of them records, the others units; 0: nothing.

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
        self._records: dict[tuple[bytes, int], _Kept] = {}  # of all runs
        self._runs: list[_Run] = []  # the oldest first
        self._held = 0
        self._credit = self._most if self._run_bytes >= LEAST_RUN else 0
        self._most_credit = self._credit
        self._units: dict[ConsumeQueue, tuple[int, int, bytes]] = {}  # changes of the queue then, first offset, units
        self._guard = threading.Lock()

    # --- records ---

    def read_for(self, start: int, count: int, size: int, span: int) -> None:
        """Have the records from ``start`` on here, if that is worth it; blocks.

        ``count`` records of ``size`` bytes are wanted, which lie in ``span`` bytes of the log.
        """
        if count < MANY or span > DENSE * size:
            return
        if self._credit <= 0:
            with self._guard:
                self._credit = min(self._most_credit, self._credit + size // EARNED_BY_DISK)
        self.read_run(start)

    def of_queue(self, queue: ConsumeQueue) -> Mapping[Place, bytes]:
        """The records of a queue that are here, by what its entries must say of them."""
        return self._records.get((queue.topic.encode(), queue.queue_id), _NONE)

    def read_run(self, start: int, *, wait: bool = True) -> None:
        """Read a run from ``start`` on, unless another thread does, for which it is to ``wait`` then; blocks."""
        with self._guard:
            run = next((run for run in self._runs if run.start <= start < run.end), None)
            is_new = run is None and self._credit > 0
            if is_new:
                run = self._begin_run(start)
        if run is None:
            return
        if not is_new:
            if wait:
                run.read.wait()
            return
        try:
            self._read(run)
        finally:
            run.read.set()

    def _begin_run(self, start: int) -> _Run:
        """A run up to the next one, if that is nearer than it could be long."""
        end = min([start + self._run_bytes, *(run.start for run in self._runs if run.start > start)])
        run = _Run(start, end)
        self._credit -= end - start
        self._runs.append(run)
        return run

    def _read(self, run: _Run) -> None:
        found: dict[tuple[bytes, int], _Kept] = {}
        end = run.start
        try:
            if self._log.start <= end < self._log.written:
                records, end = self._log.read_run(end, min(run.end, self._log.written), self._run_bytes, RUN_RECORDS)
                for topic, queue_id, place, record in records:
                    of_queue = found.get((topic, queue_id))
                    if of_queue is None:
                        of_queue = found[topic, queue_id] = {}
                    of_queue[place] = record
        except (OSError, StoreError) as error:
            _log.debug("nothing is read ahead at %d: %s", run.start, error)
        finally:
            with self._guard:
                self._keep(run, found, end)

    def _keep(self, run: _Run, found: dict[tuple[bytes, int], _Kept], end: int) -> None:
        run.end = end
        run.records = found
        if not found:
            self._runs.remove(run)
            return
        for name, records in found.items():
            self._records.setdefault(name, {}).update(records)
        run.size = end - run.start + RECORD_OVERHEAD * sum(map(len, found.values()))
        self._held += run.size
        while self._held > self._most:
            self._drop(next(each for each in self._runs if each.records))

    def _drop(self, run: _Run) -> None:
        self._runs.remove(run)
        self._held -= run.size
        for name, records in run.records.items():
            of_queue = self._records[name]
            for place in records:
                del of_queue[place]
            if not of_queue:
                del self._records[name]

    def served(self, size: int, last: int) -> None:
        """So many bytes of records were served from here, the last one at this offset."""
        with self._guard:
            self._credit = min(self._most_credit, self._credit + EARNED * size)
            for run in self._runs:
                if run.start <= last < run.end:
                    if not run.is_followed and last - run.start >= (run.end - run.start) // 4:
                        run.is_followed = True
                        self._follow(run.end)
                    break

    def _follow(self, start: int) -> None:
        is_here = any(run.start <= start < run.end for run in self._runs)
        if not is_here and start < self._log.written and self._cache.get(start) is None:
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
        self._ahead.read_run(self._start, wait=False)

    def ended(self) -> None:
        if self.failure is not None:
            _log.error("reading the log ahead failed", exc_info=self.failure)
