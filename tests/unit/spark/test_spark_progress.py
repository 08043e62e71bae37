"""From offset to offset of a stream, on brokers in memory: which queues move, and whether they are still the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import anyio.lowlevel
import pytest

from rocketbox.broker.broker import Broker
from rocketbox.client import Admin, PulledRecords, PullResult
from rocketbox.errors import BrokerError, ClientError, RemoteProtocolError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import PermName, RequestCode, ResponseCode, retry_topic
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.spark.checkpoint import (
    INITIAL,
    CheckpointError,
    QueueProgress,
    StreamOffset,
    decode_offset,
    encode_offset,
)
from rocketbox.spark.ends import SILENCE, SilenceError
from rocketbox.spark.mirror import GroupMirror
from rocketbox.spark.offsets import QueueOffsets, QueueRange
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.progress import StreamProgress, ranges_between
from rocketbox.spark.readers import RocketMQBatchReader
from rocketbox.spark.selection import MissingTopicError
from rocketbox.spark.taken_away import QueuesTakenError
from rocketbox.spark.worker_client import AT_ONCE, gather
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.spark.log_of_a_broker import StillClock
from tests.support.spark.stores import Store, store, until_closed
from tests.support.store.retention import expire_first_files

pytestmark = pytest.mark.anyio

Q0, Q1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
THERE = MessageQueue("orders", "broker-b", 0)
TEXTS = [b"%d" % number for number in range(200)]


class CountingNetwork(MemoryNetwork):
    """Notes to which ports connections were tried."""

    def __init__(self) -> None:
        super().__init__()
        self.connects: list[int] = []

    async def connect(self, host: str, port: int, opened: Any, tasks: Any) -> Connection:
        self.connects.append(port)
        return await super().connect(host, port, opened, tasks)


@asynccontextmanager
async def five_at_each(here: Store) -> AsyncIterator[Broker]:
    """A second broker with the topic, as long as the block lasts; one queue of each has five messages."""
    async with here.another_broker("broker-b") as other:
        await here.admin.create_topic("orders", queues=1)
        await here.send(THERE, TEXTS[:5])
        await here.send(Q0, TEXTS[:5])
        yield other


def progress(of: Store, clock: StillClock | None = None, /, **options: str) -> StreamProgress:
    """That of a process that has just started."""
    if not {"topic", "topicPattern", "assign"} & options.keys():
        options["topic"] = "orders"
    return StreamProgress(SourceOptions({"nameServer": of.name_server, **options}), clock or StillClock())


@asynccontextmanager
async def five_in_each_queue() -> AsyncIterator[tuple[Store, StillClock, StreamOffset]]:
    """A topic of two queues with five messages in each, and a query that has planned them."""
    async with store("orders") as here:
        clock = StillClock()
        await here.send(Q0, TEXTS[:5])
        await here.send(Q1, TEXTS[:5])
        yield here, clock, await progress(here, clock).next(here.admin, INITIAL)


def again(offset: StreamOffset) -> StreamOffset:
    """As it comes back from Spark."""
    return decode_offset(json.loads(json.dumps(encode_offset(offset))))


def nexts(offset: StreamOffset) -> QueueOffsets:
    return {queue: found.next for queue, found in offset.queues.items()}


def firsts(offset: StreamOffset) -> QueueOffsets:
    return {queue: found.first for queue, found in offset.queues.items()}


def told_by(caplog: pytest.LogCaptureFixture, module: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == f"rocketbox.spark.{module}"]


async def test_an_offset_has_the_places_of_the_last_message_before_it() -> None:
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:5])
        end = await progress(here).next(here.admin, INITIAL)
        assert nexts(end) == {Q0: 5, Q1: 0}
        found = (await here.admin.pull(Q0, 4)).messages[0]
        witness = end.queues[Q0].witness
        assert witness is not None
        assert (witness.stored_ms, witness.log_offset) == (found.store_timestamp_ms, found.commit_log_offset)
        assert end.queues[Q1].witness is None
        assert await progress(here).next(here.admin, again(end)) == end, "nothing new: the same text"


async def test_a_cluster_of_the_same_names_is_refused() -> None:
    async with store("orders") as one:
        await one.send(Q0, TEXTS[:20])
        end = await progress(one).next(one.admin, INITIAL)
    async with store("orders") as other:
        await other.send(Q0, TEXTS[:60])
        for options in ({}, {"failOnDataLoss": "false"}):
            with pytest.raises(CheckpointError) as refused:
                await progress(other, **options).next(other.admin, again(end))
            text = str(refused.value)
            assert "orders broker-a/0: its message 19 was stored at 20" in text
            assert f"name server {other.name_server}" in text
            assert "rocketbox spark reset" in text
        with pytest.raises(CheckpointError, match="its message 19 was stored"):
            await progress(other).check_end(other.admin, INITIAL, again(end))


async def test_another_store_is_told_when_its_first_queues_are_known_to_differ() -> None:
    """Each costs seconds, and a broker is asked for some of thousands at a time."""
    queues = [MessageQueue("orders", "broker-a", number) for number in range(4 * AT_ONCE)]
    offset = StreamOffset({queue: QueueProgress(0, 5, None) for queue in queues})
    async with store("orders", queues=len(queues)) as here:
        here.requests.by_code.clear()
        with pytest.raises(CheckpointError, match="is not of what name server"):
            await progress(here).next(here.admin, again(offset))
        with pytest.raises(CheckpointError, match="is not of what name server"):
            await progress(here).check_end(here.admin, INITIAL, again(offset))
        assert here.requests.by_code[RequestCode.PULL_MESSAGE] < 6 * AT_ONCE


@pytest.mark.parametrize(
    ("option", "kept", "others"),
    [
        ("namespace", "team", [{"namespace": "other"}, {"namespaceV2": "team"}]),
        ("namespaceV2", "V2:team", [{"namespaceV2": "other"}, {"namespace": "team"}]),
    ],
)  # fmt: skip
async def test_a_checkpoint_is_for_one_namespace(option: str, kept: str, others: list[dict[str, str]]) -> None:
    async with store("orders", "team%orders") as here:
        outside = await progress(here).next(here.admin, INITIAL)
        inside = await progress(here, **{option: "team"}).next(here.admin, INITIAL)
        assert again(inside) == inside
        assert (inside.namespace, outside.namespace) == (kept, None)
        with pytest.raises(CheckpointError, match=f"is of topics in no namespace, and the query reads in '{kept}'"):
            await progress(here, **{option: "team"}).next(here.admin, again(outside))
        with pytest.raises(CheckpointError, match=f"is of topics in namespace '{kept}', and the query reads in none"):
            await progress(here).next(here.admin, again(inside))
        for other in others:
            with pytest.raises(CheckpointError, match=f"in namespace '{kept}', and the query reads in '"):
                await progress(here, **other).check_end(here.admin, INITIAL, again(inside))


async def test_a_store_made_anew_that_has_not_grown_so_far_is_refused() -> None:
    async with store("orders") as one:
        await one.send(Q0, TEXTS[:20])
        end = await progress(one).next(one.admin, INITIAL)
    async with store("orders") as other:
        await other.send(Q0, TEXTS[:3])
        clock = StillClock()
        with pytest.raises(CheckpointError, match="it was read up to offset 20, and the queue ends at 3"):
            await progress(other, clock).next(other.admin, again(end))
        assert clock.slept >= 5, "a broker that has just started fills its queues still"


@pytest.mark.parametrize("deleted_after", [None, 8.0])
async def test_a_queue_that_should_have_the_last_message_and_has_not_is_refused(
    deleted_after: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a broker that deletes it: its log is shorter for a while before its queues are."""
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:20])
        end = await progress(here).next(here.admin, INITIAL)
        await here.send(Q0, TEXTS[:20])
        clock, pull = StillClock(), here.admin.pull

        async def pull_without_19(queue: MessageQueue, offset: int, *args: Any, **options: Any) -> PullResult:
            found = await pull(queue, offset, *args, **options)
            kept = tuple(each for each in found.messages if each.queue_offset != 19)
            is_deleted = deleted_after is not None and clock.slept >= deleted_after
            return replace(found, messages=kept, min_offset=20 if is_deleted else found.min_offset)

        monkeypatch.setattr(here.admin, "pull", pull_without_19)
        if deleted_after is None:
            with pytest.raises(CheckpointError, match=r"its message 19 was stored .* none is there, .* holds 0 to 40"):
                await progress(here, clock).next(here.admin, again(end))
            assert clock.slept >= 30
        else:
            assert nexts(await progress(here, clock).next(here.admin, again(end))) == {Q0: 40, Q1: 0}


async def test_a_broker_that_comes_back_as_another_is_refused_while_the_stream_runs() -> None:
    network = MemoryNetwork()
    async with Admin("127.0.0.1:9876", network=network) as admin:
        async with store("orders", network=network, port=9876) as one:
            await one.send(Q0, TEXTS[:20])
            reader = progress(one)
            end = await reader.next(admin, INITIAL)
        assert await reader.next(admin, end) == end
        async with store("orders", network=network, port=9876) as other:
            await other.send(Q0, TEXTS[:60])
            with pytest.raises(CheckpointError, match="its message 19 was stored"):
                await reader.next(admin, again(end))


async def test_a_broker_that_was_another_between_two_batches_is_refused_although_nobody_saw_it_away() -> None:
    network = MemoryNetwork()
    clock = StillClock()
    async with Admin("127.0.0.1:9876", network=network) as admin:
        async with store("orders", network=network, port=9876) as one:
            await one.send(Q0, TEXTS[:20])
            reader = progress(one, clock)
            end = await reader.next(admin, INITIAL)
        clock.slept += 600  # until the next trigger
        async with store("orders", network=network, port=9876) as other:
            await other.send(Q0, TEXTS[:60])
            with pytest.raises(CheckpointError, match="its message 19 was stored"):
                await reader.next(admin, again(end))


async def test_a_broker_that_was_another_one_soon_after_it_was_looked_at_is_refused() -> None:
    network = MemoryNetwork()
    clock = StillClock()
    async with Admin("127.0.0.1:9876", network=network) as admin:
        async with store("orders", network=network, port=9876) as one:
            await one.send(Q0, TEXTS[:20])
            reader = progress(one, clock)
            end = await reader.next(admin, INITIAL)
        clock.slept += 1
        async with store("orders", network=network, port=9876) as other:
            await other.send(Q0, TEXTS[:60])
            with pytest.raises(CheckpointError, match="its message 19 was stored"):
                await reader.next(admin, again(end))


async def test_a_topic_that_was_made_anew_between_two_batches_and_has_grown_further_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over the same connection, and however soon: Apache's brokers count the messages of such a topic from 0 on."""
    network = MemoryNetwork()
    async with Admin("127.0.0.1:9876", network=network) as admin:
        monkeypatch.setattr(admin, "connection_to", lambda _: "the same one")
        async with store("orders", network=network, port=9876) as one:
            await one.send(Q0, TEXTS[:20])
            reader = progress(one)
            end = await reader.next(admin, INITIAL)
        async with store("orders", network=network, port=9876) as other:
            await other.send(Q0, TEXTS[:60])
            with pytest.raises(CheckpointError, match="its message 19 was stored"):
                await reader.next(admin, again(end))


async def test_a_queue_whose_broker_may_be_another_one_since_it_was_looked_at_moves_in_a_later_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What would be taken for the last message of this batch may be another store's already."""
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:20])
        reader = progress(here)
        end = await reader.next(here.admin, INITIAL)
        await here.send(Q0, TEXTS[:10])
        with monkeypatch.context() as patch:
            connects = iter(range(10_000))
            patch.setattr(here.admin, "connection_to", lambda _: next(connects))
            assert await reader.next(here.admin, end) == end
        assert (await reader.next(here.admin, end)).queues[Q0].next == 30


async def test_the_same_store_is_gone_on_with_after_a_restart() -> None:
    storage = MemoryStorage()
    async with store("orders", storage=storage) as one:
        await one.send(Q0, TEXTS[:20])
        end = await progress(one).next(one.admin, INITIAL)
    async with store("orders", storage=storage) as same:
        await same.send(Q0, TEXTS[:5])
        assert nexts(await progress(same).next(same.admin, again(end))) == {Q0: 25, Q1: 0}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "payments"}, "holds offsets of topic orders, and the query reads topic payments"),
        ({"topicPattern": "pay.*"}, "holds offsets of topic orders, and the query reads topics that match"),
        ({"assign": '{"orders": {"broker-a": [1]}}'}, "holds offsets of orders broker-a/0, and the query reads"),
        ({"group": "other"}, "belongs to group 'etl', and the query is of group 'other'"),
        ({"group": ""}, "belongs to group 'etl', and the query has no group"),
    ],
)
async def test_a_checkpoint_of_something_else_is_refused(options: dict[str, str], text: str) -> None:
    async with store("orders", "payments") as here:
        await here.send(Q0, TEXTS[:5])
        end = await progress(here, group="etl").next(here.admin, INITIAL)
        given = {name: said for name, said in {"group": "etl", **options}.items() if said}
        with pytest.raises(CheckpointError, match=text):
            await progress(here, **given).next(here.admin, again(end))
        with pytest.raises(CheckpointError, match=text):
            await progress(here, **given).check_end(here.admin, INITIAL, again(end))


async def test_a_topic_more_is_read_from_its_beginning_on() -> None:
    async with store("orders", "payments", queues=1) as here:
        paid = MessageQueue("payments", "broker-a", 0)
        await here.send(Q0, TEXTS[:5])
        await here.send(paid, TEXTS[:7])
        end = await progress(here).next(here.admin, INITIAL)
        both = await progress(here, topic="orders,payments").next(here.admin, again(end))
        assert ranges_between(end, both) == [QueueRange(Q0, 5, 5), QueueRange(paid, 0, 7)]


async def test_a_repeated_first_batch_of_latest_reads_the_same() -> None:
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:5])
        reader = progress(here, startingOffsets="latest")
        empty = await reader.next(here.admin, INITIAL)
        assert (firsts(empty), nexts(empty)) == ({Q0: 5, Q1: 0}, {Q0: 5, Q1: 0})
        await here.send(Q0, TEXTS[:3])
        end = await reader.next(here.admin, again(empty))
        assert ranges_between(empty, end) == [QueueRange(Q0, 5, 8), QueueRange(Q1, 0, 0)]
        # Batch 0 again, in another process: Spark asks for the initial offset, and it may mean anything by now.
        await here.send(Q0, TEXTS[:9])
        assert ranges_between(INITIAL, again(end)) == [QueueRange(Q0, 5, 8), QueueRange(Q1, 0, 0)]


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_queue_that_appears_later_is_read_from_its_beginning_and_repeated_from_there(start: str) -> None:
    async with store("orders", queues=1) as here:
        end = await progress(here, startingOffsets=start).next(here.admin, INITIAL)
        assert nexts(end) == {Q0: 0}
        await here.admin.create_topic("orders", queues=2)
        await here.send(Q1, TEXTS[:4])
        later = await progress(here, startingOffsets=start).next(here.admin, again(end))
        assert ranges_between(again(end), again(later)) == [QueueRange(Q0, 0, 0), QueueRange(Q1, 0, 4)]
        assert later.queues[Q1].first == 0


async def test_where_a_queue_that_appears_later_begins_stands_in_the_end_of_its_batch() -> None:
    async with store("orders", queues=1) as here:
        end = await progress(here, group="etl").next(here.admin, INITIAL)
        await here.admin.create_topic("orders", queues=2)
        await here.send(Q1, TEXTS[:6])
        await here.admin.commit("etl", Q1, 2)
        later = await progress(here, group="etl").next(here.admin, again(end))
        read = [QueueRange(Q0, 0, 0), QueueRange(Q1, 2, 6)]
        assert ranges_between(again(end), again(later)) == read
        await here.admin.commit("etl", Q1, 5)  # whoever that was: the batch is the same when it is repeated
        assert ranges_between(again(end), again(later)) == read
        on = await progress(here, group="etl").next(here.admin, again(later))
        assert on == later


async def test_a_stream_begins_where_its_group_stands_and_never_drags_it_back() -> None:
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:10])
        await here.admin.commit("etl", Q0, 6)
        end = await progress(here, group="etl").next(here.admin, INITIAL)
        assert (firsts(end), nexts(end)) == ({Q0: 6, Q1: 0}, {Q0: 10, Q1: 0})
        mirror = GroupMirror("etl", StillClock())
        await mirror.follow(here.admin, {Q0: 2, Q1: 0})
        assert await here.admin.committed("etl", Q0) == 6
        await mirror.follow(here.admin, nexts(end))
        assert await here.admin.committed("etl", Q0) == 10
        await GroupMirror("etl", StillClock()).follow(here.admin, {Q0: 9})  # an older checkpoint, in a new process
        assert await here.admin.committed("etl", Q0) == 10


async def test_how_far_its_group_stood_is_kept_by_a_stream_that_begins_behind_it() -> None:
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:10])
        await here.admin.commit("etl", Q0, 6)
        limited = {"group": "etl", "maxOffsetsPerTrigger": "4"}
        end = await progress(here, startingOffsets="earliest", **limited).next(here.admin, INITIAL)
        assert (end.queues[Q0].next, end.queues[Q0].stood, end.queues[Q1].stood) == (4, 6, None)
        await here.admin.commit("etl", Q0, 9)  # whoever that was
        end = await progress(here, startingOffsets="earliest", **limited).next(here.admin, again(end))
        assert (end.queues[Q0].next, end.queues[Q0].stood) == (8, 6)
        at_the_group = await progress(here, **limited).next(here.admin, INITIAL)
        assert (at_the_group.queues[Q0].first, at_the_group.queues[Q0].stood) == (9, None)


async def test_tools_find_the_brokers_of_a_mirrored_group_by_its_retry_topic() -> None:
    async with store("orders", queues=1) as here, here.another_broker("broker-b"):
        await here.admin.create_topic("orders", queues=1)
        mirror = GroupMirror("etl", StillClock())
        await mirror.follow(here.admin, {Q0: 0})
        assert {*await here.admin.queues_on_brokers(retry_topic("etl"))} == {"broker-a"}
        await mirror.follow(here.admin, {Q0: 0, THERE: 0})
        found = await here.admin.queues_on_brokers(retry_topic("etl"))
        assert {name: queues.read_queue_nums for name, queues in found.items()} == {"broker-a": 1, "broker-b": 1}
        before = here.requests.by_code[RequestCode.GET_ROUTEINFO_BY_TOPIC]
        await mirror.follow(here.admin, {Q0: 1, THERE: 1})
        assert here.requests.by_code[RequestCode.GET_ROUTEINFO_BY_TOPIC] == before, "it is looked for once"


async def test_a_broker_that_is_away_holds_up_no_batch_of_a_stream_whose_group_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stream asks before each batch, and each question to a machine that is gone takes seconds."""
    clock = StillClock()
    async with store("orders", queues=1) as here:
        mirror = GroupMirror("etl", clock, absence=15)
        async with five_at_each(here) as other:
            here.requests.away.add(other.address)
            before = here.requests.by_code[RequestCode.QUERY_CONSUMER_OFFSET]
            for count in range(1, 6):
                for _ in range(10):
                    clock.slept += 1
                    await mirror.follow(here.admin, {Q0: count, THERE: 5})
                assert await here.admin.committed("etl", Q0) == count
            asked = here.requests.by_code[RequestCode.QUERY_CONSUMER_OFFSET] - before - 2 * 5
            assert 3 <= asked <= 5
            (told,) = told_by(caplog, "mirror")
            assert "the offsets of group etl were not mirrored in 1 queues yet, such as MessageQueue(" in told
            here.requests.away.clear()
            clock.slept += 16
            await mirror.follow(here.admin, {Q0: 5, THERE: 5})
            assert await here.admin.committed("etl", THERE) == 5


async def test_a_broker_that_was_taken_out_of_service_is_no_lasting_trouble_of_a_group_that_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A checkpoint knows its queues for ever; that it has no route is told once."""
    clock = StillClock()
    async with store("orders", queues=1) as here:
        mirror = GroupMirror("etl", clock)
        for _ in range(100):
            clock.slept += 10
            await mirror.follow(here.admin, {Q0: 3, THERE: 5})
        assert await here.admin.committed("etl", Q0) == 3
        assert told_by(caplog, "mirror") == []


async def test_a_group_beyond_the_end_of_its_queue_begins_there_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:10])
        await here.admin.commit("etl", Q0, 50)
        end = await progress(here, group="etl").next(here.admin, INITIAL)
        assert firsts(end) == {Q0: 10, Q1: 0}
        assert "orders broker-a/0: the group stands at 50, and the queue ends at 10" in caplog.text


async def test_offsets_and_times_say_where_single_queues_begin() -> None:
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:10])
        await here.send(Q1, TEXTS[:10])
        messages = [(await here.admin.pull(Q1, offset, 1)).messages[0] for offset in range(10)]
        time = messages[6].store_timestamp_ms
        first = next(m.queue_offset for m in messages if m.store_timestamp_ms >= time)
        named = json.dumps({"orders": {"broker-a": {"0": 3, "1": f"{time}ms"}}})
        end = await progress(here, startingOffsets=named).next(here.admin, INITIAL)
        assert firsts(end) == {Q0: 3, Q1: first}
        late = await progress(here, startingOffsets="2100-01-01T00:00:00Z").next(here.admin, INITIAL)
        assert firsts(late) == {Q0: 10, Q1: 10}, "behind the last one, where all are older"
        for wrong, text in (
            ('{"orders": {"broker-a": {"9": 3}}}', "names queues that the topic does not have: orders broker-a/9"),
            ('{"orders": {"broker-a": {"0": 99}}}', "has offset 99 for .* which ends at 10"),
        ):
            with pytest.raises(ValueError, match=text):
                await progress(here, startingOffsets=wrong).next(here.admin, INITIAL)


async def test_limits_hold_also_together_and_to_the_end_of_what_is_available_now() -> None:
    async with store("orders") as here:
        await here.send(Q0, [b"x" * 1000] * 40)
        await here.send(Q1, TEXTS[:10])
        reader = progress(here, maxOffsetsPerTrigger="30", maxBytesPerTrigger="20KB", minOffsetsPerTrigger="25")
        await reader.aim(here.admin)
        await here.send(Q0, TEXTS[:50])
        offset, sizes = INITIAL, []
        while True:
            end = await reader.next(here.admin, again(offset))
            if end == offset:
                break
            sizes.append(sum(len(piece) for piece in ranges_between(offset, end)))
            offset = end
        assert nexts(offset) == {Q0: 40, Q1: 10}
        assert max(sizes) <= 24
        assert sum(sizes) == 50
        whole = await progress(here, maxOffsetsPerTrigger="30").next(here.admin, INITIAL, limited=False)
        assert nexts(whole) == {Q0: 90, Q1: 10}


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "1"}, {"maxBytesPerTrigger": "500"}])
async def test_a_limit_below_one_row_of_each_queue_starves_none(limit: dict[str, str]) -> None:
    """Neither the one with the largest backlog, nor the one whose messages are larger than the limit."""
    async with store("orders") as here:
        reader = progress(here, **limit)
        await here.send(Q1, [b"x" * 1000] * 5)
        offset = INITIAL
        for _ in range(14):
            await here.send(Q0, [b"x"])
            offset = await reader.next(here.admin, offset)
        assert nexts(offset)[Q1] == 5
        assert nexts(offset)[Q0] >= 5


async def test_what_was_deleted_makes_no_batch_larger_than_its_bytes() -> None:
    """Of a queue whose next messages are gone nothing would be known, and all the rest would be one batch."""
    storage = MemoryStorage()
    async with store("orders", queues=1, storage=storage) as before:
        await before.send(Q0, [Random(1).randbytes(600_000)] * 12)  # a file of the log holds six of them
    expire_first_files(storage, "/store")
    async with store("orders", queues=1, storage=storage) as here:
        assert await here.admin.min_offset(Q0) > 3
        start = {"startingOffsets": '{"orders": {"broker-a": {"0": 0}}}', "failOnDataLoss": "false"}
        end = await progress(here, **start, maxBytesPerTrigger="2MB").next(here.admin, INITIAL)
        assert nexts(end) == {Q0: 3}


async def test_a_damaged_record_is_the_end_of_no_stream_that_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with five_in_each_queue() as (here, clock, start):
        pull, pull_records = here.admin.pull, here.admin.pull_records

        async def pull_damaged(
            queue: MessageQueue, offset: int, most: int = 32, *args: Any, **options: Any
        ) -> PullResult:
            if offset <= 4 < offset + most:
                raise RemoteProtocolError("no message at byte 0: magic 0x1")
            return await pull(queue, offset, most, *args, **options)

        async def records_damaged(*args: Any) -> PulledRecords:
            found = await pull_records(*args)
            return replace(found, records=found.records[:-1] + b"?")

        monkeypatch.setattr(here.admin, "pull", pull_damaged)
        monkeypatch.setattr(here.admin, "pull_records", records_damaged)
        end = await progress(here, clock).next(here.admin, INITIAL)
        assert nexts(end) == {Q0: 5, Q1: 5}
        assert end.queues[Q0].witness is None
        assert start.queues[Q0].witness is not None
        await here.send(Q0, TEXTS[:2])
        for known in (start, end):
            moved = await progress(here, clock, maxBytesPerTrigger="1MB").next(here.admin, again(known))
            assert nexts(moved) == {Q0: 7, Q1: 5}
        by_time = await progress(here, clock, startingOffsets="1s").next(here.admin, INITIAL)
        assert nexts(by_time) == {Q0: 7, Q1: 5}


async def test_a_batch_waits_for_rows_up_to_its_delay() -> None:
    async with store("orders") as here:
        clock = StillClock()
        reader = progress(here, clock, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
        await here.send(Q0, TEXTS[:3])
        end = await reader.next(here.admin, INITIAL)
        assert nexts(end) == {Q0: 3, Q1: 0}, "the first of a process does not wait"
        await here.send(Q0, TEXTS[:3])
        assert await reader.next(here.admin, end) == end
        clock.slept += 61
        assert nexts(await reader.next(here.admin, end))[Q0] == 6


async def test_one_dead_broker_that_name_servers_still_name_does_not_stop_the_others() -> None:
    async with store("orders", queues=1) as here, here.another_broker("broker-b") as broker:
        there = MessageQueue("orders", "broker-b", 0)
        await here.admin.create_topic("orders", queues=1)
        clock = StillClock()
        reader = progress(here, clock)
        for queue in (Q0, there):
            await here.send(queue, TEXTS[:5])
        end = await reader.next(here.admin, INITIAL)
        assert nexts(end) == {Q0: 5, there: 5}
        for queue in (Q0, there):
            await here.send(queue, TEXTS[:5])
        here.requests.away = {broker.address}
        assert set(await here.admin.queues("orders")) == {Q0, there}
        clock.slept += 11
        moved = await reader.next(here.admin, again(end))
        assert nexts(moved) == {Q0: 10, there: 5}
        assert moved.queues[there] == end.queues[there]
        restarted = await progress(here).next(here.admin, again(end))
        assert nexts(restarted) == {Q0: 10, there: 5}
        here.requests.away = set()
        clock.slept += 60
        assert nexts(await reader.next(here.admin, again(moved))) == {Q0: 10, there: 10}


async def test_one_broker_away_does_not_stop_the_others() -> None:
    async with store("orders", queues=1) as here:
        clock = StillClock()
        reader = progress(here, clock)
        async with five_at_each(here):
            end = await reader.next(here.admin, INITIAL)
            assert nexts(end) == {Q0: 5, THERE: 5}
        here.admin.timeout = 0.2
        await here.send(Q0, TEXTS[:5])
        clock.slept += 10
        moved = await reader.next(here.admin, again(end))
        assert nexts(moved) == {Q0: 10, THERE: 5}
        assert moved.queues[THERE] == end.queues[THERE]
        restarted = await progress(here).next(here.admin, again(end))
        assert nexts(restarted) == {Q0: 10, THERE: 5}


async def test_a_broker_that_has_left_the_route_is_told_once_and_with_what_it_has_unread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its other queues go on, and nothing else would tell: a broker that stops in order leaves the route at once."""
    async with store("orders", queues=1) as here:
        clock = StillClock()
        reader = progress(here, clock, maxOffsetsPerTrigger="4")
        async with five_at_each(here):
            end = await reader.next(here.admin, INITIAL)
            assert nexts(end) == {Q0: 2, THERE: 2}
            assert told_by(caplog, "progress") == []
        here.admin.timeout = 0.2
        for _ in range(20):
            clock.slept += 10
            end = await reader.next(here.admin, again(end))
        assert nexts(end) == {Q0: 5, THERE: 2}
        (told,) = told_by(caplog, "progress")
        assert told.startswith("topic orders of broker broker-b, which was read before, has no route: ")
        assert "; 3 messages of it were not read, and" in told
        restarted = progress(here, clock)
        await restarted.aim(here.admin)
        assert await restarted.next(here.admin, again(end)) == end
        _, told = told_by(caplog, "progress")
        assert "; whether it has unread messages is not known, and" in told
        async with five_at_each(here):
            clock.slept += 60
            with pytest.raises(CheckpointError):  # it is another one here
                await reader.next(here.admin, again(end))
        assert told_by(caplog, "progress")[2:] == ["topic orders of broker broker-b has a route again, and is read on"]


async def test_a_topic_of_a_pattern_that_is_deleted_with_unread_messages_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    eu = MessageQueue("orders_eu", "broker-a", 0)
    async with store("orders", "orders_eu", queues=1) as here:
        clock = StillClock()
        reader = progress(here, clock, topicPattern="orders.*")
        await here.send(Q0, TEXTS[:5])
        await here.send(eu, TEXTS[:5])
        end = await reader.next(here.admin, INITIAL)
        await here.admin.delete_topic("orders_eu")
        await here.send(Q0, TEXTS[:5])
        for _ in range(10):
            clock.slept += 10
            end = await reader.next(here.admin, again(end))
        assert nexts(end) == {Q0: 10, eu: 5}
        (told,) = told_by(caplog, "progress")
        assert told.startswith("topic orders_eu of broker broker-a, which was read before, has no route: ")


async def test_a_topic_of_a_pattern_that_may_not_be_read_any_more_is_not_told_as_a_deleted_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    eu = MessageQueue("orders_eu", "broker-a", 0)
    async with store("orders", "orders_eu", queues=1) as here:
        clock = StillClock()
        reader = progress(here, clock, topicPattern="orders.*")
        await here.send(eu, TEXTS[:5])
        end = await reader.next(here.admin, INITIAL)
        await here.admin.create_topic("orders_eu", queues=1, perm=PermName.WRITE)
        await until_closed(here, "broker-a", "orders_eu")
        for _ in range(10):
            clock.slept += 10
            end = await reader.next(here.admin, again(end))
        (told,) = told_by(caplog, "progress")
        assert told.startswith("topic orders_eu may not be read at broker broker-a any more (by its permission, ")
        assert "deleted" not in told
        await here.admin.create_topic("orders_eu", queues=1)
        for _ in range(10):
            clock.slept += 10
            end = await reader.next(here.admin, again(end))
        assert told_by(caplog, "progress")[1:] == [
            "topic orders_eu of broker broker-a may be read again, and is read on"
        ]


async def test_a_batch_waits_for_no_broker_that_it_reads_nothing_of() -> None:
    async with store("orders", queues=1) as here:
        clock = StillClock()
        reader = progress(here, clock)
        async with five_at_each(here):
            start = await reader.next(here.admin, INITIAL)
            await reader.check_end(here.admin, INITIAL, start)
            await here.send(THERE, TEXTS[:1])
            await here.send(Q0, TEXTS[:3])
            both = await reader.next(here.admin, start)
        here.admin.timeout = 0.2
        await here.send(Q0, TEXTS[:2])
        one = await reader.next(here.admin, both)
        assert ranges_between(both, one)[0] == QueueRange(Q0, 8, 10)
        await reader.check_end(here.admin, both, again(one))
        assert clock.slept == 0
        with pytest.raises(ClientError, match="no address of broker 'broker-b' is known"):
            await progress(here, clock).check_end(here.admin, start, again(both))
        assert clock.slept > 50, "what is to be read is waited for"


async def test_queues_that_were_taken_away_are_looked_at_now_and_then() -> None:
    async with five_in_each_queue() as (here, clock, start):
        await here.admin.create_topic("orders", queues=1)
        reader = progress(here, clock)
        await reader.next(here.admin, again(start))
        before = here.requests.by_code[RequestCode.GET_MAX_OFFSET]
        for _ in range(50):  # 25 s
            clock.slept += 0.5
            await reader.next(here.admin, again(start))
        asked = here.requests.by_code[RequestCode.GET_MAX_OFFSET] - before
        assert 50 < asked <= 53, "each time for the queue that is there, and each 10 s for the one that is not"


async def test_queues_that_were_taken_away_keep_no_batch_from_being_planned() -> None:
    async with five_in_each_queue() as (here, clock, start):
        await here.admin.create_topic("orders", queues=1)
        await here.send(Q0, TEXTS[:2])
        reader = progress(here, clock)
        end = await reader.next(here.admin, again(start))
        await reader.check_end(here.admin, start, again(end))
        assert nexts(end) == {Q0: 7, Q1: 5}
        await here.admin.create_topic("orders", queues=2)
        await here.send(Q1, TEXTS[:3])
        clock.slept += 60
        assert nexts(await reader.next(here.admin, again(end))) == {Q0: 7, Q1: 8}


async def test_queues_that_are_taken_away_before_they_are_read_are_refused_or_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with five_in_each_queue() as (here, clock, start):
        await here.send(Q1, TEXTS[:3])
        await here.admin.create_topic("orders", queues=1)
        for options in ({}, {"assign": '{"orders": {"broker-a": [0, 1]}}'}):
            with pytest.raises(QueuesTakenError, match=r"unread messages were .*: orders broker-a/1 \(3\)\."):
                await progress(here, clock, **options).next(here.admin, again(start))
        reader = progress(here, clock)
        await reader.aim(here.admin)
        with pytest.raises(QueuesTakenError):
            await reader.next(here.admin, again(start))
        assert told_by(caplog, "taken_away") == []
        reader = progress(here, clock, failOnDataLoss="false")
        await here.send(Q0, TEXTS[:2])
        end = await reader.next(here.admin, again(start))
        assert nexts(end) == {Q0: 7, Q1: 5}
        await reader.next(here.admin, again(end))
        (told,) = told_by(caplog, "taken_away")
        assert "orders broker-a/1 (3); it goes on without them, as failOnDataLoss=false allows" in told
        await here.admin.create_topic("orders", queues=2)
        clock.slept += 60
        assert nexts(await reader.next(here.admin, again(end))) == {Q0: 7, Q1: 8}, "given back, they are read"


async def test_queues_that_are_taken_away_when_a_batch_of_them_is_planned_are_refused_or_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The batch would be tried for ever: a broker refuses to give these messages out."""
    async with store("orders") as here:
        clock = StillClock()
        start = await progress(here, clock).next(here.admin, INITIAL)
        await here.send(Q0, TEXTS[:5])
        await here.send(Q1, TEXTS[:3])
        end = await progress(here, clock).next(here.admin, again(start))
        assert nexts(end) == {Q0: 5, Q1: 3}
        await here.admin.create_topic("orders", queues=1)
        with pytest.raises(QueuesTakenError, match=r"unread messages were .*: orders broker-a/1 \(3\)\."):
            await progress(here, clock).check_end(here.admin, start, again(end))
        assert told_by(caplog, "taken_away") == []
        lossy = progress(here, clock, failOnDataLoss="false")
        assert await lossy.check_end(here.admin, start, again(end)) == [QueueRange(Q0, 0, 5)]
        (told,) = told_by(caplog, "taken_away")
        assert "orders broker-a/1 (3); it goes on without them, as failOnDataLoss=false allows" in told
        await here.admin.create_topic("orders", queues=2)
        ranges = await progress(here, clock).check_end(here.admin, start, again(end))
        assert ranges == [QueueRange(Q0, 0, 5), QueueRange(Q1, 0, 3)]


async def test_a_topic_that_is_deleted_when_a_batch_of_it_is_planned_is_refused_or_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The batch would be tried for ever, and all other topics of a pattern would wait with it."""
    eu, pattern = MessageQueue("orders_eu", "broker-a", 0), {"topicPattern": "orders.*"}
    async with store("orders", "orders_eu", queues=1) as here:
        clock = StillClock()
        start = await progress(here, clock, **pattern).next(here.admin, INITIAL)
        await here.send(Q0, TEXTS[:5])
        await here.send(eu, TEXTS[:3])
        end = await progress(here, clock, **pattern).next(here.admin, again(start))
        assert nexts(end) == {Q0: 5, eu: 3}
        await here.admin.delete_topic("orders_eu")
        with pytest.raises(QueuesTakenError, match=r"unread messages were .*: orders_eu broker-a/0 \(3\)\."):
            await progress(here, clock, **pattern).check_end(here.admin, start, again(end))
        lossy = progress(here, clock, failOnDataLoss="false", **pattern)
        assert await lossy.check_end(here.admin, start, again(end)) == [QueueRange(Q0, 0, 5)]
        (told,) = told_by(caplog, "taken_away")
        assert "orders_eu broker-a/0 (3); it goes on without them, as failOnDataLoss=false allows" in told
        assert clock.slept < 30


@pytest.mark.parametrize("how", ["its permission", "its number"])
async def test_a_queue_that_may_not_be_read_since_the_route_was_asked_for_ends_no_stream(how: str) -> None:
    async with store("orders", queues=1) as here, five_at_each(here):
        if how == "its number":
            await here.admin.create_topic("orders", queues=2, brokers=["broker-b"])
        clock = StillClock()
        reader = progress(here, clock, failOnDataLoss="false")  # what is taken away is unread
        closed = THERE if how == "its permission" else replace(THERE, queue_id=1)
        await here.send(closed, TEXTS[:1])
        start = await reader.next(here.admin, INITIAL)
        await here.send(closed, TEXTS[:3])
        await here.send(Q0, TEXTS[:2])
        perm = PermName.WRITE if how == "its permission" else PermName.READ | PermName.WRITE
        await here.admin.create_topic("orders", queues=1, brokers=["broker-b"], perm=perm)
        end = await reader.next(here.admin, again(start))
        end = await reader.next(here.admin, again(end))
        assert nexts(end) == {**nexts(start), Q0: 7}
        await here.admin.create_topic("orders", queues=closed.queue_id + 1, brokers=["broker-b"])
        clock.slept += 10
        assert nexts(await reader.next(here.admin, again(end))) == {**nexts(end), closed: nexts(start)[closed] + 3}


async def test_a_refusal_that_no_route_explains_ends_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async with five_in_each_queue() as (here, clock, start):
        reader = progress(here, clock)
        await here.send(Q0, TEXTS[:2])

        async def refuses(*_: Any, **__: Any) -> PullResult:
            raise BrokerError(ResponseCode.NO_PERMISSION, "the consumer group is disabled", "10.0.0.1:10911")

        monkeypatch.setattr(Admin, "pull", refuses)
        with pytest.raises(BrokerError, match="the consumer group is disabled"):
            await reader.next(here.admin, again(start))
        assert clock.slept < 10


@pytest.mark.parametrize("loss", ["true", "false"])
async def test_a_planned_batch_of_a_topic_that_may_not_be_read_for_now_is_refused_until_it_may(loss: str) -> None:
    """Its messages are there: they are not left out, and nobody is told to give the topic more queues."""
    async with five_in_each_queue() as (here, clock, end):
        planned = {"failOnDataLoss": loss}
        await here.admin.create_topic("orders", queues=2, perm=PermName.WRITE)
        await until_closed(here, "broker-a")
        with pytest.raises(BrokerError) as refused:
            await progress(here, clock, **planned).check_end(here.admin, INITIAL, again(end))
        assert refused.value.code == ResponseCode.NO_PERMISSION
        await here.admin.create_topic("orders", queues=2)
        ranges = await progress(here, clock, **planned).check_end(here.admin, INITIAL, again(end))
        assert ranges == [QueueRange(Q0, 0, 5), QueueRange(Q1, 0, 5)]


async def test_queues_that_a_starting_broker_has_not_told_of_yet_are_not_taken_away() -> None:
    async with store("orders") as here:
        await here.send(Q1, TEXTS[:5])
        start = await progress(here).next(here.admin, INITIAL)
        await here.send(Q1, TEXTS[:3])
        await here.admin.create_topic("orders", queues=1)

        class Told(StillClock):
            async def sleep(self, seconds: float) -> None:
                await here.admin.create_topic("orders", queues=2)
                await super().sleep(seconds)

        await progress(here, Told()).next(here.admin, again(start))


async def test_a_broker_that_is_away_is_asked_now_and_then_and_read_again_when_it_is_back() -> None:
    network = CountingNetwork()
    async with store("orders", queues=1, network=network) as here, five_at_each(here) as other:
        clock = StillClock()
        reader = progress(here, clock)
        end = await reader.next(here.admin, INITIAL)
        await here.send(THERE, TEXTS[:3])
        host, _, port = other.address.rpartition(":")
        listener = here.network._listeners[host, int(port)]
        unreachable(here, other.address)
        before = network.connects.count(int(port))
        for _ in range(60):
            clock.slept += 1
            end = await reader.next(here.admin, again(end))
        assert nexts(end) == {Q0: 5, THERE: 5}
        assert 5 <= network.connects.count(int(port)) - before <= 8
        here.network._listeners[host, int(port)] = listener
        for _ in range(16):
            clock.slept += 1
            end = await reader.next(here.admin, again(end))
        assert nexts(end) == {Q0: 5, THERE: 8}


async def test_what_is_available_now_is_not_all_read_while_a_broker_is_away() -> None:
    async with store("orders", queues=1) as here:
        clock = StillClock()
        reader = progress(here, clock)
        async with five_at_each(here):
            await reader.aim(here.admin)
        here.admin.timeout = 0.2
        end = await reader.next(here.admin, INITIAL)
        assert nexts(end) == {Q0: 5}
        with pytest.raises(ClientError, match="1 queues do not answer, such as orders broker-b/0"):
            await reader.next(here.admin, end)
        assert clock.slept > 50, "it was waited for"


async def test_what_is_available_now_is_not_nothing_where_a_topic_has_no_route() -> None:
    """As when the name server was started anew, and its brokers register in a moment: the query would end unread."""
    async with store() as here:
        clock = StillClock()
        with pytest.raises(ClientError, match=r"no queue of topic orders that may be read has a route .*are away"):
            await progress(here, clock).aim(here.admin)
        assert clock.slept > 50, "it was waited for"
        reader = progress(here, ClockThat(lambda: here.admin.create_topic("orders", queues=1)))
        await reader.aim(here.admin)
        await here.send(Q0, TEXTS[:5])
        assert nexts(await reader.next(here.admin, INITIAL)) == {Q0: 0}, "what came later is for the next time"
        pattern = progress(here, topicPattern="bills.*")
        await pattern.aim(here.admin)
        assert nexts(await pattern.next(here.admin, INITIAL)) == {}


class ClockThat(StillClock):
    """Does something while it is slept."""

    def __init__(self, act: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._act: Callable[[], Awaitable[object]] | None = act

    async def sleep(self, seconds: float) -> None:
        act, self._act = self._act, None
        if act is not None:
            await act()
        await super().sleep(seconds)


def unreachable(here: Store, address: str) -> None:
    """Nobody reaches that server any more."""
    host, _, port = address.rpartition(":")
    del here.network._listeners[host, int(port)]
    here.admin._instance.remoting.close_connection(address)


async def test_silence_of_everything_is_an_error_after_a_while() -> None:
    network = MemoryNetwork()
    clock = StillClock()
    async with store("orders", network=network) as here:
        await here.send(Q0, TEXTS[:5])
        reader = progress(here, clock)
        end = await reader.next(here.admin, INITIAL)
        await here.send(Q0, TEXTS[:2])
        unreachable(here, here.name_server)
        clock.slept += 2 * SILENCE
        end = await reader.next(here.admin, end)
        assert nexts(end)[Q0] == 7, "without a name server brokers can still be read"
        unreachable(here, here.servers.broker_address)
        assert await reader.next(here.admin, end) == end
        clock.slept += SILENCE - 1
        assert await reader.next(here.admin, end) == end
        clock.slept += 2
        with pytest.raises(SilenceError, match=r"nothing of topic orders .* has answered for 18\d s; the last error"):
            await reader.next(here.admin, end)


async def test_a_topic_that_is_missing_is_waited_for_or_an_error() -> None:
    async with store() as here:
        with pytest.raises(MissingTopicError, match=r"topic orders does not exist at name server .*missingTopic=wait"):
            await progress(here, missingTopic="fail").next(here.admin, INITIAL)
        clock = StillClock()
        reader = progress(here, clock, startingOffsets="latest")
        end = await reader.next(here.admin, INITIAL)
        assert end.queues == {}
        await here.admin.create_topic("orders", queues=1)
        await here.send(Q0, TEXTS[:5])
        clock.slept += 1
        assert nexts(await reader.next(here.admin, again(end))) == {Q0: 5}


class ClockAhead(StillClock):
    """So that what the brokers store was stored two minutes ago."""

    def time_ms(self) -> int:
        return super().time_ms() + 120_000


async def test_a_topic_that_may_not_be_read_is_told_like_a_missing_one(caplog: pytest.LogCaptureFixture) -> None:
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:5])
        await here.admin.create_topic("orders", queues=2, perm=PermName.WRITE)
        await until_closed(here, "broker-a")
        assert nexts(await progress(here).next(here.admin, INITIAL)) == {}
        assert "topic orders has no queue that may be read" in caplog.text
        with pytest.raises(MissingTopicError, match="topic orders has no queue that may be read"):
            await progress(here, missingTopic="fail").next(here.admin, INITIAL)
        with pytest.raises(MissingTopicError, match="topic orders has no queue that may be read"):
            await batch_ranges(here)


async def test_a_batch_read_leaves_out_no_broker_that_may_not_be_read_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with store("orders") as here, five_at_each(here):
        assert sum(map(len, await batch_ranges(here))) == 10
        await here.admin.create_topic("orders", queues=1, perm=PermName.WRITE, brokers=["broker-b"])
        await until_closed(here, "broker-b")
        with pytest.raises(
            MissingTopicError, match=r"topic orders may not be read at broker-b, .*failOnDataLoss=false"
        ):
            await batch_ranges(here)
        assert sum(map(len, await batch_ranges(here, failOnDataLoss="false"))) == 5
        assert "topic orders may not be read at broker-b" in caplog.text


async def test_a_pattern_leaves_out_no_topic_that_may_not_be_read_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    eu, pattern = MessageQueue("orders_eu", "broker-a", 0), {"topicPattern": "orders.*"}
    async with store("orders", "orders_eu", queues=1) as here:
        await here.send(Q0, TEXTS[:5])
        await here.send(eu, TEXTS[:3])
        assert sum(map(len, await batch_ranges(here, **pattern))) == 8
        await here.admin.create_topic("orders_eu", queues=1, perm=PermName.WRITE)
        await until_closed(here, "broker-a", "orders_eu")
        with pytest.raises(MissingTopicError, match=r"topic orders_eu has no queue that may be .*failOnDataLoss=false"):
            await batch_ranges(here, **pattern)
        assert told_by(caplog, "readers") == []
        assert await batch_ranges(here, failOnDataLoss="false", **pattern) == [QueueRange(Q0, 0, 5)]
        (told,) = told_by(caplog, "readers")
        assert "topic orders_eu has no queue that may be read (by its permission, or readQueueNums): " in told
        assert "these messages are left out" in told
        clock = StillClock()
        reader = progress(here, clock, missingTopic="fail", **pattern)
        end = await reader.next(here.admin, INITIAL)
        assert nexts(end) == {Q0: 5}
        assert reader.ends.complete
        (told,) = told_by(caplog, "ends")
        assert "topics that match 'orders.*': orders_eu has no queue that may be read" in told
        with pytest.raises(
            MissingTopicError, match=r"no topic matches 'orders_\.\*' but orders_eu, with no queue that"
        ):
            await batch_ranges(here, topicPattern="orders_.*")
        await here.admin.create_topic("orders_eu", queues=1)
        clock.slept += 30
        assert nexts(await reader.next(here.admin, again(end))) == {Q0: 5, eu: 3}


async def test_a_name_server_is_asked_for_some_topics_of_a_pattern_at_a_time() -> None:
    in_flight, most = 0, 0

    async def ask(topic: str) -> str:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await anyio.lowlevel.checkpoint()
        in_flight -= 1
        return topic

    names = [f"orders_{number}" for number in range(4 * AT_ONCE)]
    assert list((await gather(ask, names)).values()) == names
    assert most == AT_ONCE


async def batch_ranges(of: Store, **options: str) -> list[QueueRange]:
    selected = {} if "topicPattern" in options else {"topic": "orders"}
    reader = RocketMQBatchReader(SourceOptions({"nameServer": of.name_server, **selected, **options}))
    return await reader.ranges(of.admin)


async def test_a_batch_read_ends_where_a_group_stands_and_reads_nothing_of_queues_that_it_has_not_begun() -> None:
    async with store("orders", queues=3) as here:
        q2 = MessageQueue("orders", "broker-a", 2)
        for queue in (Q0, Q1, q2):
            await here.send(queue, TEXTS[:10])
        await here.admin.commit("etl", Q0, 6)
        await here.admin.commit("etl", q2, 50)  # beyond what there is
        await here.admin.commit("others", Q1, 9)
        options = {"endingOffsets": "group", "group": "etl"}
        ranges = await batch_ranges(here, **options)
        assert {each.queue: (each.start, each.end) for each in ranges if each} == {Q0: (0, 6), q2: (0, 10)}
        ranges = await batch_ranges(here, startingOffsets='{"orders": {"broker-a": {"0": 2}}}', **options)
        assert (ranges[0].queue, ranges[0].start, ranges[0].end) == (Q0, 2, 6)
        await here.admin.commit("etl", Q0, 1)
        with pytest.raises(
            ValueError, match=r"endingOffsets lies before startingOffsets: .* ends at 1 and begins at 2"
        ):
            await batch_ranges(here, startingOffsets='{"orders": {"broker-a": {"0": 2}}}', **options)


async def test_latest_is_no_history_of_a_broker_that_was_away_when_the_query_began() -> None:
    async with store("orders", queues=1) as here:
        end = await progress(here, ClockAhead(), startingOffsets="latest").next(here.admin, INITIAL)
        async with here.another_broker("broker-b"):
            await here.admin.create_topic("orders", queues=1)
            await here.send(THERE, TEXTS[:5])
            later = await progress(here, startingOffsets="latest").next(here.admin, again(end))
            assert (firsts(later)[THERE], later.since_ms) == (5, end.since_ms)
    async with store() as here:  # there is no route at all yet
        end = await progress(here, ClockAhead(), startingOffsets="latest").next(here.admin, INITIAL)
        await here.admin.create_topic("orders", queues=1)
        await here.send(Q0, TEXTS[:5])
        assert firsts(await progress(here, startingOffsets="latest").next(here.admin, again(end))) == {Q0: 5}


async def test_a_pattern_means_users_topics_only() -> None:
    async with store("orders", "orders_eu", "%RETRY%orders", "%DLQ%orders", "payments", queues=1) as here:
        queues, missing, _ = await SourceOptions({"nameServer": "a:1", "topicPattern": ".*"}).selection.queues(
            here.admin
        )
        assert [queue.topic for queue in queues] == ["orders", "orders_eu", "payments"]
        assert missing == []
        queues, _, _ = await SourceOptions({"nameServer": "a:1", "topicPattern": "orders.+"}).selection.queues(
            here.admin
        )
        assert [queue.topic for queue in queues] == ["orders_eu"]
        _, missing, _ = await SourceOptions({"nameServer": "a:1", "topicPattern": "x.*"}).selection.queues(here.admin)
        assert missing == ["no topic matches 'x.*'"]


async def test_an_idle_stream_asks_once_a_second_and_queue() -> None:
    async with store("orders", queues=4) as here:
        clock = StillClock()
        reader = progress(here, clock)
        end = await reader.next(here.admin, INITIAL)
        while clock.slept < 30:  # slower and slower
            await reader.ends.wait()
            await reader.next(here.admin, end)
        here.requests.by_code.clear()
        begun = clock.slept
        while clock.slept - begun < 60:
            await reader.ends.wait()
            assert await reader.next(here.admin, end) == end
        assert here.requests.by_code[RequestCode.GET_MAX_OFFSET] == 60 * 4
        assert here.requests.by_code[RequestCode.GET_ROUTEINFO_BY_TOPIC] <= 12
        assert here.requests.by_code.total() <= 60 * 4 + 12


async def test_an_idle_stream_that_asks_seldom_does_not_wait_besides() -> None:
    async with store("orders") as here:
        clock = StillClock()
        reader = progress(here, clock)
        end = await reader.next(here.admin, INITIAL)
        pauses = []
        for _ in range(3):
            begun = clock.slept
            await reader.ends.wait()
            pauses.append(clock.slept - begun)
            await reader.next(here.admin, end)
        assert pauses == pytest.approx([0.1] * 3), "soon after the last message"
        clock.slept += 10  # the trigger's own pause
        begun = clock.slept
        await reader.ends.wait()
        assert clock.slept == begun


async def test_a_batch_costs_two_pulls_for_each_queue_that_moved() -> None:
    """For the last message of it, and for the one of the batch before."""
    async with store("orders", queues=4) as here:
        reader = progress(here)
        await here.send(Q0, TEXTS[:50])
        end = await reader.next(here.admin, INITIAL)
        await here.send(Q0, TEXTS[:50])
        here.requests.by_code.clear()
        await reader.next(here.admin, end)
        assert here.requests.by_code == {RequestCode.GET_MAX_OFFSET: 4, RequestCode.PULL_MESSAGE: 2}


async def test_where_to_begin_is_what_the_checkpoint_says_for_queues_that_come_later_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with store("orders") as here:
        clock = StillClock()
        await here.send(Q0, TEXTS[:5])
        late = f"{clock.time_ms() + 86_400_000}ms"
        end = await progress(here, clock, startingOffsets=late).next(here.admin, INITIAL)
        assert nexts(end)[Q0] == 5
        async with here.another_broker("broker-b"):
            await here.admin.create_topic("orders", queues=1)
            await here.send(THERE, TEXTS[:5])
            changed = progress(here, clock, startingOffsets="earliest")
            end = await changed.next(here.admin, again(end))
            assert firsts(end)[THERE] == 5, "it has nothing of the time that the query began with, or later"
            assert await changed.next(here.admin, end) == end
    assert told_by(caplog, "progress") == [
        f"topic orders: startingOffsets is earliest now, and is not used: the query of this checkpoint began with "
        f"{late}, and goes on where it stands; so does a queue that appears later. To read from another place, begin "
        "with another checkpoint (rocketbox spark reset shows what is in a checkpoint and begins anew)"
    ]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, {"startingOffsets": "Earliest", "tags": " * "}),
        ({"group": "etl", "tags": "B||A"}, {"group": "etl", "startingOffsets": "group", "tags": "A || B || A"}),
        ({"startingOffsets": "2026-01-31T13:00:00+01:00"}, {"startingOffsets": "1769860800s"}),
        (
            {"startingOffsets": '{"orders": {"broker-a": {"1": -1, "0": 2}}}'},
            {"startingOffsets": '{"orders": {"broker-a": {"0": 2, "1": -1}}}'},
        ),
    ],
)
async def test_options_that_mean_the_same_have_not_changed(
    before: dict[str, str], now: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:5])
        end = await progress(here, **before).next(here.admin, INITIAL)
        assert await progress(here, **now).next(here.admin, again(end)) == end
    assert told_by(caplog, "progress") == []


async def test_another_filter_holds_from_the_next_batch_on_and_that_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:5])
        end = await progress(here, tags="A").next(here.admin, INITIAL)
        assert end.tags == "A"
        changed = progress(here, tags="B")
        assert await changed.next(here.admin, again(end)) == end, "nothing new: the same text"
        await here.send(Q0, TEXTS[5:8])
        following = await changed.next(here.admin, end)
        assert (nexts(following)[Q0], following.tags) == (8, "B")
        assert await progress(here, tags="B").next(here.admin, again(following)) == following
    assert told_by(caplog, "progress") == [
        "topic orders: tags is B from the next batch on, and was A so far: what that filter has left out is not read "
        "any more. To read it, begin with another checkpoint (rocketbox spark reset shows what is in a checkpoint and "
        "begins anew)"
    ]


async def test_a_checkpoint_that_does_not_say_how_it_began_is_gone_on_with(caplog: pytest.LogCaptureFixture) -> None:
    async with store("orders") as here:
        await here.send(Q0, TEXTS[:5])
        end = replace(await progress(here).next(here.admin, INITIAL), start=None, tags=None)
        assert "start" not in encode_offset(end)
        assert await progress(here, startingOffsets="latest", tags="B").next(here.admin, again(end)) == end
    assert told_by(caplog, "progress") == []
