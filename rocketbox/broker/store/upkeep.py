"""Looking after a store that runs: what is derived is compared with the log now and then, and mended where it is wrong.

A pass reads the whole log beside queues and index (``verify``), ``verify_bytes_per_second`` of it at most, so that it
is hardly noticed: once in ``verify_interval``, and right after a start that followed an unclean stop. Entries that
differ are overwritten in place and told in one line. Damage of the log itself, or of a table, is a trouble that stays
in health until a pass no longer finds it; nothing of it is touched.

A queue with an entry that did not lead to its message (``reading``) is rebuilt as soon as :meth:`Upkeep.rebuild` asks
for it, at the same pace. Where that changes nothing the record itself is damaged: a line and a trouble name its place,
and readers skip it as long as the store runs. Its entry stays, and so it is served again once the record is restored.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import anyio

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.checkpoint import CheckpointFile
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import FILLER_UNIT, ConsumeQueue
from rocketbox.broker.store.dispatch import Derived
from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.finding import FindingKind, StoreFinding
from rocketbox.broker.store.index_comparison import IndexComparison
from rocketbox.broker.store.index_feed import IndexFeed
from rocketbox.broker.store.index_sizes import length_of
from rocketbox.broker.store.log_end import place_of
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.rebuild import Mending, QueueRebuild, lacks_file
from rocketbox.broker.store.records import check_record, parse_record
from rocketbox.broker.store.store_check import check_tables
from rocketbox.broker.store.troubles import Troubles
from rocketbox.broker.store.verify import LogComparison
from rocketbox.clock import Clock
from rocketbox.errors import StoreError

__all__ = ["Upkeep"]

_log = logging.getLogger(__name__)

FIRST_PASS = 3600.0  # seconds after a start behind a clean stop, if verify_interval is not less
FIRST_BACKOFF = 60.0  # seconds until a pass that an error cut short is made again; doubles up to verify_interval
CHECKING = "comparing queues and index with the log"  # names of the troubles
REBUILDING = "rebuilding a queue"


class Upkeep:
    """Its tasks are :meth:`check_in_intervals` and :meth:`rebuild_what_is_asked`."""

    def __init__(
        self,
        root: str,
        files: OpenFiles,
        log: CommitLog,
        derived: Derived,
        feed: IndexFeed,
        checkpoint: CheckpointFile,
        options: StoreOptions,
        clock: Clock,
        troubles: Troubles,
        *,
        at_once: bool,
    ) -> None:
        self.mended = 0
        """Entries that were wrong and have been written anew since the store was opened."""
        self.passes = 0
        """How many passes came to their end."""
        self._root = root
        self._files = files
        self._log = log
        self._derived = derived
        self._feed = feed
        self._checkpoint = checkpoint
        self._options = options
        self._clock = clock
        self._troubles = troubles
        self._at_once = at_once
        self._damage: set[str] = set()  # names of the troubles that passes have found
        self._asked: dict[ConsumeQueue, set[int]] = {}  # numbers of entries that cannot be served
        self._damaged: dict[ConsumeQueue, set[int]] = {}  # of those, the ones that a rebuild has not mended
        self._is_asked = anyio.Event()

    # --- rebuilding a queue ---

    def rebuild(self, queue: ConsumeQueue, number: int, reason: str) -> None:
        """Have a queue's entries written anew from the log, soon, because one leads nowhere. Called in the loop."""
        if number not in self._damaged.get(queue, ()):
            self._asked.setdefault(queue, set()).add(number)
            self._troubles.begin(_serving(queue), f"entry {number}: {reason}")
            self._is_asked.set()

    async def rebuild_what_is_asked(self, pool: WorkerPool) -> None:
        """Rebuild, for ever."""
        while True:
            await self._is_asked.wait()
            self._is_asked = anyio.Event()
            while self._asked:
                queue = next(iter(self._asked))
                await self._rebuild(queue, self._asked.pop(queue), pool)

    async def _rebuild(self, queue: ConsumeQueue, numbers: set[int], pool: WorkerPool) -> None:
        rebuild = QueueRebuild(
            self._files, self._log.run, queue, self._derived.deleted, self._options.delay_level_ms, self._log.written
        )
        try:
            await self._walk(rebuild.steps(), pool)
        except (OSError, StoreError) as error:
            self._troubles.begin(REBUILDING, error)
            return
        self._troubles.end(REBUILDING)
        rebuild.finish()
        self.mended += rebuild.changed
        if not rebuild.changed:
            try:
                await pool.run(self._tell_damaged, queue, numbers)
            except (OSError, StoreError) as error:
                self._troubles.begin(_serving(queue), error)
            return
        self._troubles.end(_serving(queue))
        _log.warning(
            "%d entries of %s/%d differed from the log, and were written anew", rebuild.changed, queue.topic,
            queue.queue_id,
        )  # fmt: skip

    def is_damaged(self, queue: ConsumeQueue, number: int) -> bool:
        """Whether a message that cannot be served is damaged itself, and its queue's entry is right; any thread."""
        return number in self._damaged.get(queue, ())

    def _tell_damaged(self, queue: ConsumeQueue, numbers: set[int]) -> None:
        """The entries are right, so their records are damaged, unless they can be read now. Blocks."""
        run = self._log.run
        for number in sorted(numbers):
            physical, size, _ = queue.unit(number)
            record = self._log.read(physical, size)
            if len(record) == size and check_record(record, physical) is None:
                topic, queue_id, queue_offset, *_ = parse_record(record)
                if (topic, queue_id, queue_offset) == (queue.topic, queue.queue_id, number):
                    continue
            path, position = place_of(run, physical)
            text = (
                f"message {number} of {queue.topic}/{queue.queue_id}, {size} bytes at {position} "
                f"of {path}, is damaged and skipped; rocketbox store check tells of all damage"
            )
            self._troubles.begin(_serving(queue), text)
            _log.error("%s", text)
            self._damaged.setdefault(queue, set()).add(number)
        if queue not in self._damaged:
            self._troubles.end(_serving(queue))

    async def _walk(self, steps: Iterator[int], pool: WorkerPool) -> None:
        """Run through the steps in a thread, so many bytes of the log in a second."""
        rate = self._options.verify_bytes_per_second
        begun, first = self._clock.monotonic(), None
        while (offset := await pool.run(next, steps, None)) is not None:
            first = offset if first is None else first
            pause = begun + (offset - first) / rate - self._clock.monotonic()
            if pause > 0:
                await self._clock.sleep(pause)

    # --- passes ---

    async def check_in_intervals(self, pool: WorkerPool) -> None:
        """Check, for ever; with ``verify_interval`` 0 never."""
        interval = self._options.verify_interval / 1000
        if not interval:
            return
        if not self._at_once:
            await self._clock.sleep(min(interval, FIRST_PASS))
        backoff = FIRST_BACKOFF
        while True:
            if await self.check(pool):
                backoff = FIRST_BACKOFF
                await self._clock.sleep(interval)
            else:
                await self._clock.sleep(min(backoff, interval))
                backoff *= 2

    async def check(self, pool: WorkerPool) -> bool:
        """One pass. What it finds in queues and index is right in the end. False if an error cut it short."""
        found: list[StoreFinding] = []
        beheaded: dict[ConsumeQueue, None] = {}
        try:
            await self._walk(self._steps(found, beheaded), pool)
        except (OSError, StoreError) as error:
            self._troubles.begin(CHECKING, error)
            return False
        self._troubles.end(CHECKING)
        self.passes += 1
        self._tell(found)
        for queue in beheaded:
            _log.warning("the first files of %s/%d are missing: they are made again", queue.topic, queue.queue_id)
            await self._rebuild(queue, set(), pool)
        return True

    def _steps(self, found: list[StoreFinding], beheaded: dict[ConsumeQueue, None]) -> Iterator[int]:
        """Blocks. Appends what is found, and the queues whose first files are missing, to be rebuilt."""
        value = self._checkpoint.value
        mending = Mending(self._files)
        queues = {queue.run.directory: queue for queue in list(self._derived)}
        for step in self._comparison(value.queued_offset, value.indexed_offset):
            if isinstance(step, int):
                yield step
                continue
            if step.correct == FILLER_UNIT:
                continue
            if step.correct is not None and step.kind is FindingKind.QUEUE:
                queue = queues[os.path.dirname(step.path)]
                if lacks_file(step, queue):
                    beheaded[queue] = None
                    continue
                if not mending.write_entry(step, queue):
                    continue
            elif step.correct is not None:
                with self._feed.guard:
                    index = self._derived.index
                    if all(file.path != step.path for file in index.files):
                        continue  # retention has removed it meanwhile
                    mending.write(step, length_of(*index.sizes))
                    index.forget_slots(step.path)
            found.append(step)
        mending.sync()
        if mending.count:
            start = self._log.start
            for queue in list(self._derived):
                queue.set_min_offset(start)
        self.mended += mending.count
        if self._checkpoint.mend():
            self.mended += 1
            _log.warning("the checkpoint differed from what was written to it, and was written anew")
        found += check_tables(self._files.storage, self._root)

    def _comparison(self, queued: int, indexed: int) -> LogComparison:
        derived, options = self._derived, self._options
        index = None
        with self._feed.guard:
            paths = [file.path for file in derived.index.files if file.is_on_disk]
        if derived.indexes and paths:
            index = IndexComparison(
                self._files.storage, paths, *derived.index.sizes, lambda: self._log.start,
                complete=False,
            )  # fmt: skip
        size = options.mapped_file_size_consume_queue

        def find(topic: str, queue_id: int) -> FileRun:
            queue = derived.find(topic, queue_id)
            directory = f"{self._root}/consumequeue/{topic}/{queue_id}"
            return queue.run if queue is not None else FileRun(self._files, directory, size, "")

        queues = [((queue.topic, queue.queue_id), queue.run) for queue in list(derived)]
        return LogComparison(
            self._log.run, queues, find, options.delay_level_ms, until=max(queued, indexed), queued=queued,
            indexed=indexed, index=index, at_rest=False, is_gone=derived.deleted.is_gone,
            checksums_from=self._checkpoint.value.checksums_from,
        )  # fmt: skip

    def _tell(self, found: list[StoreFinding]) -> None:
        mended = [finding for finding in found if finding.correct is not None]
        if mended:
            _log.warning(
                "%d entries of queues and index differed from the commit log, and were written anew; the first: %s",
                len(mended), mended[0],
            )  # fmt: skip
        damage = {str(finding): finding for finding in found if finding.correct is None}
        for name in damage:
            self._troubles.begin(name, StoreError("found by a comparison with the log"))
        for name in self._damage - damage.keys():
            self._troubles.end(name)
        self._damage = set(damage)


def _serving(queue: ConsumeQueue) -> str:
    """The name of the trouble."""
    return f"serving {queue.topic}/{queue.queue_id}"
