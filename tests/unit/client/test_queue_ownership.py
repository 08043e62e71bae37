"""How queues are gained, kept, handed on and lost, on brokers that do as the test says and in time that it moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial

import anyio
import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, MQClientInstance, PushConsumer
from rocketbox.client.assignment import QueueAssignment
from rocketbox.client.membership import Membership
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.client.rebalance import Rebalancer
from rocketbox.client.subscriptions import Subscriptions
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageExt, MessageModel, MessageQueue, SelectorType
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.tasks import SupervisedTask, Supervisor, ended_most
from tests.support.client.consumer_group import Group, busy, queues_of
from tests.support.client.scripted_broker import BROKER, ScriptedBroker
from tests.support.clocks import VirtualClock, idle

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # whose loop tells when all tasks wait: the clock here moves through minutes


# --- brokers side by side ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("where", [ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET])
async def test_a_silent_broker_delays_neither_the_start_nor_the_queues_of_another(
    where: ConsumeFromWhere, seed: int, anyio_backend: str
) -> None:
    group = Group(seed=seed)
    dead = ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.2")
    dead.topics = {"T": 8, "%RETRY%g": 1}
    dead.silent = True
    group.broker.committed["T", 0] = 0
    group.broker.store("T", b"0")
    subscribed: list[float] = []
    came: list[float] = []

    async def handle(batch: list[MessageExt]) -> None:
        came.append(group.clock.now)

    consumer = PushConsumer(
        "g", name_server=group.broker.address, options=ConsumerOptions(consume_from_where=where),
        clock=group.clock, network=group.broker.network,
    )  # fmt: skip

    async def subscribe() -> None:
        await consumer.subscribe("T", "*", handle)
        subscribed.append(group.clock.now)

    async with group.broker, dead, consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(subscribe)
        await group.clock.advance(1)
        after_a_second = len(came), len(subscribed)
        dead.silent = False
        await group.clock.advance(10)
        queues = queues_of(consumer)
    assert after_a_second == (1, 1), "the healthy broker's message, and the return of subscribe()"
    assert len(queues) == 9, "the others follow when their broker answers"


async def test_a_broker_that_dies_delays_no_rebalance_of_the_others(anyio_backend: str) -> None:
    group = Group(queues=2)
    dead = ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.2")
    dead.topics = {"T": 2, "%RETRY%g": 1}
    dead.announces = True
    async with group.broker, dead, group.member("c1") as one:
        await group.until(lambda: len(queues_of(one)) == 4, 5)
        dead.silent = True
        group.broker.other_members = ["10.0.0.9@c0"]  # takes the queues of broker-a, which sorts first
        group.broker.notify("g")
        await group.until(lambda: MessageQueue("T", BROKER, 0) not in queues_of(one), 2)


async def test_those_who_were_cut_off_together_do_not_come_back_in_one_moment(anyio_backend: str) -> None:
    group = Group(queues=30, seed=7)
    broker, pulls = group.broker, list[float]()

    def pull(request: RemotingCommand) -> None:
        if request.ext_fields["topic"] == "T":
            pulls.append(group.clock.now)

    async with broker, group.member() as consumer:
        await group.until(lambda: len(queues_of(consumer)) == 30, 3)
        await group.clock.advance(5)
        broker.overrides[RequestCode.PULL_MESSAGE] = pull
        broker.drop_connections()
        cut = group.clock.now
        await group.clock.advance(1.5)
        waits = [when - cut for when in pulls]
        assert len(waits) == 30
        assert 0.8 <= min(waits) < 0.9, "a second, more or less"
        assert 1.1 < max(waits) <= 1.21
        assert max(Counter(round(wait, 2) for wait in waits).values()) <= 10


# --- locks ---------------------------------------------------------------------------------------------------------


async def test_a_lost_refresh_of_a_lock_is_asked_for_again_and_nothing_comes_twice(anyio_backend: str) -> None:
    group = Group()
    async with group.broker, group.member(consume_mode=ConsumeMode.ORDERLY) as consumer:
        await group.until(lambda: len(queues_of(consumer)) == 1, 2)
        await group.clock.advance(18)
        group.broker.overrides[RequestCode.UPDATE_CONSUMER_OFFSET] = busy  # so that a repetition would show
        group.broker.overrides[RequestCode.LOCK_BATCH_MQ] = busy
        await group.clock.advance(4)
        group.broker.store("T", b"5", b"6", b"7")
        await group.until(lambda: len(group.came) == 3, 1)
        del group.broker.overrides[RequestCode.LOCK_BATCH_MQ]
        group.broker.requests.clear()
        await group.clock.advance(1.5)
        assert group.broker.asked(RequestCode.LOCK_BATCH_MQ), "a second after the last try"
        await group.clock.advance(30)
        group.broker.store("T", b"8")
        await group.clock.advance(5)
        assert group.bodies == [b"5", b"6", b"7", b"8"]


async def test_a_refresh_is_asked_for_until_the_lock_really_ends(anyio_backend: str) -> None:
    group = Group()
    async with group.broker, group.member(consume_mode=ConsumeMode.ORDERLY) as consumer:
        await group.until(lambda: len(consumer.state().queues) == 2, 3)
        group.broker.overrides[RequestCode.LOCK_BATCH_MQ] = busy
        group.broker.requests.clear()
        await group.clock.advance(26)
        asked = len(group.broker.asked(RequestCode.LOCK_BATCH_MQ))
        assert 6 <= asked <= 9, "each second from the twentieth on"
        assert len(queues_of(consumer)) == 1
        await group.clock.advance(6)
        assert queues_of(consumer) == [], "30 s after the last confirmation"


async def test_a_lock_that_another_member_has_ends_the_queue_at_once(anyio_backend: str) -> None:
    group = Group()
    async with group.broker, group.member(consume_mode=ConsumeMode.ORDERLY) as consumer:
        await group.until(lambda: len(queues_of(consumer)) == 1, 2)
        group.broker.foreign_locks = {MessageQueue("T", BROKER, 0)}
        await group.clock.advance(20)
        assert queues_of(consumer) == []


async def test_nothing_of_an_orderly_queue_is_begun_behind_a_lost_connection_until_its_lock_is_confirmed(
    anyio_backend: str,
) -> None:
    """The broker may have been started anew: it has no locks then, and may have given them to others."""
    group = Group()
    broker = group.broker
    async with (
        broker,
        group.member(consume_mode=ConsumeMode.ORDERLY, seconds=lambda body: 1.0 if body == b"0" else 0.0) as consumer,
    ):
        await group.until(lambda: len(queues_of(consumer)) == 1, 2)
        broker.store("T", b"0", b"1", b"2")
        await group.until(lambda: group.bodies == [b"0"], 2)
        broker.overrides[RequestCode.LOCK_BATCH_MQ] = busy
        broker.drop_connections()
        await group.clock.advance(3)
        assert group.bodies == [b"0"], "what was in hand ended, nothing more began"
        assert not any(state.locked for state in consumer.state().queues)
        del broker.overrides[RequestCode.LOCK_BATCH_MQ]
        await group.until(lambda: len(group.bodies) == 3, 2)
        await group.clock.advance(30)
        assert group.bodies == [b"0", b"1", b"2"]


async def test_an_orderly_queue_that_another_member_has_when_its_broker_is_back_is_given_up_untouched(
    anyio_backend: str,
) -> None:
    group = Group()
    broker = group.broker
    async with (
        broker,
        group.member(consume_mode=ConsumeMode.ORDERLY, seconds=lambda body: 1.0 if body == b"0" else 0.0) as consumer,
    ):
        await group.until(lambda: len(queues_of(consumer)) == 1, 2)
        broker.store("T", b"0", b"1", b"2")
        await group.until(lambda: group.bodies == [b"0"], 2)
        broker.foreign_locks = {MessageQueue("T", BROKER, 0)}
        broker.requests.clear()
        broker.drop_connections()
        await group.clock.advance(3)
        assert group.bodies == [b"0"]
        assert queues_of(consumer) == []
        assert not [place for place in broker.fields(RequestCode.UPDATE_CONSUMER_OFFSET, "topic") if place == ("T",)]


async def test_a_silent_broker_keeps_no_lock_of_another_from_being_refreshed(anyio_backend: str) -> None:
    group = Group()
    dead = ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.2")
    dead.topics = {"T": 1, "%RETRY%g": 1}
    async with group.broker, dead, group.member(consume_mode=ConsumeMode.ORDERLY) as consumer:
        await group.until(lambda: len(consumer.state().queues) == 4, 3)
        dead.silent = True
        group.broker.requests.clear()
        await group.clock.advance(41)
        assert len(group.broker.asked(RequestCode.LOCK_BATCH_MQ)) == 2


# --- joining and leaving -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.2, 0.9])
@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_nothing_comes_twice_when_a_member_joins_and_leaves_while_handlers_run(
    mode: ConsumeMode, seconds: float, anyio_backend: str
) -> None:
    group = Group(queues=4)
    sent = 0

    async def traffic(for_seconds: float) -> None:
        nonlocal sent
        end = group.clock.now + for_seconds
        while group.clock.now < end:
            group.broker.store("T", f"{sent}".encode(), queue_id=sent % 4)
            sent += 1
            await group.clock.advance(0.04 if mode is ConsumeMode.CONCURRENTLY else seconds)

    member = partial(group.member, seconds=lambda body: seconds, consume_mode=mode, concurrency=40)
    async with group.broker, member("c1") as one:
        await group.until(lambda: len(queues_of(one)) == 4, 3)
        await traffic(5)
        async with member("c2") as two:
            await traffic(5)
            assert len(queues_of(one)) == len(queues_of(two)) == 2
            assert {name for name, _ in group.came} == {"c1", "c2"}
        await traffic(5)
        await group.until(lambda: len(set(group.bodies)) == sent, 20)
    assert [body for body, times in Counter(group.bodies).items() if times > 1] == []


@pytest.mark.parametrize("apart", [0.05, 0.3, 0.8])
async def test_nothing_comes_twice_when_members_join_shortly_after_each_other(apart: float, anyio_backend: str) -> None:
    """The old owner hears of each of them; what the last one takes has to be in nobody's hand by then."""
    group = Group(queues=6)
    sent = 0

    async def traffic(for_seconds: float) -> None:
        nonlocal sent
        end = group.clock.now + for_seconds
        while group.clock.now < end:
            group.broker.store("T", f"{sent}".encode(), queue_id=sent % 6)
            sent += 1
            await group.clock.advance(0.05)

    member = partial(group.member, seconds=lambda body: 0.9, concurrency=40)
    async with group.broker, member("c1"):
        await traffic(3)
        async with member("c9"):
            await traffic(apart)
            async with member("c5"):  # sorts between them: it takes some from each
                await traffic(5)
                assert {name for name, _ in group.came} == {"c1", "c5", "c9"}
        await traffic(3)
        await group.until(lambda: len(set(group.bodies)) == sent, 20)
    assert [body for body, times in Counter(group.bodies).items() if times > 1] == []


async def test_a_change_of_the_group_during_an_inquiry_is_asked_about_after_it(anyio_backend: str) -> None:
    """The answer that is under way may be from before the change."""
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member() as one:
        await group.until(lambda: len(one.state().queues) == 3, 3)
        await group.clock.advance(5)
        broker.answers_later = {RequestCode.GET_CONSUMER_LIST_BY_GROUP}
        broker.notify("g")
        await group.clock.advance(0.3)
        broker.other_members = ["10.0.0.9@c0"]
        broker.notify("g")
        await group.clock.advance(1.2)
        broker.answers_later = set()
        broker.answer()
        await group.until(lambda: len(queues_of(one)) == 1, 2)


async def test_handlers_that_take_long_repeat_at_most_what_was_in_hand_at_a_join(anyio_backend: str) -> None:
    group = Group(queues=2)
    async with group.broker, group.member("c1", seconds=lambda body: 5.0, concurrency=4) as one:
        await group.until(lambda: len(queues_of(one)) == 2, 3)
        for number in range(40):
            group.broker.store("T", f"{number}".encode(), queue_id=number % 2)
        await group.clock.advance(12)
        async with group.member("c2", seconds=lambda body: 0.0) as two:
            await group.until(lambda: len(queues_of(two)) == 1, 4)
            await group.clock.advance(60)
        await group.until(lambda: len(set(group.bodies)) == 40, 60)
    assert sum(times - 1 for times in Counter(group.bodies).values()) <= 4


async def test_a_queue_that_nobody_else_has_is_taken_at_once(anyio_backend: str) -> None:
    group = Group()
    async with group.broker, group.member() as consumer:
        await group.until(lambda: len(queues_of(consumer)) == 1, 0.2)


async def test_a_long_batch_of_an_orderly_queue_delays_no_other_queue(anyio_backend: str) -> None:
    group = Group(queues=8)
    async with group.broker, group.member("c1", consume_mode=ConsumeMode.ORDERLY, seconds=lambda body: 60.0) as one:
        await group.until(lambda: len(queues_of(one)) == 8, 3)
        for number in range(6):
            group.broker.store("T", b"long", queue_id=number)
        await group.clock.advance(1)
        group.broker.other_members = ["10.0.0.9@c0"]  # sorts before, and takes queues 0 to 3
        group.broker.requests.clear()
        group.broker.notify("g")
        await group.clock.advance(0.5)
        group.broker.topics["U"] = 1
        began = group.clock.now
        async with anyio.create_task_group() as tasks:

            async def handle(batch: list[MessageExt]) -> None: ...

            async def subscribe() -> None:
                await one.subscribe("U", "*", handle)
                subscribed.append(group.clock.now)

            subscribed: list[float] = []
            tasks.start_soon(subscribe)
            group.broker.other_members = []
            await group.until(lambda: bool(queues_of(one, "U")), 2.5)
            await group.until(lambda: bool(subscribed), 2.5 + began - group.clock.now)


async def test_what_was_handled_is_committed_within_a_second_so_that_a_killed_member_repeats_no_more(
    anyio_backend: str,
) -> None:
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member() as one:
        await group.until(lambda: len(queues_of(one)) == 2, 3)
        await group.clock.advance(1)
        for number in range(1, 8):
            broker.store("T", b"%d" % number, queue_id=number % 2)
            await group.clock.advance(1.05)
            assert sum(broker.committed["T", queue_id] for queue_id in range(2)) == number


# --- resets --------------------------------------------------------------------------------------------------------


def resets_of(broker: ScriptedBroker) -> dict[int, int]:
    """Offsets by queue of T; what a test puts in is answered to the next pull of that queue."""
    reset_to: dict[int, int] = {}

    def pull(request: RemotingCommand) -> RemotingCommand | None:
        queue_id = int(request.ext_fields["queueId"])
        if request.ext_fields["topic"] == "T" and queue_id in reset_to:
            return broker.pulled(ResponseCode.PULL_OFFSET_MOVED, reset_to.pop(queue_id), ("T", queue_id))
        return None

    broker.overrides[RequestCode.PULL_MESSAGE] = pull
    return reset_to


async def test_a_reset_while_queues_are_handed_on_is_neither_overwritten_nor_unlocked(anyio_backend: str) -> None:
    """The round gives queue 0 up, whose batch runs on; meanwhile the broker resets queue 1, which stays here."""
    group = Group(queues=2)
    broker, reset_to = group.broker, resets_of(group.broker)
    member = group.member("c1", consume_mode=ConsumeMode.ORDERLY, seconds=lambda body: 4.0 if body == b"long" else 0)
    async with broker, member as one:
        await group.until(lambda: len(queues_of(one)) == 2, 3)
        broker.store("T", *[b"x"] * 9, queue_id=1)
        broker.store("T", b"long", queue_id=0)
        await group.clock.advance(0.2)
        broker.other_members = ["10.0.0.9@c0"]  # sorts before: it takes queue 0
        broker.notify("g")
        await group.clock.advance(0.2)
        reset_to[1] = 4
        broker.requests.clear()
        broker.store("T", b"y", queue_id=1)
        await group.clock.advance(1)
        assert broker.committed["T", 1] >= 4
        await group.clock.advance(6)
        assert queues_of(one) == [MessageQueue("T", BROKER, 1)]
        commits = broker.fields(RequestCode.UPDATE_CONSUMER_OFFSET, "topic", "queueId", "commitOffset")
        of_one = [int(offset) for topic, queue_id, offset in commits if (topic, queue_id) == ("T", "1")]
        assert of_one == sorted(of_one)
        (state,) = [state for state in one.state().queues if state.queue.topic == "T"]
        assert state.locked
        assert [
            request for request in broker.asked(RequestCode.UNLOCK_BATCH_MQ) if b'"queueId":1' in request.body
        ] == []


async def test_a_reset_of_a_queue_that_is_being_given_up_brings_it_back_to_nobody(anyio_backend: str) -> None:
    """A round gives both queues up; while the batch of one still runs, the broker resets the other."""
    group = Group(queues=2)
    broker, reset_to = group.broker, resets_of(group.broker)
    member = group.member("c1", consume_mode=ConsumeMode.ORDERLY, seconds=lambda body: 0.4 if body == b"long" else 0)
    async with broker, member as one:
        await group.until(lambda: len(one.state().queues) == 3, 3)
        await group.clock.advance(1)
        broker.store("T", *[b"x"] * 9, queue_id=1)
        broker.store("T", b"long", queue_id=0)
        await group.clock.advance(0.1)
        broker.other_members = ["10.0.0.9@c0", "10.0.0.9@b"]  # sort before: they take both queues
        broker.requests.clear()
        broker.notify("g")
        await group.clock.advance(0.05)
        reset_to[1] = 4
        broker.store("T", b"y", queue_id=1)
        await group.clock.advance(0.1)
        await group.clock.advance(2)
        assert queues_of(one) == []
        codes = (RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNLOCK_BATCH_MQ)
        of_one = [
            request for request in broker.asked(*codes)
            if b'"queueId":1' in request.body or request.ext_fields.get("queueId") == "1"
        ]  # fmt: skip
        assert [request.code for request in of_one][-1] == RequestCode.UNLOCK_BATCH_MQ, "nothing after the unlocking"
        assert len([request for request in of_one if request.code == RequestCode.UNLOCK_BATCH_MQ]) == 1


async def test_a_queue_that_is_reset_and_then_given_up_is_committed_where_the_reset_said(anyio_backend: str) -> None:
    group = Group(queues=2)
    broker, reset_to = group.broker, resets_of(group.broker)
    async with broker, group.member("c1", seconds=lambda body: 0.8, concurrency=1) as one:
        await group.until(lambda: len(one.state().queues) == 3, 3)
        await group.clock.advance(1)
        broker.store("T", *[b"x"] * 9, queue_id=0)
        await group.clock.advance(0.1)
        reset_to[0] = 4
        broker.store("T", b"y", queue_id=0)
        broker.other_members = ["10.0.0.9@c0"]  # sorts before: it takes queue 0
        broker.notify("g")
        await group.clock.advance(3)
        assert queues_of(one) == [MessageQueue("T", BROKER, 1)]
        assert broker.committed["T", 0] == 4


async def test_an_offset_that_stays_illegal_is_asked_for_once_a_second(anyio_backend: str) -> None:
    group = Group()
    broker = group.broker
    broker.committed["T", 0] = 7

    def pull(request: RemotingCommand) -> RemotingCommand | None:
        if request.ext_fields["topic"] != "T":
            return None
        return broker.pulled(ResponseCode.PULL_OFFSET_MOVED, int(request.ext_fields["queueOffset"]), ("T", 0))

    broker.overrides[RequestCode.PULL_MESSAGE] = pull
    async with broker, group.member():
        await group.clock.advance(20)
        pulls = [topic for (topic,) in broker.fields(RequestCode.PULL_MESSAGE, "topic") if topic == "T"]
        assert 10 <= len(pulls) <= 30


# --- slaves --------------------------------------------------------------------------------------------------------


async def test_a_broker_of_which_only_a_slave_is_up_is_consumed_and_takes_the_offsets(anyio_backend: str) -> None:
    group = Group()
    slave = ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.2", broker_id=1)
    slave.topics = {"T": 1, "%RETRY%g": 1}
    del group.broker.topics["T"]
    slave.store("T", b"0", b"1")
    async with group.broker, slave, group.member() as consumer:
        await group.until(lambda: group.bodies == [b"0", b"1"], 3)
        await group.clock.advance(6)
        assert slave.committed["T", 0] == 2
        assert queues_of(consumer) == [MessageQueue("T", "broker-b", 0)]


async def test_offsets_go_to_the_master_while_there_is_one_and_pulls_to_whom_it_suggests(anyio_backend: str) -> None:
    group = Group()
    broker = group.broker
    slave = ScriptedBroker(group.clock, broker, host="10.0.0.2", broker_id=1)
    slave.topics, slave.records = broker.topics, broker.records

    def suggest_the_slave(request: RemotingCommand) -> RemotingCommand | None:
        place = (request.ext_fields["topic"], 0)
        if place[0] != "T" or request.ext_fields["queueOffset"] != "0":
            return None
        return broker.pulled(ResponseCode.PULL_RETRY_IMMEDIATELY, 1, place, suggest=1)

    broker.overrides[RequestCode.PULL_MESSAGE] = suggest_the_slave
    broker.store("T", b"0", b"1", b"2")
    slave.overrides[RequestCode.QUERY_CONSUMER_OFFSET] = busy
    async with broker, slave, group.member():
        await group.until(lambda: group.bodies == [b"1", b"2"], 3)
        assert slave.asked(RequestCode.PULL_MESSAGE)
        await group.clock.advance(6)
        assert broker.committed["T", 0] == 3
        assert not slave.committed


class Failing:
    """A hook that fails before requests of some codes, so often."""

    def __init__(self, times: int, *codes: int) -> None:
        self.times = times
        self.codes = codes

    def before_request(self, address: str, command: RemotingCommand) -> None:
        if command.code in self.codes and self.times:
            self.times -= 1
            raise ValueError("no token now")

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        return b""

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        pass


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.HEART_BEAT,
        RequestCode.PULL_MESSAGE,
    ],
)
async def test_hook_that_fails_for_a_while_costs_no_queue_for_longer(code: RequestCode, anyio_backend: str) -> None:
    group = Group(queues=2)
    group.hooks = (Failing(3, code),)
    for queue_id in range(2):
        group.broker.store("T", b"%d" % queue_id, queue_id=queue_id)
    async with group.broker, group.member(consume_mode=ConsumeMode.ORDERLY):
        await group.until(lambda: sorted(group.bodies) == [b"0", b"1"], 6)


async def test_hook_that_fails_at_the_end_keeps_neither_locks_nor_membership(anyio_backend: str) -> None:
    group = Group()
    async with group.broker:
        group.broker.store("T", b"0")
        failing = Failing(0, RequestCode.UPDATE_CONSUMER_OFFSET)
        group.hooks = (failing,)
        async with group.member(consume_mode=ConsumeMode.ORDERLY):
            await group.until(lambda: group.bodies == [b"0"], 3)
            failing.times = 1000
        assert group.broker.asked(RequestCode.UNLOCK_BATCH_MQ)
        assert group.broker.asked(RequestCode.UNREGISTER_CLIENT)


# --- faults of our own ---------------------------------------------------------------------------------------------


class FaultyOffsets:
    """An offset store that fails in a way nobody foresaw, so often."""

    def __init__(self, faults: int) -> None:
        self.faults = faults

    async def read(self, queue: MessageQueue) -> int | None:
        if self.faults:
            self.faults -= 1
            raise KeyError(queue)
        return 0

    def behind(self, queues: Iterable[ProcessQueue]) -> list[ProcessQueue]:
        return []

    async def persist(self, queues: Iterable[ProcessQueue], *, wait: bool = False) -> None: ...

    def forget(self, queue: MessageQueue) -> None: ...


async def test_a_fault_of_our_own_while_queues_are_taken_costs_one_round(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group(queues=40)
    clock, broker = group.clock, group.broker
    options = ConsumerOptions(message_model=MessageModel.BROADCASTING)
    begun: list[MessageQueue] = []
    async with (
        broker,
        MQClientInstance(broker.address, clock=clock, network=broker.network) as instance,
        Supervisor("test", clock) as tasks,
    ):
        subscriptions = Subscriptions("g", instance, options)

        async def handle(batch: list[MessageExt]) -> None: ...

        def pull(messages: ProcessQueue) -> SupervisedTask:
            begun.append(messages.queue)
            return tasks.start("pull", clock.sleep, 1000)

        subscriptions.put("T", "*", handle, SelectorType.TAG, 1)
        rounds = Rebalancer(lambda: queues.rebalance(), 20.0, clock)
        membership = Membership(
            group="g", instance=instance, options=options, subscriptions=subscriptions, tasks=tasks, again=rounds.again,
            refusals=instance.refusals("g"),
        )  # fmt: skip
        queues = QueueAssignment(membership, offsets=FaultyOffsets(1), locks=None, pull=pull, offer=lambda _: None)
        tasks.start("rounds", rounds.run)
        tasks.start("route", instance.find_route, "T")
        await clock.advance(0.5)
        rounds.wake()
        await clock.advance(0.1)
        assert len(begun) < 40
        assert "KeyError" in caplog.text
        await clock.advance(1.5)
        assert sorted(begun) == sorted(MessageQueue("T", BROKER, number) for number in range(40))
        await queues.stop_pulling()


# --- a stop that is cut short --------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [0.05, 0.5, 1.5, 2.5, 3.5, 4.5])
@pytest.mark.parametrize("consume_mode", list(ConsumeMode))
async def test_stop_that_asyncio_cancels_leaves_no_member_no_bytes_and_no_task_behind(
    consume_mode: ConsumeMode, moment: float, anyio_backend: str
) -> None:
    """A task's own cancel(), which is what asyncio.timeout() calls, comes through anyio's shields."""
    group = Group()
    clock, broker = group.clock, group.broker
    begun, leave = asyncio.Event(), asyncio.Event()
    left: list[tuple[bool, int]] = []
    options = ConsumerOptions(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_mode=consume_mode, await_termination=0.1
    )

    async def handle(batch: list[MessageExt]) -> None:
        begun.set()
        await clock.sleep(1000)

    async def use() -> None:
        async with MQClientInstance(
            broker.address, options=ClientOptions(client_ip="10.0.0.9"), clock=clock, network=broker.network
        ) as instance:
            consumer = PushConsumer("g", instance=instance, options=options)
            try:
                async with consumer:
                    await consumer.subscribe("T", "*", handle)
                    await leave.wait()
            finally:
                left.append((consumer.state().running, instance.cached_bytes.total))
                instance.register_consumer("g", consumer)  # raises where the group is in use still
                await instance.unregister_consumer("g")

    async with broker:
        before = asyncio.all_tasks()
        broker.store("T", b"0", b"1")
        task = asyncio.ensure_future(use())
        await group.until(begun.is_set, 5)
        broker.silent = True
        leave.set()
        await clock.advance(moment)
        task.cancel()
        await clock.advance(30)
        assert task.done()
        assert left == [(False, 0)]
        await clock.advance(30)
        remaining = [one.get_name() for one in asyncio.all_tasks() - before]
        assert all(name.startswith("remoting server") for name in remaining), "what is left is the broker's"


# --- waiting for most ----------------------------------------------------------------------------------------------


async def test_the_wait_for_most_tasks_ends_a_moment_after_the_first(anyio_backend: str) -> None:
    clock = VirtualClock(settle=idle)
    async with Supervisor("test", clock) as tasks:
        some = [tasks.start("wait", clock.sleep, seconds) for seconds in (1.0, 1.2, 9.0)]
        ended: list[float] = []

        async def wait() -> None:
            await ended_most(some, 0.5, clock)
            ended.append(clock.now)

        tasks.start("most", wait)
        await clock.advance(5)
        assert ended == [1.5]
        await ended_most([], 0.5, clock)
