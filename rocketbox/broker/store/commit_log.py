"""The commit log: the records of all topics one behind the other, in files of one size.

A record never spans files. A file ends with a blank: the bytes that are left (i32, at least 8) and the magic number
0xCBD43194, the rest arbitrary. Unused bytes are zero.

    file   = record* blank            (all but the last)
    record = size i32, magic i32 (0xDAA320A7, or 0xDAA320AB for topics above 127 bytes), ... see protocol.stored_message

Holds appending to a buffer, writing it, and reading. When to write and sync is left to ``message_store``, finding the
end after a crash to ``recovery``. A file is synced before anything is written to the next.

Source: Apache RocketMQ 5.x ``CommitLog``, ``CommitLog.DefaultAppendMessageCallback``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.options import BLANK_BYTES, StoreOptions
from rocketbox.broker.store.records import BLANK_MAGIC
from rocketbox.errors import InvalidMessageError

__all__ = ["CommitLog", "Segment"]

_BLANK = struct.Struct(">iI")


@dataclass
class Segment:
    """Bytes to write that lie in one file."""

    offset: int
    chunks: list[bytes] = field(default_factory=list)


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

    @property
    def start(self) -> int:
        return self.run.start

    def open_at(self, end: int) -> None:
        """Go on at ``end``, up to which all is written and synced."""
        self.end = self.written = self.synced = self._allocated = end
        self._file_end = self.run.file_start(end) + self.run.file_size
        self._segments = []
        self._buffer = Segment(end)

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
        return len(segments) == 1 and end <= self._allocated and segments[0].offset < self.run.limit

    def write(self, segments: list[Segment]) -> None:
        """Write what was taken; blocks. Files are made, and bytes allocated, as needed. Raises OSError."""
        run = self.run
        for segment in segments:
            if not run.starts or segment.offset >= run.limit:
                run.sync_last()
                run.add(segment.offset - segment.offset % run.file_size if not run.starts else run.limit)
                self._allocated = segment.offset
            file = run.file(segment.offset)
            start = run.starts[-1]
            end = segment.offset + sum(map(len, segment.chunks))
            while self._allocated < end:
                size = min(max(self._allocate_ahead, end - self._allocated), run.limit - self._allocated)
                if self._allocate_ahead:
                    file.allocate(self._allocated - start, size)
                self._allocated += size
            file.write(segment.offset - start, segment.chunks)

    def sync(self) -> None:
        """Sync the last file; those before were synced when it began. Blocks. Raises OSError."""
        self.run.sync_last()

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from the files; nothing outside of them."""
        if not self.run.start <= offset < self.run.limit:
            return b""
        return self.run.read(offset, size)
