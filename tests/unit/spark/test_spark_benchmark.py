"""The benchmark "spark": its parts stand in two modules, of which one is imported without the extra."""

from tests.benchmarks.spark import SPARK, WITHOUT_SERVERS
from tests.benchmarks.spark_work import PARTS


def test_every_part_that_is_offered_is_there() -> None:
    assert list(PARTS) == SPARK
    assert set(WITHOUT_SERVERS) < set(SPARK)
