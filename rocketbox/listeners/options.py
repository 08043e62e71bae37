"""The options of a listener after everything that was said about them is put together.

Which options there are is said once, by :class:`rocketbox.marks.rocketmq_listener`; here stand their defaults, which
belong to the group and which to the function, and who said what. Where the values come from (YAML, decorator) and
their conversion are the caller's.

Source: rocketmq-spring 2.3 ``@RocketMQMessageListener`` (names and defaults).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any
from urllib.parse import quote

from rocketbox.client import ConsumerOptions
from rocketbox.client.local_offsets import default_offset_dir
from rocketbox.client.options import MemberOptions
from rocketbox.marks import rocketmq_listener
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageModel, SelectorType

__all__ = [
    "DEFAULTS",
    "FUNCTION_OPTIONS",
    "GROUP_OPTIONS",
    "GroupOptions",
    "SECRET_OPTIONS",
    "OnInvalid",
    "Said",
    "consumer_options",
]


class OnInvalid(Enum):
    """What happens to a message whose payload cannot be read."""

    DEAD_LETTER = "dead-letter"
    RETRY = "retry"
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True)
class GroupOptions(MemberOptions):
    """What belongs to a consumer group as a whole, with the defaults of ``@RocketMQMessageListener``.

    ``max_reconsume_times`` -1 is 16 for concurrent groups and without end for orderly ones.
    ``delay_level_when_next_consume``: 0 the broker decides, -1 dead-letter at once, 1..18 that level.
    ``namespace`` or ``namespace_v2``, ``access_key`` and ``secret_key`` are None where they are the cluster's.
    ``invalid_limit``: so many payloads a minute that cannot be read are tolerated. ``reply_timeout`` is for sending
    what the listener of a request returns.
    """

    consume_mode: ConsumeMode = ConsumeMode.CONCURRENTLY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    concurrency: int = 20
    max_reconsume_times: int = -1
    consume_timeout: timedelta = timedelta(minutes=15)
    suspend_current_queue_time: timedelta = timedelta(seconds=1)
    delay_level_when_next_consume: int = 0
    pull_batch_size: int = 32
    pull_interval: timedelta = timedelta(0)
    await_termination_when_shutdown: timedelta | None = None  # None: as long as the application's stop allows
    invalid_limit: int = 100
    reply_timeout: timedelta = timedelta(seconds=3)
    namespace: str | None = None
    namespace_v2: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)


GROUP_OPTIONS = tuple(field.name for field in dataclasses.fields(GroupOptions))

SECRET_OPTIONS = tuple(each.name for each in dataclasses.fields(rocketmq_listener) if not each.repr)
"""Those whose values are never shown."""

FUNCTION_OPTIONS = tuple(
    field.name
    for field in dataclasses.fields(rocketmq_listener)
    if field.name not in (*GROUP_OPTIONS, "consumer_group", "cluster", "enabled")
)
"""What a function owns: topic, selector, batch and what becomes of its invalid payloads."""

DEFAULTS: Mapping[str, Any] = {
    **{field.name: field.default for field in dataclasses.fields(GroupOptions)},
    "selector_type": SelectorType.TAG,
    "selector_expression": "*",
    "on_invalid": OnInvalid.DEAD_LETTER,
    "enabled": True,
}


@dataclass(frozen=True)
class Said:
    """Options that somebody said: by name, in their final types, and where each was written.

    Values are in no ``repr``: keys are among them.
    """

    values: Mapping[str, Any] = field(repr=False)
    where: Callable[[str], str]

    @staticmethod
    def nothing() -> Said:
        return Said({}, lambda name: "nowhere")


def consumer_options(
    options: GroupOptions, *, cluster: str | None = None, wait_for_servers: bool = False
) -> ConsumerOptions:
    """The client's options for a group; its times are float seconds. The end of running handlers is the container's.

    Who the group is, is the client instance's affair. The offsets of broadcasting groups of a further ``cluster`` have
    a directory of their own: brokers and topics of two clusters may have the same names.
    """
    return ConsumerOptions(
        consume_mode=options.consume_mode,
        message_model=options.message_model,
        concurrency=options.concurrency,
        consume_from_where=options.consume_from_where,
        max_reconsume_times=options.max_reconsume_times,
        delay_level_when_next_consume=options.delay_level_when_next_consume,
        consume_timeout=options.consume_timeout.total_seconds(),
        pull_batch_size=options.pull_batch_size,
        pull_interval=options.pull_interval.total_seconds(),
        suspend_current_queue_time=options.suspend_current_queue_time.total_seconds(),
        await_termination=0.0,
        local_offset_dir=default_offset_dir() / f"cluster-{quote(cluster, safe='')}" if cluster else None,
        wait_for_servers=wait_for_servers,
        **{each.name: getattr(options, each.name) for each in dataclasses.fields(MemberOptions)},
    )
