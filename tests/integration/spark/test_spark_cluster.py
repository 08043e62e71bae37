"""Jobs by spark-submit on Spark's standalone cluster: work is spread, and an executor's end costs no row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.support.spark.standalone import Job, Standalone, rows_in
from tests.support.spark.topics import Broker, dedup_keys, rows_of, wait_for
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_a_listener_on_a_cluster_delivers_each_row_once_although_an_executor_is_killed(
    cluster: Standalone, broker: Broker, topic: str, tmp_path: Path
) -> None:
    sent = broker.send(topic, rows_of(0, 6_000))
    with Job(cluster.master, tmp_path, broker.name_server, topic, "listener") as job:
        job.wait_for_notes(2)
        cluster.kill_executor()
        job.wait()
        assert [note[0] for note in job.notes] == [0, 1, 2]
        assert job.notes[0][1:] == [2, 5]  # executors; tasks: 2,000 rows, about 400 each
    expected = {(result.queue.broker_name, result.queue.queue_id, result.queue_offset): 1 for result in sent}
    assert rows_in(tmp_path / "lake") == expected
    assert [path.name for path in tmp_path.iterdir() if "rgen" in path.name] == ["my jürgen app"]


def test_rows_that_an_executor_has_written_before_it_is_killed_come_again_under_their_keys(
    cluster: Standalone, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send(topic, rows_of(0, 6_000))
    copies = f"{topic}-copy"
    broker.set_queues(copies, 4)
    with Job(cluster.master, tmp_path, broker.name_server, topic, "copy") as job:
        wait_for(lambda: written(broker, copies) > 600, 5 * PATIENCE, unless=job.process.poll)
        cluster.kill_executors()
        assert written(broker, copies) < 6_000
        job.wait()
    found = broker.messages_of(copies)
    keys = dedup_keys(found)
    assert sorted(json.loads(body)["row"] for body in keys) == list(range(6_000))
    assert len(found) > 6_000
    assert all(len(of_row) == 1 for of_row in keys.values())
    assert len(set.union(*keys.values())) == 6_000


def written(broker: Broker, topic: str) -> int:
    return sum(end or 0 for end in broker.ends(topic).values())
