"""Which topics were deleted, and up to where in the log: their records stay, and have no place in a queue any more.

A topic that is made again begins at queue offset 0, as Apache's does, so two records of it in the log may have the same
queue offset. Whoever builds queues from the log must know which of them count: those at or behind the offset that
stands here. It is written and synced before the first file of a queue goes, so a crash in between leaves files that the
next start removes (:meth:`Derived.load`), and never brings a deleted queue back.

    {"deletedTopics": {topic: where in the log it was deleted}}

Apache's brokers do not know the file: one that recovers the directory from its log shows deleted messages again.

Source: rocketbox' own; compare Apache RocketMQ 5.x ``DefaultMessageStore.deleteTopics``, which keeps nothing.
"""

from __future__ import annotations

from pathlib import Path

from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.storage import Storage
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.json_values import dumps
from rocketbox.protocol.loose_json import loads_loose

__all__ = ["DeletedTopics"]


class DeletedTopics:
    """The table, and its file ``config/deletedTopics.json``."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._file = ConfigFile(Path(root) / "config" / "deletedTopics.json", storage)
        self._ends: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def load(self) -> None:
        """Read the file, if there is one; blocks. Raises StoreError, StoreCorruptError."""
        text = self._file.load()
        if text is None:
            self._ends = {}
            return
        try:
            table = loads_loose(text)["deletedTopics"]
            self._ends = {topic: int(end) for topic, end in table.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreCorruptError(str(self._file.path), 0, f"not a table of deleted topics ({error})") from error

    def end_of(self, topic: str) -> int:
        """Records of a topic below this offset are deleted; 0 for a topic that was never deleted."""
        return self._ends.get(topic, 0)

    def is_gone(self, topic: str, physical: int) -> bool:
        """Whether the record of a topic at an offset of the log is deleted."""
        return bool(self._ends) and physical < self._ends.get(topic, 0)

    def add(self, topic: str, end: int) -> None:
        """Note that all records of a topic below ``end`` are deleted, and write it down; blocks. Raises OSError."""
        self._replace({**self._ends, topic: end})

    def settle(self, log_start: int, log_end: int) -> None:
        """Forget what retention has removed from the log; nothing behind its end was deleted. Blocks. Raises OSError.

        A log may have become shorter (a torn tail was cut): what will be written there was not deleted.
        """
        ends = {topic: min(end, log_end) for topic, end in self._ends.items() if min(end, log_end) > log_start}
        if ends != self._ends:
            self._replace(ends)

    def _replace(self, ends: dict[str, int]) -> None:
        self._file.persist([dumps({"deletedTopics": ends})])
        self._ends = ends
