"""Producer: what a program sends with. Its life, what users call, and the middlewares around it.

How a message becomes a request and gets to a broker is ``sending``'s part.

Source: Apache RocketMQ 5.x ``DefaultMQProducer``, ``DefaultMQProducerImpl.start``, ``shutdown``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Self

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from rocketbox.client.auto_batch import AutoBatch
from rocketbox.client.batches import errors_of, results_of
from rocketbox.client.blocking_sends import BlockingSends
from rocketbox.client.checks import check_group, check_timeout
from rocketbox.client.instance import MQClientInstance, own_or_shared
from rocketbox.client.middleware import SendContext, chain, result_of
from rocketbox.client.options import ClientOptions, ProducerOptions
from rocketbox.client.queue_choice import QueueTarget, check_target
from rocketbox.client.recalls import recall_by_handle
from rocketbox.client.requests import Asker
from rocketbox.client.sending import Sender
from rocketbox.client.service_state import ServiceState
from rocketbox.client.trace import ProducerTrace
from rocketbox.client.trace_dispatcher import TraceCounts
from rocketbox.client.transaction_checks import CheckRoute, TransactionChecker, TransactionCheckOptions
from rocketbox.client.transactions import LocalWork, Transaction, Transactions, TransactionSendResult
from rocketbox.client.tries import Tries
from rocketbox.clock import Clock
from rocketbox.errors import ClientError, ClientStateError, SendManyError
from rocketbox.message import Message, MessageExt, SendResult
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import Network
from rocketbox.safe_repr import also_when_unmade
from rocketbox.tasks import Supervisor

__all__ = ["Producer"]


class Producer:
    """Sends messages as a member of a producer group.

    ``async with Producer("flight-desk", name_server="127.0.0.1:9876") as producer: await producer.send(message)``.
    With ``name_server`` it has a client instance of its own, with ``instance`` it shares one that is started already;
    ``client_options``, ``clock`` and ``network`` are for its own one. Any number of tasks may send at once.

    ``transaction_checker`` says what became of a transaction that a broker asks about (``def`` or ``async def``, from
    the message to a LocalTransactionState), so many at once as ``check_options`` say. Who sends in transactions needs
    one, or several (:meth:`add_transaction_checker`).

    Raises InvalidGroupError for a group that RocketMQ does not take or that another producer of the instance has.
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str] | None = None,
        instance: MQClientInstance | None = None,
        options: ProducerOptions | None = None,
        client_options: ClientOptions | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
        transaction_checker: TransactionChecker | None = None,
        check_options: TransactionCheckOptions | None = None,
    ) -> None:
        check_group(group, "producer")
        self.options = options or ProducerOptions()
        self._instance, self._owns_instance = own_or_shared(
            f"producer {group}", name_server, instance, client_options=client_options, clock=clock, network=network
        )
        check_group(group, "producer", self._instance.namespace)
        self.group = group = self._instance.namespace.unwrap(group)
        self._clock = self._instance.clock
        self._sender = sender = Sender(group, self._instance, self.options)
        sender.is_open = False
        self._state = ServiceState.CREATE_JUST
        self._starting = False
        self._request, self._deliver = sender.request, sender.deliver  # bound once, not with each send
        self.send_prepared = sender.send_prepared
        self._trace = ProducerTrace(group, self._instance, self.options) if self.options.enable_msg_trace else None
        middlewares = self._instance.options.send_middleware
        if self._trace is not None:
            middlewares = (*middlewares, self._trace)  # the innermost: it sees what is sent
        self._auto_batch = AutoBatch(sender, self._instance, self.options) if self.options.auto_batch else None
        self._around = chain(middlewares, self._send_as_said) if middlewares or self._auto_batch is not None else None
        self._asker = Asker(sender, self._instance, middlewares)
        self._blocking: BlockingSends | None = None
        self._transactions = Transactions(group, self._instance, sender, self._send_half)
        if self._trace is not None:
            self._transactions.on_checked = self._trace.checked
        if transaction_checker is not None:
            self.add_transaction_checker(transaction_checker, options=check_options)

    @property
    def instance(self) -> MQClientInstance:
        """The client instance it sends over."""
        return self._instance

    @property
    def trace(self) -> TraceCounts | None:
        """What became of the records of its message trace; None: it has none (``enable_msg_trace``)."""
        return None if self._trace is None else self._trace.counts

    @property
    def service_state(self) -> ServiceState:
        """Where it is in its life. A start that has failed may be repeated; a producer that was stopped stays so."""
        return self._state

    async def __aenter__(self) -> Self:
        if self._starting or self._state not in (ServiceState.CREATE_JUST, ServiceState.START_FAILED):
            state = "starting" if self._starting else self._state.name
            raise ClientStateError(f"producer {self.group} was started before and is {state}; make a new Producer")
        self._starting = True
        try:
            if self._owns_instance:
                await self._instance.__aenter__()
            self._instance.check_running(f"the client instance of producer {self.group}")
            self._instance.register_producer(self.group, self)
        except BaseException:
            self._state = ServiceState.START_FAILED
            raise
        finally:
            self._starting = False
        if self._trace is not None:
            self._trace.start()
        self._sender.open()
        self._state = ServiceState.RUNNING
        self._become_known()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._state is not ServiceState.RUNNING:
            return None  # it has been left already
        self._instance.remoting.check_end(f"producer {self.group}")
        self._sender.close()
        self._state = ServiceState.SHUTDOWN_ALREADY
        self._instance.waiting_requests.end(self.group)
        self._transactions.checkers.close()
        try:
            if self._auto_batch is not None:
                with anyio.CancelScope(shield=True), self._clock.move_on_after(self.options.send_message_timeout):
                    await self._auto_batch.flush()
            await self._instance.unregister_producer(self.group)
        finally:  # a task's own cancel() comes through the shield of the goodbye
            try:
                if self._trace is not None:
                    await self._trace.stop()
            finally:
                handled = await self._instance.__aexit__(kind, error, trace) if self._owns_instance else None
        return handled

    @also_when_unmade
    def __repr__(self) -> str:
        return f"Producer({self.group!r}, {self._state.value})"

    # --- what users call ---------------------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, timeout: float | None = None, queue: QueueTarget | None = None
    ) -> SendResult:
        """Send one message and return what the broker answered, within ``timeout`` seconds over all tries.

        Tries go round the topic's queues, each on another broker than the one that failed before. A message with a
        ``hash_key``, or sent to a ``queue``, is tried on that queue only. ``queue`` may be a function as well, which is
        given the topic's queues and the message and returns one of them, or QueueChoice.RANDOM: begin with any. While
        nothing was sent, because no broker could be connected, tries go on until the time is over.

        Raises InvalidMessageError and NoRouteError: nothing was sent. ConnectError: nothing was sent.
        SendTimeoutError, ConnectionClosedError: it may have been stored. NotDurableError: it is stored, do not send it
        again. BrokerError: the broker refused it. ClientError: nothing was sent, as ``timeout`` is 0 or less, or as it
        was over before a large body was compressed.
        """
        if not self._sender.is_open:
            await self._sender.must_be_open()
        options = self.options
        seconds = options.send_message_timeout if timeout is None else check_timeout(timeout)
        retries = options.retry_times_when_send_failed
        if self._around is not None:
            return result_of(await self._around(SendContext(self.group, [message], seconds, retries, queue)))
        request = self._request(message)
        tries = Tries(self._clock.monotonic(), seconds, retries)
        to = None if queue is None else await self._sender.queue_for(queue, message, tries)
        return result_of(await self._deliver(request, tries, to, message.hash_key))

    def send_from_thread(self, what: str, message: Message, *, timeout: float | None = None) -> SendResult:
        """Send one message from a thread in which no event loop runs, and wait there.

        ``what`` is the call's name, for errors. Raises as :meth:`send`, ForkedError, and ClientStateError where a loop
        runs, which it would stop, and when the client is closed before the answer has come: it may be stored then.
        """
        self._instance.calls.check(what)
        if self._around is not None or self._instance.options.hooks:  # which may look at the caller's context
            return self._instance.calls.call(what, self.send, message, timeout=timeout)
        sends = self._blocking
        if sends is None:
            retries = self.options.retry_times_when_send_failed
            sends = self._blocking = BlockingSends(self._sender, self._instance, retries)
        return sends.send(
            what, message, self.options.send_message_timeout if timeout is None else check_timeout(timeout)
        )

    async def request(
        self, message: Message, *, timeout: float | None = None, queue: QueueTarget | None = None
    ) -> MessageExt:
        """Send one message and return the reply to it, within ``timeout`` seconds for both (``send_message_timeout``).

        Somebody replies who consumes the topic: a listener that returns a value, a handler that calls
        :meth:`PushConsumer.reply`, or a client of Apache's. If several groups do, the first reply counts.

        Raises ReplyTimeoutError: the request is stored, and may have been carried out or still be. ReplyError: its
        consumer has failed with an exception. ClientStateError: the producer was closed meanwhile. What :meth:`send`
        raises: the same as there, but for NotDurableError, for a reply says enough.
        """
        seconds = self.options.send_message_timeout if timeout is None else check_timeout(timeout)
        return await self._asker.ask(message, seconds, queue)

    async def send_one_way(self, message: Message, *, queue: QueueTarget | None = None) -> None:
        """Send one message without an answer: a broker that fails loses it, and nobody is told.

        A broker that cannot be connected is no loss: others are tried for ``send_message_timeout``, then ConnectError
        is raised.
        """
        if not self._sender.is_open:
            await self._sender.must_be_open()
        options = self.options
        seconds, retries = options.send_message_timeout, options.retry_times_when_send_failed
        if self._around is not None:
            await self._around(SendContext(self.group, [message], seconds, retries, queue, one_way=True))
            return
        request = self._request(message)
        request.one_way = True
        if queue is None and message.hash_key is None and self._sender.write(request):
            return
        tries = Tries(self._clock.monotonic(), seconds, retries)
        to = None if queue is None else await self._sender.queue_for(queue, message, tries)
        await self._deliver(request, tries, to, message.hash_key)

    async def send_batch(
        self, messages: Iterable[Message], *, timeout: float | None = None, queue: QueueTarget | None = None
    ) -> list[SendResult]:
        """Send messages of one topic together and return the result of each, in order.

        They go in as few requests as max_message_size allows, one after another. All messages of a request are stored,
        one behind the other in a queue, or none. The requests of a batch may go to different queues, unless its
        messages have a ``hash_key`` or there is a ``queue``. ``timeout`` is that of each request.

        Raises InvalidMessageError, and nothing was sent, when there are none, when they differ in topic,
        ``wait_store_ok`` or ``hash_key``, and when one has a delay level, is to be compressed or goes to a retry topic.
        What fails raises as :meth:`send` does where it is one request; where it is several, SendManyError with every
        result and error: requests behind one that failed are not sent.
        """
        await self._sender.must_be_open()
        batch = list(messages)
        options = self.options
        seconds = options.send_message_timeout if timeout is None else check_timeout(timeout)
        requests = self._sender.batch_requests(batch)
        results: list[SendResult] = []
        for part, request in requests:
            try:
                result = await self._send_part(batch[part.start : part.end], request, seconds, queue, alone=part.alone)
            except Exception as error:
                if len(requests) == 1:
                    raise
                unsent = ClientError("it was not sent: a request of the batch before it has failed")
                told = errors_of(error, part.end - part.start)
                raise SendManyError([*results, *told, *[unsent] * (len(batch) - part.end)]) from error
            results += results_of(result, part.end - part.start)
        return results

    async def _send_part(
        self,
        messages: Sequence[Message],
        request: SendRequest,
        timeout: float,
        queue: QueueTarget | None,
        *,
        alone: bool,
    ) -> SendResult:
        """One request of a batch; one ``alone`` is of a message that is too large to stand in a batch."""
        retries = self.options.retry_times_when_send_failed
        if self._around is not None:
            context = SendContext(self.group, messages, timeout, retries, queue, batch=not alone)
            return result_of(await self._around(context))
        tries = Tries(self._clock.monotonic(), timeout, retries)
        to = None if queue is None else await self._sender.queue_for(queue, messages[0], tries)
        return result_of(await self._deliver(request, tries, to, messages[0].hash_key))

    async def send_many(
        self, messages: Iterable[Message], *, timeout: float | None = None, queue: QueueTarget | None = None
    ) -> list[SendResult]:
        """Send messages each on its own, up to ``send_many_window`` of them in flight, and return results in order.

        ``timeout`` is that of each message, which is tried ``retry_times_when_send_async_failed`` more times. ``queue``
        is as for :meth:`send`; a function is asked for each message. They are not stored in the order in which they
        stand, not even in one queue. All are tried whatever happens to others; raises SendManyError with every result
        and error when one of them fails, InvalidMessageError for what can be no ``queue``: then nothing was sent.
        """
        await self._sender.must_be_open()
        batch = list(messages)
        seconds = self.options.send_message_timeout if timeout is None else check_timeout(timeout)
        retries = self.options.retry_times_when_send_async_failed
        if queue is not None:
            check_target(queue)
        if self._around is not None:
            results = await self._send_many_around(batch, seconds, retries, queue)
        else:
            results = await self._sender.deliver_many(batch, seconds, retries, queue)
        sent = [result for result in results if isinstance(result, SendResult)]
        if len(sent) < len(results):
            raise SendManyError(results)
        return sent

    def transaction(
        self, message: Message, *, timeout: float | None = None, queue: QueueTarget | None = None
    ) -> Transaction:
        """A message that consumers get only if the block that follows is left without an exception::

            async with producer.transaction(Message("orders", body)) as transaction:
                ...  # the work: a database's transaction, mostly

        Entering stores a half message that nobody gets, raising as :meth:`send` does; InvalidMessageError also for a
        delay, and when no transaction checker is for the message. See :class:`Transaction` for how it ends.
        """
        return Transaction(self._transactions, message, None if timeout is None else check_timeout(timeout), queue)

    async def send_in_transaction(
        self, message: Message, work: LocalWork, *, timeout: float | None = None, queue: QueueTarget | None = None
    ) -> TransactionSendResult:
        """Store a half message, call ``work(transaction)``, and commit or roll back as it says.

        ``work`` is an ``async def``, or a ``def``, which is called in a thread; it returns a LocalTransactionState.
        What it raises is raised, and leaves the transaction to the checker: work that knows that it was not done
        returns ROLLBACK. Raises as :meth:`transaction` does.
        """
        seconds = None if timeout is None else check_timeout(timeout)
        return await self._transactions.run(message, work, seconds, queue)

    def add_transaction_checker(
        self,
        checker: TransactionChecker,
        *,
        topic: str | None = None,
        tags: Collection[str] | None = None,
        options: TransactionCheckOptions | None = None,
    ) -> CheckRoute:
        """Have ``checker`` say what became of transactions to ``topic`` (None: to those that no other is for), and of
        them those with one of ``tags`` (None: with any, or none). Its ``remove()`` takes it away.

        Raises ClientStateError when another checker is for the same, in whole or in part.
        """
        route = self._transactions.checkers.add(checker, topic=topic, tags=tags, options=options)
        if self._state is ServiceState.RUNNING:
            self._become_known()
        return route

    def _become_known(self) -> None:
        """Have brokers know this producer though it has sent nothing: they ask about transactions of an earlier run."""
        for topic in self._topics_of_checkers():
            self._instance.seek_route(topic)

    def _topics_of_checkers(self) -> set[str]:
        return self._transactions.checkers.topics(otherwise=self.options.create_topic_key)

    async def _send_half(
        self, transaction: Transaction, timeout: float | None, queue: QueueTarget | None
    ) -> SendResult:
        message = transaction.message
        options = self.options
        seconds = options.send_message_timeout if timeout is None else timeout
        retries = options.retry_times_when_send_failed
        if self._around is not None:
            context = SendContext(self.group, [message], seconds, retries, queue, transaction=transaction)
            return result_of(await self._around(context))
        request = self._transactions.request(message)
        tries = Tries(self._clock.monotonic(), seconds, retries)
        to = None if queue is None else await self._sender.queue_for(queue, message, tries)
        return result_of(await self._deliver(request, tries, to, message.hash_key))

    def check_transaction(self, connection: Connection, request: RemotingCommand, message: MessageExt) -> None:
        """A broker asks what became of a transaction; it is told when a checker has looked."""
        self._transactions.check(connection, request, message)

    async def _send_many_around(
        self, batch: Sequence[Message], timeout: float, retries: int, target: QueueTarget | None
    ) -> list[SendResult | Exception]:
        """Many under middlewares, which are coroutines: each place in the window has a task."""
        assert self._around is not None
        around = self._around
        outcomes: list[SendResult | Exception | None] = [None] * len(batch)
        left = iter(enumerate(batch))

        async def work() -> None:
            for index, message in left:
                context = SendContext(self.group, [message], timeout, retries, target)
                try:
                    outcomes[index] = result_of(await around(context))
                except Exception as error:  # whatever it is: a message without an outcome would be lost silently
                    outcomes[index] = error
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    await checkpoint_if_cancelled()  # this send_many is cancelled; else a middleware was, or has exited
                    ended = ClientError(f"the send ended with {error!r}, raised inside a middleware")
                    ended.__cause__ = error
                    outcomes[index] = ended

        async with Supervisor(f"send_many of {self.group}", self._clock) as workers:
            # Workers instead of a task a message: a task costs as much as the send (performance notes).
            tasks = [
                workers.start(f"worker {number}", work, restart=False)
                for number in range(min(self.options.send_many_window, len(batch)))
            ]
            for task in tasks:
                await task.wait()
        unsent = ClientError("the send has not ended: what was to do it was ended from outside; it may be stored")
        return [unsent if outcome is None else outcome for outcome in outcomes]

    async def recall(self, handle: str | None, *, timeout: float | None = None) -> str:
        """Have a message that waits for its time not be delivered; its msg_id. ``handle`` is its ``recall_handle``.

        When this returns, the message never comes; a second recall returns as the first. It takes a broker from 5.3 on
        that allows it (Apache's: ``recallMessageEnable=true``). Raises ClientError for what is no handle, BrokerError
        when it is too late (604) or recalls are switched off (16), RequestTimeoutError and ConnectionClosedError: it
        may have been recalled, which another recall tells.
        """
        await self._sender.must_be_open()
        seconds = self.options.send_message_timeout if timeout is None else check_timeout(timeout)
        recalling = recall_by_handle(self._instance, self.group, handle, seconds)
        return await (recalling if self._trace is None else self._trace.recall(handle, recalling))

    def topics_in_use(self) -> set[str]:
        """The topics that it has sent to since this was asked last, those that replies come by, and those that its
        transaction checkers are for.
        """
        return self._sender.lanes.topics_in_use() | self._asker.topics_in_use() | self._topics_of_checkers()

    async def _send_as_said(self, context: SendContext) -> SendResult | None:
        """The innermost of the chain: send what the middlewares have left of a context."""
        messages = list(context.messages)
        context.msg_ids = ()  # a middleware may pass it on a second time
        timeout = context.timeout
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ClientError(f"a middleware left timeout={timeout!r} in its context; a send has more than 0 seconds")
        tries = Tries(self._clock.monotonic(), timeout, context.retries)
        if context.batch:
            request = self._sender.batch_request(messages)
            context.msg_ids = tuple(request.msg_id.split(","))
        else:
            if len(messages) != 1:
                raise ClientError(f"a send is of one message; a middleware left {len(messages)} in its context")
            is_half = context.transaction is not None
            joining = self._auto_batch
            if joining is not None and not is_half and not context.one_way and joining.takes(messages[0]):
                to = None if context.queue is None else await self._sender.queue_for(context.queue, messages[0], tries)
                began = tries.deadline - timeout
                sent = await joining.send(messages[0], began, timeout, context.retries, to, context)
                if sent is not None:
                    return sent
            request = (self._transactions.request if is_half else self._request)(messages[0])
            context.msg_ids = (request.msg_id,)
            request.one_way = context.one_way and not is_half
        to = None if context.queue is None else await self._sender.queue_for(context.queue, messages[0], tries)
        return await self._deliver(request, tries, to, messages[0].hash_key)
