"""Sees what a service does: as the outermost middleware of all sends and calls of handlers, and at a store in memory.

It changes nothing. What it has seen is in ``records``; what still goes on in real time it tells ``pace``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from math import inf
from types import FrameType
from typing import Any, Protocol
from weakref import WeakSet

import anyio

from rocketbox.blocking import BorrowedThreads, WorkerPool
from rocketbox.broker.store.dispatcher import Arrival
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.client import ConsumeContext, SendContext
from rocketbox.client.consume import HandlerEndedError
from rocketbox.client.middleware import (
    ConsumeMiddleware,
    ConsumeNext,
    EndingTransaction,
    SendMiddleware,
    SendNext,
)
from rocketbox.client.outcomes import Outcomes, failures_of_error, failures_of_result
from rocketbox.client.replies import is_answer
from rocketbox.client.requests import RequestContext
from rocketbox.errors import BatchFailed, Reject, RemoteProtocolError, RetryLater
from rocketbox.listeners.dispatch import Invocation
from rocketbox.message import LocalTransactionState, Message, MessageExt, Property, SendResult
from rocketbox.protocol.codes import DLQ_PREFIX
from rocketbox.protocol.stored_message import decode_message
from rocketbox.template import MessageConverter
from rocketbox.testing.errors import HarnessError
from rocketbox.testing.loop_turns import (
    LoopTurns,
    RealWait,
    ThreadCall,
    is_call_of_ours,
    is_ours,
    is_users_own,
    is_users_own_code,
    line_of_thread,
    real_wait,
    users_coroutine,
)
from rocketbox.testing.promises import Work, holder_of, is_held_by
from rocketbox.testing.records import Call, DeadLetter, LogEntry, Outcome, Sent
from rocketbox.testing.started import StartedThread, TimerCall

__all__ = ["Observer", "call_for_thread", "in_thread_of_pool", "submitted_to_pool", "thread_started"]

SIGNALS = (Reject, RetryLater, BatchFailed)

_call: ContextVar[_Running | None] = ContextVar("call of a handler", default=None)


@dataclass(eq=False)
class _Running:
    """A call that has begun: the task it runs in, what that awaits of it, and the tasks and calls in threads that it
    has started."""

    call: Call
    task: Any
    awaited: Any = None
    ended: bool = False
    started: set[Any] = field(default_factory=set)
    threads: set[ThreadCall | StartedThread | TimerCall] = field(default_factory=set)
    """What goes on by itself; threads add to it as well."""
    of_ours: WeakSet[Any] = field(default_factory=WeakSet)
    """Tasks of rocketbox's own code that it has started, such as a send: they wait for virtual time."""


class PassingClock(Protocol):
    """Knows how much time has passed since the harness began, in seconds."""

    @property
    def passed(self) -> float: ...


class Observer:
    """``retries_of(group, cluster)``: how often a group tries again, -1 without end, None where what fails is lost.
    ``converter()`` is the service's.

    ``was_asked_for(error)``: the test itself has had a handler raise it. ``plain(cluster, name)`` is a name at a
    cluster's broker as the service knows it.
    """

    def __init__(
        self,
        clock: PassingClock,
        turns: LoopTurns,
        retries_of: Callable[[str, str | None], int | None],
        converter: Callable[[], MessageConverter],
        while_sending: Callable[[Callable[[], bool], Callable[[HarnessError], object]], object],
        was_asked_for: Callable[[BaseException], bool],
        plain: Callable[[str | None, str], str] = lambda cluster, name: name,
    ) -> None:
        self.sent: list[Sent] = []
        self.calls: list[Call] = []
        self.dead: list[DeadLetter] = []
        self.log: list[LogEntry] = []
        self.unexpected: list[BaseException] = []
        """What handlers and hooks raised that is no signal, and nobody was told of yet."""
        self.of_hooks: list[Exception] = []
        """What hooks raised of that."""
        self.threads: list[WorkerPool | BorrowedThreads] = []
        """Those in which functions run that rocketbox calls."""
        self.others: list[Any] = []
        """Further tasks that may wait for something else than virtual time."""
        self.sending: list[Any] = []
        """Tasks that send and are no handlers; middleware may take real time meanwhile, and so may a thread that
        compresses what they send."""
        self.given_up: dict[tuple[str | None, str, str], str] = {}
        """What calls gave up that has not come to a dead-letter queue yet, by cluster, group and id: what it is."""
        self._transactions: set[EndingTransaction] = set()  # that have begun, and not ended for good
        self.done = 0
        """Grows with whatever is seen."""
        self._clock = clock
        self._turns = turns
        self._retries_of = retries_of
        self._converter = converter
        self._while_sending = while_sending
        self._was_asked_for = was_asked_for
        self._plain = plain
        self._running: dict[Call, _Running] = {}
        self._asked: dict[Any, str] = {}  # transaction listeners that are being asked, by the task that asks
        self._left: set[_Running] = set()  # calls that have ended, and tasks of theirs have not
        self._last_error: dict[tuple[str | None, str, str], tuple[BaseException | None, int]] = {}

    @property
    def running(self) -> list[Call]:
        """Calls of handlers that have not ended."""
        return list(self._running)

    @property
    def at_work(self) -> list[str]:
        """What has not ended of handlers, their tasks and threads included."""
        found = [f"handler {call.name}" for call in self._running]
        for running in self._left:
            by = f"handler {running.call.name} has started"
            found += [f"task {task.get_name()!r}, which {by}," for task in list(running.started)]
            found += [f"{call.what} that {by}" for call in list(running.threads) if call.waits_for_loop]
        return found

    @property
    def current_call(self) -> Call | None:
        """The call of a handler whose code this is, if it is one's, and has not ended."""
        running = _call.get()
        return None if running is None or running.ended else running.call

    def cluster_of(self, message: MessageExt) -> str | None:
        """The cluster that a message came from to a handler, or was given up in; the main one, if nobody knows."""
        came = ((call.cluster, each) for call in self.calls for each in call.messages)
        given_up = ((letter.cluster, letter.message) for letter in self.dead)
        return next((cluster for cluster, each in (*came, *given_up) if each is message), None)

    def note(self, text: str) -> None:
        self.done += 1
        self.log.append(LogEntry(self._clock.passed, text))

    def forget(self) -> None:
        """Know of nothing that was."""
        for each in (self.sent, self.calls, self.dead, self.log, self.unexpected, self.of_hooks):
            each.clear()
        self._last_error.clear()
        self.given_up.clear()
        self._transactions.clear()

    def hook_failed(self, what: str, error: Exception) -> None:
        """A hook has raised, which the service logs and survives."""
        self.note(f"{what} failed ({type(error).__name__}: {error})")
        self.unexpected.append(error)
        self.of_hooks.append(error)

    @contextmanager
    def transaction_listener_called(self, what: str) -> Iterator[None]:
        """A transaction listener is called, in a task of the client's: it is waited for as a handler is."""
        task = self._turns.current_task()
        self._asked[task] = what
        try:
            yield
        except Exception as error:
            self.hook_failed(what, error)
            raise
        finally:
            del self._asked[task]
            self.done += 1

    # --- middleware --------------------------------------------------------------------------------------------------

    def sends_to(self, cluster: str | None) -> SendMiddleware:
        """The middleware of sends to that cluster."""

        async def see(context: SendContext, call_next: SendNext) -> SendResult | None:
            return await self._on_send(cluster, context, call_next)

        return see

    def calls_of(self, cluster: str | None) -> ConsumeMiddleware:
        """The middleware of calls with messages of that cluster."""

        async def see(context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
            return await self._on_consume(cluster, context, call_next)

        return see

    async def _on_send(self, cluster: str | None, context: SendContext, call_next: SendNext) -> SendResult | None:
        """Note what is sent; time goes on meanwhile, where whoever sends is no handler that ``drain`` waits for."""
        if not self._turns.is_here():
            raise HarnessError(
                f"a message to {context.messages[0].topic} is sent in another event loop than that of the harness, "
                "which runs the service. Web frameworks' test clients may have a loop of their own, as Starlette's and "
                "FastAPI's TestClient: in an async test call the application by "
                "httpx.AsyncClient(transport=httpx.ASGITransport(app))"
            )
        if isinstance(context, RequestContext) and _call.get() is None and (waiting := context.waiting) is not None:
            # Time goes on until its reply has come, long after the send itself.
            self._while_sending(lambda: waiting.over, waiting.end)
        try:
            result = await self._in_time(call_next(context))
        except BaseException as error:
            self.note(f"not sent to {_of(cluster)}{context.messages[0].topic}: {type(error).__name__}: {error}")
            raise
        if context.transaction is not None:
            self._follow(context.transaction, cluster, context.messages[0], result)
            return result
        for message in context.messages:
            self._has_sent(cluster, message, result)
        return result

    def _has_sent(self, cluster: str | None, message: Message, result: SendResult | None) -> None:
        sent = Sent(message, result, self._clock.passed, self._converter(), cluster)
        self.sent.append(sent)
        self.note(f"sent to {_of(cluster)}{sent}")

    def _follow(
        self, transaction: EndingTransaction, cluster: str | None, message: Message, result: SendResult | None
    ) -> None:
        """What is sent in a transaction is sent when that is committed, by its end or because the broker asked."""
        self.note(f"a transaction to {_of(cluster)}{message.topic} has begun")
        committed = False

        def told(state: LocalTransactionState) -> None:
            nonlocal committed
            self.note(f"the transaction to {_of(cluster)}{message.topic} has ended: {state.name}")
            if state is LocalTransactionState.COMMIT and not committed:
                committed = True
                self._has_sent(cluster, message, result)
            if state is not LocalTransactionState.UNKNOWN:
                self._transactions.discard(transaction)

        self._transactions.add(transaction)  # it hears what a checker says as long as somebody holds it
        transaction.on_end(told)

    async def _in_time(self, send: Awaitable[SendResult | None]) -> SendResult | None:
        if _call.get() is not None:
            return await send
        ended = False
        why: HarnessError | None = None

        def give_up(error: HarnessError) -> None:
            nonlocal why
            why = error
            scope.cancel()

        task = self._turns.current_task()
        with anyio.CancelScope() as scope:
            self.sending.append(task)
            self._while_sending(lambda: ended, give_up)
            try:
                return await send
            finally:
                ended = True
                self.sending.remove(task)
        assert why is not None
        raise why

    async def _on_consume(self, cluster: str | None, context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
        call = self._begin(cluster, context)
        running = _Running(call, self._turns.current_task())
        self._running[call] = running
        token = _call.set(running)
        try:
            running.awaited = awaited = call_next(context)
            outcomes = await awaited
        except BaseException as error:
            self._end(call, context, error, None)
            raise
        else:
            self._end(call, context, None, outcomes)
            return outcomes
        finally:
            _call.reset(token)
            del self._running[call]
            running.ended = True
            running.awaited = running.task = None
            if running.started or running.threads:
                self._left.add(running)

    def _begin(self, cluster: str | None, context: ConsumeContext) -> Call:
        first = context.messages[0]
        call = Call(
            listener=getattr(context.invocation, "listener", f"the handler of {first.topic}"),
            where=getattr(context.invocation, "where", ""),
            group=context.consumer_group,
            topic=first.topic,
            messages=tuple(context.messages),
            attempt=first.reconsume_times + 1,
            at=self._clock.passed,
            function=getattr(context.invocation, "handler", None),
            cluster=cluster,
        )
        self.done += 1
        self.calls.append(call)
        return call

    def _end(self, call: Call, context: ConsumeContext, error: BaseException | None, outcomes: Outcomes) -> None:
        invocation = context.invocation
        if isinstance(invocation, Invocation):
            call.arguments = None if invocation.arguments is None else tuple(invocation.arguments)
            call.result = invocation.result
        if error is not None and not isinstance(error, Exception) and not _is_stopped(error):
            # Whatever a handler raises by itself fails its message, pytest.fail() and sys.exit() as well.
            ended = HandlerEndedError(call.topic, error)
            ended.__cause__ = error
            error = ended
        if error is not None and not isinstance(error, Exception):
            call.outcome, call.error = Outcome.CANCELLED, error
            call.outcomes = (Outcome.CANCELLED,) * len(call.messages)
            self.note(f"{_of(call.cluster)}{call}")
            return
        messages = call.messages
        failures = (
            failures_of_error(messages, error)
            if isinstance(error, Exception)
            else failures_of_result(messages, outcomes)
        )
        failed = {id(message): failure for message, failure in failures}
        call.failures = tuple(failed.get(id(message)) for message in messages)
        call.outcomes = tuple(
            self._outcome(call, message, failure) for message, failure in zip(messages, call.failures, strict=True)
        )
        call.outcome = next((each for each in call.outcomes if each is not Outcome.CONSUMED), Outcome.CONSUMED)
        call.error = next((each for each in call.failures if each is not None), None)
        for message, failure in zip(messages, call.failures, strict=True):
            if failure is not None:
                place = call.cluster, call.group, _id_of(message)
                self._last_error[place] = failure, message.reconsume_times + 1
                if self._outcome(call, message, failure) is Outcome.DEAD_LETTER:
                    self.given_up[place] = f"what {call.name} has given up, {_keys(call)}"
        told = {failure for message, failure in failures if is_answer(message, failure)}  # to who has sent a request
        for each in dict.fromkeys(each for each in call.failures if each is not None):
            if not isinstance(each, SIGNALS) and not self._was_asked_for(each) and each not in told:
                self.unexpected.append(each)
        self.note(f"{_of(call.cluster)}{call}")

    def _outcome(self, call: Call, message: MessageExt, failure: BaseException | None) -> Outcome:
        if failure is None:
            return Outcome.CONSUMED
        retries = self._retries_of(call.group, call.cluster)
        if isinstance(failure, Reject):
            return Outcome.LOST if retries is None else Outcome.DEAD_LETTER
        if isinstance(failure, Exception) and is_answer(message, failure):
            return Outcome.CONSUMED
        if retries is None:
            return Outcome.LOST
        return Outcome.DEAD_LETTER if 0 <= retries <= message.reconsume_times else Outcome.COMES_BACK

    # --- at the broker -----------------------------------------------------------------------------------------------

    def watch_store(self, store: MessageStore, cluster: str | None) -> None:
        """Hear of dead letters as they come into the store of a cluster's broker."""

        def arrived(arrivals: Sequence[Arrival]) -> None:
            self.done += 1
            for topic, queue_id, next_offset, _, _ in arrivals:
                if topic.startswith(DLQ_PREFIX):
                    found = store.get(topic, queue_id, next_offset - 1, 1)
                    for record in found.records:
                        message = _decoded(record)
                        message.topic = self._plain(cluster, topic)
                        self.buried(cluster, message.topic.removeprefix(DLQ_PREFIX), message)

        store.on_arrival.append(arrived)

    def will_bury(self, cluster: str | None, group: str, msg_id: str, why: BaseException, attempts: int) -> None:
        """A dead letter is about to come that no handler has failed for."""
        self._last_error[cluster, group, msg_id] = why, attempts

    def buried(self, cluster: str | None, group: str, message: MessageExt) -> None:
        """A message has come to the dead-letter queue of a group."""
        place = cluster, group, _id_of(message)
        self.given_up.pop(place, None)
        why, attempts = self._last_error.get(place, (None, message.reconsume_times))
        letter = DeadLetter(group, message, why, attempts, self._converter(), cluster)
        self.dead.append(letter)
        self.note(f"{_of(cluster)}{letter}")

    # --- what goes on in real time -----------------------------------------------------------------------------------

    def task_started(self, task: Any) -> None:
        """A task was made: by a handler, if it is in the context of one and is not rocketbox's own."""
        running = _call.get()
        if running is None:
            return
        if is_ours(task) and not is_call_of_ours(task, sys._getframe(1)):
            running.of_ours.add(task)
            return
        running.started.add(task)
        self._goes_on(running)
        task.add_done_callback(lambda ended: self._task_ended(running, ended))

    def _task_ended(self, running: _Running, task: Any) -> None:
        running.started.discard(task)
        self.done += 1
        self._look_whether_all_ended(running)

    def called_in_thread(self, call: ThreadCall) -> None:
        """A call was given to a thread, by a handler if this is the context of one."""
        if (running := _call.get()) is not None:
            running.threads.add(call)

    def timer_set(self, function: Callable[..., object]) -> TimerCall | None:
        """A timer of the loop is to call a function: what it calls instead, where a handler has set it."""
        running = _call.get()
        if running is None or not is_users_own(function):
            return None
        call = TimerCall(function)
        running.threads.add(call)
        self._goes_on(running)
        return call

    def _goes_on(self, running: _Running) -> None:
        """It has started something: a thread of its may do so long after it has ended."""
        if running.ended:
            self._left.add(running)

    def _look_whether_all_ended(self, running: _Running) -> None:
        if ended := [call for call in list(running.threads) if not call.goes_on]:
            self.done += 1
            running.threads.difference_update(ended)
        if running.ended and not running.started and not running.threads:
            self._left.discard(running)

    @property
    def sends_under_way(self) -> list[str]:
        """Those of nobody whom ``drain`` waits for by itself, for people."""
        return [f"a send in {task.get_name()!r}" for task in self.sending]

    def end_by_force(self) -> list[str]:
        """End the coroutines of handlers that go on, whatever they do about it; which they are, and where they were."""
        ended = []
        for running in list(self._running.values()):
            coroutine = users_coroutine(running.awaited)
            if coroutine is not None:
                where = real_wait(running.task, running.awaited) or "a send"
                ended.append(f"handler {running.call.name}, for {_keys(running.call)}, at {where}")
                with suppress(RuntimeError):  # it has ignored even that
                    coroutine.close()
        return ended

    def take_left(self) -> list[Any]:
        """The tasks that handlers have started and that go on; timers of theirs call nobody any more."""
        left = list(self._running.values()) + list(self._left)
        for each in (each for running in left for each in list(running.threads) if isinstance(each, TimerCall)):
            each.handle.cancel()
        return [task for running in left for task in running.started if not task.done()]

    def real_waits(self) -> Iterator[RealWait]:
        """What waits now for something else than virtual time."""
        at_work = [*self._running.values(), *self._left]
        for running in at_work:
            self._look_whether_all_ended(running)
        works = list(self._works(at_work))
        waits = [(work, real_wait(work.task, work.awaited)) for work in works]
        # What one of these holds comes when time has passed.
        in_virtual_time = [work.task for work, where in waits if where is None and work.may_hold]
        in_virtual_time += [task for running in at_work for task in running.of_ours if not task.done()]
        for work, where in waits:
            if where is not None and not is_held_by(in_virtual_time, work.task, work.awaited):
                holder, time_moves = holder_of(work, works)
                if not time_moves:
                    yield RealWait(work.what, where + holder)
        for running in at_work:
            for call in list(running.threads):
                if not call.waits_for_loop:
                    began = "set" if isinstance(call, TimerCall) else "started"
                    yield RealWait(f"{call.what} that handler {running.call.name} has {began}", call.line)
        for threads in self.threads:
            if threads.goes_on_by_itself:
                frames = sys._current_frames()
                lines = [line for each in threads.busy_threads if (line := line_of_thread(frames.get(each)))]
                yield RealWait(f"a thread of {threads.name}", ", ".join(lines))

    def _works(self, at_work: Sequence[_Running]) -> Iterator[Work]:
        """All that somebody waits for, each task once."""
        for running in at_work:
            told = f"handler {_told(running)}"
            if not running.ended:
                yield Work(running.task, running.awaited, told, told)
            for task in running.started:
                name = f"task {task.get_name()!r}"
                yield Work(task, None, f"{name}, which handler {running.call.name} has started,", f"{name} of {told}")
        for task, what in self._asked.items():
            yield Work(task, None, what, what)
        for task in self.others:
            if not task.done():
                yield Work(task, None, task.get_name(), task.get_name(), may_hold=task in self.sending)
        for task, what in zip(self.sending, self.sends_under_way, strict=True):
            if task not in self._asked and task not in self.others:
                yield Work(task, None, what, what)


def thread_started(thread: threading.Thread, starter: FrameType) -> None:
    """A thread is about to start: by a handler, if this is the context of one; what it starts itself is so as well."""
    running = _call.get()
    if running is None or not StartedThread.is_meant(thread, starter):
        return
    run = thread.run

    def run_for_handler() -> None:
        _call.set(running)
        run()

    vars(thread)["run"] = run_for_handler
    running.threads.add(StartedThread(thread))


def submitted_to_pool(function: Callable[..., Any], who: FrameType) -> ThreadCall | None:
    """A function is given to a pool of threads: what is called instead, where a handler gives it.

    It, or who gives it, is the user's own: what a library gives to a pool of its own may be there to stay.
    """
    is_meant = _call.get() is not None and (is_users_own(function) or is_users_own_code(who.f_code))
    return call_for_thread(function) if is_meant else None


def call_for_thread(function: Callable[..., Any]) -> ThreadCall:
    """What is called instead of a function that is given to a thread: what that starts itself is the handler's, too,
    where one gives it."""
    running = _call.get()
    return ThreadCall(function) if running is None else ThreadCall(function, partial(_as_part_of, running))


@contextmanager
def _as_part_of(running: _Running) -> Iterator[None]:
    token = _call.set(running)
    try:
        yield
    finally:
        _call.reset(token)


def in_thread_of_pool(call: ThreadCall) -> None:
    """A pool has it."""
    if (running := _call.get()) is not None:
        running.threads.add(call)


def _is_stopped(error: BaseException) -> bool:
    """Whether it ends the task because the service stops, or somebody has asked for the end of the process."""
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return anyio.current_effective_deadline() == -inf
    return isinstance(error, KeyboardInterrupt)


def _decoded(record: bytes) -> MessageExt:
    """The message of a record; one that cannot be unpacked, which may be why it is given up, as it is."""
    try:
        return decode_message(record)[0]
    except RemoteProtocolError:
        return decode_message(record, decompress=False)[0]


def _id_of(message: MessageExt) -> str:
    """What a message keeps on its ways back to the broker; one without an id of its client has that of its place."""
    properties = message.properties
    return properties.get(Property.UNIQ_KEY) or properties.get(Property.ORIGIN_MESSAGE_ID) or message.msg_id


def _of(cluster: str | None) -> str:
    """Before what happened in a cluster, for people."""
    return f"{cluster}/" if cluster else ""


def _told(running: _Running) -> str:
    return f"{running.call.name}, attempt {running.call.attempt}, for {_keys(running.call)}"


def _keys(call: Call) -> str:
    keys = [key for message in call.messages for key in message.keys]
    return f"keys {' '.join(keys)}" if keys else f"a message of {call.topic}"
