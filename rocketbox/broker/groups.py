"""What the broker knows of consumer groups: whether they may consume, and how their failures are repeated.

Holds the table and its form on disk (``subscriptionGroup.json``); who is connected is ``clients``' part.

Source: Apache RocketMQ 5.x ``SubscriptionGroupManager``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rocketbox.broker.limits import LimitError, NameBudget
from rocketbox.broker.options import MAX_GROUPS
from rocketbox.broker.persister import TableFile
from rocketbox.broker.table_text import encode_entry, table_pieces
from rocketbox.clock import Clock
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.protocol.registration_bodies import DataVersion
from rocketbox.protocol.tags import MAX_GROUP_CHARACTERS, is_valid_name

__all__ = ["GroupTable"]

BUILT_IN_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


class GroupTable:
    """All groups. Nobody waits for a new one to be written: who only reads needs no room on the disk."""

    def __init__(
        self,
        clock: Clock,
        file: TableFile,
        *,
        auto_create: bool = True,
        most: int = MAX_GROUPS,
        names: NameBudget | None = None,
    ) -> None:
        self._clock = clock
        self._file = file
        self._auto_create = auto_create
        self._most = most
        self._names = names
        self.version = DataVersion(timestamp=clock.time_ms())
        self._forbidden: dict[str, Any] = {}
        self._groups = {name: SubscriptionGroupConfig(name) for name in BUILT_IN_GROUPS}
        self._texts: dict[str, bytes] = {}  # entries of the file
        self.refused = 0
        """How many groups were not made because of the limit."""

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The group's settings, if it is known."""
        return self._groups.get(name)

    def all(self) -> Mapping[str, SubscriptionGroupConfig]:
        """Every group by name (read only); it changes with the table."""
        return self._groups

    def is_built_in(self, name: str) -> bool:
        """Whether every broker has the group."""
        return name in BUILT_IN_GROUPS

    def find(self, name: str, by: str = "") -> SubscriptionGroupConfig | None:
        """The group's settings; made now if it is unknown, its name is legal, and groups are made automatically.

        ``by`` is the address of the client that names it. Raises LimitError.
        """
        group = self._groups.get(name)
        if group is None and self._auto_create and len(name) <= MAX_GROUP_CHARACTERS and is_valid_name(name):
            self._check_limit(name)
            if self._names is not None:
                self._names.take(by)
            group = SubscriptionGroupConfig(name)
            self.put(group)
        return group

    def put(self, group: SubscriptionGroupConfig) -> int:
        """Add or replace a group; the change of the file, to wait for by :meth:`written`. Raises LimitError."""
        name = group.group_name
        if name not in self._groups:
            self._check_limit(name)
        self._groups[name] = group
        return self._changed(name)

    def delete(self, name: str) -> int:
        """Forget a group (nothing, if there is none); the change of the file, to wait for by :meth:`written`."""
        if self._groups.pop(name, None) is None:
            return self._file.marked
        return self._changed(name)

    @property
    def last_change(self) -> int:
        """The newest change of the file, for :meth:`written`."""
        return self._file.marked

    async def written(self, change: int) -> None:
        """Return when a change is on the disk. Raises StoreError when it cannot be written."""
        await self._file.written(change)

    def _check_limit(self, name: str) -> None:
        if len(self._groups) >= self._most:
            self.refused += 1
            raise LimitError(f"group {name} cannot be made, there are {len(self._groups)}", self._most, "max-groups")

    def _changed(self, name: str) -> int:
        self._texts.pop(name, None)
        self.version = self.version.next(self._clock.time_ms())
        return self._file.mark()

    def pieces(self) -> Iterator[bytes]:
        """The text of ``subscriptionGroup.json``."""
        return table_pieces(
            [("dataVersion", self.version.to_json()), ("forbiddenTable", self._forbidden)],
            [("subscriptionGroupTable", list(self._groups), self._text)],
        )

    def _text(self, name: str) -> bytes | None:
        text = self._texts.get(name)
        if text is None and (group := self._groups.get(name)) is not None:
            text = self._texts[name] = encode_entry(name, group.to_json())
        return text

    def load(self, text: str, file: str = "subscriptionGroup.json") -> None:
        """Add what a file holds, ours or Apache's. Raises StoreCorruptError when it is not one."""
        try:
            values = loads_loose(text)
            groups = {
                name: SubscriptionGroupConfig.from_json(group)
                for name, group in values.get("subscriptionGroupTable", {}).items()
            }
            version = DataVersion.from_json(values.get("dataVersion") or {})
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreCorruptError(file, 0, f"not a table of consumer groups ({error})") from error
        self._groups.update(groups)
        self._texts.clear()
        self._forbidden = values.get("forbiddenTable") or {}
        self.version = version
