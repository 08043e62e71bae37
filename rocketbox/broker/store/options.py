"""The store's settings: Apache's names in snake_case, its units (milliseconds, bytes) and its defaults.

Other than Apache's: ``flush_disk_type`` is SYNC_FLUSH and ``enabled_append_prop_crc`` is on, ``file_reserved_time``
may have a unit; ``disk_space_warning_free_bytes``, ``allocate_ahead``, ``flush_interval_index``,
``max_index_search_steps``, ``max_waiting_bytes`` and ``read_cache_size`` are our own.

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
LEAST_RESERVED_MS = 3 * 3_600_000
_RESERVED = re.compile(r"(\d+)([smhd]?)")
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
    """Bytes of the newest records that are kept in memory for reading; up to a quarter more are read ahead."""
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
    """The most records a query by key returns; of large ones as many as fit into an answer of 15 MiB."""
    max_index_search_steps: int = 200_000
    """The most index entries that a query by key looks at; then it ends with what it has found."""
    file_reserved_time: str = "72h"
    """How long messages are kept at least: a number with m, h or d; without one it is hours, as Apache's."""
    delete_when: str = "04"
    """The hours of the day, separated by ``;``, in which expired files are removed."""
    disk_max_used_space_ratio: int = 75
    """Per cent of the disk; above, expired files are removed at any hour."""
    disk_space_clean_forcibly_ratio: int = 85
    """Per cent; above, all expired files are removed at once, not ten in a run."""
    disk_space_warning_level_ratio: int = 90
    """Per cent; above, messages are refused if less than the next are free too."""
    disk_space_warning_free_bytes: int = 1 << 30
    """Bytes; a large disk that is nearly full has room for more than a small one."""
    clean_resource_interval: int = 10_000
    """How often it is looked for files to remove."""
    delete_commit_log_files_interval: int = 100
    """The pause between two files that are removed."""
    verify_interval: int = 24 * 3_600_000
    """How often queues and index are compared with the log in the background, and mended; 0: never. Not Apache's."""
    verify_bytes_per_second: int = 4 << 20
    """Bytes of the log that are compared in a second at most. Not Apache's."""
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

    @property
    def file_reserved_ms(self) -> int:
        """Milliseconds of ``file_reserved_time``."""
        found = _RESERVED.fullmatch(self.file_reserved_time)
        assert found is not None
        return int(found[1]) * _UNITS[found[2] or "h"]

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of ``delete_when``."""
        return frozenset(int(hour) for hour in self.delete_when.split(";") if hour.strip())

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
            ("verify-interval", self.verify_interval, 0),
            ("verify-bytes-per-second", self.verify_bytes_per_second, 1),
            ("clean-resource-interval", self.clean_resource_interval, 1),
            ("delete-commit-log-files-interval", self.delete_commit_log_files_interval, 0),
            ("disk-space-warning-free-bytes", self.disk_space_warning_free_bytes, 0),
            ("allocate-ahead", self.allocate_ahead, 0),
            ("read-cache-size", self.read_cache_size, 0),
            ("max-index-search-steps", self.max_index_search_steps, 1),
        ):
            if value < least:
                yield _too_small(name, value, least)
        yield from self._retention_findings()
        levels = self.message_delay_level.split()
        wrong = [level for level in levels if not re.fullmatch(r"\d+[smhd]", level)]
        if wrong or not levels:
            yield Finding(
                f"message-delay-level is {self.message_delay_level!r}",
                fix="delays separated by blanks, each a number and s, m, h or d: 1s 5s 10s",
            )

    def _retention_findings(self) -> Iterator[Finding]:
        if _RESERVED.fullmatch(self.file_reserved_time) is None:
            yield Finding(
                f"file-reserved-time is {self.file_reserved_time!r}", fix="a number of hours, or 90m, 72h or 3d: 72h"
            )
        elif self.file_reserved_ms < LEAST_RESERVED_MS:
            yield Finding(
                f"file-reserved-time is {self.file_reserved_time!r}",
                fix="at least 3h: a message that is delayed for 2h, or waits for its next attempt, must still be there",
            )
        hours = [hour.strip() for hour in self.delete_when.split(";") if hour.strip()]
        if not all(hour.isdigit() and int(hour) < 24 for hour in hours) or not hours:
            yield Finding(
                f"delete-when is {self.delete_when!r}", fix="hours from 00 to 23, separated by semicolons: 04;16"
            )
        for name, value, least, most in (  # where Apache takes the nearest, without a word
            ("disk-max-used-space-ratio", self.disk_max_used_space_ratio, 10, 95),
            ("disk-space-clean-forcibly-ratio", self.disk_space_clean_forcibly_ratio, 30, 85),
            ("disk-space-warning-level-ratio", self.disk_space_warning_level_ratio, 35, 90),
        ):
            if not least <= value <= most:
                yield Finding(f"{name} is {value}", fix=f"a percentage from {least} to {most}")


def _too_small(name: str, value: int, least: int) -> Finding:
    return Finding(f"{name} is {value}", fix=f"at least {least}")
