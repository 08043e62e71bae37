"""The one task that writes the commit log, and what follows when the disk refuses.

What is appended while the loop runs is written together; with SYNC_FLUSH a thread writes and syncs it, and all that is
appended meanwhile joins the next sync (group commit); with ASYNC_FLUSH it is written at once and synced every
``flush_interval_commit_log``. Then those who wait are told, and it is dispatched. What can go wrong:

===============================  ==================================================================================
no place for it (no room, too    Nothing of it was written: it is taken back, its senders get StoreFullError, and so
many open files), before the     do later ones, until an attempt, after 1 s, 2 s ... 30 s, finds a place
first byte is written
the disk is full within a write  Its bytes are written again until they fit: some are on the disk, and what is on the
                                 disk may come back after a crash. Its senders get StoreStalledError, new messages
                                 StoreFullError meanwhile
any other error of a write or    The store has failed: what the disk holds is not known. Nothing is written any more,
sync, or one nobody foresaw      all who wait and who come later get StoreFailedError. Reading goes on
the checkpoint                   A trouble: it is written again behind the next sync
===============================  ==================================================================================

Source: Apache RocketMQ 5.5 ``CommitLog`` (``GroupCommitService``, ``FlushRealTimeService``); what it does about errors
is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import anyio

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.checkpoint import CheckpointFile
from rocketbox.broker.store.commit_log import CommitLog, NotPreparedError, Segment, WriteFullError
from rocketbox.broker.store.dispatch import Appended
from rocketbox.broker.store.dispatcher import Dispatcher
from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.broker.store.state import StoreState
from rocketbox.broker.store.troubles import Troubles
from rocketbox.broker.store.waiting import DurableCallback, DurableWaiters, Told, call_each
from rocketbox.clock import Clock
from rocketbox.errors import NotStartedError, StoreFailedError, StoreFullError, StoreStalledError
from rocketbox.loops import call_soon_from_thread
from rocketbox.storage.file_system import Storage
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["LogWriter"]

FIRST_PROBE = 1.0  # seconds until a place is looked for again; doubles up to LONGEST_PROBE
LONGEST_PROBE = 30.0
CHECKPOINT = "writing the checkpoint"  # name of the trouble
OPENING = "opening the commit log to sync it"
TELLING = "telling how far the commit log is safe"


@dataclass(frozen=True)
class _Written:
    """How far a batch came: all before ``end`` is safe; ``problem`` is what prevents the rest."""

    end: int
    problem: NotPreparedError | WriteFullError | None = None
    free_bytes: int | None = None


class LogWriter:
    """Writes what is put into :attr:`appended` and the log's buffer. :meth:`run` is its task."""

    def __init__(
        self,
        log: CommitLog,
        dispatcher: Dispatcher,
        checkpoint: CheckpointFile,
        options: StoreOptions,
        storage: Storage,
        clock: Clock,
        state: StoreState,
        troubles: Troubles,
        on_durable: list[Callable[[int], None]],
    ) -> None:
        self.appended: list[Appended] = []
        """What is in the log's buffer, record by record; whoever appends adds to both."""
        self.durable = log.end
        """All before is safe: synced, or with ASYNC_FLUSH written."""
        self.waiters = DurableWaiters(clock, options.sync_flush_timeout)
        self.written_waiters = DurableWaiters(clock, options.sync_flush_timeout)
        self.is_open = False
        """Whether anything is put, and may be waited for."""
        self.refused = 0
        """How many messages were taken back."""
        self.idle: Waiter | None = None
        """There while the task waits for :meth:`wake`."""
        self.needs: Callable[[], None] | None = None
        """What must be done, in a thread, before the first write; raises OSError while it cannot be."""
        self._log = log
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._storage = storage
        self._clock = clock
        self._state = state
        self._troubles = troubles
        self._on_durable = on_durable
        self._sync = options.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._interval = options.flush_interval_commit_log / 1000
        self._stop_begun = anyio.Event()
        self._backoff = FIRST_PROBE
        self._pool = WorkerPool(1, "store log")
        self._timestamp = 0  # of the newest record that is written

    def wake(self) -> None:
        """There is something to write, or to stop."""
        waiter, self.idle = self.idle, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def stop(self) -> None:
        """Have :meth:`run` end when all is written."""
        self._stop_begun.set()
        self.wake()

    @property
    def is_done(self) -> bool:
        """Whether all that was ever taken is on the disk."""
        return self._state.failure is None and self._log.end == self._log.written == self._log.synced

    async def run(self) -> None:
        """Write, again and again, until the stop.

        No cancellation from outside ends it: what is in the writing thread's hands must be done before the files are
        closed and the lock is given back.
        """
        with anyio.CancelScope(shield=True):
            try:
                async with self._pool:
                    while self._state.failure is None:
                        if self._log.has_unwritten:
                            await self._commit()
                        elif self._stop_begun.is_set():
                            return
                        elif self._state.is_full:
                            await self._pause()
                            await self._look_for_room()
                        else:
                            self.idle = make_waiter()
                            await self.idle
            except Exception as error:
                self.fail("writing the commit log", error)

    async def sweep(self) -> None:
        """Tell those who wait too long; runs until it is cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.waiters.sweep)
            group.start_soon(self.written_waiters.sweep)

    def fail(self, what: str, error: BaseException) -> None:
        """Give up: nothing is written any more, and nothing is kept for it."""
        text = str(error) or repr(error)
        reason = (
            f"{what} failed ({text}); the log is certain up to offset {self.durable}. The store takes no more writes "
            "until it is opened again; see that its disk has room and works, then restart"
        )
        if self._state.fail(reason, error):
            self._drop(self._log.written, StoreFailedError(reason))

    def abandon(self, reason: str) -> None:
        """Tell all who still wait that it is over, and all who would."""
        self.is_open = False
        error = StoreFailedError(reason)
        self.waiters.fail(error)
        self.written_waiters.fail(error)

    # --- who waits ---

    def when_durable(self, end_offset: int, callback: DurableCallback) -> None:
        """Have ``callback`` called when the log is safe up to ``end_offset``; at once if it is already.

        Safe means synced, or written under ASYNC_FLUSH. It gets a TimeoutError when that takes longer than
        ``sync_flush_timeout`` (the message is in the log and may yet be synced), StoreFullError when the message was
        taken back because the disk has no room for it, StoreStalledError when it was not, and waits for room,
        StoreFailedError if it never will be safe.

        Ask in the same turn of the loop in which the message was put: one that is taken back leaves its offsets to
        those that come later.
        """
        self.tell_when_durable(call_each, end_offset, callback)

    def when_written(self, end_offset: int, callback: DurableCallback) -> None:
        """As :meth:`when_durable`, but when the operating system has it, with no sync behind: for WAIT=false."""
        self.tell_when_written(call_each, end_offset, callback)

    def tell_when_durable(self, told: Told, end_offset: int, what: object) -> None:
        """As :meth:`when_durable` for one of many: ``told`` is called with ``what`` and all else that it waits for."""
        if end_offset <= self.durable:
            told([what], None)
        elif self._may_wait(end_offset):
            self.waiters.add(told, end_offset, what)
        else:
            told([what], self._cannot_wait())

    def tell_when_written(self, told: Told, end_offset: int, what: object) -> None:
        """As :meth:`when_written` for one of many, see :meth:`tell_when_durable`."""
        if end_offset <= self._log.written:
            told([what], None)
        elif self._may_wait(end_offset):
            self.written_waiters.add(told, end_offset, what)
        else:
            told([what], self._cannot_wait())

    def _may_wait(self, end_offset: int) -> bool:
        return end_offset <= self._log.end and self.is_open and self._state.failure is None

    def _cannot_wait(self) -> Exception:
        return self._state.error() or NotStartedError("the message store")

    async def durable_up_to(self, end_offset: int) -> None:
        """Return when the log is safe up to ``end_offset``. Raises what :meth:`when_durable` calls back with."""
        if end_offset <= self.durable:
            return
        waiter = make_waiter()

        def done(error: BaseException | None) -> None:
            if waiter.done():
                return
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

        self.when_durable(end_offset, done)
        await waiter

    # --- writing ---

    async def _commit(self) -> None:
        """Write what was appended, and tell those who wait for it."""
        appended, self.appended = self.appended, []
        segments, end = self._log.take(), self._log.end
        while True:
            written = await self._write(segments, end, appended[-1][2])
            if self._state.failure is not None:  # a sync in intervals failed meanwhile
                return
            appended = self._advance(written.end, appended)
            problem = written.problem
            if problem is None:
                if self._state.is_full:
                    self._state.accept()
                    self._backoff = FIRST_PROBE
                return
            if isinstance(problem, NotPreparedError) and not segments[0].begun:
                self.appended = appended + self.appended
                self._refuse(problem, written.free_bytes)
                self._take_back(written.end)
                return
            if self._stop_begun.is_set():
                self.fail("writing the last messages before the stop", problem.error)
                return
            self._refuse(problem, written.free_bytes)
            self._tell_stalled(problem, written.end)
            await self._pause()

    async def _write(self, segments: list[Segment], end: int, timestamp: int) -> _Written:
        if not self._sync and self._log.is_plain(segments, end):
            return self._write_only(segments, end)
        if not self._sync:
            return await self._pool.run(self._write_only, segments, end)
        tell = None
        if self.written_waiters:
            call_soon = call_soon_from_thread()

            def tell() -> None:
                call_soon(lambda: self.written_waiters.release(end))

        return await self._pool.run(self._write_and_sync, segments, end, timestamp, tell)

    def _write_only(self, segments: list[Segment], end: int) -> _Written:
        try:
            if self.needs is not None:
                self._do_what_is_needed()
            self._log.write(segments)
        except (NotPreparedError, WriteFullError) as problem:
            return _Written(segments[0].offset, problem, self._free_bytes())
        return _Written(end)

    def _write_and_sync(
        self, segments: list[Segment], end: int, timestamp: int, tell: Callable[[], None] | None
    ) -> _Written:
        written = self._write_only(segments, end)
        if written.problem is None and tell is not None:
            tell()
        if written.end > self._log.synced:
            self._log.sync()
            self._note_synced(written.end, timestamp)
        return written

    def _do_what_is_needed(self) -> None:
        assert self.needs is not None
        try:
            self.needs()
        except OSError as error:
            raise NotPreparedError("marking the store as in use", error) from error
        self.needs = None

    def _note_synced(self, end: int, timestamp: int) -> None:
        try:
            self._checkpoint.write(sync=False, synced_offset=end, physic_msg_timestamp=timestamp)
        except OSError as error:
            self._troubles.begin(CHECKPOINT, error)
        else:
            self._troubles.end(CHECKPOINT)

    def _advance(self, end: int, appended: list[Appended]) -> list[Appended]:
        """All before ``end`` is safe now; returns what is not."""
        if end <= self.durable:
            return appended
        rest: list[Appended] = []
        if end < self._log.end and appended[-1][1] >= end:
            rest = [each for each in appended if each[1] >= end]
            appended = appended[: -len(rest)]
        log = self._log
        log.written = self.durable = end
        if self._sync:
            log.synced = end
        self.waiters.release(end)
        if self.written_waiters:
            self.written_waiters.release(end)
        if appended:
            self._timestamp = appended[-1][2]
        self._dispatcher.dispatch(appended, end)
        told = [self._tell(listener, end) for listener in self._on_durable]
        if told and all(told):
            self._troubles.end(TELLING)
        return rest

    def _tell(self, listener: Callable[[int], None], end: int) -> bool:
        try:
            listener(end)
        except Exception as error:
            self._troubles.begin(TELLING, error)
            return False
        return True

    # --- no room ---

    def _refuse(self, problem: NotPreparedError | WriteFullError, free_bytes: int | None) -> None:
        error = problem.error
        self._state.refuse(StoreFullError(problem.what, error.strerror or str(error), free_bytes))

    def _tell_stalled(self, problem: NotPreparedError | WriteFullError, end: int) -> None:
        """Those who wait for more than is written hear now what all others are told who come meanwhile: no room."""
        error = StoreStalledError(problem.what, problem.error.strerror or str(problem.error))
        self.waiters.fail(error, behind=end)
        self.written_waiters.fail(error, behind=end)

    def _free_bytes(self) -> int | None:
        try:
            return self._storage.disk_usage(self._log.run.directory).free
        except OSError:
            return None

    def _take_back(self, end: int) -> None:
        """Let go of all that was appended from ``end`` on, none of which is written."""
        error = self._state.error()
        assert error is not None
        self.refused += len(self.appended)
        for queue, *_ in self.appended:
            if queue is not None:
                queue.next_offset -= 1
        self._drop(end, error)

    def _drop(self, end: int, error: StoreFailedError | StoreFullError | Exception) -> None:
        self.appended = []
        self._log.take_back(end)
        self.waiters.fail(error, behind=end)
        self.written_waiters.fail(error, behind=end)

    async def _pause(self) -> None:
        """Wait until the next attempt is due, or the stop begins."""
        seconds, self._backoff = self._backoff, min(self._backoff * 2, LONGEST_PROBE)

        async def wait_for_stop() -> None:
            await self._stop_begun.wait()
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_stop)
            await self._clock.sleep(seconds)
            group.cancel_scope.cancel()

    async def _look_for_room(self) -> None:
        """See whether a record would find a place now."""
        if self._stop_begun.is_set():
            return
        found = await self._pool.run(self._prepare)
        if found.problem is not None:
            self._refuse(found.problem, found.free_bytes)
        else:
            self._backoff = FIRST_PROBE
            self._state.accept()

    def _prepare(self) -> _Written:
        end = self._log.end
        try:
            if self.needs is not None:
                self._do_what_is_needed()
            self._log.prepare(end, end + 1)
        except NotPreparedError as problem:
            return _Written(end, problem, self._free_bytes())
        return _Written(end)

    # --- ASYNC_FLUSH: the sync in intervals ---

    async def sync_in_intervals(self, pool: WorkerPool) -> None:
        """Sync what was written, again and again."""
        while self._state.failure is None:
            await self._clock.sleep(self._interval)
            await self.sync_written(pool)

    async def sync_written(self, pool: WorkerPool) -> None:
        """Sync what is written, in a thread of ``pool``; does nothing after a failure."""
        written, timestamp = self._log.written, self._timestamp
        if written <= self._log.synced or self._state.failure is not None:
            return
        try:
            with anyio.CancelScope(shield=True):
                await pool.run(self._sync_up_to, written, timestamp)
        except NotPreparedError as problem:
            self._troubles.begin(OPENING, problem.error)
            return
        except Exception as error:
            self.fail("syncing the commit log", error)
            return
        self._troubles.end(OPENING)
        self._log.synced = max(self._log.synced, written)

    def _sync_up_to(self, written: int, timestamp: int) -> None:
        self._log.sync()
        self._note_synced(written, timestamp)
