"""What one record of the commit log says of queues and index: its entry's number, and the hashes of its keys.

Pure functions, for whoever compares files with the log or builds them again; ``dispatch`` does the same for what is
put, with caches of its own.

Source: Apache RocketMQ 5.5 ``CommitLog.checkMessageAndReturnSize`` (tags code), ``IndexService.buildIndex``.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketbox.broker.store.index_hashes import hash_key, hash_prefix
from rocketbox.broker.store.records import find_keys, find_property
from rocketbox.protocol.codes import SCHEDULE_TOPIC, MessageSysFlag
from rocketbox.protocol.tags import tags_code

__all__ = ["due_time", "is_indexed", "key_hashes", "unit_code"]

MOST_DIGITS = 9  # of a level; Python refuses to read numbers of thousands
_TRANSACTION = int(MessageSysFlag.TRANSACTION_ROLLBACK)  # both bits of a message's transaction state


def is_indexed(sys_flag: int) -> bool:
    """Whether the keys of a message of that sysFlag stand in the index: those of a rolled-back one do not."""
    return sys_flag & _TRANSACTION != _TRANSACTION


def due_time(properties: bytes, stored: int, delays: Sequence[int]) -> int | None:
    """When a message that waits for its delay level is due (epoch ms); None without a level.

    Above the highest level it is that one, however many digits the peer has written.
    """
    level = find_property(properties, b"DELAY")
    if level is None or not level.isdigit() or not (digits := level.lstrip(b"0")):
        return None
    highest = len(delays)
    return stored + delays[(highest if len(digits) > MOST_DIGITS else min(int(digits), highest)) - 1]


def unit_code(topic: str, properties: bytes, stored: int, delays: Sequence[int]) -> int:
    """What stands in the queue beside a message: its tag's hash, or when a delayed one is due (epoch ms)."""
    if topic == SCHEDULE_TOPIC:
        due = due_time(properties, stored, delays)
        if due is not None:
            return due
    tags = find_keys(properties)[0]
    return 0 if tags is None else tags_code(tags.decode("utf-8", "replace"))


def key_hashes(topic: str, properties: bytes) -> tuple[list[int], bool]:
    """The hashes under which a message is indexed, in order; and whether the last is that of its tags."""
    tags, keys, unique = find_keys(properties)
    prefix = hash_prefix(f"{topic}#")
    hashes = [] if unique is None else [hash_key(prefix, unique)]
    if keys is not None:
        hashes += [hash_key(prefix, key) for key in keys.split(b" ") if key]
    if tags is not None:
        hashes.append(hash_key(prefix, b"T#" + tags))
    return hashes, tags is not None
