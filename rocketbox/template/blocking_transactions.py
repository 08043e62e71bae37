"""Transactions of code that blocks: the work is done in the thread that sends, the rest in the client's loop.

Source: own design; Apache RocketMQ 5.x ``TransactionMQProducer.sendMessageInTransaction`` calls its listener in the
thread that sends, too: a database's connection, a web framework's request, which the work belongs to, are there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from inspect import isawaitable
from types import TracebackType
from typing import Any

from rocketbox.calls_from_threads import CallsFromThreads
from rocketbox.client import LocalWork, Transaction, TransactionSendResult
from rocketbox.errors import ClientStateError
from rocketbox.message import LocalTransactionState

__all__ = ["BlockingTransaction", "work_in_transaction"]

_log = logging.getLogger(__name__)

CALL = "template.blocking.transaction"


class BlockingTransaction(AbstractContextManager[Transaction]):
    """``with template.blocking.transaction("orders:paid", order) as transaction:``, the work in the block.

    Entering stores the half message; the end of the block commits, an exception rolls back and goes on. With what ends
    the program, such as KeyboardInterrupt, the ``@rocketmq_transaction_listener`` decides.
    """

    def __init__(self, calls: CallsFromThreads, transaction: Transaction) -> None:
        self._calls = calls
        self._transaction = transaction

    def __enter__(self) -> Transaction:
        self._calls.call(CALL, self._transaction.begin)
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._calls.call if error is None or isinstance(error, Exception) else self._calls.hand_over
        try:
            call(CALL, self._transaction.__aexit__, kind, error, trace)
        except ClientStateError as closed:
            _tell_of_unended(self._transaction, closed)


def work_in_transaction(calls: CallsFromThreads, transaction: Transaction, work: LocalWork) -> TransactionSendResult:
    """Store the half message, do the work here, and tell the broker what it returned; what it raises is raised."""
    what = "template.blocking.send_in_transaction"
    calls.call(what, transaction.begin)
    try:
        said = work(transaction)
        if isawaitable(said):
            said = calls.call(what, _result_of, said)
        state = transaction.said_by(work, said)
    except Exception as error:
        _end(calls, what, transaction, LocalTransactionState.UNKNOWN, error)
        raise
    except BaseException:  # what ends the program goes on, whatever becomes of the transaction
        try:
            calls.hand_over(what, _cut_off, transaction)
        except ClientStateError as closed:
            _tell_of_unended(transaction, closed)
        raise
    return TransactionSendResult(transaction.result, _end(calls, what, transaction, state, None))


def _end(
    calls: CallsFromThreads,
    what: str,
    transaction: Transaction,
    state: LocalTransactionState,
    error: Exception | None,
) -> LocalTransactionState:
    try:
        return calls.call(what, transaction.end_after_all, state, error)
    except ClientStateError as closed:
        _tell_of_unended(transaction, closed)
        return state


def _tell_of_unended(transaction: Transaction, closed: ClientStateError) -> None:
    """The work is done or undone, whatever the broker hears of it: it asks, as with any end that does not come."""
    _log.warning(
        "broker %s was not told how transaction %s has ended, and will ask: %s",
        transaction.result.broker_name, transaction.transaction_id, closed,
    )  # fmt: skip


async def _result_of(said: Awaitable[Any]) -> Any:
    return await said


async def _cut_off(transaction: Transaction) -> None:
    transaction.cut_off()
