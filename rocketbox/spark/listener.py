"""Runs ``@rocketmq_spark_listener`` functions: one streaming query each, supervised from its start to the stop.

The query reads by the data source ``rocketmq`` and calls the function by ``foreachBatch``, in this process: the
application's beans are at hand. Spark's checkpoint decides what is read next; the function is called at least once for
each micro-batch, and the same batch has the same id and offsets when it comes again.

What is done in turn, until a stop or something that no restart mends (the states are in ``states``):

    the topic is there          else it is asked for each second        ``topic_watch``
    the lease is held           else the listener stands by             ``lease_keeping``
    there is a session          a dead one is replaced                  ``session``
    the query is started        and its batches given to the function   ``query``, ``batches``
    it goes on                  and health and the group hear of it     ``position``
    it has ended                finished, failed, or from above again, a little later each time; a query that
                                somebody stopped has failed as well; the lease is kept meanwhile
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rocketbox.blocking import WorkerPool
from rocketbox.client import Admin, MQClientInstance
from rocketbox.clock import Clock
from rocketbox.errors import InvalidMessageError
from rocketbox.listeners import ContainerState
from rocketbox.spark.batch_call import beans_for, delivery_of
from rocketbox.spark.batch_log import BatchLog, PlannedBatch
from rocketbox.spark.batches import BatchRunner
from rocketbox.spark.checkpoint import CheckpointError, decode_offset
from rocketbox.spark.checkpoint_folder import begins_anew
from rocketbox.spark.driver_id import driver_id
from rocketbox.spark.identity import changed_options
from rocketbox.spark.java import JavaNotFoundError
from rocketbox.spark.java_watch import JavaWatch
from rocketbox.spark.lease import STAND_BACK, Lease, LeaseAnswer, LeaseLostError
from rocketbox.spark.lease_keeping import LeaseKeeper
from rocketbox.spark.listener_options import SparkListenerOptions
from rocketbox.spark.listener_source import rows_of_a_task
from rocketbox.spark.options import filter_text
from rocketbox.spark.paths import checkpoint_location, local_folder
from rocketbox.spark.position import QueryPosition
from rocketbox.spark.py4j_log import told_once
from rocketbox.spark.query import GONE, end_idle_callbacks, in_words, is_permanent, is_the_sources, start_query
from rocketbox.spark.query_progress import follow, unfollow
from rocketbox.spark.query_stop import QueryStop
from rocketbox.spark.servers import Servers
from rocketbox.spark.session import SparkRuntime, is_alive
from rocketbox.spark.signature import SparkSignature, read_spark_signature
from rocketbox.spark.starting import CLOCKS_DIFFER_MS, PlaceKind, begun_at
from rocketbox.spark.states import ENDED, Situation, SparkListenerState
from rocketbox.spark.takeover import not_shared
from rocketbox.spark.told_servers import ToldServers
from rocketbox.spark.topic_watch import TopicWatch
from rocketbox.spark.worker_client import gather
from rocketbox.tasks import SupervisedTask, Supervisor

__all__ = [
    "SparkListenerContainer",
    "SparkListenerOptions",
    "SparkListenerState",
    "SparkSignature",
    "read_spark_signature",
]

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

FIRST_BACKOFF = 1.0  # seconds until a failed query is started again; doubles up to LONGEST_BACKOFF
LONGEST_BACKOFF = 60.0
POLL = 0.2  # seconds between two looks at the query: Spark offers nothing that could be awaited
STILL_AT_WORK_POLL = 2.0  # seconds between two looks at one that was stopped, and whose function does not end
LAST_BATCH = 2.0  # seconds for a batch to end that began when the query did, while a stop was asked for
LONGEST_MOVE = 60.0  # seconds that a query's batch may take before it begins again with other name servers
LAST_STEP = 1.0  # seconds for the group to be told of the batch that a query did last


class QueryStoppedError(Exception):
    """The query has ended, and neither failed nor was asked to: somebody has stopped it, or its session."""


class SessionGoneError(Exception):
    """The Java process has ended (it was killed, it had no memory left), and everything in it."""


# Until then a query from the latest on would pass over what is sent to a listener that says it is ready.
_FINDS_PLACES = Situation(SparkListenerState.STARTING, "it finds where to begin in the queues of its topic")
_TOLD_IN_WORDS = (QueryStoppedError, SessionGoneError)  # a traceback of ours says nothing more


class SparkListenerContainer:
    """One function and its query. Entering starts the query in the background; leaving drains and stops it.

    ``instance`` is the client by which the listener holds its lease and looks at its topic; Spark's processes have
    clients of their own.
    """

    def __init__(
        self,
        options: SparkListenerOptions,
        signature: SparkSignature,
        *,
        runtime: SparkRuntime,
        instance: MQClientInstance,
        provider: Callable[[Any], Callable[[], Any]],
        clock: Clock,
        drain_timeout: float = 15.0,
        lines: Sequence[str] = (),
        credentials_file: str | None = None,
    ) -> None:
        self.options = options
        self.signature = signature
        self.error: BaseException | None = None
        """What ended the query last; None again as soon as a batch succeeds."""
        self._situation = Situation(SparkListenerState.STARTING)
        self._runtime = runtime
        self._instance = instance
        self._clock = clock
        self._drain_timeout = drain_timeout
        self._lines = tuple(lines)
        self._servers = ToldServers(instance, credentials_file)
        self._delivery = delivery_of(options, signature, clock)
        self._admin = Admin(instance=instance)
        self._batches = BatchRunner(
            options,
            signature,
            beans=beans_for(signature, provider),
            delivery=self._delivery,
            admin=self._admin,
            clock=clock,
            succeeded=self._batch_is_done,
            mask=instance.options.mask,
        )
        self._watch = TopicWatch(self._admin, options.group, options.topic, clock)
        self._java = JavaWatch(options.group, clock)
        self._position = QueryPosition(options.group, self._admin, self._watch, clock)
        self._starting_offsets = options.starting_offsets
        self._has_told_changes = False
        self._stack = AsyncExitStack()
        self._stopping = False
        self._has_drained = False
        self._query: StreamingQuery | None = None
        self._session: SparkSession | None = None
        self._watching: SupervisedTask | None = None
        self._has_begun = False  # the query of this round: else it could not
        self._was_stopped = False  # by this listener, whose lease was lost; else its last query has ended by itself
        self._noted_in: BatchLog | None = None  # the checkpoint that names this driver
        self._query_id: str | None = None  # of the query that has begun last
        self._has_stood_back = False  # somebody whose lease brokers have forgotten would have shown
        self._took_over: bool | None = None  # the checkpoint is to be looked at: was another driver seen to read it?

    async def __aenter__(self) -> Self:
        self._stop_asked = anyio.Event()
        options = self.options
        async with AsyncExitStack() as stack:
            stack.enter_context(told_once(BatchRunner.__call__))
            stack.enter_context(self._runtime.claim(options.checkpoint, self.signature.where))
            folder = local_folder(options.checkpoint)
            holder = stack.enter_context(driver_id(self._instance.storage, self._clock, folder))
            self._lease = Lease(self._instance, options.group, options.topic, holder=holder)
            self._threads = await WorkerPool(2, f"spark-{options.group}").__aenter__()
            stack.push_async_exit(self._end_threads)
            self._portal = await stack.enter_async_context(BlockingPortal())
            self._tasks = await stack.enter_async_context(Supervisor(f"spark listener {options.group}", self._clock))
            self._stop = QueryStop(
                options.group,
                self._batches,
                portal=self._portal,
                threads=self._threads,
                clock=self._clock,
            )
            self._keeper = LeaseKeeper(
                self._lease,
                options.group,
                options.topic,
                tasks=self._tasks,
                clock=self._clock,
                waits=self._waits_for_lease,
            )
            self._tasks.start("group", self._position.run)
            self._tasks.start("java", self._java.watch)
            self._task = self._tasks.start("query", self._run, restart=False)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._has_drained:  # a function that does not end is waited for once
                await self.drain(self._drain_timeout)
        finally:
            if isinstance(error, Exception):  # the portal would wrap it in a group
                kind = error = trace = None
            await self._stack.__aexit__(kind, error, trace)
            self._is(SparkListenerState.STOPPED)

    async def _end_threads(self, *error: Any) -> None:
        # A Java process that answers nothing holds them until it is killed, which comes with the session's end.
        with self._clock.move_on_after(LAST_BATCH if self._stop.java_answers else 0.0):
            await self._threads.__aexit__(None, None, None)

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

    @property
    def status(self) -> SparkListenerState:
        return self._now().state

    def _now(self) -> Situation:
        """How it is; a query that has no places yet runs from its first batch on, whose plan has found them."""
        if self._situation is _FINDS_PLACES and self._batches.begun >= 0:
            self._is(SparkListenerState.RUNNING)
        return self._situation

    def describe(self) -> list[str]:
        """Its line of the start log."""
        return list(self._lines)

    def _trouble(self) -> str | None:
        """What keeps a query that lives from its work."""
        return self._java.trouble or self._watch.trouble

    def state(self) -> ContainerState:
        """What health shows; one whose query has failed, waits to start again or cannot run is not ready."""
        now = self._now()
        status, ready, reason = now.health(self._trouble(), self._clock.monotonic())
        batch, attempt = self._batches.attempt
        progress: dict[str, object] = {
            "state": now.state.value,
            "batch": self._batches.last,
            "attempt": attempt if batch > self._batches.last else 0,
            "busy": not self._batches.idle.is_set(),
            "invalid": self._delivery.invalid,
        }
        progress |= self._position.shown()
        return ContainerState(self.cluster, self.group, status, ready, reason, progress)

    @property
    def has_ended(self) -> bool:
        """Whether the query will not run any more: all was read, there is no Java, it cannot run, it was stopped."""
        return self.status in ENDED

    async def wait(self) -> None:
        """Return when the query has ended for good (see :attr:`has_ended`)."""
        await self._task.wait()

    def _is(self, state: SparkListenerState, why: str | None = None, *, next_start: float | None = None) -> None:
        self._situation = Situation(state, why, next_start)

    # --- the stop ----------------------------------------------------------------------------------------------------

    async def drain(self, timeout: float) -> None:
        """Let the running batch end, and stop the query, both within ``timeout`` seconds.

        One that begins from now on is refused, so nothing unprocessed is committed.
        """
        until = self._clock.monotonic() + timeout
        self._batches.refuse()
        self._stopping = True
        self._stop_asked.set()
        with anyio.CancelScope(shield=True):
            if (query := self._query) is not None:
                try:
                    assert self._session is not None
                    await self._stop.drain(self._session, query, timeout)
                except GONE as error:  # then it does not run either
                    _log.warning(
                        "Spark listener %s: its Java process is gone at the stop: %s", self.group, in_words(error)
                    )
            elif not self._batches.idle.is_set():
                await self._stop.drain_function(timeout)
            left = max(until - self._clock.monotonic(), LAST_BATCH) if self._stop.java_answers else 0.0
            with self._clock.move_on_after(left) as wait:
                await self._task.wait()  # it may be starting a query just now
            if wait.cancelled_caught:
                if query is None:
                    _log.warning(
                        "Spark listener %s is still starting its query, and the stop does not wait for that: no batch "
                        "of it is begun", self.group,
                    )  # fmt: skip
                self._task.cancel()
        self._has_drained = True

    async def _unless_stopped(self, function: Callable[[], Awaitable[ResultT]]) -> ResultT | None:
        """The result of function; None when a stop is asked for meanwhile."""
        result: list[ResultT] = []
        errors: list[Exception] = []

        async def run() -> None:
            try:
                result.append(await function())
            except Exception as error:
                errors.append(error)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await self._stop_asked.wait()
            tasks.cancel_scope.cancel()
        if errors:
            raise errors[0]
        return result[0] if result else None

    # --- from start to end -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Keep a query running; see ``states`` for how this ends."""
        backoff = FIRST_BACKOFF
        try:
            while not self._has_stopped():
                started = self._clock.monotonic()
                self._position.has_moved = False
                try:
                    error = await self._run_once()
                except Exception as failure:
                    error = await self._if_gone(failure)
                if self._has_stopped() or self.has_ended:
                    return
                if error is None or isinstance(error, LeaseLostError):
                    self._position.forget()  # who reads on now knows
                    continue
                if self._position.has_moved or self._clock.monotonic() - started > LONGEST_BACKOFF:
                    backoff = FIRST_BACKOFF
                self.error = error
                why = await self._threads.run(in_words, error)
                if await self._ends_by(error, why):
                    return
                await self._pause(error, why, backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF)
        finally:
            # A function that is at work still writes, and nobody else may before the lease's end.
            if not self._stop.has_left_one_behind and self._batches.idle.is_set():
                await self._note_release()
                await self._keeper.release()

    async def _note_release(self) -> None:
        """Say in the checkpoint that nobody reads from it; else the next driver waits a little."""
        log = self._noted_in
        if log is not None and self._keeper.held and self._stop.java_answers:
            with anyio.CancelScope(shield=True), self._clock.move_on_after(LAST_STEP), suppress(Exception):
                await self._threads.run(log.note_holder, "")

    def _has_stopped(self) -> bool:
        return self._stopping

    async def _if_gone(self, error: Exception) -> Exception:
        """error, or that the session is gone, which is why it was raised."""
        session = self._session
        if isinstance(error, GONE) and session is not None and not await self._threads.run(is_alive, session):
            return SessionGoneError("the Java process of its session is gone")
        return error

    async def _run_once(self) -> BaseException | None:
        """From the topic to the end of a query; what ended it, None where it is nobody's fault."""
        self._has_begun = False
        await self._unless_stopped(self._until_left_alone)
        if not self._keeper.held and not self._has_stopped():
            took_over = await self._unless_stopped(self._until_it_may_read)
            self._took_over = took_over or bool(self._took_over)
        if self._has_stopped():
            return None
        session = await self._unless_stopped(self._runtime.session)
        if session is None:
            return None
        self._session = session
        await self._unless_stopped(self._until_idle)
        if self._has_stopped():
            return None
        log = await self._threads.run(BatchLog, session, checkpoint_location(self.options.checkpoint))
        planned = await self._threads.run(log.last_planned)
        if self._query_id is not None:
            await self._threads.run(log.check_query, self._query_id)
        if self._took_over is not None:  # also where a step behind the lease has failed the last time
            is_new_to_its_group = await self._check_checkpoint(planned, self._took_over)
            if is_new_to_its_group and not self._took_over and not self._has_stood_back:
                await self._unless_stopped(self._until_another_driver_shows)
                return None
            if not self._took_over:
                await self._unless_stopped(partial(self._until_a_former_driver_knows, log))
            if self._has_stopped() or not self._keeper.held:
                return None
            await self._threads.run(log.note_holder, self._lease.holder)
            self._took_over = None
        self._noted_in = log
        self._go_by(planned)
        self._position.begins(await self._threads.run(log.read_up_to, planned))
        servers = self._servers.now()
        await self._threads.run(self._batches.begin, log, planned, self._lease, self._portal, servers)
        if self._has_stopped():
            return None
        self._was_stopped = False
        self._query = query = await self._threads.run(self._start_query, session, servers, log, planned)
        self._has_begun = True
        run_id = ""
        try:
            self._query_id, run_id = await self._threads.run(lambda: (str(query.id), str(query.runId)))
            await self._threads.run(follow, session, run_id, self._position.moves)
            if self._has_stopped():  # while it started: nobody else knows of it
                await self._stop.drain(session, query, LAST_BATCH)
                return None
            self._situation = _FINDS_PLACES if planned is None else Situation(SparkListenerState.RUNNING)
            error = await self._until_end(session, query, servers)
            with self._clock.move_on_after(LAST_STEP), suppress(*GONE):
                await self._position.ends(await self._threads.run(lambda: log.read_up_to(log.last_planned())))
            return error
        finally:
            self._query = None
            await self._threads.run(unfollow, session, run_id)
            await self._threads.run(end_idle_callbacks, session)
            await self._threads.run(self._batches.take_back)

    async def _until_it_may_read(self) -> bool:
        """Return when its topic is there and the lease held; whether another driver was seen to have that."""
        since = self._clock.time_ms() - CLOCKS_DIFFER_MS
        was_there = await self._watch.until_there()
        if not was_there and self.options.starting_offsets == "latest":
            self._starting_offsets = f"{since}ms"  # what came later than this listener; its brokers may have been away
        if self._watching is None:
            self._watching = self._tasks.start("topic", self._watch.watch)
        took_over = await self._keeper.take()
        if took_over:
            self._is(SparkListenerState.STARTING)
        return took_over

    async def _until_a_former_driver_knows(self, log: BatchLog) -> None:
        """Brokers that were started anew, or have the topic only now, give anybody the lease of who is at work."""
        if await self._threads.run(log.holder) in (None, self._lease.holder):
            return
        self._is(SparkListenerState.STARTING, "another driver has not given its lease back, and may be about to stop")
        await self._lease.until_noticed()

    async def _until_another_driver_shows(self) -> None:
        """One that brokers have forgotten reads on from a checkpoint of its own, and takes its lease again."""
        self._is(
            SparkListenerState.STARTING,
            f"its checkpoint is new, and its group has read before: another driver shows within {STAND_BACK:.0f} s",
        )
        _log.info(
            "Spark listener %s: its checkpoint is new, and its group has read before; whether another driver reads for "
            "it, whom brokers that were started anew have forgotten, is seen in %.0f s", self.group, STAND_BACK,
        )  # fmt: skip
        await self._keeper.stand_back()
        self._has_stood_back = True

    def _waits_for_lease(self, answer: LeaseAnswer) -> None:
        self._is(SparkListenerState.STANDING_BY if answer.by_another else SparkListenerState.STARTING, answer.why)

    async def _until_left_alone(self) -> None:
        """Return when the query that did not stop has ended."""
        while not await self._stop.has_ended():
            self._is(SparkListenerState.RESTARTING, "its last query has been stopped, and its function does not end")
            await self._clock.sleep(STILL_AT_WORK_POLL)

    async def _until_idle(self) -> None:
        """Return when the function has ended, whose batch comes again: who ends its query leaves it at work."""
        while not self._batches.idle.is_set():
            place = self._batches.hangs_at()
            ended = "query has been stopped" if self._was_stopped else "Java process has ended"
            why = f"its {ended} while its function was at work, which has not ended yet"
            self._is(SparkListenerState.RESTARTING, f"{why} (it is at {place})" if place else why)
            await self._clock.sleep(POLL)

    async def _check_checkpoint(self, planned: PlannedBatch | None, took_over: bool) -> bool:
        """Whether it is new, not on purpose, and its group has read before.

        Raises ConfigurationError when others have read on, and this checkpoint does not know of it.
        """
        options, admin = self.options, self._admin
        end = None if planned is None or planned.end is None else decode_offset(planned.end).queues
        committed = await gather(partial(admin.committed, options.group), await admin.queues(options.topic))
        folder = local_folder(options.checkpoint)
        on_purpose = folder is not None and begins_anew(folder)
        refusal = not_shared(
            options.checkpoint, options.group, self.signature.where, end=end, committed=committed,
            took_over=took_over and not on_purpose,
        )  # fmt: skip
        if refusal is not None:
            raise refusal
        return planned is None and not on_purpose and any(committed.values())

    def _go_by(self, planned: PlannedBatch | None) -> None:
        """Begin new queues as the checkpoint does, and tell, once, of options that were changed since."""
        if planned is None or planned.end is None or self._has_told_changes:
            return
        self._has_told_changes = True
        end = decode_offset(planned.end)
        if any(queue.topic != self.options.topic for queue in end.queues):  # which the source refuses, and says so
            return
        try:
            start, tags = begun_at(self._starting_offsets), filter_text(self.options.selector_expression)
        except (ValueError, InvalidMessageError):  # as well
            return
        if end.start is not None:
            if self._starting_offsets == "latest" and begun_at(end.start).others.kind is PlaceKind.TIME:
                start = begun_at(end.start)  # its topic came later, and a time was told for latest
            self._starting_offsets = end.start
        for change in changed_options(end, start, tags, ("starting_offsets", "selector_expression")):
            _log.warning("Spark listener %s: %s", self.group, change)

    async def _until_end(self, session: SparkSession, query: StreamingQuery, servers: Servers) -> BaseException | None:
        moved_at = None
        while not self._stop.has_left_one_behind and await self._java.is_active(query, self._threads):
            if self._keeper.lost and not self._has_stopped():
                _log.warning("Spark listener %s has lost its lease; its query stops", self.group)
                await self._stop_for_another(session, query)
                return None
            if moved_at is None and servers.name_server != self._servers.name_server:
                moved_at = self._clock.monotonic()
            if moved_at is not None and not self._has_stopped():  # without them it would see no new queue or broker
                waited = self._clock.monotonic() - moved_at
                if waited > LONGEST_MOVE or await self._stop.is_between_batches(query):
                    _log.warning(
                        "Spark listener %s: the name servers are %s now, and its query begins again with them",
                        self.group, self._servers.name_server,
                    )  # fmt: skip
                    await self._stop_for_another(session, query)
                    return None
            self._position.tell()
            await self._clock.sleep(POLL)
        if self._has_stopped():
            return None
        # Spark hands on the text of an error only; what the function raised is kept.
        if (error := self._batches.failure or await self._threads.run(query.exception)) is not None:
            return error
        if self.options.trigger == "available_now":
            self._is(SparkListenerState.FINISHED)
            return None
        return QueryStoppedError("somebody has stopped it, or its session")

    async def _stop_for_another(self, session: SparkSession, query: StreamingQuery) -> None:
        """Stop a query that begins again."""
        self._batches.interrupt()
        self._was_stopped = True
        await self._stop.stop(session, query)

    async def _ends_by(self, error: BaseException, why: str) -> bool:
        """Whether that was the end."""
        if isinstance(error, JavaNotFoundError):
            self._is(SparkListenerState.UNAVAILABLE, why)
        elif self._batches.gave_up:
            most, batch = self.options.max_batch_attempts, self._batches.begun
            self._is(SparkListenerState.FAILED, f"batch {batch} has failed {most} times (max_batch_attempts): {why}")
        elif await self._threads.run(self._is_final, error):
            self._is(SparkListenerState.FAILED, f"its query cannot run: {why}")
        else:
            return False
        _log.error(
            "Spark listener %s does not run, everything else does. %s", self.group, self._situation.why,
            exc_info=error if self._batches.gave_up else None,
        )  # fmt: skip
        return True

    def _is_final(self, error: BaseException) -> bool:
        """Whether no restart mends it; what a function raises is its own, unless it is the source's in its action."""
        is_own = error is self._batches.failure and not isinstance(error, CheckpointError)
        return (not is_own or is_the_sources(error)) and is_permanent(error)

    async def _pause(self, error: BaseException, why: str, seconds: float) -> None:
        """Wait until the query may begin again, but not when the container is to stop."""
        why_not = f"its query {'has ended' if self._has_begun else 'could not begin'}: {why}"
        self._is(SparkListenerState.RESTARTING, why_not, next_start=self._clock.monotonic() + seconds)
        _log.error(
            "the query of Spark listener %s failed; it starts again in %g s from its checkpoint %s%s",
            self.group, seconds, self.options.checkpoint, f": {why}" if isinstance(error, _TOLD_IN_WORDS) else "",
            exc_info=None if isinstance(error, _TOLD_IN_WORDS) else error,
        )  # fmt: skip
        with self._clock.move_on_after(seconds):
            await self._stop_asked.wait()
        self._is(SparkListenerState.RESTARTING, why_not)

    # --- the query ---------------------------------------------------------------------------------------------------

    def _start_query(
        self, session: SparkSession, servers: Servers, log: BatchLog, planned: PlannedBatch | None
    ) -> StreamingQuery:
        self._delivery.begin()
        wanted = rows_of_a_task(self.options.max_messages, session.sparkContext.defaultParallelism)
        return start_query(
            session,
            self.options,
            servers=servers,
            starting_offsets=self._starting_offsets,
            rows_of_a_task=log.rows_of_a_task(planned, wanted),
            on_batch=self._batches,
        )

    def _batch_is_done(self) -> None:
        self.error = None
