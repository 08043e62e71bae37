"""Options that are taken and checked, and ask for what is not built yet: starting with one is an error, not a silence.

One table for the client, which refuses such options when it is made, and for ``autoconfigure``, which tells of all of
them together before anything is connected. An entry goes when its feature comes.

Source: Apache RocketMQ 5.x ``ClientConfig``, ``DefaultMQProducer``, ``DefaultLitePullConsumer``; rocketmq-spring 2.3
``RocketMQProperties``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rocketbox.declarations import Option, options_of
from rocketbox.errors import ConfigurationError, Finding

__all__ = ["PULL_CONSUMER", "UNBUILT", "Unbuilt", "refuse_unbuilt", "unbuilt_among"]


@dataclass(frozen=True)
class Unbuilt:
    """What an option asks for with any value but its default, and what to do instead."""

    feature: str
    fix: str

    def finding(self, said: str, where: str | None = None) -> Finding:
        """The error about an option; ``said`` tells of it and its value, and of no secret."""
        return Finding(f"{said} asks for {self.feature}, which rocketbox does not have yet", where, self.fix)


UNBUILT: Mapping[str, Unbuilt] = {
    "enable_msg_trace": Unbuilt("message trace", "leave it out"),
    "customized_trace_topic": Unbuilt("message trace", "leave it out"),
}
"""By the name of the option."""

PULL_CONSUMER = Unbuilt("a pull consumer", "leave them out, and consume with a listener")


def unbuilt_among(values: Mapping[str, Any], declared: Mapping[str, Option]) -> Iterator[tuple[str, Unbuilt]]:
    """The options that ask for what is not built, by name; None and the declared default ask for nothing."""
    for name, unbuilt in UNBUILT.items():
        value = values.get(name)
        if name in declared and value is not None and value != declared[name].default:
            yield name, unbuilt


def refuse_unbuilt(options: object) -> None:
    """Raise ConfigurationError that names all options which ask for what is not built."""
    owner = type(options).__name__
    asked_for = unbuilt_among(vars(options), options_of(type(options)))
    findings = [unbuilt.finding(f"{owner}.{name}") for name, unbuilt in asked_for]
    if findings:
        raise ConfigurationError(findings)
