"""Runs ``@rocketmq_spark_listener`` functions: one streaming query each, restarted when it fails, drained at the stop.

The query reads by the data source ``rocketmq`` and calls the function by ``foreachBatch``, in this process: the
application's beans are at hand. Spark's checkpoint decides what is read next; the function is called at least once for
each micro-batch, and the same batch has the same id and offsets when it comes again.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from types import TracebackType
from typing import Any, Literal, Self

import anyio
from anyio.from_thread import BlockingPortal
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rocketbox.blocking import WorkerPool
from rocketbox.clock import Clock
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.hints import UnresolvedHintError, hint_of, parameters_of, place_of
from rocketbox.listeners import ContainerState, ContainerStatus
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.deliveries import FORMS, Delivery, form_of
from rocketbox.spark.java import JavaNotFoundError
from rocketbox.spark.listener_source import rows_of_a_task
from rocketbox.spark.paths import checkpoint_location
from rocketbox.spark.query_options import OnInvalidBody, RowForm
from rocketbox.spark.session import SessionLostError, SparkRuntime, log_query_errors
from rocketbox.tasks import Supervisor

__all__ = [
    "SparkListenerContainer",
    "SparkListenerOptions",
    "SparkListenerState",
    "SparkSignature",
    "read_spark_signature",
]

_log = logging.getLogger(__name__)

FIRST_BACKOFF = 1.0  # seconds until a failed query is started again; doubles up to LONGEST_BACKOFF
LONGEST_BACKOFF = 60.0
POLL = 0.2  # seconds between two looks at the query: Spark offers nothing that could be awaited
COMMIT_TIMEOUT, COMMIT_POLL = 5.0, 0.02  # seconds; how long a stop waits for Spark to commit the last batch


@dataclass(frozen=True, kw_only=True)
class SparkListenerOptions:
    """Everything about one listener, in its final types; ``trigger`` is the pause from batch to batch.

    ``name`` is what ``app.listeners`` knows it by in its ``cluster``; without one, its group.
    """

    topic: str
    group: str
    name_server: str
    checkpoint: str
    name: str | None = None
    cluster: str | None = None
    selector_expression: str = "*"
    schema: Any = None
    trigger: timedelta | Literal["available_now"] = timedelta(seconds=1)
    max_messages: int | None = None
    starting_offsets: str = "group"
    source_options: Mapping[str, str] = field(default_factory=dict)
    as_: RowForm = RowForm.SPARK
    on_invalid: OnInvalidBody = OnInvalidBody.COLUMN


class SparkListenerState(Enum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    UNAVAILABLE = "no Java"
    FAILED = "failed"  # by what no restart mends
    FINISHED = "finished"
    STOPPED = "stopped"


_STATES = {
    SparkListenerState.STARTING: (ContainerStatus.STARTING, False),
    SparkListenerState.RUNNING: (ContainerStatus.RUNNING, True),
    SparkListenerState.RESTARTING: (ContainerStatus.FAILED, False),
    SparkListenerState.UNAVAILABLE: (ContainerStatus.FAILED, False),
    SparkListenerState.FAILED: (ContainerStatus.FAILED, False),
    SparkListenerState.FINISHED: (ContainerStatus.FINISHED, True),
    SparkListenerState.STOPPED: (ContainerStatus.STOPPED, False),
}
"""What each is to health, and whether the listener does its work."""

ENDED = frozenset(SparkListenerState) - {
    SparkListenerState.STARTING,
    SparkListenerState.RUNNING,
    SparkListenerState.RESTARTING,
}


@dataclass(frozen=True)
class SparkSignature:
    """What the function takes after its DataFrame: for each parameter, SparkBatch, SparkSession, or a bean's type."""

    function: Callable[..., Any]
    where: str
    is_async: bool
    parameters: tuple[tuple[str, Any], ...]

    @property
    def beans(self) -> tuple[Any, ...]:
        return tuple(hint for _, hint in self.parameters if hint not in (SparkBatch, SparkSession))


def read_spark_signature(function: Callable[..., Any], as_: RowForm = RowForm.SPARK) -> SparkSignature:
    """Look at the function's parameters. Raises ConfigurationError when they cannot be bound, or not to ``as_``."""
    where = place_of(function)
    name = getattr(function, "__qualname__", str(function))

    def refuse(what: str) -> ConfigurationError:
        return ConfigurationError(
            Finding(
                f"Spark listener {name}: {what}",
                where,
                "write it as def name(rows: DataFrame, batch: SparkBatch, ...beans by their type)",
            )
        )

    parameters = parameters_of(function)
    if not parameters:
        raise refuse("it takes no parameters, and the first one gets the DataFrame")
    hints = []
    for parameter in parameters:
        try:
            hints.append(hint_of(function, parameter))
        except UnresolvedHintError as error:
            raise refuse(str(error)) from None
    if hints[0] is not inspect.Parameter.empty and (asked := form_of(hints[0])) != as_:
        first = parameters[0].name
        if asked is None:
            raise refuse(f"its first parameter {first!r} is not a DataFrame but {hints[0]!r}")
        is_one = f"its first parameter {first!r} is one of {FORMS[asked][0]}"
        raise refuse(f"{is_one}, and as_ is {as_.value!r}; say as_={asked.value!r}")
    rest = []
    for parameter, hint in zip(parameters[1:], hints[1:], strict=True):
        if hint is inspect.Parameter.empty:
            if parameter.default is inspect.Parameter.empty:
                raise refuse(f"parameter {parameter.name!r} has no type")
            continue
        rest.append((parameter.name, hint))
    return SparkSignature(function, where, inspect.iscoroutinefunction(function), tuple(rest))


class _StoppingError(Exception):
    """Raised into Spark so that a batch which begins during the stop is not committed."""


class SparkListenerContainer:
    """One function and its query. Entering starts the query in the background; leaving drains and stops it."""

    def __init__(
        self,
        options: SparkListenerOptions,
        signature: SparkSignature,
        *,
        runtime: SparkRuntime,
        provider: Callable[[Any], Callable[[], Any]],
        clock: Clock,
        drain_timeout: float = 15.0,
        lines: Sequence[str] = (),
    ) -> None:
        self.options = options
        self.signature = signature
        self.status = SparkListenerState.STARTING
        self.error: BaseException | None = None
        """What ended the query last; None again as soon as a batch succeeds."""
        self._runtime = runtime
        self._clock = clock
        self._drain_timeout = drain_timeout
        self._lines = tuple(lines)
        self._beans = {
            name: provider(hint) for name, hint in signature.parameters if hint not in (SparkBatch, SparkSession)
        }
        self._needs = {name: hint for name, hint in signature.parameters if hint in (SparkBatch, SparkSession)}
        self._delivery = Delivery(
            label=f"Spark listener {signature.function.__qualname__}",
            where=signature.where,
            group=options.group,
            schema=options.schema,
            as_=options.as_,
            on_invalid=options.on_invalid,
            clock=clock,
        )
        self._stack = AsyncExitStack()
        self._stopping = False
        self._abandoned = False
        self._idle = threading.Event()
        self._idle.set()
        self._attempts: tuple[int, int] = (-1, 0)  # batch id, how often it was begun
        self._query: StreamingQuery | None = None
        self._batch_error: BaseException | None = None
        self._done = -1  # the id of the last batch of this query that the function has done

    async def __aenter__(self) -> Self:
        self._stop_asked = anyio.Event()
        async with AsyncExitStack() as stack:
            stack.enter_context(_told_once())
            stack.enter_context(self._runtime.claim(self.options.checkpoint, self.signature.where))
            self._threads = await stack.enter_async_context(WorkerPool(2, f"spark-{self.options.group}"))
            self._portal = await stack.enter_async_context(BlockingPortal())
            tasks = await stack.enter_async_context(Supervisor(f"spark listener {self.options.group}", self._clock))
            self._task = tasks.start("query", self._run, restart=False)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.drain(self._drain_timeout)
        finally:
            if isinstance(error, Exception):  # the portal would wrap it in a group
                kind = error = trace = None
            await self._stack.__aexit__(kind, error, trace)
            self.status = SparkListenerState.STOPPED

    async def session(self) -> SparkSession:
        """The application's session. Raises JavaNotFoundError."""
        return await self._runtime.session()

    @property
    def group(self) -> str:
        return self.options.group

    @property
    def cluster(self) -> str | None:
        return self.options.cluster

    @property
    def name(self) -> str:
        """What ``app.listeners`` knows it by in its cluster."""
        return self.options.name or self.options.group

    def describe(self) -> list[str]:
        """Its line of the start log."""
        return list(self._lines)

    def state(self) -> ContainerState:
        """What health shows; one whose query has failed, waits to start again or cannot run is not ready."""
        status, ready = _STATES[self.status]
        reason = None if ready else self.status.value
        if not ready and self.error is not None:
            text = str(self.error).strip().partition("\n")[0]
            reason = f"its query is {self.status.value}: {type(self.error).__name__}: {text}"
        batch, attempt = self._attempts
        attempt = attempt if batch > self._done else 0
        progress = {
            "batch": self._done, "attempt": attempt, "busy": not self._idle.is_set(), "invalid": self._delivery.invalid,
        }  # fmt: skip
        return ContainerState(self.cluster, self.group, status, ready, reason, progress)

    @property
    def has_ended(self) -> bool:
        """Whether the query will not run any more: all was read, there is no Java, it cannot run, it was stopped."""
        return self.status in ENDED

    async def wait(self) -> None:
        """Return when the query has ended for good (see :attr:`has_ended`)."""
        await self._task.wait()

    async def drain(self, timeout: float) -> None:
        """Let the running batch end; one that begins from now on is refused, so nothing unprocessed is committed."""
        self._drain_timeout = timeout
        with anyio.CancelScope(shield=True):
            await self._drain()

    async def _drain(self) -> None:
        self._stopping = True
        self._stop_asked.set()
        if (query := self._query) is not None:
            session = await self._runtime.session()
            await self._threads.run(log_query_errors, session, False)
            try:
                await self._drain_query(query)
            finally:
                await self._threads.run(log_query_errors, session, True)
        await self._task.wait()  # it may be starting a query just now

    async def _drain_query(self, query: StreamingQuery) -> None:
        if not await self._threads.run(self._idle.wait, self._drain_timeout):
            _log.warning(
                "the batch of Spark listener %s did not end within %g s; it will come again",
                self.options.group,
                self._drain_timeout,
            )
            await self._portal.stop(cancel_remaining=True)  # an async function ends by it
        with self._clock.move_on_after(COMMIT_TIMEOUT):
            while await self._threads.run(self._commits, query):
                await self._clock.sleep(COMMIT_POLL)
        await self._stop_query(query)

    def _commits(self, query: StreamingQuery) -> bool:
        """Whether Spark has yet to write down that the last batch is done; stopped before, it would come again."""
        progress = query.lastProgress
        return self._done >= 0 and query.isActive and (progress is None or progress["batchId"] < self._done)

    async def _stop_query(self, query: StreamingQuery) -> None:
        try:
            await self._threads.run(query.stop)
        except Exception as error:
            # After spark.sql.streaming.stopTimeout: a function that neither ends nor asks Spark for anything.
            self._abandoned = True
            _log.warning("the query of Spark listener %s did not stop: %s", self.options.group, error)

    def _stopped(self) -> bool:
        return self._stopping

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when the container is to stop."""
        with self._clock.move_on_after(seconds):
            await self._stop_asked.wait()

    async def _run(self) -> None:
        """Keep a query running; see :class:`SparkListenerState` for how this ends."""
        backoff = FIRST_BACKOFF
        while not self._stopped():
            started = self._clock.monotonic()
            try:
                error = await self._run_query()
            except (JavaNotFoundError, SessionLostError, ConfigurationError) as failure:
                no_java = isinstance(failure, JavaNotFoundError)
                self.status = SparkListenerState.UNAVAILABLE if no_java else SparkListenerState.FAILED
                self.error = failure
                _log.error("Spark listener %s does not run, everything else does. %s", self.options.group, failure)
                return
            except Exception as failure:
                error = failure
            if self._stopped():
                return
            if error is None:
                self.status = SparkListenerState.FINISHED
                return
            if self._clock.monotonic() - started > LONGEST_BACKOFF:
                backoff = FIRST_BACKOFF
            self.error = error
            self.status = SparkListenerState.RESTARTING
            _log.error(
                "the query of Spark listener %s failed; it starts again in %g s from its checkpoint %s",
                self.options.group,
                backoff,
                self.options.checkpoint,
                exc_info=error,
            )
            await self._pause(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF)

    async def _run_query(self) -> BaseException | None:
        """Start the query and wait for its end; what ended it, or None when it has read all there was."""
        session = await self._runtime.session()
        if self._stopped():
            return None
        self._batch_error, self._done = None, -1
        self._query = query = await self._threads.run(self._start_query, session)
        try:
            if self._stopped():  # while it started: nobody else knows of it
                await self._drain_query(query)
                return None
            self.status = SparkListenerState.RUNNING
            while not self._abandoned and await self._threads.run(lambda: query.isActive):
                await self._clock.sleep(POLL)
            # Spark hands on the text of an error only; what the function raised is kept by _on_batch.
            return self._batch_error or await self._threads.run(query.exception)
        finally:
            self._query = None

    def _start_query(self, session: SparkSession) -> StreamingQuery:
        options = self.options
        self._delivery.begin()
        reader = (
            session.readStream.format("rocketmq")
            .option("nameServer", options.name_server)
            .option("topic", options.topic)
            .option("group", options.group)
            .option("tags", options.selector_expression)
            .option("startingOffsets", options.starting_offsets)
            .option("commitOffsets", "true")
            .option("rowsPerPartition", rows_of_a_task(options.max_messages, session.sparkContext.defaultParallelism))
            .options(**options.source_options)
        )
        if options.max_messages is not None:
            reader = reader.option("maxOffsetsPerTrigger", options.max_messages)
        writer = (
            reader.load()
            .writeStream.queryName(f"{options.group}.{options.topic}")
            .option("checkpointLocation", checkpoint_location(options.checkpoint))
            .foreachBatch(self._on_batch)
        )
        if isinstance(options.trigger, timedelta):
            writer = writer.trigger(processingTime=f"{round(options.trigger.total_seconds() * 1000)} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _on_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Called by Spark on a thread of its own; what is raised here ends the query without a commit."""
        self._idle.clear()
        try:
            if self._stopping:
                raise _StoppingError("the application stops")
            last, attempts = self._attempts
            self._attempts = (batch_id, attempts + 1 if last == batch_id else 1)
            session = rows.sparkSession
            batch = SparkBatch(
                id=batch_id,
                query_id=session.sparkContext.getLocalProperty("sql.streaming.queryId") or "",
                topic=self.options.topic,
                group=self.options.group,
                attempt=self._attempts[1],
                spark=session,
            )
            given = {SparkBatch: batch, SparkSession: session}
            beans = {name: bean() for name, bean in self._beans.items()}
            arguments = {**beans, **{name: given[hint] for name, hint in self._needs.items()}}
            function = self.signature.function
            with self._delivery.of(rows, batch_id, self.options.name_server) as frame:
                if self.signature.is_async:
                    self._portal.call(lambda: function(frame, **arguments))
                else:
                    function(frame, **arguments)
            self.error, self._done = None, batch_id
        except BaseException as error:
            self._batch_error = error
            raise
        finally:
            self._idle.set()


@contextmanager
def _told_once() -> Iterator[None]:
    """Keeps from py4j's log what the listeners that are inside log themselves."""
    log = logging.getLogger("py4j.clientserver")

    def told(record: logging.LogRecord) -> bool:  # one for each listener: who leaves takes away its own
        return _is_told(record)

    log.addFilter(told)
    try:
        yield
    finally:
        log.removeFilter(told)


def _is_told(record: logging.LogRecord) -> bool:
    """A listener logs what its function raises; nobody logs a refusal, or each single call."""
    if record.levelno < logging.WARNING:
        return False
    trace = record.exc_info[2] if record.exc_info else None
    while trace is not None:
        if trace.tb_frame.f_code is SparkListenerContainer._on_batch.__code__:
            return False
        trace = trace.tb_next
    return True
