"""Options that are taken and checked, and ask for what is not built yet: starting with them is an error, not a silence.

An entry goes when its feature comes.

Source: Apache RocketMQ 5.x ``DefaultLitePullConsumer``; rocketmq-spring 2.3 ``RocketMQProperties``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketbox.errors import Finding

__all__ = ["PULL_CONSUMER", "Unbuilt"]


@dataclass(frozen=True)
class Unbuilt:
    """What options ask for, and what to do instead."""

    feature: str
    fix: str

    def finding(self, said: str, where: str | None = None) -> Finding:
        """The error about options; ``said`` tells of them and their values, and of no secret."""
        return Finding(f"{said} asks for {self.feature}, which rocketbox does not have yet", where, self.fix)


PULL_CONSUMER = Unbuilt("a pull consumer", "leave them out, and consume with a listener")
