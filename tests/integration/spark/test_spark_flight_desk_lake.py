"""How the flight desk finds in its lake what a Spark listener would have lost or doubled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from starter_examples.flight_desk.lake import faults

pytestmark = pytest.mark.spark

Offsets = Sequence[int]
TWO_QUEUES = {("a", 0): range(5, 15), ("b", 0): range(3)}


def keep(lake: Path, batch: int, offsets: Mapping[tuple[str, int], Offsets], query: str = "q") -> None:
    """A batch as the listener keeps it: by broker and number of a queue, the offsets of its messages."""
    places = [(broker, number, offset) for (broker, number), found in offsets.items() for offset in found]
    columns = {
        name: [place[index] for place in places]
        for index, name in enumerate(("broker_name", "queue_id", "queue_offset"))
    }
    folder = lake / f"query={query}" / f"batch={batch}"
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "part-0.parquet")


@pytest.mark.parametrize(
    ("second", "left_out", "twice"),
    [
        pytest.param({("a", 0): range(15, 20), ("b", 0): [3]}, 0, 0, id="all of them once"),
        pytest.param({("a", 0): [15, 17, 18]}, 1, 0, id="one left out"),
        pytest.param({("a", 0): range(16, 20)}, 1, 0, id="one left out between two batches"),
        pytest.param({("a", 0): [*range(15, 20), 17]}, 0, 1, id="one twice in a batch"),
        pytest.param({("a", 0): range(14, 20)}, 0, 1, id="one twice, in two batches"),
        pytest.param({("a", 0): [15, 17, 17], ("b", 0): [2, 5]}, 3, 2, id="left out and twice, in two queues"),
    ],
)
def test_each_message_that_lacks_or_is_there_twice_is_counted(
    spark: SparkSession, tmp_path: Path, second: Mapping[tuple[str, int], Offsets], left_out: int, twice: int
) -> None:
    keep(tmp_path, 0, TWO_QUEUES)
    keep(tmp_path, 1, second)
    keep(tmp_path, 0, {("a", 0): range(5)}, query="of another store, whose offsets begin anew")
    assert faults(spark, tmp_path) == (left_out, twice)
