"""The broken builds of the store. Each replaces a function by one that breaks a promise; the product knows nothing.

A mutant whose seam is gone fails when it is switched on, which the runner tells apart from one that is killed.
"""

from __future__ import annotations

from typing import Any

from rocketbox.broker.delay import DelayedDelivery
from rocketbox.broker.offsets import OffsetTable
from rocketbox.broker.store import commit_log, log_scan, message_store, reading, records, recovery
from rocketbox.broker.store.checkpoint import Checkpoint, CheckpointFile
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.consume_queue import ConsumeQueue
from rocketbox.broker.store.dispatch import Derived
from rocketbox.broker.store.dispatcher import Dispatcher
from rocketbox.broker.store.files import FileRun
from rocketbox.broker.store.log_writer import LogWriter
from rocketbox.broker.store.retention import Retention
from tests.mutants.table import mutant, replace

STORE = "tests/unit/store"
ONE_STEP = f"{STORE}/test_crash_states.py::test_every_state_that_a_crash_leaves_of_a_put_and_a_step_is_recovered"


@mutant("no fsync", "the commit log is written and never synced", ONE_STEP)
def no_fsync() -> None:
    replace(commit_log.CommitLog, "sync", lambda self: None)


@mutant("acknowledged before the fsync", "senders are told when their message is written", ONE_STEP)
def acknowledge_before_fsync() -> None:
    async def write(self: Any, segments: Any, end: int, timestamp: int) -> Any:
        self._log.write(list(segments))
        self.waiters.release(end)
        return await before(self, segments, end, timestamp)

    before = replace(LogWriter, "_write", write)


@mutant(
    "dispatched before it is durable",
    "consumers read what a crash may take back",
    f"{STORE}/test_store_order.py::test_nothing_can_be_read_before_its_sync_has_ended",
)
def dispatch_before_durable() -> None:
    async def commit(self: Any) -> None:
        self._dispatcher.dispatch(list(self.appended), self._log.end)
        await before(self)

    def dispatch(self: Any, appended: Any, end: int) -> None:
        if end > self.dispatched:
            dispatch_once(self, appended, end)

    before = replace(LogWriter, "_commit", commit)
    dispatch_once = replace(Dispatcher, "dispatch", dispatch)


@mutant(
    "no checksums",
    "what a record holds is not compared with its checksum",
    f"{STORE}/test_store_recovery.py::test_every_bit_of_a_record_counts",
)
def no_checksums() -> None:
    for module in (records, log_scan, reading):
        if hasattr(module, "check_record"):
            replace(module, "check_record", lambda record, offset, **arguments: None)


@mutant(
    "cut in the middle",
    "a damaged record ends the log, whatever was synced behind it",
    f"{STORE}/test_store_recovery.py::test_a_record_in_a_later_file_proves_that_the_earlier_file_was_synced",
)
def cut_in_the_middle() -> None:
    replace(recovery, "refuse_if_synced", lambda *arguments, **named: None)


@mutant(
    "the queue is believed",
    "what queues hold behind the checkpoint is kept after a kill",
    f"{STORE}/test_store_recovery.py::test_what_a_queue_holds_behind_the_checkpoint_is_not_believed",
)
def believe_the_queue() -> None:
    replace(Derived, "rewind", lambda self, physical: None)


@mutant("rebuilt without tags", "queue entries that recovery writes have the tags code 0", ONE_STEP)
def rebuild_without_tags() -> None:
    def recover(*arguments: Any, **named: Any) -> Any:
        append = ConsumeQueue.append
        replace(ConsumeQueue, "append", lambda self, physical, size, code: append(self, physical, size, 0))
        try:
            return before(*arguments, **named)
        finally:
            replace(ConsumeQueue, "append", append)

    before = recovery.recover
    for module in (message_store, __import__("rocketbox.broker.store.opening", fromlist=["opening"])):
        if hasattr(module, "recover"):
            replace(module, "recover", recover)


@mutant(
    "delivery counted before it is durable",
    "a delayed message counts as delivered when its copy is put, not when that is safe",
    "tests/unit/broker/test_delayed_delivery.py::test_a_slow_disk_delivers_once",
)
def count_delivery_early() -> None:
    async def settle(self: Any, level: int, end_offset: int | None, done: int, moved: int) -> None:
        self._advance(level, done, moved)

    replace(DelayedDelivery, "_settle", settle)


@mutant(
    "offsets ahead",
    "a group's offset is stored one ahead of what it committed",
    "tests/unit/broker/test_broker_tables.py::test_offsets_are_kept_by_group_topic_and_queue",
)
def offsets_ahead() -> None:
    def commit(self: Any, group: str, topic: str, queue_id: int, offset: int, *rest: Any) -> Any:
        return before(self, group, topic, queue_id, offset + 1, *rest)

    before = replace(OffsetTable, "commit", commit)


@mutant(
    "clean stop said too early",
    "abort is removed before queues and index are written",
    f"{STORE}/test_store_order.py::test_a_stop_is_said_to_be_clean_when_all_else_is_on_the_disk",
)
def clean_too_early() -> None:
    async def leave(self: Any, pool: Any) -> None:
        say_clean(self._storage, self._root)
        await before(self, pool)

    before = replace(message_store.MessageStore, "_leave", leave)
    say_clean = replace(message_store, "say_clean", lambda storage, root: None)


@mutant("table written in place", "a table is overwritten, not replaced by a rename", ONE_STEP)
def table_in_place() -> None:
    def persist(self: Any, pieces: Any) -> None:
        path = str(self.path)
        self._storage.make_directories(str(self.path.parent))
        file = self._storage.open(path, create=True)
        file.truncate(0)
        file.write(0, list(pieces))
        file.sync()
        self._storage.sync_directory(str(self.path.parent))

    replace(ConfigFile, "persist", persist)


@mutant(
    "a foreign run is taken for ours",
    "the mark is believed though another broker has used the directory",
    f"{STORE}/test_foreign_runs.py::test_a_foreign_run_is_told_of",
)
def believe_foreign_runs() -> None:
    def load(self: Any, run: int | None) -> Any:
        if self._storage.exists(self._path):
            value = Checkpoint.decode(self._storage.open(self._path).read(0, 4096))
            run = value.run
        return before(self, run)

    before = replace(CheckpointFile, "load", load)


@mutant(
    "refused messages keep their queue offsets",
    "what a full disk sends back leaves a gap in its queue",
    f"{STORE}/test_failing_calls.py::test_whichever_call_fails_nothing_acknowledged_is_lost[sync-once-ENOSPC-asyncio]",
)
def keep_queue_offsets() -> None:
    def take_back(self: Any, end: int) -> None:
        for queue, *_ in self.appended:
            if queue is not None:
                queue.next_offset += 1
        before(self, end)

    before = replace(LogWriter, "_take_back", take_back)


@mutant(
    "the next file is begun unsynced",
    "a file of the log is begun before the one before it is synced",
    f"{STORE}/test_store_durability.py::test_a_file_is_synced_before_the_next_one_is_begun",
)
def next_file_unsynced() -> None:
    def begin_file(self: Any, offset: int, end: int) -> Any:
        sync, self.sync = self.sync, lambda: None
        try:
            return before(self, offset, end)
        finally:
            self.sync = sync

    before = replace(commit_log.CommitLog, "_begin_file", begin_file)


@mutant("names are not synced", "a new file's name is not on the disk when it is used", ONE_STEP)
def names_not_synced() -> None:
    def add(self: Any, *arguments: Any) -> Any:
        sync, self._storage.sync_directory = self._storage.sync_directory, lambda path: None
        try:
            return before(self, *arguments)
        finally:
            self._storage.sync_directory = sync

    before = replace(FileRun, "add", add)


@mutant("the checkpoint runs ahead", "it says synced before the sync of what it speaks of", ONE_STEP)
def checkpoint_ahead() -> None:
    def write(self: Any, segments: Any) -> None:
        before(self, segments)
        for checkpoint in open_checkpoints:
            checkpoint.write(sync=True, synced_offset=self.end)

    open_checkpoints: list[Any] = []

    def load(self: Any, run: int | None) -> Any:
        open_checkpoints[:] = [self]
        return load_before(self, run)

    load_before = replace(CheckpointFile, "load", load)
    before = replace(commit_log.CommitLog, "write", write)


@mutant(
    "retention removes what has not expired",
    "the oldest file of the log goes whatever the age of its messages",
    f"{STORE}/test_retention.py::test_what_has_not_expired_stays_on_a_full_disk",
)
def remove_unexpired() -> None:
    def remove(self: Any, now_ms: int) -> Any:
        return before(self, now_ms + (1 << 50))

    before = replace(Retention, "_remove_expired", remove)


@mutant(
    "WAIT=false is answered before it is written",
    "who does not wait for the sync is told at once, not when the operating system has it",
    f"{STORE}/test_store_errors.py::test_who_does_not_wait_for_the_sync_is_told_when_it_is_written_and_never_before",
)
def answer_before_written() -> None:
    replace(LogWriter, "tell_when_written", lambda self, told, end_offset, what: told([what], None))
