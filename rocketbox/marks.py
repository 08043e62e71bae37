"""The marks users put on functions: plain values, nothing starts or loads by importing or using them.

Marks are a tuple on the function and stack. A mark's option that is ``None`` was not said: ``rocketbox.yaml``
(``rocketmq.consumer.listeners.<group>.*``, then ``rocketmq.consumer.*``) or the default decides. Names are those of
rocketmq-spring's ``@RocketMQMessageListener`` in snake_case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageModel, SelectorType

__all__ = ["Header", "add_mark", "marks_of", "rocketmq_listener", "rocketmq_spark_listener", "send_to"]

MARKS = "__rocketbox_marks__"
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


def marks_of(handler: object) -> tuple[object, ...]:
    """The marks on a function, the one nearest to ``def`` first."""
    marks: tuple[object, ...] = getattr(handler, MARKS, ())
    return marks


def add_mark(handler: HandlerT, mark: object) -> HandlerT:
    """Put one more mark on a function and return it: what a decorator of another kind of listeners does as well."""
    setattr(handler, MARKS, (*marks_of(handler), mark))
    return handler


@dataclass(frozen=True, kw_only=True)
class rocketmq_listener:  # noqa: N801 - used as a decorator
    """Marks a function as a listener. None: YAML or the default decides.

    The names and types of the options stand here for editors and type checkers; what they are, their bounds and
    defaults is declared in ``listeners.options``, and a test compares the two.

    Text may hold ``${key:default}``. Times are a timedelta or text with a unit (``"15m"``), never a bare number.

    ``concurrency`` stands for rocketmq-spring's ``consumeThreadNumber`` and ``consumeThreadMax``. Its
    ``nameServer``, ``accessChannel``, ``tlsEnable`` and ``instanceName`` are those of a cluster: write them under
    ``rocketmq.clusters.<name>`` and say ``cluster="<name>"``. ``secret_key`` should be ``${...}``, so that it does not
    stand in the code; it is never shown.
    """

    topic: str | None = None
    consumer_group: str | None = None
    cluster: str | None = None
    enabled: bool | None = None
    selector_type: SelectorType | None = None
    selector_expression: str | None = None
    consume_message_batch_max_size: int | None = None
    on_invalid: str | None = None
    await_termination_when_shutdown: timedelta | str | None = None
    invalid_limit: int | None = None
    reply_timeout: timedelta | str | None = None
    consume_mode: ConsumeMode | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    consume_timestamp: datetime | str | None = None
    concurrency: int | None = None
    max_reconsume_times: int | None = None
    delay_level_when_next_consume: int | None = None
    consume_timeout: timedelta | str | None = None
    suspend_current_queue_time: timedelta | str | None = None
    pull_batch_size: int | None = None
    pull_interval: timedelta | str | None = None
    enable_msg_trace: bool | None = None
    customized_trace_topic: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    namespace: str | None = None
    namespace_v2: str | None = None

    def __call__(self, handler: HandlerT) -> HandlerT:
        return add_mark(handler, self)


@dataclass(frozen=True, kw_only=True)
class rocketmq_spark_listener:  # noqa: N801 - used as a decorator
    """Marks a function that gets a topic's messages as DataFrames, one micro-batch a call.

    ``schema`` is a pydantic model, dataclass or Spark DDL text for the JSON bodies; None leaves the raw columns.
    ``trigger`` is the pause between batches (``"10s"``) or ``"available_now"``, which ends by itself.
    """

    topic: str | None = None
    consumer_group: str | None = None
    selector_expression: str | None = None
    schema: Any = None
    trigger: timedelta | str | None = None
    max_messages: int | None = None
    starting_offsets: str | None = None
    checkpoint: str | None = None
    cluster: str | None = None
    enabled: bool | None = None

    def __call__(self, handler: HandlerT) -> HandlerT:
        return add_mark(handler, self)


@dataclass(frozen=True)
class send_to:  # noqa: N801 - used as a decorator
    """Sends on what the listener returns to ``destination`` (``topic`` or ``topic:tag``); None sends nothing.

    A batch's returned list is sent as so many messages. ``cluster`` None is the listener's own.
    The message that was consumed is acknowledged only after the send; a failed send is a failed handler.
    """

    destination: str
    cluster: str | None = None

    def __call__(self, handler: HandlerT) -> HandlerT:
        return add_mark(handler, self)


@dataclass(frozen=True)
class Header:
    """``Annotated[str, Header("airport")]``: the message's property of that name, converted to the type."""

    name: str
