"""Batches: which messages go in one request, and what the answer to it says of each of them.

A batch is as many requests as its size needs, each of at most ``max_message_size`` bytes and of messages that stand one
behind the other. A message that is too large to stand in a batch at all goes as an ordinary one. So does one with so
long a property text that a broker before 5.0 could not store it in a batch: it adds some of its own to each message
there without a look at the sum, acknowledges, and the record is lost with what stands behind it (4.9.7; a message sent
alone it refuses).

Source: Apache RocketMQ 5.x ``MessageBatch.generateFromList``, ``ProduceAccumulator`` (``splitSendResults``). Unlike
there: a batch that is too large is split instead of refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rocketbox.errors import NotDurableError
from rocketbox.message import MAX_PROPERTIES_BYTES, SendResult

__all__ = ["Element", "Part", "errors_of", "parts_of", "results_of"]

ELEMENT_BYTES = 4 * 5 + 2  # of a message in a batch, beside its body and its properties
MOST_ADDED_BYTES = 512  # WAIT, INSTANCE_ID and CLUSTER, with two names
MOST_IN_REQUEST = 50_000  # the answer names each message in its header, by 33 bytes, or 57 of a broker with IPv6


class Element(NamedTuple):
    """A checked message on its way into a batch; ``properties`` is its encoded property text."""

    flag: int
    body: bytes
    properties: bytes
    msg_id: str

    def size_within(self, most: int) -> int:
        """The bytes that it takes in a batch of ``most`` bytes; more than those, where it may not stand in one."""
        properties = len(self.properties)
        if properties > MAX_PROPERTIES_BYTES - MOST_ADDED_BYTES:
            return most + 1
        return ELEMENT_BYTES + len(self.body) + properties


@dataclass(frozen=True)
class Part:
    """Messages ``start`` to ``end`` of a batch: one request. ``alone``: one that cannot stand in a batch."""

    start: int
    end: int
    alone: bool = False


def parts_of(sizes: Sequence[int], most: int) -> Iterator[Part]:
    """The parts of a batch whose messages take so many bytes each, of at most ``most`` bytes."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and (total + size > most or index - start >= MOST_IN_REQUEST):
            yield Part(start, index)
            start, total = index, 0
        if size > most:
            yield Part(index, index + 1, alone=True)
            start, total = index + 1, 0
        else:
            total += size
    if start < len(sizes):
        yield Part(start, len(sizes))


class _Answer:
    """What the answer to a batch says of its messages; it is looked at when one of them is asked for."""

    __slots__ = ("_fields", "_ids", "_result")

    def __init__(self, result: SendResult) -> None:
        self._result = result
        self._ids: list[str] | None = None
        self._fields: dict[str, str] = {}

    def fields_of(self, index: int) -> Mapping[str, str]:
        """The fields of an answer to one message alone; what cannot be told from the others' is missing."""
        if self._ids is None:
            self._fields = dict(self._result.ext_fields)
            self._fields.pop("transactionId", None)
            self._ids = self._fields.pop("msgId", "").split(",")
        fields = dict(self._fields)
        if index < len(self._ids) and self._ids[index]:
            fields["msgId"] = self._ids[index]
        first = fields.get("queueOffset", "")
        if first.isdecimal():
            fields["queueOffset"] = str(int(first) + index)
        return fields


class _Share:
    """The part of an answer that is about one message."""

    __slots__ = ("_answer", "_index")

    def __init__(self, answer: _Answer, index: int) -> None:
        self._answer = answer
        self._index = index

    @property
    def ext_fields(self) -> Mapping[str, str]:
        return self._answer.fields_of(self._index)


def results_of(result: SendResult, count: int) -> list[SendResult]:
    """The results of a batch's messages, made of the one that their request had."""
    ids = result.msg_id.split(",")
    if count == 1 or len(ids) != count:  # a middleware's own
        return [result] * count
    answer = _Answer(result)
    return [
        SendResult(result.status, msg_id, result.topic, result.broker_name, _Share(answer, index))
        for index, msg_id in enumerate(ids)
    ]


def errors_of(error: Exception, count: int) -> list[Exception]:
    """What a batch's messages are told of the error that their request ended with."""
    if isinstance(error, NotDurableError):  # each is stored, at a place of its own
        return [NotDurableError(result) for result in results_of(error.result, count)]
    return [error] * count
