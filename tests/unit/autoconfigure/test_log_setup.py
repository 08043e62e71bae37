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


CLEARS = "\x1b[2J\x00\x08\x7f\x9b2J"  # what terminals obey, some of it in one character
SHOWN = r"\x1b[2J\x00\x08\x7f\x9b2J"


def record_of_a_clearing_failure() -> logging.LogRecord:
    try:
        raise ValueError(f"bad\torder {CLEARS}")
    except ValueError as error:
        failure = (ValueError, error, error.__traceback__)
    values = {"msg": "order\t%s", "args": (CLEARS,), "levelname": "INFO", "name": "shop", "exc_info": failure}
    return logging.makeLogRecord(values)


@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_nothing_that_is_logged_gives_orders_to_the_terminal(level: int) -> None:
    """But the colour of the level. Tabs stay."""
    record = record_of_a_clearing_failure()
    record.levelno, record.levelname = level, logging.getLevelName(level)
    text = TextFormatter(colour=True).format(record)
    if level == logging.ERROR:
        assert text.count("\x1b[31mERROR\x1b[0m") == 1
        text = text.replace("\x1b[31mERROR\x1b[0m", "ERROR")
    first, *more = text.splitlines()
    assert first.endswith(f" shop: order\t{SHOWN}")
    assert more[-1] == f"  ValueError: bad\torder {SHOWN}"
    assert [each for each in text if not each.isprintable() and each not in "\n\t"] == []


def test_a_line_of_json_gives_no_orders_to_the_terminal() -> None:
    record = record_of_a_clearing_failure()
    record.field = f"{CLEARS}\x85\u2028"
    text = JsonFormatter().format(record)
    assert [each for each in text if not each.isprintable()] == []
    line = json.loads(text)
    assert (line["message"], line["field"]) == (f"order\t{CLEARS}", f"{CLEARS}\x85\u2028"), "who reads it gets it whole"
    assert line["error"].endswith(f"ValueError: bad\torder {CLEARS}")


def test_an_empty_record_is_a_line() -> None:
    assert TextFormatter().format(logging.makeLogRecord({"msg": "", "levelname": "INFO", "name": "shop"}))
