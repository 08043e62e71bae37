"""What ``template.blocking`` does in the calling thread, and what it takes of others' threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import ClientOptions, Producer
from rocketbox.clock import RealClock
from rocketbox.message import LocalTransactionState, MessageExt
from rocketbox.template import RocketMQTemplate
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def undecided(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.UNKNOWN


@asynccontextmanager
async def template_of(cluster: ScriptedCluster) -> AsyncIterator[RocketMQTemplate]:
    cluster.add_topic("T")
    async with Producer(
        "PG1",
        name_server=cluster.name_server.address,
        client_options=ClientOptions(client_ip="192.0.2.7"),
        transaction_checker=undecided,
        clock=cluster.clock,
        network=cluster.network,
    ) as producer:
        yield RocketMQTemplate(producer)


async def test_threads_of_anyio_that_all_send_what_is_compressed_do_not_wait_for_each_other() -> None:
    """A web framework runs its plain functions in these threads: there are so many, and no more."""
    threads = 4
    together = threading.Barrier(threads, timeout=PATIENCE)
    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, threads
    try:
        async with ScriptedCluster(RealClock()) as cluster, template_of(cluster) as template:

            def endpoint() -> None:
                together.wait()
                template.blocking.send("T", b"x" * 100_000, timeout=PATIENCE)

            async with anyio.create_task_group() as group:
                for _ in range(threads):
                    group.start_soon(anyio.to_thread.run_sync, endpoint)
            assert [len(request.body) < 1000 for request in cluster.broker.sends] == [True] * threads
    finally:
        limiter.total_tokens = before


@pytest.mark.parametrize("verb", ["send", "send_one_way", "recall"])
async def test_what_takes_the_place_of_a_verb_of_a_template_is_what_threads_call(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a test of a service puts its own there, which is to send nothing."""
    asked: list[tuple[object, ...]] = []

    async def own(*args: object, **options: object) -> None:
        asked.append(args)

    async with ScriptedCluster(RealClock()) as cluster, template_of(cluster) as template:
        monkeypatch.setattr(template, verb, own)
        arguments = ("handle",) if verb == "recall" else ("T", "x")
        await anyio.to_thread.run_sync(getattr(template.blocking, verb), *arguments)
        assert (asked, list(cluster.broker.sends)) == ([arguments], [])


@pytest.mark.parametrize("verb", ["send_many", "send_batch"])
async def test_payloads_are_drawn_in_the_calling_thread(verb: str) -> None:
    drawn_in: list[int] = []

    def payloads() -> Iterator[str]:
        for text in ("a", "b"):
            drawn_in.append(threading.get_ident())
            yield text

    async with ScriptedCluster(RealClock()) as cluster, template_of(cluster) as template:

        def send() -> int:
            getattr(template.blocking, verb)("T", payloads=payloads())
            return threading.get_ident()

        assert [await anyio.to_thread.run_sync(send)] * 2 == drawn_in


async def test_what_ends_the_program_in_a_transactions_work_goes_on_though_the_client_is_closed() -> None:
    is_in_work, is_closed = threading.Event(), threading.Event()

    def work(transaction: object) -> LocalTransactionState:
        is_in_work.set()
        is_closed.wait(PATIENCE)
        sys.exit(3)

    raised: list[object] = []
    async with ScriptedCluster(RealClock()) as cluster:
        async with template_of(cluster) as template:

            def send() -> None:
                try:
                    template.blocking.send_in_transaction("T", "a", work)
                except BaseException as error:
                    raised.append(error)

            thread = threading.Thread(target=send)
            thread.start()
            await anyio.to_thread.run_sync(is_in_work.wait)
        is_closed.set()
        await anyio.to_thread.run_sync(thread.join)
    (error,) = raised
    assert isinstance(error, SystemExit)
    assert error.code == 3
