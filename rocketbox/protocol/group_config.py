"""The settings of a consumer group, as brokers keep and exchange them.

Source: Apache RocketMQ 5.x ``SubscriptionGroupConfig``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rocketbox.protocol.json_values import as_int, as_text

__all__ = ["SubscriptionGroupConfig"]

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
_UNUSED_DEFAULTS: Mapping[str, Any] = MappingProxyType(  # one for all groups, of which there may be 100,000
    {
        "attributes": {},
        "brokerId": 0,
        "consumeTimeoutMinute": 15,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "whichBrokerWhenConsumeSlowly": 1,
    }
)


@dataclass(frozen=True, slots=True)  # of many groups the collector of garbage looks at one object each, not two
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
    unused: Mapping[str, Any] = field(default_factory=lambda: _UNUSED_DEFAULTS)

    def to_json(self) -> dict[str, Any]:
        return {**self.unused, **{java: getattr(self, name) for java, name in _NAMES.items()}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SubscriptionGroupConfig:
        """Raises TypeError or ValueError when a setting is of the wrong type, or the group has no name."""
        known = {name: _READERS[name](values[java]) for java, name in _NAMES.items() if values.get(java) is not None}
        unused = {**_UNUSED_DEFAULTS, **{name: value for name, value in values.items() if name not in _NAMES}}
        return cls(**known, unused=_UNUSED_DEFAULTS if unused == _UNUSED_DEFAULTS else unused)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.40} is neither true nor false")
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    option.name: {"str": as_text, "int": as_int, "bool": _bool}[str(option.type)]
    for option in dataclasses.fields(SubscriptionGroupConfig)
    if option.name != "unused"
}
