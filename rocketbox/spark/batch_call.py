"""The call of a listener's function with the rows of a batch: what it is given, and on which thread it runs.

A function that is no coroutine runs on the thread that calls. An async one runs in the application's loop, as its beans
do; the thread that has called, which is the one whose jobs belong to the query, waits meanwhile and does what
``SparkBatch.run`` hands to it. So it is with what a plain function returns and can be awaited, as under a decorator
that hides an ``async def``. A call that has left something behind that nobody has awaited has failed, since the batch
would be committed without it. Whether a batch may begin, and what becomes of one that fails, is told in ``batches``.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal
from anyio.lowlevel import checkpoint_if_cancelled
from pyspark.sql import DataFrame, SparkSession

from rocketbox.bean_methods import BeanMethod
from rocketbox.clock import Clock
from rocketbox.errors import ClientStateError, HandlerError, RocketBoxError
from rocketbox.hints import name_of
from rocketbox.loops import call_soon_from_thread
from rocketbox.safe_repr import safe_repr
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.body_formats import is_foreign
from rocketbox.spark.deliveries import Delivery
from rocketbox.spark.listener_options import SparkListenerOptions
from rocketbox.spark.servers import Servers
from rocketbox.spark.signature import SparkSignature
from rocketbox.template.unawaited import Call, current_call, never_begun, not_awaited

__all__ = ["BatchCall", "FunctionEndedError", "beans_for", "delivery_of"]

ResultT = TypeVar("ResultT")
OWNER = ""
"""Stands for the bean that a method is called on; no parameter is called so."""
Job = Callable[[], None]


class FunctionEndedError(RocketBoxError):
    """A function, or a bean that it takes, raised what would end its thread or the process."""

    def __init__(self, function: str, error: BaseException) -> None:
        super().__init__(
            f"{function} raised {safe_repr(error)}, which is no Exception: its batch has failed, and the service goes "
            "on (app.shutdown() is what ends it)"
        )


class _Jobs:
    """What the thread of a batch is to do, as long as its coroutine runs; ``closed`` says why it takes nothing now."""

    def __init__(self, closed: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed: str | None = closed
        self._lock = threading.Lock()

    def open(self) -> None:
        """Somebody takes them from now on."""
        with self._lock:
            self._closed = None

    def put(self, job: Job) -> None:
        """Raises ClientStateError when nobody will take it."""
        with self._lock:
            if self._closed is not None:
                raise ClientStateError(self._closed)
            self._jobs.put(job)

    def end(self, why: str) -> None:
        """What has been put is still taken."""
        with self._lock:
            self._closed = why
            self._jobs.put(None)

    def take(self) -> Job | None:
        """The next one, waited for; None after the last."""
        return self._jobs.get()


def delivery_of(
    options: SparkListenerOptions,
    signature: SparkSignature,
    clock: Clock,
    send_letters: Callable[[DataFrame, str, Servers], object] | None = None,
) -> Delivery:
    """How a listener's function gets its batches. Raises ConfigurationError for a schema that cannot be columns."""
    return Delivery(
        label=f"Spark listener {name_of(signature.function)}",
        where=signature.where,
        group=options.group,
        schema=options.schema,
        as_=options.as_,
        on_invalid=options.on_invalid,
        clock=clock,
        send_letters=send_letters,
        has_own_bodies=is_foreign(options.source_options),
    )


def beans_for(signature: SparkSignature, provider: Callable[[Any], Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """What gives each argument that is neither the batch nor its session, and the bean that has the method."""
    given = {name: provider(hint) for name, hint in signature.parameters if hint not in (SparkBatch, SparkSession)}
    return given if signature.owner is None else {OWNER: provider(signature.owner), **given}


class BatchCall:
    """Calls one function, on one thread at a time; ``beans`` give its other arguments, ``delivery`` its rows."""

    def __init__(
        self,
        options: SparkListenerOptions,
        signature: SparkSignature,
        *,
        beans: Mapping[str, Callable[[], Any]],
        delivery: Delivery,
    ) -> None:
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        """That of an async function, while it runs."""
        self.handed_over = 0
        """How many calls of ``SparkBatch.run`` have not come back to the loop."""
        self._options = options
        self._signature = signature
        self._method = BeanMethod(signature.function, signature.owner)
        self._beans = beans
        self._needs = {name: hint for name, hint in signature.parameters if hint in (SparkBatch, SparkSession)}
        self._delivery = delivery
        self._awaiting = threading.Lock()
        self._is_awaited = False  # by the loop
        self._may_await = True

    def stop_awaiting(self) -> bool:
        """Give no coroutine to the loop from now on; whether one is there, and has to be cancelled."""
        with self._awaiting:
            self._may_await = False
            return self._is_awaited

    def __call__(
        self,
        rows: DataFrame,
        batch: int,
        attempt: int,
        query_id: str,
        portal: BlockingPortal,
        servers: Servers,
        extent: Mapping[str, tuple[int, int]] | None = None,
    ) -> Any:
        """What the function returns; async functions run in the loop of ``portal``, whose thread is another one.

        ``servers`` are those that the batch was read from, ``extent`` is what it reads of each queue, where that is
        known.

        Raises what the function raises, FunctionEndedError where that is no Exception, HandlerError where it has left
        something behind that nobody has awaited, and InvalidRowError where ``on_invalid`` is ``fail``.
        """
        with self._exits_as_failures():
            session = rows.sparkSession
            jobs = _Jobs("batch.run is for async functions; in this one, call the function itself")
            given = {
                SparkBatch: SparkBatch(
                    id=batch,
                    query_id=query_id,
                    topic=self._options.topic,
                    group=self._options.group,
                    attempt=attempt,
                    spark=session,
                    extent=extent or {},
                    runner=partial(self._run_in, jobs),
                ),
                SparkSession: session,
            }
            beans = {name: bean() for name, bean in self._beans.items()}
            function = self._signature.function
            if self._signature.owner is not None:
                function = self._method.of(beans.pop(OWNER))
            arguments = {**beans, **{name: given[hint] for name, hint in self._needs.items()}}
            with self._delivery.of(rows, batch, servers) as frame:
                call = partial(function, frame, **arguments)
                return self._call_and_await(call, batch, jobs, portal)

    @contextmanager
    def _exits_as_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            raise
        except BaseException as error:
            raise self._ended(error) from error

    def _ended(self, error: BaseException) -> FunctionEndedError:
        return FunctionEndedError(name_of(self._signature.function), error)

    def _call_and_await(self, call: Callable[[], Any], batch: int, jobs: _Jobs, portal: BlockingPortal) -> Any:
        """What the function returns. Raises HandlerError where that, or a send that it has made, is not awaited."""
        made = Call()
        made.about, made.unbegun = None, {}
        token = current_call.set(made)
        try:
            is_async = self._signature.is_async
            result = self._run_async(call, batch, jobs, portal) if is_async else call()
            if not is_async and inspect.isawaitable(result):
                is_async, result = True, self._await(result, batch, jobs, portal)
            who = f"{name_of(self._signature.function)} ({self._signature.where})"
            if inspect.isawaitable(result):
                raise HandlerError(f"{who} returned {_left_behind(result)} without awaiting it: write return await ...")
            if lost := never_begun(made):
                raise HandlerError(not_awaited(lost, who, is_async=is_async))
            return result
        finally:
            made.unbegun = None
            current_call.reset(token)

    def _await(self, awaitable: Awaitable[Any], batch: int, jobs: _Jobs, portal: BlockingPortal) -> Any:
        try:
            return self._run_async(lambda: awaitable, batch, jobs, portal)
        finally:
            _left_behind(awaitable)  # where the loop has not had it

    def _run_async(self, call: Callable[[], Awaitable[Any]], batch: int, jobs: _Jobs, portal: BlockingPortal) -> Any:
        has_ended = f"batch {batch} of Spark listener {self._options.group} has ended, and runs nothing more"

        async def run() -> Any:
            try:
                awaited = call()
                self.coroutine = awaited if inspect.iscoroutine(awaited) else None
                return await awaited
            except (Exception, KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:
                await checkpoint_if_cancelled()  # what the stop cancels stays cancelled
                raise self._ended(error) from error

        with self._awaiting:
            if not self._may_await:
                raise CancelledError
            jobs.open()
            ended = portal.start_task_soon(run)
            self._is_awaited = True
        try:
            ended.add_done_callback(lambda _: jobs.end(has_ended))
            while (job := jobs.take()) is not None:
                job()
            return ended.result()
        finally:
            self._is_awaited, self.coroutine = False, None

    async def _run_in(self, jobs: _Jobs, function: Callable[[], ResultT]) -> ResultT:
        """The result of function, run by whoever takes jobs; what has begun ends, also for a caller that is gone.

        Raises ClientStateError when nobody takes any, and HandlerError for a function that is to be awaited itself.
        """
        result: Future[ResultT] = Future()
        ended, call_soon = anyio.Event(), call_soon_from_thread()

        def job() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)
            call_soon(ended.set)

        self.handed_over += 1
        try:
            jobs.put(job)
            await ended.wait()
        finally:
            self.handed_over -= 1
        if inspect.isawaitable(found := result.result()):
            raise HandlerError(
                f"batch.run is for functions that block, and {_left_behind(found)} was not awaited: write await ... "
                "without batch.run"
            )
        return found


def _left_behind(awaitable: Awaitable[Any]) -> str:
    """The name of something that nobody has awaited; Python warns of it no more."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()
    return name_of(awaitable)
