"""What may be added to a broker when it is made: hooks around its handlers, steps before its store, kinds of filters.

Source: Apache RocketMQ 5.x ``BrokerController.registerServerRPCHook``, ``MessageStore.setPutMessageHook``,
``FilterFactory.register``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rocketbox.broker.filters import FilterFactory
from rocketbox.broker.put_stage import PutTransform
from rocketbox.remoting.hooks import RequestHook

__all__ = ["BrokerExtensions"]


@dataclass(frozen=True, kw_only=True)
class BrokerExtensions:
    """The additions; none by default."""

    hooks: Sequence[RequestHook] = ()
    """Called around every handler."""
    put_transforms: Sequence[PutTransform] = ()
    """They see each message on its way into the store, in this order, before the delay levels do."""
    filters: Mapping[str, FilterFactory] = field(default_factory=dict)
    """By expression type, what makes a filter of a subscription; ``TAG`` is there already."""
