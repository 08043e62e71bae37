"""The keys under ``rocketmq.*`` and ``rocketbox.*``: names, types, defaults. Each of them has its effect.

Plain pydantic models; reading files and environment is ``boot.root_settings``' business. The options of listeners are
not written down again, nor are those of the client: their keys are made from the dataclasses that declare them
(``option_models``).

Source: rocketmq-spring 2.3 ``RocketMQProperties``; Apache RocketMQ 5.x ``BrokerConfig`` and ``MessageStoreConfig``
(keys of ``rocketbox.embedded`` beside the named ones).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from rocketbox.autoconfigure.option_models import Properties, Secret, Text, with_options
from rocketbox.boot.marks import configuration_properties
from rocketbox.boot.masking import MASK
from rocketbox.boot.shapes import key_text
from rocketbox.boot.units import Duration, separated_by
from rocketbox.client import ClientOptions, LitePullConsumerOptions, ProducerOptions, TlsOptions
from rocketbox.client.options import MAX_BODY_BYTES, TopicOptions, UserOptions
from rocketbox.declarations import Option, options_of
from rocketbox.listeners.options import LISTENER_OPTIONS
from rocketbox.listeners.transaction_listeners import TRANSACTION_LISTENER_OPTIONS, TransactionListenerOptions
from rocketbox.spark.query_options import QUERY_OPTIONS

__all__ = [
    "ClusterProperties",
    "ConsumerProperties",
    "EmbeddedProperties",
    "ListenerProperties",
    "LoggingProperties",
    "MarkProperties",
    "ProducerProperties",
    "PullConsumerProperties",
    "RocketBoxProperties",
    "RocketMQProperties",
    "SPARK_SHARES",
    "SparkMarkProperties",
    "SparkProperties",
    "TlsProperties",
    "TopicProperties",
    "TransactionListenerProperties",
    "TransactionMarkProperties",
    "cluster_prefix",
]


def _named(class_: type, *names: str) -> Mapping[str, Option]:
    """Some options of a class; without names all that have a key."""
    options = options_of(class_)
    return {name: options[name] for name in names or [each.name for each in options.values() if each.key is not None]}


_OF_THE_CLIENT = {**_named(UserOptions), **_named(ClientOptions, "tls_enable", "instance_name")}
"""What producer, consumer and pull consumer may say of the client that they share."""

_IN_SETTINGS = {name: option for name, option in LISTENER_OPTIONS.items() if option.key is not None}
_OF_SPARK_IN_SETTINGS = {name: option for name, option in QUERY_OPTIONS.items() if option.key is not None}
_OF_ALL_LISTENERS = {name: option for name, option in _IN_SETTINGS.items() if name != "enabled"}  # its key is a switch

SPARK_SHARES = (
    "topic", "consumer_group", "selector_expression", "cluster", "enabled", "on_invalid", "namespace", "namespace_v2",
)  # fmt: skip
"""The options of other listeners that Spark's have as well; what on_invalid may be in a decorator is Spark's own."""


@with_options(LISTENER_OPTIONS, of_listeners=True)
class MarkProperties(Properties):
    """All options of the decorator, as a decorator says them."""


@with_options(
    {
        **{name: LISTENER_OPTIONS[name] for name in SPARK_SHARES},
        **{name: option for name, option in QUERY_OPTIONS.items() if name not in ("schema", "trigger")},
    },
    of_listeners=True,
)
class SparkMarkProperties(Properties):
    """The options of the decorator of Spark listeners; but for those that may be objects of Python."""


@with_options(TRANSACTION_LISTENER_OPTIONS, of_listeners=True)
class TransactionMarkProperties(Properties):
    """The options of the decorator of transaction listeners."""


@with_options({**_IN_SETTINGS, **_OF_SPARK_IN_SETTINGS}, of_listeners=True)
class ListenerProperties(Properties):
    """``rocketmq.consumer.listeners.<group>``: any option of its decorator; rocketmq-spring's ``<topic>: false``."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any] = Field(init=False)  # topic switches; the registrar refuses what is none


@with_options(_named(TransactionListenerOptions), of_listeners=True)
class TransactionListenerProperties(Properties):
    """``rocketmq.producer.transaction-listeners.<topic>``: options of the transaction listeners of that topic."""


@with_options({**_OF_THE_CLIENT, **_named(ProducerOptions)})
class ProducerProperties(Properties):
    """``rocketmq.producer``: its ``group`` switches producer and template on."""

    group: Text | None = Field(default=None, description="the producer group; switches producer and template on")
    default_destination: Text | None = Field(
        default=None, description="topic or topic:tag of the template's sends that name no destination"
    )
    spring_headers: bool = Field(
        default=False,
        description="put id, timestamp and contentType on each message of the template, as rocketmq-spring does",
    )
    transaction_listeners: dict[str, TransactionListenerProperties] = Field(
        default_factory=dict,
        description="options of transaction listeners by the topic that they name ('*': those that name none); they "
        "win over the decorator",
    )


@with_options({**_OF_THE_CLIENT, **_named(LitePullConsumerOptions)})
class PullConsumerProperties(Properties):
    """``rocketmq.pull-consumer``: its ``group`` and ``topic`` together ask for the pull consumer, not built yet."""

    group: Text | None = Field(default=None, description="the group of the pull consumer, which needs a topic as well")
    topic: Text | None = Field(default=None, description="the topic that is pulled from")


@with_options(_OF_ALL_LISTENERS, of_listeners=True)
@with_options(_named(ClientOptions, "tls_enable", "instance_name"))
class ConsumerProperties(Properties):
    """``rocketmq.consumer``: the switch of all listeners, defaults of their options, and listeners by their group."""

    enabled: bool = Field(default=True, description="false: no listener starts")
    group: Text | None = Field(default=None, description="the consumer group of listeners that name none")
    missing_topic: Literal["wait", "fail"] = Field(
        default="wait",
        description="for a topic that does not exist: wait (not ready, a warning each minute), or fail at the start",
    )
    listeners: dict[str, ListenerProperties] = Field(
        default_factory=dict, description="options of listeners by their consumer group; they win over the decorator"
    )


def cluster_prefix(name: str | None) -> str:
    """The key below which those of a cluster stand; of the main one, which has no name, ``rocketmq``."""
    return key_text(("rocketmq", "clusters", name)) if name else "rocketmq"


@with_options(_named(TopicOptions))
class TopicProperties(Properties):
    """``rocketmq.topics.<name>``: a topic that the service needs. What is not said may be any way."""


@with_options(_named(TlsOptions))
class TlsProperties(Properties):
    """``rocketmq.tls``: encrypted connections to the servers of the cluster."""

    enable: bool = Field(default=False, description=options_of(ClientOptions)["tls_enable"].words)


@with_options({**_named(UserOptions), **_named(ClientOptions, "access_channel", "unit_name")})
class ClusterProperties(Properties):
    """``rocketmq.clusters.<name>``, and what ``rocketmq`` itself has of a cluster.

    Keys and namespace are of all who do not say their own.
    """

    name_server: Annotated[Text, separated_by(";")] | None = Field(
        default=None,
        description="host:port, several with ;, the URL of an address server, or embedded; false: nothing of it starts",
    )
    security_token: Secret | None = Field(
        default=None, description="the token that came with access-key and secret-key, where they are lent for a time"
    )
    tls: TlsProperties = Field(default_factory=TlsProperties)
    startup: Literal["fail", "retry"] = Field(
        default="fail", description="what happens when no name server answers: fail, or retry until one does"
    )
    topics: dict[str, TopicProperties] = Field(
        default_factory=dict, description="topics that the service needs, by their names; there before it listens"
    )
    topics_mode: Literal["create", "check", "ignore"] = Field(
        default="create",
        description="create those that are not there, check that they are as it is said here, or ignore them",
    )
    producer: ProducerProperties = Field(default_factory=ProducerProperties)
    pull_consumer: PullConsumerProperties = Field(default_factory=PullConsumerProperties)
    consumer: ConsumerProperties = Field(default_factory=ConsumerProperties)

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
        if option == "tls_enable" and "enable" in self.tls.model_fields_set:
            said = {"tls.enable": self.tls.enable, **said}
        return said

    @property
    def encrypts(self) -> bool:
        """Whether its connections are encrypted, in whichever place it is said."""
        return next(iter(self.said_of_the_client("tls_enable").values()), False)

    def client_options(self) -> ClientOptions:
        """What all of its clients have alike."""
        said = {name: value for name, value in self.values().items() if name not in options_of(UserOptions)}
        tls = self.tls.as_options(TlsOptions) if self.encrypts and self.tls.model_fields_set - {"enable"} else None
        largest = max(MAX_BODY_BYTES, self.producer.values()["max_message_size"])
        return ClientOptions(**said, tls_enable=self.encrypts, tls=tls, max_unpacked_bytes=UNPACKED_PER_BYTE * largest)


@configuration_properties("rocketmq")
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
    insecure: bool = Field(
        default=False, description="true allows addresses that other machines can reach, without access control or TLS"
    )

    @staticmethod
    def __settings_extras__() -> type[Properties]:
        """Apache's broker settings, which variables may name as well."""
        from rocketbox.autoconfigure.broker_settings import BrokerProperties  # only who names one loads them

        return BrokerProperties

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """What is shown of it: of Apache's settings, which stand here as they were written, no secret."""
        hidden = _secret_settings() if self.model_extra else frozenset()
        for name, value in super().__repr_args__():
            yield name, MASK if name is not None and _plain(name) in hidden else value


def _secret_settings() -> frozenset[str]:
    """Which of Apache's broker settings are secrets, in plain letters."""
    from rocketbox.embedded import EmbeddedOptions

    return frozenset(_plain(key) for key, option in EmbeddedOptions.broker_settings().items() if option.secret)


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


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


UNPACKED_PER_BYTE = 16  # of a message as large as may be sent: what a compressed body may have
DRAIN_SHARE = 0.75  # of the time for the stop


class ShutdownProperties(Properties):
    """``rocketbox.shutdown``: how long the whole stop may take."""

    timeout: Duration = Field(default=timedelta(seconds=20), gt=timedelta(0), description="for the whole stop")

    @property
    def drain_timeout(self) -> timedelta:
        """What running handlers have of it."""
        return self.timeout * DRAIN_SHARE


@with_options(_named(ClientOptions, "max_cached_bytes"))
class OwnClientProperties(Properties):
    """``rocketbox.client``: what all clients of the process share."""


class OtelProperties(Properties):
    """``rocketbox.otel``: spans of OpenTelemetry."""

    enabled: bool | None = Field(
        default=None,
        description="true: sends and calls of listeners have spans of OpenTelemetry; none: where the process has set a "
        "tracer provider before the start",
    )


class AutoconfigureProperties(Properties):
    """``rocketbox.autoconfigure``: names of auto-configurations that are left out."""

    exclude: list[str] = Field(default_factory=list, description="names of auto-configurations to leave out")


@configuration_properties("rocketbox")
class RocketBoxProperties(Properties):
    """``rocketbox``: everything that is not RocketMQ's."""

    embedded: EmbeddedProperties = Field(default_factory=EmbeddedProperties)
    logging: LoggingProperties = Field(default_factory=LoggingProperties)
    spark: SparkProperties = Field(default_factory=SparkProperties)
    shutdown: ShutdownProperties = Field(default_factory=ShutdownProperties)
    client: OwnClientProperties = Field(default_factory=OwnClientProperties)
    otel: OtelProperties = Field(default_factory=OtelProperties)
    autoconfigure: AutoconfigureProperties = Field(default_factory=AutoconfigureProperties)
