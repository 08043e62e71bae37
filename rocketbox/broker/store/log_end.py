"""What it means that the commit log cannot be read on, and cutting off what does not belong to it.

Reading (``log_scan``) stops at a place B: the end of the last file, zeros, or bytes that are no whole record. Then the
log simply ends there, or it was damaged there.

A store syncs one batch at a time, and a file before the next begins, so a crash leaves at most one batch that is not
synced: its sectors may be on the disk in any order, and an intact record behind a bad one proves nothing by itself. So
B is the end of the log, and what is behind it a torn tail, unless one of these proves that the bytes at B were synced
before; then the start is refused with StoreCorruptError and nothing is touched:

    proof                                                                   asked
    1 our mark in the checkpoint says that the log is synced beyond B       with the mark
    2 an intact record lies in a later file                                 always
    3 an intact record behind B was stored before the checkpoint's time     always
      (physicMsgTimestamp: of the newest synced message)
    4 a consume queue has the entry of an intact record behind B            always
    5 a consume queue has an entry of a record that begins at B             with the mark
    6 a consume queue has an entry of a record that ends behind B           without the mark, after a clean stop

1 is written after every group commit, and at a clean stop; a power failure may leave a copy of it that is some commits
old, which is what the others are for. 4, 5 and 6: entries are written when the log is synced up to their records. That
is so for our queues; Apache's may be ahead of its log after a power failure under ASYNC_FLUSH, so of them only those of
intact records count: refusing is then the safe mistake. A flipped bit in an entry does not make it one of an intact
record behind B, so derived data does not overrule the log.

What is a whole record is said by ``records.check_record``. One without a property CRC that is otherwise whole, where
the mark says that records have one, is never torn: it ends the mark (``recovery``), as it is another broker's.

The torn tail is first copied to ``<root>/torn/<offset>-<time>``, one file for each file of the log, and synced. Only
then it is overwritten with zeros: no leftover of a torn batch can be taken for a record later, and no start destroys
the only copy of anything. Without room for the copy nothing is cut: the store can be read, and takes no messages until
there is room for it (:attr:`TornTail.cut_later`).

Source: what counts as torn is Pebble's rule, decided here with the files that Apache RocketMQ has; Apache 5.5
(``CommitLog.recoverNormally``, ``recoverAbnormally``) truncates at the first bad record in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from rocketbox.broker.store.aside import Aside, stamp_of
from rocketbox.broker.store.checkpoint import Checkpoint
from rocketbox.broker.store.files import NO_ROOM, FileRun
from rocketbox.broker.store.log_scan import LogScan, intact_behind
from rocketbox.broker.store.records import store_timestamp_of
from rocketbox.errors import StoreCorruptError, StoreError
from rocketbox.storage.file_system import Storage

__all__ = ["QueueEntries", "TornTail", "cut_torn_tail", "refuse_if_synced"]

_log = logging.getLogger(__name__)


class QueueEntries(Protocol):
    """The consume queues as they are on the disk."""

    def entries_from(self, physical: int) -> Iterator[tuple[int, int]]:
        """(offset, size) of the records at or behind ``physical`` that have an entry, in no order."""


@dataclass(frozen=True)
class TornTail:
    """What was cut off the log's end: ``bytes`` that were not zero, and the files that hold a copy of them."""

    bytes: int
    copies: tuple[str, ...] = ()
    cut_later: Callable[[], object] | None = None
    """There was no room for the copy: this tries again, blocks, and raises OSError. Until then nothing is cut."""


def place_of(run: FileRun, offset: int) -> tuple[str, int]:
    """The file that holds the log's offset, or would, and the position in it."""
    if not run.starts:
        return run.path(offset - offset % run.file_size), offset % run.file_size
    return run.path(run.file_start(offset)), (offset - run.start) % run.file_size


def refuse_if_synced(
    run: FileRun, end: int, reason: str | None, checkpoint: Checkpoint, queues: QueueEntries, *, clean: bool
) -> None:
    """Raise StoreCorruptError if something proves that the log once went on where reading it stopped.

    ``reason`` says what is there; None stands for zeros. ``clean``: the last broker stopped cleanly.
    """
    proof = _proof(run, end, checkpoint, queues, clean=clean)
    if proof is not None:
        raise StoreCorruptError(*place_of(run, end), f"{reason or 'the bytes are zero'} ({proof})")


def _proof(run: FileRun, end: int, checkpoint: Checkpoint, queues: QueueEntries, *, clean: bool) -> str | None:
    if checkpoint.marked and end < checkpoint.synced_offset:
        return f"the checkpoint says that the log was synced up to {checkpoint.synced_offset}"
    for start in run.starts:
        if start > end:
            for offset, _ in LogScan(run, start):
                return f"there is an intact record at {offset}"
    entries: dict[int, int] | None = None
    for offset, record in intact_behind(run, end):
        if store_timestamp_of(record) < checkpoint.physic_msg_timestamp:
            return f"there is an intact record at {offset}, which the checkpoint says was synced"
        if entries is None:
            entries = dict(queues.entries_from(end))
        if offset in entries:
            return f"there is an intact record at {offset}, which has a consume-queue entry"
    if not checkpoint.marked and not clean:
        return None
    if entries is None:
        entries = dict(queues.entries_from(end))
    if checkpoint.marked and end in entries:
        return "a consume queue has an entry of the record there"
    if not checkpoint.marked and entries:
        furthest = max(offset + size for offset, size in entries.items())
        return f"a consume queue has an entry of a record that ends at {furthest}"
    return None


def cut_torn_tail(storage: Storage, root: str, run: FileRun, end: int, reason: str | None, now_ms: int) -> TornTail:
    """Make all zero behind the log's end, and remove later files, when a copy of it is safe. Blocks.

    Where there is no room for the copy nothing is cut, and what is returned says how to try again. Raises StoreError
    when the copy cannot be made for another reason.
    """
    try:
        return _cut(storage, root, run, end, reason, now_ms)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise StoreError(
                f"{error.strerror}. Nothing was changed: see that the disk works, and start again"
            ) from error
        _log.error("%s. The store takes no messages until there is room for it", error.strerror)
    return TornTail(0, cut_later=lambda: _cut(storage, root, run, end, reason, now_ms))


def _cut(storage: Storage, root: str, run: FileRun, end: int, reason: str | None, now_ms: int) -> TornTail:
    aside = Aside(storage, root, stamp_of(now_ms))
    copies: list[str] = []
    for start in run.starts:
        first = max(start, end)
        if start + run.file_size > end and (length := run.data_length(start, first)):
            try:
                copies.append(aside.copy_bytes(run.path(start), first - start, length, first))
            except OSError as error:
                for copy in copies:  # the next attempt makes them again
                    with suppress(OSError):
                        storage.remove(copy)
                raise OSError(error.errno, _no_copy(aside.directory, first, length, error)) from error
    bytes_cut = run.cut(end)
    if bytes_cut:
        file, position = place_of(run, end)
        _log.warning(
            "cut %d bytes of torn tail off at %s:%d: %s; a copy of them is in %s",
            bytes_cut, file, position, reason or "bytes behind zeros", ", ".join(copies),
        )  # fmt: skip
    return TornTail(bytes_cut, tuple(copies))


def _no_copy(directory: str, offset: int, length: int, error: OSError) -> str:
    return (
        f"the commit log ends with {length} bytes, from offset {offset} on, which are no whole records and have to be "
        f"cut off; they cannot be copied to {directory} first ({error.strerror or error})"
    )
