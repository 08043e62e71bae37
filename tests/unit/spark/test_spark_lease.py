"""The lease of a query, on virtual time: drivers on clients of their own, and brokers with the real table of locks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

import anyio
import pytest

from rocketbox.client import ClientOptions, MQClientInstance
from rocketbox.errors import NoRouteError
from rocketbox.message import MessageQueue
from rocketbox.protocol.bodies import decode_lock_batch_request
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection
from rocketbox.spark.lease import Lease, LeaseAnswer, LeaseLostError, lease_group
from rocketbox.spark.lease_keeping import LeaseKeeper
from rocketbox.tasks import Supervisor
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock, idle
from tests.support.spark.lock_tables import LockTable

pytestmark = pytest.mark.anyio
ResultT = TypeVar("ResultT")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class World:
    """A cluster with the topic T, and drivers that want to read it for the group g."""

    def __init__(self, brokers: tuple[str, ...]) -> None:
        self.clock = VirtualClock(settle=idle)
        self.cluster = ScriptedCluster(self.clock, brokers)
        self.locks = {name: LockTable(self.clock, broker) for name, broker in self.cluster.brokers.items()}
        self.cluster.add_topic("T")
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.cluster)
        self.tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tasks.cancel_scope.cancel()
        await self._stack.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def driver(self, name: str, topic: str = "T") -> AsyncIterator[Lease]:
        instance = MQClientInstance(
            self.cluster.name_server.address,
            options=ClientOptions(client_ip="10.0.0.9", instance_name=name),
            clock=self.clock,
            network=self.cluster.network,
        )
        async with anyio.create_task_group() as tasks:
            async with instance:
                try:
                    yield Lease(instance, "g", topic, holder=name)
                finally:
                    tasks.start_soon(self._let_time_pass)  # the end of a client takes some, and nobody else moves it
            tasks.cancel_scope.cancel()

    async def _let_time_pass(self) -> None:
        while True:
            await self.clock.advance(0.1)

    async def run(self, function: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """The result of what needs time to pass; what it raises, as it is."""
        results: list[ResultT] = []
        errors: list[Exception] = []

        async def call() -> None:
            try:
                results.append(await function())
            except Exception as error:
                errors.append(error)

        await self.clock.run(call)
        if errors:
            raise errors[0]
        return results[0]


@asynccontextmanager
async def world(*brokers: str) -> AsyncIterator[World]:
    async with World(brokers or ("a",)) as made:
        yield made


def keeping(made: World, lease: Lease) -> list[float]:
    """The time at which its keeper has found it lost; none while it is held."""
    ended: list[float] = []

    async def keep() -> None:
        await lease.keep()
        ended.append(made.clock.now)

    made.tasks.start_soon(keep)
    return ended


def test_the_group_of_a_lease_is_its_own_and_legal() -> None:
    assert lease_group("etl") == "SPARK_LEASE_etl"
    long = "g" * 120
    assert len(lease_group(long)) < 60
    assert lease_group(long) != lease_group(long[:-1] + "h")


async def test_one_driver_has_it_and_a_second_one_hears_who_stands_in_its_way() -> None:
    async with world("a", "b") as made, made.driver("one") as one, made.driver("two") as two:
        assert (await one.take()).held
        assert one.held
        answer = await two.take()
        assert (answer.held, answer.by_another) == (False, True)
        assert answer.why == "another driver holds its lock at broker a"
        assert not two.held


async def test_the_group_itself_has_no_lock() -> None:
    async with world() as made, made.driver("one") as one:
        await one.take()
        (request,) = made.cluster.broker.requested(RequestCode.LOCK_BATCH_MQ)
        body = decode_lock_batch_request(request.body)
        assert (body.consumer_group, body.client_id) == ("SPARK_LEASE_g", "one")
        assert body.mq_set == (MessageQueue("T", "a", 0),)


async def test_it_is_kept_for_as_long_as_it_is_wanted() -> None:
    async with world("a", "b") as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        lost = keeping(made, one)
        for _ in range(20):
            await made.clock.advance(30)
            assert not (await two.take()).held
        assert one.held
        assert lost == []
        asked = len(made.cluster.brokers["b"].requested(RequestCode.LOCK_BATCH_MQ))
        assert asked == 1 + 600 // 20  # of the second driver, whom a has refused, b hears nothing


async def test_what_is_given_back_is_free_at_once() -> None:
    async with world("a", "b") as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        await one.release()
        assert not one.held
        assert (await two.take()).held


async def test_after_a_driver_that_has_died_it_is_free_within_60_s() -> None:
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        await made.clock.advance(59.9)
        assert not (await two.take()).held
        assert not one.held  # it stops before another one begins
        await made.clock.advance(0.2)
        assert (await two.take()).held


async def test_a_driver_that_was_paused_has_lost_it_while_another_has_it() -> None:
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        await made.clock.advance(61)  # nobody keeps it
        assert (await two.take()).held
        with pytest.raises(LeaseLostError, match="of topic T for group g is lost: no broker has confirmed it for too"):
            await one.confirm()
        await two.confirm()


async def test_a_batch_that_ends_before_the_keeper_has_asked_hears_that_another_has_it() -> None:
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        await made.clock.advance(10)
        made.locks["a"].forget()
        assert (await two.take()).held
        with pytest.raises(LeaseLostError, match="of topic T for group g is lost: another driver has it"):
            await one.confirm()


async def test_a_driver_that_was_paused_has_lost_it_although_whoever_came_has_gone() -> None:
    """The checkpoint may have moved on by more batches than Spark keeps: it has to be read anew."""
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        await made.clock.advance(61)
        assert (await two.take()).held
        await two.release()
        with pytest.raises(LeaseLostError, match="no broker has confirmed it for too long"):
            await one.confirm()
        assert not one.held
        assert (await one.take()).held


async def test_a_machine_that_has_slept_has_lost_it_although_whoever_came_has_gone() -> None:
    """Its monotonic clock has stood still, so that its keeper asks before anybody has looked at the time."""
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        lost = keeping(made, one)
        await made.clock.advance(10)
        made.clock.wall_is_ahead = 300
        made.locks["a"].forget()  # long ago
        assert (await two.take()).held
        await two.release()
        await made.clock.advance(20)
        assert lost
        assert not one.held


@pytest.mark.parametrize("former_is_there", [True, False])
async def test_a_topic_that_has_moved_to_another_broker_has_one_holder(former_is_there: bool) -> None:
    async with world("a", "b") as made, made.driver("one") as one, made.driver("two") as two:
        made.cluster.add_topic("T", brokers=["a"])
        await one.take()
        lost = keeping(made, one)
        assert (await two.take()).by_another
        made.cluster.add_topic("T", brokers=["a", "b"] if former_is_there else ["b"])
        made.cluster.name_server.routes["T"]["queueDatas"] = made.cluster.route(brokers=["b"])["queueDatas"]
        assert (await two.take()).held, "a gives its lock to the first, and has the topic no more"
        assert (await made.run(two.settle)).held
        assert lost
        assert not one.held


async def test_one_broker_that_is_away_does_not_take_it_from_its_holder() -> None:
    async with world("a", "b") as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        lost = keeping(made, one)
        made.locks["a"].silent = True
        await made.clock.advance(200)
        assert one.held
        assert lost == []
        await made.run(one.confirm)
        answer = await made.run(two.take)  # a has forgotten by now, and does not answer
        assert not answer.held
        made.locks["a"].silent = False
        answer = await made.run(two.take)
        assert not answer.held
        assert lost == []


async def test_when_no_broker_answers_it_ends_before_the_brokers_give_it_to_another() -> None:
    async with world("a", "b") as made, made.driver("one") as one:
        await one.take()
        lost = keeping(made, one)
        await made.clock.advance(41)  # confirmed twice
        for locks in made.locks.values():
            locks.silent = True
        await made.clock.advance(40)
        assert lost == []
        await made.clock.advance(15)
        assert not one.held
        (at,) = lost
        assert 90 <= at <= 96
        with pytest.raises(LeaseLostError, match="no broker has confirmed it for too long"):
            await made.run(one.confirm)


async def test_a_machine_that_has_slept_counts_on_nothing_that_was_said_before() -> None:
    """Its monotonic clock has stood still, and its network is not there yet."""
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        made.locks["a"].silent = True
        await made.run(one.confirm)
        made.clock.wall_is_ahead = 300
        with pytest.raises(LeaseLostError, match="no broker has confirmed it for too long"):
            await made.run(one.confirm)
        made.locks["a"].silent = False
        made.locks["a"].forget()  # long ago
        assert (await two.take()).held


@pytest.mark.parametrize("seconds", [30, -3600])
async def test_a_clock_that_is_set_costs_a_driver_no_lease_that_brokers_confirm(seconds: float) -> None:
    async with world("a", "b") as made, made.driver("one") as one:
        await one.take()
        lost = keeping(made, one)
        for _ in range(3):
            await made.clock.advance(25)
            made.clock.wall_is_ahead += seconds
            await made.run(one.confirm)
        await made.clock.advance(25)
        assert one.held
        assert lost == []


async def test_a_clock_that_is_set_far_ahead_may_be_a_machine_that_has_slept() -> None:
    async with world() as made, made.driver("one") as one:
        await one.take()
        lost = keeping(made, one)
        made.clock.wall_is_ahead = 3600
        with pytest.raises(LeaseLostError):
            await one.confirm()
        await made.clock.advance(0.1)
        assert lost
        assert (await one.take()).held, "nobody else has it, so it is had again at once"


async def test_a_broker_that_has_forgotten_its_locks_is_asked_again_at_once() -> None:
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        lost = keeping(made, one)
        await made.clock.advance(1)
        broker = made.cluster.broker
        await broker.stop()
        made.locks["a"].forget()
        await made.cluster.restart(broker)
        await made.clock.advance(5)
        answer = await two.take()
        assert answer.by_another
        assert one.held
        assert lost == []


async def test_who_comes_first_after_a_broker_has_forgotten_waits_until_the_holder_knows() -> None:
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        lost = keeping(made, one)
        assert (await two.take()).by_another
        await made.clock.advance(1)
        made.locks["a"].forget()
        assert (await two.take()).held
        began = made.clock.now
        answer = await made.run(two.settle)
        assert answer.held
        assert lost
        assert lost[0] < made.clock.now
        assert made.clock.now - began >= 20
        assert not one.held


async def test_of_two_candidates_at_once_one_gets_it() -> None:
    async with world("a", "b", "c") as made, made.driver("one") as one, made.driver("two") as two:
        answers = {}

        async def take(lease: Lease) -> None:
            answers[lease.holder] = await lease.take()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, one)
            tasks.start_soon(take, two)
        assert sorted(answer.held for answer in answers.values()) == [False, True]
        assert sorted([one.held, two.held]) == [False, True]


async def test_a_candidate_that_is_refused_at_one_broker_keeps_no_lock_at_another() -> None:
    async with world("a", "b") as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        made.locks["a"].forget()
        assert (await two.take()).why == "another driver holds its lock at broker b"
        assert not made.locks["a"].holds_any("SPARK_LEASE_g")


async def test_a_broker_that_gets_the_topic_later_is_among_them() -> None:
    async with world("a", "b") as made, made.driver("one") as one, made.driver("two") as two:
        made.cluster.add_topic("T", brokers=["a"])
        await one.take()
        keeping(made, one)
        made.cluster.add_topic("T")
        await made.clock.advance(21)
        made.locks["a"].forget()
        assert (await two.take()).why == "another driver holds its lock at broker b"


async def test_without_a_topic_there_is_nothing_to_hold() -> None:
    async with world() as made, made.driver("one", topic="U") as one:
        with pytest.raises(NoRouteError):
            await one.take()


async def test_topics_and_groups_do_not_stand_in_each_others_way() -> None:
    async with world() as made, made.driver("one") as one, made.driver("two", topic="U") as two:
        made.cluster.add_topic("U")
        assert (await one.take()).held
        assert (await two.take()).held


async def test_what_was_found_lost_is_not_held_again_by_a_late_confirmation() -> None:
    """Whoever keeps it has ended by then, and nobody would confirm it from then on."""
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        lost = keeping(made, one)
        made.locks["a"].silent = True
        await made.clock.advance(61)
        assert lost
        made.locks["a"].silent = False
        with pytest.raises(LeaseLostError, match="no broker has confirmed it for too long"):
            await made.run(one.confirm)
        assert not one.held
        assert (await two.take()).held


async def test_what_was_given_back_is_not_taken_again_by_its_keeper() -> None:
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        await one.take()
        keeping(made, one)
        answered = anyio.Event()
        name_server = made.cluster.name_server
        route = name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC]

        async def slowly(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
            await answered.wait()
            answer = route(connection, request)
            assert isinstance(answer, RemotingCommand)
            return answer

        name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = slowly
        await made.clock.advance(20.5)  # it is about to confirm, and asks for the brokers
        await one.release()
        answered.set()
        await made.clock.advance(5)
        assert not one.held
        assert (await two.take()).held


@pytest.mark.parametrize("what", ["the name server refuses", "the name server is away", "the topic has no route"])
async def test_who_stood_by_takes_over_at_once_also_when_its_brokers_were_away_for_long(what: str) -> None:
    """Else it would go on from a checkpoint that is not shared, and not wait until the former holder knows."""
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        assert (await one.take()).held
        lost = keeping(made, one)
        told: list[LeaseAnswer] = []
        took_over: list[bool] = []
        async with Supervisor("listener", made.clock) as tasks:
            keeper = LeaseKeeper(two, "g", "T", tasks=tasks, clock=made.clock, waits=told.append)

            async def take() -> None:
                took_over.append(await keeper.take())

            made.tasks.start_soon(take)
            await made.clock.advance(1)
            assert told[-1].by_another
            name_server = made.cluster.name_server
            route = name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC]
            if what == "the name server is away":
                await name_server.stop()
            else:
                code = ResponseCode.TOPIC_NOT_EXIST if what == "the topic has no route" else 1
                name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda *_: RemotingCommand.response(
                    code=code, remark="away"
                )
            await made.clock.advance(301)
            assert took_over == []
            answer = told[-1]
            assert (answer.held, answer.by_another) == (False, False)
            assert answer.why.startswith("the brokers of topic T cannot be asked for: ")
            name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = route
            if what == "the name server is away":
                await made.cluster.restart(name_server)
            made.locks["a"].forget()  # all were restarted
            await made.clock.advance(19)
            assert took_over == [], "the former holder may not know it yet"
            await made.clock.advance(8)
            assert took_over == [True], "it has seen another driver"
            assert lost
            await keeper.release()


@pytest.mark.parametrize(
    ("died", "least", "most"),
    [
        pytest.param(20.1, 79, 83, id="just behind a confirmation"),
        pytest.param(39.9, 59, 63, id="just before the next one"),
    ],
)
async def test_who_stands_by_takes_over_60_to_80_s_after_a_driver_that_has_died(
    died: float, least: float, most: float
) -> None:
    """And 2 s more at most, which lie between two tries."""
    async with world("a", "b") as made, made.driver("one") as one, made.driver("two") as two:
        assert (await one.take()).held
        taken: list[tuple[float, bool]] = []
        async with Supervisor("listener", made.clock) as tasks:
            keeper = LeaseKeeper(two, "g", "T", tasks=tasks, clock=made.clock, waits=lambda answer: None)

            async def take() -> None:
                took_over = await keeper.take()
                taken.append((made.clock.now, took_over))

            with anyio.CancelScope() as life:
                made.tasks.start_soon(take)
                async with anyio.create_task_group() as driver:
                    driver.start_soon(one.keep)
                    await made.clock.advance(died)
                    life.cancel()  # it gives nothing back
            death = made.clock.now
            await made.clock.advance(least)
            assert taken == []
            assert not one.held, "it has ended long before"
            await made.clock.advance(most - least)
            ((at, took_over),) = taken
            assert took_over
            assert least <= at - death <= most
            assert keeper.held
            await keeper.release()


async def test_who_stands_by_says_so_once_and_each_other_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    async with world("a", "b") as made, made.driver("one") as one, made.driver("two") as two:
        assert (await one.take()).held
        keeping(made, one)
        async with Supervisor("listener", made.clock) as tasks:
            keeper = LeaseKeeper(two, "g", "T", tasks=tasks, clock=made.clock, waits=lambda answer: None)
            made.tasks.start_soon(keeper.take)
            await made.clock.advance(30)
            made.locks["a"].forget()
            await made.clock.advance(10)
            told = [each.getMessage() for each in caplog.records if each.name == "rocketbox.spark.lease_keeping"]
            stands_by = "Spark listener g stands by: another driver holds its lock at broker"
            assert told[:2] == [f"{stands_by} a", f"{stands_by} b"]
            assert len(told) <= 3
            made.tasks.cancel_scope.cancel()


async def test_who_takes_it_again_keeps_it_once() -> None:
    """A keeper that was left would ask brokers besides, for ever, and tell of a lease that was lost long ago."""
    async with world() as made, made.driver("one") as one, Supervisor("listener", made.clock) as tasks:
        keeper = LeaseKeeper(one, "g", "T", tasks=tasks, clock=made.clock, waits=lambda answer: None)
        lost = one._instance.remoting.on_disconnected
        before = len(lost)
        await made.run(keeper.take)
        await made.clock.advance(1)
        await keeper.release()  # the keeper sleeps still
        await made.run(keeper.take)
        await made.clock.advance(1)
        assert len(lost) == before + 1
        await made.clock.advance(100)
        assert keeper.held
        assert not keeper.lost
        await keeper.release()


async def test_who_stands_back_leaves_it_to_a_holder_that_brokers_have_forgotten() -> None:
    """Also where that one has asked just then, and has had to stop its query first."""
    for asks_meanwhile in (False, True):
        async with world("a", "b") as made, made.driver("one") as one, made.driver("two") as two:
            await one.take()
            lost = keeping(made, one)
            await made.clock.advance(1)
            for locks in made.locks.values():
                locks.forget()
            assert (await two.take()).held, "it has seen nobody"
            if asks_meanwhile:
                await made.clock.advance(20)
                assert lost
            began = made.clock.now
            async with anyio.create_task_group() as tasks:
                if asks_meanwhile:

                    async def take_again() -> None:
                        await made.clock.sleep(10)
                        assert (await one.take()).held
                        await one.keep()

                    tasks.start_soon(take_again)
                await made.run(two.stand_back)
                assert made.clock.now - began >= 30
                assert (await two.take()).by_another
                assert one.held
                tasks.cancel_scope.cancel()


async def test_a_lock_that_is_refused_is_asked_for_more_and_more_rarely_until_it_is_given() -> None:
    async with world() as made, made.driver("one") as one, Supervisor("listener", made.clock) as tasks:
        answers: list[LeaseAnswer] = []
        scripts = made.cluster.broker.scripts
        give = scripts[RequestCode.LOCK_BATCH_MQ]
        scripts[RequestCode.LOCK_BATCH_MQ] = lambda *_: RemotingCommand.response(
            code=ResponseCode.NO_PERMISSION, remark="no right to lock"
        )
        keeper = LeaseKeeper(one, "g", "T", tasks=tasks, clock=made.clock, waits=answers.append)
        made.tasks.start_soon(keeper.take)
        asked = [len(answers)]
        for _ in range(4):
            await made.clock.advance(15)
            asked.append(len(answers))
        assert all(answer.refused and not answer.by_another for answer in answers)
        assert asked[1] <= 4
        assert asked[4] - asked[3] in (1, 2), "each 10 s"
        scripts[RequestCode.LOCK_BATCH_MQ] = give
        await made.clock.advance(10.5)
        assert keeper.held
        await keeper.release()


async def test_another_driver_is_asked_after_each_two_seconds_however_long_it_holds_the_lock() -> None:
    """So much later a replica takes over."""
    async with world() as made, made.driver("one") as one, made.driver("two") as two:
        assert (await one.take()).held
        keeping(made, one)
        answers: list[LeaseAnswer] = []
        async with Supervisor("listener", made.clock) as tasks:
            keeper = LeaseKeeper(two, "g", "T", tasks=tasks, clock=made.clock, waits=answers.append)
            made.tasks.start_soon(keeper.take)
            await made.clock.advance(100)
            before = len(answers)
            await made.clock.advance(20)
            assert 9 <= len(answers) - before <= 11
            made.tasks.cancel_scope.cancel()
