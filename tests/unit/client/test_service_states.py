"""The states of a producer and its client: repeated starts, starts at the same time, and use after the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from rocketbox.client import CredentialsFile, MQClientInstance, Producer, SendContext, ServiceState
from rocketbox.client.middleware import SendNext
from rocketbox.errors import ClientStateError, CredentialsError, InvalidGroupError, NotStartedError
from rocketbox.message import Message, SendResult
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


def states(producer: Producer) -> tuple[ServiceState, ServiceState]:
    return producer.service_state, producer.instance.service_state


async def test_a_producer_goes_through_apaches_states_with_its_client() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        producer = producer_of(cluster)
        assert states(producer) == (ServiceState.CREATE_JUST, ServiceState.CREATE_JUST)
        async with producer:
            assert states(producer) == (ServiceState.RUNNING, ServiceState.RUNNING)
            with pytest.raises(ClientStateError, match="PG1 was started before and is RUNNING"):
                await producer.__aenter__()
            await producer.send(Message("T", b"it runs on"))
        assert states(producer) == (ServiceState.SHUTDOWN_ALREADY, ServiceState.SHUTDOWN_ALREADY)
        with pytest.raises(ClientStateError, match="is SHUTDOWN_ALREADY; make a new Producer"):
            await producer.__aenter__()
        with pytest.raises(NotStartedError, match="PG1 is not started; it was stopped, and stays so"):
            await producer.send(Message("T", b"late"))
        assert await producer.__aexit__(None, None, None) is None


SENDS: dict[str, Callable[[Producer, Message], Awaitable[object]]] = {
    "send": lambda producer, message: producer.send(message),
    "send_one_way": lambda producer, message: producer.send_one_way(message),
    "send_batch": lambda producer, message: producer.send_batch([message]),
    "send_many": lambda producer, message: producer.send_many([message]),
    "request": lambda producer, message: producer.request(message),
    "recall": lambda producer, message: producer.recall("handle"),
    "transaction": lambda producer, message: producer.transaction(message).__aenter__(),
}


@pytest.mark.parametrize("way", SENDS)
@pytest.mark.parametrize("with_middleware", [False, True])
async def test_who_tries_again_and_again_at_a_closed_producer_does_not_hold_up_the_loop(
    way: str, with_middleware: bool
) -> None:
    async def middleware(context: SendContext, call_next: SendNext) -> SendResult | None:
        return await call_next(context)

    async with ScriptedCluster(VirtualClock()) as cluster:
        producer = producer_of(cluster, client={"send_middleware": (middleware,) if with_middleware else ()})
        async with producer:
            pass
    refused = 0

    async def try_again() -> None:
        nonlocal refused
        while refused < 1_000:
            with suppress(ClientStateError):
                await SENDS[way](producer, Message("T", b"late"))
            refused += 1

    async with anyio.create_task_group() as group:
        group.start_soon(try_again)
        for _ in range(20):
            await checkpoint()
        assert refused < 100, "the others had their turns"
        group.cancel_scope.cancel()


async def test_a_closed_producer_refuses_where_no_loop_runs_as_well() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        producer = producer_of(cluster)
        async with producer:
            pass

    def send() -> None:
        producer.send(Message("T", b"late")).send(None)

    with pytest.raises(NotStartedError):
        await to_thread.run_sync(send)


async def test_a_start_that_failed_may_be_repeated(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        producer = producer_of(cluster, client={"credentials": CredentialsFile(keys)})
        for _ in range(2):
            with pytest.raises(CredentialsError):
                await producer.__aenter__()
            assert states(producer) == (ServiceState.START_FAILED, ServiceState.START_FAILED)
            with pytest.raises(NotStartedError):
                await producer.send(Message("T", b"too early"))
        keys.write_text("accessKey: AK\nsecretKey: a-secret-of-tests\n")
        keys.chmod(0o600)
        async with producer:
            assert states(producer) == (ServiceState.RUNNING, ServiceState.RUNNING)
            assert (await producer.send(Message("T", b"x"))).msg_id


async def test_a_group_that_was_taken_may_be_tried_again_when_it_is_free() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        address = cluster.name_server.address
        async with MQClientInstance(address, clock=clock, network=cluster.network) as instance:
            second = Producer("PG1", instance=instance)
            async with Producer("PG1", instance=instance):
                with pytest.raises(InvalidGroupError, match="in use"):
                    await second.__aenter__()
                assert second.service_state is ServiceState.START_FAILED
            async with second:
                assert (await second.send(Message("T", b"x"))).msg_id


async def test_of_starts_at_the_same_time_one_succeeds_and_the_others_say_so() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        producer = producer_of(cluster)
        refused: list[str] = []
        running, over = anyio.Event(), anyio.Event()

        async def use() -> None:
            try:
                async with producer:
                    running.set()
                    await over.wait()
            except ClientStateError as error:
                refused.append(str(error))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(use)
            await running.wait()
            await settle()
            assert len(refused) == 2
            assert all("was started before and is" in each for each in refused)
            assert (await producer.send(Message("T", b"x"))).msg_id
            over.set()
        assert producer.service_state is ServiceState.SHUTDOWN_ALREADY
