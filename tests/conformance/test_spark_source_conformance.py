"""What the Spark source asks brokers, without Spark: on our broker and on Apache's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import Admin, ClientOptions, MQClientInstance, Producer
from rocketbox.clock import RealClock
from rocketbox.message import Message, MessageQueue
from rocketbox.spark.checkpoint import INITIAL, CheckpointError, decode_offset, encode_offset
from rocketbox.spark.lease import Lease, LeaseLostError
from rocketbox.spark.mirror import GroupMirror
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.progress import StreamProgress, ranges_between
from rocketbox.spark.selection import Selection
from rocketbox.spark.starting import offset_at
from tests.conformance.apache import EACH_VERSION, mqadmin
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]


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
    request: pytest.FixtureRequest, name_server: str, topic: str, tmp_path: Path
) -> None:
    version = request.node.callspec.params["name_server"]
    async with Admin(name_server=name_server) as admin:
        queue = await made(admin, topic)
        await send(name_server, queue, 8)
        mirror = GroupMirror(f"g-{topic}", RealClock())
        for done in (5, 8):
            await mirror.follow(admin, {queue: done})
            for _ in range(3):  # its own timeouts are short for a machine with much to do
                shown = await anyio.to_thread.run_sync(
                    mqadmin, tmp_path, version, name_server, "consumerProgress", "-g", f"g-{topic}"
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
        queues, missing = await Selection(pattern=re.compile(".*")).queues(admin)
        assert {queue.topic for queue in queues if not re.fullmatch("t[0-9a-f]{12}", queue.topic)} == set()
        assert topic in {queue.topic for queue in queues}
        assert missing == []
        await admin.delete_topic(topic)
