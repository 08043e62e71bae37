"""How far each group has consumed each queue.

Holds the table and its form on disk (``consumerOffset.json``); when it is written is the broker's decision. Nothing is
checked: Apache stores any queue id and any offset, clients rely on it.

Source: Apache RocketMQ 5.x ``ConsumerOffsetManager``.
"""

from __future__ import annotations

import json
from typing import Any

from rocketbox.clock import Clock
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.bodies import DataVersion, loads_loose

__all__ = ["OffsetTable"]

SEPARATOR = "@"  # between topic and group in Apache's keys
COMMITS_FOR_EACH_VERSION = 500  # Apache's consumerOffsetUpdateVersionStep


class OffsetTable:
    """Committed offsets by topic, group and queue. ``changed`` says whether there is something to write."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offsets: dict[str, dict[int, int]] = {}
        self._commits = 0
        self._version = DataVersion(timestamp=clock.time_ms())
        self._kept: dict[str, Any] = {}  # members that Apache writes and we do not use (pullOffsetTable)
        self.changed = False

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self._offsets.setdefault(f"{topic}{SEPARATOR}{group}", {})[queue_id] = offset
        self.changed = True
        self._commits += 1
        if self._commits % COMMITS_FOR_EACH_VERSION == 0:
            self._version = self._version.next(self._clock.time_ms())

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset; None when there is none."""
        queues = self._offsets.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def encode(self) -> str:
        """The text of ``consumerOffset.json``; every Apache version reads it."""
        self.changed = False
        groups: dict[str, list[str]] = {}
        for key in self._offsets:
            topic, _, group = key.partition(SEPARATOR)
            groups.setdefault(group, []).append(topic)
        values = {
            **self._kept,
            "dataVersion": self._version.to_json(),
            "groupTopicMap": groups,
            "offsetTable": self._offsets,
        }
        return json.dumps(values, indent="\t", sort_keys=True)

    def load(self, text: str, file: str = "consumerOffset.json") -> None:
        """Take the table over from a file, ours or Apache's. Raises StoreCorruptError when it is not one."""
        try:
            values = loads_loose(text)
            offsets = {
                key: {int(queue): int(offset) for queue, offset in queues.items()}
                for key, queues in values.get("offsetTable", {}).items()
            }
            version = DataVersion.from_json(values.get("dataVersion") or {})
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreCorruptError(file, 0, f"not a table of offsets ({error})") from error
        self._offsets = offsets
        self._version = version
        self._kept = {
            name: value for name, value in values.items() if name not in {"dataVersion", "groupTopicMap", "offsetTable"}
        }
