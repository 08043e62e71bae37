"""The records of transactions: half messages, what becomes of them, and the marks that say which are done with.

A half message lies in RMQ_SYS_TRANS_HALF_TOPIC, with where it is to go in REAL_TOPIC and REAL_QID. When it is done
with, its queue offset is written to RMQ_SYS_TRANS_OP_HALF_TOPIC (tag ``d``, body ``17``). What takes its place in the
log (the committed message, a copy that is checked, what is given up) names its commit-log offset as the prepared
transaction offset of the record. Here are the forms alone; when what is written is ``half_messages``' part.

Source: Apache RocketMQ 5.x ``TransactionalMessageBridge``, ``EndTransactionProcessor.endMessageTransaction``,
``TransactionalMessageServiceImpl.fillOpRemoveMap``. There copies and messages that are given up have no prepared
transaction offset, and marks are gathered in memory for 3 s, which a kill forgets.
"""

from __future__ import annotations

from dataclasses import replace

from rocketbox.broker.property_text import add_property, find_property, remove_properties, set_property
from rocketbox.broker.unparking import real_topic, record_of
from rocketbox.errors import InvalidMessageError
from rocketbox.message import MAX_PROPERTIES_BYTES, MessageExt, format_offset_msg_id
from rocketbox.protocol.codes import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    MessageSysFlag,
    RequestCode,
)
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import CheckTransactionStateRequestHeader
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message

__all__ = [
    "check_request",
    "check_times",
    "committed",
    "copy_of_half",
    "done_offsets",
    "given_up",
    "half_of",
    "immunity_seconds",
    "is_copy",
    "mark_of_done",
    "takes_place_of",
]

TRANSACTION_TYPE = int(MessageSysFlag.TRANSACTION_ROLLBACK)  # both bits
COMMIT = int(MessageSysFlag.TRANSACTION_COMMIT)
DONE_TAG = b"d"
_CHECKSUM = (b"__CRC32#",)
_OF_A_HALF = frozenset(  # what the broker itself writes; a message that is sent on brings the old ones along
    {b"REAL_TOPIC", b"REAL_QID", b"__transactionId__", b"TRANSACTION_CHECK_TIMES", b"TRAN_PREPARED_QUEUE_OFFSET"}
)
LONGEST_NUMBER = 18  # digits
ADDED_BY_CHECKS = 128  # bytes: how often it was checked, where it lay first, and the checksum


def half_of(message: StoredMessage, uniq_key: bytes) -> StoredMessage:
    """The half message under which ``message`` waits for its transaction to end.

    Raises InvalidMessageError for properties that leave no room for what a check writes to them.
    """
    text = message.properties
    if any(find_property(text, name) is not None for name in _OF_A_HALF):
        text = remove_properties(text, _OF_A_HALF)
    text = add_property(text, b"__transactionId__", uniq_key)
    text = add_property(text, b"REAL_TOPIC", message.topic.encode())
    text = add_property(text, b"REAL_QID", b"%d" % message.queue_id)
    if len(text) > MAX_PROPERTIES_BYTES - ADDED_BY_CHECKS:
        raise InvalidMessageError(
            f"the half message has properties of {len(text)} bytes; {MAX_PROPERTIES_BYTES - ADDED_BY_CHECKS} is the "
            "most, for its checks are written to them"
        )
    flags = message.sys_flag & ~TRANSACTION_TYPE
    return replace(message, topic=TRANS_HALF_TOPIC, queue_id=0, properties=text, sys_flag=flags)


def committed(half: MessageExt, prepared_offset: int) -> StoredMessage:
    """The message that consumers get; its property text stays that of the half, as Apache leaves it.

    Raises InvalidMessageError when the half does not say where it is to go.
    """
    topic, queue_id = real_topic(half)
    text = remove_properties(half.raw_properties, _CHECKSUM)
    message = record_of(half, topic, queue_id, text, half.reconsume_times)
    flags = message.sys_flag & ~TRANSACTION_TYPE | COMMIT
    return replace(message, sys_flag=flags, prepared_transaction_offset=prepared_offset)


def copy_of_half(half: MessageExt, *, checks: int | None = None) -> StoredMessage:
    """The half message once more, for the end of its queue: with a further check, or, without ``checks``, moved there
    while it is immune against checks."""
    text = remove_properties(half.raw_properties, _CHECKSUM)
    if checks is not None:
        text = set_property(text, b"TRANSACTION_CHECK_TIMES", b"%d" % checks)
    elif find_property(text, b"TRAN_PREPARED_QUEUE_OFFSET") is None:
        text = add_property(text, b"TRAN_PREPARED_QUEUE_OFFSET", b"%d" % half.queue_offset)
    message = record_of(half, TRANS_HALF_TOPIC, half.queue_id, text, half.reconsume_times)
    return replace(message, prepared_transaction_offset=half.commit_log_offset)


def is_copy(half: MessageExt) -> bool:
    """Whether a half message is a copy: of one that was checked, or moved."""
    text = half.raw_properties
    return check_times(text) > 0 or find_property(text, b"TRAN_PREPARED_QUEUE_OFFSET") is not None


def given_up(half: MessageExt) -> StoredMessage:
    """What is kept of a half message of whose transaction nobody could tell what became of it."""
    text = remove_properties(half.raw_properties, _CHECKSUM)
    message = record_of(half, TRANS_CHECK_MAX_TIME_TOPIC, 0, text, half.reconsume_times)
    return replace(message, prepared_transaction_offset=half.commit_log_offset)


def takes_place_of(record: MessageExt, half: MessageExt) -> bool:
    """Whether a record, which names the half's commit-log offset, was put in its place.

    A half message that is no copy names none: where it says 0, that is nothing, and not the first record of the log.
    """
    takes = (
        record.topic == TRANS_CHECK_MAX_TIME_TOPIC
        or (record.topic == TRANS_HALF_TOPIC and is_copy(record))
        or record.sys_flag & TRANSACTION_TYPE == COMMIT
    )
    one, other = (find_property(each.raw_properties, b"UNIQ_KEY") for each in (record, half))
    return takes and one == other


def mark_of_done(queue_offset: int, now_ms: int, host: tuple[bytes, int], uniq_key: str) -> StoredMessage:
    """The mark that the half message at an offset of its queue is done with."""
    return StoredMessage(
        TRANS_OP_HALF_TOPIC,
        0,
        b"%d" % queue_offset,  # of several, separated by commas, brokers of 4.9 read none
        b"TAGS\x01%b\x02UNIQ_KEY\x01%b\x02WAIT\x01false\x02" % (DONE_TAG, uniq_key.encode()),
        born_timestamp_ms=now_ms,
        born_host=host,
    )


def done_offsets(mark: MessageExt) -> list[int]:
    """The queue offsets of half messages that a mark names; those of Apache's brokers name many."""
    if find_property(mark.raw_properties, b"TAGS") != DONE_TAG:
        return []
    return [number for text in mark.body.split(b",") if (number := _number(text)) is not None]


def check_times(text: bytes) -> int:
    """How often a half message was checked, by its property text."""
    value = find_property(text, b"TRANSACTION_CHECK_TIMES")
    return _number(value) or 0


def immunity_seconds(text: bytes) -> int | None:
    """For how long a half message is not checked, if it says so itself (CHECK_IMMUNITY_TIME_IN_SECONDS)."""
    value = find_property(text, b"CHECK_IMMUNITY_TIME_IN_SECONDS")
    return _number(value)


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) <= LONGEST_NUMBER else None


def check_request(
    half: MessageExt, queue_offset: int, commit_log_offset: int, checks: int, broker_name: str
) -> RemotingCommand:
    """What a producer is asked by (39): the message as consumers would get it, and the place of its newest copy, which
    counts so many checks.

    Raises InvalidMessageError when the half does not say where it is to go.
    """
    topic, queue_id = real_topic(half)
    store_host = half.fields[12], half.fields[13]
    uniq_key = find_property(half.raw_properties, b"UNIQ_KEY")
    msg_id = None if uniq_key is None else uniq_key.decode(errors="replace")
    header = CheckTransactionStateRequestHeader(
        topic=TRANS_HALF_TOPIC,
        tran_state_table_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        msg_id=msg_id,
        transaction_id=msg_id,
        offset_msg_id=format_offset_msg_id(*store_host, commit_log_offset),
        bname=broker_name,
    )
    text = set_property(remove_properties(half.raw_properties, _CHECKSUM), b"TRANSACTION_CHECK_TIMES", b"%d" % checks)
    message = record_of(half, topic, queue_id, text, half.reconsume_times)
    place = (queue_offset, commit_log_offset, half.store_timestamp_ms, store_host)
    body = encode_stored_message(message, place=place)
    return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header.encode(), body)
