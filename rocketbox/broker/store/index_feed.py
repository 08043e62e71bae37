"""Building the index behind the records: not in the loop, for a key costs 5 us and the slots are a file of 20 MB.

What is dispatched is noted here; threads take it in slices of about a millisecond, so that none holds the interpreter
for long. When too much is noted, in notes or in bytes, or after an error, the notes are dropped and the records are
read again from the log: neither a slow index nor a broken one holds up anything else, and it ends up complete. What is
built and not written is bounded too: while the disk takes none of it, nothing more is built.

The layout of index files is left to ``index_file``, what is indexed to ``dispatch``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import anyio

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.dispatch import Appended, Derived, IndexedRecord
from rocketbox.broker.store.index_file import IndexSnapshot
from rocketbox.broker.store.records import find_keys, parse_record
from rocketbox.broker.store.troubles import Troubles
from rocketbox.clock import Clock
from rocketbox.errors import StoreError

__all__ = ["BUILDING", "IndexFeed", "TakenIndex"]

SLICE = 256  # records that are indexed at once, in about a millisecond ...
SLICE_BYTES = 64 << 10  # ... unless they have many keys: of each byte of those a hundred of memory may come
WAKE = 1024  # so many notes are worth a thread's while; fewer wait for the next writing of the index, or for a query
WAKE_BYTES = 4 << 20  # so many bytes of them are too
MOST_UNWRITTEN = 4_000_000  # entries (24 bytes each) that wait in memory for a disk that takes none
MOST_NOTES = 50_000
MOST_BYTES = 64 << 20  # in notes
FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 60.0
BUILDING = "building the index"  # name of the trouble


class _Note(NamedTuple):
    """Keys of records that lie one behind the other: at most those of a slice."""

    records: list[IndexedRecord]
    end: int
    """Where the last one ends."""
    number: int
    """How many records were noted up to there, ever."""
    noted: int
    """How many bytes of properties."""


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
        self._noted = self._counted = 0  # bytes, and records, that were ever noted
        self._indexed = self._indexed_count = 0  # of those, what is held no more
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
            if appended and appended[0][1] < end:
                appended = [each for each in appended if each[1] >= end]
            if appended:
                self._note(appended)
            count, held = self._counted - self._indexed_count, self._noted - self._indexed
            if count >= WAKE or held >= WAKE_BYTES:
                # a thread that has the old ones in its hands may go on with them
                if count > MOST_NOTES or held > MOST_BYTES:
                    self._drop_notes()
                self._enough.set()

    def _note(self, appended: Sequence[Appended]) -> None:
        size = sum([len(each[5]) for each in appended])
        if len(appended) > SLICE or (size > SLICE_BYTES and len(appended) > 1):
            middle = len(appended) // 2
            self._note(appended[:middle])
            self._note(appended[middle:])
            return
        self._counted += len(appended)
        self._noted += size
        records = [(topic, keys, sys_flag, at, stored) for _, at, stored, topic, sys_flag, _, _, keys in appended]
        _, at, _, _, _, _, record, _ = appended[-1]
        self._notes.append(_Note(records, at + len(record), self._counted, self._noted))

    def _drop_notes(self) -> None:
        self._notes, self._has_all = deque(), False
        self._indexed, self._indexed_count = self._noted, self._counted

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
            self._has_all, self._indexed, self._indexed_count = True, self._noted, self._counted
        self._troubles.end(BUILDING)

    def _build_slice(self, end: int) -> None:
        with self.guard:
            if self.built >= end:
                return
            self._check_room()
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
            count, noted = self._indexed_count + SLICE, self._indexed + SLICE_BYTES
            while notes and notes[0].number <= count and notes[0].noted <= noted:
                taken.append(notes.popleft())
            try:
                self._derived.index_records([record for note in taken for record in note.records])
            except BaseException:
                notes.extendleft(reversed(taken))  # those that are in the index are not added again
                raise
            _, self.built, self._indexed_count, self._indexed = taken[-1]

    def _check_room(self) -> None:
        unwritten = self._derived.index.changed
        if unwritten > MOST_UNWRITTEN:
            raise StoreError(f"{unwritten} entries of the index wait for a disk that takes none")

    def begin_index(self, start: int) -> None:
        """Build an index, which was left out until now, from the record at ``start`` on; for a thread.

        Whoever asks for :meth:`build` next does it: a query, or the next writing of the index.
        """
        with self.guard:
            self.built = start
            self._drop_notes()
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
