"""How far each group has consumed each queue.

Holds the table and its form on disk (``consumerOffset.json``); when it is written is the persister's part, which queues
there are, the handlers'. Any offset is kept, as by Apache's brokers: pull consumers commit what their application says,
and a group may be reset to before or behind what there is. Only where messages may have been lost, after a crash, those
behind the end of their queue are brought back to it (:meth:`OffsetTable.bring_back`). How many are kept is limited, and
how many of them one address has made: a peer with many groups and topics must not take the room of all others.

Source: Apache RocketMQ 5.x ``ConsumerOffsetManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from rocketbox.broker.limits import PeerShares
from rocketbox.broker.options import MAX_OFFSETS
from rocketbox.broker.persister import TableFile
from rocketbox.broker.table_text import encode_entry, table_pieces
from rocketbox.clock import Clock
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.codes import TRANSACTION_GROUP
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.protocol.registration_bodies import DataVersion

__all__ = ["OffsetTable"]

_log = logging.getLogger(__name__)

SEPARATOR = "@"  # between topic and group in Apache's keys
COMMITS_FOR_EACH_VERSION = 500  # Apache's consumerOffsetUpdateVersionStep


class OffsetTable:
    """Committed offsets by topic, group and queue."""

    def __init__(
        self, clock: Clock, file: TableFile, most: int = MAX_OFFSETS, most_for_each_address: int = MAX_OFFSETS
    ) -> None:
        self._clock = clock
        self._file = file
        self._shares = PeerShares(  # of each address since the start
            most, most_for_each_address, "max-offsets", "offsets of groups", "kept", soon=False
        )
        self._makers: dict[str, dict[str, int]] = {}  # by entry of the table: how many each connection has made of it
        self._offsets: dict[str, dict[int, int]] = {}
        self._topics: dict[str, dict[str, None]] = {}  # the topics of each group, in their order
        self._texts: dict[str, bytes] = {}  # entries of the file
        self._commits = 0
        self._version = DataVersion(timestamp=clock.time_ms())
        self._kept: dict[str, Any] = {}  # members that Apache writes and we do not use (pullOffsetTable)

    def __len__(self) -> int:
        """How many queues have an offset."""
        return self._shares.total

    @property
    def refused(self) -> int:
        """How many commits were not kept because of the limit."""
        return self._shares.refused

    @property
    def addresses(self) -> int:
        """How many hosts have made some of those that are kept."""
        return self._shares.addresses

    def commit(self, group: str, topic: str, queue_id: int, offset: int, by: str = "") -> None:
        """Keep how far a group is; ``by`` is the client's address. Raises LimitError for one queue too many."""
        key = f"{topic}{SEPARATOR}{group}"
        queues = self._offsets.get(key)
        if queues is None or queue_id not in queues:
            queues = self._new_entry(key, group, topic, by)
        queues[queue_id] = offset
        self._texts.pop(key, None)
        self._commits += 1
        if self._commits % COMMITS_FOR_EACH_VERSION == 0:
            self._version = self._version.next(self._clock.time_ms())
        self._file.mark()

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset; None when there is none."""
        queues = self._offsets.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def topics(self, group: str) -> list[str]:
        """The topics of which a group has consumed something."""
        return list(self._topics.get(group, ()))

    def bring_back(self, end_of: Callable[[str, int], int]) -> bool:
        """Bring offsets behind the end of their queue back to it; whether there were any.

        ``end_of`` says where a queue (topic, id) ends.

        With ASYNC_FLUSH a group may have consumed, and committed, what a power failure took from the log. Its next
        messages get these offsets again: a group that goes on behind them would never see them. Those of transactions
        stay: whether they are of this log is judged by both together (``half_messages``).
        """
        count, first = 0, ""
        for key, queues in self._offsets.items():
            topic, _, group = key.partition(SEPARATOR)
            if group == TRANSACTION_GROUP:
                continue
            for queue_id, offset in queues.items():
                end = end_of(topic, queue_id)
                if offset > end:
                    count += 1
                    first = first or f"group {group} was at {offset} of {topic}/{queue_id}, which ends at {end}"
                    queues[queue_id] = end
        if count:
            self._texts.clear()
            self._file.mark()
            _log.warning(
                "%d committed offsets were behind the ends of their queues, whose last messages were lost in a crash, "
                "and are brought back to them: %s", count, first,
            )  # fmt: skip
        return count > 0

    def delete_group(self, group: str) -> None:
        """Forget how far a group is."""
        for topic in self._topics.pop(group, {}):
            self._forget(f"{topic}{SEPARATOR}{group}")

    def delete_topic(self, topic: str) -> None:
        """Forget how far all groups are with a topic."""
        for group, topics in list(self._topics.items()):
            if topic in topics:
                self._forget(f"{topic}{SEPARATOR}{group}")
                del topics[topic]
                if not topics:
                    del self._topics[group]

    def _new_entry(self, key: str, group: str, topic: str, by: str) -> dict[int, int]:
        self._shares.check(by)
        self._shares.add(by)
        if by:
            makers = self._makers.setdefault(key, {})
            makers[by] = makers.get(by, 0) + 1
        self._topics.setdefault(group, {})[topic] = None
        return self._offsets.setdefault(key, {})

    def _forget(self, key: str) -> None:
        unknown = len(self._offsets.pop(key, {}))
        for by, made in self._makers.pop(key, {}).items():
            self._shares.add(by, -made)
            unknown -= made
        self._shares.add("", -unknown)
        self._texts.pop(key, None)
        self._file.mark()

    def pieces(self) -> Iterator[bytes]:
        """The text of ``consumerOffset.json``; every Apache version reads it."""
        return table_pieces(
            [("dataVersion", self._version.to_json()), *self._kept.items()],
            [
                ("groupTopicMap", list(self._topics), self._topics_text),
                ("offsetTable", list(self._offsets), self._text),
            ],
        )

    def _topics_text(self, group: str) -> bytes | None:
        topics = self._topics.get(group)
        return None if topics is None else encode_entry(group, list(topics))

    def _text(self, key: str) -> bytes | None:
        text = self._texts.get(key)
        if text is None and (queues := self._offsets.get(key)) is not None:
            text = self._texts[key] = encode_entry(key, queues)
        return text

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
        self._shares.add("", sum(map(len, offsets.values())) - self._shares.total)
        self._topics = {}
        for key in offsets:
            topic, _, group = key.partition(SEPARATOR)
            self._topics.setdefault(group, {})[topic] = None
        self._texts.clear()
        self._version = version
        self._kept = {
            name: value for name, value in values.items() if name not in {"dataVersion", "groupTopicMap", "offsetTable"}
        }
