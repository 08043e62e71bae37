"""Batches for Spark listeners: what Spark would read, whose processes cannot reach a network in memory.

Which listener is meant, which messages a batch has, and how often it came. Its messages become rows, and its function
is called, in ``spark_calls``, which is loaded when the first batch is: this module knows nothing of pyspark.

A batch has the same messages whenever it comes, with the same ids and offsets, as Spark's checkpoint sees to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rocketbox.application import RocketBox
from rocketbox.autoconfigure.spark_listening import SparkPlan
from rocketbox.client import MQClientInstance, ProducerOptions
from rocketbox.client.checks import check_body, message_properties, wrong_message
from rocketbox.clock import Clock
from rocketbox.hints import name_of
from rocketbox.message import Message
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.template import MessageConverter
from rocketbox.template.content_types import write_payload
from rocketbox.template.spring_headers import CONTENT_TYPE
from rocketbox.testing.errors import HarnessError
from rocketbox.testing.listened import another_object, is_meant
from rocketbox.testing.observer import Observer
from rocketbox.testing.records import Batch, Sent, Unreadable, told_error

if TYPE_CHECKING:
    from rocketbox.testing.spark_calls import SparkCalls

__all__ = ["Batches"]

QUEUE = 0  # all messages of a batch are in one queue


@dataclass
class _OfListener:
    """What one listener has had."""

    query_id: str
    batches: dict[int, Batch] = field(default_factory=dict)
    end: int = 0
    """The offset of the next message."""


class Batches:
    """Those of one service; ``converter()`` is its own, ``same_as(cluster)`` the first name of a cluster."""

    def __init__(
        self,
        app: RocketBox,
        clock: Clock,
        seen: Observer,
        converter: Callable[[], MessageConverter],
        same_as: Callable[[str | None], str | None],
    ) -> None:
        self._app = app
        self._clock = clock
        self._seen = seen
        self._converter = converter
        self._same_as = same_as
        self._had: dict[tuple[str | None, str], _OfListener] = {}
        self._calls: SparkCalls | None = None

    async def deliver(
        self, listener: Callable[..., Any] | str, payloads: Iterable[object] | None, number: int | None
    ) -> Any:
        """What the listener's function returns; see :meth:`Harness.batch`."""
        plan = self._plan(listener)
        had = self._had.setdefault((plan.cluster, plan.name), _OfListener(self._clock.uuid()))
        batch = self._batch(plan, had, payloads, number)
        from rocketbox.testing.spark_calls import SparkCalls  # only who has a batch loads Spark

        if self._calls is None:
            self._calls = SparkCalls(self._app, self._clock, self._seen, self._same_as)
        batch.attempt += 1
        told = (
            f"{plan.group}: batch {batch.id} of {_function(plan)}, attempt {batch.attempt}, "
            f"{len(batch.records)} messages"
        )
        try:
            result = await self._calls.call(plan, batch, had.query_id)
        except Exception as error:
            self._seen.note(f"{told}: failed ({told_error(error)})")
            raise
        self._seen.note(f"{told}: done")
        return result

    def forget(self) -> None:
        """Know of no batch."""
        self._had.clear()

    def _plan(self, listener: Callable[..., Any] | str) -> SparkPlan:
        plans = [plan for plan in self._app.assembly.plans if isinstance(plan, SparkPlan)]
        found = _meant(listener, plans)
        if len(found) == 1:
            return found[0]
        asked = listener if isinstance(listener, str) else name_of(listener)
        if found:
            raise HarnessError(
                f"{asked} is a Spark listener {len(found)} times: say which one by its group, or by group.topic: "
                f"{', '.join(_way(plan, plans) for plan in found)}"
            )
        off = [each.what for each in self._app.assembly.off if each.what.startswith(f"Spark listener {asked} ")]
        known = ", ".join(f"{_function(plan)} (group {plan.name})" for plan in plans) or "none"
        if off:
            raise HarnessError(f"{off[0]}; let the settings of the test switch it on, it starts nothing in a harness")
        if alike := [plan for plan in plans if _function(plan) == asked]:
            places = [f"{asked} of group {plan.group} ({plan.where})" for plan in alike]
            functions = [plan.signature.function for plan in alike]
            raise HarnessError(another_object(listener, "Spark listener", functions, places))
        raise HarnessError(f"{asked} is no Spark listener of {self._app.name}; its Spark listeners are: {known}")

    def _batch(self, plan: SparkPlan, had: _OfListener, payloads: Iterable[object] | None, number: int | None) -> Batch:
        if number is not None and (type(number) is not int or number < 0):
            raise HarnessError(f"batch_id={number!r}: batches are numbered from 0 on")
        next_id = max(had.batches, default=-1) + 1
        if payloads is None:
            known = ", ".join(map(str, had.batches)) or "none"
            if number is None or number not in had.batches:
                raise HarnessError(
                    f"without payloads a batch comes again, and batch_id={number!r} is none that group {plan.group} "
                    f"has had (it has had: {known}); give the payloads of a new one"
                )
            return had.batches[number]
        if number is not None and number in had.batches:
            raise HarnessError(
                f"batch {number} of group {plan.group} has its messages, and a batch has the same ones whenever it "
                f"comes: leave the payloads out to have it come again, or batch_id for a new one ({next_id})"
            )
        records = self._records(plan, had.end, payloads)
        if not records:
            raise HarnessError("a batch has a message at least: for none a Spark listener is not called")
        batch = Batch(next_id if number is None else number, records)
        had.batches[batch.id] = batch
        had.end += len(batch.records)
        return batch

    def _records(self, plan: SparkPlan, first: int, payloads: Iterable[object]) -> tuple[StoredMessage, ...]:
        if isinstance(payloads, str | bytes | dict) or not isinstance(payloads, Iterable):
            raise HarnessError(
                f"payloads={payloads!r}: a batch has a list of payloads, one for each message; write [{payloads!r}]"
            )
        instance: MQClientInstance = self._app.get(MQClientInstance, plan.cluster)
        return tuple(self._record(plan, instance, first + number, payload) for number, payload in enumerate(payloads))

    def _record(self, plan: SparkPlan, instance: MQClientInstance, offset: int, payload: object) -> StoredMessage:
        """A message as a client sends it, and a broker stores it. Raises InvalidMessageError."""
        message, sys_flag = self._message(plan, payload)
        now = self._clock.time_ms()
        try:
            check_body(message.topic, message.body, ProducerOptions().max_message_size)
            properties = message_properties(message, instance.unique_ids.next(now))
        except (AttributeError, TypeError, UnicodeEncodeError) as error:
            raise wrong_message(message, error) from error
        return StoredMessage(
            plan.topic, QUEUE, message.body, properties, message.flag, sys_flag, now,
            queue_offset=offset, store_timestamp_ms=now,
        )  # fmt: skip

    def _message(self, plan: SparkPlan, payload: object) -> tuple[Message, int]:
        if isinstance(payload, Sent):
            payload = payload.message
        if isinstance(payload, Unreadable):
            return Message(plan.topic, payload.body), int(MessageSysFlag.COMPRESSED)
        if not isinstance(payload, Message):
            body, content_type = write_payload(self._converter(), payload, None)
            said = {} if content_type is None else {CONTENT_TYPE: content_type}
            return Message(plan.topic, body, properties=said), 0
        if payload.topic != plan.topic:
            raise HarnessError(
                f"a message of topic {payload.topic} in a batch of group {plan.group}, which reads {plan.topic}"
            )
        return payload, 0


def _meant(listener: Callable[..., Any] | str, plans: Iterable[SparkPlan]) -> list[SparkPlan]:
    return [
        plan
        for plan in plans
        if is_meant(listener, plan.signature.function, plan.name, _function(plan), f"{plan.group}.{plan.topic}")
    ]


def _way(plan: SparkPlan, plans: Iterable[SparkPlan]) -> str:
    """What a test gives to mean this one, and no other."""
    texts = [text for text in (plan.name, f"{plan.group}.{plan.topic}") if len(_meant(text, plans)) == 1]
    return repr(texts[0]) if texts else f"the function {_function(plan)} itself"


def _function(plan: SparkPlan) -> str:
    return name_of(plan.signature.function)
