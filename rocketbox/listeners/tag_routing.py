"""Several functions of one group on one topic: each message goes to the function that takes its tag.

A group subscribes a topic once, so what is subscribed is the tags of all of them (``A || B``). That no tag is taken by
two is the registrar's business; messages with a tag that none takes are left out when they are pulled, as those of a
single function are. Only a message that comes back from its retries after the tags have changed may have no function:
it has failed, and so is not lost.

A batch that holds messages of several functions is divided before middleware sees it: each call of a function goes
through the whole chain by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence

from rocketbox.client.consume import failures_of_call
from rocketbox.client.middleware import ConsumeContext
from rocketbox.client.outcomes import MessageHandler, NobodyError, NotTriedError, Outcome, Outcomes, PreparedCall
from rocketbox.errors import InvalidMessageError
from rocketbox.listeners.dispatch import HandlerDispatch
from rocketbox.listeners.plans import ListenerFunction
from rocketbox.message import ConsumeMode, MessageExt, SelectorType
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
        self._by_tag: Mapping[str | None, HandlerDispatch] = {
            tag: dispatch for function, dispatch in routes for tag in tags_of(function) or ()
        }
        self._sizes = {id(dispatch): function.batch_max_size for function, dispatch in routes}
        self._orderly = any(dispatch.consume_mode is ConsumeMode.ORDERLY for _, dispatch in routes)
        self.batch_max_size = max(self._sizes.values())
        self.expression = " || ".join(function.selector_expression for function, _ in routes)
        self.in_threads = not any(function.signature.is_async for function, _ in routes)

    def invocation(self, messages: list[MessageExt]) -> ConsumeContext:
        """What middleware gets: the call of the function that takes these messages; of none, what all calls share."""
        dispatch = self._only_one(messages)
        return ConsumeContext(self._group, messages) if dispatch is None else dispatch.invocation(messages)

    def prepare(self, messages: list[MessageExt]) -> PreparedCall | None:
        """As :meth:`HandlerDispatch.prepare`."""
        dispatch = self._only_one(messages)
        return None if dispatch is None else dispatch.prepare(messages)

    def divide(self, call: MessageHandler) -> MessageHandler:
        """What takes a batch for functions whose calls are made by ``call``: it divides it as :meth:`handle` does."""

        def handle(messages: list[MessageExt]) -> Awaitable[Outcomes]:
            return call(messages) if len(messages) == 1 else self._handle_parts(call, messages)

        return handle

    async def handle(self, messages: list[MessageExt]) -> Outcomes:
        """One outcome for each message, or None when all of them are consumed."""
        if len(messages) == 1 and (dispatch := self._by_tag.get(messages[0].tag)) is not None:
            return await dispatch.handle(messages)
        return await self._handle_parts(self._handle_part, messages)

    async def _handle_parts(self, call: MessageHandler, messages: list[MessageExt]) -> Outcomes:
        """Have ``call`` handle each part of a batch: what fails in one concerns its own messages alone."""
        outcomes: list[Outcome] = [None] * len(messages)
        for part in self._parts(messages):
            failures = await failures_of_call(call, [messages[index] for index in part])
            failed = {id(message): error for message, error in failures}
            for index in part:
                outcomes[index] = failed.get(id(messages[index]))
            if failed and self._orderly:
                # What follows in the queue must not overtake it.
                for index in range(part[-1] + 1, len(messages)):
                    outcomes[index] = NotTriedError()
                break
        return outcomes if any(outcome is not None for outcome in outcomes) else None

    async def _handle_part(self, messages: list[MessageExt]) -> Outcomes:
        dispatch = self._by_tag.get(messages[0].tag)
        if dispatch is None:
            return [NobodyError(f"no function of group {self._group} takes tag {each.tag!r}") for each in messages]
        return await dispatch.handle(messages)

    def _only_one(self, messages: Sequence[MessageExt]) -> HandlerDispatch | None:
        dispatch = self._by_tag.get(messages[0].tag)
        if len(messages) == 1 or dispatch is None:
            return dispatch
        alike = all(self._by_tag.get(message.tag) is dispatch for message in messages)
        return dispatch if alike and len(messages) <= self._sizes[id(dispatch)] else None

    def _parts(self, messages: Sequence[MessageExt]) -> Iterator[list[int]]:
        """The indexes of the messages of each call, in their order; in an orderly group only neighbours share one.

        Those that no function takes are a part as well; in an orderly group each of them, for it holds up the others.
        """
        of_nobody = 1 if self._orderly else len(messages)
        parts: list[list[int]] = []
        open_: dict[int, list[int]] = {}
        for index, message in enumerate(messages):
            dispatch = self._by_tag.get(message.tag)
            if self._orderly:
                open_ = {key: part for key, part in open_.items() if key == id(dispatch)}
            part = open_.get(id(dispatch))
            if part is None or len(part) >= self._sizes.get(id(dispatch), of_nobody):
                part = open_[id(dispatch)] = []
                parts.append(part)
            part.append(index)
        yield from parts
