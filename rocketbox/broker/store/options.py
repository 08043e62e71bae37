"""The store's settings: Apache's names in snake_case, its units (milliseconds, bytes) and its defaults.

Other than Apache's: ``flush_disk_type`` is SYNC_FLUSH and ``enabled_append_prop_crc`` is on; ``allocate_ahead``,
``flush_interval_index``, ``max_waiting_bytes`` and ``read_cache_size`` are our own.

Source: Apache RocketMQ 5.x ``MessageStoreConfig``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from rocketbox.errors import ConfigurationError, Finding
from rocketbox.message import DELAY_LEVELS

__all__ = ["FlushDiskType", "StoreOptions"]

BLANK_BYTES = 8  # size and magic of the blank that ends every commit-log file
CONSUME_QUEUE_UNIT = 20
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class FlushDiskType(Enum):
    """When a message is acknowledged: after its fdatasync, or after its write."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Settings of one message store. Sizes are bytes, intervals and times milliseconds."""

    mapped_file_size_commit_log: int = 1 << 30
    """Bytes of a commit-log file; all files of a directory have the same."""
    mapped_file_size_consume_queue: int = 300_000 * CONSUME_QUEUE_UNIT
    """Bytes of a consume-queue file, a multiple of 20."""
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    """Slots and entries of an index file, which has 40 + 4 * slots + 20 * entries bytes."""
    message_index_enable: bool = True
    max_message_size: int = 4 << 20
    """The largest body, as it is stored."""
    flush_disk_type: FlushDiskType = FlushDiskType.SYNC_FLUSH
    sync_flush_timeout: int = 5000
    """How long a sender waits for its fdatasync before it is told FLUSH_DISK_TIMEOUT."""
    flush_interval_commit_log: int = 500
    """How often the commit log is synced with ASYNC_FLUSH."""
    flush_interval_consume_queue: int = 1000
    """How often consume queues are written."""
    flush_consume_queue_thorough_interval: int = 60_000
    """How often consume queues are synced, and then the checkpoint that says so; also after 64 MiB of commit log."""
    flush_interval_index: int = 10_000
    """How often index files are written and synced."""
    enabled_append_prop_crc: bool = True
    """Put a checksum of the whole record into its properties."""
    allocate_ahead: int = 64 << 20
    """Bytes of disk that are allocated before the log's end reaches them."""
    max_waiting_bytes: int = 128 << 20
    """Bytes of messages that may wait for the disk; then sends are refused with SYSTEM_BUSY until it has caught up."""
    read_cache_size: int = 16 << 20
    """Bytes of the newest records that are kept in memory for reading."""
    max_transfer_bytes_on_message_in_memory: int = 256 << 10
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 << 10
    max_transfer_count_on_message_in_disk: int = 8
    """What one read takes at most, from the part of the log that is likely in memory, and from the part behind it."""
    access_message_in_memory_max_ratio: int = 40
    """Per cent of the machine's memory taken to hold the end of the log."""
    max_filter_message_size: int = 16_000
    """Bytes of the consume queue that one read looks through."""
    max_msgs_num_batch: int = 64
    """The most records a query by key returns."""
    message_delay_level: str = DELAY_LEVELS
    """The delays of the levels 1, 2, ...: numbers with s, m, h or d."""

    def __post_init__(self) -> None:
        findings = list(self._findings())
        if findings:
            raise ConfigurationError(findings)

    @property
    def index_file_size(self) -> int:
        return 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num

    @property
    def delay_level_ms(self) -> tuple[int, ...]:
        """Milliseconds of the delay levels; level n is at index n - 1."""
        return tuple(int(level[:-1]) * _UNITS[level[-1]] for level in self.message_delay_level.split())

    def _findings(self) -> Iterator[Finding]:
        if self.mapped_file_size_commit_log < 256:
            yield _too_small("mapped-file-size-commit-log", self.mapped_file_size_commit_log, 256)
        if self.mapped_file_size_consume_queue < CONSUME_QUEUE_UNIT or (
            self.mapped_file_size_consume_queue % CONSUME_QUEUE_UNIT
        ):
            yield Finding(
                f"mapped-file-size-consume-queue is {self.mapped_file_size_consume_queue}",
                fix="a multiple of 20, the bytes of one entry",
            )
        for name, value, least in (
            ("max-hash-slot-num", self.max_hash_slot_num, 1),
            ("max-index-num", self.max_index_num, 2),
            ("max-message-size", self.max_message_size, 1),
            ("flush-interval-commit-log", self.flush_interval_commit_log, 1),
            ("flush-interval-consume-queue", self.flush_interval_consume_queue, 1),
            ("flush-consume-queue-thorough-interval", self.flush_consume_queue_thorough_interval, 1),
            ("flush-interval-index", self.flush_interval_index, 1),
            ("max-waiting-bytes", self.max_waiting_bytes, 1),
            ("allocate-ahead", self.allocate_ahead, 0),
            ("read-cache-size", self.read_cache_size, 0),
        ):
            if value < least:
                yield _too_small(name, value, least)
        levels = self.message_delay_level.split()
        wrong = [level for level in levels if not re.fullmatch(r"\d+[smhd]", level)]
        if wrong or not levels:
            yield Finding(
                f"message-delay-level is {self.message_delay_level!r}",
                fix="delays separated by blanks, each a number and s, m, h or d: 1s 5s 10s",
            )


def _too_small(name: str, value: int, least: int) -> Finding:
    return Finding(f"{name} is {value}", fix=f"at least {least}")
