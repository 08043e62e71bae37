"""The marks users put on functions: plain values, nothing starts or loads by importing or using them.

Marks are a tuple on the function and stack. A mark's option that is ``None`` was not said: ``rocketbox.yaml``
(``rocketmq.consumer.listeners.<group>.*``, then ``rocketmq.consumer.*``) or the default decides. Names are those of
rocketmq-spring's ``@RocketMQMessageListener`` in snake_case. What is no option is refused where it is written; whether
a value fits is looked at when an application starts.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from rocketbox.errors import ConfigurationError, Finding
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageModel, SelectorType

__all__ = [
    "Header",
    "add_mark",
    "marks_of",
    "rocketmq_listener",
    "rocketmq_spark_listener",
    "rocketmq_transaction_listener",
    "send_to",
]

MARKS = "__rocketbox_marks__"
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


def marks_of(handler: object) -> tuple[object, ...]:
    """The marks on a function, the one nearest to ``def`` first."""
    marks: tuple[object, ...] = getattr(handler, MARKS, ())
    return marks


def add_mark(handler: HandlerT, mark: object) -> HandlerT:
    """Put one more mark on a function and return it: what a decorator of another kind of listeners does as well."""
    name = type(mark).__name__
    if isinstance(handler, type):
        raise _refused(
            f"@{name} marks functions, and {handler.__name__} is a class", "write it above a method of it", 2
        )
    try:
        setattr(handler, MARKS, (*marks_of(handler), mark))
    except AttributeError:  # a bound method, a builtin
        what = f"@{name} cannot mark {getattr(handler, '__qualname__', handler)}, a {type(handler).__name__}"
        fix = "write it above the def, of a method in the class of a @bean"
        raise _refused(what, fix, 2) from None
    return handler


def _refused(what: str, fix: str, depth: int) -> ConfigurationError:
    """The error for what stands so many calls above the one that asks."""
    frame = sys._getframe(depth + 1)
    return ConfigurationError(
        Finding(what, f"{frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)}:{frame.f_lineno}", fix)
    )


class _ByName:
    """A mark whose options are all given by their names; says which one is meant when one is misspelt."""

    if not TYPE_CHECKING:  # who reads types knows the options already

        def __new__(cls, *args: Any, **options: Any) -> Any:
            fields = [each.name for each in dataclasses.fields(cls)]
            name = cls.__name__
            if len(args) == 1 and callable(args[0]):
                example = ", ".join(f"{each}=..." for each in fields[:2])
                fix = f"write @{name}({example}), or @{name}() where the settings say the rest"
                raise _refused(f"@{name} stands above {args[0].__name__} without parentheses", fix, 1)
            if args:
                named = ", ".join(f"{each}={value!r}" for each, value in zip(fields, args, strict=False))
                raise _refused(
                    f"{name} takes its options by their names, and {args[0]!r} has none", f"write {named}", 1
                )
            for option in options.keys() - {*fields}:
                raise _refused(f"{name} has no option {option!r}", _meant(option, fields), 1)
            return super().__new__(cls)


def _meant(option: str, known: list[str]) -> str:
    spelled = {name.replace("_", ""): name for name in known}
    plain = option.replace("_", "").lower()
    near = (
        NAMES_ELSEWHERE.get(plain)
        or spelled.get(plain)
        or next(iter(difflib.get_close_matches(plain, spelled, 1)), None)
    )
    if near is None:
        return f"its options are: {', '.join(known)}"
    return f"did you mean {spelled.get(near, near)}=?"


NAMES_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("consumethreadnumber", "consumethreadmax", "consumethreadmin"), "concurrency"),
    "suspendcurrentqueuetimemillis": "suspend_current_queue_time",
    "awaitterminationmilliswhenshutdown": "await_termination_when_shutdown",
    "group": "consumer_group",
    "tag": "selector_expression",
    "tags": "selector_expression",
}
"""What rocketmq-spring, Java's client or a guess calls an option, without ``_`` and capitals, and its name here."""


@dataclass(frozen=True, kw_only=True)
class rocketmq_listener(_ByName):  # noqa: N801 - used as a decorator
    """Marks a function as a listener. None: YAML or the default decides.

    The names and types of the options stand here for editors and type checkers; what they are, their bounds and
    defaults is declared in ``listeners.options``, and a test compares the two.

    Text may hold ``${key:default}``. Times are a timedelta or text with a unit (``"15m"``), never a bare number; a
    point in time is a datetime or text (``"2026-01-31T12:00:00"``, ``"20260131120000"``).

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
    consume_mode: ConsumeMode | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    consume_timestamp: datetime | str | None = None
    concurrency: int | None = None
    max_reconsume_times: int | None = None
    delay_level_when_next_consume: int | None = None
    consume_timeout: timedelta | str | None = None
    suspend_current_queue_time: timedelta | str | None = None
    reply_timeout: timedelta | str | None = None
    pull_batch_size: int | None = None
    pull_interval: timedelta | str | None = None
    enable_msg_trace: bool | None = None
    customized_trace_topic: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    namespace: str | None = None
    namespace_v2: str | None = None

    def __call__(self, handler: HandlerT) -> HandlerT:
        return add_mark(handler, self)


@dataclass(frozen=True, kw_only=True)
class rocketmq_spark_listener(_ByName):  # noqa: N801 - used as a decorator
    """Marks a function that gets a topic's messages as DataFrames, one micro-batch a call.

    ``schema`` is a pydantic model, dataclass or Spark DDL text for the JSON bodies; None leaves the raw columns.
    ``trigger`` is how often a batch begins (``"10s"``), or ``"available_now"``, which ends by itself. ``as_`` is what
    the function gets: ``"spark"`` (default), ``"arrow"``, ``"pandas"`` or ``"polars"``. ``on_invalid`` is what becomes
    of a body that does not fit the schema, or cannot be read: ``"column"`` (default: its text in ``_corrupt``, the
    reason in ``_error``), ``"fail"``, ``"skip"`` or ``"dead-letter"``. ``options`` are
    further options of the data source (``{"maxBytesPerTrigger": "64MB"}``). What the others are, their bounds and
    defaults is declared in ``spark.query_options``, and a test compares the two.
    """

    topic: str | None = None
    consumer_group: str | None = None
    selector_expression: str | None = None
    schema: Any = None
    trigger: timedelta | str | None = None
    max_messages: int | None = None
    starting_offsets: str | None = None
    checkpoint: str | None = None
    as_: str | None = None
    on_invalid: str | None = None
    fail_on_data_loss: bool | None = None
    rows_per_partition: int | None = None
    max_batch_attempts: int | None = None
    on_failed_batch: str | None = None
    persist: bool | None = None
    options: Mapping[str, str] | None = None
    cluster: str | None = None
    enabled: bool | None = None
    namespace: str | None = None
    namespace_v2: str | None = None

    def __call__(self, handler: HandlerT) -> HandlerT:
        return add_mark(handler, self)


@dataclass(frozen=True, kw_only=True)
class rocketmq_transaction_listener(_ByName):  # noqa: N801 - used as a decorator
    """Marks a function that says what became of a transaction, when a broker asks: it returns a LocalTransactionState.

    ``topic`` and ``tags`` (``"paid || prepaid"``) say for which transactions; without a topic for those to every topic
    that no other listener names. A producer may have several, which do not overlap. It takes what a listener takes: the
    payload, the MessageExt, headers, beans. The rest is rocketmq-spring's pool: how many it is asked about at once, and
    how many of them wait; what the settings say of the topic (``rocketmq.producer.transaction-listeners.<topic>``) wins
    over these. What the options are, their bounds and defaults is declared in ``listeners.transaction_listeners``, and
    a test compares the two.
    """

    topic: str | None = None
    tags: str | None = None
    cluster: str | None = None
    enabled: bool | None = None
    core_pool_size: int | None = None
    maximum_pool_size: int | None = None
    keep_alive_time: timedelta | str | None = None
    blocking_queue_size: int | None = None

    def __call__(self, handler: HandlerT) -> HandlerT:
        return add_mark(handler, self)


def _no_destination(given: object) -> str | None:
    if isinstance(given, str):
        return None
    if callable(given):
        return f"@send_to stands above {getattr(given, '__name__', given)} without a destination"
    return f"send_to takes its destination as text, not {given!r}"


@dataclass(frozen=True)
class send_to:  # noqa: N801 - used as a decorator
    """Sends on what the listener returns to ``destination`` (``topic`` or ``topic:tag``); None sends nothing.

    A batch's returned list is sent as so many messages. ``cluster`` None is the listener's own.
    The message that was consumed is acknowledged only after the send; a failed send is a failed handler.
    """

    destination: str
    cluster: str | None = None

    def __post_init__(self) -> None:
        if (what := _no_destination(self.destination)) is not None:
            raise _refused(what, 'write @send_to("topic"), or @send_to("topic:tag")', 2)

    def __call__(self, handler: HandlerT) -> HandlerT:
        return add_mark(handler, self)


@dataclass(frozen=True)
class Header:
    """``Annotated[str, Header("airport")]``: the message's property of that name, converted to the type."""

    name: str
