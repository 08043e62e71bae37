"""Which columns a read delivers, by the options ``columns`` and ``includeProperties``."""

from __future__ import annotations

import re

import pytest

from rocketbox.spark.columns import COLUMNS, schema_of
from rocketbox.spark.options import SourceOptions

NEEDED = {"nameServer": "127.0.0.1:9876", "topic": "orders"}


def chosen(**options: str) -> tuple[str, ...]:
    return SourceOptions({**NEEDED, **options}).columns


def test_all_columns_come_unless_some_are_named() -> None:
    assert chosen() == chosen(includeProperties="true") == tuple(COLUMNS)
    assert chosen(includeProperties="false") == tuple(name for name in COLUMNS if name != "properties")
    assert chosen(columns=" body ,queue_offset") == ("body", "queue_offset")
    assert chosen(columns="properties", includeProperties="true") == ("properties",)


def test_the_schema_is_that_of_the_columns() -> None:
    assert schema_of(("keys", "_error")) == "keys array<string>, _error string"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": "body,boddy"}, "option columns names 'boddy', which is no column; did you mean body?"),
        ({"columns": ","}, "option columns names '', which is no column; there are body, topic,"),
        ({"columns": "tag, tag"}, "option columns names tag twice"),
        ({"columns": "body", "includeProperties": "true"}, "includeProperties is true and columns is 'body'"),
        ({"columns": "properties", "includeProperties": "false"}, "leave includeProperties out"),
        ({"includeProperties": "no"}, "includeProperties is 'no'; it must be true or false"),
    ],
)
def test_wrong_columns_are_named_with_what_would_be_right(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        chosen(**options)
