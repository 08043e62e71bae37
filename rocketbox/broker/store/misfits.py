"""Files of queues and index that do not fit: of an odd size, off their grid, or missing between others.

They are derived from the log, so no start is refused for them. What they hold is put aside (``aside``), and the others
are made to fit, so that a start can read them and build again what differs. That it must is written down by the caller
(``opening``) before anything is changed: a crash in between leaves files that fit and lack entries.

On a full disk that waits: what does not fit is left where it is (``dispatch`` goes on without it, and keeps what it
builds from the log in memory), and what such files still tell is said by :func:`queue_end` and :func:`entries_in`.

Source: rocketbox' own; Apache RocketMQ 5.x ends with "not matched store config value" (``MappedFileQueue.load``).
"""

from __future__ import annotations

import logging
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from rocketbox.broker.store.aside import Aside
from rocketbox.broker.store.consume_queue import FILLER_SIZE, FILLER_UNIT
from rocketbox.broker.store.files import read_data
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT
from rocketbox.storage.file_system import Storage

__all__ = [
    "LARGEST_GAP",
    "entries_in",
    "main_cluster",
    "mend_queue_files",
    "queue_end",
    "queue_file_size",
    "set_index_aside",
]

_log = logging.getLogger(__name__)

_UNIT = struct.Struct(">qiq")
LARGEST_GAP = 1000  # missing files that are made again; what lies farther away belongs to something else


def queue_file_size(storage: Storage, directories: Iterable[str], wanted: int) -> int:
    """The size that most files of queues have; ``wanted`` is that of the settings, which decides where it is even."""
    sizes: Counter[int] = Counter()
    for directory in directories:
        for start in _starts(storage, directory):
            size = storage.open(_path(directory, start)).size()
            sizes[size] += size > 0 and size % CONSUME_QUEUE_UNIT == 0
    return max(sizes, key=lambda size: (sizes[size], size == wanted)) if sizes.total() else wanted


def main_cluster(storage: Storage, directory: str, starts: Iterable[int], size: int) -> list[int]:
    """Where the files begin that lie near each other, of the group that holds the most.

    Between groups more than :data:`LARGEST_GAP` files would be missing.
    """
    groups: list[list[int]] = []
    for start in starts:
        if groups and start - groups[-1][-1] <= LARGEST_GAP * size:
            groups[-1].append(start)
        else:
            groups.append([start])
    if len(groups) == 1:
        return groups[0]
    return max(groups, key=lambda group: sum(_has_data(storage, _path(directory, each)) for each in group), default=[])


def mend_queue_files(storage: Storage, directory: str, size: int, aside: Aside) -> None:
    """Have the files of a queue's directory all ``size`` bytes and none missing; blocks. Raises OSError."""
    on_grid = []
    for start in _starts(storage, directory):
        path = _path(directory, start)
        if start % size:
            _log.warning("%s is no name of a file of %d bytes: it is put aside, as %s", path, size, aside.move(path))
        else:
            on_grid.append(start)
    kept = main_cluster(storage, directory, on_grid, size)
    for start in on_grid:
        if start not in kept:
            path = _path(directory, start)
            _log.warning("%s is far from the queue's other files: it is put aside, as %s", path, aside.move(path))
    for start in kept:
        path = _path(directory, start)
        if (found := storage.open(path).size()) != size:
            copy = aside.path_of(path)
            aside.copy(path, copy)
            _log.warning(
                "%s has %d bytes instead of %d: a copy of it is in %s, and what it lacks is built again from the log",
                path, found, size, copy,
            )  # fmt: skip
            _complete(storage, path, min(found, size), size, fill=start != kept[-1])
    for before, start in pairwise(kept):
        for missing in range(before + size, start, size):
            path = _path(directory, missing)
            _log.warning("%s is missing: it is made again, and its entries from the log", path)
            _complete(storage, path, 0, size, fill=True)
            storage.sync_directory(directory)


def _complete(storage: Storage, path: str, found: int, size: int, *, fill: bool) -> None:
    """Make a file ``size`` bytes long, of which it has ``found``.

    With ``fill``, as others follow, by entries that stand for no message: zeros would be the queue's end.
    """
    file = storage.open(path, create=True)
    if fill:  # before it is as long as it must be: a disk that gets full meanwhile leaves one that does not fit yet
        whole = found // CONSUME_QUEUE_UNIT
        file.write(whole * CONSUME_QUEUE_UNIT, [FILLER_UNIT * (size // CONSUME_QUEUE_UNIT - whole)])
    file.truncate(size)
    file.sync()


def queue_end(storage: Storage, directory: str, size: int) -> int:
    """Where a queue would end if its files were mended; nothing is changed."""
    kept = main_cluster(storage, directory, [start for start in _starts(storage, directory) if not start % size], size)
    for start in reversed(kept):
        file = storage.open(_path(directory, start))
        found = file.size()
        if start != kept[-1] and found < size:
            return (start + size) // CONSUME_QUEUE_UNIT
        units = list(_units(storage, _path(directory, start), min(found, size)))
        for number in range(len(units) - 1, -1, -1):
            if units[number][1] > 0:
                return start // CONSUME_QUEUE_UNIT + number + 1
    return kept[0] // CONSUME_QUEUE_UNIT if kept else 0


def entries_in(storage: Storage, directory: str, physical: int) -> Iterator[tuple[int, int]]:
    """(offset, size) of the records at or behind ``physical`` that whole units of a queue's files speak of."""
    for start in _starts(storage, directory):
        path = _path(directory, start)
        for offset, size, _ in _units(storage, path, storage.open(path).size()):
            if 0 < size < FILLER_SIZE and offset >= physical:
                yield offset, size


def _units(storage: Storage, path: str, size: int) -> Iterator[tuple[int, int, int]]:
    content = bytearray()
    for position, data in read_data(storage.open(path), 0, size):
        content += bytes(position - len(content)) + data
    return _UNIT.iter_unpack(content[: len(content) // CONSUME_QUEUE_UNIT * CONSUME_QUEUE_UNIT])


def set_index_aside(storage: Storage, directory: str, aside: Aside) -> None:
    """Put all index files aside; blocks. Raises OSError.

    The newest goes first: then the rest of them does not end where the checkpoint says, and is not believed.
    """
    names = [name for name in storage.list_directory(directory) if re.fullmatch(r"\d{17}", name)]
    for name in reversed(names):
        aside.move(f"{directory}/{name}")
    _log.warning(
        "the %d files of %s do not fit together: they are in %s now, and the index is built again from the log",
        len(names), directory, aside.directory,
    )  # fmt: skip


def _starts(storage: Storage, directory: str) -> Iterator[int]:
    for name in storage.list_directory(directory):
        if re.fullmatch(r"\d{20}", name):
            yield int(name)


def _path(directory: str, start: int) -> str:
    return os.path.join(directory, f"{start:020d}")


def _has_data(storage: Storage, path: str) -> bool:
    file = storage.open(path)
    return any(data.strip(b"\0") for _, data in read_data(file, 0, file.size()))
