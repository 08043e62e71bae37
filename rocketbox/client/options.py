"""The settings of a client instance and of a producer; those of a consumer stand beside its engine in ``consume``.

Durations are float seconds. Values are checked when they are made, all at once.

Source: Apache RocketMQ 5.x ``ClientConfig`` and ``DefaultMQProducer`` (names in snake_case, defaults as there).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rocketbox.errors import ConfigurationError, Finding
from rocketbox.protocol.codes import TBW102
from rocketbox.remoting.options import RemotingOptions

__all__ = ["ClientOptions", "ProducerOptions"]

DEFAULT_INSTANCE_NAME = "DEFAULT"
MAX_BODY_BYTES = 4 * 1024 * 1024


def _check(owner: str, rules: Iterable[tuple[bool, str, object, str]]) -> None:
    findings = [
        Finding(f"{owner}.{name} is {value!r}", fix=f"it must be {right}")
        for is_right, name, value, right in rules
        if not is_right
    ]
    if findings:
        raise ConfigurationError(findings)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """How a client instance names itself, how often it asks and tells, and how it connects.

    ``instance_name`` DEFAULT becomes ``<pid>#<number>``, so that each instance is a client of its own; any other name
    stays, and two clients of one name on one machine are one to the broker. ``client_ip`` None: the address that the
    machine uses toward the outside. ``api_timeout`` bounds every small request (routes, offsets, heartbeats),
    ``shutdown_timeout`` all requests that say goodbye together.
    """

    instance_name: str = DEFAULT_INSTANCE_NAME
    client_ip: str | None = None
    unit_name: str | None = None
    api_timeout: float = 3.0
    poll_name_server_interval: float = 30.0
    missing_route_interval: float = 1.0
    heartbeat_broker_interval: float = 30.0
    persist_consumer_offset_interval: float = 5.0
    shutdown_timeout: float = 3.0
    remoting: RemotingOptions = field(default_factory=RemotingOptions)

    def __post_init__(self) -> None:
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
                *((getattr(self, name) > 0, name, getattr(self, name), "more than 0 seconds") for name in times),
            ],
        )


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """How a producer sends.

    ``send_message_timeout`` is over all tries of one send; ``send_msg_max_timeout_per_request`` ends a try earlier, so
    that a silent broker leaves time for another one (None: it may use up all of it). ``accept_weak_ack`` returns
    results other than SEND_OK instead of raising NotDurableError; ``retry_another_broker_when_not_store_ok`` first
    tries for a better one on another broker, which stores the message twice. ``send_many_window`` is how many messages
    ``send_many`` has in flight at once.
    """

    send_message_timeout: float = 3.0
    send_msg_max_timeout_per_request: float | None = None
    retry_times_when_send_failed: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    accept_weak_ack: bool = False
    max_message_size: int = MAX_BODY_BYTES
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
