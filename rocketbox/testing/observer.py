"""Sees what a service does: as the outermost and the innermost middleware of all sends and calls of handlers, and at a
store in memory.

It changes nothing. What it has seen is in ``records``; what goes on meanwhile is ``under_way``.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from math import inf
from typing import Protocol

import anyio

from rocketbox.autoconfigure.machine import Machine
from rocketbox.broker.store.dispatcher import Arrival
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.client import ConsumeContext, SendContext
from rocketbox.client.consume import HandlerEndedError
from rocketbox.client.middleware import (
    ConsumeMiddleware,
    ConsumeNext,
    SendMiddleware,
    SendNext,
)
from rocketbox.client.outcomes import NotTriedError, Outcomes
from rocketbox.client.replies import is_answer
from rocketbox.client.requests import RequestContext
from rocketbox.errors import BatchFailed, Reject, RemoteProtocolError, RetryLater
from rocketbox.message import MessageExt, Property, SendResult
from rocketbox.protocol.codes import DLQ_PREFIX
from rocketbox.protocol.stored_message import decode_message
from rocketbox.template import MessageConverter
from rocketbox.testing import reported
from rocketbox.testing.errors import HarnessError
from rocketbox.testing.handler_runs import HandlerRuns, Run, failures_of_each
from rocketbox.testing.loop_turns import LoopTurns
from rocketbox.testing.records import Call, DeadLetter, LogEntry, Outcome, Sent, of_cluster, told_error
from rocketbox.testing.retries import Retries
from rocketbox.testing.sends import Sends
from rocketbox.testing.under_way import UnderWay
from rocketbox.testing.untold import Place, Untold

__all__ = ["Observer"]

NO_FAILURES = (Reject, RetryLater, BatchFailed, NotTriedError)  # of the handler's code
LATEST = 4  # entries of the log, in a text


class PassingClock(Protocol):
    """Knows how much time has passed since the harness began, in seconds."""

    @property
    def passed(self) -> float: ...


class Observer:
    """``retries_of(group, cluster)``: what becomes of messages of a group that have failed. ``converter()`` is the
    service's.

    ``was_asked_for(error)``: the test itself has had a handler raise it. ``plain(cluster, name)`` is a name at a
    cluster's broker as the service knows it.
    """

    def __init__(
        self,
        clock: PassingClock,
        turns: LoopTurns,
        retries_of: Callable[[str, str | None], Retries],
        converter: Callable[[], MessageConverter],
        while_sending: Callable[[Callable[[], bool], Callable[[HarnessError], object]], Callable[[], object]],
        was_asked_for: Callable[[BaseException], bool],
        plain: Callable[[str | None, str], str] = lambda cluster, name: name,
    ) -> None:
        self.calls: list[Call] = []
        self.dead: list[DeadLetter] = []
        self.log: list[LogEntry] = []
        self.unexpected: list[BaseException] = []
        self.untold = Untold()
        """What handlers and hooks raised that is no signal, and nobody was told of yet."""
        self.of_hooks: list[Exception] = []
        """What hooks raised of that."""
        self.under_way = UnderWay()
        self.given_up: dict[tuple[str | None, str, str], str] = {}
        """What calls gave up that has not come to a dead-letter queue yet, by cluster, group and id: what it is."""
        self._sends = Sends(lambda: clock.passed, converter, self.note, plain)
        self._again: set[tuple[str | None, str, int, int]] = set()  # places of queues, each until it holds a message
        self._seen = 0
        self._clock = clock
        self._turns = turns
        self._retries_of = retries_of
        self._converter = converter
        self._while_sending = while_sending
        self._was_asked_for = was_asked_for
        self._plain = plain
        self._last_error: dict[Place, tuple[BaseException | None, int]] = {}
        self._runs = HandlerRuns(
            lambda: clock.passed, self._list, lambda call: self.note(f"{of_cluster(call.cluster)}{call}")
        )
        # By identity of its context: middleware may hand that to a task of its own, which nothing else ties to it.
        self._calls_in_middleware: dict[int, Call] = {}

    @property
    def done(self) -> int:
        """Grows with whatever is seen, and with whatever ends."""
        return self._seen + self.under_way.ended

    @property
    def sent(self) -> list[Sent]:
        """What was sent."""
        return self._sends.sent

    def latest(self) -> list[str]:
        """What was seen last."""
        return [entry.text for entry in self.log[-LATEST:]]

    def whose(self, message: MessageExt) -> tuple[str | None, str | None]:
        """The cluster that a message came from to a handler, or was given up in, and the group that had it; the main
        one, and none, if nobody knows."""
        came = ((call.cluster, call.group, each) for call in self.calls for each in call.messages)
        given_up = ((letter.cluster, letter.group, letter.message) for letter in self.dead)
        found = ((cluster, group) for cluster, group, each in (*came, *given_up) if each is message)
        return next(found, (None, None))

    def note(self, text: str) -> None:
        self._seen += 1
        self.log.append(LogEntry(self._clock.passed, text))

    def looked_at(self, calls: Iterable[Call]) -> None:
        """The test knows how these have ended, as far as they have."""
        for call in calls:
            if call.outcome is not Outcome.CALLED_AGAIN:  # how that went is told by the call after it
                failed = self._unexpected(call.messages, call.failures)  # of none, while it runs
                self.untold.know(_place_of(call, message) for message, _ in failed)

    def forget(self) -> None:
        """Know of nothing that was."""
        for each in (self.calls, self.dead, self.log, self.unexpected, self.of_hooks):
            each.clear()
        self.untold.forget()
        self._last_error.clear()
        self.given_up.clear()
        self._sends.forget()

    def hook_failed(self, what: str, error: Exception) -> None:
        """A hook has raised, which the service logs and survives."""
        self.note(f"{what} failed ({told_error(error)})")
        self.unexpected.append(error)
        self.of_hooks.append(error)

    @contextmanager
    def transaction_listener_called(self, what: str) -> Iterator[None]:
        """A transaction listener is called, in a task of the client's: it is waited for as a handler is."""
        with self.under_way.asking(what, self._turns.current_task()):
            try:
                yield
            except Exception as error:
                self.hook_failed(what, error)
                raise

    def scheduled_function_called(self, what: str) -> AbstractContextManager[None]:
        """A scheduled function is called, in the task of its schedule."""
        return self.under_way.scheduled(what)

    def watching(
        self, machine: Machine, first_name: Callable[[str], str | None], failing: ConsumeMiddleware
    ) -> Machine:
        """A machine on which all is seen that the service does.

        ``first_name(name)`` is the first name of a cluster, and ``failing`` the middleware next to the handlers.
        """
        return replace(
            machine,
            send_middleware=lambda name: (self.sends_to(first_name(name)),),
            inner_send_middleware=lambda name: (self.sent_to(first_name(name)),),
            consume_middleware=lambda name: (self.calls_of(first_name(name)),),
            handler_middleware=(self.comes_to_handler, failing),
            hook_failed=self.hook_failed,
            listener_paused=self.note,
            payload_held=self.under_way.held,
            transaction_listener_called=self.transaction_listener_called,
            scheduled_function_called=self.scheduled_function_called,
        )

    # --- middleware --------------------------------------------------------------------------------------------------

    def sends_to(self, cluster: str | None) -> SendMiddleware:
        """The middleware of sends to that cluster."""

        async def see(context: SendContext, call_next: SendNext) -> SendResult | None:
            return await self._on_send(cluster, context, call_next)

        return see

    def sent_to(self, cluster: str | None) -> SendMiddleware:
        """The innermost middleware of sends to that cluster: what it sees is sent, whatever others make of it.

        In memory that is what the broker has stored, which the answer to a send says, or its store where none does.
        """

        async def see(context: SendContext, call_next: SendNext) -> SendResult | None:
            return await self._sends.see(cluster, context, call_next)

        return see

    def calls_of(self, cluster: str | None) -> ConsumeMiddleware:
        """The middleware of calls with messages of that cluster."""

        async def see(context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
            return await self._on_consume(cluster, context, call_next)

        return see

    async def comes_to_handler(self, context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
        """The innermost middleware of calls: the service's own has passed this one on."""
        call = self._calls_in_middleware.get(id(context))
        if call is None:
            call = self.under_way.call_of_this
        return await (call_next(context) if call is None else self._runs.run(call, context, call_next))

    async def _on_send(self, cluster: str | None, context: SendContext, call_next: SendNext) -> SendResult | None:
        """Note what is not sent; time goes on meanwhile, where whoever sends is no handler that ``drain`` waits for."""
        if not self._turns.is_here():
            raise HarnessError(
                f"a message to {context.messages[0].topic} is sent in another event loop than that of the harness, "
                "which runs the service. Web frameworks' test clients may have a loop of their own, as Starlette's and "
                "FastAPI's TestClient: in an async test call the application by "
                "httpx.AsyncClient(transport=httpx.ASGITransport(app))"
            )
        if (
            isinstance(context, RequestContext)
            and not self.under_way.is_in_a_call
            and (waiting := context.waiting) is not None
        ):
            # Time goes on until its reply has come, long after the send itself.
            self._while_sending(lambda: waiting.over, waiting.end)
        with self._sends.above(context) as sent:
            try:
                result = await self._in_time(call_next(context))
            except BaseException as error:
                where = f"{of_cluster(cluster)}{context.messages[0].topic}"
                what = f"the send to {where} failed, though its message was sent" if sent else f"not sent to {where}"
                self.note(f"{what}: {told_error(error)}")
                raise
        if not sent:
            self.note(
                f"not sent to {of_cluster(cluster)}{context.messages[0].topic} so far: a middleware did not pass it on"
            )
        return result

    async def _in_time(self, send: Awaitable[SendResult | None]) -> SendResult | None:
        if self.under_way.is_in_a_call:  # ``drain`` waits for that
            return await send
        ended = False
        why: HarnessError | None = None

        def give_up(error: HarnessError) -> None:
            nonlocal why
            why = error
            scope.cancel()

        task = self._turns.current_task()
        with anyio.CancelScope() as scope:
            self.under_way.sending[scope] = task
            time_is_over = self._while_sending(lambda: ended, give_up)
            try:
                return await send
            finally:
                ended = True
                time_is_over()  # who sends without end would have very many pass it, one after the other
                del self.under_way.sending[scope]
        assert why is not None
        raise why

    async def _on_consume(self, cluster: str | None, context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
        call = self._calls_in_middleware[id(context)] = self._begin(cluster, context)
        with self.under_way.call(call, self._turns.current_task()) as awaiting:
            try:
                outcomes: Outcomes = await awaiting(call_next(context))
            except BaseException as error:
                self._end(call, context, error, None)
                raise
            finally:
                del self._calls_in_middleware[id(context)]
            self._end(call, context, None, outcomes)
            return outcomes

    def _begin(self, cluster: str | None, context: ConsumeContext) -> Call:
        first = context.messages[0]
        call = Call(
            listener=getattr(context.invocation, "listener", f"the handler of {first.topic}"),
            where=getattr(context.invocation, "where", ""),
            group=context.consumer_group,
            topic=first.topic,
            messages=tuple([copy.copy(each) for each in context.messages]),  # as they came, whatever is made of them
            attempt=first.reconsume_times + 1,
            at=self._clock.passed,
            function=getattr(context.invocation, "handler", None),
            cluster=cluster,
        )
        self._list(call)
        return call

    def _list(self, call: Call) -> None:
        self._seen += 1
        self.calls.append(call)
        reported.called(len(self.calls))

    def _end(self, first: Call, context: ConsumeContext, error: BaseException | None, outcomes: Outcomes) -> None:
        """A delivery has ended: with what, the last run of the handler's function is told."""
        run = self._runs.last(first) or Run(first, first.messages)
        call = run.call
        if not run.has_ended:
            run.take(context.invocation)
        if error is not None and not isinstance(error, Exception) and not _is_stopped(error):
            # Whatever a handler raises by itself fails its message, pytest.fail() and sys.exit() as well.
            ended = HandlerEndedError(call.topic, error)
            ended.__cause__ = error
            error = ended
        if error is not None and not isinstance(error, Exception):
            call.outcome, call.error = Outcome.CANCELLED, error
            call.outcomes = (Outcome.CANCELLED,) * len(call.messages)
            self.note(f"{of_cluster(call.cluster)}{call}")
            return
        messages = call.messages
        failures = failures_of_each(messages, error, outcomes)
        call.failures = failures
        call.outcomes = self._retries_of(call.group, call.cluster).outcomes(messages, failures)
        call.outcome = next((each for each in call.outcomes if each is not Outcome.CONSUMED), Outcome.CONSUMED)
        call.error = next((each for each in call.failures if each is not None), None)
        for message, failure, outcome in zip(messages, failures, call.outcomes, strict=True):
            if failure is not None:
                place = _place_of(call, message)
                self._last_error[place] = failure, message.reconsume_times + 1
                if outcome is Outcome.DEAD_LETTER:
                    self.given_up[place] = f"what {call.name} has given up, {call.told_keys}"
        unexpected = self._unexpected(messages, failures)
        self.unexpected += {id(failure): failure for _, failure in unexpected}.values()
        for message, failure in unexpected:
            self.untold.add(_place_of(call, message), failure)
        self.note(f"{of_cluster(call.cluster)}{call}")

    def _unexpected(
        self, messages: Sequence[MessageExt], failures: Sequence[BaseException | None]
    ) -> list[tuple[MessageExt, Exception]]:
        """The messages that have failed, each by what it has failed by, where that is no signal, nor what the test had
        asked for or who sent a request is told."""
        failed = [
            (message, failure)
            for message, failure in zip(messages, failures, strict=False)
            if isinstance(failure, Exception)
        ]
        # By identity: exceptions of the user's may have no hash, and be equal to others.
        told = {id(failure) for message, failure in failed if is_answer(message, failure)}
        return [
            (message, failure)
            for message, failure in failed
            if not isinstance(failure, NO_FAILURES) and not self._was_asked_for(failure) and id(failure) not in told
        ]

    # --- at the broker -----------------------------------------------------------------------------------------------

    def watch_store(self, store: MessageStore, cluster: str | None) -> None:
        """Hear of what comes into the store of a cluster's broker: dead letters, and what was sent."""
        self._sends.stored.sees_stores = True

        def arrived(arrivals: Sequence[Arrival]) -> None:
            self._seen += 1
            if self._again:
                arrivals = [each for each in arrivals if not self._comes_again(cluster, each)]
            self._sends.stored.arrived(cluster, arrivals)
            for topic, queue_id, next_offset, _, _ in arrivals:
                if topic.startswith(DLQ_PREFIX):
                    found = store.get(topic, queue_id, next_offset - 1, 1)
                    for record in found.records:
                        message = _decoded(record)
                        message.topic = self._plain(cluster, topic)
                        self.buried(cluster, message.topic.removeprefix(DLQ_PREFIX), message)

        store.on_arrival.append(arrived)

    def will_come_again(self, cluster: str | None, topic: str, queue_id: int, offset: int) -> None:
        """At that place of a queue a message is about to come that the test has delivered again: nobody has sent it,
        and no group has given it up."""
        self._again.add((cluster, topic, queue_id, offset))

    def _comes_again(self, cluster: str | None, arrival: Arrival) -> bool:
        topic, queue_id, next_offset, _, _ = arrival
        place = cluster, topic, queue_id, next_offset - 1
        if place not in self._again:
            return False
        self._again.remove(place)
        return True

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
        self.note(f"{of_cluster(cluster)}{letter}")


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


def _place_of(call: Call, message: MessageExt) -> Place:
    return call.cluster, call.group, _id_of(message)
