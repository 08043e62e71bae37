"""The permanent workers: they find all work, share it, and stop cleanly."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from itertools import pairwise

import anyio
import pytest

from rocketbox.client.message_source import MessageSource
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.client.workers import Worker, Workers
from rocketbox.message import MessageQueue
from rocketbox.tasks import Supervisor
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


def queues(count: int) -> list[ProcessQueue]:
    return [ProcessQueue(MessageQueue("T", "b", number), 0, now=0.0) for number in range(count)]


def number(queue: MessageSource) -> int:
    assert isinstance(queue, ProcessQueue)
    return queue.queue.queue_id


async def test_what_is_lined_up_is_worked_on_once_and_in_order(anyio_backend: str) -> None:
    clock = VirtualClock()
    done: list[int] = []

    async def work(worker: Worker, queue: MessageSource) -> None:
        done.append(number(queue))

    async with Supervisor("test", clock) as tasks:
        workers = Workers("test", 4, work, tasks, clock)
        workers.start()
        await settle()
        for queue in queues(100):
            workers.line_up(queue)
        await settle()
        assert done == list(range(100))
        for queue in queues(3):
            workers.line_up(queue)
        await settle()
        assert done[100:] == [0, 1, 2]


async def test_as_many_run_at_once_as_there_are_workers(anyio_backend: str) -> None:
    clock = VirtualClock()
    running = most = ended = 0

    async def work(worker: Worker, queue: MessageSource) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        await clock.sleep(1)
        running -= 1
        ended += 1

    async with Supervisor("test", clock) as tasks:
        workers = Workers("test", 4, work, tasks, clock)
        workers.start()
        for queue in queues(10):
            workers.line_up(queue)
        await settle()
        assert (most, workers.busy) == (4, 4)
        await clock.advance(2.5)
        assert ended == 8
        await clock.advance(1)
        assert (ended, workers.busy) == (10, 0)


async def test_a_worker_begins_when_it_is_first_needed(anyio_backend: str) -> None:
    clock = VirtualClock()
    of_starter: ContextVar[str] = ContextVar("of who has started the workers", default="nothing")
    seen: list[str] = []

    async def work(worker: Worker, queue: MessageSource) -> None:
        seen.append(of_starter.get())
        of_starter.set("what a handler left behind")
        await clock.sleep(1)

    async with Supervisor("test", clock) as tasks:
        workers = Workers("test", 3, work, tasks, clock)
        workers.line_up(queues(1)[0])
        await settle()
        assert tasks.health() == []
        workers.start()
        await settle()
        assert len(tasks.health()) == 1
        for queue in queues(9):
            workers.line_up(queue)
        await settle()
        assert len(tasks.health()) == 3
        assert seen == ["nothing"] * 3
        await clock.advance(4)
        assert len(seen) == 10


async def test_a_worker_cancelled_while_it_is_woken_passes_the_wake_up_on(anyio_backend: str) -> None:
    clock = VirtualClock()
    done = anyio.Event()

    async def work(worker: Worker, queue: MessageSource) -> None:
        done.set()

    async with Supervisor("test", clock) as tasks:
        workers = Workers("test", 2, work, tasks, clock)
        workers.start()
        for queue in queues(2):
            workers.line_up(queue)
        await settle()
        done = anyio.Event()
        workers.line_up(queues(1)[0])  # wakes the one that became idle last
        last = workers._workers[-1]
        assert last.task is not None
        last.task.cancel()
        await settle()
        assert done.is_set()


async def test_drained_waits_for_what_is_in_hand_and_begins_nothing_more(anyio_backend: str) -> None:
    clock = VirtualClock()
    begun: list[int] = []

    async def work(worker: Worker, queue: MessageSource) -> None:
        begun.append(number(queue))
        await clock.sleep(5)

    async with Supervisor("test", clock) as tasks:
        workers = Workers("test", 2, work, tasks, clock)
        workers.start()
        for queue in queues(5):
            workers.line_up(queue)
        await settle()
        workers.close()
        drained = anyio.Event()

        async def wait() -> None:
            await workers.drained()
            drained.set()

        tasks.start("wait", wait)
        await clock.advance(4)
        assert not drained.is_set()
        await clock.advance(2)
        assert drained.is_set()
        assert begun == [0, 1]
        workers.line_up(queues(1)[0])
        await settle()
        assert begun == [0, 1]


async def test_workers_that_never_wait_let_others_run(anyio_backend: str) -> None:
    clock = VirtualClock()
    turns = 0
    other_ran_at: list[int] = []
    queue = queues(1)[0]

    async def work(worker: Worker, queue: MessageSource) -> None:
        nonlocal turns
        turns += 1
        if turns < 1000:
            workers.line_up(queue)

    async def other() -> None:
        other_ran_at.append(turns)

    async with Supervisor("test", clock) as tasks:
        workers = Workers("test", 1, work, tasks, clock)
        workers.start()
        await settle()
        workers.line_up(queue)
        while turns == 0:
            await anyio.lowlevel.checkpoint()
        tasks.start("other", other)
        while turns < 1000:
            await anyio.lowlevel.checkpoint()
    assert other_ran_at[0] < 200


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio runs what is ready in any order
@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("seconds", [0.002, 0.03])
async def test_handlers_that_do_not_wait_keep_the_loop_for_a_slice_and_one_handler_only(
    count: int, seconds: float, anyio_backend: str
) -> None:
    """Time passes while a handler works; whatever the backlog and the workers, others come in between."""
    clock = VirtualClock()
    done = 0
    other_ran_at: list[float] = []

    async def work(worker: Worker, queue: MessageSource) -> None:
        nonlocal done
        clock.now += seconds
        done += 1

    async with Supervisor("test", clock) as tasks:
        workers = Workers("test", count, work, tasks, clock)
        workers.start()
        await settle()
        for queue in queues(300):
            workers.line_up(queue)
        while done < 300:
            other_ran_at.append(clock.now)
            await anyio.lowlevel.checkpoint()
    gaps = [after - before for before, after in pairwise(other_ran_at)]
    assert max(gaps) <= 0.005 + seconds + 1e-9


async def test_several_may_wait_for_the_end_of_what_is_in_hand(anyio_backend: str) -> None:
    clock = VirtualClock()

    async def work(worker: Worker, queue: MessageSource) -> None:
        await clock.sleep(3)

    async with Supervisor("test", clock) as tasks:
        workers = Workers("test", 1, work, tasks, clock)
        workers.start()
        workers.line_up(queues(1)[0])
        await settle()
        ended: list[float] = []

        async def wait() -> None:
            await workers.drained()
            ended.append(clock.now)

        for _ in range(3):
            tasks.start("wait", wait)
        await clock.advance(10)
        assert ended == [3, 3, 3]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # whose loop tells how many steps are to be made
async def test_one_worker_stands_back_for_all(anyio_backend: str) -> None:
    clock = VirtualClock()
    done = 0
    most_ready = 0

    async def work(worker: Worker, queue: MessageSource) -> None:
        nonlocal done
        clock.now += 0.001
        done += 1
        if done < 1000:
            workers.line_up(queue)

    async with Supervisor("test", clock) as tasks:
        workers = Workers("test", 20, work, tasks, clock)
        workers.start()
        await settle()
        for queue in queues(8):
            workers.line_up(queue)
        ready = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009 - a detail of asyncio's own loop
        while done < 1000:
            await anyio.lowlevel.checkpoint()
            most_ready = max(most_ready, len(ready))
    assert most_ready <= 4


@pytest.mark.parametrize("victims", [1, 2, 3])
async def test_when_workers_are_cancelled_as_they_stand_back_the_others_go_on(victims: int, anyio_backend: str) -> None:
    clock = VirtualClock()
    done = 0
    all_have_begun = False

    async def work(worker: Worker, queue: MessageSource) -> None:
        nonlocal done
        if not all_have_begun:
            await clock.sleep(1)
            return
        clock.now += 0.001
        done += 1
        if done < 400:
            workers.line_up(queue)

    async with Supervisor("test", clock) as tasks:
        workers = Workers("test", 4, work, tasks, clock)
        workers.start()
        for queue in queues(4):
            workers.line_up(queue)
        await clock.advance(2)
        all_have_begun = True
        workers.line_up(queues(1)[0])
        for worker in workers._workers[-victims:]:  # those that became idle last are woken first
            for _ in range(7):
                await anyio.lowlevel.checkpoint()
            assert worker.task is not None
            worker.task.cancel()
        for _ in range(3000):
            await anyio.lowlevel.checkpoint()
    assert done == 400
