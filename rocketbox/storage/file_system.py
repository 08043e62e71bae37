"""What the library asks of a file system, and the machine's own.

What the broker's store and the client do to files goes through :class:`Storage`, so that tests can put in one that
fails or forgets. Which file holds what, and when it must be synced, is left to the callers. Calls block; several
threads may make them, though never two on one file's same bytes. Paths are text.

Errors are the operating system's own (OSError), but for a lock that another process holds. Directories may be
symbolic links, as where a store's log is on another disk; files may not.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rocketbox.errors import StoreLockedError

__all__ = [
    "DiskUsage",
    "LockHandle",
    "RealStorage",
    "SharedLock",
    "Storage",
    "StorageFile",
]


LINK_IN_THE_WAY = "a symbolic link stands in place of the file; put the file itself there (directories may be links)"


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


@dataclass(frozen=True)
class DiskUsage:
    """How many bytes of a file system are used, and free for us; what is kept for the system is neither."""

    used: int
    free: int

    @property
    def used_ratio(self) -> float:
        """Per cent of both that are used, as ``df`` says it."""
        return 100 * self.used / max(1, self.used + self.free)


class LockHandle(Protocol):
    """A lock that is held until :meth:`release`, or until the process ends.

    What the locked file holds is read and written through it alone: the kernel drops a process' record locks on a file
    when the process closes any descriptor of it.
    """

    def read(self) -> bytes:
        """All that the file holds."""

    def write(self, data: bytes) -> None:
        """Return when the file holds this, and nothing else, on the disk."""

    def release(self) -> None: ...

    def leave_to_parent(self) -> None:
        """In a child of fork, which does not hold it: let go of the file, and do not stand in the way of the child."""


class SharedLock(Protocol):
    """A lock of somebody who reads; brokers are kept out until :meth:`release`."""

    def read(self) -> bytes:
        """All that the file holds."""

    def release(self) -> None: ...


class Storage(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        """Open for reading and writing. ``create`` makes a new, empty file if there is none.

        A symbolic link in its place is not followed: OSError with errno ELOOP.
        """

    def exists(self, path: str) -> bool: ...

    def list_directory(self, path: str) -> list[str]:
        """The sorted names in a directory; none if it does not exist."""

    def is_directory(self, path: str) -> bool: ...

    def make_directories(self, path: str, *, private: bool = False) -> None:
        """Make the directory and its parents where missing, and sync the parent of each one made.

        A private one is open to its owner alone; its parents, and one that is there, are as they are.
        """

    def make_private_file(self, path: str) -> StorageFile:
        """A new, empty file which its owner alone may read and write, from its first moment; what was there is gone.

        Who may list the directory could otherwise open it before its mode is changed, and read what is written later.
        """

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory are on the disk (fsync)."""

    def disk_usage(self, path: str) -> DiskUsage:
        """How full the file system is that holds a path."""

    def lock(self, path: str) -> LockHandle:
        """Take the record lock on the file's first byte, as Apache's broker does. Raises StoreLockedError.

        The file is made if there is none; what it holds stays.
        """


def _open(path: str, flags: int, mode: int = 0o644) -> int:
    """Open a file, and not what a symbolic link in its place leads to: that would be written over."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise OSError(errno.ELOOP, LINK_IN_THE_WAY, path) from None
        raise


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
            fd = _open(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
                found = os.fstat(fd)
            except OSError as error:
                os.close(fd)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise StoreLockedError(directory) from error
                raise
            self._fd = fd
            self._file = path
            self._key = (found.st_dev, found.st_ino)
            self._held.add(self._key)

    def read(self) -> bytes:
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0)

    def write(self, data: bytes) -> None:
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError(errno.EIO, "a write was cut short", self._file)
        os.ftruncate(self._fd, len(data))
        os.fsync(self._fd)

    def release(self) -> None:
        with self._guard:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self._held.discard(self._key)

    def leave_to_parent(self) -> None:
        _RealLock._guard = threading.Lock()  # whatever thread held it, it is not here
        self.release()


class _SharedLock:
    """A record lock that others may hold too, who only read; a broker cannot take its own meanwhile."""

    def __init__(self, path: str) -> None:
        with _RealLock._guard:
            found = os.stat(path)
            if (found.st_dev, found.st_ino) in _RealLock._held:
                raise StoreLockedError(os.path.dirname(path))
            self._fd = _open(path, os.O_RDONLY)
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            except OSError as error:
                os.close(self._fd)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise StoreLockedError(os.path.dirname(path)) from error
                raise

    def read(self) -> bytes:
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0)

    def release(self) -> None:
        with _RealLock._guard:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class RealStorage:
    """The machine's file system. ``read_only``: files are opened for reading, whatever is done with them."""

    def __init__(self, *, read_only: bool = False) -> None:
        self._mode = os.O_RDONLY if read_only else os.O_RDWR

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        return _RealFile(path, _open(path, self._mode | (os.O_CREAT if create else 0)))

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

    def make_directories(self, path: str, *, private: bool = False) -> None:
        if self.is_directory(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_directories(parent)
        try:
            os.mkdir(path, 0o700 if private else 0o777)
        except FileExistsError:
            if not self.is_directory(path):
                raise
        try:
            self.sync_directory(parent)
        except OSError:
            os.rmdir(path)  # one that is there counts as synced: the next attempt makes it again
            raise

    def make_private_file(self, path: str) -> StorageFile:
        if os.path.islink(path):  # is refused, as everywhere
            raise OSError(errno.ELOOP, LINK_IN_THE_WAY, path)
        with suppress(FileNotFoundError):
            os.remove(path)
        return _RealFile(path, _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR))

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

    def disk_usage(self, path: str) -> DiskUsage:
        found = os.statvfs(path)
        return DiskUsage((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_bavail * found.f_frsize)

    def lock(self, path: str) -> LockHandle:
        return _RealLock(path)

    def lock_shared(self, path: str) -> SharedLock | None:
        """Keep brokers from taking the lock, without a change to the file; None where there is no such file.

        Raises StoreLockedError when a broker has it.
        """
        return _SharedLock(path) if self.exists(path) else None
