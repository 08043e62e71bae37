"""Walking through a commit log that may be damaged: every intact record, and the gaps between them.

Where ``LogScan`` of a recovery stops, the walk looks for the next intact record in the file (its magic number, its own
offset, its checksum) and goes on there, but not within the body of the record that it stopped at: what a sender has
written there is no message. Nothing is changed, and nothing is decided: whether a gap is a torn tail or
damage is for the caller to say, who knows what the checkpoint says.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rocketbox.broker.store.files import FileRun, read_data
from rocketbox.broker.store.filler import is_filler
from rocketbox.broker.store.log_scan import LogScan, body_at
from rocketbox.broker.store.records import (
    CHECKSUM_BYTES,
    CHECKSUM_NAME,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    NO_CHECKSUM,
    check_record,
    has_whole_properties,
)

__all__ = ["Gap", "next_intact", "walk_log"]

_HEAD = struct.Struct(">II20xq")  # size, magic, own offset
_SIGNS = tuple(struct.pack(">I", magic) for magic in (MAGIC_V1, MAGIC_V2))


@dataclass(frozen=True)
class Gap:
    """Bytes of the log, from ``offset`` to ``end``, that hold no intact record."""

    offset: int
    end: int
    """Where the next intact record, or the next file, begins."""
    reason: str
    missing_file: bool = False


def walk_log(
    run: FileRun,
    start: int,
    until: int | None = None,
    on_window: Callable[[int], None] | None = None,
    *,
    checksums_from: int = -1,
) -> Iterator[tuple[int, bytes] | Gap]:
    """(offset, record) of every intact record from ``start`` on, and the gaps, in the order of the log.

    Without ``until`` the log ends where only zeros follow in its last file; with it, before the first record that
    begins there or behind. ``start`` is that of a record, or of a file. From ``checksums_from`` on, unless it is
    negative, a record whose checksum was torn off is not intact; one that another broker wrote is. Blocks.
    """
    starts = list(run.starts)  # a copy: files may be removed, or added, while this goes on
    before = None
    for file_start in starts:
        if before is not None and file_start > before + run.file_size > start:
            yield Gap(before + run.file_size, file_start, "the file is missing", missing_file=True)
        before = file_start
        if file_start + run.file_size <= start:
            continue
        if until is not None and file_start >= until:
            return
        first = max(start, file_start)
        try:
            for step in _walk_file(run.only(file_start), first, until, file_start == starts[-1], on_window):
                if isinstance(step, Gap) and step.end >= file_start + run.only(file_start).file_size:
                    step = replace(step, end=file_start + run.file_size)  # of a file that is cut short
                if not isinstance(step, Gap) and 0 <= checksums_from <= step[0] and _is_torn(step[1]):
                    step = Gap(step[0], step[0] + len(step[1]), NO_CHECKSUM)
                yield step
        except FileNotFoundError:
            if file_start in run.starts:
                yield Gap(first, file_start + run.file_size, "the file is missing", missing_file=True)
            # else retention has removed it meanwhile


def _is_torn(record: bytes) -> bool:
    """Whether a record has lost its checksum with the end of its properties, which others have whole."""
    if record.startswith(CHECKSUM_NAME, -CHECKSUM_BYTES) or is_filler(record):
        return False
    return not has_whole_properties(record)


def _walk_file(
    run: FileRun, offset: int, until: int | None, last: bool, on_window: Callable[[int], None] | None
) -> Iterator[tuple[int, bytes] | Gap]:
    if run.file_size == 0:
        if not last:
            yield Gap(run.start, run.start, "the file is empty")
        return
    while offset < run.limit and (until is None or offset < until):
        scan = LogScan(run, offset, on_window=on_window)
        for place, record in scan:
            if until is not None and place >= until:
                return
            yield place, record
        offset = scan.end
        if offset >= run.limit or (until is not None and offset >= until):
            return
        found = next_intact(run, offset + 1, leave_out=body_at(run, offset))
        if found is None:
            if not last or scan.reason is not None or not _is_zero(run, offset):
                yield Gap(offset, run.limit, scan.reason or "zeros, where a record or the end of the file should be")
            return
        yield Gap(offset, found, scan.reason or "the bytes are zero")
        offset = found


def next_intact(run: FileRun, offset: int, *, leave_out: range = range(0)) -> int | None:
    """Where the next intact record begins, at or behind ``offset`` in its file; None when there is none.

    None that begins in the bytes to ``leave_out``, which are known to be no records.
    """
    if offset >= run.limit:
        return None
    start = run.file_start(offset)
    tail = b""  # the last bytes of the piece before: a record's head may lie across the border of two
    end = 0
    for position, data in read_data(run.file(offset), offset - start, run.file_size):
        if position != end:
            tail = b""
        end = position + len(data)
        piece = tail + data
        base = position - len(tail)
        for at in sorted(_signs(piece)):
            found = start + base + at - 4
            if at >= 4 and found >= offset and found not in leave_out and _is_intact(run, found):
                return found
        tail = piece[-7:]
    return None


def _signs(data: bytes) -> Iterator[int]:
    for sign in _SIGNS:
        position = data.find(sign)
        while position >= 0:
            yield position
            position = data.find(sign, position + 1)


def _is_intact(run: FileRun, offset: int) -> bool:
    head = run.read(offset, _HEAD.size)
    if len(head) < _HEAD.size:
        return False
    size, _, own = _HEAD.unpack(head)
    if own != offset or not MIN_RECORD_BYTES <= size <= run.limit - offset:
        return False
    record = run.read(offset, size)
    return len(record) == size and check_record(record, offset) is None


def _is_zero(run: FileRun, offset: int) -> bool:
    start = run.file_start(offset)
    return not any(data.strip(b"\0") for _, data in read_data(run.file(offset), offset - start, run.file_size))
