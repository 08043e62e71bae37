"""What a harness has seen: messages that were sent, calls of handlers, dead letters, and all of it as a log in the
order of virtual time.

Plain values; who sees them is ``observer``'s part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypeVar, overload

from rocketbox.message import Message, MessageExt, SendResult
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.safe_repr import also_when_unmade, one_line, safe_str
from rocketbox.template import MessageConverter
from rocketbox.template.content_types import read_payload
from rocketbox.template.spring_headers import CONTENT_TYPE

__all__ = [
    "Batch",
    "Call",
    "DeadLetter",
    "LogEntry",
    "Outcome",
    "Sent",
    "SentMessages",
    "Unreadable",
    "of_cluster",
    "shown",
    "told_error",
]

T = TypeVar("T")
SHOWN = 120  # characters of a body in texts


class Outcome(Enum):
    """What a call of a handler meant for its message."""

    RUNNING = "is still running"
    CONSUMED = "consumed"
    COMES_BACK = "comes back"
    DEAD_LETTER = "dead letter"
    LOST = "lost"
    """Of a broadcasting group: nothing comes back to it, and nothing of it is kept."""
    CANCELLED = "cancelled"
    CALLED_AGAIN = "called again by middleware"
    """Of a run of the function after which middleware of the service had it run once more for the same message."""


@dataclass(frozen=True)
class LogEntry:
    """One line of what happened: seconds of virtual time since the harness began, and what."""

    at: float
    text: str

    def __str__(self) -> str:
        return f"+{self.at:.3f} s  {self.text}"


@dataclass(frozen=True)
class Sent:
    """A message that was sent: by a handler, a ``@send_to``, the test or anybody else in the service.

    ``message`` is a copy of what was sent, as it was then. ``result`` is None where its sender had none: of one-way
    sends, and of those that failed though the broker has the message. ``cluster`` is None for the main one.
    """

    message: Message
    result: SendResult | None
    at: float
    converter: MessageConverter = field(repr=False)
    cluster: str | None = None

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def tag(self) -> str | None:
        return self.message.tag

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.message.keys)

    @property
    def headers(self) -> Mapping[str, str]:
        return self.message.properties

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def delay_level(self) -> int:
        """One of RocketMQ's delays, 1 to 18; 0: none."""
        return self.message.delay_level

    @property
    def delay(self) -> timedelta | None:
        """How long it waits where that is none of the levels."""
        return self.message.delay

    @property
    def deliver_at(self) -> datetime | None:
        return self.message.deliver_at

    @property
    def waits(self) -> bool:
        """Whether it was sent for a later time."""
        message = self.message
        return bool(message.delay_level or message.delay or message.deliver_at)

    def payload(self, type_: type[T]) -> T:
        """The body, as a handler with a parameter of this type would get it. Raises PayloadError."""
        said = self.message.properties.get(CONTENT_TYPE)
        read: T = read_payload(self.converter, self.body, type_, said)
        return read

    def __str__(self) -> str:
        told = [self.topic + (f":{self.tag}" if self.tag else "")]
        if self.keys:
            told.append(f"keys {' '.join(self.keys)}")
        if self.headers:
            told.append(", ".join(f"{name}={value}" for name, value in self.headers.items()))
        return f"{' '.join(told)}  {shown(self.body)}"


class SentMessages(Sequence[Sent]):
    """Those of a topic, in the order in which they were sent."""

    def __init__(
        self, topic: str, messages: Sequence[Sent], topics: Callable[[], Sequence[str]], log: Callable[[], str]
    ) -> None:
        self.topic = topic
        self._topics = topics
        self._messages = tuple(messages)
        self._log = log

    @overload
    def __getitem__(self, index: int) -> Sent: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Sent]: ...

    def __getitem__(self, index: int | slice) -> Sent | Sequence[Sent]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    @also_when_unmade
    def __repr__(self) -> str:
        return f"<{len(self)} messages to {self.topic}: {[str(each) for each in self._messages]}>"

    def one(self, type_: type[T]) -> T:
        """The payload of the one message of this topic. Raises AssertionError, with what there is, for none or more."""
        if len(self) != 1:
            what = "nothing was" if not self else f"{len(self)} messages were"
            raise AssertionError(f"{what} sent to {self.topic}, and one was expected{self._elsewhere()}\n{self._log()}")
        return self._messages[0].payload(type_)

    def _elsewhere(self) -> str:
        """To which topics messages were sent, where there are none in this one: it may be spelled otherwise."""
        topics = sorted(set(self._topics())) if not self else []
        return f" (messages were sent to: {', '.join(topics)})" if topics else ""

    def all(self, type_: type[T]) -> list[T]:
        """The payloads of all of them."""
        return [each.payload(type_) for each in self._messages]


@dataclass(frozen=True)
class Unreadable:
    """A payload for :meth:`Harness.batch`: a message whose body says that it is compressed, and cannot be unpacked.

    Its row has no body, and the reason in the column ``_error``.
    """

    body: bytes = b"what is not compressed"


@dataclass
class Batch:
    """The messages of a batch, as a broker would have stored them, and which attempt it is."""

    id: int
    records: tuple[StoredMessage, ...]
    attempt: int = 0


@dataclass(eq=False)
class Call:
    """A run of a handler's function, or a delivery that middleware has not passed on to it. ``arguments`` are in the
    order of its parameters, payloads as they came; None where a payload could not be read.

    ``attempt`` is 1 for a message that came for the first time. ``error`` is what the handler raised, or the outcome
    that it returned; ``failures`` are those of each message of a batch. ``passed_on`` is False while the call is in
    middleware of the service, and where that did not pass it on to the handler. ``skipped`` says why payloads could not
    be read that were skipped for it (``on_invalid: skip``).
    """

    listener: str
    where: str
    group: str
    topic: str
    messages: tuple[MessageExt, ...]
    attempt: int
    at: float
    arguments: Sequence[Any] | None = None
    outcome: Outcome = Outcome.RUNNING
    error: BaseException | None = None
    outcomes: tuple[Outcome, ...] = ()
    failures: tuple[BaseException | None, ...] = ()
    result: Any = None
    function: Any = field(default=None, repr=False)
    cluster: str | None = None
    passed_on: bool = False
    skipped: tuple[Exception, ...] = ()

    @property
    def payload(self) -> Any:
        """The first argument, which mostly is the payload. Raises AssertionError, with the reason, where none is."""
        if not self.arguments:
            raise AssertionError(f"{self.listener} had no arguments: {self._why_without_arguments}")
        return self.arguments[0]

    @property
    def _why_without_arguments(self) -> str:
        if self.outcome is Outcome.RUNNING:
            return "its call has not ended"
        if not self.passed_on:
            why = "" if self.error is None else f" ({told_error(self.error)})"
            return f"it did not run, for a middleware did not pass the call on{why}"
        if self.error is not None:
            return repr(self.error)
        if self.skipped:
            return f"the payload could not be read, and was skipped (on_invalid: skip): {told_error(self.skipped[0])}"
        return "it takes none" if self.arguments is not None else "a middleware passed on a context of its own"

    @property
    def name(self) -> str:
        return f"{self.listener} ({self.where})"

    @property
    def told_keys(self) -> str:
        """Which messages it is for, for people: ``keys a b``, or their topic, if they have none."""
        keys = [key for message in self.messages for key in message.keys]
        return f"keys {' '.join(keys)}" if keys else f"a message of {self.topic}"

    def __str__(self) -> str:
        keys = " ".join(key for message in self.messages for key in message.keys)
        told = f"{self.group}: {self.listener}, attempt {self.attempt}" + (f", keys {keys}" if keys else "")
        if len(self.messages) > 1:
            told += f", {len(self.messages)} messages"
        told += f": {self.outcome.value}"
        if not self.passed_on and self.outcome is not Outcome.RUNNING:
            told += ", in middleware: the handler did not run"
        if self.error is not None:
            told += f" ({told_error(self.error)})"
        if self.skipped:
            which = f", {len(self.skipped)} of them skipped" if len(self.messages) > 1 else ", skipped"
            told += f"{which} ({told_error(self.skipped[0])})"
        return told


@dataclass(frozen=True)
class DeadLetter:
    """A message that a group has given up: ``why`` is what its handler raised last."""

    group: str
    message: MessageExt
    why: BaseException | None
    attempts: int
    converter: MessageConverter = field(repr=False)
    cluster: str | None = None

    @property
    def body(self) -> bytes:
        return self.message.body

    def payload(self, type_: type[T]) -> T:
        """The body as this type. Raises PayloadError."""
        said = self.message.properties.get(CONTENT_TYPE)
        read: T = read_payload(self.converter, self.body, type_, said)
        return read

    def __str__(self) -> str:
        why = told_error(self.why) if self.why is not None else "nobody told why"
        return f"{self.group}: dead letter after {self.attempts} attempts ({why})  {shown(self.body)}"


def told_error(error: BaseException) -> str:
    """What a handler has raised, for people: whatever an exception of the user's can say of itself."""
    return f"{type(error).__name__}: {safe_str(error)}"


def shown(body: bytes) -> str:
    """The beginning of a body, for people, in one line."""
    text = one_line(body[: SHOWN + 1].decode(errors="replace"))
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def of_cluster(cluster: str | None) -> str:
    """Before what happened in a cluster, for people."""
    return f"{cluster}/" if cluster else ""
