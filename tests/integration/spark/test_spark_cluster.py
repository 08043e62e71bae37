"""A listener by spark-submit on Spark's standalone cluster: work is spread, and an executor's end costs no row."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.support.spark.standalone import Job, Standalone, rows_in
from tests.support.spark.topics import Broker, rows_of

pytestmark = pytest.mark.spark


def test_a_listener_on_a_cluster_delivers_each_row_once_although_an_executor_is_killed(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    sent = broker.send(topic, rows_of(0, 6_000))
    with Standalone(tmp_path) as cluster, Job(cluster.master, tmp_path, broker.name_server, topic, "listener") as job:
        job.wait_for_notes(2)
        cluster.kill_executor()
        job.wait()
        assert [note[0] for note in job.notes] == [0, 1, 2]
        assert job.notes[0][1:] == [2, 5]  # executors; tasks: 2,000 rows, about 400 each
    expected = {(result.queue.broker_name, result.queue.queue_id, result.queue_offset): 1 for result in sent}
    assert rows_in(tmp_path / "lake") == expected
    assert [path.name for path in tmp_path.iterdir() if "rgen" in path.name] == ["my jürgen app"]
