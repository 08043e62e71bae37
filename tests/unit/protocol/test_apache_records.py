"""The commit log of an Apache broker: every record is read, and written back byte for byte."""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocketbox.message import MessageExt
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.stored_message import StoredMessage, decode_message, encode_stored_message
from rocketbox.protocol.tags import tags_code

STORES = Path(__file__).parents[2] / "data" / "stores"
EXPECTED: dict[str, Any] = json.loads((STORES / "apache-5.5.0.expected.json").read_text())


def commit_log() -> bytes:
    with tarfile.open(STORES / "apache-5.5.0.tar.gz") as archive:
        file = archive.extractfile("store/commitlog/00000000000000000000")
        assert file is not None
        return file.read()[: EXPECTED["commitLogEnd"]]


def records(*, decompress: bool) -> Iterator[tuple[bytes, MessageExt]]:
    log = commit_log()
    position = 0
    while position < len(log):
        message, end = decode_message(log, position, decompress=decompress)
        yield log[position:end], message
        position = end


def test_every_record_is_read() -> None:
    found = [message for _, message in records(decompress=True)]
    assert len(found) == len(EXPECTED["messages"])
    for message, expected in zip(found, EXPECTED["messages"], strict=True):
        assert message.topic == expected["topic"]
        assert message.queue_id == expected["queueId"]
        assert message.queue_offset == expected["queueOffset"]
        assert message.commit_log_offset == expected["commitLogOffset"]
        assert message.store_size == expected["storeSize"]
        assert message.flag == expected["flag"]
        assert message.born_timestamp_ms == expected["bornTimestamp"]
        assert message.store_timestamp_ms == expected["storeTimestamp"]
        assert message.born_host == expected["bornHost"]
        assert message.store_host == expected["storeHost"]
        assert message.reconsume_times == expected["reconsumeTimes"]
        assert message.prepared_transaction_offset == expected["preparedTransactionOffset"]
        assert message.body_crc == expected["bodyCRC"]
        assert message.body.decode() == expected["body"]
        assert dict(message.properties) == expected["properties"]
        if message.topic != "SCHEDULE_TOPIC_XXXX":  # there it is the time of delivery
            assert tags_code(message.tag) == expected["tagsCode"]


def test_every_record_is_written_back_byte_for_byte() -> None:
    for record, message in records(decompress=False):
        again = encode_stored_message(
            StoredMessage(
                topic=message.topic,
                queue_id=message.queue_id,
                body=message.body,
                properties=message.raw_properties,
                flag=message.flag,
                sys_flag=message.sys_flag,
                born_timestamp_ms=message.born_timestamp_ms,
                born_host=message.fields[9:11],
                reconsume_times=message.reconsume_times,
                prepared_transaction_offset=message.prepared_transaction_offset,
                queue_offset=message.queue_offset,
                commit_log_offset=message.commit_log_offset,
                store_timestamp_ms=message.store_timestamp_ms,
                store_host=message.fields[12:14],
            )
        )
        assert again == record
        assert zlib.crc32(message.body) & 0x7FFF_FFFF == message.body_crc


def test_the_store_holds_what_is_hard() -> None:
    """What the comparison is worth: compressed and non-ASCII bodies, delays, half messages, retries, dead letters."""
    found = [message for _, message in records(decompress=False)]
    topics = {message.topic for message in found}
    assert {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%G1", "%DLQ%G1"} <= topics
    assert any(message.sys_flag & MessageSysFlag.COMPRESSED for message in found)
    assert any(not message.body.isascii() for message in found)
