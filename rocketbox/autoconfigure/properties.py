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

from rocketbox.boot.units import DataSize, Duration, DurationWithUnit
from rocketbox.client import ProducerOptions
from rocketbox.listeners.options import OnInvalid
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


_OPTIONS: dict[str, Any] = {
    name: (_type_in_settings(name, hint), None) for name, hint in typing.get_type_hints(rocketmq_listener).items()
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

    group: Text | None = None
    send_message_timeout: Duration = timedelta(seconds=3)
    retry_times_when_send_failed: int = Field(default=2, ge=0)
    retry_next_server: bool = False
    max_message_size: DataSize = Field(default=4 << 20, gt=0)
    accept_weak_ack: bool = False

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
    enabled: bool = True
    group: Text | None = None
    missing_topic: Literal["wait", "fail"] = "wait"
    listeners: dict[str, ListenerProperties] = Field(default_factory=dict)  # type: ignore[valid-type]  # made above


ConsumerProperties = create_model("ConsumerProperties", __base__=_Consumer, **_DEFAULTS_OF_LISTENERS)
"""``rocketmq.consumer``: the switch of all listeners, defaults of their options, and the listeners by their group."""


class ClusterProperties(Properties):
    """``rocketmq.clusters.<name>``, and what ``rocketmq`` itself has of a cluster."""

    name_server: Text | None = None
    startup: Literal["fail", "retry"] = "fail"
    producer: ProducerProperties = Field(default_factory=ProducerProperties)
    consumer: ConsumerProperties = Field(default_factory=ConsumerProperties)  # type: ignore[valid-type]  # made above


class RocketMQProperties(ClusterProperties):
    """``rocketmq``: the main cluster, the switch of everything, and further clusters."""

    enabled: bool = True
    clusters: dict[str, ClusterProperties] = Field(default_factory=dict)

    def cluster(self, name: str) -> ClusterProperties:
        """The cluster of that name; the empty name is the main one."""
        return self.clusters[name] if name else self


class EmbeddedProperties(Properties):
    """``rocketbox.embedded``: the servers that ``rocketmq.name-server: embedded`` starts.

    Port 0 takes a free one. Further keys are Apache's broker settings in kebab case.
    """

    model_config = ConfigDict(extra="allow")

    data_dir: Path | None = None
    host: Text = "127.0.0.1"
    port: int = Field(default=10911, ge=0, le=65535)
    name_server_port: int = Field(default=9876, ge=0, le=65535)
    flush_disk_type: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = "SYNC_FLUSH"
    insecure: bool = False


class LoggingProperties(Properties):
    """``rocketbox.logging``: levels by logger name, and the form of a line."""

    level: dict[str, Literal["debug", "info", "warning", "error", "critical", "DEBUG", "INFO", "WARNING", "ERROR"]] = (
        Field(default_factory=dict)
    )
    format: Literal["text", "json"] = "text"


class SparkProperties(Properties):
    """``rocketbox.spark``: Spark's own configuration, and the folder under which each group keeps its checkpoint."""

    conf: dict[str, str] = Field(default_factory=dict)
    checkpoint: Path | None = None


class ShutdownProperties(Properties):
    """``rocketbox.shutdown``: how long the whole stop may take."""

    timeout: Duration = timedelta(seconds=20)


class AutoconfigureProperties(Properties):
    """``rocketbox.autoconfigure``: names of auto-configurations that are left out."""

    exclude: list[str] = Field(default_factory=list)


class RocketBoxProperties(Properties):
    """``rocketbox``: everything that is not RocketMQ's."""

    embedded: EmbeddedProperties = Field(default_factory=EmbeddedProperties)
    logging: LoggingProperties = Field(default_factory=LoggingProperties)
    spark: SparkProperties = Field(default_factory=SparkProperties)
    shutdown: ShutdownProperties = Field(default_factory=ShutdownProperties)
    autoconfigure: AutoconfigureProperties = Field(default_factory=AutoconfigureProperties)
