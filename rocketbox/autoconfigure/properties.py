"""The keys under ``rocketmq.*`` and ``rocketbox.*``: names, types, defaults. Each of them has its effect.

Plain pydantic models; reading files and environment is ``boot.settings``' business. The options of listeners are not
written down again: their model is made from the fields of :class:`rocketbox.marks.rocketmq_listener`.

Source: rocketmq-spring 2.3 ``RocketMQProperties``; Apache RocketMQ 5.x ``BrokerConfig`` and ``MessageStoreConfig``
(keys of ``rocketbox.embedded`` beside the named ones).
"""

from __future__ import annotations

import dataclasses
import typing
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, create_model

from rocketbox.boot.units import DataSize, Duration, DurationWithUnit, format_duration
from rocketbox.client import ProducerOptions
from rocketbox.listeners.options import DEFAULTS, OnInvalid
from rocketbox.marks import rocketmq_listener

__all__ = [
    "ClusterProperties",
    "ConsumerProperties",
    "EmbeddedProperties",
    "ListenerProperties",
    "LoggingProperties",
    "ProducerProperties",
    "RocketBoxProperties",
    "RocketMQProperties",
    "SparkProperties",
    "listener_options",
]

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Properties(BaseModel):
    """What all of them share: kebab-case keys, no unknown ones, values that do not change."""

    model_config = ConfigDict(
        alias_generator=lambda name: name.rstrip("_").replace("_", "-"),
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        coerce_numbers_to_str=True,
    )


def _any_spelling(enum: type[Enum]) -> Any:
    """An enum that may be written as its name or value, in any case, with - or _."""

    def plain(text: object) -> str:
        return str(text).replace("-", "").replace("_", "").lower()

    def read(value: Any) -> Any:
        for member in enum:
            if value is member or plain(value) in (plain(member.name), plain(member.value)):
                return member
        raise ValueError(f"{value!r} is none of {', '.join(str(member.value) for member in enum)}")

    return Annotated[enum, BeforeValidator(read)]


def _type_in_settings(name: str, hint: Any) -> Any:
    """The type of a listener option where it comes from text: ``int | None`` stays, times need a unit."""
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if timedelta in kinds:
        return DurationWithUnit | None
    if name == "on_invalid":
        return _any_spelling(OnInvalid) | None
    (kind,) = kinds
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _any_spelling(kind) | None
    return (Text if kind is str else kind) | None


_DESCRIPTIONS = {
    "topic": "the topic that is listened to",
    "consumer_group": "the consumer group",
    "selector_type": "how the expression is meant: TAG or SQL92",
    "selector_expression": "which messages are taken: tags such as UA || AA",
    "consume_mode": "CONCURRENTLY, or ORDERLY: one message of a queue after the other",
    "message_model": "CLUSTERING: one of the group gets a message; BROADCASTING: each of them",
    "consume_from_where": "where a new group begins: at the messages to come, or at the oldest",
    "concurrency": "handlers at once",
    "consume_message_batch_max_size": "messages of a batch, for handlers that take a list",
    "max_reconsume_times": "retries before the dead-letter queue; -1: 16, for orderly listeners without end",
    "consume_timeout": "a message that is held longer comes back",
    "suspend_current_queue_time": "pause of an orderly queue after a failure",
    "delay_level_when_next_consume": "0: the broker's own delays; 1 to 18: that level; -1: dead-letter queue",
    "pull_batch_size": "messages asked for at once",
    "pull_interval": "pause between two pulls",
    "await_termination_when_shutdown": "how long running handlers may take at the stop",
    "on_invalid": "what happens to a payload that cannot be read",
    "invalid_limit": "payloads a minute that cannot be read before the listener pauses",
    "cluster": "the cluster whose messages are taken; none: the main one",
    "enabled": "false: it does not start",
}


def _option(name: str, hint: Any) -> Any:
    default = DEFAULTS.get(name)
    words = format_duration(default) if isinstance(default, timedelta) else getattr(default, "name", default)
    said = (
        _DESCRIPTIONS[name]
        if words is None
        else f"{_DESCRIPTIONS[name]} (default {str(words).replace('True', 'true')})"
    )
    return _type_in_settings(name, hint), Field(default=None, description=said)


_OPTIONS: dict[str, Any] = {
    name: _option(name, hint) for name, hint in typing.get_type_hints(rocketmq_listener).items()
}
assert _OPTIONS.keys() == {field.name for field in dataclasses.fields(rocketmq_listener)}

MarkProperties = create_model("MarkProperties", __base__=Properties, **_OPTIONS)
"""All options of the decorator, as a decorator or a setting says them."""

_IN_SETTINGS = {name: option for name, option in _OPTIONS.items() if name not in ("consumer_group", "cluster")}


class _Listener(Properties):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any] = {}  # topic switches; the registrar refuses what is none


ListenerProperties = create_model("ListenerProperties", __base__=_Listener, **_IN_SETTINGS)
"""``rocketmq.consumer.listeners.<group>``: any option of the decorator; rocketmq-spring's switch ``<topic>: false``."""


def listener_options(properties: BaseModel) -> dict[str, Any]:
    """The listener options that a model was given, by name."""
    return {
        name: value
        for name in properties.model_fields_set
        if name in _OPTIONS and (value := getattr(properties, name)) is not None
    }


class ProducerProperties(Properties):
    """``rocketmq.producer``: its ``group`` switches producer and template on."""

    group: Text | None = Field(default=None, description="the producer group; switches producer and template on")
    send_message_timeout: Duration = Field(default=timedelta(seconds=3), description="for a send with all its tries")
    retry_times_when_send_failed: int = Field(default=2, ge=0, description="tries after the first one")
    retry_next_server: bool = Field(
        default=False, description="try another broker when a message was stored less safely than asked"
    )
    max_message_size: DataSize = Field(
        default=4 << 20, gt=0, description="larger bodies are refused before they are sent"
    )
    accept_weak_ack: bool = Field(
        default=False, description="true: a message that is stored less safely than asked is a result, not an error"
    )

    def options(self) -> ProducerOptions:
        """The same for the client."""
        return ProducerOptions(
            send_message_timeout=self.send_message_timeout.total_seconds(),
            retry_times_when_send_failed=self.retry_times_when_send_failed,
            retry_another_broker_when_not_store_ok=self.retry_next_server,
            max_message_size=self.max_message_size,
            accept_weak_ack=self.accept_weak_ack,
        )


_DEFAULTS_OF_LISTENERS = {name: option for name, option in _IN_SETTINGS.items() if name != "enabled"}


class _Consumer(Properties):
    enabled: bool = Field(default=True, description="false: no listener starts")
    group: Text | None = Field(default=None, description="the consumer group of listeners that name none")
    missing_topic: Literal["wait", "fail"] = Field(
        default="wait", description="what happens at the start when a topic does not exist"
    )
    listeners: dict[str, ListenerProperties] = Field(  # type: ignore[valid-type]  # made above
        default_factory=dict, description="options of listeners by their consumer group; they win over the decorator"
    )


ConsumerProperties = create_model("ConsumerProperties", __base__=_Consumer, **_DEFAULTS_OF_LISTENERS)
"""``rocketmq.consumer``: the switch of all listeners, defaults of their options, and the listeners by their group."""


class ClusterProperties(Properties):
    """``rocketmq.clusters.<name>``, and what ``rocketmq`` itself has of a cluster."""

    name_server: Text | None = Field(default=None, description="host:port, several with ;, or embedded")
    startup: Literal["fail", "retry"] = Field(
        default="fail", description="what happens when no name server answers: fail, or retry until one does"
    )
    producer: ProducerProperties = Field(default_factory=ProducerProperties)
    consumer: ConsumerProperties = Field(default_factory=ConsumerProperties)  # type: ignore[valid-type]  # made above


class RocketMQProperties(ClusterProperties):
    """``rocketmq``: the main cluster, the switch of everything, and further clusters."""

    enabled: bool = Field(default=True, description="false: nothing of RocketMQ starts")
    clusters: dict[str, ClusterProperties] = Field(
        default_factory=dict, description="further clusters by their names, with the same keys"
    )

    def cluster(self, name: str) -> ClusterProperties:
        """The cluster of that name; the empty name is the main one."""
        return self.clusters[name] if name else self


class EmbeddedProperties(Properties):
    """``rocketbox.embedded``: the servers that ``rocketmq.name-server: embedded`` starts.

    Port 0 takes a free one. Further keys are Apache's broker settings in kebab case.
    """

    model_config = ConfigDict(extra="allow")

    data_dir: Path | None = Field(default=None, description="the broker's files (default .rocketbox/<app>/store)")
    host: Text = Field(default="127.0.0.1", description="the address to listen on")
    port: int = Field(default=10911, ge=0, le=65535, description="the broker's port; 0 takes a free one")
    name_server_port: int = Field(
        default=9876, ge=0, le=65535, description="the name server's port; 0 takes a free one"
    )
    flush_disk_type: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = Field(
        default="SYNC_FLUSH", description="ASYNC_FLUSH acknowledges before the disk has a message"
    )
    insecure: bool = Field(default=False, description="true allows addresses that other machines can reach")


class LoggingProperties(Properties):
    """``rocketbox.logging``: levels by logger name, and the form of a line."""

    level: dict[str, Literal["debug", "info", "warning", "error", "critical", "DEBUG", "INFO", "WARNING", "ERROR"]] = (
        Field(default_factory=dict, description="levels by the names of loggers")
    )
    format: Literal["text", "json"] = Field(default="text", description="the form of a line")


class SparkProperties(Properties):
    """``rocketbox.spark``: Spark's own configuration, and the folder under which each group keeps its checkpoint."""

    conf: dict[str, str] = Field(default_factory=dict, description="Spark's own configuration")
    checkpoint: Path | None = Field(
        default=None,
        description="the folder of checkpoints, one below it for each group (default .rocketbox/<app>/spark)",
    )


class ShutdownProperties(Properties):
    """``rocketbox.shutdown``: how long the whole stop may take."""

    timeout: Duration = Field(default=timedelta(seconds=20), description="for the whole stop")


class AutoconfigureProperties(Properties):
    """``rocketbox.autoconfigure``: names of auto-configurations that are left out."""

    exclude: list[str] = Field(default_factory=list, description="names of auto-configurations to leave out")


class RocketBoxProperties(Properties):
    """``rocketbox``: everything that is not RocketMQ's."""

    embedded: EmbeddedProperties = Field(default_factory=EmbeddedProperties)
    logging: LoggingProperties = Field(default_factory=LoggingProperties)
    spark: SparkProperties = Field(default_factory=SparkProperties)
    shutdown: ShutdownProperties = Field(default_factory=ShutdownProperties)
    autoconfigure: AutoconfigureProperties = Field(default_factory=AutoconfigureProperties)
