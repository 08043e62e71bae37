"""The columns of the data source ``rocketmq``: their names, their types in Spark, and which of them a read delivers.

Pure: no Spark, no pyarrow (``record_columns`` has the types in Arrow).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["COLUMNS", "ERROR", "choose_columns", "schema_of"]

ERROR: Final = "_error"
"""Why a message could not be read; its body is null then. Null for all others."""
PROPERTIES: Final = "properties"

COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "body": "binary",
        "topic": "string",
        "broker_name": "string",
        "queue_id": "int",
        "queue_offset": "bigint",
        "msg_id": "string",
        "tag": "string",
        "keys": "array<string>",
        PROPERTIES: "map<string,string>",
        "born_timestamp": "timestamp",
        "store_timestamp": "timestamp",
        "reconsume_times": "int",
        ERROR: "string",
    }
)
"""Types by name, in the order in which they stand in a DataFrame."""


def choose_columns(text: str | None, include_properties: bool | None) -> tuple[str, ...]:
    """The columns of a read with the options ``columns`` (names separated by commas) and ``includeProperties``.

    Raises ValueError that names the option and says what would be right.
    """
    if text is None:
        return tuple(name for name in COLUMNS if name != PROPERTIES or include_properties is not False)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COLUMNS)}"
            raise ValueError(f"option columns names {name!r}, which is no column; {hint}")
        if names.count(name) > 1:
            raise ValueError(f"option columns names {name} twice")
    if include_properties is not None and include_properties != (PROPERTIES in names):
        said = str(include_properties).lower()
        raise ValueError(f"option includeProperties is {said} and columns is {text!r}; leave includeProperties out")
    return tuple(names)


def schema_of(names: Iterable[str]) -> str:
    """The schema of these columns in Spark's DDL.

    A plain ``timestamp`` there is what ``spark.sql.timestampType`` of the session says; ours are moments.
    """
    return ", ".join(f"{name} {'timestamp_ltz' if COLUMNS[name] == 'timestamp' else COLUMNS[name]}" for name in names)
