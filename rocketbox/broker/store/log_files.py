"""Which files in a commit log's directory belong to the log, and of what size they are; the others are strays.

A start takes the names as they are, and refuses what does not fit. Here it is told what does not, so that a repair can
put it right: a file whose name is no multiple of the size; one whose records say that they belong elsewhere (it was
renamed, or copied); one that lies beyond a gap and holds no record of its own place.

Left to others: what is in the files that belong (``log_walk``), what to do with strays (``store_repair``).

Source: rocketbox' own; names and sizes are those of Apache RocketMQ 5.x ``MappedFileQueue``.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.log_walk import next_intact
from rocketbox.broker.store.misfits import LARGEST_GAP
from rocketbox.broker.store.records import MAGICS, MIN_RECORD_BYTES, check_record
from rocketbox.errors import StoreError

__all__ = ["LogFiles", "Stray", "find_log_files"]

LEAST_SIZE = 256  # of a file of a log
_HEAD = struct.Struct(">II20xq")  # size, magic, own offset


@dataclass(frozen=True)
class Stray:
    """A file that does not belong where it is."""

    path: str
    what: str
    home: str | None = None
    """Where it belongs, if its records say so and nothing is there."""


@dataclass
class LogFiles:
    """The files that belong to a log. ``sizes`` are those that they really have, by where they begin."""

    size: int
    starts: list[int]
    sizes: dict[int, int]
    strays: list[Stray] = field(default_factory=list)


def find_log_files(files: OpenFiles, directory: str, wanted: int) -> LogFiles:
    """Look at names, sizes and first records; ``wanted`` is the size that the settings say. Blocks.

    Raises StoreError when there are records so far apart that it cannot be told which of them belong, and OSError.
    """
    storage = files.storage
    starts = [int(name) for name in storage.list_directory(directory) if re.fullmatch(r"\d{20}", name)]
    run = FileRun(files, directory, wanted, "")
    sizes = {start: storage.open(run.path(start)).size() for start in starts}
    size = run.file_size = _size_of(starts, sizes, wanted)
    found = LogFiles(size, [], sizes)
    for start in starts:
        home = _home(run, start, sizes[start])
        if start % size or home is not None:
            _add_stray(found, run, start, home)
        else:
            found.starts.append(start)
    _leave_out_what_lies_apart(found, run)
    return found


def _size_of(starts: list[int], sizes: dict[int, int], wanted: int) -> int:
    """The size that fits names and files best; one that is too short has most likely lost its end."""
    steps = Counter(after - before for before, after in pairwise(starts))
    candidates = {size for size in (*sizes.values(), *steps, wanted) if size >= LEAST_SIZE}
    if len(starts) == 1 and sizes[starts[0]] >= LEAST_SIZE:
        candidates = {sizes[starts[0]]}

    def fit(size: int) -> tuple[int, bool, int]:
        on_grid = sum(start % size == 0 for start in starts)
        of_size = sum(each == size for each in sizes.values())
        return on_grid + of_size + steps[size], size == wanted, size

    return max(candidates, key=fit, default=wanted)


def _add_stray(found: LogFiles, run: FileRun, start: int, home: int | None) -> None:
    path = run.path(start)
    if home is None:
        what = f"its name is no multiple of {run.file_size}, the size of the log's files"
        found.strays.append(Stray(path, what))
        return
    free = home not in found.sizes and all(stray.home != run.path(home) for stray in found.strays)
    what = f"its records belong into {run.path(home)}"
    found.strays.append(Stray(path, what, run.path(home) if free else None))


def _home(run: FileRun, start: int, length: int) -> int | None:
    """Where the file begins that the first record is of, if that is another one than its name says."""
    one = run.only(start)
    if length < MIN_RECORD_BYTES:
        return None
    head = one.read(start, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    size, magic, own = _HEAD.unpack(head)
    if magic not in MAGICS or own == start or own % run.file_size or not MIN_RECORD_BYTES <= size <= length:
        return None
    record = one.read(start, size)
    if len(record) < size or check_record(record, own) is not None:
        return None
    return None if next_intact(one, start) is not None else int(own)


def _leave_out_what_lies_apart(found: LogFiles, run: FileRun) -> None:
    """Files behind a gap belong to the log if one of them holds a record of its own place."""
    groups: list[list[int]] = []
    for start in found.starts:
        if groups and start == groups[-1][-1] + run.file_size:
            groups[-1].append(start)
        else:
            groups.append([start])
    if len(groups) < 2:
        return
    true = [group for group in groups if any(_has_record(run, start, found.sizes[start]) for start in group)]
    true = true or [max(groups, key=len)]
    for group in groups:
        if group not in true:
            what = "other files are missing before it or behind it, and it holds no record of its place"
            found.strays += [Stray(run.path(start), what) for start in group]
    found.starts = [start for group in true for start in group]
    for before, after in pairwise(true):
        missing = (after[0] - before[-1]) // run.file_size - 1
        if missing > LARGEST_GAP:
            raise StoreError(
                f"{missing} files are missing between {run.path(before[-1])} and {run.path(after[0])}, and there are "
                "records in both: these are files of two stores. Move those that do not belong here to another "
                "directory"
            )


def _has_record(run: FileRun, start: int, length: int) -> bool:
    return length >= MIN_RECORD_BYTES and next_intact(run.only(start), start) is not None
