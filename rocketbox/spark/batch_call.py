"""The call of a listener's function with the rows of a batch: what it is given, and on which thread it runs.

A function that is no coroutine runs on the thread that calls. An async one runs in the application's loop, as its beans
do; the thread that has called, which is the one whose jobs belong to the query, waits meanwhile and does what
``SparkBatch.run`` hands to it. Whether a batch may begin, and what becomes of one that fails, is told in ``batches``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal
from anyio.lowlevel import checkpoint_if_cancelled
from pyspark.sql import DataFrame, SparkSession

from rocketbox.clock import Clock
from rocketbox.errors import ClientStateError, RocketBoxError
from rocketbox.loops import call_soon_from_thread
from rocketbox.safe_repr import safe_repr
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.body_formats import is_foreign
from rocketbox.spark.deliveries import Delivery
from rocketbox.spark.listener_options import SparkListenerOptions
from rocketbox.spark.servers import Servers
from rocketbox.spark.signature import SparkSignature

__all__ = ["BatchCall", "FunctionEndedError", "beans_for", "delivery_of"]

ResultT = TypeVar("ResultT")
Job = Callable[[], None]


class FunctionEndedError(RocketBoxError):
    """A function, or a bean that it takes, raised what would end its thread or the process."""

    def __init__(self, function: str, error: BaseException) -> None:
        super().__init__(
            f"{function} raised {safe_repr(error)}, which is no Exception: its batch has failed, and the service goes "
            "on (app.shutdown() is what ends it)"
        )


class _Jobs:
    """What the thread of a batch is to do, as long as its function runs; ``ended`` says why it takes nothing more."""

    def __init__(self, ended: str | None) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ended = ended
        self._lock = threading.Lock()

    def put(self, job: Job) -> None:
        """Raises ClientStateError when nobody will take it."""
        with self._lock:
            if self._ended is not None:
                raise ClientStateError(self._ended)
            self._jobs.put(job)

    def end(self, why: str) -> None:
        """What has been put is still taken."""
        with self._lock:
            self._ended = why
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
        label=f"Spark listener {signature.function.__qualname__}",
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
    """What gives each argument that is neither the batch nor its session."""
    return {name: provider(hint) for name, hint in signature.parameters if hint not in (SparkBatch, SparkSession)}


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
        self._beans = beans
        self._needs = {name: hint for name, hint in signature.parameters if hint in (SparkBatch, SparkSession)}
        self._delivery = delivery

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

        Raises what the function raises, FunctionEndedError where that is no Exception, and InvalidRowError where
        ``on_invalid`` is ``fail``.
        """
        try:
            return self._call(rows, batch, attempt, query_id, portal, servers, extent or {})
        except Exception:
            raise
        except BaseException as error:
            raise self._ended(error) from error

    def _ended(self, error: BaseException) -> FunctionEndedError:
        return FunctionEndedError(self._signature.function.__qualname__, error)

    def _call(
        self,
        rows: DataFrame,
        batch: int,
        attempt: int,
        query_id: str,
        portal: BlockingPortal,
        servers: Servers,
        extent: Mapping[str, tuple[int, int]],
    ) -> Any:
        session = rows.sparkSession
        is_async = self._signature.is_async
        jobs = _Jobs(None if is_async else "batch.run is for async functions; in this one, call the function itself")
        given = {
            SparkBatch: SparkBatch(
                id=batch,
                query_id=query_id,
                topic=self._options.topic,
                group=self._options.group,
                attempt=attempt,
                spark=session,
                extent=extent,
                runner=partial(self._run_in, jobs),
            ),
            SparkSession: session,
        }
        beans = {name: bean() for name, bean in self._beans.items()}
        arguments = {**beans, **{name: given[hint] for name, hint in self._needs.items()}}
        with self._delivery.of(rows, batch, servers) as frame:
            call = partial(self._signature.function, frame, **arguments)
            return self._run_async(call, batch, jobs, portal) if is_async else call()

    def _run_async(
        self, call: Callable[[], Coroutine[Any, Any, Any]], batch: int, jobs: _Jobs, portal: BlockingPortal
    ) -> Any:
        has_ended = f"batch {batch} of Spark listener {self._options.group} has ended, and runs nothing more"

        async def run() -> Any:
            try:
                self.coroutine = call()
                return await self.coroutine
            except (Exception, KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:
                await checkpoint_if_cancelled()  # what the stop cancels stays cancelled
                raise self._ended(error) from error

        try:
            ended = portal.start_task_soon(run)
            ended.add_done_callback(lambda _: jobs.end(has_ended))
            while (job := jobs.take()) is not None:
                job()
            return ended.result()
        finally:
            self.coroutine = None

    async def _run_in(self, jobs: _Jobs, function: Callable[[], ResultT]) -> ResultT:
        """The result of function, run by whoever takes jobs; what has begun ends, also for a caller that is gone.

        Raises ClientStateError when nobody takes any.
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
        return result.result()
