"""The keys under ``rocketmq.*`` and ``rocketbox.*``: names, types, defaults. Each of them has its effect.

Plain pydantic models; reading files and environment is ``boot.root_settings``' business. The options of listeners are
not written down again: their model is made from the fields of :class:`rocketbox.marks.rocketmq_listener`.

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

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    create_model,
    field_validator,
)

from rocketbox.boot.shapes import key_text
from rocketbox.boot.units import DataSize, Duration, DurationWithUnit
from rocketbox.client import AccessChannel, ClientOptions, LitePullConsumerOptions, ProducerOptions
from rocketbox.client.options import MAX_CACHED_BYTES, SYSTEM_TRACE_TOPIC, MemberOptions
from rocketbox.client.unbuilt import UNBUILT
from rocketbox.durations import format_duration
from rocketbox.listeners.options import DEFAULTS, SECRET_OPTIONS, OnInvalid
from rocketbox.marks import rocketmq_listener
from rocketbox.message import MessageModel, SelectorType

__all__ = [
    "ClusterProperties",
    "TlsProperties",
    "ConsumerProperties",
    "EmbeddedProperties",
    "ListenerProperties",
    "LoggingProperties",
    "ProducerProperties",
    "PullConsumerProperties",
    "RocketBoxProperties",
    "RocketMQProperties",
    "SparkProperties",
    "cluster_prefix",
    "listener_options",
]

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _usable(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not text.strip():
        raise ValueError("a key cannot be blank; leave it out instead")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("a key must be text, and has bytes that are no UTF-8")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_usable)]


class Properties(BaseModel):
    """What all of them share: kebab-case keys, no unknown ones, values that do not change."""

    model_config = ConfigDict(
        alias_generator=lambda name: name.rstrip("_").replace("_", "-"),
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        coerce_numbers_to_str=True,
    )


def _any_spelling(enum: type[Enum]) -> BeforeValidator:
    """Lets an enum be written as its name or value, in any case, with - or _."""

    def plain(text: object) -> str:
        return str(text).replace("-", "").replace("_", "").lower()

    def read(value: Any) -> Any:
        for member in enum:
            if value is member or plain(value) in (plain(member.name), plain(member.value)):
                return member
        raise ValueError(f"{value!r} is none of {', '.join(str(member.value) for member in enum)}")

    return BeforeValidator(read)


def _type_in_settings(name: str, hint: Any) -> Any:
    """The type of a listener option where it comes from text: ``int | None`` stays, times need a unit."""
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if timedelta in kinds:
        return DurationWithUnit | None
    if name == "on_invalid":
        return Annotated[OnInvalid, _any_spelling(OnInvalid)] | None
    if name in SECRET_OPTIONS:
        return Secret | None
    (kind,) = kinds
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Annotated[kind, _any_spelling(kind)] | None
    return (Text if kind is str else kind) | None


_NOT_YET = "not built yet"


def _about(name: str, words: str) -> str:
    """The description of an option, which says so when its feature is not built yet."""
    return f"{words}; {_NOT_YET}" if name in UNBUILT else words


_NAMESPACE = "the namespace, written before the names of topics and groups; not together with namespace-v2"
_NAMESPACE_V2 = "the namespace, sent in a header; not together with namespace"
_ACCESS_KEY = "the user whose requests these are (ACL); together with secret-key"
_SECRET_KEY = "what the user's requests are signed with (ACL); together with access-key"
_TRACE = "true: what becomes of each message is sent to the trace topic"
_TRACE_TOPIC = "the topic of the trace"
_TLS = "true: connections are encrypted; the same wherever a cluster says it"
_INSTANCE_NAME = (
    "the client's name, the same wherever a cluster says it; DEFAULT becomes <process id>#<number>, another name must "
    "be one process's on a machine"
)
_MESSAGE_MODEL = "CLUSTERING: one of the group gets a message; BROADCASTING: each of them"
_SELECTOR_TYPE = "how the expression is meant: TAG or SQL92"
_SELECTOR = "which messages are taken: tags such as UA || AA"
_PULL_BATCH = "messages asked for at once"

_DESCRIPTIONS = {
    "topic": "the topic that is listened to",
    "consumer_group": "the consumer group",
    "selector_type": _SELECTOR_TYPE,
    "selector_expression": _SELECTOR,
    "consume_mode": "CONCURRENTLY, or ORDERLY: one message of a queue after the other",
    "message_model": _MESSAGE_MODEL,
    "consume_from_where": "where a new group begins: at the messages to come, or at the oldest",
    "concurrency": "handlers at once",
    "consume_message_batch_max_size": "messages of a batch, for handlers that take a list",
    "max_reconsume_times": "retries before the dead-letter queue; -1: 16, for orderly listeners without end",
    "consume_timeout": "a message that is held longer comes back",
    "suspend_current_queue_time": "pause of an orderly queue after a failure",
    "delay_level_when_next_consume": "0: the broker's own delays; 1 to 18: that level; -1: dead-letter queue",
    "pull_batch_size": _PULL_BATCH,
    "pull_interval": "pause between two pulls",
    "await_termination_when_shutdown": "how long running handlers may take at the stop",
    "on_invalid": "what happens to a payload that cannot be read",
    "invalid_limit": "payloads a minute that cannot be read before the listener pauses",
    "reply_timeout": "for sending what the listener of a request returns",
    "namespace": _NAMESPACE,
    "namespace_v2": _NAMESPACE_V2,
    "access_key": _ACCESS_KEY,
    "secret_key": _SECRET_KEY,
    "enable_msg_trace": _TRACE,
    "customized_trace_topic": _TRACE_TOPIC,
    "cluster": "the cluster whose messages are taken; none: the main one",
    "enabled": "false: it does not start",
}


def _option(name: str, hint: Any) -> Any:
    default = DEFAULTS.get(name)
    words = format_duration(default) if isinstance(default, timedelta) else getattr(default, "value", default)
    if isinstance(words, bool):
        words = str(words).lower()
    said = _DESCRIPTIONS[name] if words is None else f"{_DESCRIPTIONS[name]} (default {words})"
    return _type_in_settings(name, hint), Field(default=None, description=_about(name, said))


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
    """The listener options that a model was given, by name; secrets as plain text."""
    return {
        name: _plain(value)
        for name in properties.model_fields_set
        if name in _OPTIONS and (value := getattr(properties, name)) is not None
    }


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


class _Member(Properties):
    """What producer and pull consumer have alike."""

    namespace: Text | None = Field(default=None, description=_about("namespace", _NAMESPACE))
    namespace_v2: Text | None = Field(default=None, description=_about("namespace_v2", _NAMESPACE_V2))
    access_key: Secret | None = Field(default=None, description=_about("access_key", _ACCESS_KEY))
    secret_key: Secret | None = Field(default=None, description=_about("secret_key", _SECRET_KEY))
    enable_msg_trace: bool = Field(default=False, description=_about("enable_msg_trace", _TRACE))
    customized_trace_topic: Text = Field(
        default=SYSTEM_TRACE_TOPIC, description=_about("customized_trace_topic", _TRACE_TOPIC)
    )
    tls_enable: bool = Field(default=False, description=_about("tls_enable", _TLS))
    instance_name: Text = Field(default="DEFAULT", description=_INSTANCE_NAME)

    def member_options(self) -> dict[str, Any]:
        """The options that both have; who they are is the client's (``users``)."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(MemberOptions)}


class ProducerProperties(_Member):
    """``rocketmq.producer``: its ``group`` switches producer and template on."""

    group: Text | None = Field(default=None, description="the producer group; switches producer and template on")
    send_message_timeout: Duration = Field(
        default=timedelta(seconds=3), gt=timedelta(0), description="for a send with all its tries"
    )
    compress_message_body_threshold: DataSize = Field(
        default=4096,
        ge=0,
        description=_about("compress_message_body_threshold", "bodies of this size and more are compressed"),
    )
    retry_times_when_send_failed: int = Field(default=2, ge=0, description="tries after the first one")
    retry_times_when_send_async_failed: int = Field(
        default=2, ge=0, description="tries after the first one for each message of send_many"
    )
    retry_next_server: bool = Field(
        default=False, description="try another broker when a message was stored less safely than asked"
    )
    max_message_size: DataSize = Field(
        default=4 << 20, gt=0, description="larger bodies are refused before they are sent"
    )
    accept_weak_ack: bool = Field(
        default=False, description="true: a message that is stored less safely than asked is a result, not an error"
    )
    send_latency_fault_enable: bool = Field(
        default=False, description="true: stay away from brokers that were slow, by Apache's fault latency table"
    )

    def options(self) -> ProducerOptions:
        """The same for the client."""
        return ProducerOptions(
            **self.member_options(),
            send_message_timeout=self.send_message_timeout.total_seconds(),
            compress_message_body_threshold=self.compress_message_body_threshold,
            retry_times_when_send_failed=self.retry_times_when_send_failed,
            retry_times_when_send_async_failed=self.retry_times_when_send_async_failed,
            retry_another_broker_when_not_store_ok=self.retry_next_server,
            max_message_size=self.max_message_size,
            accept_weak_ack=self.accept_weak_ack,
            send_latency_fault_enable=self.send_latency_fault_enable,
        )


class PullConsumerProperties(_Member):
    """``rocketmq.pull-consumer``: its ``group`` and ``topic`` together ask for the pull consumer, not built yet."""

    group: Text | None = Field(default=None, description="the group of the pull consumer, which needs a topic as well")
    topic: Text | None = Field(default=None, description="the topic that is pulled from")
    message_model: Annotated[MessageModel, _any_spelling(MessageModel)] = Field(
        default=MessageModel.CLUSTERING, description=_MESSAGE_MODEL
    )
    selector_type: Annotated[SelectorType, _any_spelling(SelectorType)] = Field(
        default=SelectorType.TAG, description=_SELECTOR_TYPE
    )
    selector_expression: Text = Field(default="*", description=_SELECTOR)
    pull_batch_size: int = Field(default=10, ge=1, le=1024, description=_PULL_BATCH)

    def options(self) -> LitePullConsumerOptions:
        """The same for the client."""
        return LitePullConsumerOptions(
            **self.member_options(),
            message_model=self.message_model,
            selector_type=self.selector_type,
            selector_expression=self.selector_expression,
            pull_batch_size=self.pull_batch_size,
        )


_DEFAULTS_OF_LISTENERS = {name: option for name, option in _IN_SETTINGS.items() if name != "enabled"}


class _Consumer(Properties):
    enabled: bool = Field(default=True, description="false: no listener starts")
    group: Text | None = Field(default=None, description="the consumer group of listeners that name none")
    tls_enable: bool = Field(default=False, description=_about("tls_enable", _TLS))
    instance_name: Text = Field(default="DEFAULT", description=_INSTANCE_NAME)
    missing_topic: Literal["wait", "fail"] = Field(
        default="wait",
        description="for a topic that does not exist: wait (not ready, a warning each minute), or fail at the start",
    )
    listeners: dict[str, ListenerProperties] = Field(  # type: ignore[valid-type]  # made above
        default_factory=dict, description="options of listeners by their consumer group; they win over the decorator"
    )


ConsumerProperties = create_model("ConsumerProperties", __base__=_Consumer, **_DEFAULTS_OF_LISTENERS)
"""``rocketmq.consumer``: the switch of all listeners, defaults of their options, and the listeners by their group."""


def cluster_prefix(name: str | None) -> str:
    """The key below which those of a cluster stand; of the main one, which has no name, ``rocketmq``."""
    return key_text(("rocketmq", "clusters", name)) if name else "rocketmq"


class TlsProperties(Properties):
    """``rocketmq.tls``: encrypted connections to the servers of the cluster."""

    enabled: bool = Field(default=False, description=_about("tls_enable", _TLS))


class ClusterProperties(Properties):
    """``rocketmq.clusters.<name>``, and what ``rocketmq`` itself has of a cluster.

    Keys and namespace are of all who do not say their own.
    """

    name_server: Text | None = Field(
        default=None, description="host:port, several with ;, or embedded; false: nothing of it starts"
    )
    access_key: Secret | None = Field(default=None, description=_about("access_key", _ACCESS_KEY))
    secret_key: Secret | None = Field(default=None, description=_about("secret_key", _SECRET_KEY))
    security_token: Secret | None = Field(
        default=None, description="the token that came with these two keys, where they are lent for a time"
    )
    namespace: Text | None = Field(default=None, description=_about("namespace", _NAMESPACE))
    namespace_v2: Text | None = Field(default=None, description=_about("namespace_v2", _NAMESPACE_V2))
    tls: TlsProperties = Field(default_factory=TlsProperties)
    access_channel: Annotated[AccessChannel, _any_spelling(AccessChannel)] | None = Field(
        default=None, description=_about("access_channel", "LOCAL, or CLOUD for the servers of a vendor")
    )
    startup: Literal["fail", "retry"] = Field(
        default="fail", description="what happens when no name server answers: fail, or retry until one does"
    )
    producer: ProducerProperties = Field(default_factory=ProducerProperties)
    pull_consumer: PullConsumerProperties = Field(default_factory=PullConsumerProperties)
    consumer: ConsumerProperties = Field(default_factory=ConsumerProperties)  # type: ignore[valid-type]  # made above

    @property
    def is_off(self) -> bool:
        """Whether ``name-server: false`` switches it off, which is what the word means to rocketmq-spring."""
        return self.name_server is not None and self.name_server.lower() == "false"

    @property
    def is_embedded(self) -> bool:
        """Whether its name server is the embedded one."""
        return self.name_server is not None and self.name_server.lower() == "embedded"

    def said_of_the_client(self, option: str) -> dict[str, Any]:
        """The keys below the cluster's that say something about its clients (``instance_name``), and what."""
        sections: dict[str, Any] = {
            "producer": self.producer,
            "consumer": self.consumer,
            "pull-consumer": self.pull_consumer,
        }
        said = {
            f"{name}.{option.replace('_', '-')}": getattr(section, option)
            for name, section in sections.items()
            if option in section.model_fields_set
        }
        if option == "tls_enable" and "enabled" in self.tls.model_fields_set:
            said = {"tls.enabled": self.tls.enabled, **said}
        return said

    def client_options(self) -> ClientOptions:
        """What all of its clients have alike."""
        encryption = self.said_of_the_client("tls_enable")
        return ClientOptions(
            tls_enable=next(iter(encryption.values()), False),
            access_channel=self.access_channel or AccessChannel.LOCAL,
        )


class RocketMQProperties(ClusterProperties):
    """``rocketmq``: the main cluster, the switch of everything, and further clusters."""

    enabled: bool = Field(default=True, description="false: nothing of RocketMQ starts")
    clusters: dict[str, ClusterProperties] = Field(
        default_factory=dict, description="further clusters by their names, with the same keys"
    )

    @field_validator("clusters")
    @classmethod
    def _have_names(cls, clusters: dict[str, ClusterProperties]) -> dict[str, ClusterProperties]:
        if any(not name.strip() for name in clusters):  # the main one has the empty name
            raise ValueError("a cluster needs a name")
        return clusters

    @property
    def off_by(self) -> str | None:
        """The key that switches all of RocketMQ off, if one does."""
        if not self.enabled:
            return "rocketmq.enabled"
        return "rocketmq.name-server" if self.is_off else None

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

    conf: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Spark's own configuration"
    )  # it may hold keys of stores
    checkpoint: Path | None = Field(
        default=None,
        description="the folder of checkpoints, one below it for each group (default .rocketbox/<app>/spark)",
    )


class ShutdownProperties(Properties):
    """``rocketbox.shutdown``: how long the whole stop may take."""

    timeout: Duration = Field(default=timedelta(seconds=20), gt=timedelta(0), description="for the whole stop")


class OwnClientProperties(Properties):
    """``rocketbox.client``: what all clients of the process share."""

    max_cached_bytes: DataSize = Field(
        default=MAX_CACHED_BYTES, gt=0, description="of messages that wait for their handlers, in all groups together"
    )


class AutoconfigureProperties(Properties):
    """``rocketbox.autoconfigure``: names of auto-configurations that are left out."""

    exclude: list[str] = Field(default_factory=list, description="names of auto-configurations to leave out")


class RocketBoxProperties(Properties):
    """``rocketbox``: everything that is not RocketMQ's."""

    embedded: EmbeddedProperties = Field(default_factory=EmbeddedProperties)
    logging: LoggingProperties = Field(default_factory=LoggingProperties)
    spark: SparkProperties = Field(default_factory=SparkProperties)
    shutdown: ShutdownProperties = Field(default_factory=ShutdownProperties)
    client: OwnClientProperties = Field(default_factory=OwnClientProperties)
    autoconfigure: AutoconfigureProperties = Field(default_factory=AutoconfigureProperties)
