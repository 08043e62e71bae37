"""The settings of a client instance, a producer, a push consumer and a pull consumer.

Durations are float seconds. Values are checked when they are made, all at once. Which of them ask for something that
this client does not do is said in ``unbuilt``.

Source: Apache RocketMQ 5.x ``ClientConfig``, ``DefaultMQProducer``, ``DefaultMQPushConsumer``,
``DefaultLitePullConsumer`` (names in snake_case, defaults and limits as there).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from rocketbox.client.allocation import AllocationStrategy, allocate_averagely
from rocketbox.client.middleware import ConsumeMiddleware, SendMiddleware
from rocketbox.client.outcomes import BROKER_DECIDES, DEAD_LETTER
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.message import DELAY_LEVEL_SECONDS, ConsumeFromWhere, ConsumeMode, MessageModel, SelectorType
from rocketbox.protocol.codes import TBW102
from rocketbox.remoting.acl import Credentials
from rocketbox.remoting.client import RpcHook
from rocketbox.remoting.options import RemotingOptions

__all__ = [
    "LONGEST_PAUSE",
    "SHORTEST_PAUSE",
    "SYSTEM_TRACE_TOPIC",
    "AccessChannel",
    "ClientOptions",
    "ConsumerOptions",
    "LitePullConsumerOptions",
    "MAX_CACHED_BYTES",
    "MemberOptions",
    "Mismatch",
    "ProducerOptions",
    "mismatches",
]

DEFAULT_INSTANCE_NAME = "DEFAULT"
MAX_BODY_BYTES = 4 * 1024 * 1024
MIB = 1024 * 1024
LONGEST_PAUSE = 30.0  # seconds an orderly queue may be suspended
SHORTEST_PAUSE = 0.01
MAX_CACHED_BYTES = 64 * MIB
MAX_PULL_BATCH = 1024  # messages; what a broker gives at most
SYSTEM_TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


class AccessChannel(Enum):
    """Where the servers are: LOCAL, or in a vendor's CLOUD, which marks traces and names in its own way."""

    LOCAL = "LOCAL"
    CLOUD = "CLOUD"


def _check(owner: str, rules: Iterable[tuple[bool, str, object, str]]) -> None:
    findings = [
        Finding(f"{owner}.{name} is {value!r}", fix=f"it must be {right}")
        for is_right, name, value, right in rules
        if not is_right
    ]
    if findings:
        raise ConfigurationError(findings)


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


def mismatches(given: Collection[str]) -> list[Mismatch]:
    """What is wrong with which of the options that say who a client is are set."""
    found = []
    if ("access_key" in given) != ("secret_key" in given):
        one, other = ("access_key", "secret_key") if "access_key" in given else ("secret_key", "access_key")
        found.append(Mismatch((one,), (other,), "set both of them, or none"))
    elif "security_token" in given and "access_key" not in given:
        fix = "set the keys that came with the token, or leave it out"
        found.append(Mismatch(("security_token",), ("access_key",), fix))
    if "namespace" in given and "namespace_v2" in given:
        found.append(Mismatch(("namespace", "namespace_v2"), (), "keep one of them"))
    return found


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """What producers and consumers say alike: message trace. Who they are is said to their client instance."""

    enable_msg_trace: bool = False
    customized_trace_topic: str = SYSTEM_TRACE_TOPIC


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """How a client instance names itself, how often it asks and tells, and how it connects.

    ``instance_name`` DEFAULT becomes ``<pid>#<number>``, so that each instance is a client of its own; any other name
    stays, and two clients of one name on one machine are one to the broker. ``client_ip`` None: the address that the
    machine uses toward the outside. ``api_timeout`` bounds every small request (routes, offsets, heartbeats),
    ``shutdown_timeout`` all requests that say goodbye together. ``hooks`` see every request, ``send_middleware`` wraps
    every send and ``consume_middleware`` every call of a handler, of all producers and consumers of the instance.
    With ``credentials`` every request is signed, after all ``hooks``. ``namespace`` is written into the names of topics
    and groups, ``namespace_v2`` goes in a header.
    ``max_cached_bytes`` of messages may wait for the handlers of all its consumers together. Consumers commit every
    ``persist_consumer_offset_interval`` (Java's every 5 s): a killed one repeats no more than what it handled in it.
    """

    instance_name: str = DEFAULT_INSTANCE_NAME
    client_ip: str | None = None
    unit_name: str | None = None
    access_channel: AccessChannel = AccessChannel.LOCAL
    credentials: Credentials | None = None
    namespace: str | None = None
    namespace_v2: str | None = None
    tls_enable: bool = False
    api_timeout: float = 3.0
    poll_name_server_interval: float = 30.0
    missing_route_interval: float = 1.0
    heartbeat_broker_interval: float = 30.0
    persist_consumer_offset_interval: float = 1.0
    shutdown_timeout: float = 3.0
    max_cached_bytes: int = MAX_CACHED_BYTES
    remoting: RemotingOptions = field(default_factory=RemotingOptions)
    hooks: tuple[RpcHook, ...] = ()
    send_middleware: tuple[SendMiddleware, ...] = ()
    consume_middleware: tuple[ConsumeMiddleware, ...] = ()

    def __post_init__(self) -> None:
        if wrong := mismatches([name for name in ("namespace", "namespace_v2") if getattr(self, name) is not None]):
            raise ConfigurationError([Finding(f"ClientOptions: {each.told()}", fix=each.fix) for each in wrong])
        times = (
            "api_timeout",
            "poll_name_server_interval",
            "missing_route_interval",
            "heartbeat_broker_interval",
            "persist_consumer_offset_interval",
            "shutdown_timeout",
        )
        _check(
            "ClientOptions",
            [
                (bool(self.instance_name.strip()), "instance_name", self.instance_name, "a name"),
                (self.max_cached_bytes > 0, "max_cached_bytes", self.max_cached_bytes, "more than 0 bytes"),
                *((getattr(self, name) > 0, name, getattr(self, name), "more than 0 seconds") for name in times),
            ],
        )


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
    of ``compress_message_body_threshold`` bytes and more are to be compressed.
    """

    send_message_timeout: float = 3.0
    send_msg_max_timeout_per_request: float | None = None
    retry_times_when_send_failed: int = 2
    retry_times_when_send_async_failed: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    accept_weak_ack: bool = False
    send_latency_fault_enable: bool = False
    max_message_size: int = MAX_BODY_BYTES
    compress_message_body_threshold: int = 4096
    create_topic_key: str = TBW102
    default_topic_queue_nums: int = 4
    send_many_window: int = 256

    def __post_init__(self) -> None:
        per_request = self.send_msg_max_timeout_per_request
        positive = "more than 0 seconds"
        _check(
            "ProducerOptions",
            [
                (self.send_message_timeout > 0, "send_message_timeout", self.send_message_timeout, positive),
                (
                    per_request is None or per_request > 0,
                    "send_msg_max_timeout_per_request",
                    per_request,
                    f"None or {positive}",
                ),
                (
                    self.retry_times_when_send_failed >= 0,
                    "retry_times_when_send_failed",
                    self.retry_times_when_send_failed,
                    "0 or more",
                ),
                (
                    self.retry_times_when_send_async_failed >= 0,
                    "retry_times_when_send_async_failed",
                    self.retry_times_when_send_async_failed,
                    "0 or more",
                ),
                (
                    self.compress_message_body_threshold >= 0,
                    "compress_message_body_threshold",
                    self.compress_message_body_threshold,
                    "0 bytes or more",
                ),
                (self.max_message_size > 0, "max_message_size", self.max_message_size, "more than 0 bytes"),
                (
                    self.default_topic_queue_nums > 0,
                    "default_topic_queue_nums",
                    self.default_topic_queue_nums,
                    "at least 1",
                ),
                (self.send_many_window > 0, "send_many_window", self.send_many_window, "at least 1"),
            ],
        )


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(MemberOptions):
    """How a group consumes; every member of the group should have the same. Times in seconds.

    Trace is that of :class:`MemberOptions`.

    ``concurrency`` is the number of handlers that run at once. ``max_reconsume_times`` -1 is 16 retries for a
    concurrent group and no limit for an orderly one. ``await_termination`` bounds the wait for running handlers at the
    end. ``consume_timestamp_ms`` is where ConsumeFromWhere.TIMESTAMP begins (None: half an hour before the start).
    ``pull_threshold_for_topic`` and ``..._size_for_topic`` (-1: off) are shared among the queues this member has.
    ``local_offset_dir`` is for broadcasting (None: ``~/.rocketmq_offsets``). ``wait_for_servers`` lets the start go on
    when no name server answers; consumption then begins when one does.

    Raises ConfigurationError that names all options out of range.
    """

    consume_mode: ConsumeMode = ConsumeMode.CONCURRENTLY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int | None = None
    concurrency: int = 20
    max_reconsume_times: int = -1
    delay_level_when_next_consume: int = BROKER_DECIDES
    consume_timeout: float = 900.0
    suspend_current_queue_time: float = 1.0
    await_termination: float = 10.0
    pull_batch_size: int = 32
    pull_batch_size_in_bytes: int = 262_144
    pull_interval: float = 0.0
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue: int = 100 * MIB
    pull_threshold_for_topic: int = -1
    pull_threshold_size_for_topic: int = -1
    consume_concurrently_max_span: int = 2000
    allocation: AllocationStrategy = allocate_averagely
    rebalance_interval: float = 20.0
    local_offset_dir: Path | None = None
    wait_for_servers: bool = False

    def __post_init__(self) -> None:
        levels = len(DELAY_LEVEL_SECONDS)
        ranges: dict[str, tuple[float, float]] = {
            "concurrency": (1, 1000),
            "max_reconsume_times": (-1, 2**31 - 1),
            "delay_level_when_next_consume": (DEAD_LETTER, levels),
            "consume_timeout": (0.001, float("inf")),
            "suspend_current_queue_time": (SHORTEST_PAUSE, LONGEST_PAUSE),
            "await_termination": (0, float("inf")),
            "pull_batch_size": (1, 1024),
            "pull_batch_size_in_bytes": (1, 2**31 - 1),
            "pull_interval": (0, 65.535),
            "pull_threshold_for_queue": (1, 65_535),
            "pull_threshold_size_for_queue": (MIB, 1024 * MIB),
            "pull_threshold_for_topic": (-1, 6_553_500),
            "pull_threshold_size_for_topic": (-1, 102_400 * MIB),
            "consume_concurrently_max_span": (1, 65_535),
            "rebalance_interval": (0.001, float("inf")),
        }
        _check(
            "ConsumerOptions",
            [
                (low <= getattr(self, name) <= high, name, getattr(self, name), f"from {low:g} to {high:g}")
                for name, (low, high) in ranges.items()
            ],
        )

    @property
    def broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    @property
    def orderly(self) -> bool:
        return self.consume_mode is ConsumeMode.ORDERLY


@dataclass(frozen=True, kw_only=True)
class LitePullConsumerOptions(MemberOptions):
    """How a pull consumer pulls: what it selects of its topic, and ``pull_batch_size`` messages at once.

    Its group and topic stand beside them.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    selector_type: SelectorType = SelectorType.TAG
    selector_expression: str = "*"
    pull_batch_size: int = 10

    def __post_init__(self) -> None:
        size = self.pull_batch_size
        right = f"from 1 to {MAX_PULL_BATCH}"
        _check("LitePullConsumerOptions", [(1 <= size <= MAX_PULL_BATCH, "pull_batch_size", size, right)])
