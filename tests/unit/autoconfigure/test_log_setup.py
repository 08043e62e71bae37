"""Lines of the log as JSON: each record is one, whatever its fields hold."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from rocketbox.autoconfigure.log_setup import JsonFormatter


class Detached:
    def __repr__(self) -> str:
        raise ValueError("the session is closed")


ROUND: list[Any] = [1]
ROUND.append(ROUND)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (float("nan"), "nan"),
        (ROUND, "[1, [...]]"),
        ({"row": Detached()}, {"row": "<Detached that cannot be written out: its repr() raised ValueError>"}),
    ],
)
def test_a_field_that_json_cannot_say_loses_no_line(value: object, shown: object) -> None:
    record = logging.makeLogRecord({"msg": "it is", "levelname": "INFO", "name": "shop", "field": value, "other": [7]})

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    line = json.loads(JsonFormatter().format(record), parse_constant=refuse)
    assert (line["message"], line["field"], line["other"]) == ("it is", shown, [7])


def test_a_stack_that_was_asked_for_is_a_field() -> None:
    record = logging.makeLogRecord({"msg": "it is", "stack_info": "Stack (most recent call last):\n  here"})
    assert json.loads(JsonFormatter().format(record))["stack"] == "Stack (most recent call last):\n  here"
