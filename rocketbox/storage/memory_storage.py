"""A file system in memory that records every call: what tests put in the place of the machine's.

The interface stands in ``file_system``. One that fails overrides :meth:`MemoryStorage.begin_call`.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rocketbox.errors import StoreLockedError
from rocketbox.storage.file_system import DiskUsage, LockHandle, StorageFile

__all__ = ["MemoryLock", "MemoryStorage", "StorageCall"]


@dataclass(frozen=True, slots=True)
class StorageCall:
    """One call that changes or syncs something: its name, the path, where, and how many bytes."""

    name: str
    path: str
    offset: int = 0
    size: int = 0


class _Content:
    """The bytes of a file in memory, by pages, so that a sparse file of a gibibyte takes only what was written."""

    PAGE = 1 << 16

    def __init__(self) -> None:
        self.size = 0
        self.pages: dict[int, bytearray] = {}
        self._own: set[int] = set()  # numbers of pages that no copy has too

    def copy(self) -> _Content:
        """Another one with the same bytes: pages are shared until one of the two changes them."""
        other = _Content()
        other.size = self.size
        other.pages = dict(self.pages)
        self._own.clear()
        return other

    def _page(self, number: int) -> bytearray:
        """A page, to be changed."""
        if number not in self._own:
            self.pages[number] = bytearray(self.pages.get(number) or self.PAGE)
            self._own.add(number)
        return self.pages[number]

    def read(self, offset: int, size: int) -> bytes:
        size = max(0, min(size, self.size - offset))
        return b"".join(bytes(self.PAGE)[:length] if page is None else bytes(page[start : start + length])
                        for page, start, length in self._parts(offset, size))  # fmt: skip

    def write(self, offset: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            number, start = divmod(offset + done, self.PAGE)
            length = min(self.PAGE - start, len(data) - done)
            self._page(number)[start : start + length] = data[done : done + length]
            done += length
        self.size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        if size < self.size:
            last, start = divmod(size, self.PAGE)
            self.pages = {number: page for number, page in self.pages.items() if number <= last}
            self._own &= self.pages.keys()
            if last in self.pages:
                self._page(last)[start:] = bytes(self.PAGE - start)
        self.size = size

    def _parts(self, offset: int, size: int) -> Iterator[tuple[bytearray | None, int, int]]:
        while size > 0:
            number, start = divmod(offset, self.PAGE)
            length = min(self.PAGE - start, size)
            yield self.pages.get(number), start, length
            offset += length
            size -= length


class _MemoryFile:
    def __init__(self, storage: MemoryStorage, path: str, content: _Content) -> None:
        self.path = path
        self._storage = storage
        self._content = content

    def read(self, offset: int, size: int) -> bytes:
        self._storage.begin_call("read", self.path)
        with self._storage.guard:
            self._storage.reads += 1
            return self._content.read(offset, size)

    def write(self, offset: int, chunks: Sequence[bytes]) -> None:
        self._storage.begin_call("write", self.path)
        data = b"".join(chunks)
        self._storage.record("write", self.path, offset, len(data))
        with self._storage.guard:
            self._content.write(offset, data)

    def sync(self) -> None:
        self._storage.begin_call("sync", self.path)
        self._storage.record("sync", self.path)

    def allocate(self, offset: int, size: int) -> None:
        self._storage.begin_call("allocate", self.path)
        self._storage.record("allocate", self.path, offset, size)
        with self._storage.guard:
            self._content.size = max(self._content.size, offset + size)

    def truncate(self, size: int) -> None:
        self._storage.begin_call("truncate", self.path)
        self._storage.record("truncate", self.path, 0, size)
        with self._storage.guard:
            self._content.truncate(size)

    def size(self) -> int:
        self._storage.begin_call("size", self.path)
        return self._content.size

    def next_data(self, offset: int) -> int | None:
        self._storage.begin_call("next_data", self.path)
        with self._storage.guard:
            numbers = [number for number in self._content.pages if (number + 1) * _Content.PAGE > offset]
        return max(offset, min(numbers) * _Content.PAGE) if numbers else None

    def close(self) -> None:
        """Nothing is held that would have to be let go."""


class MemoryLock:
    """A lock that is held as long as its file's path is in ``locked``."""

    def __init__(self, locked: set[str], file: StorageFile) -> None:
        self._locked = locked
        self._file = file

    def read(self) -> bytes:
        return self._file.read(0, self._file.size())

    def write(self, data: bytes) -> None:
        self._file.write(0, [data])
        if self._file.size() != len(data):
            self._file.truncate(len(data))
        self._file.sync()

    def release(self) -> None:
        self._locked.discard(self._file.path)

    def leave_to_parent(self) -> None:
        """In the child's copy of this file system nobody holds it."""
        self.release()


class MemoryStorage:
    """A file system in memory.

    ``calls`` holds every call that changes or syncs something, in order; ``reads`` counts those that read.
    :meth:`begin_call` hears of all calls of any kind. ``free_space`` and ``used_space`` are what it says of its room.
    """

    def __init__(self) -> None:
        self.free_space = 1 << 40
        self.used_space = 0
        self.calls: list[StorageCall] = []
        self.reads = 0
        self.guard = threading.RLock()
        self.locked: set[str] = set()
        self._files: dict[str, _Content] = {}
        self._directories: set[str] = {"/"}

    def copy(self) -> MemoryStorage:
        """Another one that holds the same files; its calls and locks begin anew."""
        other = MemoryStorage()
        other.take(self)
        return other

    def take(self, other: MemoryStorage) -> None:
        """Hold what the other one does, instead of what is there."""
        with other.guard:
            self._directories = set(other._directories)
            self._files = {path: content.copy() for path, content in other._files.items()}

    def begin_call(self, name: str, path: str) -> None:
        """Called before anything is done, with the name of the method and the path; what it raises the call raises.

        ``name`` is ``read``, ``write``, ``sync``, ``allocate``, ``truncate``, ``size``, ``next_data``, ``open``,
        ``create`` (opening what is not there yet), ``exists``, ``list_directory``, ``is_directory``,
        ``make_directories``, ``rename``, ``remove``, ``sync_directory``, ``disk_usage`` or ``lock``.
        """

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        with self.guard:
            self.calls.append(StorageCall(name, path, offset, size))

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        with self.guard:
            self.begin_call("open" if path in self._files else "create", path)
            if path not in self._files:
                if not create or os.path.dirname(path) not in self._directories:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                self.record("create", path)
                self._files[path] = _Content()
            return _MemoryFile(self, path, self._files[path])

    def exists(self, path: str) -> bool:
        self.begin_call("exists", path)
        return path in self._files or path in self._directories

    def list_directory(self, path: str) -> list[str]:
        self.begin_call("list_directory", path)
        with self.guard:
            return sorted(
                os.path.basename(name) for name in (*self._files, *self._directories) if os.path.dirname(name) == path
            )

    def is_directory(self, path: str) -> bool:
        self.begin_call("is_directory", path)
        return path in self._directories

    def make_directories(self, path: str, *, private: bool = False) -> None:
        self.begin_call("make_directories", path)
        with self.guard:
            while path not in self._directories:
                self.record("make directory", path)
                self._directories.add(path)
                path = os.path.dirname(path)

    def make_private_file(self, path: str) -> StorageFile:
        """Nobody else is here."""
        if self.exists(path):
            self.remove(path)
        return self.open(path, create=True)

    def rename(self, source: str, target: str) -> None:
        self.begin_call("rename", source)
        with self.guard:
            if source not in self._files:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
            self.record("rename", target)
            self._files[target] = self._files.pop(source)

    def remove(self, path: str) -> None:
        self.begin_call("remove", path)
        with self.guard:
            if path not in self._files:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.record("remove", path)
            del self._files[path]

    def sync_directory(self, path: str) -> None:
        self.begin_call("sync_directory", path)
        self.record("sync directory", path)

    def disk_usage(self, path: str) -> DiskUsage:
        self.begin_call("disk_usage", path)
        return DiskUsage(self.used_space, self.free_space)

    def lock(self, path: str) -> LockHandle:
        self.begin_call("lock", path)
        with self.guard:
            if path in self.locked:
                raise StoreLockedError(os.path.dirname(path))
            file = self.open(path, create=True)
            self.locked.add(path)
            return MemoryLock(self.locked, file)
