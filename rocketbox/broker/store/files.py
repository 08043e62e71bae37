"""Runs of files of one size, each named by the offset of its first byte: how commit log and consume queues lie on disk.

Holds their loading, growing and cutting, and the bound on files open at once; what is in them is left to
``commit_log`` and ``consume_queue``.

Source: Apache RocketMQ 5.x ``MappedFileQueue``, ``DefaultMappedFile`` (which map what is read and written here).
"""

from __future__ import annotations

import errno
import logging
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator

from rocketbox.errors import StoreCorruptError, StoreError
from rocketbox.storage.file_system import Storage, StorageFile

__all__ = ["NO_ROOM", "FileRun", "OpenFiles", "SyncFailedError", "is_shortage", "read_data"]

_log = logging.getLogger(__name__)

OPEN_FILES = 256  # a broker with thousands of queues must stay below the usual limit of 1024 open files
ZEROS = bytes(1 << 20)
PAGE = 1024  # what the size of a file is a multiple of, or it was cut off
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHORTAGES = NO_ROOM | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that something is short for now: room, open files, memory."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


class SyncFailedError(OSError):
    """A sync failed: what of the file is on the disk is not known, and a later sync would not tell."""

    @classmethod
    def of(cls, error: OSError) -> SyncFailedError:
        return cls(error.errno, error.strerror, error.filename)


class OpenFiles:
    """The files in use, at most ``limit`` of them open; which, is decided by use. Any thread may ask."""

    def __init__(self, storage: Storage, limit: int = OPEN_FILES) -> None:
        self.storage = storage
        self._limit = limit
        self._files: OrderedDict[str, StorageFile] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, path: str, *, create: bool = False) -> StorageFile:
        """The file, opened if it is not. Keep it only as long as one read or write takes."""
        with self._guard:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                return file
        opened = self.storage.open(path, create=create)  # not under the lock: a slow disk would hold up all others
        with self._guard:
            file = self._files.setdefault(path, opened)
            self._files.move_to_end(path)
            if len(self._files) > self._limit:
                self._files.popitem(last=False)  # closed when the last thread that uses it lets go
            return file

    def forget(self, path: str) -> None:
        with self._guard:
            self._files.pop(path, None)

    def forget_all(self) -> None:
        with self._guard:
            self._files.clear()

    def leave_to_parent(self) -> None:
        """In a child of fork: close all; whatever thread held the lock, it is not here."""
        self._guard = threading.Lock()
        self.close()

    def close(self) -> None:
        """Close all; nothing may use them any more."""
        with self._guard:
            for file in self._files.values():
                file.close()
            self._files.clear()


def read_data(file: StorageFile, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """What is in a file from ``start`` to ``end``, piece by piece with positions.

    Zeros that a sparse file has no blocks for are left out: most of a young store's files are nothing else.
    """
    position = start
    while position < end and (found := file.next_data(position)) is not None and found < end:
        # Up to a border of blocks: the page in which a piece ends is read whole, and holds data from then on for the
        # file system. So one piece would lead to the next through all that is allocated ahead.
        data = file.read(found, min(len(ZEROS) - found % len(ZEROS), end - found))
        if not data:
            return
        yield found, data
        position = found + len(data)


class FileRun:
    """The files of one directory, from :attr:`start` to :attr:`limit`, without a gap. Offsets are those of the run.

    Any thread may read while another adds files.
    """

    def __init__(self, files: OpenFiles, directory: str, file_size: int, setting: str) -> None:
        self.directory = directory
        self.file_size = file_size
        self.starts: list[int] = []
        self._setting = setting
        self._unsynced: dict[int, tuple[int, int]] = {}  # by file: the bytes written since its last sync
        self._doubtful: set[int] = set()  # files whose last sync failed
        self._files = files
        self._storage = files.storage
        self._guard = threading.Lock()  # of what follows, and of changing ``starts``
        self._reads: dict[int, int] = {}  # by file: how many go on
        self._removal_unsynced = False

    @property
    def start(self) -> int:
        """Offset of the first file's first byte; 0 without files."""
        starts = self.starts
        return starts[0] if starts else 0

    @property
    def limit(self) -> int:
        """Offset behind the last file's last byte; 0 without files."""
        starts = self.starts
        return starts[-1] + self.file_size if starts else 0

    def path(self, start: int) -> str:
        return f"{self.directory}/{start:020d}"

    def only(self, start: int) -> FileRun:
        """The run of that one file, to read it whatever becomes of the others; of as many bytes as it really has."""
        run = FileRun(self._files, self.directory, self.file_size, self._setting)
        run.starts = [start]
        run.file_size = min(self.file_size, run.file(start).size())
        return run

    def load(self, *, lengthen: bool = False) -> None:
        """Find the files, and take :attr:`file_size` from them. A last file of no length, left by a crash, is removed.

        With ``lengthen`` a last file that is shorter than those before it, as a copy that was cut off leaves it, gets
        their length, and an only one that of the settings, if its own is no multiple of PAGE: no store makes such.
        Raises StoreError for files of several sizes, StoreCorruptError for a missing file.
        """
        names = [name for name in self._storage.list_directory(self.directory) if re.fullmatch(r"\d{20}", name)]
        self.starts = [int(name) for name in names]
        sizes = {start: self._files.get(self.path(start)).size() for start in self.starts}
        if self.starts and sizes[self.starts[-1]] == 0:
            self._remove(self.starts.pop())
        if lengthen and self.starts:
            last = self.starts[-1]
            size = sizes[self.starts[0]] if len(self.starts) > 1 else self.file_size
            if sizes[last] < size and (len(self.starts) > 1 or sizes[last] % PAGE):
                self._lengthen(last, sizes[last], size)
                sizes[last] = size
        for start in self.starts:
            first = self.starts[0]
            if sizes[start] != sizes[first] or start % max(1, sizes[start]):
                raise StoreError(
                    f"{self.path(start)} has {sizes[start]} bytes, {self.path(first)} has {sizes[first]}, and "
                    f"{self._setting} is {self.file_size}: the files of a directory have one size, and each is named "
                    "by a multiple of it. Restore the one that is not as the others"
                )
            self.file_size = sizes[start]
        for before, start in zip(self.starts, self.starts[1:], strict=False):
            if start != before + self.file_size:
                missing = self.path(before + self.file_size)
                raise StoreCorruptError(missing, 0, f"the file is missing between {self.path(before)} and {start:020d}")

    def _lengthen(self, start: int, size: int, full: int) -> None:
        _log.warning("%s has %d of its %d bytes: what is missing counts as zeros", self.path(start), size, full)
        file = self._files.get(self.path(start))
        file.truncate(full)
        file.sync()

    def add(self, start: int) -> StorageFile:
        """Make the file that begins at ``start``, of full length and synced. Nothing is left of one that fails.

        Raises SyncFailedError when a sync did, OSError for anything else.
        """
        path = self.path(start)
        try:
            self._storage.make_directories(self.directory)
            file = self._files.get(path, create=True)
            file.truncate(self.file_size)
            self._sync(file.sync)
            self._sync(lambda: self._storage.sync_directory(self.directory))
        except OSError:
            self._take_back(path)
            raise
        with self._guard:
            self.starts = [*self.starts, start]  # anew: other threads read the one they have
        return file

    def add_before(self, content: bytes) -> None:
        """Make the file before the first one again, which is missing, with this content; synced. Raises OSError."""
        start = self.start - self.file_size
        path = self.path(start)
        try:
            file = self._files.get(path, create=True)
            file.write(0, [content])
            file.sync()
            self._storage.sync_directory(self.directory)
        except OSError:
            self._take_back(path)
            raise
        with self._guard:
            self.starts = [start, *self.starts]

    @staticmethod
    def _sync(sync: Callable[[], None]) -> None:
        try:
            sync()
        except OSError as error:
            if is_shortage(error):
                raise
            raise SyncFailedError.of(error) from error

    def _take_back(self, path: str) -> None:
        self._files.forget(path)
        try:
            if self._storage.exists(path):
                self._storage.remove(path)
        except OSError as error:
            _log.debug("%s, which could not be made, cannot be removed either: %s", path, error)

    def file_start(self, offset: int) -> int:
        """Where the file that holds ``offset`` begins."""
        return offset - (offset - self.start) % self.file_size

    def file(self, offset: int) -> StorageFile:
        """The file that holds ``offset``; raises StoreError if none does."""
        starts = self.starts
        number = bisect_right(starts, offset) - 1
        if number < 0 or offset >= starts[number] + self.file_size:
            raise StoreError(f"{self.directory} holds nothing at offset {offset}")
        return self._files.get(self.path(starts[number]))

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes, from one file."""
        start = self.file_start(offset)
        with self._guard:
            self._reads[start] = self._reads.get(start, 0) + 1
        try:
            return self.file(offset).read(offset - start, min(size, start + self.file_size - offset))
        finally:
            with self._guard:
                self._reads[start] -= 1
                if not self._reads[start]:
                    del self._reads[start]

    def read_file(self, start: int) -> bytes:
        """All of the file that begins at ``start``, but for zeros behind its last data."""
        content = bytearray()
        for position, data in read_data(self.file(start), 0, self.file_size):
            content += bytes(position - len(content))
            content += data
        return bytes(content)

    def data(self, offset: int, size: int) -> Iterator[tuple[int, bytes]]:
        """What is in ``size`` bytes of one file, but for zeros without blocks: pieces with their distance to offset."""
        start = self.file_start(offset)
        for position, data in read_data(self.file(offset), offset - start, offset - start + size):
            yield start + position - offset, data

    def data_length(self, start: int, offset: int) -> int:
        """How many bytes there are from ``offset`` up to the last that is not zero in the file that begins at start."""
        length = 0
        for distance, data in self.data(offset, start + self.file_size - offset):
            if data != ZEROS[: len(data)]:
                length = distance + len(data.rstrip(b"\0"))
        return length

    def write(self, offset: int, data: bytes) -> None:
        """Write, adding files where needed. What is written is safe after :meth:`sync`."""
        while data:
            if not self.starts or offset >= self.limit:
                self.add(offset if not self.starts else self.limit)
            start = self.file_start(offset)
            part = data[: start + self.file_size - offset]
            position, end = offset - start, offset - start + len(part)
            self.file(offset).write(position, [part])
            low, high = self._unsynced.get(start, (position, end))
            self._unsynced[start] = (min(low, position), max(high, end))
            offset += len(part)
            data = data[len(part) :]

    def sync(self) -> None:
        """Sync what was written. After a failed sync the next one writes it again first: it may not count as dirty."""
        for start, (low, high) in list(self._unsynced.items()):
            if start in self.starts:
                file = self.file(start)
                if start in self._doubtful:
                    file.write(low, [file.read(low, high - low)])
                self._doubtful.add(start)
                file.sync()
            self._doubtful.discard(start)
            del self._unsynced[start]

    def remove_first(self) -> bool:
        """Remove the first file, unless it is the last too, or is being read; whether it was. Blocks. Raises OSError.

        Its name is gone from the disk before the next one is removed: no crash leaves a gap.
        """
        if self._removal_unsynced:
            self._storage.sync_directory(self.directory)
            self._removal_unsynced = False
        with self._guard:
            if len(self.starts) < 2 or self.starts[0] in self._reads:
                return False
            start, self.starts = self.starts[0], self.starts[1:]  # nobody begins to read it from now on
        self._removal_unsynced = True
        try:
            self._remove(start)
        except OSError:
            if self._storage.exists(self.path(start)):
                with self._guard:
                    self.starts = [start, *self.starts]
            raise
        self._removal_unsynced = False
        return True

    def cut(self, offset: int) -> int:
        """Make all bytes from ``offset`` on zero and remove the files behind; returns how many bytes were not zero.

        Zeros are written where something is, instead of cutting the file and growing it again: a crash in between
        must not leave a file of the wrong length.
        """
        cleared = 0
        while self.starts and self.starts[-1] > offset:
            cleared += self._clear(self.starts[-1], self.starts[-1])
            start, self.starts = self.starts[-1], self.starts[:-1]
            self._remove(start)
        if self.starts and offset < self.limit:
            cleared += self._clear(self.file_start(offset), offset)
        return cleared

    def remove_files(self) -> None:
        """Remove all, to begin elsewhere. Raises OSError; called again it goes on with the file that is still there."""
        while self.starts:
            start, self.starts = self.starts[-1], self.starts[:-1]
            try:
                self._remove(start)
            except OSError:
                if self._storage.exists(self.path(start)):
                    self.starts = [*self.starts, start]
                raise

    def _clear(self, start: int, offset: int) -> int:
        file = self.file(start)
        cleared = 0
        for position, data in read_data(file, offset - start, self.file_size):
            if data != ZEROS[: len(data)]:
                file.write(position, [ZEROS[: len(data)]])
                cleared += len(data) - data.count(0)
        if cleared:
            file.sync()
        return cleared

    def _remove(self, start: int) -> None:
        self._files.forget(self.path(start))
        self._storage.remove(self.path(start))
        self._storage.sync_directory(self.directory)
