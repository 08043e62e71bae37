"""Opening a store's directory, and leaving it: lock, recovery, ``abort``, checkpoint.

A full disk does not prevent it. What is there can be read; ``abort`` and checkpoint are overwritten in place, and where
one of them cannot be made, a torn tail cannot be copied before it is cut off, or files of queues or index that do not
fit (``misfits``) cannot be put aside, the store takes no messages until it can (:meth:`OpenedStore.finish`). In which
order they are written, and why, stands in ``lock_file``; what recovery does in its own module.

Source: Apache RocketMQ 5.x ``DefaultMessageStore`` (``load``, ``start``, ``shutdown``).
"""

from __future__ import annotations

import logging

from rocketbox.broker.store.aside import Aside, stamp_of
from rocketbox.broker.store.checkpoint import Checkpoint, CheckpointFile
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.derived_writer import checkpoint_changes
from rocketbox.broker.store.dispatch import Derived, Misfits
from rocketbox.broker.store.files import NO_ROOM
from rocketbox.broker.store.lock_file import decode_lock_file, encode_lock_file
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.recovery import RecoveryReport, recover, write_abort
from rocketbox.clock import Clock
from rocketbox.errors import StoreCorruptError
from rocketbox.storage.file_system import LockHandle, Storage

__all__ = ["FIRST_MISSING", "OpenedStore", "lock_directory", "open_store", "say_clean"]

_log = logging.getLogger(__name__)

FIRST_MISSING = "the file is missing; the log began there, and retention has not removed it"


def lock_directory(storage: Storage, root: str) -> LockHandle:
    """Make the directory, if there is none, and take its lock; blocks. Raises StoreLockedError, OSError.

    Nobody else of this machine is to read there what the broker would ask him a signature for.
    """
    storage.make_directories(root, private=True)
    return storage.lock(f"{root}/lock")


def open_store(
    storage: Storage,
    root: str,
    lock: LockHandle,
    log: CommitLog,
    derived: Derived,
    checkpoint: CheckpointFile,
    options: StoreOptions,
    clock: Clock,
) -> OpenedStore:
    """Load all files and recover what they hold; blocks. Raises StoreCorruptError, StoreError, OSError."""
    clean = not storage.exists(f"{root}/abort")
    locked = lock.read()
    known = checkpoint.load(decode_lock_file(locked))
    if locked and not known.marked:
        _log.warning(
            "another broker than this one has used the directory %s, or its checkpoint was lost: the commit log is "
            "read through", root,
        )  # fmt: skip
    log.run.load(lengthen=True)
    if log.run.starts and (missing := known.missing_before(log.start)) is not None:
        raise StoreCorruptError(log.run.path(missing), 0, FIRST_MISSING)
    misfits = derived.load()
    if misfits.queues is not None and known.marked:
        # ends that no queues have: all of them are built again, now or by the start after a crash
        checkpoint.write(sync=True, queued_offset=log.start, queue_ends=known.queue_ends ^ 1)
    if misfits != Misfits():
        aside = Aside(storage, root, stamp_of(clock.time_ms()))
        try:
            if misfits.queues is not None and not known.marked:
                write_abort(storage, root)
            derived.mend(misfits, aside)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _log.error(
                "%s. It is left out: the store takes no messages until there is room for what has to be kept of it "
                "in %s (%s)", misfits.queues or misfits.index, aside.directory, error.strerror,
            )  # fmt: skip
            derived.leave_out(misfits)
        clean = clean and (misfits.queues is None or known.marked)
    report = recover(log, derived, checkpoint, storage=storage, root=root, options=options, clean=clean, clock=clock)
    return OpenedStore(storage, root, lock, derived, checkpoint, known, report, options, clock, log.start)


class OpenedStore:
    """A store that is recovered. Messages may be put into it once :meth:`finish` has returned."""

    def __init__(
        self,
        storage: Storage,
        root: str,
        lock: LockHandle,
        derived: Derived,
        checkpoint: CheckpointFile,
        known: Checkpoint,
        report: RecoveryReport,
        options: StoreOptions,
        clock: Clock,
        log_start: int,
    ) -> None:
        self.report = report
        self.last_timestamp = max(report.last_store_timestamp_ms, known.physic_msg_timestamp)
        """Store time (epoch ms) of the newest message."""
        self._storage = storage
        self._root = root
        self._lock = lock
        self._derived = derived
        self._checkpoint = checkpoint
        self._marked = report.marked
        self._run = known.run if report.marked else clock.random.getrandbits(64) | 1
        self._checksums_from = -1
        if options.enabled_append_prop_crc:
            before = known.checksums_from if report.marked else -1
            self._checksums_from = before if before >= 0 else report.end
        self._queue_ends = derived.queue_ends
        self._log_start = log_start
        self._cut_later = report.cut_later
        self._clock = clock

    def finish(self) -> None:
        """Say that the store is in use, and how far it is on the disk; blocks. May be called again after an OSError."""
        if self._cut_later is not None:
            self._cut_later()
            self._cut_later = None
        write_abort(self._storage, self._root)
        if self._derived.left_out is not None:
            if self._marked and self._derived.left_out.index is not None:
                self._checkpoint.write(sync=True, indexed_offset=self._log_start, index_msg_timestamp=0)
            self._derived.take_in(Aside(self._storage, self._root, stamp_of(self._clock.time_ms())))
        report = self.report
        self._derived.deleted.settle(self._log_start, report.end)
        self._checkpoint.write(
            sync=False, run=self._run, checksums_from=self._checksums_from, synced_offset=report.end,
            log_start=self._log_start,
        )  # fmt: skip
        changes = {}
        if not self._derived.unwritten and not self._derived.index.changed:  # else derived_writer says so later
            changes = checkpoint_changes(report.end, self.last_timestamp, report.last_record, self._queue_ends)
            if self._derived.indexes:
                changes["indexed_offset"] = report.end
                changes["index_msg_timestamp"] = self._derived.index.end_timestamp
        self._checkpoint.write(sync=True, **changes)
        if not self._marked:
            self._lock.write(encode_lock_file(self._run))  # behind the checkpoint's sync: the table in lock_file
            self._marked = True


def say_clean(storage: Storage, root: str) -> None:
    """Say that the store was left in order; blocks."""
    storage.remove(f"{root}/abort")
    storage.sync_directory(root)
