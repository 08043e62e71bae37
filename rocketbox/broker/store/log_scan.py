"""Reading the commit log record by record, each checked; and looking for intact records where it cannot be read on.

What it means that reading stopped is left to ``log_end``. Used when a store is opened, and by whoever checks or builds
again what is in one.

Source: Apache RocketMQ 5.5 ``CommitLog.checkMessageAndReturnSize``, ``recoverNormally``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from rocketbox.broker.store.files import FileRun
from rocketbox.broker.store.options import BLANK_BYTES
from rocketbox.broker.store.records import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    MAGICS,
    MIN_RECORD_BYTES,
    body_position,
    check_record,
    length_mismatch,
)

__all__ = ["LogScan", "body_at", "intact_behind"]

FIRST_WINDOW = 32 << 10  # bytes read first: after a clean stop there is nothing more to see
WINDOW = 4 << 20  # bytes read at once from then on
_HEAD = struct.Struct(">II")
_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_NOWHERE = range(0)
LONGEST_HEAD = 112  # bytes of a record in front of its body, with IPv6 hosts


class LogScan:
    """Iterates over (offset, record) from ``offset`` on, each checked.

    From ``checksums_from`` on, unless it is negative, each must bear a checksum: one that is torn off is missed.
    Then ``end`` and ``reason`` say where and why it stopped; ``reason`` is None where there are only zeros.
    """

    def __init__(
        self, run: FileRun, offset: int, *, checksums_from: int = -1, on_window: Callable[[int], None] | None = None
    ) -> None:
        self.end = offset
        self.reason: str | None = None
        self._run = run
        self._checksums_from = checksums_from
        self._on_window = on_window

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        run = self._run
        offset, size_of_window = self.end, FIRST_WINDOW
        while run.start <= offset < run.limit:
            file_end = run.file_start(offset) + run.file_size
            if self._on_window is not None:
                self._on_window(offset)
            window = run.read(offset, size_of_window)
            size_of_window = WINDOW
            if len(window) < BLANK_BYTES <= file_end - offset:
                window = window.ljust(BLANK_BYTES, b"\0")  # the file was cut short: what is missing counts as zeros
            base = offset
            while True:
                position = offset - base
                space = file_end - offset
                if len(window) - position < BLANK_BYTES <= space:
                    break  # read on
                if space < BLANK_BYTES:
                    self.end, self.reason = offset, f"{space} bytes are left in the file, less than a blank"
                    return
                size, magic = _HEAD.unpack_from(window, position)
                if magic == BLANK_MAGIC and size == space:
                    offset = file_end
                    break
                if size == 0 and magic == 0:
                    self.end = offset
                    return
                self.reason = _implausible(size, magic, space)
                if self.reason is None and position + size > len(window):
                    if position > 0:
                        break  # read on, from this record
                    if len(window) >= FIRST_WINDOW:  # else it is less than was asked for
                        self.reason = length_mismatch(window, size)
                        if self.reason is None:
                            window = run.read(offset, size)
                            if len(window) == size:
                                continue
                    if self.reason is None:
                        self.reason = f"the file ends behind {len(window)} of the {size} bytes of a record"
                if self.reason is None:
                    record = window[position : position + size]
                    self.reason = check_record(record, offset, needs_checksum=0 <= self._checksums_from <= offset)
                if self.reason is not None:
                    self.end = offset
                    return
                yield offset, record
                offset += size
                self.end = offset
        self.end = offset


def _implausible(size: int, magic: int, space: int) -> str | None:
    if magic not in MAGICS:
        return f"no record begins with the number 0x{magic:08X}"
    if not MIN_RECORD_BYTES <= size <= space - BLANK_BYTES:
        return f"a record of {size} bytes cannot be where the file has {space} left"
    return None


def body_at(run: FileRun, offset: int) -> range:
    """Where the body lies of the record whose head stands there, whole or not; nowhere if none does.

    What looks like a record in it was put there by the sender, who foresees the place: it is none, and proves nothing.
    A wrong bit in the head never has it reach into the next record: size and length of the body have to fit.
    """
    head = run.read(offset, LONGEST_HEAD) if run.start <= offset < run.limit else b""
    if len(head) < LONGEST_HEAD:
        return _NOWHERE
    size, magic = _HEAD.unpack_from(head)
    (own,) = _OFFSET.unpack_from(head, 28)
    if magic not in MAGICS or own != offset or size < MIN_RECORD_BYTES or length_mismatch(head, size) is not None:
        return _NOWHERE
    position = body_position(head)
    begin = offset + position + _LENGTH.size
    return range(begin, begin + _LENGTH.unpack_from(head, position)[0])


def intact_behind(run: FileRun, end: int) -> Iterator[tuple[int, bytes]]:
    """Intact records behind ``end`` in its file, and not within the body of one that begins there."""
    if not run.start <= end < run.limit:
        return
    start, body = run.file_start(end), body_at(run, end)
    file = run.file(end)
    position: int | None = end - start
    while position is not None and (position := file.next_data(position)) is not None:
        data = file.read(position, WINDOW)
        if len(data) < MIN_RECORD_BYTES:
            return
        for at in _magics(data):
            offset = start + position + at - 4
            if offset <= end or offset in body or at < 4 or at + 32 > len(data):
                continue
            (size,) = struct.unpack_from(">I", data, at - 4)
            (own,) = _OFFSET.unpack_from(data, at + 24)
            if own == offset and MIN_RECORD_BYTES <= size <= start + run.file_size - offset:
                record = run.read(offset, size)
                if len(record) == size and check_record(record, offset) is None:
                    yield offset, record
        position += max(1, len(data) - 40)  # a record's head may lie across the border of two windows
        if position + 40 >= run.file_size:
            return


def _magics(data: bytes) -> Iterator[int]:
    """Where in the bytes the number stands that a record has behind its size."""
    for magic in (MAGIC_V1, MAGIC_V2):
        sign = magic.to_bytes(4, "big")
        position = data.find(sign)
        while position >= 0:
            yield position
            position = data.find(sign, position + 1)
