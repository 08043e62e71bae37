"""Several functions of one group on one topic: each message goes to the function that takes its tag.

A group subscribes a topic once, so what is subscribed is the tags of all of them (``A || B``). That no tag is taken by
two is the registrar's business; messages with a tag that none takes are left out when they are pulled, as those of a
single function are. Only a message that comes back from its retries after the tags have changed may have no function:
it has failed, and so is not lost.

Each batch that is taken from a queue has messages of one function (``receiver_of``), so all that concerns a call,
middleware, its timeout, its failure, a stop, concerns this function's messages alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketbox.client.middleware import ConsumeContext
from rocketbox.client.outcomes import NobodyError, Outcomes, PreparedCall
from rocketbox.client.subscriptions import Receiver
from rocketbox.errors import InvalidMessageError
from rocketbox.listeners.dispatch import HandlerDispatch
from rocketbox.listeners.plans import ListenerFunction
from rocketbox.message import MessageExt, SelectorType
from rocketbox.protocol.tags import parse_subscription

__all__ = ["TagRouter", "overlap", "tags_of"]


def tags_of(function: ListenerFunction) -> frozenset[str] | None:
    """The tags that a function takes; None: whatever a message has, or an expression that cannot be compared.

    Raises InvalidMessageError for an expression that names no tag.
    """
    if function.selector_type is not SelectorType.TAG:
        return None
    tags = frozenset(parse_subscription(function.topic, function.selector_expression).tags_set)
    return None if "*" in tags else tags or None


def overlap(one: ListenerFunction, other: ListenerFunction) -> str | None:
    """What two functions of one topic would both get, in words; None for disjoint tags."""
    if SelectorType.SQL92 in (one.selector_type, other.selector_type):
        return "and an SQL92 selector cannot be compared with another one"
    try:
        mine, theirs = tags_of(one), tags_of(other)
    except InvalidMessageError as error:
        return f"and {error}"
    if mine is None or theirs is None:
        return f"and {(one if mine is None else other).signature.name} takes all tags"
    both = sorted(mine & theirs)
    return f"and both take {', '.join(both)}" if both else None


class TagRouter:
    """Hands the messages of a topic to the dispatches of its functions; like one of them to whoever calls it."""

    def __init__(self, group: str, routes: Sequence[tuple[ListenerFunction, HandlerDispatch]]) -> None:
        self._group = group
        self._by_tag: dict[str | None, HandlerDispatch] = {}
        self._receivers: dict[str | None, Receiver] = {}
        for function, dispatch in routes:
            tags = tags_of(function) or ()
            self._by_tag.update(dict.fromkeys(tags, dispatch))
            called = f"{function.signature.name} ({function.signature.where})"
            self._receivers.update(dict.fromkeys(tags, Receiver(called, function.batch_max_size)))
        self.batch_max_size = max(function.batch_max_size for function, _ in routes)
        self._nobody = Receiver("nobody", 1)
        self.expression = " || ".join(function.selector_expression for function, _ in routes)
        self.in_threads = not any(function.signature.is_async for function, _ in routes)

    def receiver_of(self, message: MessageExt) -> Receiver:
        """The function that takes a message; nobody where none does."""
        return self._receivers.get(message.tag, self._nobody)

    def invocation(self, messages: list[MessageExt]) -> ConsumeContext:
        """What middleware gets: the call of the function that takes these messages, where there is one."""
        dispatch = self._by_tag.get(messages[0].tag)
        return ConsumeContext(self._group, messages) if dispatch is None else dispatch.invocation(messages)

    def prepare(self, messages: list[MessageExt]) -> PreparedCall | None:
        """As :meth:`HandlerDispatch.prepare`."""
        dispatch = self._by_tag.get(messages[0].tag)
        return None if dispatch is None else dispatch.prepare(messages)

    async def handle(self, messages: list[MessageExt]) -> Outcomes:
        """As :meth:`HandlerDispatch.handle`; the messages are of one receiver, or none: middleware may drop them."""
        if not messages:
            return None
        dispatch = self._by_tag.get(messages[0].tag)
        if dispatch is None:
            return [NobodyError(f"no function of group {self._group} takes tag {each.tag!r}") for each in messages]
        return await dispatch.handle(messages)
