"""Faults while a stream reads: each row comes out once, by broker, queue and offset. ``make chaos ARGS=spark``: more of
each, at seeded moments. What ends executors, sessions and whole machines is in ``test_spark_cluster``, ``_states``."""

from __future__ import annotations

import dataclasses
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyarrow import parquet
from pyspark.errors import StreamingQueryException

from rocketbox.broker.locks import QueueLocks
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.peer_limits import remoting_options
from rocketbox.message import MessageQueue, SendResult
from rocketbox.remoting.options import RemotingOptions
from rocketbox.spark.loss import gap_in_words
from tests.chaos.spark_kinds import soon_deleted, told_as_gone
from tests.chaos.spark_world import World
from tests.support.process_tree import command_of, connections_to, end_at_once, parents
from tests.support.spark.listeners import MINUTES
from tests.support.spark.topics import Broker, BrokerBeside, rows_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

Places = Counter[tuple[str, int, int]]


def places(results: Iterable[SendResult]) -> Places:
    return Counter((each.queue.broker_name, each.queue.queue_id, each.queue_offset) for each in results)


class Sink:
    """Counts the places of all rows; ``within`` is called in each batch when its first task has been read."""

    def __init__(self, within: Callable[[int], object] = lambda batch: None) -> None:
        self.found: Places = Counter()
        self._within = within

    def __call__(self, rows: DataFrame, batch: int) -> None:
        found: Places = Counter()
        # Task by task, each when the rows of the one before are used up.
        for number, row in enumerate(rows.select("broker_name", "queue_id", "queue_offset").toLocalIterator()):
            if not number:
                self._within(batch)
            found[tuple(row)] += 1
        self.found += found  # a batch that comes again has not come that far


def start(spark: SparkSession, broker: Broker, topic: str, sink: Sink, folder: Path, **options: Any) -> StreamingQuery:
    """A query with these options of the source; ``now=True`` reads what there is."""
    now = options.pop("now", True)
    frame = spark.readStream.format("rocketmq").options(nameServer=broker.name_server, topic=topic, **options).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")).start()


def python_workers() -> list[int]:
    """The processes in which the tasks of this process' session run: forks of one that starts them."""
    tree = parents()
    daemons = {each for each in tree if "pyspark.daemon" in command_of(each)}
    ours = {each for each in daemons if tree.get(tree[each]) == os.getpid()}
    return [each for each in daemons if tree[each] in ours]


@pytest.mark.parametrize("workers_end", [False, True], ids=["a broker", "a broker and the workers that wait for it"])
def test_what_restarts_within_a_batch_costs_no_row_and_repeats_none(
    spark: SparkSession, tmp_path: Path, workers_end: bool
) -> None:
    ended: list[int] = []

    def restart() -> None:
        if workers_end:
            wait_for(python_workers)
            ended.extend(each for each in python_workers() if end_at_once(each))
        broker.__enter__()

    def within(batch: int) -> None:
        if batch == 0 and not restarting.is_alive() and restarting.ident is None:
            broker.__exit__()
            restarting.start()  # while the next tasks ask for it

    restarting = threading.Timer(1.0, restart)
    with Broker(tmp_path / "store") as broker:
        broker.options = Broker(tmp_path / "store", **broker.ports).options
        expected = places(broker.send("t", rows_of(0, 18_000)))
        sink = Sink(within)
        start(spark, broker, "t", sink, tmp_path, rowsPerPartition=6_000).awaitTermination(120)
        restarting.join()
    assert sink.found == expected
    assert bool(ended) is workers_end


def test_a_batch_that_lasts_longer_than_connections_may_idle_is_followed_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def for_a_second(of: BrokerOptions) -> RemotingOptions:
        return dataclasses.replace(remoting_options(of), idle_timeout=1.0)  # two minutes else

    class Slow(Sink):
        def __call__(self, rows: DataFrame, batch: int) -> None:
            super().__call__(rows, batch)
            were_open.append(connections_to(port))
            wait_for(lambda: connections_to(port) == 0)  # nobody closes them but the broker

    monkeypatch.setattr("rocketbox.broker.broker.remoting_options", for_a_second)
    were_open: list[int] = []
    sink = Slow()
    with Broker(tmp_path / "store") as broker:
        port = broker.ports["port"]
        expected = places(broker.send("t", rows_of(0, 200)))
        mirrored = {"group": "slow", "commitOffsets": True, "maxOffsetsPerTrigger": 100}
        start(spark, broker, "t", sink, tmp_path, **mirrored).awaitTermination(120)
        assert broker.committed("t", "slow") == broker.ends("t"), "the last batch is told of as well"
    assert sink.found == expected
    assert len(were_open) == 2
    assert all(were_open)


def test_queues_that_come_and_go_between_batches_are_read_once_each(spark: SparkSession, tmp_path: Path) -> None:
    expected: Places = Counter()
    sink = Sink()
    with Broker(tmp_path / "store") as broker:
        for number, (reads, writes) in enumerate([(4, 4), (16, 16), (16, 2), (2, 2), (8, 8)]):
            if writes == 2 and reads == 2:  # nobody can read what is in a queue that is taken away
                start(spark, broker, "t", sink, tmp_path).awaitTermination(120)
                assert sink.found == expected
            broker.set_queues("t", reads, writes)
            expected += places(broker.send("t", rows_of(1000 * number, 1000 * number + 320)))
            if number != 1:
                start(spark, broker, "t", sink, tmp_path, maxOffsetsPerTrigger=300).awaitTermination(120)
    assert sink.found == expected
    assert len({queue for _, queue, _ in expected}) == 16


def test_what_is_deleted_before_it_is_read_ends_a_stream_or_is_all_that_is_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = {"mapped-file-size-commit-log": "100000"}
    sink = Sink()
    with Broker(tmp_path / "store", settings=small) as broker:
        ports = broker.ports
        expected = places(broker.send("t", rows_of(0, 400)))
        start(spark, broker, "t", sink, tmp_path).awaitTermination(120)
        assert sink.found == expected
        expected += places(broker.send("t", rows_of(400, 4_400)))
    with soon_deleted() as settings, Broker(tmp_path / "store", **ports, settings={**settings, **small}) as broker:
        wait_for(lambda: min(starts_of(broker, "t").values()) > 200)
        query = start(spark, broker, "t", sink, tmp_path)
        with pytest.raises(StreamingQueryException, match=r"offsets 100 to \d+ \(\d+ in all\) are gone, its first"):
            query.awaitTermination(120)
        assert sum(sink.found.values()) == 400, "nothing was passed over"
        start(spark, broker, "t", sink, tmp_path, failOnDataLoss=False).awaitTermination(120)
        first = starts_of(broker, "t")
    assert sink.found == Counter(place for place in expected if place[2] < 100 or place[2] >= first[place[1]])


def starts_of(broker: Broker, topic: str) -> dict[int, int]:
    async def ask(admin: Any) -> dict[int, int]:
        return {queue.queue_id: await admin.min_offset(queue) for queue in await admin.queues(topic)}

    return broker.ask(ask)


def test_one_of_two_brokers_may_be_away_and_the_other_one_is_read(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    with Broker(tmp_path / "a") as broker:
        with BrokerBeside(tmp_path / "b", "broker-b", broker.name_server):
            broker.ask(lambda admin: admin.create_topic("t", queues=4))
            expected = places(broker.send("t", rows_of(0, 160)))
            query = start(spark, broker, "t", sink, tmp_path, now=False)
            wait_for(lambda: sink.found == expected, MINUTES, unless=query.exception)
        of_one = places(broker.send("t", rows_of(160, 240)))
        assert {name for name, _, _ in of_one} == {"broker-a"}
        wait_for(lambda: of_one <= sink.found, MINUTES, unless=query.exception)
        with BrokerBeside(tmp_path / "b", "broker-b", broker.name_server):
            of_both = places(broker.send("t", rows_of(240, 400)))
            assert {name for name, _, _ in of_both} == {"broker-a", "broker-b"}
            expected += of_one + of_both
            wait_for(lambda: expected <= sink.found, MINUTES, unless=query.exception)
            query.stop()
    assert sink.found == expected


def test_the_count_notices_what_is_missing_and_what_stands_there_twice(tmp_path: Path) -> None:
    with World(tmp_path, random.Random(0), happened=lambda: None) as world:
        world.expected.update({("broker-a", 0, offset): 1 for offset in range(4)})
        for number, offsets in enumerate([[0, 1], [1, 2, 7]]):
            folder = world.lake / f"batch={number}"
            folder.mkdir(parents=True)
            rows = [{"broker_name": "broker-a", "queue_id": 0, "queue_offset": offset} for offset in offsets]
            parquet.write_table(pa.Table.from_pylist(rows), folder / "part.parquet")
        missing, extra = world.compare()
    assert missing == {("broker-a", 0, 3): 1}
    assert extra == {("broker-a", 0, 1): 1, ("broker-a", 0, 7): 1}
    line = f"{gap_in_words(MessageQueue('ledger', 'broker-a', 2), 5, 8, found=8)}: skipped, as failOnDataLoss=false"
    assert told_as_gone(line) == {("broker-a", 2, offset) for offset in (5, 6, 7)}


def test_a_replica_in_another_process_goes_on_where_one_was_killed_between_write_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketbox.broker.broker.QueueLocks", partial(QueueLocks, lifetime=5.0))  # a minute else
    with World(tmp_path, random.Random(0), happened=lambda: None) as world, Broker(world.folder / "store") as broker:
        world.send(broker.name_server, 12_000)  # two batches, of several record batches each
        world.hold.touch()
        one = world.start(broker.name_server, die_behind=0, confirm_interval=0.5)
        one.wait_for(lambda: one.count("begins", 0), "the first one reads")
        other = world.start(broker.name_server, confirm_interval=0.5)
        other.wait_for(lambda: other.count("is", "standing by"), "the second one stands by")
        world.hold.unlink()
        world.wait_until_there(other)
        other.stop()
        assert one.process.wait() == -9
        missing, extra = world.compare()
    assert (missing.total(), extra.total()) == (0, 0)
    assert [note for note in one.notes if note[0] == "written"] == [["written", 0, True]]
    assert [note for note in other.notes if note[0] != "is"] == [
        ["begins", 0, 2], ["written", 0, False], ["begins", 1, 1], ["written", 1, True],
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my jürgen app"]
