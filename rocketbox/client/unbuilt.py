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

__all__ = ["PULL_CONSUMER", "UNBUILT", "Unbuilt", "refuse_unbuilt", "unbuilt_in"]


@dataclass(frozen=True)
class Unbuilt:
    """What an option asks for, the values that do not ask for it, and what to do instead."""

    feature: str
    idle: tuple[Any, ...]
    fix: str

    def is_asked_for_by(self, value: Any) -> bool:
        return value not in self.idle

    def finding(self, said: str, where: str | None = None) -> Finding:
        """The error about an option; ``said`` tells of it and its value, and of no secret."""
        return Finding(f"{said} asks for {self.feature}, which rocketbox does not have yet", where, self.fix)


_NO_NAMESPACE = "leave it out and write the full names of topics and groups, as name%topic"
_NO_KEYS = "leave out access-key and secret-key, and use a cluster that asks for none"
_NO_TRACE = "leave it out"

UNBUILT: Mapping[str, Unbuilt] = {
    "access_channel": Unbuilt(
        "the ways of a vendor's cloud", (None, AccessChannel.LOCAL), "leave it out, or set it to LOCAL"
    ),
    "tls_enable": Unbuilt("encrypted connections (TLS)", (None, False), "leave it out, and use a port without TLS"),
    "namespace": Unbuilt("a namespace", (None,), _NO_NAMESPACE),
    "namespace_v2": Unbuilt("a namespace", (None,), _NO_NAMESPACE),
    "access_key": Unbuilt("signed requests (ACL)", (None,), _NO_KEYS),
    "secret_key": Unbuilt("signed requests (ACL)", (None,), _NO_KEYS),
    "enable_msg_trace": Unbuilt("message trace", (None, False), _NO_TRACE),
    "customized_trace_topic": Unbuilt("message trace", (None, SYSTEM_TRACE_TOPIC), _NO_TRACE),
    "compress_message_body_threshold": Unbuilt(
        "compressed bodies", (None, 4096), "leave it out: bodies go as they are"
    ),
    "reply_timeout": Unbuilt("replies to requests", (None, timedelta(seconds=3)), "leave it out"),
}
"""By the name of the option."""

PULL_CONSUMER = Unbuilt("a pull consumer", (None,), "leave them out, and consume with a listener")


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
