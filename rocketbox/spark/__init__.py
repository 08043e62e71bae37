"""Topics as DataFrames: the Spark data source ``rocketmq`` and the listener that runs a streaming query on it.

Importing this package loads no pyspark; its modules do (extra ``rocketbox[spark]``).
"""

__all__: list[str] = []
