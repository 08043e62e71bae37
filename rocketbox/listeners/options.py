"""The options of a listener after everything that was said about them is put together.

Each option is declared once: those of the client in :class:`rocketbox.client.ConsumerOptions`, the others here, by
whose they are. The decorator (``marks``) and the settings (``autoconfigure.properties``) have the same ones. Where the
values come from (YAML, decorator) and their conversion are the caller's.

Source: rocketmq-spring 2.3 ``@RocketMQMessageListener`` (names and defaults).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import quote

from annotated_types import Ge, Le

from rocketbox.client import ConsumerOptions
from rocketbox.client.local_offsets import default_offset_dir
from rocketbox.client.options import SelectionOptions, UserOptions
from rocketbox.declarations import IN_CODE, SECONDS, Option, Words, options_of

__all__ = [
    "FUNCTION_OPTIONS",
    "GROUP_OPTIONS",
    "LISTENER_OPTIONS",
    "FunctionOptions",
    "GroupOptions",
    "OnInvalid",
    "Placement",
    "OptionLayer",
    "consumer_options",
]


class OnInvalid(Enum):
    """What happens to a message whose payload cannot be read."""

    DEAD_LETTER = "dead-letter"
    RETRY = "retry"
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a listener belongs, and whether it runs. Group and cluster are in the keys of settings already."""

    topic: Annotated[str | None, Words("the topic that is listened to")] = None
    consumer_group: Annotated[str | None, IN_CODE, Words("the consumer group")] = None
    cluster: Annotated[str | None, IN_CODE, Words("the cluster whose messages are taken; none: the main one")] = None
    enabled: Annotated[bool, Words("false: it does not start")] = True


@dataclass(frozen=True, kw_only=True)
class FunctionOptions(SelectionOptions):
    """What a function owns beside its topic: selection, batch, and what becomes of its invalid payloads.

    ``consume_message_batch_max_size`` None: it depends on the handler.
    """

    consume_message_batch_max_size: Annotated[
        int | None, Ge(1), Le(1024), Words("messages of a batch, for handlers that take a list")
    ] = None
    on_invalid: Annotated[OnInvalid, Words("what happens to a payload that cannot be read")] = OnInvalid.DEAD_LETTER


@dataclass(frozen=True, kw_only=True)
class GroupOptions(ConsumerOptions, UserOptions):
    """What belongs to a consumer group as a whole: what its consumer takes, and what its container does.

    Keys and namespace are None where they are the cluster's. ``await_termination_when_shutdown`` None: as long as the
    application's stop allows. ``invalid_limit``: so many payloads a minute that cannot be read are dead-lettered.
    """

    await_termination_when_shutdown: Annotated[
        float | None, SECONDS, Ge(0), Words("how long running handlers may take at the stop")
    ] = None
    invalid_limit: Annotated[
        int, Ge(1), Le(2**31 - 1), Words("unreadable payloads a minute that are dead-lettered before the group pauses")
    ] = 100


GROUP_OPTIONS: Mapping[str, Option] = {
    name: option for name, option in options_of(GroupOptions).items() if option.key is not None
}
"""What the whole group says alike; the rest of ``GroupOptions`` is the container's to say."""

FUNCTION_OPTIONS: Mapping[str, Option] = {
    "topic": options_of(Placement)["topic"],
    **options_of(SelectionOptions),
    **options_of(FunctionOptions),
}
"""What a function owns."""

LISTENER_OPTIONS: Mapping[str, Option] = {**options_of(Placement), **FUNCTION_OPTIONS, **GROUP_OPTIONS}
"""Everything that ``@rocketmq_listener`` takes, in its order."""


@dataclass(frozen=True)
class OptionLayer:
    """Options that somebody said: by name, in their final types, and where each was written.

    Values are in no ``repr``: keys are among them.
    """

    values: Mapping[str, Any] = field(repr=False)
    where: Callable[[str], str]

    @staticmethod
    def empty() -> OptionLayer:
        return OptionLayer({}, lambda name: "nowhere")


def consumer_options(
    options: GroupOptions, given: Mapping[str, Any] = MappingProxyType({}), *, cluster: str | None = None
) -> ConsumerOptions:
    """The client's part of a group's options, of which ``given`` win. The end of running handlers is the container's.

    Who the group is, is the client instance's affair. The offsets of broadcasting groups of a further ``cluster`` have
    a directory of their own: brokers and topics of two clusters may have the same names.
    """
    said = {each.name: getattr(options, each.name) for each in dataclasses.fields(ConsumerOptions)}
    said["await_termination"] = 0.0
    said["local_offset_dir"] = default_offset_dir() / f"cluster-{quote(cluster, safe='')}" if cluster else None
    return ConsumerOptions(**{**said, **given})
