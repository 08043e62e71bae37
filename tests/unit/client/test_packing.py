"""Bodies that a producer compresses: which ones, how, and what brokers are sent."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from rocketbox import blocking
from rocketbox.client import Producer, ProducerOptions
from rocketbox.client import packing as module
from rocketbox.clock import RealClock
from rocketbox.errors import ClientError, ConfigurationError, InvalidMessageError, SendManyError
from rocketbox.message import Compression, LocalTransactionState, Message, MessageExt
from rocketbox.protocol import compression
from rocketbox.protocol.codes import MessageSysFlag, RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.compression import sys_flag_of, unpack
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

TEXT = b"all work and no play " * 1000  # 21,000 bytes
WAYS = [Compression.ZLIB, Compression.LZ4, Compression.ZSTD]


async def sent(message: Message, **options: Any) -> tuple[int, bytes, int]:
    """sysFlag, body and flag of what a broker was sent."""
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, **options) as producer:
            await producer.send(message)
        (request,) = cluster.broker.sends
        return int(request.ext_fields["f"]), request.body, int(request.ext_fields["h"])


async def refusal(message: Message) -> str:
    """What the producer says of a message that it does not take."""
    async with ScriptedCluster(VirtualClock()) as cluster, producer_of(cluster) as producer:
        with pytest.raises(InvalidMessageError) as caught:
            await producer.send(message)
        assert not cluster.broker.sends
    return str(caught.value)


async def test_bodies_from_the_threshold_on_are_compressed() -> None:
    flag, body, _ = await sent(Message("T", b"x" * 4096))
    assert (flag, unpack(body, flag, 5000)) == (769, b"x" * 4096)
    assert await sent(Message("T", b"x" * 4095)) == (0, b"x" * 4095, 0)
    flag, body, _ = await sent(Message("T", b"x" * 100), compress_message_body_threshold=100)
    assert (flag, unpack(body, flag, 100)) == (769, b"x" * 100)


@pytest.mark.parametrize("way", WAYS)
async def test_the_settings_say_how(way: Compression) -> None:
    flag, body, own = await sent(Message("T", TEXT, flag=7), compress_type=way, compress_level=9)
    assert (flag, unpack(body, flag, len(TEXT)), own) == (sys_flag_of(way), TEXT, 7)


async def test_the_level_of_the_settings_is_taken() -> None:
    text = b"".join(b"%d squared is %d\n" % (number, number * number) for number in range(1000))
    sizes = [len((await sent(Message("T", text), compress_level=level))[1]) for level in (1, 9)]
    assert sizes[0] > sizes[1]


async def test_none_compresses_nothing() -> None:
    assert await sent(Message("T", TEXT), compress_type=Compression.NONE) == (0, TEXT, 0)


@pytest.mark.parametrize("way", WAYS)
async def test_a_message_may_say_for_itself(way: Compression) -> None:
    flag, body, _ = await sent(Message("T", b"x" * 100, compression=way), compress_type=Compression.NONE)
    assert (flag, unpack(body, flag, 100)) == (sys_flag_of(way), b"x" * 100)
    assert await sent(Message("T", TEXT, compression=Compression.NONE)) == (0, TEXT, 0)


async def test_what_does_not_become_smaller_goes_as_it_is() -> None:
    body = os.urandom(5000)
    assert await sent(Message("T", body, flag=3)) == (0, body, 3)


async def test_a_large_body_is_compressed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def watched(*args: Any) -> bytes:
        threads.append(threading.current_thread())
        return compression.compress(*args)

    monkeypatch.setattr(module, "compress", watched)
    flag, body, own = await sent(Message("T", bytes(1 << 20), flag=9))
    assert (flag, unpack(body, flag, 1 << 20), own) == (769, bytes(1 << 20), 9)
    await sent(Message("T", TEXT))
    assert [thread is threading.current_thread() for thread in threads] == [False, True]


async def test_a_body_that_is_compressed_too_late_was_not_sent_and_no_broker_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of a send holds for its compression, too, also while all threads are busy."""
    begun, may_end = threading.Semaphore(0), threading.Event()

    def slow(*args: Any) -> bytes:
        begun.release()
        may_end.wait(PATIENCE)
        return compression.compress(*args)

    clock, failures = VirtualClock(), dict[str, Exception]()
    async with ScriptedCluster(clock, brokers=("broker-a", "broker-b")) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer, anyio.create_task_group() as tasks:

            async def fails(name: str, send: Callable[[], Awaitable[object]]) -> None:
                with pytest.raises((ClientError, SendManyError)) as caught:
                    await send()
                failures[name] = caught.value

            large = Message("T", bytes(100_000))
            await producer.send_many([Message("T", b"x")] * 8)
            asked = cluster.name_server.asked("T")
            sent = [len(broker.sends) for broker in cluster.brokers.values()]
            monkeypatch.setattr(module, "compress", slow)
            monkeypatch.setattr(blocking, "SHORT_WORK", 1)
            tasks.start_soon(fails, "first", lambda: producer.send(large))
            assert await anyio.to_thread.run_sync(begun.acquire, True, PATIENCE, limiter=anyio.CapacityLimiter(1))
            tasks.start_soon(fails, "one-way", lambda: producer.send_one_way(large))
            tasks.start_soon(fails, "many", lambda: producer.send_many([large]))
            tasks.start_soon(fails, "request", lambda: producer.request(large, timeout=2))
            await clock.advance(3)
            assert failures.keys() == {"one-way", "many", "request"}, "they waited for a thread"
            may_end.set()
            with anyio.fail_after(PATIENCE):
                while "first" not in failures:
                    await anyio.sleep(0.001)
            assert [len(broker.sends) for broker in cluster.brokers.values()] == sent
            tasks.start_soon(partial(producer.send_many, [Message("T", b"x")] * 8))
            await clock.advance(0)
            now = [len(broker.sends) for broker in cluster.brokers.values()]
            assert [many - few for many, few in zip(now, sent, strict=True)] == [4, 4], "none of them is avoided"
            await clock.advance(1)
            assert cluster.name_server.asked("T") == asked, "nor is the route suspected"
    many = failures.pop("many")
    assert isinstance(many, SendManyError)
    for failure in (*failures.values(), *many.results):
        assert type(failure) is ClientError
        assert "was not sent: the time of the send was over before its body of 100000 bytes was comp" in str(failure)


async def test_every_way_to_send_compresses_but_batches() -> None:
    large, text = Message("T", bytes(100_000)), Message("T", TEXT)
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send_many([large, text, Message("T", b"small"), large])
            await producer.send_one_way(large)
            await producer.send_one_way(text)
        requests = cluster.broker.sends
        flags = [int(request.ext_fields["f"]) for request in requests]
        bodies = [
            unpack(each.body, flag, 100_000) if flag else each.body for each, flag in zip(requests, flags, strict=True)
        ]
        assert sorted(map(len, bodies)) == [5, 21_000, 21_000, 100_000, 100_000, 100_000]
        assert flags.count(0) == 1
        async with producer_of(cluster) as producer:
            await producer.send_batch([text, text])
            assert cluster.broker.sends[-1].ext_fields["f"] == "0"
            with pytest.raises(InvalidMessageError, match="batches go as they are"):
                await producer.send_batch([text, Message("T", TEXT, compression=Compression.ZSTD)])


@pytest.mark.parametrize("wrong", ["ZLIB", 3])
async def test_a_compression_that_is_none_is_refused(wrong: Any) -> None:
    assert "must be a Compression" in await refusal(Message("T", b"x", compression=wrong))


async def test_a_codec_that_is_not_installed_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compression, "_LIBRARIES", {Compression.LZ4: lambda: None})
    told = await refusal(Message("T", b"x", compression=Compression.LZ4))
    assert "LZ4, which this process cannot: install rocketbox[lz4]" in told
    with pytest.raises(ConfigurationError, match=r"LZ4, which is not installed\n.*install rocketbox\[lz4\], or choose"):
        ProducerOptions(compress_type=Compression.LZ4)


@pytest.mark.parametrize(("way", "level"), [(Compression.ZLIB, 10), (Compression.ZSTD, 23), (Compression.ZLIB, 0)])
def test_levels_that_are_none_are_refused(way: Compression, level: int) -> None:
    with pytest.raises(ConfigurationError, match=f"compress_level is {level}"):
        ProducerOptions(compress_type=way, compress_level=level)


@pytest.mark.parametrize("size", [5_000, 100_000])
@pytest.mark.parametrize("smaller", [True, False])
async def test_half_messages_are_compressed_as_others_are_and_stay_halves(size: int, smaller: bool) -> None:
    body = b"x" * size if smaller else os.urandom(size)

    async def check(message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    async with ScriptedCluster(RealClock()) as cluster:
        cluster.add_topic("T")
        for broker in cluster.brokers.values():
            broker.scripts[RequestCode.END_TRANSACTION] = lambda connection, request: RemotingCommand.response()
        asked: dict[str, Any] = {"clock": cluster.clock, "network": cluster.network, "transaction_checker": check}
        async with Producer("PG1", name_server=cluster.name_server.address, **asked) as producer:
            await producer.transaction(Message("T", body, flag=7)).begin()
        (request,) = cluster.broker.sends
    flag = int(request.ext_fields["f"])
    assert flag & MessageSysFlag.TRANSACTION_ROLLBACK == MessageSysFlag.TRANSACTION_PREPARED
    assert bool(flag & MessageSysFlag.COMPRESSED) is smaller is (len(request.body) < size)
    assert (unpack(request.body, flag, size) if smaller else request.body) == body
    assert request.ext_fields["h"] == "7"
