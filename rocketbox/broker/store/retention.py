"""What is removed from a store, and when: the oldest files of the log, and what queues and index hold of them.

Every ``clean_resource_interval`` the oldest file of the log goes if it has expired: its newest record was stored longer
ago than ``file_reserved_time``. That is looked at in the hours ``delete_when``, and at any hour while the disk is used
above ``disk_max_used_space_ratio``; at most ten files a run, ``delete_commit_log_files_interval`` apart, all at once
above ``disk_space_clean_forcibly_ratio``. While it is used above ``disk_space_warning_level_ratio``, and less than
``disk_space_warning_free_bytes`` are free, messages are refused.

While the newest store time is still to come, as a message was stored when the clock was ahead, a file also goes when
the store has run for ``file_reserved_time`` since it was full (``observed_age``), and a trouble says so.

Other than Apache's, which goes by the file's time of change and above 85 % deletes what has not expired: an unexpired
message is never removed, nor the last file, nor one that is being read, nor one whose records queues and index have not
on the disk yet. And the clock is not trusted when it jumps forward (:class:`TrustedTime`).

The order makes every state between two steps one that a start understands: the checkpoint says where the log will
begin, a file of the log goes (its name is gone from the disk before the next one's), then the queues' first offsets,
then their files that hold nothing else (but the last, from which a queue's next offset comes), then index files.
Consumers that are below are told OFFSET_MOVED.

Source: Apache RocketMQ 5.5 ``DefaultMessageStore`` (``CleanCommitLogService``, ``CleanConsumeQueueService``),
``MappedFileQueue.deleteExpiredFileByTime``, ``deleteExpiredFileByOffset``, ``IndexService.deleteExpiredFile``.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from itertools import pairwise

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.checkpoint import CheckpointFile
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.dispatch import Derived
from rocketbox.broker.store.index_feed import IndexFeed
from rocketbox.broker.store.log_tail import newest_store_time
from rocketbox.broker.store.observed_age import ObservedAges
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.records import MAGICS, store_timestamp_of
from rocketbox.broker.store.state import StoreState
from rocketbox.broker.store.troubles import Troubles
from rocketbox.clock import Clock
from rocketbox.errors import StoreError, StoreFullError
from rocketbox.storage.file_system import DiskUsage, Storage

__all__ = ["Retention", "TrustedTime", "largest_step_ms"]

_log = logging.getLogger(__name__)

MOST_FILES = 10  # removed in one run; Apache's deleteFileBatchMax
BELIEVED_AFTER = 3600.0  # seconds for which a jump of the clock must last
LARGEST_STEP_MS = 24 * 3_600_000  # what counts as no jump; a third of file_reserved_time if that is less
RECORD_OVERHEAD = 128 << 10  # more than a record has beside its body
HEAD_BYTES = 76  # of a record, with its store time
AHEAD_MS = 60_000  # store times that are ahead by less are no trouble
MARKS = "looking at the disk's use"  # names of the troubles
OBSERVING = "noting which files of the log are full"
AHEAD = "judging the age of messages by their store times"
REMOVING = "removing expired files"


def largest_step_ms(reserved_ms: int) -> int:
    """By how much a clock may be ahead of what was known without it being a jump, where messages are kept so long."""
    return min(LARGEST_STEP_MS, max(60_000, reserved_ms // 3))


class TrustedTime:
    """The time, but for jumps forward: until one has lasted for an hour it goes on as if there had been none.

    ``newest_ms`` is the store time of the newest record: what is long behind it at a start is a jump too.
    """

    def __init__(self, clock: Clock, newest_ms: int, largest_step_ms: int) -> None:
        self._clock = clock
        self._largest_step = largest_step_ms
        wall = clock.time_ms()
        self._base_ms = min(newest_ms, wall) if newest_ms else wall  # store times may be ahead themselves
        self._base = clock.monotonic()
        self._ahead_since: float | None = None

    def now_ms(self) -> int:
        wall, monotonic = self._clock.time_ms(), self._clock.monotonic()
        expected = self._base_ms + round((monotonic - self._base) * 1000)
        if wall <= expected + self._largest_step:
            self._ahead_since = None
        elif self._ahead_since is None:
            self._ahead_since = monotonic
            _log.warning(
                "the clock is %.1f hours ahead of what was known; nothing is removed for that before it has been so "
                "for an hour", (wall - expected) / 3_600_000,
            )  # fmt: skip
            return expected
        elif monotonic - self._ahead_since < BELIEVED_AFTER:
            return expected
        else:
            _log.warning("the clock has been ahead for an hour; it is believed now")
            self._ahead_since = None
        self._base_ms, self._base = wall, monotonic
        return wall


class Retention:
    """Removes what has expired, and refuses messages while the disk is nearly full. :meth:`run` is its task."""

    def __init__(
        self,
        storage: Storage,
        root: str,
        log: CommitLog,
        derived: Derived,
        feed: IndexFeed,
        checkpoint: CheckpointFile,
        options: StoreOptions,
        clock: Clock,
        state: StoreState,
        troubles: Troubles,
        newest_ms: int,
    ) -> None:
        self.removed_files = 0
        """Files of the log removed since the store was opened."""
        self._storage = storage
        self._root = root
        self._log = log
        self._derived = derived
        self._feed = feed
        self._checkpoint = checkpoint
        self._options = options
        self._clock = clock
        self._state = state
        self._troubles = troubles
        self._time = TrustedTime(clock, newest_ms, largest_step_ms(options.file_reserved_ms))
        self._newest: dict[int, int] = {}  # store times of complete files' newest records
        self._ages = ObservedAges(storage, root, clock)

    async def run(self, pool: WorkerPool) -> None:
        """Clean in intervals, for ever."""
        while True:
            await self._clock.sleep(self._options.clean_resource_interval / 1000)
            await self.clean(pool)

    async def clean(self, pool: WorkerPool) -> int:
        """One run; returns how many files of the log were removed."""
        now = self._time.now_ms()
        await self._look_at_store_times(pool, now)
        usage = await self._look_at_disk(pool)
        used = usage.used_ratio if usage is not None else 0.0
        options = self._options
        is_time = _hour(self._clock) in options.delete_hours
        if not is_time and used <= options.disk_max_used_space_ratio:
            return 0
        forcibly = used > options.disk_space_clean_forcibly_ratio
        removed = 0
        try:
            while (forcibly or removed < MOST_FILES) and await pool.run(self._remove_expired, now):
                removed += 1
                if not forcibly and options.delete_commit_log_files_interval:
                    await self._clock.sleep(options.delete_commit_log_files_interval / 1000)
            if removed or self._is_behind():
                await pool.run(self._remove_derived)
        except OSError as error:
            self._troubles.begin(REMOVING, error)
        else:
            self._troubles.end(REMOVING)
        if removed:
            self.removed_files += removed
            _log.info(
                "removed %d files of the commit log, which begins at %d now: their newest message was older than %s",
                removed, self._log.start, options.file_reserved_time,
            )  # fmt: skip
        return removed

    # --- store times ahead of the clock ---

    async def _look_at_store_times(self, pool: WorkerPool, now_ms: int) -> None:
        """Note which files are full, as long as store times do not tell their age."""
        ahead = self._checkpoint.value.physic_msg_timestamp - now_ms
        if ahead > AHEAD_MS:
            hours, reserved = ahead / 3_600_000, self._options.file_reserved_time
            self._troubles.begin(
                AHEAD,
                f"the newest is {hours:.1f} hours ahead of the clock, which was set forward when a message was stored; "
                f"until then a file of the log is removed when the broker has run for {reserved} since it was full",
            )
        else:
            self._troubles.end(AHEAD)
        try:
            await pool.run(self._observe, now_ms, ahead > AHEAD_MS)
        except (OSError, StoreError) as error:
            self._troubles.begin(OBSERVING, error)
        else:
            self._troubles.end(OBSERVING)

    def _observe(self, now_ms: int, is_ahead: bool) -> None:
        """Blocks. The files that are not judged by their store time are the newest ones."""
        self._ages.tick()
        self._ages.forget_below(self._log.start)
        if not is_ahead:
            return
        added = []
        starts = self._log.run.starts
        for start, following in reversed(list(pairwise(starts))):
            if start in self._ages:
                break
            stored = self._newest_in(start, following)
            if stored is not None and stored <= now_ms:
                break
            added.append(start)
        self._ages.note(added)

    # --- the disk ---

    async def _look_at_disk(self, pool: WorkerPool) -> DiskUsage | None:
        """How the disk is used; above the warning mark messages are refused."""
        try:
            usage = await pool.run(self._storage.disk_usage, self._root)
        except OSError as error:
            self._troubles.begin(MARKS, error)
            return None
        self._troubles.end(MARKS)
        self.judge(usage)
        return usage

    def judge(self, usage: DiskUsage) -> None:
        """Refuse messages while the disk is used above the warning mark, and take them below. Called in the loop."""
        options = self._options
        least = options.disk_space_warning_free_bytes
        if usage.used_ratio > options.disk_space_warning_level_ratio and usage.free < least:
            reason = (
                f"{usage.used_ratio:.1f} % of it are used, disk-space-warning-level-ratio is "
                f"{options.disk_space_warning_level_ratio}, and disk-space-warning-free-bytes is {least}"
            )
            self._state.refuse_above_mark(StoreFullError(f"the disk of {self._root}", reason, usage.free))
        else:
            self._state.accept_below_mark()

    # --- in a thread ---

    def _remove_expired(self, now_ms: int) -> bool:
        """Remove the oldest file of the log if that may be; whether it was."""
        run = self._log.run
        starts = run.starts
        if len(starts) < 2:
            return False
        start, following = starts[0], starts[1]
        value = self._checkpoint.value
        if following > min(value.synced_offset, value.queued_offset):
            return False
        if self._derived.indexes and following > value.indexed_offset:
            return False
        stored, reserved = self._newest_in(start, following), self._options.file_reserved_ms
        if stored is None or (stored + reserved > now_ms and self._ages.age_ms(start) < reserved):
            return False
        if value.log_start < following:  # written before the file goes: one that is missing otherwise is missed
            self._checkpoint.write(sync=True, log_start=following)
        if not run.remove_first():
            return False
        self._newest.pop(start, None)
        return True

    def _newest_in(self, start: int, following: int) -> int | None:
        """Store time of the newest record of a file; None when nothing tells it yet. Blocks. Raises OSError."""
        stored = self._newest.get(start)
        if stored is None:
            most = self._options.max_message_size + RECORD_OVERHEAD
            stored = newest_store_time(self._log.run, start, self._first_store_time(following), most)
            if stored is not None:
                self._newest[start] = stored
        return stored

    def _first_store_time(self, offset: int) -> int | None:
        """Store time of the record with which a file begins; None when it has none yet."""
        head = self._log.run.read(offset, HEAD_BYTES)
        if len(head) < HEAD_BYTES or int.from_bytes(head[4:8], "big") not in MAGICS:
            return None
        return store_timestamp_of(head)

    def _is_behind(self) -> bool:
        """Whether queues or index still have what a run that was cut short, or a crash, has left."""
        start = self._log.start
        index = self._derived.index.files
        return any(queue.starts_below(start) for queue in list(self._derived)) or (
            len(index) > 1 and index[0].end_physical < start
        )

    def _remove_derived(self) -> None:
        start = self._log.start
        for queue in list(self._derived):
            queue.set_min_offset(start)
            queue.remove_below_min()
        with self._feed.guard:
            self._derived.index.remove_below(start)


def _hour(clock: Clock) -> int:
    return datetime.fromtimestamp(clock.time_ms() / 1000, UTC).astimezone().hour
