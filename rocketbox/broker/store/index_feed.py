"""Building the index behind the records: not in the loop, for a key costs 5 us and the slots are a file of 20 MB.

What is dispatched is noted here; threads take it in slices of about a millisecond, so that none holds the interpreter
for long. When too much is noted, in notes or in bytes, or after an error, the notes are dropped and the records are
read again from the log: neither a slow index nor a broken one holds up anything else, and it ends up complete.

The layout of index files is left to ``index_file``, what is indexed to ``dispatch``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.dispatch import Appended, Derived, IndexedRecord
from rocketbox.broker.store.index_file import IndexSnapshot
from rocketbox.broker.store.records import find_keys, parse_record
from rocketbox.broker.store.troubles import Troubles
from rocketbox.clock import Clock
from rocketbox.message import MAX_PROPERTIES_BYTES

__all__ = ["BUILDING", "IndexFeed", "TakenIndex"]

SLICE = 256  # records that are indexed at once, in about a millisecond ...
SLICE_BYTES = 64 << 10  # ... unless they have many keys: of each byte of those a hundred of memory may come
WAKE = 1024  # so many notes are worth a thread's while; fewer wait for the next writing of the index, or for a query
WAKE_BYTES = 4 << 20  # so many bytes of them are too
MOST_NOTES = 50_000
MOST_BYTES = 64 << 20  # in notes
FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 60.0
BUILDING = "building the index"  # name of the trouble

_Note = tuple[IndexedRecord, int, int]  # and where the record ends, and how much is noted up to it


@dataclass(frozen=True)
class TakenIndex:
    """What is to be written of the index: the keys of all records below ``built``."""

    built: int
    timestamp: int
    """Store time of the newest record in it."""
    snapshots: list[IndexSnapshot]


class IndexFeed:
    """What the index lacks. ``built`` is where the first record begins that is not in it (in memory, or on disk)."""

    def __init__(self, log: CommitLog, derived: Derived, clock: Clock, troubles: Troubles) -> None:
        self.built = self._end = log.end  # all below _end is dispatched
        self.guard = threading.Lock()
        """Held, by threads only, while the index is changed or looked at."""
        self._log = log
        self._derived = derived
        self._clock = clock
        self._troubles = troubles
        self._notes: deque[_Note] = deque()
        self._noted = 0  # bytes that were ever noted
        self._indexed = 0  # of those, what is held no more
        self._has_all = True  # whether the notes reach, without a gap, from ``built`` to _end
        self._enough = anyio.Event()

    def add(self, appended: Sequence[Appended]) -> None:
        """Note the keys of records that are dispatched.

        Called in the loop, in the order of the log; again, with some that were noted, after an error.
        """
        end = self._end
        if appended:
            last = appended[-1]
            self._end = max(end, last[1] + len(last[6]))
        if not self._derived.indexes:
            self.built = self._end
        elif self._has_all:
            notes, noted = self._notes, self._noted
            for _, offset, stored, topic, sys_flag, properties, record, keys in appended:
                if offset >= end:
                    noted += len(properties)
                    notes.append(((topic, keys, sys_flag, offset, stored), offset + len(record), noted))
            self._noted = noted
            if len(notes) >= WAKE or noted - self._indexed >= WAKE_BYTES:
                # a thread that has the old ones in its hands may go on with them
                if len(notes) > MOST_NOTES or noted - self._indexed > MOST_BYTES:
                    self._notes, self._has_all, self._indexed = deque(), False, noted
                self._enough.set()

    async def run(self, pool: WorkerPool) -> None:
        """Build whenever enough is noted; runs until it is cancelled."""
        backoff = FIRST_BACKOFF
        while True:
            await self._enough.wait()
            self._enough = anyio.Event()
            try:
                await self.build(pool)
                while not self._has_all:
                    await self.build(pool)
            except Exception as error:
                self._troubles.begin(BUILDING, error)
                await self._clock.sleep(backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF)
                self._enough.set()
            else:
                backoff = FIRST_BACKOFF

    async def build(self, pool: WorkerPool) -> None:
        """Index all that is dispatched now, in threads of ``pool``. Raises what prevents it."""
        end = self._end
        while self.built < end:
            await pool.run(self._build_slice, end)
        if self.built == self._end:
            self._has_all, self._indexed = True, self._noted
        self._troubles.end(BUILDING)

    def _build_slice(self, end: int) -> None:
        with self.guard:
            if self.built >= end:
                return
            notes = self._notes
            if not self._has_all:
                records, behind = self._log.read_records(self.built, end)
                for offset, record in records:
                    topic, _, _, sys_flag, stored, properties = parse_record(record)
                    self._derived.index_records([(topic, find_keys(properties), sys_flag, offset, stored)])
                    self.built = offset + len(record)
                self.built = behind
                return
            if not notes:
                return
            taken = [notes.popleft()]
            most = taken[0][2] + SLICE_BYTES - MAX_PROPERTIES_BYTES
            while notes and len(taken) < SLICE and notes[0][2] <= most:
                taken.append(notes.popleft())
            try:
                self._derived.index_records([record for record, _, _ in taken])
            except BaseException:
                notes.extendleft(reversed(taken))  # those that are in the index are not added again
                raise
            _, self.built, self._indexed = taken[-1]

    def begin_index(self, start: int) -> None:
        """Build an index, which was left out until now, from the record at ``start`` on; for a thread.

        Whoever asks for :meth:`build` next does it: a query, or the next writing of the index.
        """
        with self.guard:
            self.built = start
            self._notes, self._has_all, self._indexed = deque(), False, self._noted
            self._derived.indexes = True

    def take(self) -> TakenIndex:
        """What is built and not written; blocks."""
        index = self._derived.index
        with self.guard:
            return TakenIndex(self.built, index.end_timestamp, index.snapshots())

    def put_back(self, taken: TakenIndex) -> None:
        """What was taken is not written."""
        with self.guard:
            self._derived.index.restore(taken.snapshots)

    def write(self, taken: TakenIndex) -> None:
        """Write and sync what was taken; blocks. After an error it can be taken again."""
        index = self._derived.index
        try:
            index.write(taken.snapshots)
        except BaseException:
            self.put_back(taken)
            raise
        with self.guard:
            index.set_written(taken.snapshots)
