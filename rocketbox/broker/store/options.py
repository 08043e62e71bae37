"""The store's settings: Apache's names in snake_case, its units (milliseconds, bytes) and its defaults.

Other than Apache's: ``flush_disk_type`` is SYNC_FLUSH and ``enabled_append_prop_crc`` is on, ``timer_precision_ms`` is
1, ``file_reserved_time`` may have a unit; ``disk_space_warning_free_bytes``, ``allocate_ahead``,
``flush_interval_index``, ``max_index_search_steps``, ``max_waiting_bytes`` and ``read_cache_size`` are our own.

Source: Apache RocketMQ 5.x ``MessageStoreConfig``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from annotated_types import Ge, Le

from rocketbox.declarations import BYTES, MILLISECONDS, Words, option_findings
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.message import DELAY_LEVELS

__all__ = ["FlushDiskType", "StoreOptions"]

BLANK_BYTES = 8  # size and magic of the blank that ends every commit-log file
CONSUME_QUEUE_UNIT = 20
LEAST_RESERVED_MS = 3 * 3_600_000
BESIDE_A_DELAY_MS = 3_600_000  # for which a delayed message is kept at least behind its time, as with 3h and 2h
_RESERVED = re.compile(r"(\d+)([smhd]?)")
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class FlushDiskType(Enum):
    """When a message is acknowledged: after its fdatasync, or after its write."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Settings of one message store, each declared here and nowhere else. Ratios outside of their bounds are refused;
    Apache takes the nearest, without a word."""

    mapped_file_size_commit_log: Annotated[
        int, BYTES, Ge(256), Words("of a commit-log file; all files of a directory have the same")
    ] = 1 << 30
    mapped_file_size_consume_queue: Annotated[
        int, BYTES, Ge(20), Words("of a consume-queue file, a multiple of 20")
    ] = 300_000 * CONSUME_QUEUE_UNIT
    max_hash_slot_num: Annotated[
        int, Ge(1), Words("slots of an index file, which has 40 + 4 * slots + 20 * entries bytes")
    ] = 5_000_000
    max_index_num: Annotated[int, Ge(2), Words("entries of an index file")] = 20_000_000
    message_index_enable: Annotated[bool, Words("true: messages can be found by their keys")] = True
    max_message_size: Annotated[int, BYTES, Ge(1), Words("the largest body, as it is stored")] = 4 << 20
    flush_disk_type: Annotated[
        FlushDiskType, Words("SYNC_FLUSH acknowledges a message after its fdatasync, ASYNC_FLUSH after its write")
    ] = FlushDiskType.SYNC_FLUSH
    sync_flush_timeout: Annotated[
        int,
        MILLISECONDS,
        Ge(0),
        Words("how long a sender waits for its fdatasync before it is told FLUSH_DISK_TIMEOUT"),
    ] = 5000
    flush_interval_commit_log: Annotated[
        int, MILLISECONDS, Ge(1), Words("how often the commit log is synced with ASYNC_FLUSH")
    ] = 500
    flush_interval_consume_queue: Annotated[int, MILLISECONDS, Ge(1), Words("how often consume queues are written")] = (
        1000
    )
    flush_consume_queue_thorough_interval: Annotated[
        int,
        MILLISECONDS,
        Ge(1),
        Words(
            "how often consume queues are synced, and then the checkpoint that says so; also after 64 MiB of commit log"
        ),
    ] = 60_000
    flush_interval_index: Annotated[
        int, MILLISECONDS, Ge(1), Words("how often index files are written and synced; not Apache's")
    ] = 10_000
    enabled_append_prop_crc: Annotated[
        bool, Words("true: a checksum of the whole record is put into its properties")
    ] = True
    allocate_ahead: Annotated[
        int, BYTES, Ge(0), Words("of disk that is allocated before the log's end reaches it; not Apache's")
    ] = 64 << 20
    max_waiting_bytes: Annotated[
        int,
        BYTES,
        Ge(1),
        Words(
            "of messages that may wait for the disk; then sends are refused with SYSTEM_BUSY until "
            "it has caught up; not Apache's"
        ),
    ] = 128 << 20
    read_cache_size: Annotated[
        int,
        BYTES,
        Ge(0),
        Words(
            "of the newest records that are kept in memory for reading; up to a quarter more are "
            "read ahead; not Apache's"
        ),
    ] = 16 << 20
    max_transfer_bytes_on_message_in_memory: Annotated[
        int, BYTES, Ge(0), Words("what one read takes at most from the part of the log that is likely in memory")
    ] = 256 << 10
    max_transfer_count_on_message_in_memory: Annotated[
        int,
        Ge(0),
        Words(
            "messages that one read takes at most from the part of the log that is likely in memory; Apache's default "
            "is 32, and who asks for more, as reads by Spark do, has to ask often"
        ),
    ] = 1024
    max_transfer_bytes_on_message_in_disk: Annotated[
        int, BYTES, Ge(0), Words("what one read takes at most from the part of the log that is likely not in memory")
    ] = 64 << 10
    max_transfer_count_on_message_in_disk: Annotated[
        int, Ge(0), Words("messages that one read takes at most from the part of the log that is likely not in memory")
    ] = 8
    access_message_in_memory_max_ratio: Annotated[
        int, Ge(0), Words("per cent of the machine's memory taken to hold the end of the log")
    ] = 40
    max_filter_message_size: Annotated[int, BYTES, Ge(0), Words("of the consume queue that one read looks through")] = (
        16_000
    )
    max_msgs_num_batch: Annotated[
        int,
        Ge(0),
        Words("the most records a query by key returns; of large ones as many as fit into an answer of 15 MiB"),
    ] = 64
    max_index_search_steps: Annotated[
        int,
        Ge(1),
        Words("the most index entries that a query by key looks at; then it ends with what it has found; not Apache's"),
    ] = 200_000
    file_reserved_time: Annotated[
        str,
        Words(
            "how long messages are kept at least, from 3h: a number with m, h or d; without one it "
            "is hours, as Apache's"
        ),
    ] = "72h"
    delete_when: Annotated[str, Words("the hours of the day, separated by ;, in which expired files are removed")] = (
        "04"
    )
    disk_max_used_space_ratio: Annotated[
        int, Ge(10), Le(95), Words("per cent of the disk; above, expired files are removed at any hour")
    ] = 75
    disk_space_clean_forcibly_ratio: Annotated[
        int, Ge(30), Le(85), Words("per cent; above, all expired files are removed at once, not ten in a run")
    ] = 85
    disk_space_warning_level_ratio: Annotated[
        int,
        Ge(35),
        Le(90),
        Words("per cent; above, messages are refused if less than disk-space-warning-free-bytes is free too"),
    ] = 90
    disk_space_warning_free_bytes: Annotated[
        int,
        BYTES,
        Ge(0),
        Words("above disk-space-warning-level-ratio messages are taken while so much is free; not Apache's"),
    ] = 1 << 30
    clean_resource_interval: Annotated[
        int, MILLISECONDS, Ge(1), Words("how often it is looked for files to remove")
    ] = 10_000
    delete_commit_log_files_interval: Annotated[
        int, MILLISECONDS, Ge(0), Words("the pause between two files that are removed")
    ] = 100
    verify_interval: Annotated[
        int,
        MILLISECONDS,
        Ge(0),
        Words(
            "how often queues and index are compared with the log in the background, and mended; 0: never; not Apache's"
        ),
    ] = 24 * 3_600_000
    verify_bytes_per_second: Annotated[
        int, BYTES, Ge(1), Words("of the log that is compared in a second at most; not Apache's")
    ] = 4 << 20
    timer_wheel_enable: Annotated[
        bool,
        Words("true: messages may be sent for a time of their own; false: they are refused, but those that wait come"),
    ] = True
    timer_max_delay_sec: Annotated[
        int,
        Ge(1),
        Le(100 * 365 * 86_400),
        Words("seconds for which a message may wait for its own time at most; more are refused"),
    ] = 3 * 86_400
    timer_precision_ms: Annotated[
        int,
        MILLISECONDS,
        Ge(1),
        Le(1000),
        Words("to which such a time is rounded up (Apache: 1000)"),
    ] = 1
    message_delay_level: Annotated[str, Words("the delays of the levels 1, 2, ...: numbers with s, m, h or d")] = (
        DELAY_LEVELS
    )

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
        yield from option_findings(self)
        if self.mapped_file_size_consume_queue % CONSUME_QUEUE_UNIT:
            yield Finding(
                f"mapped-file-size-consume-queue is {self.mapped_file_size_consume_queue}",
                fix="a multiple of 20, the bytes of one entry",
            )
        yield from self._retention_findings()
        levels = self.message_delay_level.split()
        wrong = [level for level in levels if not re.fullmatch(r"\d+[smhd]", level)]
        if wrong or not levels:
            yield Finding(
                f"message-delay-level is {self.message_delay_level!r}",
                fix="delays separated by blanks, each a number and s, m, h or d: 1s 5s 10s",
            )
        elif _RESERVED.fullmatch(self.file_reserved_time) is not None:
            needed = max(self.delay_level_ms) + BESIDE_A_DELAY_MS
            if LEAST_RESERVED_MS <= self.file_reserved_ms < needed:
                yield Finding(
                    f"message-delay-level is {self.message_delay_level!r}, and file-reserved-time is "
                    f"{self.file_reserved_time}: what is delayed for so long would be removed before its time",
                    fix=f"shorter delays, or a file-reserved-time of {-(-needed // 3_600_000)}h at least",
                )

    def _retention_findings(self) -> Iterator[Finding]:
        if _RESERVED.fullmatch(self.file_reserved_time) is None:
            yield Finding(
                f"file-reserved-time is {self.file_reserved_time!r}", fix="a number of hours, or 180m, 72h or 3d: 72h"
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
