"""The stage that everything passes on its way into the store: sends, send-backs, and messages delivered when due.

Holds the order of the transforms, each of which may turn a message into another one before it is stored (a delay level
parks it under another topic); what each does stands in its own module. A message for which no transform has anything
costs one call for each of them, and they look at its property text for a name before they do more.

Source: Apache RocketMQ 5.x ``DefaultMessageStore.putMessageHookList``, ``PutMessageHook``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.putting import PutResult
from rocketbox.errors import InvalidMessageError
from rocketbox.protocol.stored_message import StoredMessage

__all__ = ["PutOrigin", "PutStage", "PutTransform"]


class PutOrigin(Enum):
    """Why a message is stored."""

    SEND = auto()
    BATCH = auto()
    """A message of a sent batch; all of a batch lie in one queue."""
    SEND_BACK = auto()
    """A consumer gave it back."""
    DELIVERY = auto()
    """It was stored before under another topic, and its time has come."""
    COMMIT = auto()
    """The transaction of a half message was committed: what consumers get."""


PutTransform = Callable[[StoredMessage, PutOrigin], StoredMessage]
"""Returns what is stored in place of a message, mostly the message itself. Raises InvalidMessageError.

One with an attribute ``looks_at`` (a set of property names) has nothing to do with messages that have none of them, and
does not see them all.
"""


class PutStage:
    """Puts messages into the store as the transforms, in their order, have made them."""

    def __init__(self, store: MessageStore, transforms: Sequence[PutTransform]) -> None:
        self.lane = store.lane
        self.put_run = store.put_run
        """For messages without any property of :attr:`looks_at`; not at all if that is None."""
        self._store_put = store.put
        self._store_put_batch = store.put_batch
        self._store_put_together = store.put_together
        self._transforms = tuple(transforms)

    @property
    def looks_at(self) -> frozenset[bytes] | None:
        """The properties that make a message one for the transforms; None: they want to see all."""
        names: frozenset[bytes] = frozenset()
        for transform in self._transforms:
            looks_at: frozenset[bytes] | None = getattr(transform, "looks_at", None)
            if looks_at is None:
                return None
            names |= looks_at
        return names

    def put(self, message: StoredMessage, origin: PutOrigin) -> PutResult:
        """Store a message; the result says where it lies, under whatever topic. Raises as the store's put does."""
        for transform in self._transforms:
            message = transform(message, origin)
        # What was stored before is not measured by limits that were lowered since.
        return self._store_put(message, origin is PutOrigin.SEND_BACK or origin is PutOrigin.DELIVERY)

    def put_telling(self, message: StoredMessage, origin: PutOrigin) -> tuple[StoredMessage, PutResult]:
        """As :meth:`put`; also what was stored in place of the message."""
        for transform in self._transforms:
            message = transform(message, origin)
        return message, self._store_put(message, origin is PutOrigin.SEND_BACK or origin is PutOrigin.DELIVERY)

    def put_together(self, messages: Sequence[tuple[StoredMessage, PutOrigin]]) -> list[PutResult]:
        """Store messages that were stored before, of any queues, so that they stay or go together; see the store."""
        made: list[StoredMessage] = []
        for message, origin in messages:
            for transform in self._transforms:
                message = transform(message, origin)
            made.append(message)
        return self._store_put_together(made)

    def put_batch(self, messages: Sequence[StoredMessage]) -> PutResult:
        """Store messages of one queue one behind the other. Raises as the store's put does.

        A transform moves all of them to the same queue or none: InvalidMessageError else.
        """
        for transform in self._transforms:
            messages = [transform(message, PutOrigin.BATCH) for message in messages]
        if len({(message.topic, message.queue_id) for message in messages}) > 1:
            raise InvalidMessageError("the messages of a batch would lie in different queues; send them one by one")
        return self._store_put_batch(messages)
