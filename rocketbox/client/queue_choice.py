"""Which of a topic's queues a message goes to, where somebody says it: a queue, a function that picks one, or chance.

Source: Apache RocketMQ 5.x ``MessageQueueSelector``, ``SelectMessageQueueByRandom``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

from rocketbox.errors import InvalidMessageError
from rocketbox.message import Message, MessageQueue

__all__ = ["QueueChoice", "QueueSelector", "QueueTarget", "check_target", "selected"]


class QueueChoice(Enum):
    """How a queue is chosen that nobody names: the next one in turn, or any."""

    IN_TURN = "IN_TURN"
    RANDOM = "RANDOM"


QueueSelector: TypeAlias = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Picks one of the queues of the message's topic that can be sent to now, sorted by broker and number. Of an ordered
topic they are those that its configuration names (``broker-a:4;broker-b:4``), whether their brokers are there or not.
"""

QueueTarget: TypeAlias = MessageQueue | QueueSelector | QueueChoice
"""What ``queue=`` of a send takes."""


def check_target(target: object) -> None:
    """Raises InvalidMessageError for what is no QueueTarget."""
    if not isinstance(target, MessageQueue | QueueChoice) and not callable(target):
        raise InvalidMessageError(
            f"queue={target!r} is {type(target).__name__}; it must be a MessageQueue, a QueueChoice, or a function "
            "of the queues and the message that returns one of them"
        )


def selected(selector: QueueSelector, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """The queue that a selector picks. Raises InvalidMessageError when that is none of them; what it raises itself."""
    queue = selector(queues, message)
    if queue not in queues:
        name = getattr(selector, "__qualname__", type(selector).__qualname__)
        raise InvalidMessageError(
            f"{name}, which was given as queue=, returned {queue!r} for a message to {message.topic!r}; it must return "
            f"one of the {len(queues)} queues that it is given"
        )
    return queue
