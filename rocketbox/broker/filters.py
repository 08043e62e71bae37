"""What consumers may select messages by: their tags; further kinds of expressions are handed to the broker.

Source: Apache RocketMQ 5.x ``DefaultMessageFilter``, ``FilterFactory``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from rocketbox.broker.store.message_filter import MessageFilter
from rocketbox.protocol.tags import SubscriptionData

__all__ = ["FilterFactory", "TagFilter", "filter_bytes", "filters_by_kind", "tag_filter"]

CODE_BYTES = 140  # a number and its place in a set, which may have just grown
CHARACTER_BYTES = 64  # of an expression: about what a compiled one takes

FilterFactory = Callable[[SubscriptionData], MessageFilter | None]
"""Makes the filter of a subscription; None when it selects everything. Raises InvalidMessageError for a wrong one."""


class TagFilter:
    """Selects by the hashes of tags alone, as Apache's broker does; the consumer compares the tags themselves."""

    def __init__(self, codes: Collection[int]) -> None:
        self.matches_unit = frozenset(codes).__contains__

    def matches_record(self, record: bytes) -> bool:
        return True


def tag_filter(subscription: SubscriptionData) -> TagFilter | None:
    """The filter of a subscription by tags."""
    if subscription.sub_string == "*" or not subscription.sub_string:
        return None
    return TagFilter(subscription.code_set)


def filter_bytes(subscription: SubscriptionData) -> int:
    """About how many bytes the filter of a subscription takes."""
    if subscription.sub_string == "*":
        return 0
    return CODE_BYTES * len(subscription.code_set) or CHARACTER_BYTES * len(subscription.sub_string)


def filters_by_kind(further: Mapping[str, FilterFactory]) -> dict[str, FilterFactory]:
    """The filters by expression type; one that says no type is by tags."""
    return {**further, "": tag_filter, "TAG": tag_filter}
