"""Bytes that stand for nothing, with which a repair replaces what is damaged: a log can be read on behind them.

A filler is a record of a transaction that was rolled back, on a topic of its own: Apache's brokers and ours read over
such a one, it comes into no queue and no index. Up to the end of a file a blank does the same.
"""

from __future__ import annotations

import struct

from rocketbox.broker.store.options import BLANK_BYTES
from rocketbox.broker.store.records import BLANK_MAGIC, CHECKSUM_BYTES, MIN_RECORD_BYTES, parse_record
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message

__all__ = ["FILLER_TOPIC", "SMALLEST_FILLER", "blank", "filler_record", "is_filler"]

FILLER_TOPIC = "REPAIRED"
SMALLEST_FILLER = MIN_RECORD_BYTES + 1  # no record of a message is smaller
_ROLLBACK = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_BLANK = struct.Struct(">iI")


def filler_record(offset: int, size: int, store_timestamp_ms: int) -> bytes:
    """A record of ``size`` bytes, at least :data:`SMALLEST_FILLER`, for that place in the log.

    It has a checksum, for which there is no room in place of the smallest records without one. In that of other small
    ones there is room for the first letters of the topic only.
    """
    checksum = size >= SMALLEST_FILLER + CHECKSUM_BYTES
    topic = FILLER_TOPIC[: size - MIN_RECORD_BYTES - (CHECKSUM_BYTES if checksum else 0)]
    message = StoredMessage(
        topic=topic,
        queue_id=0,
        body=bytes(size - MIN_RECORD_BYTES - len(topic) - (CHECKSUM_BYTES if checksum else 0)),
        sys_flag=_ROLLBACK,
        commit_log_offset=offset,
        store_timestamp_ms=store_timestamp_ms,
    )
    return encode_stored_message(message, property_crc=checksum)


def blank(size: int) -> bytes:
    """The head of a blank of ``size`` bytes, at least 8, which ends a file."""
    assert size >= BLANK_BYTES
    return _BLANK.pack(size, BLANK_MAGIC)


def is_filler(record: bytes) -> bool:
    """Whether an intact record is one that stands for nothing."""
    parsed = parse_record(record)
    return parsed.sys_flag & _ROLLBACK == _ROLLBACK and FILLER_TOPIC.startswith(parsed.topic)
