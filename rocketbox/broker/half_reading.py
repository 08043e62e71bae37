"""Reading what a broker finds of transactions at its start, though some of it cannot be read.

A bad sector, or a damaged record, keeps no broker from starting, and no other transaction from its end:

    what cannot be read        | and then
    a half message             | its transaction waits, and is looked for again with each round of checks, until it can
                               | be read; or until ``upkeep`` has found it damaged: then it is lost, which is told
    a mark that one is done    | nobody knows which one: whatever was open at the start is doubtful, as it is after any
    with                       | crash. Before it is checked, or ends, the log is searched for what has taken its place;
                               | if there is something, it gets another mark. One that was rolled back is checked once
                               | more

Source: own; Apache RocketMQ 5.x ``TransactionalMessageServiceImpl.check`` passes over what it cannot read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import suppress

from rocketbox.broker.property_text import find_property
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.record_reading import WrongEntryError
from rocketbox.broker.transaction_records import is_copy, takes_place_of
from rocketbox.broker.unparking import real_topic
from rocketbox.errors import InvalidMessageError, RemoteProtocolError, StoreError
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from rocketbox.protocol.stored_message import decode_message

__all__ = ["UNREADABLE", "copies_of", "has_successor", "is_copy_of", "read_one", "read_queue"]

READ_AT_ONCE = 256  # records
MOST_OF_ONE_KEY = 64  # records: the half, its copies, and what has become of it
LATEST_MS = (1 << 62) - 1

UNREADABLE = (OSError, WrongEntryError, RemoteProtocolError)
"""What keeps one record from being read, and says nothing of others."""


async def read_queue(
    store: MessageStore, topic: str, offset: int, left_out: Collection[int], unread: dict[int, Exception]
) -> AsyncIterator[MessageExt]:
    """The messages of a topic's queue from an offset on, but for those ``left_out``.

    What cannot be read goes to ``unread``, by its offset.
    """
    end, one_by_one_until = store.max_offset(topic, 0), offset
    while offset < end:
        if offset in left_out:
            offset += 1
            continue
        count = READ_AT_ONCE if offset >= one_by_one_until else 1
        try:
            found = await store.fetch(topic, 0, offset, count)
            messages = [decode_message(record, decompress=False)[0] for record in found.records]
        except UNREADABLE as error:
            if count > 1:  # one of them: which?
                one_by_one_until = offset + count
                continue
            unread[offset] = error
            offset += 1
            continue
        if count == 1 and not messages and offset >= store.min_offset(topic, 0):  # upkeep was quick
            unread[offset] = StoreError("it is damaged")
        for message in messages:
            if message.queue_offset not in left_out:
                yield message
        if found.next_begin_offset <= offset:
            return
        offset = found.next_begin_offset


async def read_one(store: MessageStore, topic: str, offset: int) -> MessageExt | None:
    """The message at an offset of a topic's queue; None: it is gone by age, or known to be damaged.

    Raises one of :data:`UNREADABLE`, and StoreError.
    """
    for record in (await store.fetch(topic, 0, offset, 1)).records:
        message = decode_message(record, decompress=False)[0]
        if message.queue_offset == offset:
            return message
    return None


async def has_successor(store: MessageStore, half: MessageExt) -> bool:
    """Whether something in the log has taken the place of a half message: a committed message, a copy, what was given
    up. Without an index (``message-index-enable``) that is not known, and False.

    Raises StoreError, OSError while it cannot be found out.
    """
    key = (find_property(half.raw_properties, b"UNIQ_KEY") or b"").decode(errors="replace")
    topics = [TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC]
    with suppress(InvalidMessageError):  # of one that does not say where it is to go: it was not committed
        topics.append(real_topic(half)[0])
    for topic in topics:
        for record in (await store.query_keys(topic, key, MOST_OF_ONE_KEY, 0, LATEST_MS)).records:
            other = decode_message(record, decompress=False)[0]
            if other.prepared_transaction_offset == half.commit_log_offset < other.commit_log_offset and takes_place_of(
                other, half
            ):
                return True
    return False


async def copies_of(store: MessageStore, half: MessageExt) -> list[MessageExt]:
    """Copies of half messages behind one that have its key, the newest of them; other transactions may have it, too.

    Without an index there are none. Raises StoreError, OSError while it cannot be found out.
    """
    key = (find_property(half.raw_properties, b"UNIQ_KEY") or b"").decode(errors="replace")
    found = (await store.query_keys(TRANS_HALF_TOPIC, key, MOST_OF_ONE_KEY, 0, LATEST_MS)).records
    others = [decode_message(record, decompress=False)[0] for record in found]
    return [other for other in others if is_copy(other) and other.commit_log_offset > half.commit_log_offset]


async def is_copy_of(store: MessageStore, copy: MessageExt, half: MessageExt) -> bool:
    """Whether a copy leads back to a half message, by the copies between them: there is one for each check and move.

    Raises StoreError, OSError while one of them cannot be read.
    """
    before = copy
    while is_copy(before) and half.commit_log_offset <= before.prepared_transaction_offset < before.commit_log_offset:
        record = await store.read_record(before.prepared_transaction_offset)
        if record is None:
            return False
        last, before = before, decode_message(record, decompress=False)[0]
        if not takes_place_of(last, before):
            return False
        if before.commit_log_offset == half.commit_log_offset:
            return True
    return False
