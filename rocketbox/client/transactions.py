"""Transactions: a message that consumers get if, and only if, work of its sender was done.

    half message -> work -> commit or rollback

The half message is stored first and nobody gets it. The work follows, a database's own transaction mostly, and then
the broker is told how it has ended: one-way, but for work that took so long that the broker may ask at the same time,
where it is to answer (``ended_transactions``). If it does not hear that, because the process died, the connection broke
or the end is not known yet, it asks a producer of the group again and again (``transaction_checks``). So the end that
counts is what the work has written; the message says so sooner or later. What can happen besides:

=================================  =====================================================================
the half message is not stored     the send's error is raised; the work does not begin
it is stored, less safely than     it is rolled back and NotDurableError raised, unless accept_weak_ack
asked
the half was sent twice            (a try that timed out had stored it) nobody ends the first one: it is
                                   checked, and if its work was done consumers get the message twice
``async with``: an exception       rolled back, and raised
``send_in_transaction``: an        not known: the checker decides, and it is raised (Apache's rule; work
exception                          that has rolled back returns ROLLBACK)
a cancellation, a kill             not known: the checker decides
=================================  =====================================================================

Source: Apache RocketMQ 5.x ``TransactionMQProducer``, ``DefaultMQProducerImpl.sendMessageInTransaction``,
``endTransaction``, ``checkTransactionState``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol, Self
from weakref import WeakValueDictionary

import anyio

from rocketbox.blocking import run_blocking
from rocketbox.client.api.transactions import end_transaction
from rocketbox.client.ended_transactions import EndedTransactions, Half
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.packing import TO_BE_PACKED
from rocketbox.client.queue_choice import QueueTarget
from rocketbox.client.sending import Sender
from rocketbox.client.transaction_checks import CheckRoute, Question, TransactionCheckers, is_async, name_of
from rocketbox.client.tries import Tries
from rocketbox.errors import (
    BrokerError,
    ClientError,
    ClientStateError,
    InvalidMessageError,
    NotDurableError,
    RocketBoxError,
)
from rocketbox.message import MAX_PROPERTIES_BYTES, LocalTransactionState, Message, MessageExt, SendResult
from rocketbox.own_failures import as_failure
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import CheckTransactionStateRequestHeader
from rocketbox.protocol.prepared_sends import SendRequest, with_sys_flag
from rocketbox.remoting.connection import Connection
from rocketbox.safe_repr import also_when_unmade, one_line

__all__ = ["LocalWork", "Transaction", "TransactionSendResult", "Transactions"]

_log = logging.getLogger(__name__)

HALF = int(MessageSysFlag.TRANSACTION_PREPARED)
CHECK_ANSWER_TIMEOUT = 3.0  # seconds; Apache's
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
LONG_WORK = 1.0  # seconds: a broker asks after 6 s, and may do so up to 3 s after the end
SLOW_CHECK = 30.0  # seconds, the time in which brokers ask again: a checker that looks for longer is told of
OFFSET_DIGITS = 16  # of an offset message id: the commit-log offset, in hex
ADDED_BY_BROKERS = 512  # bytes, to the properties of a half message: where it is to go, its cluster, its checks
SHOWN_CHARACTERS = 200  # of an exception, in what the broker's log is told


class SendHalf(Protocol):
    """Sends a half message as the producer sends: through its middlewares, with its tries."""

    def __call__(
        self, transaction: Transaction, timeout: float | None, queue: QueueTarget | None, /
    ) -> Awaitable[SendResult]: ...


class Transaction:
    """One message and the work it goes with: ``async with producer.transaction(message) as tx: ...``.

    Entering stores the half message, raising as a send does when it is not stored. Leaving commits; with an exception
    it rolls back and the exception goes on; with a cancellation it does neither, and the producer's checker decides.
    :meth:`rollback` and :meth:`unknown` say otherwise beforehand; after the end they raise ClientStateError.
    """

    def __init__(
        self, transactions: Transactions, message: Message, timeout: float | None, queue: QueueTarget | None
    ) -> None:
        self.message = message
        self._transactions = transactions
        self._timeout = timeout
        self._queue = queue
        self._result: SendResult | None = None
        self._has_begun = self._is_over = False
        self._said: LocalTransactionState | None = None
        self._state: LocalTransactionState | None = None
        self._told: list[Callable[[LocalTransactionState], object]] = []
        self._from_check = False
        self._half: Half | None = None
        self.began = 0.0
        """When the half message was sent, on the monotonic clock: it may be stored long before that is answered."""
        self.checked: LocalTransactionState | None = None
        """What its broker was told while the work went on, because it has asked."""

    @property
    def result(self) -> SendResult:
        """What the broker answered to the half message. Raises ClientStateError before it is sent."""
        if self._result is None:
            raise ClientStateError("the transaction has not begun: write async with around it")
        return self._result

    @property
    def transaction_id(self) -> str:
        """What the transaction is called: the id that consumers and the checker know the message by (``msg_id``)."""
        return self.result.msg_id

    @property
    def half(self) -> Half | None:
        """Where the half message lies that a broker asked about last, in its queue and in the commit log; None: it has
        not asked, and it is that of the result."""
        return self._half

    def is_asked_about(self, half: Half) -> bool:
        """The broker asks; whether the work goes on, so that its end answers this as well.

        Apache's broker stores the half message anew before it asks. Who ended the first one then would leave the new
        one open, and a later check would commit it a second time.
        """
        if not self._is_over and (self._half is None or half > self._half):
            self._half = half
        return not self._is_over

    @property
    def is_told(self) -> bool:
        """Whether the broker was told an end by the work itself, and not that it is unknown."""
        return self._is_over and not self._from_check and self._state not in (None, LocalTransactionState.UNKNOWN)

    @property
    def state(self) -> LocalTransactionState | None:
        """How it has ended, as the broker was told; None: it has not."""
        return self._state

    @property
    def from_check(self) -> bool:
        """Whether the broker was told the end because it has asked."""
        return self._from_check

    def on_end(self, told: Callable[[LocalTransactionState], object]) -> None:
        """Have ``told`` called with how it has ended, when the broker is told: UNKNOWN may be followed by another.

        For middlewares, which find it in their context. What it raises is logged, and changes nothing.
        """
        self._told.append(told)

    def rollback(self) -> None:
        """Roll back at the end, also without an exception, or whatever the work of a callback returns. Where the task
        is cancelled it is the checker that decides, as ever."""
        self._say(LocalTransactionState.ROLLBACK)

    def unknown(self) -> None:
        """Leave it to the checker at the end, however the block is left: where an exception does not say that the work
        was not done, as when the connection breaks while a database commits."""
        self._say(LocalTransactionState.UNKNOWN)

    def _say(self, state: LocalTransactionState) -> None:
        self._check_goes_on(state)
        self._said = state

    def _check_goes_on(self, state: LocalTransactionState) -> None:
        if self._is_over:
            ended = "nothing" if self._state is None else self._state.name
            raise ClientStateError(
                f"the transaction has ended, and the broker was told {ended}; say {state.name} before its end"
            )

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def begin(self) -> None:
        """Store the half message."""
        if self._has_begun:
            raise ClientStateError("a transaction begins once; make another one for another message")
        self._has_begun = True
        try:
            self._result = await self._transactions.send_half(self, self._timeout, self._queue)
        finally:
            self._has_begun = self._result is not None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:  # by an end in the block
            return
        if error is not None and not isinstance(error, Exception):
            self.cut_off()
            return
        await self.end(LocalTransactionState.COMMIT if error is None else LocalTransactionState.ROLLBACK, error)

    def cut_off(self) -> None:
        """The process ends, or its task: nothing is awaited for the transaction, and the checker decides, unless the
        work has ended it before."""
        if not self._is_over:
            self._is_over = True
            self.has_ended(LocalTransactionState.UNKNOWN)

    async def end(self, state: LocalTransactionState, error: BaseException | None = None) -> LocalTransactionState:
        """Tell the broker what was said beforehand, or else ``state``; which of them it was.

        What the checker has told it while the work went on is not told again: Apache's brokers store a half message
        that is committed twice as two. A failure to tell it is logged: the broker asks then. Raises ClientStateError
        before the half message is sent, and where it has ended before.
        """
        _ = self.result
        told = state if self._said is None else self._said
        self._check_goes_on(told)
        self._is_over = True
        checked = self.checked
        if checked is None or checked is LocalTransactionState.UNKNOWN:
            self.has_ended(told)
        elif told in (checked, LocalTransactionState.UNKNOWN):
            return checked
        else:
            _log.warning(
                "transaction %s to %s: its checker has said %s while the work went on, which has ended it with %s; a "
                "checker says UNKNOWN as long as the work may go on",
                self.transaction_id, self.message.topic, checked.name, told.name,
            )  # fmt: skip
            self.has_ended(told)
        await self._transactions.end(self, told, error)
        return told

    async def end_after_all(
        self, state: LocalTransactionState, error: BaseException | None = None
    ) -> LocalTransactionState:
        """As :meth:`end`, but for work that has called that itself: what it said counts."""
        if self._is_over and self._state is not None:
            return self._state
        return await self.end(state, error)

    def said_by(self, work: LocalWork, said: object) -> LocalTransactionState:
        """What the work of ``send_in_transaction`` has returned. Raises ClientError when that is no state."""
        if not isinstance(said, LocalTransactionState):
            raise ClientError(
                f"the work of transaction {self.transaction_id}, {name_of(work)}, returned {said!r}; it must return a "
                "LocalTransactionState. The checker decides what becomes of the message"
            )
        return said

    def has_ended(self, state: LocalTransactionState, *, from_check: bool = False) -> None:
        """The broker is told now, by the end of the work or because it has asked."""
        self._state, self._from_check = state, from_check
        for told in self._told:
            try:
                told(state)
            except Exception:
                _log.exception("who was to be told of the end of a transaction to %s raised", self.message.topic)

    @also_when_unmade
    def __repr__(self) -> str:
        state = "not begun" if self._result is None else "open" if self._state is None else self._state.name
        return f"Transaction({self.message.topic!r}, {state})"


def half_of(result: SendResult) -> Half:
    """Where a half message lies: its offsets in its queue and in the commit log."""
    return result.queue_offset, int(result.offset_msg_id[-OFFSET_DIGITS:], 16)


LocalWork = Callable[[Transaction], "Awaitable[LocalTransactionState] | LocalTransactionState"]
"""The work of ``send_in_transaction``: an ``async def``, or a ``def``, which is called in a thread."""


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """What became of a message that was sent in a transaction: the half message's result, and what the work said."""

    result: SendResult
    state: LocalTransactionState

    @property
    def transaction_id(self) -> str:
        """The id that consumers and the checker know the message by."""
        return self.result.msg_id


class Transactions:
    """Those of one producer."""

    def __init__(self, group: str, instance: MQClientInstance, sender: Sender, send_half: SendHalf) -> None:
        self._group = group
        self._instance = instance
        self._sender = sender
        self._send_half = send_half
        self._greeted: set[str] = set()  # addresses that were told of this producer, and have not answered yet
        self._begun: WeakValueDictionary[str, Transaction] = WeakValueDictionary()  # by id; of those somebody holds
        self._ending: set[str] = set()  # the ids of those whose broker is to answer that they have ended
        self._ended = EndedTransactions()
        self.checkers = TransactionCheckers(group, instance.tasks, instance.clock)
        self.on_checked: Callable[[MessageExt, str, LocalTransactionState], object] | None = None
        """Called with the message, the broker's address and the state when a broker that has asked is told."""
        self.unanswered = 0
        """How many questions were left to be asked again: for want of room, or of a checker that could tell."""

    # --- what the producer sends -------------------------------------------------------------------------------------

    def request(self, message: Message) -> SendRequest:
        """The half message of a message. Raises InvalidMessageError."""
        request = self._sender.request(message)
        group = self._instance.namespace.wrap(self._group)
        request.properties += f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02".encode()
        most = MAX_PROPERTIES_BYTES - ADDED_BY_BROKERS
        if len(request.properties) > most:  # a broker takes it, and cannot store what it writes for a check
            raise InvalidMessageError(
                f"the message's properties take {len(request.properties)} bytes; at most {most} are allowed in a "
                "transaction, since the broker adds to them"
            )
        if request.numbers is TO_BE_PACKED:
            request.sys_flag |= HALF
        else:
            request.numbers = with_sys_flag(request.numbers, HALF)
        return request

    async def send_half(self, transaction: Transaction, timeout: float | None, queue: QueueTarget | None) -> SendResult:
        """Store a half message whose broker can ask this producer about it. Raises as a send does."""
        message = transaction.message
        await self._sender.must_be_open()
        self._check(message)
        seconds = self._sender.options.send_message_timeout if timeout is None else timeout
        tries = Tries(self._instance.clock.monotonic(), seconds, 0)
        await self._become_known(message.topic, tries)
        transaction.began = tries.now
        try:
            result = await self._send_half(transaction, tries.deadline - tries.now, queue)
        except NotDurableError as error:
            transaction.has_ended(LocalTransactionState.ROLLBACK)
            await self._tell(error.result, message.topic, LocalTransactionState.ROLLBACK, None)
            raise
        self._begun[result.msg_id] = transaction
        return result

    def _check(self, message: Message) -> None:
        if not isinstance(message, Message):
            raise InvalidMessageError(f"a {type(message).__name__} cannot be sent; make a Message of it")
        if message.delay_level or message.delay is not None or message.deliver_at is not None:
            raise InvalidMessageError(
                f"the message to {message.topic!r} has a delay, which RocketMQ does not take in a transaction: "
                "send it without one"
            )
        topic = self._instance.namespace.unwrap(message.topic) if isinstance(message.topic, str) else ""
        self.checkers.expect(topic, message.tag)
        immunity = message.properties.get(IMMUNITY) if isinstance(message.properties, Mapping) else None
        if immunity is not None and not (isinstance(immunity, str) and immunity.isascii() and immunity.isdigit()):
            raise InvalidMessageError(
                f"the message to {message.topic!r} has {IMMUNITY} {immunity!r}; it must be a whole number of seconds"
            )

    async def _become_known(self, topic: str, tries: Tries) -> None:
        """Tell the topic's brokers of this producer where a heartbeat may not have come there yet; each waits once."""
        sender, instance = self._sender, self._instance
        topic = instance.namespace.unwrap(topic)
        lanes = sender.lanes.get(topic)
        if lanes is None:
            lanes = await sender.find_lanes(topic, tries)
        strangers = instance.strangers(lanes.addresses)
        self._greeted -= lanes.addresses.difference(strangers)  # who is known by now may become a stranger again
        strangers = [each for each in strangers if each not in self._greeted]
        if strangers:
            try:
                with instance.clock.move_on_after(instance.time_to_become_known(tries.deadline - tries.now)):
                    await instance.greet(strangers)
            finally:
                self._greeted.update(strangers)
            tries.now = instance.clock.monotonic()

    async def end(self, transaction: Transaction, state: LocalTransactionState, error: BaseException | None) -> None:
        """Tell the broker how a transaction has ended; never raises but what cancels."""
        took = self._instance.clock.monotonic() - transaction.began
        await self._tell(
            transaction.result, transaction.message.topic, state, error, transaction.half,
            answered=state is not LocalTransactionState.UNKNOWN and (transaction.half is not None or took >= LONG_WORK),
        )  # fmt: skip

    async def _tell(
        self,
        result: SendResult,
        topic: str,
        state: LocalTransactionState,
        error: BaseException | None,
        half: Half | None = None,
        *,
        answered: bool = False,
    ) -> None:
        instance = self._instance
        timeout = self._sender.options.send_message_timeout
        remark = None if error is None else f"the local work raised {self._shown(error)}"
        try:
            with anyio.CancelScope(shield=True), instance.clock.move_on_after(timeout) as scope:
                instance.check_running(f"producer {self._group}")
                ended = half or half_of(result)
                address = instance.broker_address(result.broker_name)
                answered = answered and instance.is_broker(address)
                connection = instance.remoting.connection_to(address)
                if answered:
                    self._ending.add(result.msg_id)
                await end_transaction(
                    instance.remoting, address, state, group=self._group, topic=topic, queue_offset=ended[0],
                    commit_log_offset=ended[1], msg_id=result.msg_id,
                    transaction_id=result.transaction_id or result.msg_id, broker_name=result.broker_name,
                    remark=remark, answered=answered, timeout=timeout,
                )  # fmt: skip
                if answered and connection is instance.remoting.connection_to(address):
                    self._ended.note(result.msg_id, ended, connection, instance.clock.monotonic())
            if scope.cancelled_caught:
                _log.warning(
                    "broker %s has not answered within %g s that it has taken the %s of transaction %s, and will ask "
                    "if it has not", result.broker_name, timeout, state.name, result.msg_id,
                )  # fmt: skip
        except BrokerError as refusal:
            _log.warning(
                "broker %s has not taken the %s of transaction %s, and will ask unless it has ended before: %s",
                result.broker_name, state.name, result.msg_id, refusal,
            )  # fmt: skip
        except (RocketBoxError, ValueError) as failure:
            _log.warning(
                "broker %s was not told of the %s of transaction %s, and will ask: %s",
                result.broker_name, state.name, result.msg_id, failure,
            )  # fmt: skip
        finally:
            self._ending.discard(result.msg_id)

    async def run(
        self, message: Message, work: LocalWork, timeout: float | None, queue: QueueTarget | None
    ) -> TransactionSendResult:
        """Send a half message, do the work, and tell the broker what it returned."""
        transaction = Transaction(self, message, timeout, queue)
        await transaction.begin()
        try:
            said = work(transaction) if is_async(work) else await run_blocking(work, transaction)
            if inspect.isawaitable(said):
                said = await said
            state = transaction.said_by(work, said)
        except Exception as error:
            await transaction.end_after_all(LocalTransactionState.UNKNOWN, error)
            raise
        except BaseException:
            transaction.cut_off()
            raise
        return TransactionSendResult(transaction.result, await transaction.end_after_all(state))

    # --- what brokers ask --------------------------------------------------------------------------------------------

    def check(self, connection: Connection, request: RemotingCommand, message: MessageExt) -> None:
        """A broker asks what became of a transaction: have the checker look, and tell it."""
        checkers, clock = self.checkers, self._instance.clock
        if self._is_copy(connection.remote_address, request, message):
            self._instance.tasks.start(
                "roll a copy back", self._roll_copy_back, connection.remote_address, request, message, restart=False
            )
            return
        during = self._under_work(connection.remote_address, request, message)
        route = checkers.find(message.topic, message.tag)
        if route is None:
            self.unanswered += 1
            checkers.log.tell(
                logging.WARNING, clock.monotonic(), "nobody",
                "the broker at %s asks what became of transaction %s to %s:%s, and producer %s has no checker for that",
                connection.remote_address, one_line(message.msg_id), one_line(message.topic),
                one_line(message.tag or ""), self._group,
            )  # fmt: skip
            return
        key = connection.remote_address, message.msg_id
        known = route.questions.get(key)
        if known is not None:
            known.request, known.is_settled = request, during
            self._tell_if_slow(route, known)
            return
        question = Question(request, message, is_settled=during)
        if route.submit(partial(self._answer, route, connection.remote_address, question)):
            route.questions[key] = question
        else:
            self.unanswered += 1
            checkers.log.tell(
                logging.WARNING, clock.monotonic(), "full",
                "more is asked about transactions of producer %s than its checker answers (blocking-queue-size): "
                "the broker will ask again", self._group,
            )  # fmt: skip

    def _under_work(self, address: str, request: RemotingCommand, message: MessageExt) -> Callable[[], bool] | None:
        """What tells whether the work of a transaction has ended it by itself since its broker has asked; None: the
        work was over by then, or is that of another process."""
        begun = self._begun.get(message.msg_id)
        if begun is None or self._instance.routes.master(begun.result.broker_name) != address:
            return None
        try:
            header = CheckTransactionStateRequestHeader.decode(request.ext_fields)
        except RocketBoxError:  # as who answers will find
            return None
        if not begun.is_asked_about((header.tran_state_table_offset, header.commit_log_offset)):
            return None
        return lambda: begun.is_told

    def _is_copy(self, address: str, request: RemotingCommand, message: MessageExt) -> bool:
        """Whether a broker asks about a copy of what it has ended."""
        try:
            header = CheckTransactionStateRequestHeader.decode(request.ext_fields)
        except RocketBoxError:
            return False
        half = header.tran_state_table_offset, header.commit_log_offset
        connection = self._instance.remoting.connection_to(address)
        return self._ended.is_copy(message.msg_id, half, connection, self._instance.clock.monotonic())

    async def _roll_copy_back(self, address: str, request: RemotingCommand, message: MessageExt) -> None:
        await self._answer_check(address, request, message, LocalTransactionState.ROLLBACK, "it has ended before")

    def _tell_if_slow(self, route: CheckRoute, question: Question) -> None:
        now = self._instance.clock.monotonic()
        if question.began is not None and now - question.began > SLOW_CHECK:
            self.checkers.log.tell(
                logging.WARNING, now, "slow",
                "the checker %s has looked into transaction %s to %s for %d s, and %d questions wait behind it; what "
                "is asked too often without an answer is given up (maximum-pool-size: how many are answered at once)",
                name_of(route.checker), one_line(question.message.msg_id), question.message.topic, now - question.began,
                route.waiting,
            )  # fmt: skip

    async def _answer(self, route: CheckRoute, address: str, question: Question) -> None:
        message = question.message
        question.began = self._instance.clock.monotonic()
        error: Exception | None = None
        try:
            state = await route.ask(message)
        except Exception as raised:  # whatever it is: not known, and never committed by accident
            state, error = LocalTransactionState.UNKNOWN, raised
            self.unanswered += 1
            self.checkers.log.tell(
                logging.ERROR, self._instance.clock.monotonic(), "failed",
                "the checker could not tell what became of transaction %s to %s: %s; the broker will ask again",
                one_line(message.msg_id), message.topic, self._shown(raised), error=raised,
            )  # fmt: skip
        except anyio.get_cancelled_exc_class() as cancelled:
            if as_failure(cancelled) is not cancelled:  # it is not the producer's end
                self.unanswered += 1
                self.checkers.log.tell(
                    logging.ERROR, self._instance.clock.monotonic(), "cancelled",
                    "the checker %s has cancelled the task in which it looked into transaction %s to %s; the broker "
                    "will ask again", name_of(route.checker), one_line(message.msg_id), one_line(message.topic),
                )  # fmt: skip
            raise
        finally:
            del route.questions[address, message.msg_id]
        if message.msg_id in self._ending:
            return  # what becomes of that is not known yet; if the broker does not hear of it, it asks again
        if self._is_copy(address, question.request, message):
            await self._roll_copy_back(address, question.request, message)
            return
        if question.is_settled is not None and question.is_settled():
            return  # a second commit would be stored a second time; where the first is lost the broker asks again
        if (begun := self._begun.get(message.msg_id)) is not None:
            begun.has_ended(state, from_check=True)
            if question.is_settled is not None:
                begun.checked = state
        if self.on_checked is not None:
            self.on_checked(message, address, state)
        remark = None if error is None else f"the checker raised {self._shown(error)}"
        await self._answer_check(address, question.request, message, state, remark)

    async def _answer_check(
        self,
        address: str,
        request: RemotingCommand,
        message: MessageExt,
        state: LocalTransactionState,
        remark: str | None,
    ) -> None:
        try:
            header = CheckTransactionStateRequestHeader.decode(request.ext_fields)
            await end_transaction(
                self._instance.remoting, address, state, group=self._group, topic=message.topic,
                queue_offset=header.tran_state_table_offset, commit_log_offset=header.commit_log_offset,
                msg_id=message.msg_id, transaction_id=header.transaction_id, broker_name=header.bname,
                remark=remark, from_check=True, timeout=CHECK_ANSWER_TIMEOUT,
            )  # fmt: skip
        except RocketBoxError as failure:
            _log.warning(
                "the broker at %s was not told of transaction %s: %s", address, one_line(message.msg_id), failure
            )

    def _shown(self, error: BaseException) -> str:
        text = f"{type(error).__name__}: {self._instance.told(error)}"[:SHOWN_CHARACTERS]
        return one_line(text).encode(errors="replace").decode()
