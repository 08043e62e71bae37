"""Placeholders that nest deep or stand for much text: what they may, and what is said beyond."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from rocketbox.boot import placeholders
from rocketbox.boot.placeholders import MOST_CHARACTERS, MOST_NESTED, Found, PlaceholderError, resolve_placeholders


def resolve(text: str, values: dict[str, str]) -> str:
    def lookup(name: str) -> Found | None:
        looked_up.append(name)
        return Found(values[name], f"desk.yaml:{name}") if name in values else None

    looked_up: list[str] = []
    found = resolve_placeholders(text, lookup, subject="desk.name", where="desk.yaml:1")
    assert len(looked_up) <= 2 * len(values) + text.count("${"), "each name is looked into once"
    return found


def refused(text: str, values: dict[str, str]) -> str:
    with pytest.raises(PlaceholderError) as caught:
        resolve(text, values)
    return str(caught.value.finding)


def test_a_name_that_is_written_often_is_looked_into_once() -> None:
    values = {f"n{level}": f"${{n{level + 1}}}" * 2 for level in range(12)} | {"n12": "x"}
    assert resolve("${n0}", values) == "x" * 4096


def test_names_that_stand_for_too_much_text_are_refused() -> None:
    values = {f"n{level}": f"${{n{level + 1}}}" * 10 for level in range(12)} | {"n12": "x" * 10}
    assert refused("${n0}", values) == (
        "desk.name -> ${n0} (desk.yaml:n0) -> ${n1} (desk.yaml:n1) -> ... -> ${n5} (desk.yaml:n5) -> ${n6} "
        f"(desk.yaml:n6) becomes a text of more than {MOST_CHARACTERS} characters\n"
        "    where: desk.yaml:1\n"
        "    fix:   name each of the others once, or write a shorter text"
    )


def nested(levels: int) -> str:
    return "${a:" * levels + "7" + "}" * levels


def test_defaults_may_nest_and_too_deep_ones_are_refused() -> None:
    assert resolve(nested(MOST_NESTED - 1), {}) == "7"
    assert refused(nested(3000), {}) == (
        f"desk.name has placeholders in one another, more than {MOST_NESTED} deep\n"
        "    where: desk.yaml:1\n"
        "    fix:   write what they stand for in fewer steps"
    )


def test_a_long_way_from_name_to_name_is_refused() -> None:
    values = {f"n{level}": f"${{n{level + 1}}}" for level in range(3000)} | {"n3000": "x"}
    assert "has placeholders in one another, more than 100 deep" in refused("${n0}", values)


def lines_run(text: str) -> int:
    """How many lines of the module that replaces placeholders run for a text."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != placeholders.__file__:
            return None
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        resolve(text, {"a": "7"})
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize(
    ("levels", "filling"),
    [(90, "x" * 2000), (90, "{}" * 1000), (90, "{a:7}" * 400), (1, "${a}" * 500), (90, ":" * 2000)],
)
def test_the_work_grows_with_the_text_and_not_with_how_deep_it_nests(levels: int, filling: str) -> None:
    text = "${nobody:" * levels + filling + "}" * levels
    assert lines_run(text) < 20 * len(text)


def test_braces_and_colons_count_where_they_stand() -> None:
    assert resolve("${b:{x:${a}}:${a:}}", {"a": "7"}) == "{x:7}:7"
    assert resolve("${${a}:{}}", {"a": "b", "b": "8"}) == "8"
    assert resolve(r"\${a} ${b:\${a}} }{", {"a": "7"}) == "${a} ${a} }{"


def test_a_name_that_is_longer_than_any_is_refused_and_not_quoted() -> None:
    text = refused("${" + "a." * 100_000 + "}", {})
    assert text == (
        "desk.name needs a name of 200000 characters, and one has 1000 at most\n"
        "    where: desk.yaml:1\n"
        "    fix:   write ${NAME}, or ${NAME:default} with the text behind the colon"
    )
