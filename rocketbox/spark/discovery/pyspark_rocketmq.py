"""The module by which Spark finds the data source ``rocketmq`` by itself.

Every Spark session imports it once when the first Python data source is looked up, in any application on the machine:
it stays small, and what it needs is imported by the source when it is used.
"""

from rocketbox.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
