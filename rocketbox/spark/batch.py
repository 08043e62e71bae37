"""What a Spark listener is told about the micro-batch it gets; importing it loads no pyspark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkBatch"]


@dataclass(frozen=True)
class SparkBatch:
    """What a listener may know of the micro-batch it gets.

    ``query_id`` and ``id`` together name the batch for ever: a sink that overwrites by them keeps each row once.
    ``attempt`` is 1, and grows when the same batch comes again in this process.
    """

    id: int
    query_id: str
    topic: str
    group: str
    attempt: int
    spark: SparkSession
