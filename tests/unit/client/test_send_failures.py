"""Rows C35, C37, C44 and C48 of the catalogue of failures: sends from other threads, to brokers that refuse half of
them, over dead connections, and cancelled at every place where they wait."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from rocketbox.client import Admin, MQClientInstance, Producer
from rocketbox.errors import BrokerError, ConnectionClosedError, HookFailedError, NotStartedError, OtherLoopError
from rocketbox.message import LocalTransactionState, Message, MessageExt, SendResult
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.protocol.recall_handles import RecallHandle, encode_recall_handle
from tests.support.client.producing import connections_of, leftovers, producer_of
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock, settle
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

TWO = ("broker-a", "broker-b")
LARGE = bytes(random.Random(3).randbytes(100_000))  # is compressed in a thread


def message(body: bytes = b"x") -> Message:
    return Message("T", body)


# --- C35: threads ----------------------------------------------------------------------------------------------------


async def test_32_threads_send_by_the_loop_of_the_producer() -> None:
    async with ScriptedCluster(VirtualClock(), TWO) as cluster:
        cluster.add_topic("T")
        results: list[SendResult] = []
        async with producer_of(cluster) as producer, anyio.from_thread.BlockingPortal() as portal:

            def work(number: int) -> None:
                for each in range(20):
                    results.append(portal.call(producer.send, message(b"%d-%d" % (number, each))))

            async with anyio.create_task_group() as tasks:
                limiter = anyio.CapacityLimiter(32)
                for number in range(32):
                    tasks.start_soon(partial(anyio.to_thread.run_sync, work, number, limiter=limiter))
            bodies = [request.body for broker in cluster.brokers.values() for request in broker.sends]
            assert sorted(bodies) == sorted(b"%d-%d" % (number, each) for number in range(32) for each in range(20))
            assert len({result.msg_id for result in results}) == 640
            assert leftovers(producer) == {}


async def test_what_is_used_in_another_loop_says_so_and_sends_nothing() -> None:
    """32 threads with loops of their own: each use is refused before a byte is written, and the connection is whole."""
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send(message(b"first"))
            admin = Admin(instance=producer.instance)
            uses: list[Callable[[], Awaitable[object]]] = [
                lambda: producer.send(message()),
                lambda: producer.send_one_way(message()),
                lambda: producer.send_many([message()] * 3),
                lambda: producer.send_batch([message()] * 3),
                lambda: producer.request(message()),
                lambda: producer.recall("x"),
                lambda: producer.instance.find_route("U"),
                lambda: admin.topics(),
            ]
            told: Counter[str] = Counter()

            def work(number: int) -> None:
                use = uses[number % len(uses)]
                try:
                    anyio.run(use)
                except OtherLoopError as error:
                    told[str(error).partition("nothing was sent")[2]] += 1

            threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
            for each in threads:
                each.start()
            await until(lambda: not any(each.is_alive() for each in threads))
            assert sum(told.values()) == 32, told
            (words,) = told
            assert words.startswith(
                ". Threads send by template.blocking, or hand calls over to its loop: by anyio.from_thread"
            )
            assert [request.body for request in cluster.broker.sends] == [b"first"]
            assert not cluster.name_server.asked("U")
            await producer.send(message(b"last"))
            assert [request.body for request in cluster.broker.sends] == [b"first", b"last"]
            assert leftovers(producer) == {}


def test_a_loop_may_be_run_by_one_thread_after_the_other() -> None:
    """As who starts a service by ``run_until_complete``, and has a thread run the loop from then on."""
    loop = asyncio.new_event_loop()
    started, used = asyncio.Event(), asyncio.Event()
    instance = MQClientInstance("127.0.0.1:1")

    async def live() -> None:
        async with instance:
            started.set()
            await used.wait()

    async def use() -> None:
        try:
            instance.check_running()
        finally:
            used.set()
            await life

    life = loop.create_task(live())
    loop.run_until_complete(started.wait())
    with ThreadPoolExecutor(1) as threads:
        threads.submit(loop.run_until_complete, use()).result(PATIENCE)
    loop.close()
    with pytest.raises(NotStartedError):
        instance.check_running()


# --- brokers that leave ---------------------------------------------------------------------------------------------


async def test_a_send_that_is_under_way_to_a_broker_that_leaves_the_routes_is_answered_there_and_not_sent_twice() -> (
    None
):
    clock = VirtualClock()
    async with ScriptedCluster(clock, TWO) as cluster:
        leaving, staying = cluster.brokers.values()
        cluster.add_topic("T", brokers=[leaving.name])
        stored = anyio.Event()

        async def store_when_told(request: RemotingCommand) -> RemotingCommand:
            await stored.wait()
            return leaving.store(request)

        async with producer_of(cluster) as producer, anyio.create_task_group() as tasks:
            instance = producer.instance
            await producer.send(message(b"first"))
            (connection,) = [each for each in connections_of(producer) if each.remote_address == leaving.address]
            leaving.on_send = store_when_told
            results: list[SendResult] = []

            async def send() -> None:
                results.append(await producer.send(message(b"under way")))

            tasks.start_soon(send)
            await until(lambda: len(leaving.sends) == 2)
            cluster.add_topic("T", brokers=[staying.name])
            await instance.route("T", refresh=True)
            assert not instance.remoting.connected(leaving.address)
            assert (await producer.send(message(b"last"))).queue.broker_name == staying.name
            stored.set()
            await until(lambda: bool(results))
            assert results[0].queue.broker_name == leaving.name
            assert [request.body for request in leaving.sends] == [b"first", b"under way"]
            assert [request.body for request in staying.sends] == [b"last"]
            await clock.advance(1)
            assert connection.closed
            assert leftovers(producer) == {}


# --- C37: a broker that refuses half ---------------------------------------------------------------------------------


REFUSALS = [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL]


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("names", [("broker-a",), TWO])
async def test_a_broker_that_refuses_half_gets_no_storm_of_retries(code: ResponseCode, names: tuple[str, ...]) -> None:
    """Half of the tries fail, so a message takes two on average, and more where the last of its tries fails as well."""
    clock, chance = VirtualClock(), random.Random(37)
    attempts: Counter[bytes] = Counter()
    at: dict[bytes, list[float]] = {}
    async with ScriptedCluster(clock, names) as cluster:
        cluster.add_topic("T")

        def refuse_half(broker: Any, request: RemotingCommand) -> RemotingCommand:
            attempts[request.body] += 1
            at.setdefault(request.body, []).append(clock.now)
            answer: RemotingCommand = broker.store(request)
            return RemotingCommand.response(code, "no") if chance.random() < 0.5 else answer

        for broker in cluster.brokers.values():
            broker.on_send = partial(refuse_half, broker)
        outcomes: Counter[str] = Counter()
        async with producer_of(cluster) as producer, anyio.create_task_group() as tasks:

            async def send(number: int) -> None:
                try:
                    await producer.send(message(b"%d" % number))
                    outcomes["sent"] += 1
                except BrokerError as error:
                    outcomes[f"refused by {error.code}"] += 1

            for number in range(400):
                tasks.start_soon(send, number)
            await clock.advance(5)
        most = 1 + producer.options.retry_times_when_send_failed
        budget = 400 * sum(0.5**tries for tries in range(most))  # tries that 400 messages take if half of them fail
        assert sum(attempts.values()) <= 1.1 * budget < 1.5 * 400 * most / 2
        assert max(attempts.values()) == most
        assert outcomes["sent"] > 320
        assert outcomes["sent"] + outcomes[f"refused by {int(code)}"] == 400
        if len(names) == 1:  # nothing to turn to: there is a pause before each try, and a longer one each time
            pauses = [[later - sooner for sooner, later in pairwise(each)] for each in at.values()]
            _check_spread({each[0] for each in pauses if each}, 0.05)
            _check_spread({each[1] for each in pauses if len(each) > 1}, 0.1)


def _check_spread(pauses: set[float], longest: float) -> None:
    """They are spread over the longer half of the longest one, without a lump anywhere in it."""
    assert len(pauses) > 50
    ordered = sorted({longest / 2, *pauses, longest})
    assert round(ordered[0], 9) == longest / 2
    assert round(ordered[-1], 9) == longest
    assert max(later - sooner for sooner, later in pairwise(ordered)) < longest / 8


async def _times_of_tries(seed: int, code: int, *, timeout: float, retries: int) -> tuple[list[float], BrokerError]:
    """When a broker that refuses all was asked, from the first time on, and what the send said in the end."""
    clock = VirtualClock(seed)
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        asked: list[float] = []

        def refuse(_: RemotingCommand) -> RemotingCommand:
            asked.append(clock.now)
            return RemotingCommand.response(code, "overloaded")

        cluster.broker.on_send = refuse
        refused: list[BrokerError] = []
        async with producer_of(cluster, retry_times_when_send_failed=retries) as producer:

            async def send() -> None:
                with pytest.raises(BrokerError, match="overloaded") as caught:
                    await producer.send(message(), timeout=timeout)
                refused.append(caught.value)

            await clock.run(send)
    return [each - asked[0] for each in asked], refused[0]


@pytest.mark.parametrize("code", REFUSALS)
async def test_the_error_at_the_end_tells_of_all_tries_of_an_overloaded_broker(code: ResponseCode) -> None:
    asked, error = await _times_of_tries(1, code, timeout=3, retries=4)
    assert error.code == code
    assert len(asked) == 5
    (story,) = error.__notes__
    assert "5 tries: broker-a" in story
    assert story.endswith(f"answered code {code:d}: overloaded (5 times)")


async def test_the_pauses_between_tries_grow_to_a_bound_and_end_with_the_time_of_the_send() -> None:
    asked, error = await _times_of_tries(1, ResponseCode.SYSTEM_BUSY, timeout=2, retries=1000)
    assert error.code == ResponseCode.SYSTEM_BUSY
    pauses = [later - sooner for sooner, later in pairwise(asked)]
    for pause, longest in zip(pauses, [0.05, 0.1, 0.2, *[0.25] * len(pauses)], strict=False):
        assert longest / 2 <= round(pause, 9) <= longest
    assert 2 - 0.25 <= asked[-1] < 2
    assert f"{len(asked)} tries" in error.__notes__[0]


async def test_two_clients_pause_differently_and_one_with_the_same_seed_as_before() -> None:
    first, again, other = [
        (await _times_of_tries(seed, ResponseCode.SYSTEM_BUSY, timeout=2, retries=5))[0] for seed in (1, 1, 2)
    ]
    assert first == again
    assert all(one != another for one, another in zip(first[1:], other[1:], strict=True))


class FailsSecond:
    """A hook that fails from the second send on."""

    asked = 0

    def before_request(self, address: str, command: RemotingCommand) -> None:
        pass

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        self.asked += 1
        if self.asked > 1:
            raise ValueError("no token")
        return b""

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        pass


async def test_a_hook_that_fails_before_the_second_try_does_not_hide_that_the_first_may_have_been_stored() -> None:
    async with ScriptedCluster(VirtualClock(), TWO) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, client={"hooks": (FailsSecond(),)}) as producer:

            def close(_: RemotingCommand) -> None:
                for broker in cluster.brokers.values():
                    for connection in list(broker.connections):
                        connection.abort()

            for broker in cluster.brokers.values():
                broker.on_send = close
            with pytest.raises(ConnectionClosedError, match=r"may have been stored") as caught:
                await producer.send(message())
            assert isinstance(caught.value.__context__, HookFailedError)


# --- C44: one-way over a dead connection -----------------------------------------------------------------------------


async def test_one_way_goes_over_a_new_connection_when_the_old_one_is_known_to_be_dead() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send_one_way(message(b"1"))
            await settle()
            for connection in list(cluster.broker.connections):
                connection.abort()
            await settle()
            await producer.send_one_way(message(b"2"))
            await settle()
            assert [request.body for request in cluster.broker.sends] == [b"1", b"2"]


async def test_one_way_over_a_connection_whose_death_nobody_knows_may_be_lost_and_the_next_ones_are_not() -> None:
    """That is what one-way promises; the death is known as soon as anything has told of it."""
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send_one_way(message(b"1"))
            await settle()
            for connection in list(cluster.broker.connections):
                connection.abort()
            await producer.send_one_way(message(b"lost, perhaps"))
            await settle()
            for number in range(3):
                await producer.send_one_way(message(b"%d" % number))
            await settle()
            bodies = [request.body for request in cluster.broker.sends]
            assert [body for body in bodies if b"lost" not in body] == [b"1", b"0", b"1", b"2"]
            assert len(bodies) <= 5


# --- C48: cancelled at every place -----------------------------------------------------------------------------------

MOST_TURNS = 60  # of the loop; a request has no reply here, and ends never
HANDLE = encode_recall_handle(RecallHandle("T", "broker-b", 1_700_000_100_000, "ID"))


async def _commit_one(producer: Producer) -> None:
    async with producer.transaction(message()):
        pass


async def _unknown(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.UNKNOWN


KINDS: dict[str, Callable[[Producer], Awaitable[object]]] = {
    "send": lambda producer: producer.send(message()),
    "compressed": lambda producer: producer.send(message(LARGE)),
    "many": lambda producer: producer.send_many([message()] * 5),
    "batch": lambda producer: producer.send_batch([message()] * 5),
    "one-way": lambda producer: producer.send_one_way(message()),
    "request": lambda producer: producer.request(message()),
    "transaction": lambda producer: _commit_one(producer),
    "recall": lambda producer: producer.recall(HANDLE),
}
LAST_REQUESTS = {"transaction": {RequestCode.END_TRANSACTION}, "recall": {RequestCode.RECALL_MESSAGE}}


@pytest.mark.parametrize("kind", list(KINDS))
async def test_a_send_that_is_cancelled_anywhere_leaves_nothing_and_no_half_frame(kind: str) -> None:
    """After so many turns of the loop, from none to as many as the whole send takes: with a cold client, and a warm
    one. Then sends go over the same connection."""
    clock = VirtualClock()
    places = 0
    cluster = ScriptedCluster(clock, TWO)
    for broker in cluster.brokers.values():
        broker.scripts[RequestCode.END_TRANSACTION] = lambda connection, request: RemotingCommand.response()
        broker.scripts[RequestCode.RECALL_MESSAGE] = lambda connection, request: RemotingCommand.response(
            ext_fields={"msgId": "ID"}
        )
    async with cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            producer.add_transaction_checker(_unknown)
            for _ in TWO:
                await producer.send(message())
            links = connections_of(producer)
            for turns in range(MOST_TURNS):
                ends = await _cancelled_after(turns, lambda: KINDS[kind](producer))
                async with producer_of(cluster) as cold:
                    cold.add_transaction_checker(_unknown)
                    cold_ends = await _cancelled_after(turns, lambda cold=cold: KINDS[kind](cold))  # type: ignore[misc]
                    await settle()
                    assert leftovers(cold) == {}
                places += (not ends) + (not cold_ends)
                if ends and cold_ends:
                    break
            assert places > 5, "most were cancelled before they had begun"
            codes = {request.code for broker in cluster.brokers.values() for request in broker.requests}
            assert codes >= LAST_REQUESTS.get(kind, set()), "all were cancelled before the last step"
            for number in range(20):
                await producer.send(message(b"after %d" % number))
            assert leftovers(producer) == {}
            assert connections_of(producer) == links, "half a frame closes a connection"
            bodies = [each.body for broker in cluster.brokers.values() for each in broker.sends]
            after = [body for body in bodies if body.startswith(b"after")]
            assert sorted(after) == sorted(b"after %d" % number for number in range(20))


async def _cancelled_after(turns: int, send: Callable[[], Awaitable[object]]) -> bool:
    """Whether a send has ended within so many turns of the loop; else it is cancelled then."""
    ended = False

    async def run() -> None:
        nonlocal ended
        await send()
        ended = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return ended
