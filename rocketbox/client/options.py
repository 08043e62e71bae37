"""The settings of a client instance, a producer, a push consumer and a pull consumer.

Each option is declared here and nowhere else: type, default, bounds, unit, and the words of the reference; decorators
and settings are made from it (``listeners.options``, ``autoconfigure.option_models``). One that is no setting says
``IN_CODE``. Durations are float seconds. Values are checked when they are made, all at once. What asks for
something that this client does not do is said in ``unbuilt``.

Source: Apache RocketMQ 5.x ``ClientConfig``, ``DefaultMQProducer``, ``DefaultMQPushConsumer``,
``DefaultLitePullConsumer`` (names in snake_case, defaults and limits as there).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from rocketbox.client.allocation import AllocationStrategy, allocate_averagely
from rocketbox.client.checks import check_topic
from rocketbox.client.credentials import CredentialsProvider, check_provider
from rocketbox.client.middleware import ConsumeMiddleware, SendMiddleware
from rocketbox.client.outcomes import BROKER_DECIDES, DEAD_LETTER
from rocketbox.declarations import BYTES, IN_CODE, SECONDS, Key, Words, check_options
from rocketbox.errors import ConfigurationError, Finding, InvalidMessageError
from rocketbox.message import (
    DELAY_LEVEL_SECONDS,
    Compression,
    ConsumeFromWhere,
    ConsumeMode,
    MessageModel,
    SelectorType,
)
from rocketbox.protocol.codes import TBW102
from rocketbox.protocol.compression import MAX_BODY_BYTES as MAX_UNPACKED_BYTES
from rocketbox.protocol.compression import MISSING_EXTRA, is_available, level_problem
from rocketbox.protocol.namespaces import wrong_namespace, wrong_namespace_v2
from rocketbox.remoting.acl import Credentials
from rocketbox.remoting.client import RpcHook
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.tls import TlsOptions

__all__ = [
    "LONGEST_PAUSE",
    "MAX_BODY_BYTES",
    "SHORTEST_PAUSE",
    "SYSTEM_TRACE_TOPIC",
    "AccessChannel",
    "ClientOptions",
    "ConsumerOptions",
    "LitePullConsumerOptions",
    "MAX_CACHED_BYTES",
    "MemberOptions",
    "Mismatch",
    "NamespaceOptions",
    "ProducerOptions",
    "SelectionOptions",
    "TopicOptions",
    "TopicPermission",
    "UserOptions",
    "mismatches",
    "wrong_names",
]

DEFAULT_INSTANCE_NAME = "DEFAULT"
MAX_BODY_BYTES = 4 * 1024 * 1024
MIB = 1024 * 1024
LONGEST_PAUSE = 30.0  # seconds an orderly queue may be suspended
SHORTEST_PAUSE = 0.01
MAX_CACHED_BYTES = 64 * MIB
MAX_PULL_BATCH = 1024  # messages; what a broker gives at most
_UNIT = re.compile(r"[A-Za-z0-9._-]+")  # it stands in ids, and in paths of files
SYSTEM_TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


class AccessChannel(Enum):
    """Whose the servers are: one's own (LOCAL), or those of Alibaba's CLOUD.

    In Apache's client message trace alone goes by it: where it is sent to (in a cloud ``rmq_sys_TRACE_DATA_<region>``),
    and how long a line of it is.
    """

    LOCAL = "LOCAL"
    CLOUD = "CLOUD"


@dataclass(frozen=True)
class Mismatch:
    """Options that do not go together: those that are set, those that would have to be too, and what to do."""

    given: tuple[str, ...]
    missing: tuple[str, ...]
    fix: str

    def told(self, key: Callable[[str], str] = str) -> str:
        """It in words; ``key`` tells how an option is called where it was written."""
        given = " and ".join(map(key, self.given)) + (" is set" if len(self.given) == 1 else " are both set")
        return given + "".join(f" and {key(name)} is not" for name in self.missing)


_KEYS = ("access_key", "secret_key", "security_token")


def mismatches(given: Collection[str]) -> list[Mismatch]:
    """What is wrong with which of the options that say who a client is are set."""
    found = []
    if ("access_key" in given) != ("secret_key" in given):
        one, other = ("access_key", "secret_key") if "access_key" in given else ("secret_key", "access_key")
        found.append(Mismatch((one,), (other,), "set both of them, or none"))
    elif "security_token" in given and "access_key" not in given:
        fix = "set the keys that came with the token, or leave it out"
        found.append(Mismatch(("security_token",), ("access_key",), fix))
    if "credentials_file" in given and (pair := [name for name in _KEYS if name in given]):
        found.append(Mismatch(("credentials_file", pair[0]), (), "keep one of them"))
    if "namespace" in given and "namespace_v2" in given:
        found.append(Mismatch(("namespace", "namespace_v2"), (), "keep one of them"))
    return found


def wrong_names(values: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Which of the namespaces and units among the options can be none, what they are, and why."""
    checks = {"namespace": wrong_namespace, "namespace_v2": wrong_namespace_v2, "unit_name": _wrong_unit}
    return [
        (name, value, why)
        for name, check in checks.items()
        if (value := values.get(name)) is not None and (why := check(value)) is not None
    ]


def _wrong_unit(name: str) -> str | None:
    return None if _UNIT.fullmatch(name) else "it may hold letters, digits and . _ -"


# What options of several kinds say alike.
MessageModelOption = Annotated[
    MessageModel, Words("CLUSTERING: one of the group gets a message; BROADCASTING: each of them")
]
PullBatchSize = Annotated[int, Ge(1), Le(MAX_PULL_BATCH), Words("messages asked for at once")]
Time = Annotated[float, SECONDS, Gt(0)]


@dataclass(frozen=True, kw_only=True)
class NamespaceOptions:
    """The namespace of topics and groups; None: there is none, or it is that of what stands above."""

    namespace: Annotated[
        str | None,
        Words("the namespace, written before the names of topics and groups; not together with namespace-v2"),
    ] = None
    namespace_v2: Annotated[
        str | None,
        Words("the namespace, sent in a header that servers of some vendors read; not together with namespace"),
    ] = None

    @property
    def is_in_namespace(self) -> bool:
        return self.namespace is not None or self.namespace_v2 is not None


@dataclass(frozen=True, kw_only=True)
class UserOptions(NamespaceOptions):
    """Who a producer or group is to the servers, as settings say it; a client instance has ``Credentials`` of it."""

    access_key: Annotated[str | None, Words("the user whose requests these are (ACL); together with secret-key")] = (
        field(default=None, repr=False)
    )
    secret_key: Annotated[
        str | None, Words("what the user's requests are signed with (ACL); together with access-key")
    ] = field(default=None, repr=False)
    credentials_file: Annotated[
        str | None, Words("a file with the two keys, in their place, read again when it changes (ACL)")
    ] = None


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """What producers and consumers say alike: message trace. Who they are is said to their client instance."""

    enable_msg_trace: Annotated[bool, Words("true: what becomes of each message is sent to the trace topic")] = False
    customized_trace_topic: Annotated[str, Words("the topic of the trace")] = SYSTEM_TRACE_TOPIC

    def __post_init__(self) -> None:
        check_options(self)
        try:
            check_topic(self.customized_trace_topic)
        except InvalidMessageError as error:
            what = f"{type(self).__name__}.customized_trace_topic: {error}"
            raise ConfigurationError(Finding(what, fix="name another topic for the trace, or leave it out")) from error


@dataclass(frozen=True, kw_only=True)
class ClientOptions(NamespaceOptions):
    """How a client instance names itself, how often it asks and tells, and how it connects.

    ``instance_name`` DEFAULT becomes ``<pid>#<number>``, so that each instance is a client of its own; any other name
    stays, and two clients of one name on one machine are one to the broker. ``client_ip`` None: the address that the
    machine uses toward the outside. ``api_timeout`` bounds every small request (routes, offsets, heartbeats),
    ``shutdown_timeout`` all requests that say goodbye together. ``hooks`` see every request, ``send_middleware`` wraps
    every send and ``consume_middleware`` every call of a handler, of all producers and consumers of the instance.
    With ``tls_enable`` connections are encrypted, as ``tls`` says (None: the CAs of the system, no certificate).
    With ``credentials`` every request is signed, after all ``hooks``; a ``CredentialsFile`` or another
    ``CredentialsProvider`` gives keys that change. ``namespace`` is written into the names of topics
    and groups, ``namespace_v2`` goes in a header.
    ``mask`` takes secrets out of the text of an exception before others are told of it: who has sent a request, and the
    broker of a transaction.
    ``settings_prefix`` is the key below which the cluster's settings stand, for what errors advise to set.
    ``broker_suspend_max_time`` is how long a broker may hold a pull that finds nothing.
    ``max_cached_bytes`` of messages may wait for the handlers of all its consumers together. A compressed body may have
    ``max_unpacked_bytes`` when it is unpacked, 16 times ``max_message_size``; one that has more is a dead letter.
    Consumers commit every
    ``persist_consumer_offset_interval`` (Java's every 5 s): a killed one repeats no more than what it handled in it.
    """

    instance_name: Annotated[
        str,
        Words(
            "the client's name, to be said alike wherever a cluster says it; DEFAULT becomes <process id>#<number>, "
            "any other name may be used by one process of a machine only"
        ),
    ] = DEFAULT_INSTANCE_NAME
    client_ip: Annotated[str | None, IN_CODE] = None
    unit_name: Annotated[
        str | None, Words("the unit that the client is of: stands behind its id, so that tools can tell units apart")
    ] = None
    access_channel: Annotated[AccessChannel, Words("LOCAL, or CLOUD: where message trace is sent to")] = (
        AccessChannel.LOCAL
    )
    credentials: Annotated[Credentials | CredentialsProvider | None, IN_CODE] = None
    tls_enable: Annotated[bool, Words("true: connections are encrypted; the same wherever a cluster says it")] = False
    tls: Annotated[TlsOptions | None, IN_CODE] = None
    api_timeout: Annotated[Time, IN_CODE] = 3.0
    poll_name_server_interval: Annotated[Time, IN_CODE] = 30.0
    missing_route_interval: Annotated[Time, IN_CODE] = 1.0
    heartbeat_broker_interval: Annotated[Time, IN_CODE] = 30.0
    persist_consumer_offset_interval: Annotated[Time, IN_CODE] = 1.0
    broker_suspend_max_time: Annotated[Time, IN_CODE] = 15.0
    shutdown_timeout: Annotated[Time, IN_CODE] = 3.0
    max_cached_bytes: Annotated[
        int, BYTES, Gt(0), Words("of messages that wait for their handlers, in all groups together")
    ] = MAX_CACHED_BYTES
    max_unpacked_bytes: Annotated[int, BYTES, Gt(0), IN_CODE] = MAX_UNPACKED_BYTES
    remoting: Annotated[RemotingOptions, IN_CODE] = field(default_factory=RemotingOptions)
    hooks: Annotated[tuple[RpcHook, ...], IN_CODE] = ()
    send_middleware: Annotated[tuple[SendMiddleware, ...], IN_CODE] = ()
    consume_middleware: Annotated[tuple[ConsumeMiddleware, ...], IN_CODE] = ()
    mask: Annotated[Callable[[str], str] | None, IN_CODE] = None
    settings_prefix: Annotated[str, IN_CODE] = "rocketmq"

    def __post_init__(self) -> None:
        if wrong := mismatches([name for name in ("namespace", "namespace_v2") if getattr(self, name) is not None]):
            raise ConfigurationError([Finding(f"ClientOptions: {each.told()}", fix=each.fix) for each in wrong])
        if self.tls is not None and not self.tls_enable:
            raise ConfigurationError(
                Finding("ClientOptions.tls is set and tls_enable is not", fix="set tls_enable=True, or leave tls out")
            )
        given = self.credentials
        if given is not None and not isinstance(given, Credentials) and (problem := check_provider(given)):
            raise ConfigurationError(problem)
        findings = [
            Finding(f"ClientOptions.{name} is {value!r}: {why}", fix="choose another one, or leave it out")
            for name, value, why in wrong_names(vars(self))
        ]
        if findings:
            raise ConfigurationError(findings)
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(MemberOptions):
    """How a producer sends.

    ``send_message_timeout`` is over all tries of one send; ``send_msg_max_timeout_per_request`` bounds each of them but
    the last (None: each has its share, so that a silent broker leaves time for another one). A broker that failed is
    avoided for a while, by a short memory or, with ``send_latency_fault_enable``, by Apache's fault latency table.
    ``accept_weak_ack`` returns results other than SEND_OK instead of raising NotDurableError;
    ``retry_another_broker_when_not_store_ok`` first tries for a better one on another broker, which stores the message
    twice. ``retry_times_when_send_failed`` is how often ``send`` and ``send_batch`` try again,
    ``retry_times_when_send_async_failed`` how often each message of ``send_many`` is tried again, which is how this
    client sends asynchronously. ``send_many_window`` is how many messages ``send_many`` has in flight at once. Bodies
    of ``compress_message_body_threshold`` bytes and more are compressed by ``compress_type`` at ``compress_level``: 1
    to 9 for ZLIB, 1 to 22 for ZSTD, nothing to LZ4.

    With ``auto_batch`` each ``send`` waits for others to its topic, ``batch_max_delay`` or until there are
    ``batch_max_bytes`` or ``batch_max_messages``; they go in one request then, and each has its own result or error.
    """

    send_message_timeout: Annotated[Time, Words("for a send with all its tries")] = 3.0
    send_msg_max_timeout_per_request: Annotated[
        float | None,
        SECONDS,
        Gt(0),
        Words("for each try of a send but the last; none: each has its share of the whole"),
    ] = None
    compress_message_body_threshold: Annotated[
        int, BYTES, Ge(0), Words("bodies of this size and more are compressed")
    ] = 4096
    compress_type: Annotated[
        Compression,
        Words("how: ZLIB, which every client reads; LZ4 or ZSTD (rocketbox[lz4], [zstd]); NONE: not at all"),
    ] = Compression.ZLIB
    compress_level: Annotated[
        int, Ge(1), Le(22), Words("1 is quick, 9 (of ZSTD 22) makes them smallest; LZ4 has no levels")
    ] = 5
    retry_times_when_send_failed: Annotated[int, Ge(0), Words("tries after the first one")] = 2
    retry_times_when_send_async_failed: Annotated[
        int, Ge(0), Words("tries after the first one for each message of send_many")
    ] = 2
    retry_another_broker_when_not_store_ok: Annotated[
        bool,
        Key("retry-next-server"),
        Words("try another broker when a message was stored less safely than asked"),
    ] = False
    max_message_size: Annotated[int, BYTES, Gt(0), Words("larger bodies are refused before they are sent")] = (
        MAX_BODY_BYTES
    )
    accept_weak_ack: Annotated[
        bool, Words("true: a message that is stored less safely than asked is a result, not an error")
    ] = False
    send_latency_fault_enable: Annotated[
        bool, Words("true: stay away from brokers that were slow, by Apache's fault latency table")
    ] = False
    create_topic_key: Annotated[
        str, Words("the topic after which a broker makes a topic that is sent to and not there yet")
    ] = TBW102
    default_topic_queue_nums: Annotated[
        int, Ge(1), Words("queues of a topic that a send makes; no more than the topic has which it is made after")
    ] = 4
    send_many_window: Annotated[int, Ge(1), Words("messages that send_many has in flight at once")] = 256

    auto_batch: Annotated[
        bool, Words("true: sends to one topic that are under way at the same time go together, in one request")
    ] = False
    batch_max_delay: Annotated[
        float, SECONDS, Gt(0), Le(30), Words("what a send waits for others, with auto-batch")
    ] = 0.01
    batch_max_bytes: Annotated[
        int, BYTES, Ge(1), Le(2 * MIB), Words("of a batch that goes at once, with auto-batch")
    ] = 32 * 1024
    batch_max_messages: Annotated[int, Ge(1), Le(10_000), Words("of a batch that goes at once, with auto-batch")] = 1000
    total_batch_max_bytes: Annotated[
        int, BYTES, Ge(1), Words("that may be on their way in batches; with more, sends wait for room")
    ] = 32 * MIB

    def __post_init__(self) -> None:
        super().__post_init__()
        if (problem := level_problem(self.compress_type, self.compress_level)) is not None:
            what = f"{type(self).__name__}.compress_level is {self.compress_level}: {problem}"
            raise ConfigurationError(Finding(what, fix="choose one of these; 5 is the default"))
        if not is_available(self.compress_type):
            what = f"{type(self).__name__}.compress_type is {self.compress_type.name}, which is not installed"
            raise ConfigurationError(Finding(what, fix=f"{MISSING_EXTRA[self.compress_type]}, or choose ZLIB"))


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(MemberOptions):
    """How a group consumes; every member of the group should have the same. Times in seconds.

    Trace is that of :class:`MemberOptions`.

    ``concurrency`` is the number of handlers that run at once. ``max_reconsume_times`` -1 is 16 retries for a
    concurrent group and no limit for an orderly one. ``delay_level_when_next_consume``: 0 the broker decides, -1
    dead-letter at once, 1..18 that level. ``await_termination`` bounds the wait for running handlers at the
    end. ``consume_timestamp`` is where ConsumeFromWhere.TIMESTAMP begins, in local time where it names no zone (None:
    half an hour before the start).
    ``pull_threshold_for_topic`` and ``..._size_for_topic`` (-1: off) are shared among the queues this member has.
    ``local_offset_dir`` is for broadcasting (None: ``~/.rocketmq_offsets``). ``wait_for_servers`` lets the start go on
    when no name server answers; consumption then begins when one does.

    Raises ConfigurationError that names all options out of range.
    """

    consume_mode: Annotated[ConsumeMode, Words("CONCURRENTLY, or ORDERLY: one message of a queue after the other")] = (
        ConsumeMode.CONCURRENTLY
    )
    message_model: MessageModelOption = MessageModel.CLUSTERING
    consume_from_where: Annotated[
        ConsumeFromWhere,
        Words(
            "where a new group begins: at the end (of a young topic at its first message), at the oldest, or at a time"
        ),
    ] = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp: Annotated[
        datetime | None,
        Words("the time at which a new group begins, with TIMESTAMP; none: half an hour before the start"),
    ] = None
    concurrency: Annotated[int, Ge(1), Le(1000), Words("handlers at once")] = 20
    max_reconsume_times: Annotated[
        int, Ge(-1), Le(2**31 - 1),
        Words("retries before the dead-letter queue; -1: 16, for orderly listeners without end"),
    ] = -1  # fmt: skip
    delay_level_when_next_consume: Annotated[
        int, Ge(DEAD_LETTER), Le(len(DELAY_LEVEL_SECONDS)),
        Words("0: the broker's own delays; 1 to 18: that level; -1: dead-letter queue"),
    ] = BROKER_DECIDES  # fmt: skip
    consume_timeout: Annotated[
        float, SECONDS, Ge(0.001), Words("a message that is held longer comes back; orderly queues wait for it")
    ] = 900.0
    suspend_current_queue_time: Annotated[
        float, SECONDS, Ge(SHORTEST_PAUSE), Le(LONGEST_PAUSE), Words("pause of an orderly queue after a failure")
    ] = 1.0
    await_termination: Annotated[float, SECONDS, Ge(0), IN_CODE] = 10.0
    reply_timeout: Annotated[float, SECONDS, Ge(0.001), Words("for sending what the listener of a request returns")] = (
        3.0
    )
    pull_batch_size: PullBatchSize = 32
    pull_batch_size_in_bytes: Annotated[int, BYTES, Ge(1), Le(2**31 - 1), IN_CODE] = 262_144
    pull_interval: Annotated[float, SECONDS, Ge(0), Le(65.535), Words("pause between two pulls")] = 0.0
    pull_threshold_for_queue: Annotated[int, Ge(1), Le(65_535), IN_CODE] = 1000
    pull_threshold_size_for_queue: Annotated[int, BYTES, Ge(MIB), Le(1024 * MIB), IN_CODE] = 100 * MIB
    pull_threshold_for_topic: Annotated[int, Ge(-1), Le(6_553_500), IN_CODE] = -1
    pull_threshold_size_for_topic: Annotated[int, BYTES, Ge(-1), Le(102_400 * MIB), IN_CODE] = -1
    consume_concurrently_max_span: Annotated[int, Ge(1), Le(65_535), IN_CODE] = 2000
    allocation: Annotated[AllocationStrategy, IN_CODE] = allocate_averagely
    rebalance_interval: Annotated[float, SECONDS, Ge(0.001), IN_CODE] = 20.0
    local_offset_dir: Annotated[Path | None, IN_CODE] = None
    wait_for_servers: Annotated[bool, IN_CODE] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consume_timestamp is not None and self.consume_from_where is not ConsumeFromWhere.TIMESTAMP:
            what = f"{type(self).__name__}: consume_timestamp is set, and consume_from_where is "
            fix = "set consume_from_where to TIMESTAMP, or leave consume_timestamp out"
            raise ConfigurationError(Finding(what + self.consume_from_where.name, fix=fix))

    @property
    def broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    @property
    def orderly(self) -> bool:
        return self.consume_mode is ConsumeMode.ORDERLY


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Which messages of a topic are taken."""

    selector_type: Annotated[SelectorType, Words("how the expression is meant: TAG or SQL92")] = SelectorType.TAG
    selector_expression: Annotated[str, Words("which messages are taken: tags such as UA || AA")] = "*"


@dataclass(frozen=True, kw_only=True)
class LitePullConsumerOptions(SelectionOptions, MemberOptions):
    """How a pull consumer pulls: what it selects of its topic, and ``pull_batch_size`` messages at once.

    Its group and topic stand beside them.
    """

    message_model: MessageModelOption = MessageModel.CLUSTERING
    pull_batch_size: PullBatchSize = 10


class TopicPermission(Enum):
    """What may be done with a topic."""

    READ_WRITE = "read-write"
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, kw_only=True)
class TopicOptions:
    """A topic that a program needs, as it needs it. None: not said, so that it may be found in any way.

    One that is made then has 8 queues, may be read and written, and has no order.
    """

    queues: Annotated[int | None, Ge(1), Words("its queues on each broker; one that is made has 8 of them")] = None
    perm: Annotated[TopicPermission | None, Words("what may be done with it; one that is made: read-write")] = None
    order: Annotated[bool | None, Words("true: a queue's order counts more than that every send succeeds")] = None
    attributes: Annotated[
        dict[str, str] | None, Words("its attributes by Apache's names, such as message.type: FIFO")
    ] = None
    cluster: Annotated[str | None, Words("the brokers' cluster that has it, where the name server knows several")] = (
        None
    )

    def __post_init__(self) -> None:
        check_options(self)
