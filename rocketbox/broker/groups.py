"""What the broker knows of consumer groups: whether they may consume, and how their failures are repeated.

Holds the table and its form on disk (``subscriptionGroup.json``); who is connected is ``clients``' part.

Source: Apache RocketMQ 5.x ``SubscriptionGroupManager``, ``SubscriptionGroupConfig``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rocketbox.clock import Clock
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.bodies import DataVersion, loads_loose
from rocketbox.protocol.tags import MAX_GROUP_CHARACTERS, is_valid_name

__all__ = ["GroupTable", "SubscriptionGroupConfig"]

_log = logging.getLogger(__name__)

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

_NAMES = {
    "groupName": "group_name",
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "consumeMessageOrderly": "consume_message_orderly",
    "retryQueueNums": "retry_queue_nums",
    "retryMaxTimes": "retry_max_times",
    "notifyConsumerIdsChangedEnable": "notify_consumer_ids_changed_enable",
}
_UNUSED_DEFAULTS: Mapping[str, Any] = {
    "attributes": {},
    "brokerId": 0,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "whichBrokerWhenConsumeSlowly": 1,
}


@dataclass(frozen=True)
class SubscriptionGroupConfig:
    """Settings of one group. ``unused`` are Apache's further settings, kept as they were found."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    notify_consumer_ids_changed_enable: bool = True
    unused: Mapping[str, Any] = field(default_factory=lambda: dict(_UNUSED_DEFAULTS))

    def to_json(self) -> dict[str, Any]:
        return {**self.unused, **{java: getattr(self, name) for java, name in _NAMES.items()}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SubscriptionGroupConfig:
        """Raises TypeError when the group has no name."""
        known = {name: values[java] for java, name in _NAMES.items() if values.get(java) is not None}
        unused = {**_UNUSED_DEFAULTS, **{name: value for name, value in values.items() if name not in _NAMES}}
        return cls(**known, unused=unused)


class GroupTable:
    """All groups. ``persist`` is called with the new text whenever one was added."""

    def __init__(self, clock: Clock, persist: Callable[[str], None], *, auto_create: bool = True) -> None:
        self._clock = clock
        self._persist = persist
        self._auto_create = auto_create
        self._version = DataVersion(timestamp=clock.time_ms())
        self._forbidden: dict[str, Any] = {}
        self._groups = {name: SubscriptionGroupConfig(name) for name in BUILT_IN_GROUPS}

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """The group's settings; made now if it is unknown, its name is legal, and groups are made automatically."""
        group = self._groups.get(name)
        if group is None and self._auto_create and len(name) <= MAX_GROUP_CHARACTERS and is_valid_name(name):
            group = SubscriptionGroupConfig(name)
            self.put(group)
        return group

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Add or replace a group.

        One that cannot be written down is known all the same: who only reads needs no room on the disk, and the next
        write, at the latest that of the stop, holds it.
        """
        self._groups[group.group_name] = group
        self._version = self._version.next(self._clock.time_ms())
        try:
            self._persist(self.encode())
        except OSError as error:
            _log.error("group %s could not be written to subscriptionGroup.json: %s", group.group_name, error)

    def encode(self) -> str:
        """The text of ``subscriptionGroup.json``."""
        values = {
            "dataVersion": self._version.to_json(),
            "forbiddenTable": self._forbidden,
            "subscriptionGroupTable": {name: group.to_json() for name, group in self._groups.items()},
        }
        return json.dumps(values, indent="\t", sort_keys=True)

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
        self._forbidden = values.get("forbiddenTable") or {}
        self._version = version
