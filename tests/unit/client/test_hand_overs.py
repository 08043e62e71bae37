"""Queues that go from member to member: nothing comes twice where handlers end in time, and commits never go back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

import pytest

from rocketbox.client.offset_store import OffsetStore
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.message import ConsumeMode, MessageQueue
from rocketbox.protocol.codes import RequestCode
from tests.support.client.consumer_group import Group, queues_of
from tests.support.client.scripted_broker import BROKER, ScriptedBroker

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # whose loop tells when all tasks wait


@pytest.mark.parametrize("stay", [0.2, 0.5])
async def test_nothing_comes_twice_when_a_member_leaves_before_it_had_what_it_was_given(
    stay: float, anyio_backend: str
) -> None:
    """A queue of c1 is given to c2, which goes at once, and so to c3: c1 has messages of it in hand all the while."""
    group = Group(queues=6)
    member = partial(group.member, seconds=lambda body: 0.9, concurrency=60)
    async with group.broker, member("c1") as one:
        await group.has(one, 6)
        for queue_id in range(6):
            group.broker.store("T", *[b"%d-%d" % (queue_id, i) for i in range(20)], queue_id=queue_id)
        async with member("c3") as three:
            async with member("c2"):
                await group.clock.advance(stay)
            await group.until(lambda: len(set(group.bodies)) == 120, 10)
            await group.clock.advance(1)
            assert len(queues_of(one)) == len(queues_of(three)) == 3
    assert [body for body, times in Counter(group.bodies).items() if times > 1] == []


async def test_a_commit_that_is_carried_out_late_overwrites_no_newer_one(anyio_backend: str) -> None:
    group = Group()
    broker = group.broker
    async with broker, group.member("c1", seconds=lambda body: 0.3, concurrency=1) as one:
        await group.has(one, 1)
        broker.store("T", *[b"%d" % i for i in range(20)])
        await group.clock.advance(2)
        broker.handles_later = {RequestCode.UPDATE_CONSUMER_OFFSET}
        broker.requests.clear()
        await group.until(lambda: bool(broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET)), 1.1)
        broker.handles_later = set()
        group.another_joins()
        await group.clock.advance(0.6)
        broker.answer()
        await group.until(lambda: not queues_of(one), 1)
        assert broker.committed["T", 0] == len(group.came)


async def test_a_broker_that_answers_no_commit_delays_none_at_another(anyio_backend: str) -> None:
    group = Group()
    dead = ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.2")
    dead.topics = {"T": 1}
    async with group.broker, dead, group.member("c1") as one:
        await group.has(one, 2)
        dead.handles_later = {RequestCode.UPDATE_CONSUMER_OFFSET}
        for count in range(1, 6):
            dead.store("T", b"x")
            group.broker.store("T", b"%d" % count)
            await group.clock.advance(1.1)
            assert group.broker.committed["T", 0] == count
        late = dead.asked(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert len(late) <= 3, "the start offset's, and then one at a time"


class FaultyOffsets:
    """An offset store that fails in a way nobody foresaw, as often as it is told to."""

    def __init__(self, offsets: OffsetStore) -> None:
        self.offsets = offsets
        self.faults = 0

    async def read(self, queue: MessageQueue) -> int | None:
        return await self.offsets.read(queue)

    def behind(self, queues: Iterable[ProcessQueue]) -> list[ProcessQueue]:
        return self.offsets.behind(queues)

    async def persist(self, queues: Iterable[ProcessQueue], *, wait: bool = False) -> None:
        if wait and self.faults:
            self.faults -= 1
            raise KeyError("a fault of our own")
        await self.offsets.persist(queues, wait=wait)

    def forget(self, queue: MessageQueue) -> None:
        self.offsets.forget(queue)


@pytest.mark.parametrize("consume_mode", list(ConsumeMode))
async def test_a_fault_of_our_own_while_a_queue_is_handed_on_is_told_and_ends_it(
    consume_mode: ConsumeMode, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group(queues=2)
    broker = group.broker
    queues = [MessageQueue("T", BROKER, number) for number in range(2)]
    async with broker, group.member("c1", consume_mode=consume_mode) as one:
        await group.until(lambda: queues_of(one) == queues, 3)
        one._queues._offsets = faulty = FaultyOffsets(one._queues._offsets)
        faulty.faults = 1
        group.another_joins()
        await group.until(lambda: queues_of(one) == queues[1:], 3)
        await group.clock.advance(0.1)
        assert not faulty.faults
        assert "a fault of our own" in caplog.text
        assert queues[0] not in broker.locks, "who is to have it need not wait until its lock runs out"
        group.another_leaves()
        await group.until(lambda: queues_of(one) == queues, 3)
        broker.store("T", b"later")
        await group.until(lambda: group.bodies == [b"later"], 3)


async def test_a_queue_that_came_back_while_its_handing_on_failed_is_taken_again(anyio_backend: str) -> None:
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member("c1", seconds=lambda body: 0.6) as one:
        await group.has(one, 2)
        one._queues._offsets = faulty = FaultyOffsets(one._queues._offsets)
        broker.store("T", b"in hand")
        await group.until(lambda: bool(group.came), 1)
        faulty.faults = 1
        group.another_joins()
        await group.clock.advance(0.3)
        group.another_leaves()
        await group.until(lambda: not faulty.faults, 3)
        broker.store("T", b"later")
        await group.until(lambda: b"later" in group.bodies, 3)


@pytest.mark.parametrize("consume_mode", list(ConsumeMode))
async def test_a_fault_of_our_own_in_the_commit_of_a_reset_keeps_no_queue_from_being_pulled(
    consume_mode: ConsumeMode, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group()
    broker = group.broker
    async with broker, group.member("c1", consume_mode=consume_mode) as one:
        await group.has(one, 1)
        one._queues._offsets = faulty = FaultyOffsets(one._queues._offsets)
        faulty.faults = 1
        broker.first_offset["T", 0] = 10  # the broker has removed what was before
        broker.store("T", b"later")
        await group.until(lambda: group.bodies == [b"later"], 3)
        assert "a fault of our own" in caplog.text


@pytest.mark.parametrize("consume_mode", list(ConsumeMode))
async def test_a_pull_that_is_carried_out_late_takes_no_commit_back(
    consume_mode: ConsumeMode, anyio_backend: str
) -> None:
    """A broker pulls and commits in different threads: a pull that waits for its disk may be the later of the two."""
    group = Group()
    broker = group.broker
    async with broker, group.member("c1", consume_mode=consume_mode, pull_batch_size=2) as one:
        await group.has(one, 1)
        broker.store("T", b"0", b"1")
        await group.until(lambda: broker.committed["T", 0] == 2, 3)
        broker.handles_later = {RequestCode.PULL_MESSAGE}
        broker.store("T", b"2", b"3")  # they answer the pull that waits; the next one is not carried out yet
        await group.until(lambda: broker.committed["T", 0] == 4, 3)
        broker.answer()
        await group.clock.advance(5)
        assert broker.committed["T", 0] == 4
        broker.other_members = ["10.0.0.9@c0"]  # it is to have the queue
        broker.store("T", b"4", b"5")
        await group.until(lambda: len(group.came) == 6, 3)
        broker.notify("g")
        await group.until(lambda: not queues_of(one), 3)
        broker.answer()
        assert broker.committed["T", 0] == 6, "what was handled here comes to nobody else"


async def test_a_member_that_a_restarted_broker_does_not_know_yet_keeps_its_queues_while_another_broker_knows_it(
    anyio_backend: str,
) -> None:
    group = Group(queues=4)
    broker, other = group.broker, ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.2")
    other.topics = {"T": 4}
    broker.other_members = other.other_members = ["10.0.0.9@c0"]
    async with broker, other, group.member("c1") as one:
        await group.until(lambda: len(queues_of(one)) == 4, 5)
        mine = queues_of(one)
        broker.other_members = []  # as after a restart: nobody but c1 has told it of itself
        for _ in range(8):  # whichever of the two is asked first
            broker.notify("g")
            await group.clock.advance(1)
            assert queues_of(one) == mine
        other.other_members = []  # it has left
        broker.notify("g")
        await group.until(lambda: len(queues_of(one)) == 8, 5)


async def test_a_silent_broker_does_not_keep_the_queues_of_a_member_that_left(anyio_backend: str) -> None:
    group = Group(queues=4)
    broker, silent = group.broker, ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.2")
    silent.topics = {"T": 4}
    broker.other_members = silent.other_members = ["10.0.0.9@c0"]
    async with broker, silent, group.member("c1") as one:
        await group.until(lambda: len(queues_of(one)) == 4, 5)
        silent.silent = True
        broker.other_members = []
        broker.notify("g")
        await group.until(lambda: len([queue for queue in queues_of(one) if queue.broker_name == BROKER]) == 4, 1)
        silent.silent = False
