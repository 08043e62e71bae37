"""The frozen row path as a data source of Spark, beside the one by columns in the same session."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rocketbox.spark.columns import COLUMNS, ERROR, schema_of
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.readers import RangePartition, RocketMQBatchReader
from tests.benchmarks.spark_rows import read_ranges

__all__ = ["RowsDataSource"]


class RowsDataSource(DataSource):
    """``spark.read.format("rocketmq_rows")``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq_rows"

    def schema(self) -> str:
        return schema_of(name for name in COLUMNS if name != ERROR)

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowsReader(SourceOptions(self._options))


class RowsReader(RocketMQBatchReader):
    """The same tasks, read message by message."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        ranges = partition.ranges if isinstance(partition, RangePartition) else []
        return read_ranges(ranges, self.options)
