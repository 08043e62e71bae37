"""Calls of ``def`` handlers, handed over some at a time: none waits for another, and none is lost or doubled."""

from __future__ import annotations

import gc
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from rocketbox.client.outcomes import Outcomes
from rocketbox.client.send_back import SendBack
from rocketbox.errors import Reject
from rocketbox.message import ConsumeMode, MessageExt
from rocketbox.protocol.codes import RequestCode
from tests.support.client import def_handlers
from tests.support.clocks import settle

pytestmark = pytest.mark.anyio


class Setting(def_handlers.Setting):
    """What a handler was given, and how far it came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[bytes] = []
        self.release = threading.Event()  # what blocked handlers wait for

    def store(self, count: int, queue_id: int = 0) -> None:
        self.broker.store("T", *(b"%d" % number for number in range(count)), queue_id=queue_id)

    def handle(self, batch: list[MessageExt]) -> None:
        self.came.extend(message.body for message in batch)
        if b"block" in batch[0].body:
            self.release.wait(30)

    async def committed(self, offset: int) -> None:
        """Return when so much is committed; the clock goes on to the next commit."""
        for _ in range(20):
            await self.clock.advance(0.5)
            if self.broker.committed.get(("T", 0)) == offset:
                return
            await anyio.sleep(0.01)
        raise AssertionError(f"{self.broker.committed} instead of {offset}")


@pytest.fixture
def setting() -> Setting:
    return Setting()


async def test_no_message_waits_behind_a_blocked_handler_while_a_thread_is_idle(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    async with broker, setting.consumer(concurrency=3) as consumer:
        try:
            await consumer.subscribe("T", "*", setting.handle)
            bodies = [b"%d" % number for number in range(400)]
            bodies[100] = bodies[101] = b"block"
            broker.store("T", *bodies)
            await setting.until(lambda: len(setting.came) == 400)
            await settle(200)
            (queue,) = (state for state in consumer.state().queues if state.queue.topic == "T")
            assert (queue.commit_offset, queue.held, consumer.state().busy_workers) == (100, 2, 2)
        finally:
            setting.release.set()
        await setting.committed(400)
    assert Counter(setting.came) == Counter(bodies)


async def test_what_has_ended_counts_while_the_next_one_blocks_the_only_thread(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    async with broker, setting.consumer(concurrency=1) as consumer:
        try:
            await consumer.subscribe("T", "*", setting.handle)
            broker.store("T", b"0", b"1", b"2", b"block", b"4")
            await setting.until(lambda: b"block" in setting.came)
            await setting.until(lambda: consumer.state().held == 2)
            await setting.committed(3)
            assert b"4" not in setting.came
        finally:
            setting.release.set()
        await setting.committed(5)
    assert setting.came == [b"0", b"1", b"2", b"block", b"4"]


async def test_only_the_handler_that_took_too_long_is_sent_back(setting: Setting, anyio_backend: str) -> None:
    broker = setting.broker
    async with broker, setting.consumer(concurrency=2, consume_timeout=10.0) as consumer:
        try:
            await consumer.subscribe("T", "*", setting.handle)
            broker.store("T", *(b"%d" % number for number in range(50)), b"block", *(b"later",) * 50)
            await setting.until(lambda: len(setting.came) == 101)
            await setting.clock.advance(20)
            sent_back = broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel")
            assert sent_back == [("1050", "3")]
            await setting.committed(101)
            assert consumer.state().busy_workers == 0
        finally:
            setting.release.set()
        await setting.until(lambda: not consumer.threads.running)
        await anyio.sleep(0.01)
        await settle(200)
        assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1, "its late end changes nothing"
        assert {queue.in_process for queue in consumer.state().queues} == {0}


async def test_a_stop_in_the_middle_begins_nothing_more_and_commits_nothing_that_was_not_begun(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    bodies = [b"%d" % number for number in range(100)]
    bodies += [b"block-%d" % number if number < 2 else b"late-%d" % number for number in range(100)]
    async with broker:
        async with anyio.create_task_group() as tasks, setting.consumer(concurrency=2) as consumer:
            await consumer.subscribe("T", "*", setting.handle)
            broker.store("T", *bodies)
            await setting.until(lambda: len(setting.came) == 102)
            await settle(200)
            assert consumer.state().busy_workers > 2, "some wait for a thread"
            await consumer.stop_pulling()
            assert consumer.state().busy_workers == 2, "what waited for a thread is no longer in hand"
            tasks.start_soon(setting.until, setting.release.is_set)
            setting.release.set()
        assert len(setting.came) == 102
        assert broker.committed["T", 0] == 102
        async with setting.consumer(concurrency=2) as consumer:
            await consumer.subscribe("T", "*", setting.handle)
            await setting.until(lambda: len(setting.came) == 200)
            await setting.committed(200)
    assert Counter(setting.came) == Counter(bodies)


async def test_a_stop_that_waits_for_no_handler_commits_up_to_the_first_that_runs(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    async with broker:
        async with setting.consumer(concurrency=2, await_termination=0.0) as consumer:
            await consumer.subscribe("T", "*", setting.handle)
            broker.store("T", *(b"0", b"1", b"block", b"3", b"4"))
            await setting.until(lambda: len(setting.came) == 5)
            await setting.until(lambda: consumer.state().busy_workers == 1)
            threading.Timer(0.05, setting.release.set).start()
        assert broker.committed["T", 0] == 2
        assert setting.came.count(b"block") == 1


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(), Reject("no"), ValueError("x")]
)
async def test_whatever_one_handler_raises_fails_its_message_alone(
    setting: Setting, error: BaseException, anyio_backend: str
) -> None:
    broker = setting.broker

    def handle(batch: list[MessageExt]) -> None:
        setting.came.append(batch[0].body)
        if batch[0].body in (b"50", b"51"):
            raise error

    async with broker, setting.consumer(concurrency=4) as consumer:
        await consumer.subscribe("T", "*", handle)
        setting.store(200)
        await setting.until(lambda: len(setting.came) == 200)
        await setting.until(lambda: consumer.state().busy_workers == 0)
        await setting.committed(200)
        sent_back = broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel")
        level = "-1" if isinstance(error, Reject) else "0"
        assert sorted(sent_back) == [("1050", level), ("1051", level)]


async def test_a_def_that_returns_outcomes_or_a_coroutine_is_understood(setting: Setting, anyio_backend: str) -> None:
    broker = setting.broker

    async def later(body: bytes) -> list[Exception | None]:
        await settle(5)
        return [Reject("later") if body == b"1" else None]

    def handle(batch: list[MessageExt]) -> object:
        setting.came.append(batch[0].body)
        if batch[0].body in (b"0", b"1"):
            return later(batch[0].body)
        return [Reject("now")] if batch[0].body == b"2" else [None]

    async with broker, setting.consumer(concurrency=4) as consumer:
        await consumer.subscribe("T", "*", handle)  # type: ignore[arg-type] # a handler as users write it
        setting.store(5)
        await setting.until(lambda: len(setting.came) == 5)
        await setting.until(lambda: consumer.state().busy_workers == 0)
        await setting.committed(5)
        sent_back = broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel")
        assert sorted(sent_back) == [("1001", "-1"), ("1002", "-1")]


async def test_a_queue_that_went_to_another_member_has_none_of_its_waiting_messages_begun(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    async with broker, setting.consumer(concurrency=2) as consumer:
        await consumer.subscribe("T", "*", setting.handle)
        broker.store("T", *(b"%d" % number for number in range(100)), *(b"block",) * 2, *(b"late",) * 50)
        await setting.until(lambda: len(setting.came) == 102)
        await settle(200)
        broker.other_members = ["10.0.0.9@c0"]
        broker.notify("g")
        await setting.clock.advance(0.5)
        setting.release.set()
        await setting.until(lambda: consumer.state().busy_workers == 0)
        await setting.clock.advance(1)
        assert [state for state in consumer.state().queues if state.queue.topic == "T"] == []
        assert len(setting.came) == 102
        assert broker.committed["T", 0] == 102


async def test_an_orderly_consumer_of_def_handlers_keeps_the_order_of_each_queue(
    setting: Setting, anyio_backend: str
) -> None:
    broker, came, running, most = setting.broker, defaultdict[int, list[bytes]](list), Counter[int](), Counter[int]()
    broker.topics["T"] = 3

    def handle(batch: list[MessageExt]) -> None:
        queue = batch[0].queue_id
        running[queue] += 1
        most[queue] = max(most[queue], running[queue])
        came[queue].extend(message.body for message in batch)
        running[queue] -= 1

    async with broker, setting.consumer(concurrency=8, consume_mode=ConsumeMode.ORDERLY) as consumer:
        await consumer.subscribe("T", "*", handle)
        for queue in range(3):
            setting.store(60, queue)
        await setting.until(lambda: all(len(came[queue]) == 60 for queue in range(3)))
        await setting.until(lambda: consumer.state().busy_workers == 0)
    assert set(most.values()) == {1}
    assert all(came[queue] == [b"%d" % number for number in range(60)] for queue in range(3))


async def test_handlers_of_both_kinds_together_run_no_more_than_concurrency_at_once(
    setting: Setting, anyio_backend: str
) -> None:
    broker = setting.broker
    broker.topics["U"] = 1
    running = most = ended = 0
    lock = threading.Lock()

    def count(change: int) -> None:
        nonlocal running, most
        with lock:
            running += change
            most = max(most, running)

    async def waits(batch: list[MessageExt]) -> None:
        nonlocal ended
        count(1)
        await settle(3)
        count(-1)
        ended += 1

    def blocks(batch: list[MessageExt]) -> None:
        nonlocal ended
        count(1)
        threading.Event().wait(0.001)
        count(-1)
        ended += 1

    async with broker, setting.consumer(concurrency=1) as consumer:
        await consumer.subscribe("T", "*", blocks)
        await consumer.subscribe("U", "*", waits)
        setting.store(20)
        broker.store("U", *(b"%d" % number for number in range(20)))
        await setting.until(lambda: ended == 40)
    assert most == 1


async def test_where_no_thread_can_be_started_messages_fail_and_a_stop_waits_for_nobody(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    broker, start = setting.broker, threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with broker, setting.consumer(concurrency=4) as consumer:
        await consumer.subscribe("T", "*", setting.handle)
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", refuse)
            broker.store("T", b"0", b"1")
            await setting.committed(2)
            assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 2
            assert setting.came == []
            assert threading.Thread.start is not start
        broker.store("T", b"2")
        await setting.committed(3)
        assert setting.came == [b"2"], "what could not be begun before is not begun after it was sent back"


# --- calls that are prepared in the loop -----------------------------------------------------------------------------


class Prepared:
    """A handler that is prepared: of the bodies that hold "bad" each in its own way, the whole handler sees to it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.whole: list[bytes] = []

    def prepare(self, batch: list[MessageExt]) -> Callable[[], Outcomes] | None:
        assert threading.current_thread() is threading.main_thread()
        body = batch[0].body
        batch.clear()  # its own list
        if b"raises" in body:
            raise SystemExit(3) if b"exit" in body else ValueError("bad")
        return None if b"bad" in body else partial(self.call, body)

    def call(self, body: bytes) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.setting.came.append(body)
        if b"block" in body:
            self.setting.release.wait(30)

    async def handle(self, batch: list[MessageExt]) -> Outcomes:
        self.whole.append(batch[0].body)
        if b"bad" in batch[0].body:
            raise Reject("it cannot be read")
        raise AssertionError("this was to be prepared")


async def test_what_cannot_be_prepared_is_the_whole_handlers_alone(setting: Setting, anyio_backend: str) -> None:
    broker, handler = setting.broker, Prepared(setting)
    bodies = [b"%d" % number for number in range(100)]
    bodies[10], bodies[20], bodies[99] = b"bad", b"bad: raises", b"bad: raises exit"
    async with broker, setting.consumer(concurrency=2) as consumer:
        await consumer.subscribe("T", "*", handler.handle, prepare=handler.prepare)
        broker.store("T", *bodies)
        await setting.until(lambda: len(setting.came) == 97 and consumer.state().busy_workers == 0)
        await setting.committed(100)
        assert sorted(handler.whole) == [b"bad", b"bad: raises", b"bad: raises exit"]
        sent_back = broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel")
        assert sorted(sent_back) == [("1010", "-1"), ("1020", "-1"), ("1099", "-1")]
        assert {queue.in_process for queue in consumer.state().queues} == {0}
    assert Counter([*setting.came, *handler.whole]) == Counter(bodies)


async def test_preparing_gives_others_their_turn_after_five_milliseconds_and_goes_on_without_a_call_that_ends(
    setting: Setting, anyio_backend: str
) -> None:
    broker, turns = setting.broker, list[int]()
    turn = 0

    async def count_turns() -> None:
        nonlocal turn
        while not setting.release.is_set():
            turn += 1
            await anyio.lowlevel.checkpoint()

    def prepare(batch: list[MessageExt]) -> Callable[[], Outcomes]:
        turns.append(turn)
        setting.clock.now += 0.001
        return partial(setting.handle, batch)

    async def handle(batch: list[MessageExt]) -> None:
        raise AssertionError("this was to be prepared")

    async with broker, anyio.create_task_group() as tasks, setting.consumer(concurrency=20) as consumer:
        try:
            broker.store("T", *(b"block",) * 50)
            tasks.start_soon(count_turns)
            await consumer.subscribe("T", "*", handle, prepare=prepare)
            await setting.until(lambda: len(setting.came) == 20)
        finally:
            setting.release.set()
        in_one_turn = {5} if anyio_backend == "asyncio" else {5, 10}  # trio runs the tasks of a turn in any order
        assert set(Counter(turns[:20]).values()) <= in_one_turn
        await setting.until(lambda: len(setting.came) == 50)


async def test_a_handler_sees_the_context_that_it_was_prepared_in_and_no_other_one(
    setting: Setting, anyio_backend: str
) -> None:
    tenant = ContextVar("tenant", default="nobody")
    tenant.set("the service")
    seen = list[tuple[str, str, str]]()

    def prepare(batch: list[MessageExt]) -> Callable[[], Outcomes]:
        before, body = tenant.get(), batch[0].body.decode()
        tenant.set(body)

        def call() -> None:
            seen.append((before, body, tenant.get()))
            tenant.set("left behind")

        return call

    async def handle(batch: list[MessageExt]) -> None:
        raise AssertionError("this was to be prepared")

    async with setting.broker, setting.consumer(concurrency=2) as consumer:
        await consumer.subscribe("T", "*", handle, prepare=prepare)
        setting.store(100)
        await setting.until(lambda: len(seen) == 100)
    assert all(before == "the service" and own == body for before, body, own in seen)


async def test_the_time_of_a_whole_handler_begins_when_its_thread_does(setting: Setting, anyio_backend: str) -> None:
    broker, first = setting.broker, threading.Event()
    async with broker, setting.consumer(concurrency=2, consume_timeout=10.0) as consumer:

        def prepare(batch: list[MessageExt]) -> Callable[[], None] | None:
            return None if b"bad" in batch[0].body else partial(first.wait, 30)  # type: ignore[return-value]

        async def handle(batch: list[MessageExt]) -> None:
            setting.came.append(b"whole")
            await consumer.threads.run(setting.handle, batch)

        def sent_back() -> list[str]:
            return sorted(offset for (offset,) in broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset"))

        try:
            await consumer.subscribe("T", "*", handle, prepare=prepare)
            broker.store("T", b"0", b"1", b"bad: block")
            await setting.until(lambda: len(consumer.threads.running) == 2)
            await setting.clock.advance(11)  # they are given up, and keep their threads
            await setting.until(lambda: setting.came == [b"whole"])
            await setting.clock.advance(30)
            assert sent_back() == ["1000", "1001"], "it stands in line"
            first.set()
            await setting.until(lambda: b"bad: block" in setting.came)
            await setting.clock.advance(9)
            assert sent_back() == ["1000", "1001"]
            await setting.clock.advance(4)
            assert sent_back() == ["1000", "1001", "1002"]
            assert consumer.state().busy_workers == 0
        finally:
            first.set()
            setting.release.set()


async def test_a_fault_of_our_own_after_a_call_is_told_and_its_message_handled_again_and_not_sent_back_too(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, anyio_backend: str
) -> None:
    broker = setting.broker

    def fail_once(batch: list[MessageExt]) -> None:
        setting.handle(batch)
        if len(setting.came) == 1:
            raise ValueError("the user's")

    async def broken(*arguments: object) -> bool:
        monkeypatch.undo()
        raise AttributeError("ours")

    async with broker, setting.consumer(concurrency=2) as consumer:
        monkeypatch.setattr(SendBack, "send_back", broken)
        await consumer.subscribe("T", "*", fail_once)
        setting.store(1)
        await setting.until(lambda: "ours" in caplog.text)
        for _ in range(20):
            await setting.clock.advance(1)
            await anyio.sleep(0.001)
        await setting.committed(1)
        assert setting.came == [b"0", b"0"]
        assert broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK) == []
        assert {queue.in_process for queue in consumer.state().queues} == {0}


@pytest.mark.parametrize(("seconds", "most"), [(0.25, 1), (0.00045, 1 + 4)])
async def test_beside_what_threads_have_begun_only_what_they_end_within_two_milliseconds_is_taken(
    setting: Setting, seconds: float, most: int, anyio_backend: str
) -> None:
    in_hand = list[int]()

    def handle(batch: list[MessageExt]) -> None:
        in_hand.append(consumer._consumer.busy)
        setting.clock.now += seconds

    async with setting.broker, setting.consumer(concurrency=1) as consumer:
        await consumer.subscribe("T", "*", handle)
        setting.store(60)
        await setting.until(lambda: len(in_hand) == 60)
    assert max(in_hand) == most


async def test_the_time_of_a_def_among_async_handlers_begins_when_its_thread_does(
    setting: Setting, anyio_backend: str
) -> None:
    """There its call is a worker's, who waits for a thread: it is neither late in line nor free of the limit then."""
    broker, first = setting.broker, threading.Event()
    broker.topics["U"] = 1

    def hold(batch: list[MessageExt]) -> None:
        setting.came.append(batch[0].body)
        (first if batch[0].body == b"first" else setting.release).wait(30)

    async def other(batch: list[MessageExt]) -> None:
        raise AssertionError("its topic is empty")

    def sent_back() -> list[str]:
        return sorted(offset for (offset,) in broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset"))

    async with broker, setting.consumer(concurrency=1, consume_timeout=10.0) as consumer:
        try:
            await consumer.subscribe("T", "*", hold)
            await consumer.subscribe("U", "*", other)
            broker.store("T", b"first", b"second")
            await setting.until(lambda: setting.came == [b"first"])
            await setting.clock.advance(11)  # it is given up, and keeps its thread: the second waits in line
            assert sent_back() == ["1000"]
            await setting.clock.advance(30)
            assert sent_back() == ["1000"], "it stands in line"
            first.set()
            await setting.until(lambda: setting.came == [b"first", b"second"])
            await setting.clock.advance(9)
            assert sent_back() == ["1000"]
            await setting.clock.advance(4)
            assert sent_back() == ["1000", "1001"]
        finally:
            first.set()
            setting.release.set()


async def test_a_stop_begins_no_whole_handler(setting: Setting, anyio_backend: str) -> None:
    broker, handler = setting.broker, Prepared(setting)
    async with broker, setting.consumer(concurrency=2) as consumer:

        def prepare(batch: list[MessageExt]) -> None:
            consumer._consumer.close()  # the stop comes before the turn of the handler

        await consumer.subscribe("T", "*", handler.handle, prepare=prepare)
        setting.store(3)
        await setting.clock.advance(1)
        assert consumer.state().busy_workers == 0
        assert {queue.in_process for queue in consumer.state().queues} == {0}
    assert handler.whole == []
    assert broker.committed.get(("T", 0), 0) == 0


@pytest.mark.filterwarnings("error")
async def test_what_is_left_to_do_after_a_call_that_was_given_up_is_never_begun(
    setting: Setting, anyio_backend: str
) -> None:
    broker, begun = setting.broker, list[bytes]()

    async def rest(body: bytes) -> None:
        begun.append(body)

    def handle(batch: list[MessageExt]) -> object:
        setting.handle(batch)
        return rest(batch[0].body)

    async with broker, setting.consumer(concurrency=2, consume_timeout=10.0) as consumer:
        try:
            await consumer.subscribe("T", "*", handle)  # type: ignore[arg-type] # a handler as users write it
            broker.store("T", b"block", b"1")
            await setting.until(lambda: len(setting.came) == 2)
            await setting.clock.advance(20)
        finally:
            setting.release.set()
        await setting.until(lambda: not consumer.threads.running)
        await anyio.sleep(0.01)
        await settle(20)
        gc.collect()
    assert begun == [b"1"]
