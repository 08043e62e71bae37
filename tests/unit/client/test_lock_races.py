"""Locks of an orderly group whose requests overtake each other, or whose answers are lost."""

from __future__ import annotations

import pytest

from rocketbox.message import ConsumeMode, MessageQueue
from rocketbox.protocol.bodies import decode_lock_batch_request
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from tests.support.client.consumer_group import Group, busy, queues_of
from tests.support.client.scripted_broker import BROKER, ScriptedBroker

pytestmark = pytest.mark.anyio
QUEUES = [MessageQueue("T", BROKER, number) for number in range(2)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # whose loop tells when all tasks wait


async def test_a_refresh_that_overtakes_the_unlocking_leaves_no_lock_behind(anyio_backend: str) -> None:
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member("c1", consume_mode=ConsumeMode.ORDERLY) as one:
        await group.has(one, 2)
        broker.handles_later = {RequestCode.LOCK_BATCH_MQ}
        await group.clock.advance(20.05)  # the refresh is on its way
        group.another_joins()
        await group.until(lambda: QUEUES[0] not in queues_of(one), 0.6)
        assert QUEUES[0] not in broker.locks
        broker.handles_later = set()
        broker.answer()
        await group.clock.advance(0.2)
        assert QUEUES[0] not in broker.locks, "the lock that came back is given back"
        assert QUEUES[1] in broker.locks


async def test_a_lock_whose_answer_was_lost_is_given_back_when_the_queue_goes_to_another(anyio_backend: str) -> None:
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member("c1", consume_mode=ConsumeMode.ORDERLY) as one:
        await group.has(one, 2)
        group.another_joins()
        await group.until(lambda: queues_of(one) == [QUEUES[1]], 3)
        await group.clock.advance(1)
        broker.answers_later = {RequestCode.LOCK_BATCH_MQ}  # so that the broker gives locks and nobody hears of it
        group.another_leaves()
        await group.until(lambda: QUEUES[0] in broker.locks, 1)
        await group.clock.advance(1.05)  # no answer within a second
        group.another_joins()
        await group.clock.advance(3)
        assert queues_of(one) == [QUEUES[1]]
        assert QUEUES[0] not in broker.locks


async def test_a_queue_that_comes_back_is_not_locked_before_its_unlocking_is_answered(anyio_backend: str) -> None:
    """A broker that carries the unlocking out after the new locking would give the queue to a second member."""
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member("c1", consume_mode=ConsumeMode.ORDERLY) as one:
        await group.has(one, 2)
        group.another_joins()
        await group.until(lambda: queues_of(one) == [QUEUES[1]], 3)
        await group.clock.advance(1)
        broker.handles_later = {RequestCode.UNLOCK_BATCH_MQ, RequestCode.QUERY_CONSUMER_OFFSET}
        broker.requests.clear()
        group.another_leaves()
        await group.until(lambda: QUEUES[0] in broker.locks, 1)  # and where to begin is being asked
        group.another_joins()
        await group.until(lambda: bool(broker.asked(RequestCode.UNLOCK_BATCH_MQ)), 1)
        broker.handles_later = {RequestCode.UNLOCK_BATCH_MQ}
        broker.answer(RequestCode.QUERY_CONSUMER_OFFSET)
        group.another_leaves()
        await group.clock.advance(0.4)
        broker.handles_later = set()
        broker.answer()
        await group.has(one, 2)
        assert set(QUEUES) <= set(broker.locks)


@pytest.mark.parametrize("consume_mode", list(ConsumeMode))
async def test_a_member_that_leaves_right_after_its_connection_was_lost_commits_and_gives_locks_back(
    consume_mode: ConsumeMode, anyio_backend: str
) -> None:
    group = Group()
    broker = group.broker
    async with broker:
        async with group.member("c1", consume_mode=consume_mode) as one:
            await group.has(one, 1)
            broker.store("T", b"0", b"1", b"2")
            await group.until(lambda: len(group.came) == 3, 1)
            broker.drop_connections()
            began = group.clock.now
        assert group.clock.now - began < 1
        assert broker.committed["T", 0] == 3
        assert not broker.locks
        assert broker.asked(RequestCode.UNREGISTER_CLIENT)


@pytest.mark.parametrize("consume_mode", list(ConsumeMode))
async def test_a_member_whose_broker_is_gone_leaves_within_seconds(
    consume_mode: ConsumeMode, anyio_backend: str
) -> None:
    group = Group()
    broker = group.broker
    async with broker:
        async with group.member("c1", consume_mode=consume_mode) as one:
            await group.has(one, 1)
            broker.store("T", b"0", b"1", b"2")
            await group.until(lambda: len(group.came) == 3, 1)
            broker.silent = True  # who connects is answered nothing
            broker.drop_connections()
            began = group.clock.now
        assert group.clock.now - began < 10
        assert not one.state().running
        assert not one.state().queues


async def test_a_lock_of_a_broker_that_is_elsewhere_now_is_doubted_until_it_is_confirmed_there(
    anyio_backend: str,
) -> None:
    """Its old connection may stay half open: a machine that has died says nothing."""
    group = Group()
    old = ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.2")
    new = ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.3")
    queue = MessageQueue("T", "broker-b", 0)
    old.topics = new.topics = {"T": 1}
    group.broker.brokers.remove(new)
    member = group.member("c1", seconds=lambda body: 0.5, consume_mode=ConsumeMode.ORDERLY)
    async with group.broker, old, new, member as one:
        await group.until(lambda: queue in queues_of(one), 5)
        old.store("T", *[b"%d" % number for number in range(200)])
        await group.clock.advance(25)  # its lock was confirmed a moment ago, routes are asked for soon
        old.silent = True
        group.broker.brokers[1:] = [new]
        new.records = old.records
        new.foreign_locks = {queue}  # who joined meanwhile has it
        routes = one._instance.routes
        await group.until(lambda: routes.brokers["broker-b"][0] == new.address, 31)
        await group.clock.advance(1)
        handled = len(group.came)
        await group.clock.advance(5)
        assert len(group.came) == handled, "another member has the queue"


async def test_a_group_without_locks_has_none_to_doubt_when_a_broker_is_elsewhere(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group()
    old = ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.2")
    new = ScriptedBroker(group.clock, group.broker, name="broker-b", host="10.0.0.3")
    old.topics = new.topics = {"T": 1}
    group.broker.brokers.remove(new)
    async with group.broker, old, new, group.member("c1") as one:
        await group.has(one, 2)
        group.broker.brokers[1:] = [new]
        await group.clock.advance(35)
        new.store("T", b"0")
        await group.until(lambda: group.bodies == [b"0"], 5)
    assert not [record for record in caplog.records if record.name == "rocketbox.tasks"]


def fail_to_unlock(broker: ScriptedBroker, how: str, times: int) -> None:
    """The first requests to unlock are lost, refused, or the connection ends with them."""
    left = times

    def fail(request: RemotingCommand) -> RemotingCommand | None:
        nonlocal left
        left -= 1
        if left < 0:
            return None
        if how == "cut off":
            broker.drop_connections()
        return busy(request)

    def lose(request: RemotingCommand) -> bool:
        nonlocal left
        left -= request.code == RequestCode.UNLOCK_BATCH_MQ
        return request.code == RequestCode.UNLOCK_BATCH_MQ and left >= 0

    if how == "lost":
        broker.loses = lose
    else:
        broker.overrides[RequestCode.UNLOCK_BATCH_MQ] = fail


@pytest.mark.parametrize("how", ["lost", "refused", "cut off"])
async def test_a_queue_whose_unlocking_fails_once_is_handed_on_all_the_same(how: str, anyio_backend: str) -> None:
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member("c1", consume_mode=ConsumeMode.ORDERLY) as one:
        await group.has(one, 2)
        fail_to_unlock(broker, how, 1)
        group.another_joins()
        await group.until(lambda: QUEUES[0] not in broker.locks, 1.5)
        assert QUEUES[1] in broker.locks


@pytest.mark.parametrize("how", ["lost", "refused", "cut off"])
async def test_a_member_whose_unlocking_fails_once_leaves_no_lock_behind(how: str, anyio_backend: str) -> None:
    group = Group(queues=2)
    broker = group.broker
    async with broker:
        async with group.member("c1", consume_mode=ConsumeMode.ORDERLY) as one:
            await group.has(one, 2)
            fail_to_unlock(broker, how, 1)
            began = group.clock.now
        assert group.clock.now - began < 2.5
        assert not broker.locks


async def test_a_lock_that_could_not_be_given_back_is_given_back_when_its_broker_answers_again(
    anyio_backend: str,
) -> None:
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member("c1", consume_mode=ConsumeMode.ORDERLY) as one:
        await group.has(one, 2)
        fail_to_unlock(broker, "lost", 9)
        group.another_joins()
        await group.until(lambda: queues_of(one) == [QUEUES[1]], 4)
        assert QUEUES[0] in broker.locks
        broker.loses = lambda request: False
        await group.until(lambda: QUEUES[0] not in broker.locks, 2.6)
        unlocked = len(broker.asked(RequestCode.UNLOCK_BATCH_MQ))
        await group.clock.advance(10)
        assert len(broker.asked(RequestCode.UNLOCK_BATCH_MQ)) == unlocked


async def test_a_lock_that_could_not_be_given_back_is_kept_when_its_queue_comes_back(anyio_backend: str) -> None:
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member("c1", consume_mode=ConsumeMode.ORDERLY) as one:
        await group.has(one, 2)
        fail_to_unlock(broker, "lost", 2)
        group.another_joins()
        await group.until(lambda: queues_of(one) == [QUEUES[1]], 4)
        group.another_leaves()
        await group.has(one, 2)
        await group.clock.advance(10)
        assert queues_of(one) == QUEUES
        assert set(QUEUES) <= set(broker.locks)


async def test_a_broker_that_never_answers_is_not_told_for_ever_that_locks_are_given_back(anyio_backend: str) -> None:
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member("c1", consume_mode=ConsumeMode.ORDERLY) as one:
        await group.has(one, 2)
        lost: list[float] = []

        def lose(request: RemotingCommand) -> bool:
            if request.code == RequestCode.UNLOCK_BATCH_MQ:
                lost.append(group.clock.now)
            return request.code == RequestCode.UNLOCK_BATCH_MQ

        broker.loses = lose
        group.another_joins()
        await group.until(lambda: queues_of(one) == [QUEUES[1]], 4)
        await group.clock.advance(120)
        assert 60 < lost[-1] - lost[0] < 95


async def test_the_lock_of_a_queue_that_is_being_unlocked_is_not_asked_for(anyio_backend: str) -> None:
    """A broker that was silent may carry it out after the unlocking, and keep the lock for 60 s."""
    group = Group(queues=2)
    broker = group.broker
    async with broker, group.member("c1", consume_mode=ConsumeMode.ORDERLY) as one:
        await group.has(one, 2)
        lost: list[tuple[int, bool]] = []
        said: list[bool] = []

        def lose(request: RemotingCommand) -> bool:
            if request.code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
                queues = decode_lock_batch_request(request.body).mq_set
                lost.append((request.code, QUEUES[0] in queues))
                if lost[-1] == (RequestCode.UNLOCK_BATCH_MQ, True):
                    said.extend(each.locked for each in one.state().queues if each.queue == QUEUES[0])
                return True
            return False

        broker.loses = lose
        await group.clock.advance(21.5)  # locks are being confirmed, again and again
        group.another_joins()
        await group.until(lambda: queues_of(one) == [QUEUES[1]], 4)
        await group.clock.advance(3)
        unlocking = lost.index((RequestCode.UNLOCK_BATCH_MQ, True))
        assert (RequestCode.LOCK_BATCH_MQ, False) in lost[unlocking:], "that of the other one is"
        assert (RequestCode.LOCK_BATCH_MQ, True) not in lost[unlocking:]
        assert said, "it is still there while it is being unlocked"
        assert not any(said), "and may be another one's"


async def test_a_lock_that_could_not_be_given_back_is_given_back_at_the_end(anyio_backend: str) -> None:
    group = Group(queues=2)
    broker = group.broker
    async with broker:
        async with group.member("c1", consume_mode=ConsumeMode.ORDERLY) as one:
            await group.has(one, 2)
            fail_to_unlock(broker, "lost", 4)
            group.another_joins()
            await group.until(lambda: queues_of(one) == [QUEUES[1]], 4)
            assert QUEUES[0] in broker.locks
        assert not broker.locks
