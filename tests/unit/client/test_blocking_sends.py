"""Sends of threads: no task for each, and the same tries, errors, middlewares and ends as sends that are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import anyio
import pytest

from rocketbox.client import Producer, SendContext
from rocketbox.client.middleware import SendNext
from rocketbox.errors import (
    BrokerError,
    ClientError,
    ClientStateError,
    InvalidMessageError,
    NotDurableError,
    NotStartedError,
    SendTimeoutError,
)
from rocketbox.message import Message, SendResult, SendStatus
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.tasks import Supervisor
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

SEND = "template.blocking.send"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all tasks that sends of threads start."""
    names: list[str] = []
    start = Supervisor.start

    def counted(self: Supervisor, name: str, *rest: Any, **options: Any) -> Any:
        if "of a thread" in name:
            names.append(name)
        return start(self, name, *rest, **options)

    monkeypatch.setattr(Supervisor, "start", counted)
    return names


def sending(threads: ThreadPoolExecutor, producer: Producer, message: Message, **options: Any) -> Future[SendResult]:
    return threads.submit(producer.send_from_thread, SEND, message, **options)


async def ended(future: Future[Any]) -> Any:
    """What a thread gets, in real time; virtual time stands still."""
    with anyio.fail_after(PATIENCE):
        while not future.done():
            await anyio.sleep(0.001)
    return future.result()


async def ended_in(clock: VirtualClock, future: Future[Any], seconds: float) -> Any:
    """The same, while virtual time moves on."""
    for _ in range(100):
        await anyio.sleep(0.001)
        await clock.advance(seconds / 100)
        if future.done():
            break
    return await ended(future)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():
            await anyio.sleep(0.001)


async def test_sends_of_many_threads_are_stored_without_a_task_for_each(
    threads: ThreadPoolExecutor, started: list[str]
) -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send(Message("T", b"first"))
            futures = [sending(threads, producer, Message("T", b"%d" % number)) for number in range(100)]
            results = [await ended(future) for future in futures]
            assert {result.status for result in results} == {SendStatus.SEND_OK}
            assert len({result.msg_id for result in results}) == 100
            assert started == []
            assert not producer.instance.calls.under_way
        assert sorted(int(request.body) for request in cluster.broker.sends[1:]) == list(range(100))


async def test_the_first_send_of_all_finds_its_route_and_connects(threads: ThreadPoolExecutor) -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            assert (await ended(sending(threads, producer, Message("T", b"a", hash_key="k")))).topic == "T"


def test_it_does_so_in_the_loop_of_asyncio_run_as_well(threads: ThreadPoolExecutor) -> None:
    """As uvicorn and most programs do: outside of tasks, anyio has to be told there which loop it is."""

    async def main() -> None:
        async with ScriptedCluster(VirtualClock()) as cluster:
            cluster.add_topic("T")
            async with producer_of(cluster) as producer:
                assert (await ended(sending(threads, producer, Message("T", b"a")))).topic == "T"

    asyncio.run(main())


async def test_a_try_that_fails_is_followed_by_one_on_another_broker(
    threads: ThreadPoolExecutor, started: list[str]
) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, brokers=("a", "b")) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            for _ in range(2):
                await producer.send(Message("T", b"first"))
            busy = RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "too much")
            cluster.brokers["a"].on_send = lambda request: busy
            results = [await ended(sending(threads, producer, Message("T", b"%d" % each))) for each in range(4)]
            assert {result.broker_name for result in results} == {"b"}
            assert 1 <= len(started) <= 4


async def test_errors_are_those_of_a_send(threads: ThreadPoolExecutor) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send(Message("T", b"first"))
            with pytest.raises(InvalidMessageError):
                await ended(sending(threads, producer, Message("T", b"")))
            with pytest.raises(ClientError, match="timeout"):
                await ended(sending(threads, producer, Message("T", b"a"), timeout=-1.0))
            cluster.broker.on_send = lambda request: RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "no")
            with pytest.raises(BrokerError, match="no"):
                await ended(sending(threads, producer, Message("T", b"a")))
            cluster.broker.on_send = lambda request: cluster.broker.store(request, ResponseCode.FLUSH_DISK_TIMEOUT)
            with pytest.raises(NotDurableError):
                await ended_in(clock, sending(threads, producer, Message("T", b"a")), 5.0)
            cluster.broker.on_send = lambda request: None
            future = sending(threads, producer, Message("T", b"a"), timeout=2.0)
            await until(lambda: len(producer.instance.calls.under_way))
            with pytest.raises(SendTimeoutError, match="2"):
                await ended_in(clock, future, 4.0)


async def test_middlewares_are_around_sends_of_threads(threads: ThreadPoolExecutor) -> None:
    seen: list[bytes] = []

    async def see(context: SendContext, call_next: SendNext) -> SendResult | None:
        seen.append(context.messages[0].body)
        return await call_next(context)

    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, client={"send_middleware": (see,)}) as producer:
            await ended(sending(threads, producer, Message("T", b"a")))
    assert seen == [b"a"]


async def test_the_end_waits_for_answers_and_then_tells_those_who_have_none(threads: ThreadPoolExecutor) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        producer = producer_of(cluster)
        async with producer:
            await producer.send(Message("T", b"first"))
            go_on = anyio.Event()

            async def later(request: RemotingCommand) -> RemotingCommand | None:
                if request.body == b"never":
                    return None
                await go_on.wait()
                return cluster.broker.store(request)

            cluster.broker.on_send = later
            soon = sending(threads, producer, Message("T", b"soon"), timeout=60.0)
            never = sending(threads, producer, Message("T", b"never"), timeout=60.0)
            await until(lambda: len(producer.instance.calls.under_way) == 2)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.instance.calls.close)
                await anyio.sleep(0.01)
                with pytest.raises(NotStartedError):
                    await ended(sending(threads, producer, Message("T", b"late")))
                go_on.set()
                assert (await ended(soon)).status is SendStatus.SEND_OK
                assert not never.done()
                await clock.advance(3.1)
            with pytest.raises(ClientStateError, match="it may have been carried out"):
                await ended(never)
