"""Who tells a broker what became of a transaction it asks about (39), and how many such questions run at once.

A checker is told the message, looks into what its producer's work has written, and says COMMIT, ROLLBACK or UNKNOWN.
A producer may have several: for one topic each, or for some tags of one, or for whatever no other is for. Each has a
pool of its own, sized as rocketmq-spring's. A question that finds no room is left to be asked again, as one is of which
nobody knows the answer. One that is asked again while it waits, or while its checker looks, is the same question: its
answer names the place that was asked about last, which is the only one that Apache's brokers take.

Source: Apache RocketMQ 5.x ``TransactionMQProducer``, ``DefaultMQProducerImpl.checkTransactionState``; rocketmq-spring
2.3 ``RocketMQTransactionListener`` (which has one listener for each producer), ``java.util.concurrent``
(``ThreadPoolExecutor``: when a further worker begins).
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated

import anyio
from annotated_types import Ge, Gt

from rocketbox.blocking import look_blocking
from rocketbox.clock import Clock
from rocketbox.declarations import SECONDS, Words, check_options
from rocketbox.errors import ClientStateError, InvalidMessageError
from rocketbox.message import LocalTransactionState, MessageExt
from rocketbox.own_failures import as_failure, failures_only
from rocketbox.protocol.command import RemotingCommand
from rocketbox.rare_log import RareLog
from rocketbox.tasks import Supervisor

__all__ = ["CheckRoute", "Question", "TransactionCheckOptions", "TransactionChecker", "TransactionCheckers"]

_log = logging.getLogger(__name__)

TransactionChecker = Callable[[MessageExt], "Awaitable[LocalTransactionState] | LocalTransactionState"]
"""Says what became of the transaction of a message; an ``async def``, or a ``def``, which is called in a thread."""


@dataclass(frozen=True, kw_only=True)
class TransactionCheckOptions:
    """How many questions about transactions a checker answers at once, by rocketmq-spring's names.

    Up to ``core_pool_size`` run at once; further ones wait, up to ``blocking_queue_size``; when so many wait, further
    ones run, up to ``maximum_pool_size``; what comes then is not answered now. A worker beyond the first
    ``core_pool_size`` that has nothing to do for ``keep_alive_time`` seconds ends.
    """

    core_pool_size: Annotated[int, Ge(1), Words("checks of transactions that run at once while there is room")] = 1
    maximum_pool_size: Annotated[int, Ge(1), Words("the same when blocking-queue-size of them wait")] = 1
    keep_alive_time: Annotated[
        float, SECONDS, Gt(0), Words("for which a worker beyond core-pool-size waits for another check")
    ] = 60.0
    blocking_queue_size: Annotated[int, Ge(1), Words("checks that wait; further ones are left to be asked again")] = (
        2000
    )

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def most_at_once(self) -> int:
        """Where ``maximum_pool_size`` is less than ``core_pool_size``, that one counts."""
        return max(self.core_pool_size, self.maximum_pool_size)


class CheckPool:
    """Runs what it is given, as ``options`` say; its workers are tasks of ``tasks``."""

    def __init__(self, name: str, options: TransactionCheckOptions, tasks: Supervisor, clock: Clock) -> None:
        self._name = name
        self._options = options
        self._tasks = tasks
        self._clock = clock
        self._waiting: deque[Callable[[], Awaitable[None]]] = deque()
        self._workers = 0
        self._idle: deque[anyio.Event] = deque()
        self._scopes: set[anyio.CancelScope] = set()
        self._closed = False

    def submit(self, job: Callable[[], Awaitable[None]]) -> bool:
        """Have ``job`` run; False when there is no room for it."""
        options = self._options
        if self._closed:
            return False
        if self._workers < options.core_pool_size:
            self._begin(job)
        elif len(self._waiting) < options.blocking_queue_size:
            self._waiting.append(job)
            if self._idle:
                self._idle.popleft().set()
        elif self._workers < options.most_at_once:
            self._begin(job)
        else:
            return False
        return True

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Begin nothing more, and give up what runs: its questions are asked again, of others."""
        self._closed = True
        self._waiting.clear()
        for scope in list(self._scopes):
            scope.cancel()

    def _begin(self, job: Callable[[], Awaitable[None]]) -> None:
        self._workers += 1
        self._tasks.start(f"checks of {self._name}", self._work, job, restart=False)

    async def _work(self, job: Callable[[], Awaitable[None]]) -> None:
        next_job: Callable[[], Awaitable[None]] | None = job
        try:
            with anyio.CancelScope() as scope:
                self._scopes.add(scope)
                while next_job is not None and not self._closed:
                    await next_job()
                    next_job = await self._next()
        except anyio.get_cancelled_exc_class() as cancelled:
            if as_failure(cancelled) is cancelled:
                raise
        finally:
            self._scopes.discard(scope)
            self._workers -= 1
        if self._waiting and not self._closed:  # a checker has cancelled its task; others wait for theirs
            self._begin(self._waiting.popleft())

    async def _next(self) -> Callable[[], Awaitable[None]] | None:
        """What waits; None when nothing has come for long, and the worker is not needed."""
        while not self._waiting:
            if self._closed:
                return None
            called = anyio.Event()
            self._idle.append(called)
            try:
                if self._workers <= self._options.core_pool_size:
                    await called.wait()
                else:
                    with self._clock.move_on_after(self._options.keep_alive_time):
                        await called.wait()
            finally:
                if called in self._idle:
                    self._idle.remove(called)
            if not called.is_set() and not self._waiting and self._workers > self._options.core_pool_size:
                return None
        return self._waiting.popleft()


def is_async(function: Callable[..., object]) -> bool:
    """Whether a call of it gives a coroutine; else it is called in a thread."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - asked for its kind


def name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


class Question:
    """What a broker wants to know about one transaction; ``request`` is how it asked last.

    ``is_settled`` tells whether the work, which went on when it asked, has told the end by itself since.
    """

    __slots__ = ("began", "is_settled", "message", "request")

    def __init__(
        self, request: RemotingCommand, message: MessageExt, *, is_settled: Callable[[], bool] | None = None
    ) -> None:
        self.request = request
        self.message = message
        self.is_settled = is_settled
        self.began: float | None = None
        """Since when the checker looks, on the monotonic clock."""


class CheckRoute:
    """One checker and what it is for: a topic (None: what no other is for), and of it some tags (None: all)."""

    def __init__(
        self,
        checker: TransactionChecker,
        topic: str | None,
        tags: frozenset[str] | None,
        pool: CheckPool,
        remove: Callable[[CheckRoute], None],
    ) -> None:
        self.checker = checker
        self.topic = topic
        self.tags = tags
        self._pool = pool
        self._remove = remove
        self._is_async = is_async(checker)
        self.questions: dict[tuple[str, str], Question] = {}
        """Those that wait, or that the checker looks into, by the broker's address and the transaction's id."""
        self.asked = self.failed = 0
        """How often it was asked, and how often it raised something, or said nothing of use."""
        self.around: Callable[[], AbstractContextManager[object]] = nullcontext
        """Stands around each call of the checker, in its task."""

    def remove(self) -> None:
        """Ask it no more; what it is at is given up."""
        self._remove(self)
        self._pool.close()

    def submit(self, job: Callable[[], Awaitable[None]]) -> bool:
        return self._pool.submit(job)

    @property
    def waiting(self) -> int:
        """How many questions wait."""
        return self._pool.waiting

    async def ask(self, message: MessageExt) -> LocalTransactionState:
        """What the checker says. Raises what it raises, TypeError when it says something else.

        Where it is cancelled by its own code, or raises what is no Exception, it raises RuntimeError.
        """
        self.asked += 1
        try:
            with self.around():
                return await self._said(message)
        except Exception:
            self.failed += 1
            raise

    async def _said(self, message: MessageExt) -> LocalTransactionState:
        with failures_only(hosted=True):
            said = self.checker(message) if self._is_async else await look_blocking(self.checker, message)
            if inspect.isawaitable(said):
                said = await said
        if not isinstance(said, LocalTransactionState):
            raise TypeError(f"{name_of(self.checker)} returned {said!r}; it must return a LocalTransactionState")
        return said

    def describe(self) -> str:
        """What it is for, in words."""
        if self.topic is None:
            return "all topics"
        return self.topic if self.tags is None else f"{self.topic}:{' || '.join(sorted(self.tags))}"


class TransactionCheckers:
    """The checkers of one producer, by what they are for. ``clock`` and ``tasks`` are those of its client."""

    def __init__(self, group: str, tasks: Supervisor, clock: Clock) -> None:
        self._group = group
        self._tasks = tasks
        self._clock = clock
        self._by_topic: dict[str | None, list[CheckRoute]] = {}
        self.log = RareLog(_log)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._by_topic)

    def add(
        self,
        checker: TransactionChecker,
        *,
        topic: str | None = None,
        tags: Collection[str] | None = None,
        options: TransactionCheckOptions | None = None,
    ) -> CheckRoute:
        """Ask this one from now on. Raises ClientStateError when another one is for the same, in whole or in part."""
        wanted = None if tags is None else frozenset(tags)
        if wanted is not None and (topic is None or not wanted):
            raise ClientStateError("a transaction checker for some tags names them and their topic")
        for other in self._by_topic.get(topic, ()):
            if wanted is None or other.tags is None or wanted & other.tags:
                both = "" if wanted is None or other.tags is None else f" with tag {min(wanted & other.tags)}"
                raise ClientStateError(
                    f"two transaction checkers of producer {self._group} are for {topic or 'all topics'}{both}: "
                    f"{name_of(other.checker)} and {name_of(checker)}"
                )
        pool = CheckPool(self._group, options or TransactionCheckOptions(), self._tasks, self._clock)
        route = CheckRoute(checker, topic, wanted, pool, self._remove)
        self._by_topic.setdefault(topic, []).append(route)
        return route

    def _remove(self, route: CheckRoute) -> None:
        routes = self._by_topic.get(route.topic, [])
        if route in routes:
            routes.remove(route)
            if not routes:
                del self._by_topic[route.topic]

    def topics(self, otherwise: str) -> set[str]:
        """The topics that they are for; ``otherwise`` in the place of all that no other is for."""
        return {otherwise if topic is None else topic for topic in self._by_topic}

    def find(self, topic: str, tag: str | None) -> CheckRoute | None:
        """The one for a message: by topic and tag, else for the whole topic, else for all topics."""
        for route in self._by_topic.get(topic, ()):
            if route.tags is None or tag in route.tags:
                return route
        return next(iter(self._by_topic.get(None, ())), None)

    def expect(self, topic: str, tag: str | None) -> None:
        """Raise InvalidMessageError unless somebody could be asked about a transaction of such a message."""
        if self.find(topic, tag) is None:
            known = ", ".join(route.describe() for routes in self._by_topic.values() for route in routes)
            raise InvalidMessageError(
                f"nobody could say what became of a transaction to {topic!r} with tag {tag!r}: the checkers of "
                f"producer {self._group} are for {known}"
                if known
                else f"producer {self._group} has no transaction checker, who says what became of a transaction: give "
                "it transaction_checker=, or write a @rocketmq_transaction_listener; nothing was sent"
            )

    def close(self) -> None:
        """Answer nothing more."""
        for routes in list(self._by_topic.values()):
            for route in list(routes):
                route.remove()
