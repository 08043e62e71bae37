"""What may be said of a Spark listener's query: declared once; the decorator and the settings have the same options.

Where the values come from (YAML, decorator) is the caller's; what the data source is told of them is in
``listener_source``. Settings know the options of all kinds of listeners: importing this loads next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from annotated_types import Ge

from rocketbox.declarations import IN_CODE, Option, Words, options_of
from rocketbox.frozen import frozen

__all__ = ["QUERY_OPTIONS", "QueryOptions"]


@frozen(kw_only=True)
class QueryOptions:
    """The options beside topic, group, cluster and selection, which all kinds of listeners have."""

    schema: Annotated[Any, IN_CODE] = None
    trigger: Annotated[
        str, Words("the pause from batch to batch, such as 10s, or available_now: read what there is, and end")
    ] = "1s"
    max_messages: Annotated[int, Ge(1), Words("messages of a batch at most")] = 100_000
    starting_offsets: Annotated[
        str, Words("where a query without a checkpoint begins: group, earliest, latest, a time, or JSON")
    ] = "group"
    checkpoint: Annotated[
        str | None, Words("the folder or URI of its checkpoint (default: a folder below rocketbox.spark.checkpoint)")
    ] = None
    fail_on_data_loss: Annotated[
        bool, Words("false: where messages are gone before they were read, it goes on behind them")
    ] = True
    rows_per_partition: Annotated[int | None, Ge(1), Words("about how many messages one task reads")] = None
    options: Annotated[
        dict[str, str] | None, Words("further options of the data source, by their names, such as maxBytesPerTrigger")
    ] = None


QUERY_OPTIONS: Mapping[str, Option] = MappingProxyType(dict(options_of(QueryOptions)))
