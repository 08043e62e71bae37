"""What the Spark source asks brokers, without Spark: on our broker and on Apache's."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import Admin, ClientOptions, MQClientInstance, Producer
from rocketbox.clock import RealClock
from rocketbox.message import Message, MessageQueue
from rocketbox.spark.checkpoint import INITIAL, CheckpointError, decode_offset, encode_offset
from rocketbox.spark.lease import Lease, LeaseLostError
from rocketbox.spark.loss import DataLossError
from rocketbox.spark.mirror import GroupMirror
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.progress import StreamProgress, ranges_between
from rocketbox.spark.reading import read_ranges
from rocketbox.spark.selection import Selection
from rocketbox.spark.starting import offset_at
from tests.conformance.apache import EACH_VERSION, apache_servers, mqadmin
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]

# In the names of all that tests make on the servers that they share, but for the suites of README and flight desk.
OF_TESTS = re.compile("[0-9a-f]{8}|^(alerts|departures|orders)$")


async def send(name_server: str, queue: MessageQueue, count: int) -> None:
    async with Producer("p", name_server=name_server) as producer:
        for number in range(count):
            result = await producer.send(Message(queue.topic, b"%d" % number), queue=queue)
    async with Admin(name_server=name_server) as admin:
        with anyio.fail_after(PATIENCE):
            while await admin.max_offset(queue) <= result.queue_offset:  # Apache's broker fills its queues later
                await anyio.sleep(0.05)


async def made(admin: Admin, topic: str) -> MessageQueue:
    await admin.create_topic(topic, queues=1)
    (queue,) = await admin.queues(topic)
    return queue


def progress(name_server: str, topic: str, **options: str) -> StreamProgress:
    return StreamProgress(SourceOptions({"nameServer": name_server, "topic": topic, **options}), RealClock())


async def test_a_stream_goes_on_in_its_topic_and_not_in_one_made_anew(name_server: str, topic: str) -> None:
    async with Admin(name_server=name_server) as admin:
        queue = await made(admin, topic)
        await send(name_server, queue, 5)
        end = await progress(name_server, topic, group=f"g-{topic}").next(admin, INITIAL)
        assert end.queues[queue].next == 5
        assert end.queues[queue].witness is not None
        kept = decode_offset(json.loads(json.dumps(encode_offset(end))))
        await send(name_server, queue, 3)
        more = await progress(name_server, topic, group=f"g-{topic}").next(admin, kept)
        assert [(piece.start, piece.end) for piece in ranges_between(kept, more)] == [(5, 8)]
        mirror = GroupMirror(f"g-{topic}", RealClock())
        await mirror.follow(admin, {queue: 8})
        await GroupMirror(f"g-{topic}", RealClock()).follow(admin, {queue: 5})
        assert await admin.committed(f"g-{topic}", queue) == 8
        await admin.delete_topic(topic)
        queue = await made(admin, topic)
        kept_on = await admin.max_offset(queue)  # a broker may go on where the queue was
        await send(name_server, queue, 20)
        if kept_on:
            found = await progress(name_server, topic, group=f"g-{topic}").next(admin, kept)
            assert [(piece.start, piece.end) for piece in ranges_between(kept, found)] == [(5, kept_on + 20)]
        else:
            with pytest.raises(CheckpointError, match="the checkpoint is not of what name server"):
                await progress(name_server, topic, group=f"g-{topic}").next(admin, kept)
        await admin.delete_topic(topic)


async def test_queues_that_come_and_go_are_read_once_each(name_server: str, topic: str) -> None:
    options = SourceOptions({"nameServer": name_server, "topic": topic, "group": f"g-{topic}"})

    async def with_queues(admin: Admin, count: int) -> list[MessageQueue]:
        await admin.create_topic(topic, queues=count)
        with anyio.fail_after(PATIENCE):
            while len(queues := await admin.queues(topic)) != count:  # Apache's name server hears of it a little later
                await anyio.sleep(0.2)
        return queues

    async with Admin(name_server=name_server) as admin:
        stream = StreamProgress(options, RealClock())
        for queue in await with_queues(admin, 2):
            await send(name_server, queue, 3)
        first = await stream.next(admin, INITIAL)
        assert sorted(piece.end - piece.start for piece in ranges_between(INITIAL, first)) == [3, 3]
        for queue in await with_queues(admin, 4):
            await send(name_server, queue, 2)
        second = await stream.next(admin, first)
        with anyio.fail_after(PATIENCE):
            while len(second.queues) < 4:  # the stream's own look at the route is some seconds old at most
                await anyio.sleep(0.2)
                second = await stream.next(admin, second)
        assert [(piece.queue.queue_id, piece.start, piece.end) for piece in ranges_between(first, second)] == [
            (0, 3, 5), (1, 3, 5), (2, 0, 2), (3, 0, 2),
        ]  # fmt: skip
        await with_queues(admin, 1)
        fresh = StreamProgress(options, RealClock())
        third = await fresh.next(admin, second)
        assert third.queues == second.queues, "all was read, and each queue keeps its place"
        (queue,) = await admin.queues(topic)
        await send(name_server, queue, 1)
        fourth = await fresh.next(admin, third)
        assert [(piece.start, piece.end) for piece in ranges_between(third, fourth) if piece] == [(5, 6)]
        for queue in await with_queues(admin, 4):
            await send(name_server, queue, 1)
        fifth = await StreamProgress(options, RealClock()).next(admin, fourth)
        assert [(piece.start, piece.end) for piece in ranges_between(fourth, fifth)] == [(6, 7), (5, 6), (2, 3), (2, 3)]
        await admin.delete_topic(topic)


@pytest.mark.between  # a minute each
@pytest.mark.parametrize("version", EACH_VERSION)
async def test_what_apaches_retention_deletes_before_it_is_read_is_refused_or_told(
    version: str, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    often: dict[str, Any] = {
        "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)), "fileReservedTime": 0,
        "mappedFileSizeCommitLog": 200_000, "deleteCommitLogFilesInterval": 0, "cleanResourceInterval": 1000,
    }  # fmt: skip
    with apache_servers(tmp_path, version, keeps_store=False, **often) as servers:
        async with Admin(name_server=servers.name_server) as admin, Producer("p", name_server=servers.name_server) as p:
            queue = await made(admin, topic)
            await send(servers.name_server, queue, 5)
            kept = await progress(servers.name_server, topic).next(admin, INITIAL)
            for _ in range(300):
                await p.send(Message(topic, b"x" * 4000), queue=queue)
            with anyio.fail_after(3 * PATIENCE):  # it begins to clean a minute after its start
                while (begin := await admin.min_offset(queue)) <= 5:
                    await anyio.sleep(0.5)
            end = await progress(servers.name_server, topic).next(admin, kept)
            (piece,) = ranges_between(kept, end)
            assert (piece.start, piece.end) == (5, 305)

            def read(**options: str) -> list[int]:
                said = {"nameServer": servers.name_server, "topic": topic, **options}
                batches = read_ranges([piece], SourceOptions(said))
                return [offset for batch in batches for offset in batch.column("queue_offset").to_pylist()]

            with pytest.raises(DataLossError, match=rf"{topic} broker-a/0: offsets 5 to \d+ \(\d+ in all\) are gone"):
                await anyio.to_thread.run_sync(read)
            found = await anyio.to_thread.run_sync(partial(read, failOnDataLoss="false"))
            assert found == list(range(found[0], 305))
            assert begin <= found[0] <= await admin.min_offset(queue)
            assert f"offsets 5 to {found[0] - 1} ({found[0] - 5} in all) are gone" in caplog.text


async def test_one_driver_at_a_time_has_the_lease(name_server: str, topic: str) -> None:
    async with (
        Admin(name_server=name_server) as admin,
        MQClientInstance(name_server, options=ClientOptions(instance_name="one")) as one,
        MQClientInstance(name_server, options=ClientOptions(instance_name="other")) as other,
    ):
        await made(admin, topic)
        first, second = (Lease(client, f"g-{topic}", topic, holder=client.client_id) for client in (one, other))
        assert (await first.take()).held
        refused = await second.take()
        assert (refused.held, refused.by_another) == (False, True)
        await first.confirm()
        await first.release()
        assert (await second.take()).held
        assert (await first.take()).by_another
        with pytest.raises(LeaseLostError):
            await first.confirm()
        await second.confirm()
        await second.release()
        await admin.delete_topic(topic)


@pytest.mark.parametrize("name_server", EACH_VERSION, indirect=True)  # the embedded broker answers no GET_CONSUME_STATS
async def test_mqadmin_shows_the_lag_of_a_mirrored_group_also_while_its_topic_is_idle(
    name_server: str, kind: str, topic: str, tmp_path: Path
) -> None:
    async with Admin(name_server=name_server) as admin:
        queue = await made(admin, topic)
        await send(name_server, queue, 8)
        mirror = GroupMirror(f"g-{topic}", RealClock())
        for done in (5, 8):
            await mirror.follow(admin, {queue: done})
            for _ in range(3):  # its own timeouts are short for a machine with much to do
                shown = await anyio.to_thread.run_sync(
                    mqadmin, tmp_path, kind, name_server, "consumerProgress", "-g", f"g-{topic}"
                )
                if "command failed" not in shown:
                    break
            lines = [line.split() for line in shown.splitlines() if line.startswith(topic)]
            assert [line[1:5] for line in lines] == [[queue.broker_name, "0", "8", str(done)]], shown
            assert f"Diff Total: {8 - done}" in shown
        await admin.delete_topic(topic)


async def test_a_time_is_the_first_message_stored_then_or_later(name_server: str, topic: str) -> None:
    async with Admin(name_server=name_server) as admin:
        queue = await made(admin, topic)
        await send(name_server, queue, 10)
        stored = [(await admin.pull(queue, number, 1)).messages[0].store_timestamp_ms for number in range(10)]
        for time in {stored[0] - 10_000, stored[0], stored[5], stored[9], stored[9] + 10_000, stored[9] + 10**9}:
            expected = next((number for number, each in enumerate(stored) if each >= time), 10)
            assert await offset_at(admin, queue, time) == expected, time - stored[0]
        await admin.delete_topic(topic)


async def test_a_pattern_finds_no_topic_of_the_servers(name_server: str, topic: str) -> None:
    async with Admin(name_server=name_server) as admin:
        await made(admin, topic)
        queues, missing, closed = await Selection(pattern=re.compile(".*")).queues(admin)
        assert {queue.topic for queue in queues if not OF_TESTS.search(queue.topic)} == set()
        assert topic in {queue.topic for queue in queues}
        assert (missing, [name for name in closed if not OF_TESTS.search(name)]) == ([], [])
        await admin.delete_topic(topic)
