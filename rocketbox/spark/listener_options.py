"""Everything that is said about one Spark listener, in its final types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from rocketbox.spark.query_options import OnFailedBatch, OnInvalidBody, RowForm

__all__ = ["SparkListenerOptions"]


@dataclass(frozen=True, kw_only=True)
class SparkListenerOptions:
    """One listener; ``trigger`` is how often a batch begins.

    ``name`` is what ``app.listeners`` knows it by in its ``cluster``; without one, its group. After
    ``max_batch_attempts`` (None: never) a batch that fails is given up, and the listener with it, or its messages go to
    the group's dead letters (``on_failed_batch``). ``persist`` keeps a batch's rows for several actions in one call.
    """

    topic: str
    group: str
    checkpoint: str
    name: str | None = None
    cluster: str | None = None
    selector_expression: str = "*"
    schema: Any = None
    trigger: timedelta | Literal["available_now"] = timedelta(seconds=1)
    max_messages: int | None = None
    starting_offsets: str = "group"
    source_options: Mapping[str, str] = field(default_factory=dict)
    as_: RowForm = RowForm.SPARK
    on_invalid: OnInvalidBody = OnInvalidBody.COLUMN
    max_batch_attempts: int | None = None
    on_failed_batch: OnFailedBatch = OnFailedBatch.FAIL
    persist: bool = False

    @property
    def query_name(self) -> str:
        """What Spark calls its query: no two in a session may have one name."""
        name = f"{self.group}.{self.topic}"
        return f"{self.cluster}.{name}" if self.cluster else name
