"""Which topics were deleted: up to where in the log their records do not count, and where their queues go on.

The records of a deleted topic stay in the log, and have no place in a queue any more. Whoever builds queues from the
log must know which of them count: those at or behind the offset that stands here. It is written and synced before the
first file of a queue goes, so a crash in between leaves files that the next start removes (:meth:`Derived.load`), and
never brings a deleted queue back.

A queue of a topic that is made again begins behind all queue offsets that the old one had. Consumers that run meanwhile
know nothing of the deletion: they go on with the offset they have, and commit it. It is below the first message of the
new queue, so they are sent there (PULL_OFFSET_MOVED); began the new queue at 0, as Apache's does, it would hide as many
messages of the new topic as the old one had. The beginnings are kept when the records are gone.

    {"deletedTopics": {topic: where in the log it was deleted}, "queueBegins": {topic: {queue id: queue offset}}}

Apache's brokers do not know the file: one that recovers the directory from its log shows deleted messages again.

Source: rocketbox' own; compare Apache RocketMQ 5.x ``DefaultMessageStore.deleteTopics``, which keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.errors import StoreCorruptError, StoreError
from rocketbox.protocol.json_values import dumps
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.storage.file_system import Storage

__all__ = ["MOST_DELETED_TOPICS", "DeletedTopics"]

MOST_DELETED_TOPICS = 100_000  # whose records are in the log; of those whose are not, the oldest are forgotten


class DeletedTopics:
    """The table, and its file ``config/deletedTopics.json``."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._file = ConfigFile(Path(root) / "config" / "deletedTopics.json", storage)
        self._ends: dict[str, int] = {}
        self._begins: dict[str, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, topic: object) -> bool:
        """Whether a topic of that name was deleted; another may have been made since."""
        return topic in self._ends or topic in self._begins

    def load(self) -> None:
        """Read the file, if there is one; blocks. Raises StoreError, StoreCorruptError."""
        text = self._file.load()
        if text is None:
            self._ends, self._begins = {}, {}
            return
        try:
            values = loads_loose(text)
            self._ends = {topic: int(end) for topic, end in values["deletedTopics"].items()}
            self._begins = {
                topic: {int(queue_id): int(offset) for queue_id, offset in queues.items()}
                for topic, queues in values.get("queueBegins", {}).items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreCorruptError(str(self._file.path), 0, f"not a table of deleted topics ({error})") from error

    def end_of(self, topic: str) -> int:
        """Records of a topic below this offset are deleted; 0 for a topic that was never deleted."""
        return self._ends.get(topic, 0)

    def begin_of(self, topic: str, queue_id: int) -> int:
        """The offset of a queue's first message; 0 when no topic of that name was deleted."""
        queues = self._begins.get(topic)
        return 0 if queues is None else queues.get(queue_id, 0)

    def is_gone(self, topic: str, physical: int) -> bool:
        """Whether the record of a topic at an offset of the log is deleted."""
        return bool(self._ends) and physical < self._ends.get(topic, 0)

    def add(self, topic: str, end: int, begins: Mapping[int, int], log_start: int) -> None:
        """Note that all records of a topic below ``end`` are deleted, and write it down; blocks.

        ``begins``: where its queues go on; of those that are not named, what was noted before stays. Raises OSError,
        and StoreError when too many topics are deleted.
        """
        ends = self._ends
        if len(ends) >= MOST_DELETED_TOPICS and topic not in ends:
            ends = _left(ends, log_start, end)
        if len(ends) >= MOST_DELETED_TOPICS and topic not in ends:
            raise StoreError(
                f"{len(ends)} deleted topics have records in the commit log, and {MOST_DELETED_TOPICS} is the most; "
                "delete more when retention has removed some"
            )
        ends = {**ends, topic: end}
        noted = {name: queues for name, queues in self._begins.items() if name != topic}
        noted[topic] = {**self._begins.get(topic, {}), **begins}  # the newest stands last
        for old in [old for old in noted if old not in ends][: max(0, len(noted) - MOST_DELETED_TOPICS)]:
            del noted[old]
        self._replace(ends, {name: queues for name, queues in noted.items() if queues})

    def settle(self, log_start: int, log_end: int) -> None:
        """Forget what retention has removed from the log; nothing behind its end was deleted. Blocks. Raises OSError.

        A log may have become shorter (a torn tail was cut): what will be written there was not deleted.
        """
        ends = _left(self._ends, log_start, log_end)
        if ends != self._ends:
            self._replace(ends, self._begins)

    def _replace(self, ends: dict[str, int], begins: dict[str, dict[int, int]]) -> None:
        try:
            self._file.persist(list(_pieces(ends, begins)))
        except OSError:
            with suppress(OSError):  # its last step may have failed: the next start must not do what is told as failed
                self._file.persist(list(_pieces(self._ends, self._begins)))
            raise
        self._ends, self._begins = ends, begins


def _left(ends: dict[str, int], log_start: int, log_end: int) -> dict[str, int]:
    return {topic: min(end, log_end) for topic, end in ends.items() if min(end, log_end) > log_start}


def _pieces(ends: dict[str, int], begins: dict[str, dict[int, int]]) -> Iterator[bytes]:
    """The text, entry by entry: one call of the encoder for a large table would hold the interpreter for long."""
    table: Mapping[str, object]
    for before, table in ((b'{"deletedTopics": {', ends), (b'}, "queueBegins": {', begins)):
        yield before
        for number, (topic, value) in enumerate(table.items()):
            yield (b", " if number else b"") + dumps(topic) + b": " + dumps(value)
    yield b"}}"
