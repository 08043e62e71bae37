"""What makes up a consumer's membership of its group: what those who see to its queues have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rocketbox.client.instance import MQClientInstance
from rocketbox.client.options import ConsumerOptions
from rocketbox.client.refusals import Refusals
from rocketbox.client.subscriptions import Subscriptions
from rocketbox.tasks import Supervisor

__all__ = ["Membership"]


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Of one consumer. ``again`` asks for another round of rebalancing, after a second or after what is given; its
    tasks are ``tasks``', what servers refuse it ``refusals``'."""

    group: str
    instance: MQClientInstance
    options: ConsumerOptions
    subscriptions: Subscriptions
    tasks: Supervisor
    again: Callable[..., None]
    refusals: Refusals
