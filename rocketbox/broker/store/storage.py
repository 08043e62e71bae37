"""What the store asks of a file system, and two of them: the machine's, and one in memory that records every call.

Everything the store does to files goes through :class:`Storage`, so that tests can put in one that fails or forgets.
Which file holds what, and when it must be synced, is left to the callers. Calls block; several threads may make them,
though never two on one file's same bytes. Paths are text.

Errors are the operating system's own (OSError), but for a lock that another process holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rocketbox.errors import StoreLockedError

__all__ = [
    "LockHandle",
    "MemoryStorage",
    "RealStorage",
    "Storage",
    "StorageCall",
    "StorageFile",
]


class StorageFile(Protocol):
    """One open file. It is closed by :meth:`close`, or when nothing refers to it any more."""

    path: str

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer at the end of the file."""

    def write(self, offset: int, chunks: Sequence[bytes]) -> None:
        """Write all of the chunks, joined, at ``offset``."""

    def sync(self) -> None:
        """Return when the data written so far is on the disk (fdatasync)."""

    def allocate(self, offset: int, size: int) -> None:
        """Have the disk's blocks for these bytes set aside, so that writing them cannot find it full."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def next_data(self, offset: int) -> int | None:
        """Where, at or behind ``offset``, the next bytes may be that are not zero; None when there are none."""

    def close(self) -> None: ...


class LockHandle(Protocol):
    """A lock that is held until :meth:`release`, or until the process ends."""

    def release(self) -> None: ...


class Storage(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        """Open for reading and writing. ``create`` makes a new, empty file if there is none."""

    def exists(self, path: str) -> bool: ...

    def list_directory(self, path: str) -> list[str]:
        """The sorted names in a directory; none if it does not exist."""

    def is_directory(self, path: str) -> bool: ...

    def make_directories(self, path: str) -> None:
        """Make the directory and its parents where missing, and sync the parent of each one made."""

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory are on the disk (fsync)."""

    def lock(self, path: str) -> LockHandle:
        """Take the record lock on the file's first byte, as Apache's broker does. Raises StoreLockedError."""


# --- the machine's -----------------------------------------------------------------------------------------------


class _RealFile:
    """An open file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        while 0 < len(data) < size:  # a read may be cut short, by a signal or at 2 GiB
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, offset: int, chunks: Sequence[bytes]) -> None:
        # One write of the joined chunks is faster than writev, and far faster than mmap: benchmark "store append".
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        written = os.pwrite(self._fd, data, offset)
        while written < len(data):
            more = os.pwrite(self._fd, memoryview(data)[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "a write wrote nothing", self.path)
            written += more

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def allocate(self, offset: int, size: int) -> None:
        os.posix_fallocate(self._fd, offset, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def next_data(self, offset: int) -> int | None:
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that does not know its holes
                return offset if offset < self.size() else None
            raise

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Files that a cache has let go may still be in use by another thread: the last reference closes.
        self.close()


class _RealLock:
    """A POSIX record lock. The kernel gives it to a process as a whole, so those of this process are kept here too."""

    _held: ClassVar[set[tuple[int, int]]] = set()  # (device, inode) of the files this process has locked
    _guard = threading.Lock()

    def __init__(self, path: str) -> None:
        directory = os.path.dirname(path)
        with self._guard:
            try:
                found = os.stat(path)
            except FileNotFoundError:
                pass
            else:
                if (found.st_dev, found.st_ino) in self._held:  # opening and closing it would drop the kernel's lock
                    raise StoreLockedError(directory)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
                os.pwrite(fd, b"lock", 0)
                found = os.fstat(fd)
            except OSError as error:
                os.close(fd)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise StoreLockedError(directory) from error
                raise
            self._fd = fd
            self._key = (found.st_dev, found.st_ino)
            self._held.add(self._key)

    def release(self) -> None:
        with self._guard:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self._held.discard(self._key)


class RealStorage:
    """The machine's file system."""

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _RealFile(path, os.open(path, flags, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list_directory(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_directory(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except FileNotFoundError:
            return False

    def make_directories(self, path: str) -> None:
        if self.is_directory(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_directories(parent)
        try:
            os.mkdir(path)
        except FileExistsError:
            if not self.is_directory(path):
                raise
        self.sync_directory(parent)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> LockHandle:
        return _RealLock(path)


# --- in memory ---------------------------------------------------------------------------------------------------


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

    def read(self, offset: int, size: int) -> bytes:
        size = max(0, min(size, self.size - offset))
        return b"".join(bytes(self.PAGE)[:length] if page is None else bytes(page[start : start + length])
                        for page, start, length in self._parts(offset, size))  # fmt: skip

    def write(self, offset: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            number, start = divmod(offset + done, self.PAGE)
            page = self.pages.setdefault(number, bytearray(self.PAGE))
            length = min(self.PAGE - start, len(data) - done)
            page[start : start + length] = data[done : done + length]
            done += length
        self.size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        if size < self.size:
            last, start = divmod(size, self.PAGE)
            self.pages = {number: page for number, page in self.pages.items() if number <= last}
            if last in self.pages:
                self.pages[last][start:] = bytes(self.PAGE - start)
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
        with self._storage.guard:
            self._storage.reads += 1
            return self._content.read(offset, size)

    def write(self, offset: int, chunks: Sequence[bytes]) -> None:
        data = b"".join(chunks)
        self._storage.record("write", self.path, offset, len(data))
        with self._storage.guard:
            self._content.write(offset, data)

    def sync(self) -> None:
        self._storage.record("sync", self.path)

    def allocate(self, offset: int, size: int) -> None:
        self._storage.record("allocate", self.path, offset, size)
        with self._storage.guard:
            self._content.size = max(self._content.size, offset + size)

    def truncate(self, size: int) -> None:
        self._storage.record("truncate", self.path, 0, size)
        with self._storage.guard:
            self._content.truncate(size)

    def size(self) -> int:
        return self._content.size

    def next_data(self, offset: int) -> int | None:
        with self._storage.guard:
            numbers = [number for number in self._content.pages if (number + 1) * _Content.PAGE > offset]
        return max(offset, min(numbers) * _Content.PAGE) if numbers else None

    def close(self) -> None:
        """Nothing is held that would have to be let go."""


class _MemoryLock:
    def __init__(self, storage: MemoryStorage, path: str) -> None:
        self._storage = storage
        self._path = path

    def release(self) -> None:
        self._storage.locked.discard(self._path)


class MemoryStorage:
    """A file system in memory.

    ``calls`` holds every call that changes or syncs something, in order; ``reads`` counts those that read.
    """

    def __init__(self) -> None:
        self.calls: list[StorageCall] = []
        self.reads = 0
        self.guard = threading.RLock()
        self.locked: set[str] = set()
        self._files: dict[str, _Content] = {}
        self._directories: set[str] = {"/"}

    def copy(self) -> MemoryStorage:
        """Another one that holds the same files; its calls and locks begin anew."""
        other = MemoryStorage()
        with self.guard:
            other._directories = set(self._directories)
            for path, content in self._files.items():
                other._files[path] = _Content()
                other._files[path].size = content.size
                other._files[path].pages = {number: bytearray(page) for number, page in content.pages.items()}
        return other

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        with self.guard:
            self.calls.append(StorageCall(name, path, offset, size))

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        with self.guard:
            if path not in self._files:
                if not create or os.path.dirname(path) not in self._directories:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                self.record("create", path)
                self._files[path] = _Content()
            return _MemoryFile(self, path, self._files[path])

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def list_directory(self, path: str) -> list[str]:
        with self.guard:
            return sorted(
                os.path.basename(name) for name in (*self._files, *self._directories) if os.path.dirname(name) == path
            )

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def make_directories(self, path: str) -> None:
        with self.guard:
            while path not in self._directories:
                self.record("make directory", path)
                self._directories.add(path)
                path = os.path.dirname(path)

    def rename(self, source: str, target: str) -> None:
        with self.guard:
            if source not in self._files:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
            self.record("rename", target)
            self._files[target] = self._files.pop(source)

    def remove(self, path: str) -> None:
        with self.guard:
            if path not in self._files:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.record("remove", path)
            del self._files[path]

    def sync_directory(self, path: str) -> None:
        self.record("sync directory", path)

    def lock(self, path: str) -> LockHandle:
        with self.guard:
            if path in self.locked:
                raise StoreLockedError(os.path.dirname(path))
            self.open(path, create=True).write(0, [b"lock"])
            self.locked.add(path)
            return _MemoryLock(self, path)
