"""The checkpoint file: how far the store's files are known to be on the disk.

4096 bytes, big-endian. The first 48 are Apache's six numbers (i64):

    0 physicMsgTimestamp     store time of the newest message that is synced in the commit log
    8 logicsMsgTimestamp     the same for consume queues
   16 indexMsgTimestamp      the same for index files
   24 masterFlushedOffset    0
   32 confirmPhyOffset       the commit log is synced up to here
   40 logicsPhysicalOffset   the newest record whose consume-queue entry is synced

Behind them is ours, which Apache's broker neither reads nor writes:

   48 mark                   8 bytes, ``ROCKETB2``
   56 run                    i64: the run that the file ``lock`` must name, too (``lock_file``)
   64 synced_offset          i64: the commit log is synced up to here
   72 queued_offset          i64: all records below have their consume-queue entries, and these are synced
   80 indexed_offset         i64: all records below are in the index files, and these are synced
   88 queue_ends             u64: a sum over the consume queues, from which it is seen whether one of them does not end
                             where it did when only those records had entries (``Derived.queue_ends``)
   96 checksums_from         i64: records from here on bear a checksum; -1: they need not
  104 checksum               CRC-32 of the 104 bytes before
  108 log_start              i64: the log begins here at the latest; what begins before was removed by retention
  116 checksum               CRC-32 of the 116 bytes before; builds that did not know log_start leave another one, then
                             it is not known

The mark holds only while its checksum does and ``lock`` names its run, so it ends when another broker has used the
directory. (``ROCKETBX`` was a mark without a run: it counts as none.) Written in place, all within one sector; after
every group commit without a sync of its own (what it says is true already, and a killed process loses nothing that it
has written), and synced when what it says of queues or index is new (``derived_writer`` decides when that is).

Source: Apache RocketMQ 5.5 ``StoreCheckpoint``; the mark is ours.
"""

from __future__ import annotations

import struct
import threading
import zlib
from dataclasses import dataclass, replace

from rocketbox.storage.file_system import Storage, StorageFile

__all__ = ["Checkpoint", "CheckpointFile"]

CHECKPOINT_BYTES = 4096
MARK = b"ROCKETB2"  # the second layout
_APACHE = struct.Struct(">6q")
_OURS = struct.Struct(">8sQ3qQq")
_CHECKSUM = struct.Struct(">I")
_CHECKED = _APACHE.size + _OURS.size
_START = struct.Struct(">q")
_START_AT = _CHECKED + _CHECKSUM.size
_START_CHECKED = _START_AT + _START.size


@dataclass(frozen=True)
class Checkpoint:
    """What the file says; ``marked`` tells whether the numbers behind it are there and hold."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0
    marked: bool = False
    run: int = 0
    synced_offset: int = 0
    queued_offset: int = 0
    indexed_offset: int = 0
    queue_ends: int = 0
    checksums_from: int = -1
    log_start: int = -1
    """-1: not known."""

    def encode(self) -> bytes:
        """The first 120 bytes of the file, with the mark."""
        data = _APACHE.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.synced_offset,
            self.logics_physical_offset,
        ) + _OURS.pack(
            MARK,
            self.run,
            self.synced_offset,
            self.queued_offset,
            self.indexed_offset,
            self.queue_ends,
            self.checksums_from,
        )
        data += _CHECKSUM.pack(zlib.crc32(data)) + _START.pack(self.log_start)
        return data + _CHECKSUM.pack(zlib.crc32(data))

    def without_mark(self) -> Checkpoint:
        """Only Apache's numbers."""
        return Checkpoint(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
            self.logics_physical_offset,
        )

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Whatever the bytes are; what is missing counts as 0."""
        data = data.ljust(_START_CHECKED + _CHECKSUM.size, b"\0")
        physic, logics, index, flushed, confirmed, logics_physical = _APACHE.unpack_from(data)
        apache = cls(physic, logics, index, flushed, confirmed, logics_physical)
        mark, run, synced, queued, indexed, queue_ends, checksums_from = _OURS.unpack_from(data, _APACHE.size)
        (checksum,) = _CHECKSUM.unpack_from(data, _CHECKED)
        if mark != MARK or checksum != zlib.crc32(data[:_CHECKED]):
            return apache
        (log_start,) = _START.unpack_from(data, _START_AT)
        (checksum,) = _CHECKSUM.unpack_from(data, _START_CHECKED)
        return replace(
            apache,
            marked=True,
            run=run,
            synced_offset=synced,
            queued_offset=queued,
            indexed_offset=indexed,
            queue_ends=queue_ends,
            checksums_from=checksums_from,
            log_start=log_start if checksum == zlib.crc32(data[:_START_CHECKED]) else -1,
        )

    def missing_before(self, start: int) -> int | None:
        """Where the log began, if its first file now begins behind that though retention has not removed others."""
        return self.log_start if self.marked and 0 <= self.log_start < start else None


class CheckpointFile:
    """The file, and what was last written to it. Two threads write: the commit log's, and the one for all else."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.value = Checkpoint()
        self._storage = storage
        self._path = path
        self._file: StorageFile | None = None
        self._guard = threading.Lock()

    def load(self, run: int | None) -> Checkpoint:
        """Read the file. A mark of another run than ``run``, which the lock file names, counts as none."""
        if self._storage.exists(self._path):
            self.value = Checkpoint.decode(self._storage.open(self._path).read(0, CHECKPOINT_BYTES))
            if self.value.marked and self.value.run != run:
                self.value = self.value.without_mark()
        return self.value

    def write(self, *, sync: bool, **changes: int) -> None:
        """Change some of the numbers; the mark is set.

        What is said of the commit log only grows: the two threads may come in either order, and retention may come
        before a start on a full disk can say that the store is in use.
        """
        with self._guard:
            for name in ("synced_offset", "physic_msg_timestamp", "log_start") if self.value.marked else ():
                changes[name] = max(changes.get(name, -1), getattr(self.value, name))
            value = replace(self.value, marked=True, **changes)
            if self._file is None:
                self._file = self._storage.open(self._path, create=True)
                if self._file.size() != CHECKPOINT_BYTES:
                    self._file.truncate(CHECKPOINT_BYTES)
            self._file.write(0, [value.encode()])
            if sync:
                self._file.sync()
            self.value = value  # what could not be written is not known: it is written again

    def mend(self) -> bool:
        """Write again what the file should hold, if it holds something else; whether it did. Blocks. Raises OSError."""
        with self._guard:
            expected = self.value.encode()
            if self._file is None or self._file.read(0, len(expected)) == expected:
                return False
            self._file.write(0, [expected])
            self._file.sync()
        return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
