"""Options that are taken and checked, and ask for what is not built yet: starting with one is an error, not a silence.

One table for the client, which refuses such options when it is made, and for ``autoconfigure``, which tells of all of
them together before anything is connected. An entry goes when its feature comes.

Source: Apache RocketMQ 5.x ``ClientConfig``, ``DefaultMQProducer``, ``DefaultLitePullConsumer``; rocketmq-spring 2.3
``RocketMQProperties``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rocketbox.client.options import SYSTEM_TRACE_TOPIC, AccessChannel
from rocketbox.errors import ConfigurationError, Finding

__all__ = ["PULL_CONSUMER", "SPARK_KEYS", "UNBUILT", "Unbuilt", "refuse_unbuilt", "unbuilt_in"]


@dataclass(frozen=True)
class Unbuilt:
    """What an option asks for, what to do instead, and the value that does not ask for it, beside None."""

    feature: str
    fix: str
    idle: Any = None

    def is_asked_for_by(self, value: Any) -> bool:
        return value is not None and value != self.idle

    def finding(self, said: str, where: str | None = None) -> Finding:
        """The error about an option; ``said`` tells of it and its value, and of no secret."""
        return Finding(f"{said} asks for {self.feature}, which rocketbox does not have yet", where, self.fix)


UNBUILT: Mapping[str, Unbuilt] = {
    "access_channel": Unbuilt(
        "the ways of a vendor's cloud", "leave it out, or set it to LOCAL", idle=AccessChannel.LOCAL
    ),
    "tls_enable": Unbuilt("encrypted connections (TLS)", "leave it out, and use a port without TLS", idle=False),
    "namespace": Unbuilt(
        "a namespace", "leave it out, and write the whole names of topics and groups, as namespace%topic"
    ),
    "namespace_v2": Unbuilt("a namespace in the header", "leave it out, and use topics outside of namespaces"),
    "enable_msg_trace": Unbuilt("message trace", "leave it out", idle=False),
    "customized_trace_topic": Unbuilt("message trace", "leave it out", idle=SYSTEM_TRACE_TOPIC),
    "compress_message_body_threshold": Unbuilt("compressed bodies", "leave it out: bodies go as they are", idle=4096),
    "reply_timeout": Unbuilt("replies to requests", "leave it out", idle=timedelta(seconds=3)),
}
"""By the name of the option."""

PULL_CONSUMER = Unbuilt("a pull consumer", "leave them out, and consume with a listener")
SPARK_KEYS = Unbuilt(
    "signed requests (ACL) in Spark's processes", "let it read from a cluster without keys, or consume with a listener"
)


def unbuilt_in(options: object) -> Iterator[tuple[str, Unbuilt]]:
    """The options of an object that ask for what is not built, by name."""
    said = vars(options)
    for name, unbuilt in UNBUILT.items():
        if unbuilt.is_asked_for_by(said.get(name)):
            yield name, unbuilt


def refuse_unbuilt(options: object) -> None:
    """Raise ConfigurationError that names all options which ask for what is not built."""
    owner = type(options).__name__
    findings = [unbuilt.finding(f"{owner}.{name}") for name, unbuilt in unbuilt_in(options)]
    if findings:
        raise ConfigurationError(findings)
