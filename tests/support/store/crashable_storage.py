"""A file system in memory that knows what a power failure may leave of it: the crash states of tests.

What is written is in the page cache until its file is synced, and a name (create, rename, remove) until its directory
is. :meth:`CrashableStorage.images` are all disks that a crash at this moment may leave, :meth:`sample` is one of them:

*   of each sector of 512 bytes, any content that it had since the last sync of its file, whatever the other sectors
    have: writes are lost, come in any order, and are torn at sectors (and so at pages). A sector is never torn itself.
*   of each file, any length that it had since then, with zeros where nothing was written.
*   of each directory, any subset of what was done to its names since its last sync. A rename is done or not, never
    half. A file whose own data is synced is gone where its new name was not: POSIX promises no more.

``make_directories`` is done when it returns, as it syncs what it makes. Files are meant to be small: each version of
an un-synced file is kept whole. Equal disks are equal :class:`Image` values, which share their bytes.

``MemoryStorage`` of the product stands beside it: it keeps one content of each page and records calls, is fast and
holds what a long simulation writes. Here every version of a sector since the last sync is kept, which only small files
bear: one file system for both would be slow there, or blind here.

Model: Pebble's ``CrashClone`` and the ALICE paper (Pillai et al., OSDI 2014).
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rocketbox.errors import StoreLockedError
from rocketbox.storage.file_system import DiskUsage
from rocketbox.storage.memory_storage import MemoryLock

__all__ = ["CrashableStorage", "Image"]

SECTOR = 512
PAGE = 4096
MOST_CONTENTS = 4096  # of one file at one moment: a workload that leaves more is too large to be enumerated


@dataclass(frozen=True)
class Image:
    """What is on a disk: files by path, and directories."""

    files: Mapping[str, bytes]
    directories: frozenset[str]

    @property
    def key(self) -> tuple[frozenset[tuple[str, bytes]], frozenset[str]]:
        """Equal for equal disks."""
        return frozenset(self.files.items()), self.directories


@dataclass(eq=False)
class _Inode:
    """A file, whatever its names are. ``versions`` are its contents since its last sync, the first being the synced."""

    content: bytes | bytearray = b""
    """Bytes until it is changed: most files of a crash state are only read."""
    versions: list[bytes] = field(default_factory=lambda: [b""])
    contents: list[bytes] | None = None
    doubtful: set[int] = field(default_factory=set)
    """Where the sectors begin that a failed sync has left behind."""

    def copy(self) -> _Inode:
        return _Inode(bytes(self.content), list(self.versions), doubtful=set(self.doubtful))

    def to_change(self) -> bytearray:
        """The content, to be changed; :meth:`changed` is to be told."""
        if isinstance(self.content, bytes):
            self.content = bytearray(self.content)
        return self.content

    def changed(self) -> None:
        version = bytes(self.content)
        if version != self.versions[-1]:
            self.versions.append(version)
            self.contents = None

    def sync(self) -> None:
        """Every sector that was written since a failed sync, or before none failed, is on the disk now."""
        newest = self.versions[-1]
        left = [self._with_doubtful(version) for version in self.versions[:-1]] if self.doubtful else []
        self.versions = [*dict.fromkeys(version for version in left if version != newest), newest]
        self.contents = None

    def fail_sync(self) -> None:
        """What Linux does when a disk refuses pages: they count as written, no later sync tries them again."""
        size = max(map(len, self.versions))
        self.doubtful |= {start for start in range(0, size, SECTOR) if len(self._choices(start, SECTOR)) > 1}

    def written(self, offset: int, size: int) -> None:
        """Pages that are written anew are tried again."""
        self.doubtful -= set(range(offset // SECTOR * SECTOR, offset + size, SECTOR))

    def _with_doubtful(self, version: bytes) -> bytes:
        """The newest content, but for the doubtful sectors, which are as they were."""
        mixed = bytearray(self.versions[-1])
        for start in self.doubtful:
            end = min(start + SECTOR, len(mixed))
            mixed[start:end] = version[start:end].ljust(end - start, b"\0")
        return bytes(mixed)

    def possible(self) -> list[bytes]:
        """All contents that a crash may leave."""
        if self.contents is None:
            if len(self.versions) == 1:
                self.contents = self.versions
            else:
                sizes = sorted({len(version) for version in self.versions})
                sectors = [self._choices(start, SECTOR) for start in range(0, sizes[-1], SECTOR)]
                many = len(sizes)
                for choices in sectors:
                    many *= len(choices)
                assert many <= MOST_CONTENTS, f"{many} contents of one file are too many to be enumerated"
                found = dict.fromkeys(
                    b"".join(chosen)[:size] for size in sizes for chosen in itertools.product(*sectors)
                )
                self.contents = list(found)
        return self.contents

    def sample(self, chance: random.Random) -> bytes:
        """One of them: often the newest or the synced, else a version, or one torn at pages or sectors."""
        if len(self.versions) == 1:
            return self.versions[0]
        how = chance.randrange(6)
        if how == 0:
            return self.versions[-1]
        if how == 1:
            return self.versions[0]
        if how == 2:
            return chance.choice(self.versions)
        step = SECTOR if how > 3 else PAGE
        size = len(chance.choice(self.versions))
        return b"".join(chance.choice(self._choices(start, step)) for start in range(0, size, step))[:size]

    def _choices(self, start: int, size: int) -> list[bytes]:
        return list(dict.fromkeys(version[start : start + size].ljust(size, b"\0") for version in self.versions))


@dataclass
class _Directory:
    """Names and what they are of; ``synced`` are those of the last sync, ``pending`` what was done since.

    Each thing done is the names it sets, to None where it removes them.
    """

    synced: dict[str, _Inode] = field(default_factory=dict)
    pending: list[dict[str, _Inode | None]] = field(default_factory=list)

    def after(self, chosen: Sequence[dict[str, _Inode | None]]) -> dict[str, _Inode]:
        names: dict[str, _Inode | None] = {**self.synced}
        for change in chosen:
            names.update(change)
        return {name: inode for name, inode in names.items() if inode is not None}

    def possible(self) -> Iterator[dict[str, _Inode]]:
        for take in itertools.product((True, False), repeat=len(self.pending)):
            yield self.after(list(itertools.compress(self.pending, take)))

    def sample(self, chance: random.Random) -> dict[str, _Inode]:
        how = chance.randrange(4)
        if how == 0 or not self.pending:
            return self.after(self.pending)
        if how == 1:
            return self.after([])
        if how == 2:
            return self.after(self.pending[: chance.randrange(len(self.pending) + 1)])
        return self.after([change for change in self.pending if chance.random() < 0.5])


class _File:
    def __init__(self, storage: CrashableStorage, path: str, inode: _Inode) -> None:
        self.path = path
        self._storage = storage
        self._inode = inode

    def read(self, offset: int, size: int) -> bytes:
        with self._storage.guard:
            self._storage.begin("read", self.path, offset, size)
            return bytes(self._inode.content[offset : offset + size])

    def write(self, offset: int, chunks: Sequence[bytes]) -> None:
        data = b"".join(chunks)
        with self._storage.guard:
            self._storage.begin("write", self.path, offset, len(data))
            content = self._inode.to_change()
            if len(content) < offset:
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(data)] = data
            self._inode.written(offset, len(data))
            self._inode.changed()

    def sync(self) -> None:
        with self._storage.guard:
            try:
                self._storage.begin("sync", self.path)
            except OSError:
                self._inode.fail_sync()
                raise
            if self._storage.syncs:
                self._inode.sync()

    def allocate(self, offset: int, size: int) -> None:
        with self._storage.guard:
            self._storage.begin("allocate", self.path)
            content = self._inode.to_change()
            if len(content) < offset + size:
                content.extend(bytes(offset + size - len(content)))
                self._inode.changed()

    def truncate(self, size: int) -> None:
        with self._storage.guard:
            self._storage.begin("truncate", self.path)
            content = self._inode.to_change()
            if len(content) != size:
                del content[size:]
                content.extend(bytes(size - len(content)))
                self._inode.changed()

    def size(self) -> int:
        return len(self._inode.content)

    def next_data(self, offset: int) -> int | None:
        with self._storage.guard:
            rest = self._inode.content[offset:]
        skipped = len(rest) - len(rest.lstrip(b"\0"))
        if skipped == len(rest):
            return None
        return max(offset, (offset + skipped) // PAGE * PAGE)

    def close(self) -> None:
        """Nothing is held that would have to be let go."""


class CrashableStorage:
    """The file system. ``before_call`` is called before each call, with its name, the path, and where and how much is
    read or written; an OSError that it raises is the call's. ``open``, ``read`` and ``list`` change nothing.

    ``syncs`` set to False makes every sync of a file a lie, ``directory_syncs`` every sync of a directory.
    """

    def __init__(self, image: Image | None = None) -> None:
        self.guard = threading.RLock()
        self.before_call: Callable[[str, str, int, int], object] | None = None
        self.calls = 0
        self.syncs = True
        self.directory_syncs = True
        self.locked: set[str] = set()
        self._directories: dict[str, _Directory] = {"/": _Directory()}
        self._names: dict[str, _Inode] = {}  # of all directories, as a running program sees them
        if image is not None:
            for path in image.directories:
                self._directories[path] = _Directory()
            for path, content in image.files.items():
                inode = _Inode(content, [content])
                self._names[path] = self._directories[os.path.dirname(path)].synced[path] = inode

    # --- crashes ---

    def begin(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        self.calls += 1
        if self.before_call is not None:
            self.before_call(name, path, offset, size)

    def image(self) -> Image:
        """What a running program sees: what is left when the process is killed, and the machine goes on."""
        with self.guard:
            files = {path: inode.versions[-1] for path, inode in self._names.items()}
            return Image(files, frozenset(self._directories))

    def fork(self) -> CrashableStorage:
        """The same file system, as the next process finds it after a kill: unlocked, with all that is not synced."""
        with self.guard:
            other = CrashableStorage()
            copies = {inode: inode.copy() for inode in self._inodes()}
            other._names = {path: copies[inode] for path, inode in self._names.items()}
            other._directories = {
                path: _Directory(
                    {name: copies[inode] for name, inode in directory.synced.items()},
                    [{name: inode and copies[inode] for name, inode in change.items()} for change in directory.pending],
                )
                for path, directory in self._directories.items()
            }
            return other

    def _inodes(self) -> Iterator[_Inode]:
        yield from self._names.values()
        for directory in self._directories.values():
            yield from directory.synced.values()
            yield from (inode for change in directory.pending for inode in change.values() if inode is not None)

    def images(self) -> Iterator[Image]:
        """All that a power failure may leave now; some of them may be equal."""
        with self.guard:
            places = frozenset(self._directories)
            every = [list(directory.possible()) for directory in self._directories.values()]
            for chosen in itertools.product(*every):
                names = {path: inode for names in chosen for path, inode in names.items()}
                inodes = list(dict.fromkeys(names.values()))
                for contents in itertools.product(*[inode.possible() for inode in inodes]):
                    content = dict(zip(inodes, contents, strict=True))
                    yield Image({path: content[inode] for path, inode in names.items()}, places)

    def sample(self, chance: random.Random) -> Image:
        """One of those that a power failure may leave now."""
        with self.guard:
            files: dict[str, bytes] = {}
            contents: dict[_Inode, bytes] = {}
            for directory in self._directories.values():
                for path, inode in directory.sample(chance).items():
                    if inode not in contents:
                        contents[inode] = inode.sample(chance)
                    files[path] = contents[inode]
            return Image(files, frozenset(self._directories))

    # --- the file system ---

    def open(self, path: str, *, create: bool = False) -> _File:
        with self.guard:
            if path in self._names:
                self.begin("open", path)
            else:
                directory = self._directories.get(os.path.dirname(path))
                if not create or directory is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                self.begin("create", path)
                inode = self._names[path] = _Inode()
                directory.pending.append({path: inode})
            return _File(self, path, self._names[path])

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def list_directory(self, path: str) -> list[str]:
        with self.guard:
            self.begin("list", path)
            start = path.rstrip("/") + "/"
            names = [name[len(start) :] for name in (*self._names, *self._directories) if name.startswith(start)]
            return sorted(name for name in names if name and "/" not in name)

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def make_directories(self, path: str, *, private: bool = False) -> None:
        with self.guard:
            if path not in self._directories:
                self.make_directories(os.path.dirname(path))
                self.begin("make directory", path)
                self._directories[path] = _Directory()

    def make_private_file(self, path: str) -> _File:
        """Nobody else is here."""
        if self.exists(path):
            self.remove(path)
        return self.open(path, create=True)

    def rename(self, source: str, target: str) -> None:
        with self.guard:
            inode = self._existing(source)
            self.begin("rename", target)
            del self._names[source]
            self._names[target] = inode
            change: dict[str, _Inode | None] = {source: None, target: inode}
            if os.path.dirname(source) != os.path.dirname(target):
                raise NotImplementedError("a rename from one directory to another is not modelled")
            self._directories[os.path.dirname(target)].pending.append(change)

    def remove(self, path: str) -> None:
        with self.guard:
            self._existing(path)
            self.begin("remove", path)
            del self._names[path]
            self._directories[os.path.dirname(path)].pending.append({path: None})

    def _existing(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def sync_directory(self, path: str) -> None:
        with self.guard:
            self.begin("sync directory", path)
            directory = self._directories[path]
            if self.directory_syncs:
                directory.synced = directory.after(directory.pending)
                directory.pending.clear()

    def disk_usage(self, path: str) -> DiskUsage:
        return DiskUsage(0, 1 << 40)

    def lock(self, path: str) -> MemoryLock:
        with self.guard:
            self.begin("lock", path)
            if path in self.locked:
                raise StoreLockedError(os.path.dirname(path))
            file = self.open(path, create=True)
            self.locked.add(path)
        return MemoryLock(self.locked, file)
