"""Bodies of other formats in a record batch, as JSON text: in pieces, since JSON may be much longer than what was sent.

Which formats there are, and what each makes of a body, is ``body_formats``; where the bodies come from is
``record_columns``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from rocketbox.spark.body_formats import CONTENT_TYPE, BodyFormat
from rocketbox.spark.columns import ERROR

__all__ = ["CONTENT_TYPE_COLUMN", "in_json"]

CONTENT_TYPE_COLUMN = pa.field(CONTENT_TYPE, pa.string())
"""The last column of a batch for :func:`in_json`: what a message says that its body is; null where it says nothing."""


def in_json(batch: Any, body_format: BodyFormat, most_bytes: int) -> Iterator[Any]:
    """The rows of a batch without that last column, whose column ``body`` is JSON now.

    A body that is none of the format is null, and ``_error`` says why. Pieces end behind ``most_bytes`` of JSON.
    """
    rows = batch.drop_columns([CONTENT_TYPE_COLUMN.name])
    made: list[bytes | None] = []
    wrong: dict[int, str] = {}
    size = first = 0
    bodies = zip(batch.column("body"), batch.column(CONTENT_TYPE_COLUMN.name).to_pylist(), strict=True)
    for row, (body, said) in enumerate(bodies):
        text: bytes | None = None
        if body.is_valid:
            try:
                text = body_format.to_json(body.as_py(), said)
            except ValueError as error:
                wrong[row - first] = str(error)
        made.append(text)
        size += len(text or b"")
        if size >= most_bytes:
            yield _replaced(rows.slice(first, len(made)), made, wrong)
            made, wrong, size, first = [], {}, 0, row + 1
    if made:
        yield _replaced(rows.slice(first), made, wrong)


def _replaced(rows: Any, bodies: list[bytes | None], wrong: dict[int, str]) -> Any:
    names = rows.schema.names
    rows = rows.set_column(names.index("body"), "body", pa.array(bodies, pa.binary()))
    if wrong and ERROR in names:
        texts = [wrong.get(row, text) for row, text in enumerate(rows.column(ERROR).to_pylist())]
        rows = rows.set_column(names.index(ERROR), ERROR, pa.array(texts, pa.string()))
    return rows
