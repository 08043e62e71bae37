"""Mending a damaged store: which steps it takes, and taking them. Nothing goes without a copy in ``torn/``.

What is lost in the log stays lost, the rest can be read: damaged bytes are replaced by records that stand for nothing
(``filler``), so that every other message keeps its offsets. A log that lost its end is cut there. Queues get the right
entries where they stand; index files are set aside, and the next start builds them again. In the end the store is
opened once, which completes what is derived, and stopped in order.

Left to others: finding what is wrong (``store_check``), asking whether to do it (``cli.store``).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rocketbox.broker.store.aside import Aside
from rocketbox.broker.store.checkpoint import CHECKPOINT_BYTES, Checkpoint
from rocketbox.broker.store.consume_queue import FILLER_SIZE
from rocketbox.broker.store.files import FileRun
from rocketbox.broker.store.filler import SMALLEST_FILLER, blank, filler_record
from rocketbox.broker.store.finding import FindingKind, StoreFinding
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT as UNIT
from rocketbox.broker.store.records import store_timestamp_of
from rocketbox.broker.store.store_check import StoreFiles
from rocketbox.errors import StoreError
from rocketbox.storage.file_system import Storage

__all__ = ["RepairStep", "plan_repair"]

HEAD_BYTES = 96  # of a record, with its store time
_UNIT = struct.Struct(">qiq")


@dataclass(frozen=True)
class RepairStep:
    """One thing to do: what, for people, and doing it (blocks; raises StoreError, OSError)."""

    what: str
    do: Callable[[], object]


def plan_repair(store: StoreFiles, findings: list[StoreFinding], stamp: str) -> list[RepairStep]:
    """What makes a store sound again in which a check has found these. ``stamp`` names the copies."""
    return _Plan(store, stamp).steps(findings)


class _Plan:
    def __init__(self, store: StoreFiles, stamp: str) -> None:
        self._store = store
        self._storage: Storage = store.files.storage
        self._aside = Aside(self._storage, store.root, stamp)
        self._steps: list[RepairStep] = []

    def steps(self, findings: list[StoreFinding]) -> list[RepairStep]:
        wrong = [finding for finding in findings if not finding.harmless]
        strays = [finding for finding in wrong if finding.kind is FindingKind.DIRECTORY]
        if strays:  # only then it is seen what is missing
            for finding in strays:
                self._move_stray(finding)
            return self._steps
        lost = next((finding for finding in wrong if finding.is_lost_tail), None)
        for finding in wrong:
            if finding.kind is FindingKind.LOG and not finding.is_lost_tail:
                self._mend_log(finding)
        if lost is not None:
            self._cut_log(self._log_offset(lost))
        queues: dict[str, list[StoreFinding]] = {}
        for finding in wrong:
            if finding.kind is FindingKind.QUEUE:
                queues.setdefault(finding.path, []).append(finding)
        for path, found in queues.items():
            self._mend_queue(path, found)
        index = [finding.path for finding in wrong if finding.kind is FindingKind.INDEX]
        if index:
            self._set_index_aside(index)
        for path in dict.fromkeys(finding.path for finding in wrong if finding.kind is FindingKind.TABLE):
            self._set_aside(path)
        return self._steps

    def _add(self, what: str, do: Callable[[], object]) -> None:
        self._steps.append(RepairStep(what, do))

    def _log_offset(self, finding: StoreFinding) -> int:
        return int(os.path.basename(finding.path)) + finding.position

    # --- files that do not belong where they are ---

    def _move_stray(self, finding: StoreFinding) -> None:
        path, home = finding.path, finding.home
        if home is None:
            self._add(
                f"put {path} aside, as {self._aside.path_of(path)}: {finding.what}", partial(self._aside.move, path)
            )
        else:
            self._add(f"rename {path} to {home}: {finding.what}", partial(self._rename, path, home))

    def _rename(self, path: str, home: str) -> None:
        if self._storage.exists(home):
            raise StoreError(f"{home} is there by now; {path} was not moved")
        self._storage.rename(path, home)
        self._storage.sync_directory(os.path.dirname(home))

    # --- the log ---

    def _mend_log(self, finding: StoreFinding) -> None:
        run, path, size = self._store.log, finding.path, self._store.log.file_size
        offset, end = self._log_offset(finding), finding.end
        if offset < run.start:
            self._add(
                f"note in the checkpoint that the log begins at {run.start}: {path} is missing, and with it "
                f"{run.start - offset} bytes",
                self._begin_log_later,
            )
        elif not self._storage.exists(path):
            for start in range(offset, end, size):
                self._add(
                    f"make {run.path(start)}, which is missing, as a file that holds nothing",
                    partial(self._write, run.path(start), 0, blank(size), size),
                )
        elif not end:
            copy = self._aside.path_of(path)
            self._add(
                f"copy {path} to {copy}, and make it {size} bytes long as the others are",
                partial(self._copy_and_resize, path, copy, size),
            )
        else:
            self._add(
                f"copy {end - offset} bytes at {path}:{finding.position} to {self._aside.directory}, and replace them "
                f"by what stands for nothing: {finding.what}",
                partial(self._replace, path, finding.position, offset, end),
            )

    def _begin_log_later(self) -> None:
        path = f"{self._store.root}/checkpoint"
        self._aside.copy(path, self._aside.path_of(path))
        file = self._storage.open(path)
        value = Checkpoint.decode(file.read(0, CHECKPOINT_BYTES))
        file.write(0, [replace(value, log_start=self._store.log.start).encode()])
        file.sync()

    def _copy_and_resize(self, path: str, copy: str, size: int) -> None:
        self._aside.copy(path, copy)
        self._resize(path, size)

    def _replace(self, path: str, position: int, offset: int, end: int) -> None:
        run = self._store.log
        self._aside.copy_bytes(path, position, end - offset, offset)
        if end % run.file_size == 0:
            self._write(path, position, blank(end - offset), run.file_size)
            return
        head = self._storage.open(path).read(position + end - offset, HEAD_BYTES)
        stored, size = store_timestamp_of(head), end - offset
        if size < SMALLEST_FILLER:
            raise StoreError(
                f"{size} bytes at {path}:{position} cannot be replaced: no record is so small. Export what the store "
                "holds, and begin with an empty directory"
            )
        self._write(path, position, filler_record(offset, size, stored), run.file_size)

    def _cut_log(self, end: int) -> None:
        run = self._store.log
        copies = [(start, max(start, end)) for start in run.starts if start + run.file_size > end]
        self._add(
            f"copy what is behind offset {end} of the log to {self._aside.directory}, and cut the log off there; "
            "entries of what is lost are removed from the queues",
            lambda: self._do_cut(end, copies),
        )

    def _do_cut(self, end: int, copies: list[tuple[int, int]]) -> None:
        run = self._store.log
        for start, first in copies:
            self._aside.copy_bytes(run.path(start), first - start, run.file_size - (first - start), first)
        run.cut(end)
        for queue in self._store.queues.values():
            self._cut_queue(queue, end)
        self._change_checkpoint(
            synced_offset=end,
            confirm_phy_offset=end,
            queued_offset=0,
            indexed_offset=0,
            index_msg_timestamp=0,
            queue_ends=0,
        )

    def _cut_queue(self, run: FileRun, end: int) -> None:
        for start in reversed(run.starts):
            data = run.read_file(start)
            for at in range(len(data) // UNIT * UNIT - UNIT, -1, -UNIT):
                physical, size, _ = _UNIT.unpack_from(data, at)
                if size != FILLER_SIZE and size > 0 and physical < end:
                    self._aside.copy(run.path(start), self._aside.path_of(run.path(start)))
                    run.cut(start + at + UNIT)
                    return

    # --- what is derived ---

    def _mend_queue(self, path: str, found: list[StoreFinding]) -> None:
        copy = self._aside.path_of(path) if self._storage.exists(path) else None
        size = next((run.file_size for run in self._store.queues.values() if path.startswith(f"{run.directory}/")), 0)
        kept = f"copy {path} to {copy}, and write" if copy is not None else f"make {path}, and write"
        entries = [finding for finding in found if finding.correct is not None]
        self._add(
            f"{kept} {len(entries)} entries that differ from the log",
            lambda: self._write_entries(path, copy, size, entries),
        )

    def _write_entries(self, path: str, copy: str | None, size: int, entries: list[StoreFinding]) -> None:
        if copy is not None:
            self._aside.copy(path, copy)
            if size:
                self._resize(path, size)
        for finding in entries:
            assert finding.correct is not None
            self._write(path, finding.position, finding.correct, size)

    def _set_index_aside(self, wrong: list[str]) -> None:
        first = min(wrong)
        files = sorted({*wrong, *[path for path in self._store.index if path >= first]})
        self._add(
            f"set aside {len(files)} index files from {first} on; the next start builds them again from the log",
            lambda: self._do_set_index_aside(files),
        )

    def _do_set_index_aside(self, files: list[str]) -> None:
        for path in reversed(files):
            if self._storage.exists(path):
                self._aside.move(path)
        self._change_checkpoint(indexed_offset=0, index_msg_timestamp=0)

    def _set_aside(self, path: str) -> None:
        then = "the version before is used, where there is one"
        if path.endswith(".crc"):
            then = "the table is used unchecked until it changes"
        elif path.endswith((".bin", ".bin.bak")):
            then = (
                "timer messages that were delivered since the version before are delivered again, all if there is none"
            )
        self._add(
            f"set {path} aside, to {self._aside.path_of(path)}; {then}",
            partial(self._aside.move, path),
        )

    def _change_checkpoint(self, **changes: int) -> None:
        path = f"{self._store.root}/checkpoint"
        if not self._storage.exists(path):
            return
        file = self._storage.open(path)
        value = Checkpoint.decode(file.read(0, CHECKPOINT_BYTES))
        if value.marked:
            self._aside.copy(path, self._aside.path_of(path))
            lowered: dict[str, Any] = {name: min(getattr(value, name), number) for name, number in changes.items()}
            file.write(0, [replace(value, **lowered).encode()])
            file.sync()

    # --- files ---

    def _resize(self, path: str, size: int) -> None:
        file = self._storage.open(path)
        file.truncate(size)
        file.sync()

    def _write(self, path: str, position: int, data: bytes, size: int) -> None:
        directory = os.path.dirname(path)
        self._storage.make_directories(directory)
        file = self._storage.open(path, create=True)
        if file.size() < size:
            file.truncate(size)
        file.write(position, [data])
        file.sync()
        self._storage.sync_directory(directory)
