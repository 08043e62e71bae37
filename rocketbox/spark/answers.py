"""Whether the answer to a pull can be what is in the queue: its records come in the order of their offsets, each once.

No broker of Apache's answers otherwise, and rows that were doubled or left out would stay so for ever.

Source: Apache RocketMQ 5.x ``DefaultMessageStore.getMessage``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import lt

from rocketbox.errors import RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.spark.offsets import in_words

__all__ = ["FARTHEST_SCAN", "AnswerError", "what_cannot_be"]

FARTHEST_SCAN = 16_000 // 20  # offsets: maxFilterMessageSize of a broker / bytes of a queue's unit


class AnswerError(RocketBoxError):
    """A broker answers a pull of one message at ``offset`` with several, of which ``why`` tells what cannot be."""

    def __init__(self, queue: MessageQueue, offset: int, why: str) -> None:
        self.queue = queue
        self.offset = offset
        super().__init__(
            f"{in_words(queue)}: the broker's answer to a pull of the message at offset {offset} cannot be: {why}. "
            "Rows would come twice or not at all, so none is read. What answers is no broker of Apache RocketMQ, or "
            "the queue is damaged"
        )


def what_cannot_be(offsets: Sequence[int], asked: int, reached: int, *, has_inner_batch: bool) -> str | None:
    """Why records of these offsets cannot be what lies between the one asked for and where it goes on; None: they can.

    A record that holds an inner batch may begin before it.
    """
    if not all(map(lt, offsets, offsets[1:])):
        before, behind = next(pair for pair in pairwise(offsets) if pair[0] >= pair[1])
        return f"a message of offset {behind} comes behind that of {before}"
    if offsets and not has_inner_batch and (offsets[0] < asked or offsets[-1] >= reached):
        odd = offsets[0] if offsets[0] < asked else offsets[-1]
        return f"it has a message of offset {odd}, and goes from {asked} to {reached - 1}"
    return None
