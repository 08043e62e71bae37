"""Runs of files of one size, each named by the offset of its first byte: how commit log and consume queues lie on disk.

Holds their loading, growing and cutting, and the bound on files open at once; what is in them is left to
``commit_log`` and ``consume_queue``.

Source: Apache RocketMQ 5.x ``MappedFileQueue``, ``DefaultMappedFile`` (which map what is read and written here).
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator

from rocketbox.broker.store.storage import Storage, StorageFile
from rocketbox.errors import StoreCorruptError, StoreError

__all__ = ["FileRun", "OpenFiles", "read_data"]

OPEN_FILES = 256  # a broker with thousands of queues must stay below the usual limit of 1024 open files
ZEROS = bytes(1 << 20)


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
            if file is None:
                file = self._files[path] = self.storage.open(path, create=create)
                if len(self._files) > self._limit:
                    self._files.popitem(last=False)  # closed when the last thread that uses it lets go
            else:
                self._files.move_to_end(path)
            return file

    def forget(self, path: str) -> None:
        with self._guard:
            self._files.pop(path, None)

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
    """The files of one directory, from :attr:`start` to :attr:`limit`, without a gap. Offsets are those of the run."""

    def __init__(self, files: OpenFiles, directory: str, file_size: int, setting: str) -> None:
        self.directory = directory
        self.file_size = file_size
        self.starts: list[int] = []
        self._setting = setting
        self._files = files
        self._storage = files.storage

    @property
    def start(self) -> int:
        """Offset of the first file's first byte; 0 without files."""
        return self.starts[0] if self.starts else 0

    @property
    def limit(self) -> int:
        """Offset behind the last file's last byte; 0 without files."""
        return self.starts[-1] + self.file_size if self.starts else 0

    def path(self, start: int) -> str:
        return f"{self.directory}/{start:020d}"

    def only(self, start: int) -> FileRun:
        """The run of that one file, to read it whatever becomes of the others; of as many bytes as it really has."""
        run = FileRun(self._files, self.directory, self.file_size, self._setting)
        run.starts = [start]
        run.file_size = min(self.file_size, run.file(start).size())
        return run

    def load(self) -> None:
        """Find the files, and take :attr:`file_size` from them. A last file of no length, left by a crash, is removed.

        Raises StoreError for files of several sizes, StoreCorruptError for a missing file.
        """
        names = [name for name in self._storage.list_directory(self.directory) if re.fullmatch(r"\d{20}", name)]
        self.starts = [int(name) for name in names]
        sizes = {start: self._files.get(self.path(start)).size() for start in self.starts}
        if self.starts and sizes[self.starts[-1]] == 0:
            self._remove(self.starts.pop())
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

    def add(self, start: int, allocate: int = 0) -> StorageFile:
        """Make the file that begins at ``start``: of full length, its first ``allocate`` bytes set aside, synced."""
        self._storage.make_directories(self.directory)
        file = self._files.get(self.path(start), create=True)
        file.truncate(self.file_size)
        if allocate:
            file.allocate(0, min(allocate, self.file_size))
        file.sync()
        self._storage.sync_directory(self.directory)
        self.starts.append(start)
        return file

    def file_start(self, offset: int) -> int:
        """Where the file that holds ``offset`` begins."""
        return offset - (offset - self.start) % self.file_size

    def file(self, offset: int) -> StorageFile:
        """The file that holds ``offset``; raises StoreError if none does."""
        number = bisect_right(self.starts, offset) - 1
        if number < 0 or offset >= self.starts[number] + self.file_size:
            raise StoreError(f"{self.directory} holds nothing at offset {offset}")
        return self._files.get(self.path(self.starts[number]))

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes, from one file."""
        start = self.file_start(offset)
        return self.file(offset).read(offset - start, min(size, start + self.file_size - offset))

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

    def write(self, offset: int, data: bytes) -> list[StorageFile]:
        """Write, adding files where needed; returns the files to sync."""
        written = []
        while data:
            if not self.starts or offset >= self.limit:
                self.add(offset if not self.starts else self.limit)
            start = self.file_start(offset)
            part = data[: start + self.file_size - offset]
            file = self.file(offset)
            file.write(offset - start, [part])
            written.append(file)
            offset += len(part)
            data = data[len(part) :]
        return written

    def cut(self, offset: int) -> int:
        """Make all bytes from ``offset`` on zero and remove the files behind; returns how many bytes were not zero.

        Zeros are written where something is, instead of cutting the file and growing it again: a crash in between
        must not leave a file of the wrong length.
        """
        cleared = 0
        while self.starts and self.starts[-1] > offset:
            cleared += self._clear(self.starts[-1], self.starts[-1])
            self._remove(self.starts.pop())
        if self.starts and offset < self.limit:
            cleared += self._clear(self.file_start(offset), offset)
        return cleared

    def remove_files(self) -> None:
        """Remove all, to begin elsewhere."""
        while self.starts:
            self._remove(self.starts.pop())

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

    def sync_last(self) -> None:
        """Sync the last file, the one that is written to."""
        if self.starts:
            self.file(self.starts[-1]).sync()
