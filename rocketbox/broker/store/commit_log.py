"""The commit log: the records of all topics one behind the other, in files of one size.

A record never spans files. A file ends with a blank: the bytes that are left (i32, at least 8) and the magic number
0xCBD43194, the rest arbitrary. Unused bytes are zero.

    file   = record* blank            (all but the last)
    record = size i32, magic i32 (0xDAA320A7, or 0xDAA320AB for topics above 127 bytes), ... see protocol.stored_message

Holds appending to a buffer, writing it, and reading. When to write and sync, and what follows from an error, is left to
``log_writer``, finding the end after a crash to ``recovery``. A file is synced before the next one is begun.

A write has two steps. What may find no room (making the file, having bytes set aside, opening) comes first: when that
fails nothing was written, and the records may be taken back. From the first written byte on they may not be: bytes of
theirs lie behind the log's end, where a shorter record over them would uncover what looks like the next one.

Source: Apache RocketMQ 5.x ``CommitLog``, ``CommitLog.DefaultAppendMessageCallback``.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass, field

from rocketbox.broker.store.files import NO_ROOM, FileRun, OpenFiles, SyncFailedError
from rocketbox.broker.store.options import BLANK_BYTES, StoreOptions
from rocketbox.broker.store.records import (
    BLANK_MAGIC,
    MAGICS,
    MIN_RECORD_BYTES,
    check_record,
    sound_records,
)
from rocketbox.errors import InvalidMessageError, StoreCorruptError, StoreError
from rocketbox.storage.file_system import StorageFile

__all__ = ["CommitLog", "NotPreparedError", "Segment", "WriteFullError"]

READ_BYTES = 256 << 10  # of the log that are read at once to dispatch it again
_BLANK = struct.Struct(">iI")
_HEAD = struct.Struct(">II")
_NO_ALLOCATION = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})  # a file system that cannot set aside


class NotPreparedError(Exception):
    """There is no place for bytes; none of them was written. ``what`` was tried, ``error`` is why it failed."""

    def __init__(self, what: str, error: OSError) -> None:
        self.what = what
        self.error = error
        super().__init__(f"{what}: {error}")


class WriteFullError(Exception):
    """The disk was full in the middle of a write: the same bytes must be written again, to the same place."""

    def __init__(self, what: str, error: OSError) -> None:
        self.what = what
        self.error = error
        super().__init__(f"{what}: {error}")


@dataclass
class Segment:
    """Bytes to write that lie in one file."""

    offset: int
    chunks: list[bytes] = field(default_factory=list)
    begun: bool = False
    """Some of it may be in the file."""


class CommitLog:
    """The log. ``end`` is where the next record goes; files have it up to ``written``, the disk up to ``synced``."""

    def __init__(self, files: OpenFiles, directory: str, options: StoreOptions) -> None:
        self.run = FileRun(files, directory, options.mapped_file_size_commit_log, "mapped-file-size-commit-log")
        self.end = 0
        self.written = 0
        self.synced = 0
        self._file_end = 0  # of the file that ``end`` lies in
        self._segments: list[Segment] = []
        self._allocate_ahead = options.allocate_ahead
        self._allocated = 0
        self._buffer = Segment(0)
        self._file: StorageFile | None = None  # the last one, held open: no shortage of files can end a write

    @property
    def start(self) -> int:
        return self.run.start

    def open_at(self, end: int) -> None:
        """Go on at ``end``, up to which all is written and synced."""
        self.written = self.synced = self._allocated = end
        self._file = None
        self.take_back(end)

    def take_back(self, end: int) -> None:
        """Forget what was appended from ``end`` on, of which nothing is written."""
        self.end = end
        self._file_end = self.run.file_start(end) + self.run.file_size
        self._segments = []
        self._buffer = Segment(end)

    def close(self) -> None:
        """Close the file that is held open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def fits(self, size: int) -> bool:
        """Whether that many bytes fit into the file at ``end``; if not, :meth:`roll` before.

        Raises InvalidMessageError for what would fit into no file.
        """
        if self.end + size + BLANK_BYTES <= self._file_end:
            return True
        if size + BLANK_BYTES > self.run.file_size:
            raise InvalidMessageError(
                f"a record of {size} bytes does not fit into a commit-log file of {self.run.file_size} bytes; "
                "send less at once, or raise mapped-file-size-commit-log (for a new store)"
            )
        return False

    @property
    def file_limit(self) -> int:
        """Up to where records may reach in the file at ``end``."""
        return self._file_end - BLANK_BYTES

    def roll(self) -> None:
        """Close the file with a blank; ``end`` is then the start of the next."""
        self._buffer.chunks.append(_BLANK.pack(self._file_end - self.end, BLANK_MAGIC))
        self._segments.append(self._buffer)
        self.end = self._file_end
        self._file_end += self.run.file_size
        self._buffer = Segment(self.end)

    def append(self, record: bytes) -> int:
        """Add a record, which was encoded for ``end``, to the buffer; returns its offset."""
        offset = self.end
        self._buffer.chunks.append(record)
        self.end = offset + len(record)
        return offset

    @property
    def has_unwritten(self) -> bool:
        return self.end > self.written

    def take(self) -> list[Segment]:
        """The bytes that are to be written, which are no longer in the buffer."""
        segments, self._segments = self._segments, []
        if self._buffer.chunks:
            segments.append(self._buffer)
            self._buffer = Segment(self.end)
        return segments

    def is_plain(self, segments: list[Segment], end: int) -> bool:
        """Whether writing needs neither a new file nor more allocated bytes, so that it takes microseconds."""
        return len(segments) == 1 and end <= self._allocated and self._file is not None

    def write(self, segments: list[Segment]) -> None:
        """Write what was taken, and remove from the list what is written; blocks.

        Raises NotPreparedError when there is no place for what is left, WriteFullError when the disk was full in the
        middle, and OSError for an error of a write or sync, after which nobody knows what is on the disk.
        """
        while segments:
            segment = segments[0]
            file = self.prepare(segment.offset, segment.offset + sum(map(len, segment.chunks)))
            segment.begun = True
            try:
                file.write(segment.offset - self.run.starts[-1], segment.chunks)
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise WriteFullError(f"writing {file.path}", error) from error
                raise
            del segments[0]

    def prepare(self, offset: int, end: int) -> StorageFile:
        """The file for bytes from ``offset`` to ``end``, made if need be, with room set aside for them; blocks.

        Raises as :meth:`write` does; for a sync, of the file before, SyncFailedError.
        """
        run = self.run
        if not run.starts or offset >= run.limit:
            return self._begin_file(offset, end)
        path = run.path(run.starts[-1])
        if self._file is None:
            try:
                self._file = run.file(run.starts[-1])
            except OSError as error:
                raise NotPreparedError(f"opening {path}", error) from error
        self._allocate(self._file, run.starts[-1], end)
        return self._file

    def _begin_file(self, offset: int, end: int) -> StorageFile:
        run = self.run
        start = run.limit if run.starts else offset - offset % run.file_size
        if run.starts:
            self.sync()
        try:
            file = run.add(start)
        except SyncFailedError:
            raise
        except OSError as error:
            raise NotPreparedError(f"making {run.path(start)}", error) from error
        self._file = file
        self._allocated = offset
        self._allocate(file, start, end)
        return file

    def _allocate(self, file: StorageFile, start: int, end: int) -> None:
        """Have room set aside up to ``end``, ahead of it if there is so much."""
        if self._allocated >= end:
            return
        size = min(max(self._allocate_ahead, end - self._allocated), self.run.limit - self._allocated)
        if self._allocate_ahead:
            try:
                file.allocate(self._allocated - start, size)
            except OSError as error:
                if error.errno in _NO_ALLOCATION:
                    self._allocate_ahead = 0
                elif size == end - self._allocated or error.errno not in NO_ROOM:
                    raise NotPreparedError(f"setting aside {size} bytes of {file.path}", error) from error
                else:
                    size = end - self._allocated
                    self._allocate_exactly(file, self._allocated - start, size)
        self._allocated += size

    @staticmethod
    def _allocate_exactly(file: StorageFile, position: int, size: int) -> None:
        try:
            file.allocate(position, size)
        except OSError as error:
            raise NotPreparedError(f"setting aside {size} bytes of {file.path}", error) from error

    def sync(self) -> None:
        """Sync the last file; those before were synced when it began. Blocks.

        Raises SyncFailedError, and NotPreparedError when the file cannot be opened for it.
        """
        file = self._file
        if file is None:
            if not self.run.starts:
                return
            path = self.run.path(self.run.starts[-1])
            try:
                file = self._file = self.run.file(self.run.starts[-1])
            except OSError as error:
                raise NotPreparedError(f"opening {path}", error) from error
        try:
            file.sync()
        except OSError as error:
            raise SyncFailedError.of(error) from error

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from the files; nothing outside of them."""
        if not self.run.start <= offset < self.run.limit:
            return b""
        try:
            return self.run.read(offset, size)
        except (StoreError, FileNotFoundError):
            if offset < self.run.start:  # retention has removed the file meanwhile
                return b""
            raise

    def read_records(self, offset: int, end: int) -> tuple[list[tuple[int, bytes]], int]:
        """Records from ``offset`` on, each with its offset, up to ``end`` or some of them; and where the next begins.

        Each is checked. Raises StoreCorruptError when the first is not whole.
        """
        while offset < end:
            data = self.read(offset, min(READ_BYTES, end - offset))
            found, behind = sound_records(data, offset)
            space = self.run.file_start(behind) + self.run.file_size - behind
            if data[behind - offset : behind - offset + BLANK_BYTES] == _BLANK.pack(space, BLANK_MAGIC):
                behind += space
            if found:
                return found, behind
            if behind == offset:
                return [(offset, record := self._read_record(offset, end))], offset + len(record)
            offset = behind
        return [], offset

    def _read_record(self, offset: int, end: int) -> bytes:
        """The record there, whatever its size; raises StoreCorruptError if there is none."""
        head = self.read(offset, _HEAD.size)
        size, magic = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
        space = self.run.file_start(offset) + self.run.file_size - offset
        if magic not in MAGICS or not MIN_RECORD_BYTES <= size <= min(space, end - offset):
            raise self._damaged(offset, "no record begins there")
        record = self.read(offset, size)
        wrong = "the file ends within it" if len(record) < size else check_record(record, offset)
        if wrong is not None:
            raise self._damaged(offset, wrong)
        return record

    def _damaged(self, offset: int, reason: str) -> StoreCorruptError:
        start = self.run.file_start(offset)
        return StoreCorruptError(self.run.path(start), offset - start, reason)
