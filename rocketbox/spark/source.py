"""The Spark data source ``rocketmq``: a topic read and written in batches and streams, as Arrow record batches.

``spark.read.format("rocketmq")`` and ``spark.readStream.format("rocketmq")`` read; their options are declared in
``rocketbox.spark.options``, those of writes in ``rocketbox.spark.write_options``; docs/reference/spark-source.md is
made of both.

A message that cannot be read (compressed in an unknown way, with a time that is none, damaged) is a row with a null
``body`` and the reason in ``_error``.

``frame.write.format("rocketmq").mode("append")`` and ``frame.writeStream.format("rocketmq")`` send a message for each
row. Columns: ``body`` (binary or string) or ``value`` (a struct, map or array, written as JSON), ``topic``, ``tag``,
``keys`` (string or array), ``properties`` (map), ``delay_level``, ``hash_key``; a null means that the message has none
(no body and no topic is an error).

Every Spark session imports this module when it looks its first Python data source up: what reads (the client, pyarrow)
is imported when something is read. Source: Apache Spark 4.3.0, ``DataSource`` in Python.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rocketbox.spark.columns import COLUMNS, schema_of
from rocketbox.spark.options import SourceOptions

__all__ = ["SCHEMA", "RocketMQDataSource"]

SCHEMA = schema_of(COLUMNS)


class RocketMQDataSource(DataSource):
    """Spark's way in; it is pickled with its options for every use."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return schema_of(SourceOptions(self._options).columns)  # a wrong option is told by load()

    def reader(self, schema: StructType) -> DataSourceReader:
        from rocketbox.spark.readers import batch_reader

        options = self._checked(schema)
        options.check_batch()
        return batch_reader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from rocketbox.spark.readers import RocketMQStreamReader

        options = self._checked(schema)
        options.check_stream()
        return RocketMQStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rocketbox.spark.writing import RocketMQWriter, plan_write

        return RocketMQWriter(plan_write(self._options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from rocketbox.spark.writing import RocketMQStreamWriter, plan_write

        return RocketMQStreamWriter(plan_write(self._options, schema, overwrite))

    def _checked(self, schema: StructType) -> SourceOptions:
        options = SourceOptions(self._options)
        if tuple(schema.names) != options.columns:
            raise ValueError(
                "the data source rocketmq has columns of its own: leave .schema() out, and take the body apart with "
                "from_json(col('body').cast('string'), ...)"
            )
        return options
