"""Checking a store that nobody runs, or that another process runs: log, queues, index and tables; nothing is changed.

Files are taken with the sizes that they have. What the next start does by itself is told too, as harmless: a torn tail
behind what was synced, entries that are still missing after a kill.

Left to others: the comparison (``verify``), the command (``cli.store``), mending (``store_repair``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rocketbox.broker.store.checkpoint import CHECKPOINT_BYTES, Checkpoint
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.consume_queue import FILLER_SIZE, find_queues
from rocketbox.broker.store.deleted_topics import DeletedTopics
from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.finding import FindingKind, StoreFinding
from rocketbox.broker.store.index_comparison import IndexComparison
from rocketbox.broker.store.index_sizes import found_sizes, length_of, other_size
from rocketbox.broker.store.lock_file import decode_lock_file
from rocketbox.broker.store.log_end import refuse_if_synced
from rocketbox.broker.store.log_files import find_log_files
from rocketbox.broker.store.log_scan import LogScan
from rocketbox.broker.store.misfits import main_cluster, queue_file_size
from rocketbox.broker.store.opening import FIRST_MISSING
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT as UNIT
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.timer_file import TimerFile
from rocketbox.broker.store.verify import LogComparison, QueueName
from rocketbox.errors import StoreCorruptError, StoreError
from rocketbox.storage.file_system import Storage

__all__ = ["StoreFiles", "check_store", "check_tables", "find_files"]

LISTINGS = 10
PRIVATE = ("authUsers.json", "askers.json")  # with passwords and names of users, which no finding shows
_FOREVER = 1 << 62
_UNIT = struct.Struct(">qiq")


@dataclass
class StoreFiles:
    """The files of a store, as they lie there."""

    root: str
    files: OpenFiles
    log: FileRun
    queues: dict[QueueName, FileRun]
    index: list[str]
    index_sizes: tuple[int, int]
    """Slots and entries of an index file."""
    checkpoint: Checkpoint
    clean: bool
    """The last broker stopped in order, or there was none yet."""
    findings: list[StoreFinding] = field(default_factory=list)
    """What is wrong with names and sizes."""

    @property
    def expected_end(self) -> int:
        """Where the log ends as far as the checkpoint knows; to tell how far a check has come."""
        known = self.checkpoint.synced_offset or self.checkpoint.confirm_phy_offset
        return max(known, self.log.start) if known else self.log.limit


def find_files(storage: Storage, root: str, options: StoreOptions, locked: bytes | None = None) -> StoreFiles:
    """Find the files of a store. ``locked``: what its file ``lock`` holds, where that is known.

    Raises StoreError when it cannot be told which files belong to it, and OSError.
    """
    for _ in range(LISTINGS - 1):
        with suppress(FileNotFoundError):  # a running broker has removed one that was listed: they are listed again
            return _find_files(storage, root, options, locked)
    return _find_files(storage, root, options, locked)


def _find_files(storage: Storage, root: str, options: StoreOptions, locked: bytes | None) -> StoreFiles:
    files = OpenFiles(storage)
    findings: list[StoreFinding] = []
    checkpoint = Checkpoint()
    if storage.exists(f"{root}/checkpoint"):
        checkpoint = Checkpoint.decode(storage.open(f"{root}/checkpoint").read(0, CHECKPOINT_BYTES))
    if locked is not None and checkpoint.marked and decode_lock_file(locked) != checkpoint.run:
        checkpoint = checkpoint.without_mark()  # another broker has used the directory since
    log = _log_run(files, f"{root}/commitlog", options.mapped_file_size_commit_log, findings)
    if log.starts and (missing := checkpoint.missing_before(log.start)) is not None:
        remedy = "restore it from a copy, or let rocketbox store repair go on without it"
        findings.append(
            StoreFinding(FindingKind.LOG, log.path(missing), 0, FIRST_MISSING, remedy, end=log.start)
        )  # fmt: skip
    queues: dict[QueueName, FileRun] = {}
    directory = f"{root}/consumequeue"
    names = list(find_queues(storage, directory))
    size = queue_file_size(
        storage, [f"{directory}/{topic}/{number}" for topic, number in names], options.mapped_file_size_consume_queue
    )
    for topic, number in names:
        queues[topic, number] = _queue_run(files, f"{directory}/{topic}/{number}", size, findings)
    index, sizes = _index_files(storage, f"{root}/index", (options.max_hash_slot_num, options.max_index_num), findings)
    clean = not storage.exists(f"{root}/abort")
    return StoreFiles(root, files, log, queues, index, sizes, checkpoint, clean, findings)


def _index_files(
    storage: Storage, directory: str, sizes: tuple[int, int], findings: list[StoreFinding]
) -> tuple[list[str], tuple[int, int]]:
    """The index files, and how many slots and entries they have: as the settings say, or as they say themselves."""
    names = [name for name in storage.list_directory(directory) if re.fullmatch(r"\d{17}", name)]
    found: list[str] = []
    for name in names:
        path = f"{directory}/{name}"
        file = storage.open(path)
        if file.size() == 0 and name == names[-1]:
            continue  # begun when the machine stopped
        try:
            if not found:
                sizes = found_sizes(file, *sizes)
            elif file.size() != length_of(*sizes):
                raise other_size(path, file.size(), *sizes)
        except StoreError as error:
            findings.append(
                StoreFinding(FindingKind.INDEX, path, 0, str(error), "or let rocketbox store repair set it aside")
            )
        else:
            found.append(path)
    return found, sizes


def _log_run(files: OpenFiles, directory: str, wanted: int, findings: list[StoreFinding]) -> FileRun:
    found = find_log_files(files, directory, wanted)
    findings += [_stray(stray.path, stray.what, stray.home) for stray in found.strays]
    run = FileRun(files, directory, found.size, "")
    run.starts = found.starts
    _compare_sizes(run, FindingKind.LOG, {start: found.sizes[start] for start in found.starts}, findings)
    return run


def _queue_run(files: OpenFiles, directory: str, size: int, findings: list[StoreFinding]) -> FileRun:
    storage = files.storage
    run = FileRun(files, directory, size, "")
    starts = [int(name) for name in storage.list_directory(directory) if re.fullmatch(r"\d{20}", name)]
    run.starts = near = main_cluster(storage, directory, [start for start in starts if start % size == 0], size)
    for start in starts:
        if start not in near:
            what = "it lies far from the queue's other files" if start % size == 0 else f"no multiple of {size}"
            findings.append(_stray(run.path(start), what))
    sizes = {start: storage.open(run.path(start)).size() for start in near}
    _compare_sizes(run, FindingKind.QUEUE, sizes, findings)
    return run


def _compare_sizes(run: FileRun, kind: FindingKind, sizes: dict[int, int], findings: list[StoreFinding]) -> None:
    for start, size in sizes.items():
        if size == 0 and start == run.starts[-1]:
            continue  # left by a crash, removed by the next start
        if size != run.file_size:
            what = f"the file has {size} bytes, the others {run.file_size}"
            remedy = "rocketbox store repair keeps a copy and mends it"
            findings.append(StoreFinding(kind, run.path(start), size, what, remedy))


def _stray(path: str, what: str, home: str | None = None) -> StoreFinding:
    remedy = "rocketbox store repair puts it aside" if home is None else "rocketbox store repair moves it there"
    return StoreFinding(FindingKind.DIRECTORY, path, 0, what, remedy, home=home)


def check_store(store: StoreFiles, options: StoreOptions, *, running: bool = False) -> Iterator[StoreFinding | int]:
    """What is not as it should be, and in between the offset of the log that the check has come to.

    ``running``: another process writes the files; only what it has said to be on the disk is compared.
    """
    yield from store.findings
    checkpoint = store.checkpoint
    queued = indexed = _FOREVER
    until = None
    if running or not store.clean:
        queued, indexed = checkpoint.queued_offset, checkpoint.indexed_offset  # 0 without our mark
    if running:
        until = checkpoint.synced_offset
    storage = store.files.storage
    index = None
    if store.index:
        slots, entries = store.index_sizes
        complete = store.clean and not running
        index = IndexComparison(storage, store.index, slots, entries, lambda: store.log.start, complete=complete)
    deleted = DeletedTopics(storage, store.root)
    with suppress(StoreError):  # told by check_tables
        deleted.load()
    comparison = LogComparison(
        store.log,
        store.queues.items(),
        lambda topic, queue_id: FileRun(
            store.files, f"{store.root}/consumequeue/{topic}/{queue_id}", options.mapped_file_size_consume_queue, ""
        ),
        options.delay_level_ms,
        until=until,
        queued=queued,
        indexed=indexed,
        index=index,
        at_rest=not running,
        is_gone=deleted.is_gone,
        checksums_from=checkpoint.checksums_from if checkpoint.marked else -1,
    )
    last: StoreFinding | None = None
    for step in comparison:
        if isinstance(step, StoreFinding) and step.kind is FindingKind.LOG and step.harmless:
            last = step  # at the log's end: whether it was synced is known only then
        else:
            yield step
    end = _behind_blank(store.log, comparison.end)
    if checkpoint.marked and end < checkpoint.synced_offset:
        yield _lost(store, end, last)
    elif until is None:
        yield from _tail(store, end, last)
    elif last is not None:
        yield last


def check_tables(storage: Storage, root: str) -> Iterator[StoreFinding]:
    """Which tables (``config/*.json``, ``timers.bin``) cannot be used, or their versions before, or their checksums."""
    for name in storage.list_directory(f"{root}/config"):
        if name.endswith((".json", ".json.bak")):
            path = Path(f"{root}/config/{name.removesuffix('.bak')}")
            if name.endswith(".bak") and storage.exists(str(path)):
                continue  # looked at with the file itself, and its checksums with both
            file = ConfigFile(path, storage, private=path.name in PRIVATE)
            problems = file.problems()
            again = set(problems and file.problems())  # else a broker has replaced it meanwhile
            for problem in problems:
                if problem in again:
                    where, _, what = problem.partition(": ")
                    remedy = "restore the file from a copy, or remove it to begin anew"
                    if where.endswith(".crc"):
                        remedy = "it is made anew when the table changes; or remove it"
                    yield StoreFinding(FindingKind.TABLE, where, 0, what, remedy)
    yield from _check_timers(TimerFile(f"{root}/config", storage))


def _check_timers(file: TimerFile) -> Iterator[StoreFinding]:
    problems = file.problems()
    again = set(problems and file.problems())  # else a broker has replaced it meanwhile
    for problem in problems:
        if problem in again:
            where, _, what = problem.partition(": ")
            remedy = "restore it from a copy, or remove it: what was delivered since the version before comes again"
            yield StoreFinding(FindingKind.TABLE, where, 0, what, remedy)


class _Entries:
    """What queues say of the end of the log, for ``log_end``."""

    def __init__(self, queues: Iterable[FileRun]) -> None:
        self._queues = queues

    def entries_from(self, physical: int) -> Iterator[tuple[int, int]]:
        for run in self._queues:
            for offset, size in units_backwards(run):
                if offset < physical:
                    break
                yield offset, size


def units_backwards(run: FileRun) -> Iterator[tuple[int, int]]:
    """(physical offset, size) of a queue's units that stand for messages, the newest first."""
    for start in reversed(run.starts):
        data = run.read_file(start)
        for at in range(len(data) // UNIT * UNIT - UNIT, -1, -UNIT):
            physical, size, _ = _UNIT.unpack_from(data, at)
            if 0 < size < FILLER_SIZE:
                yield physical, size


def _behind_blank(log: FileRun, end: int) -> int:
    """Where a log goes on whose newest record ends at ``end``, as a start finds it.

    That is in the next file when its own is closed, whether that file was made before its disk was full, or not.
    """
    scan = LogScan(log, end)
    with suppress(FileNotFoundError):  # retention of a running broker has removed it meanwhile
        for offset, _ in scan:
            return offset
    return scan.end


def _tail(store: StoreFiles, end: int, last: StoreFinding | None) -> Iterator[StoreFinding]:
    """What could not be read at the log's end: cut off by the next start, or a proof makes it refuse.

    ``last`` is None where the log just ends; its last files may be missing.
    """
    run, queues = store.log, _Entries(store.queues.values())
    try:
        refuse_if_synced(run, end, last.what if last is not None else None, store.checkpoint, queues, clean=store.clean)
    except StoreCorruptError as error:
        if last is None:
            start = end - end % run.file_size
            remedy = "restore the file from a copy, or let rocketbox store repair go on without what is lost"
            last = StoreFinding(FindingKind.LOG, run.path(start), end - start, "", remedy, end=max(end, run.limit))
        yield replace(last, what=error.reason, harmless=False, is_lost_tail=True)
    else:
        if last is not None:
            yield last


def _lost(store: StoreFiles, end: int, last: StoreFinding | None) -> StoreFinding:
    start = end - end % store.log.file_size
    return StoreFinding(
        FindingKind.LOG, store.log.path(start), end - start,
        f"the log can be read up to {end} only, but it was synced up to {store.checkpoint.synced_offset}"
        + (f": {last.what}" if last is not None else ""),
        "restore the file from a copy, or let rocketbox store repair go on without what is lost",
        end=store.log.limit, is_lost_tail=True,
    )  # fmt: skip
