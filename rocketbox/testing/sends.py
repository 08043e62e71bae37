"""What the service sends, as the innermost middleware of all sends sees it: sent is what the broker has stored.

The answer to a send says so. Where none does the store itself is asked, which ``stored_sends`` knows of in memory. On a
real broker what is sent one-way, or committed, counts as sent, and what fails does not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import partial

from rocketbox.client import SendContext
from rocketbox.client.batches import results_of
from rocketbox.client.middleware import EndingTransaction, SendNext
from rocketbox.message import LocalTransactionState, Message, SendResult
from rocketbox.template import MessageConverter
from rocketbox.testing.records import Sent, of_cluster
from rocketbox.testing.stored_sends import StoredSends

__all__ = ["Sends"]

_sent: ContextVar[list[SendContext] | None] = ContextVar(
    "what was sent inside of the middleware of a send", default=None
)


class Sends:
    """Those of one harness, in the order in which they came about: ``sent``.

    ``passed()`` is what time it is, ``converter()`` the service's, ``note`` writes into the log, and
    ``plain(cluster, name)`` is a name at a cluster's broker as the service knows it.
    """

    def __init__(
        self,
        passed: Callable[[], float],
        converter: Callable[[], MessageConverter],
        note: Callable[[str], object],
        plain: Callable[[str | None, str], str],
    ) -> None:
        self.sent: list[Sent] = []
        self.stored = StoredSends(plain)
        self._passed = passed
        self._converter = converter
        self._note = note
        self._transactions: set[EndingTransaction] = set()  # that have begun, and not ended for good
        # By identity of their contexts: middleware may hand one to a task of its own, which nothing else ties to these.
        self._in_middleware: dict[int, list[SendContext]] = {}

    def forget(self) -> None:
        """Know of nothing that was."""
        self.sent.clear()
        self._transactions.clear()
        self.stored.forget()

    @contextmanager
    def above(self, context: SendContext) -> Iterator[list[SendContext]]:
        """A send goes through middleware; what is sent of it comes into the list that is yielded."""
        around, sent = _sent.get(), list[SendContext]()
        _sent.set(sent)
        self._in_middleware[id(context)] = sent
        try:
            yield sent
        finally:
            _sent.set(around)
            del self._in_middleware[id(context)]

    async def see(self, cluster: str | None, context: SendContext, call_next: SendNext) -> SendResult | None:
        """The innermost middleware of sends to a cluster."""
        own = copy.copy(context)  # middleware may pass one context on twice at once
        own.messages = tuple(context.messages)
        self.stored.send_begins()
        try:
            try:
                result = await call_next(own)
            except BaseException:
                self._may_be_sent(cluster, own, context)
                raise
            self._were_sent(cluster, own, context, result)
            return result
        finally:
            context.msg_ids = own.msg_ids
            self.stored.send_has_ended()

    def _were_sent(
        self, cluster: str | None, context: SendContext, above: SendContext, result: SendResult | None
    ) -> None:
        self._has_passed(above)
        stored = self.stored
        ids = context.msg_ids if stored.sees_stores else ()
        if context.transaction is not None:
            self._follow(context.transaction, cluster, context.messages[0], result, is_seen=bool(ids))
            if ids:
                self._expect(cluster, context, result)
        elif context.one_way and ids:
            self._note(f"a one-way send to {of_cluster(cluster)}{context.messages[0].topic} is on its way")
            self._expect(cluster, context, result)
        else:
            results = [None] * len(context.messages) if result is None else results_of(result, len(context.messages))
            for index, (message, its_result) in enumerate(zip(context.messages, results, strict=True)):
                times = stored.times(cluster, ids[index], message.topic) if ids else 1
                for _ in range(max(1, times)):
                    self._has_sent(cluster, message, its_result)

    def _may_be_sent(self, cluster: str | None, context: SendContext, above: SendContext) -> None:
        """A send has failed: it was sent if its broker has stored it all the same, or does so yet."""
        if self.stored.sees_stores:
            before = len(self.sent)
            self._expect(cluster, context, None)
            if len(self.sent) > before:
                self._has_passed(above)

    def _has_passed(self, context: SendContext) -> None:
        """Who sends, above all middleware, is told of his send that something was sent in it."""
        sent = self._in_middleware.get(id(context))
        if sent is None:
            sent = _sent.get()
        if sent is not None:
            sent.append(context)

    def _expect(self, cluster: str | None, context: SendContext, result: SendResult | None) -> None:
        """Have the messages of a send listed when its broker has them, as they are now."""
        for message, msg_id in zip(context.messages, context.msg_ids, strict=False):  # no ids: nothing was sent
            has_sent = partial(self._has_sent, cluster, _as_it_is(message), result)
            self.stored.expect(cluster, msg_id, message.topic, has_sent)

    def _has_sent(self, cluster: str | None, message: Message, result: SendResult | None) -> None:
        sent = Sent(_as_it_is(message), result, self._passed(), self._converter(), cluster)
        self.sent.append(sent)
        self._note(f"sent to {of_cluster(cluster)}{sent}")

    def _follow(
        self,
        transaction: EndingTransaction,
        cluster: str | None,
        message: Message,
        result: SendResult | None,
        *,
        is_seen: bool,
    ) -> None:
        """What is sent in a transaction is sent when that is committed, by its end or because the broker asked.

        ``is_seen``: whether its broker tells when it has the commit.
        """
        self._note(f"a transaction to {of_cluster(cluster)}{message.topic} has begun")
        message = _as_it_is(message)
        committed = False

        def told(state: LocalTransactionState) -> None:
            nonlocal committed
            if transaction not in self._transactions:
                return  # it is one of a test before
            self._note(f"the transaction to {of_cluster(cluster)}{message.topic} has ended: {state.name}")
            if state is LocalTransactionState.COMMIT and not committed and not is_seen:
                committed = True
                self._has_sent(cluster, message, result)
            if state is not LocalTransactionState.UNKNOWN:
                self._transactions.discard(transaction)

        self._transactions.add(transaction)  # it hears what a checker says as long as somebody holds it
        transaction.on_end(told)


def _as_it_is(message: Message) -> Message:
    """A copy of a message, which its sender may change and send again."""
    values = {each.name: getattr(message, each.name) for each in fields(Message)}
    return Message(**{**values, "keys": tuple(message.keys), "properties": dict(message.properties)})
