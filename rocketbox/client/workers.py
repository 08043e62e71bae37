"""The permanent workers of a consumer: a fixed number of tasks that take queues from one line.

There is no task, lock or event per message. A worker that takes a queue wakes one more if there is still work, or
begins one that was not needed before, so an idle consumer ramps up within a few turns of the loop, and one that never
has much to do never has many tasks. Handlers that never wait would keep the loop for a whole backlog:
all workers together have one slice of it, and when that is used up they stand back until others have had their turn.
What is done with a queue is handed in by ``consume``.

Source: own design (benchmark "push consume": 20 workers on a deque cost under 1 us a message, a task each 11 us); takes
the place of the thread pool in Apache's ``ConsumeMessageConcurrentlyService``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from typing import Protocol

from anyio.lowlevel import checkpoint

from rocketbox.client.message_source import MessageSource
from rocketbox.clock import Clock
from rocketbox.message import MessageExt
from rocketbox.tasks import SupervisedTask, Supervisor
from rocketbox.waiters import LoopCondition, Waiter, make_waiter

__all__ = ["OTHERS_RAN", "SLICE", "Handling", "Worker", "Workers", "in_hand", "take_in_hand"]

SLICE = 0.005  # seconds of the loop that all workers together use before others get their turn
SLICE_BATCHES = 64  # ends a slice as well: a turn of the loop costs as much as a few batches
OTHERS_RAN = 0.0005  # seconds between two batches that must have gone to others


class Handling(Protocol):
    """The handling of one batch, whose time does not go on while a part of it waits for a thread, or is held."""

    @property
    def queue(self) -> MessageSource | None:
        """Where the batch is from."""

    def may_begin(self) -> bool:
        """Whether a handler may begin with messages of the batch still, for its queue is this member's."""

    def wait_in_line(self, now: float) -> None:
        """A part of the batch waits for a thread, or for what its handler needs: that one has not begun."""

    def leave_line(self, now: float) -> None:
        """The thread began, or it is waited for no more. Called in the thread, too, and more than once."""


class Worker:
    """One worker, and what it has in hand."""

    __slots__ = ("_may_begin", "batch", "in_line_since", "queue", "replaced", "since", "task")

    def __init__(self, may_begin: Callable[[MessageSource], bool]) -> None:
        self._may_begin = may_begin
        self.task: SupervisedTask | None = None
        self.queue: MessageSource | None = None
        self.batch: list[MessageExt] | None = None  # None: nothing in hand, or taken away because it took too long
        self.since = 0.0  # when the batch was taken; later by what it waited in line for a thread
        self.in_line_since: float | None = None
        self.replaced = False

    def may_begin(self) -> bool:
        return self.queue is not None and self._may_begin(self.queue)

    def wait_in_line(self, now: float) -> None:
        self.in_line_since = now

    def leave_line(self, now: float) -> None:
        if self.in_line_since is not None:
            self.since += now - self.in_line_since
            self.in_line_since = None


_in_hand: ContextVar[Handling | None] = ContextVar("in hand", default=None)


def in_hand() -> Handling | None:
    """What the handler belongs to that runs in this task; None outside of handlers."""
    return _in_hand.get()


def take_in_hand(handling: Handling) -> None:
    """From here on the task's handlers belong to handling."""
    _in_hand.set(handling)


def _is_open(queue: MessageSource) -> bool:
    return not queue.closed


class Workers:
    """Up to ``count`` tasks that call ``work(worker, queue)`` for each queue that is lined up, in that order.

    ``may_begin(queue)`` says whether a handler may begin with messages of it, however long they are in hand.
    """

    def __init__(
        self,
        name: str,
        count: int,
        work: Callable[[Worker, MessageSource], Awaitable[None]],
        tasks: Supervisor,
        clock: Clock,
        may_begin: Callable[[MessageSource], bool] = _is_open,
    ) -> None:
        self._name = name
        self._may_begin = may_begin
        self._count = count
        self._work = work
        self._tasks = tasks
        self._clock = clock
        self._line: deque[MessageSource] = deque()
        self._idle: list[Waiter] = []
        self._to_begin = 0  # workers that nobody has needed yet
        self._begun_in: Context  # of who has started them all: what a handler leaves in its context is its worker's own
        self._waking = False  # a worker was woken or begun and has not run yet; one at a time is enough
        self.closed = False
        """Whether nothing is begun any more."""
        self.taken = 0
        """How many queues were taken from the line so far."""
        self._busy = 0
        self._drained = LoopCondition()
        self._workers: list[Worker] = []
        self._slice_ends = 0.0  # on the monotonic clock
        self._slice_left = 0  # batches
        self._last_ended = float("-inf")
        self._standing_back = False

    def start(self) -> None:
        """Let what is lined up be worked on, from now on."""
        self._to_begin = self._count
        self._begun_in = copy_context()
        if self._line:
            self._wake()

    def _begin_one(self) -> None:
        worker = Worker(self._may_begin)
        self._workers.append(worker)
        worker.task = self._begun_in.run(self._tasks.start, f"{self._name} worker", self._run, worker)

    def line_up(self, queue: MessageSource) -> None:
        """Put queue at the end of the line."""
        if self.closed:
            return
        queue.attended = True
        self._line.append(queue)
        if not self._waking:
            self._wake()

    def close(self) -> None:
        """No worker begins anything any more; what is in hand goes on."""
        self.closed = True
        self._line.clear()

    async def drained(self) -> None:
        """Return when no worker has anything in hand."""
        await self._drained.wait_for(lambda: not self._busy)

    def cancel(self) -> None:
        """Cancel what is in hand, and take it out of the workers' hands: whatever becomes of it no longer counts."""
        for worker in self._workers:
            worker.batch = None
            if worker.task is not None:
                worker.task.cancel()

    def another(self, worker: Worker) -> bool:
        """Whether a worker that has ended a batch may take one more out of the same hand; it counts as begun then."""
        now = self._clock.monotonic()
        if now >= self._slice_ends or not self._slice_left or worker.replaced or self.closed:
            return False
        self._slice_left -= 1
        worker.since = now
        return True

    @property
    def busy(self) -> int:
        """Workers with something in hand."""
        return self._busy

    def slower_than(self, seconds: float) -> Iterator[Worker]:
        """Workers whose batch has been with its handler for longer than seconds."""
        oldest = self._clock.monotonic() - seconds
        return (
            worker for worker in list(self._workers)
            if worker.batch is not None and worker.in_line_since is None and worker.since < oldest
        )  # fmt: skip

    def oldest(self) -> float:
        """When the batch was taken that has been with its handler for longest, on the monotonic clock; else now."""
        return min(
            (worker.since for worker in self._workers if worker.batch is not None), default=self._clock.monotonic()
        )

    def replace(self, worker: Worker) -> None:
        """Take the batch out of worker's hands, cancel it, and start another in its place."""
        worker.batch = None
        worker.replaced = True
        self._workers.remove(worker)
        if worker.task is not None:
            worker.task.cancel()
        self._begin_one()

    async def _run(self, worker: Worker) -> None:
        line = self._line
        clock = self._clock
        take_in_hand(worker)
        self._waking = False
        while not worker.replaced:  # a handler may have swallowed the cancellation that should have ended this
            if not line:
                await self._wait_for_work()
                continue
            now = clock.monotonic()
            if now - self._last_ended > OTHERS_RAN:
                self._begin_slice(now)
            elif now >= self._slice_ends or not self._slice_left:
                if self._standing_back:
                    await self._wait_for_work()  # who stands back goes on with the line, and wakes others
                else:
                    await self._stand_back()
                continue
            self._slice_left -= 1
            queue = line.popleft()
            self.taken += 1
            if line and not self._waking and (self._idle or self._to_begin):
                self._wake()
            self._busy += 1
            worker.since = now
            try:
                await self._work(worker, queue)
            finally:
                self._busy -= 1
                if not self._busy and self._drained.waiting:
                    self._drained.notify_all()
            self._last_ended = clock.monotonic()

    def _begin_slice(self, now: float) -> None:
        self._slice_ends = now + SLICE
        self._slice_left = SLICE_BATCHES

    async def _stand_back(self) -> None:
        """Let others have the loop, and begin the next slice: the worker that finds this one used up first does so."""
        self._standing_back = True
        try:
            await checkpoint()
        except BaseException:
            if self._line and not self._waking:
                self._wake()  # others count on this one
            raise
        finally:
            self._standing_back = False
            self._begin_slice(self._clock.monotonic())

    async def _wait_for_work(self) -> None:
        waiter = make_waiter()
        self._idle.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter in self._idle:
                self._idle.remove(waiter)
            else:  # woken and cancelled at once: the wake-up belongs to another
                self._waking = False
                if self._line:
                    self._wake()
            raise
        self._waking = False

    def _wake(self) -> None:
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():  # done here means that its task is being cancelled
                self._waking = True
                waiter.set_result(None)
                return
        if self._to_begin:
            self._to_begin -= 1
            self._waking = True
            self._begin_one()
