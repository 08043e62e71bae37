"""Message trace of a producer or consumer: which records its sends and its handlers' calls make.

Both are middlewares. That of sends is the innermost, so it sees what is really sent; that of calls is the outermost,
so it sees what becomes of the messages in the end. Sending the records is ``trace_dispatcher``'s part, their form
``protocol.trace_records``'.

A record is made of what a broker has answered: one-way sends, and sends that failed, have none. Messages whose broker
says ``TRACE_ON`` false have none either, nor have those to and from the trace topic.

Source: Apache RocketMQ 5.5 ``SendMessageTraceHookImpl``, ``ConsumeMessageTraceHookImpl``,
``EndTransactionTraceHookImpl``, ``DefaultRecallMessageTraceHook``. Unlike there: of a batch each message has a record
of its own, so that it is found by its id; each message of a handler's batch has its own outcome; messages of brokers
that note no region, as those of 4.9 do, are traced when they are consumed as well; recalls need no switch of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from anyio.lowlevel import checkpoint_if_cancelled

from rocketbox.client.batches import results_of
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.middleware import ConsumeContext, ConsumeNext, EndingTransaction, SendContext, SendNext
from rocketbox.client.options import ConsumerOptions, ProducerOptions
from rocketbox.client.outcomes import Failures, Outcomes, failures_of_error, failures_of_result, signal_in
from rocketbox.client.trace_dispatcher import TraceCounts, TraceDispatcher, TracedRole
from rocketbox.errors import BatchFailed, BrokerError, NotDurableError, Reject, RemoteProtocolError, RetryLater
from rocketbox.message import LocalTransactionState, Message, MessageExt, Property, SendResult, SendStatus
from rocketbox.protocol.codes import MASTER_ID
from rocketbox.protocol.recall_handles import decode_recall_handle
from rocketbox.protocol.trace_records import (
    ConsumeCode,
    EndTransactionRecord,
    PubRecord,
    RecallRecord,
    SubAfterRecord,
    SubBeforeRecord,
    TracedType,
)

__all__ = ["ConsumerTrace", "ProducerTrace"]

DEFAULT_REGION = "DefaultRegion"  # where no broker says another


class ProducerTrace:
    """The trace of one producer; called, it is the middleware of its sends."""

    def __init__(self, group: str, instance: MQClientInstance, options: ProducerOptions) -> None:
        self._group = group
        self._instance = instance
        self._clock = instance.clock
        self._dispatcher = TraceDispatcher(TracedRole.PRODUCER, group, instance, options)
        self.start, self.stop = self._dispatcher.start, self._dispatcher.stop

    @property
    def counts(self) -> TraceCounts:
        return self._dispatcher.counts

    async def __call__(self, context: SendContext, call_next: SendNext, /) -> SendResult | None:
        if context.one_way and context.transaction is None:
            return await call_next(context)
        timestamp_ms, began = self._clock.time_ms(), self._clock.monotonic()
        try:
            result = await call_next(context)
        except NotDurableError as error:  # it is stored all the same
            self._note(context, error.result, timestamp_ms, began)
            raise
        if result is not None:
            self._note(context, result, timestamp_ms, began)
        return result

    def _note(self, context: SendContext, result: SendResult, timestamp_ms: int, began: float) -> None:
        try:
            self._sent(context, result, timestamp_ms, began)
        except RemoteProtocolError:
            return  # a garbled answer: the message is stored all the same
        except Exception as error:  # as well; who heard of it would send it again
            self._dispatcher.cannot_add(len(context.messages), error)

    def _sent(self, context: SendContext, result: SendResult, timestamp_ms: int, began: float) -> None:
        messages = list(context.messages)
        topic = self._instance.namespace.unwrap(messages[0].topic)
        if not result.trace_on or self._dispatcher.is_own(topic):
            return
        cost_ms = round((self._clock.monotonic() - began) * 1000)
        store_host = self._store_host(result.broker_name)
        results = results_of(result, len(messages)) if context.batch else [result]
        for message, each in zip(messages, results, strict=True):
            self._dispatcher.add(
                PubRecord(
                    timestamp_ms=timestamp_ms,
                    region_id=result.region_id,
                    group=self._group,
                    topic=topic,
                    msg_id=each.msg_id,
                    tags=message.tag,
                    keys=_keys(message),
                    store_host=store_host,
                    body_length=len(message.body),
                    cost_ms=cost_ms,
                    type=_type(message, context.transaction),
                    offset_msg_id=_offset_msg_id(each),
                    success=each.status is SendStatus.SEND_OK,
                )
            )
        if (transaction := context.transaction) is not None:
            self._follow(transaction, messages[0], topic, result)

    def _follow(self, transaction: EndingTransaction, message: Message, topic: str, result: SendResult) -> None:
        """Tell how a transaction ends: what comes of a broker's question is told by :meth:`checked`."""

        def ended(state: LocalTransactionState) -> None:
            if not transaction.from_check:
                self._ended(
                    topic, result.msg_id, message.tag, _keys(message),
                    self._store_host(result.broker_name), result.transaction_id or result.msg_id, state,
                    region_id=result.region_id, from_check=False,
                )  # fmt: skip

        transaction.on_end(ended)

    def checked(self, message: MessageExt, address: str, state: LocalTransactionState) -> None:
        """A broker that has asked what became of a transaction is being told."""
        properties = message.properties
        if properties.get(Property.TRACE_ON) != "false" and not self._dispatcher.is_own(message.topic):
            self._ended(
                message.topic, message.msg_id, message.tag, properties.get(Property.KEYS), address,
                message.transaction_id, state, region_id=properties.get(Property.MSG_REGION) or DEFAULT_REGION,
                from_check=True,
            )  # fmt: skip

    def _ended(
        self,
        topic: str,
        msg_id: str,
        tags: str | None,
        keys: str | None,
        store_host: str | None,
        transaction_id: str | None,
        state: LocalTransactionState,
        *,
        region_id: str,
        from_check: bool,
    ) -> None:
        self._dispatcher.add(
            EndTransactionRecord(
                timestamp_ms=self._clock.time_ms(), region_id=region_id, group=self._group, topic=topic, msg_id=msg_id,
                tags=tags, keys=keys, store_host=store_host, transaction_id=transaction_id, state=state,
                from_check=from_check,
            )
        )  # fmt: skip

    async def recall(self, handle: str | None, recalling: Awaitable[str]) -> str:
        """Await a recall, and tell what the broker has answered to it."""
        try:
            msg_id = await recalling
        except BrokerError:
            self._recalled(handle, success=False)
            raise
        self._recalled(handle, success=True)
        return msg_id

    def _recalled(self, text: str | None, *, success: bool) -> None:
        assert text is not None, "a broker was asked about it"
        handle = decode_recall_handle(text)
        topic = self._instance.namespace.unwrap(handle.topic)
        if not self._dispatcher.is_own(topic):
            self._dispatcher.add(
                RecallRecord(
                    timestamp_ms=self._clock.time_ms(), region_id=DEFAULT_REGION, group=self._group, topic=topic,
                    msg_id=handle.msg_id, success=success,
                )
            )  # fmt: skip

    def _store_host(self, broker_name: str) -> str | None:
        return self._instance.routes.brokers.get(broker_name, {}).get(MASTER_ID)


def _keys(message: Message) -> str | None:
    return " ".join(message.keys) if message.keys else None


def _type(message: Message, transaction: EndingTransaction | None) -> TracedType:
    if transaction is not None:
        return TracedType.HALF
    if message.delay_level or message.delay is not None or message.deliver_at is not None:
        return TracedType.DELAY
    return TracedType.NORMAL


def _offset_msg_id(result: SendResult) -> str | None:
    try:
        return result.offset_msg_id
    except RemoteProtocolError:  # the message is stored all the same
        return None


class ConsumerTrace:
    """The trace of one consumer; called, it is the middleware of its handlers' calls."""

    def __init__(self, group: str, instance: MQClientInstance, options: ConsumerOptions) -> None:
        self._group = group
        self._instance = instance
        self._consume_timeout = options.consume_timeout
        self._dispatcher = TraceDispatcher(TracedRole.CONSUMER, group, instance, options)
        self.start, self.stop = self._dispatcher.start, self._dispatcher.stop

    @property
    def counts(self) -> TraceCounts:
        return self._dispatcher.counts

    async def __call__(self, context: ConsumeContext, call_next: ConsumeNext, /) -> Outcomes:
        messages = list(context.messages)
        traced = [
            message
            for message in messages
            if message.properties.get(Property.TRACE_ON) != "false" and not self._dispatcher.is_own(message.topic)
        ]
        if not traced:
            return await call_next(context)
        call = _Call(self._group, self._instance, self._dispatcher, traced, len(messages))
        try:
            outcomes = await call_next(context)
        except Exception as error:
            code = ConsumeCode.FAILED if _is_signal(error) else ConsumeCode.EXCEPTION
            call.ended(failures_of_error(messages, error), code)
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if call.seconds >= self._consume_timeout:
                call.ended([(message, TimeoutError()) for message in messages], ConsumeCode.TIME_OUT)
                raise
            await checkpoint_if_cancelled()  # the consumer's stop is no outcome; but what a handler itself raised is
            call.ended(failures_of_error(messages, RuntimeError(repr(error))), ConsumeCode.EXCEPTION)
            raise
        call.ended(failures_of_result(messages, outcomes), ConsumeCode.FAILED)
        return outcomes


class _Call:
    """One call of a handler with ``count`` messages: the records of those that are traced, before and after it."""

    def __init__(
        self, group: str, instance: MQClientInstance, dispatcher: TraceDispatcher, traced: Sequence[MessageExt],
        count: int,
    ) -> None:  # fmt: skip
        self._dispatcher = dispatcher
        self._clock = clock = instance.clock
        self._began = clock.monotonic()
        self._count = count
        timestamp_ms = clock.time_ms()
        request_id = instance.unique_ids.next(timestamp_ms)
        self._records = []
        for message in traced:
            properties = message.properties
            record = SubBeforeRecord(
                timestamp_ms=timestamp_ms, region_id=properties.get(Property.MSG_REGION) or DEFAULT_REGION, group=group,
                request_id=request_id, msg_id=message.msg_id, retry_times=message.reconsume_times,
                keys=properties.get(Property.KEYS),
            )  # fmt: skip
            self._records.append((message, record))
            dispatcher.add(record)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock.monotonic() - self._began

    def ended(self, failures: Failures, code: ConsumeCode) -> None:
        """``code`` is that of the messages that failed."""
        failed = {id(message) for message, _ in failures}
        timestamp_ms, cost_ms = self._clock.time_ms(), int(self.seconds * 1000 / self._count)
        for message, before in self._records:
            is_failed = id(message) in failed
            self._dispatcher.add(
                SubAfterRecord(
                    timestamp_ms=timestamp_ms, region_id=before.region_id, group=before.group,
                    request_id=before.request_id, msg_id=before.msg_id, cost_ms=cost_ms, success=not is_failed,
                    keys=before.keys, code=code if is_failed else ConsumeCode.SUCCESS,
                )
            )  # fmt: skip


def _is_signal(error: Exception) -> bool:
    return isinstance(signal_in(error), Reject | RetryLater | BatchFailed)
