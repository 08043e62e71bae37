"""What may be said of a Spark listener's query: declared once; the decorator and the settings have the same options.

Where the values come from (YAML, decorator) is the caller's; what the data source is told of them is in
``listener_source``. Settings know the options of all kinds of listeners: importing this loads next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any

from annotated_types import Ge

from rocketbox.declarations import IN_CODE, Key, Option, Words, options_of

__all__ = ["QUERY_OPTIONS", "OnFailedBatch", "OnInvalidBody", "QueryOptions", "RowForm"]


class RowForm(Enum):
    """In which form a function gets the rows of a batch."""

    SPARK = "spark"
    ARROW = "arrow"
    PANDAS = "pandas"
    POLARS = "polars"


class OnInvalidBody(Enum):
    """What becomes of a message that cannot be read, or whose body does not fit the schema."""

    COLUMN = "column"
    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"


class OnFailedBatch(Enum):
    """What becomes of a batch that has used up its attempts."""

    FAIL = "fail"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """The options beside topic, group, cluster and selection, which all kinds of listeners have."""

    schema: Annotated[Any, IN_CODE] = None
    trigger: Annotated[
        str,
        Words(
            "how often a batch begins, such as 10s (one that takes longer is followed at once), or available_now: read "
            "what there is, and end"
        ),
    ] = "1s"
    max_messages: Annotated[int, Ge(1), Words("messages of a batch at most")] = 100_000
    starting_offsets: Annotated[
        str, Words("where a query without a checkpoint begins: group, earliest, latest, a time, or JSON")
    ] = "group"
    checkpoint: Annotated[
        str | None, Words("the folder or URI of its checkpoint (default: a folder below rocketbox.spark.checkpoint)")
    ] = None
    as_: Annotated[
        RowForm, Key("as"), Words("what the function gets: a DataFrame of spark, pandas or polars, or a table of arrow")
    ] = RowForm.SPARK
    on_invalid: Annotated[OnInvalidBody, IN_CODE] = OnInvalidBody.COLUMN  # settings have that of all listeners
    fail_on_data_loss: Annotated[
        bool, Words("false: where messages are gone before they were read, it goes on behind them")
    ] = True
    rows_per_partition: Annotated[int | None, Ge(1), Words("about how many messages one task reads")] = None
    max_batch_attempts: Annotated[
        int | None, Ge(1), Words("how often a batch is tried before it is given up (default: without end)")
    ] = None
    on_failed_batch: Annotated[
        OnFailedBatch,
        Words("what becomes of a batch that is given up: fail the listener, or dead-letter its messages and go on"),
    ] = OnFailedBatch.FAIL
    persist: Annotated[bool, Words("true: a batch's rows are kept for several actions in one call")] = False
    options: Annotated[
        dict[str, str] | None, Words("further options of the data source, by their names, such as maxBytesPerTrigger")
    ] = None


QUERY_OPTIONS: Mapping[str, Option] = MappingProxyType(dict(options_of(QueryOptions)))
