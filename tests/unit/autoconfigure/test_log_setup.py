"""Lines of the log as JSON: each record is one, whatever its fields hold."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from rocketbox.autoconfigure.log_setup import JsonFormatter, TextFormatter


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


FORGED = "2026-11-23 00:00:00,000 ERROR   rocketbox: forged"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\x0b", "\x85", "\u2028"])
def test_only_a_record_begins_at_the_begin_of_a_line(end: str) -> None:
    """Whoever sends a message that a handler logs, or quotes in what it raises, writes no record by that."""
    try:
        raise ValueError(f"bad order x{end}{FORGED}")
    except ValueError as error:
        failure = (ValueError, error, error.__traceback__)
    values = {"msg": "order %s", "args": (f"x{end}{FORGED}",), "levelname": "INFO", "name": "shop", "exc_info": failure}
    first, *more = TextFormatter(colour=True).format(logging.makeLogRecord(values)).splitlines()
    assert first.endswith("shop: order x")
    assert sum(FORGED in line for line in more) == 2
    assert all(line.startswith("  ") for line in more)
    assert "  Traceback (most recent call last):" in more


def test_an_empty_record_is_a_line() -> None:
    assert TextFormatter().format(logging.makeLogRecord({"msg": "", "levelname": "INFO", "name": "shop"}))
