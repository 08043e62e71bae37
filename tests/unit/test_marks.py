"""Marks on functions: what is misspelt or misplaced is refused at its line, with what is meant."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rocketbox import marks
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.marks import marks_of, rocketmq_listener, rocketmq_spark_listener, send_to


async def handler(body: bytes) -> None: ...


class Desk: ...


def refused(use: Callable[[], object]) -> Finding:
    """What is wrong with a use of a mark on one line of this file; its place is that line."""
    with pytest.raises(ConfigurationError) as caught:
        use()
    (finding,) = caught.value.findings
    line = use.__code__.co_firstlineno
    assert (finding.where or "").endswith(f"test_marks.py:{line}")
    return finding


@pytest.mark.parametrize("kind", [rocketmq_listener, rocketmq_spark_listener])
def test_a_mark_without_parentheses_is_refused(kind: Any) -> None:
    finding = refused(lambda: kind(handler))
    assert finding.what == f"@{kind.__name__} stands above handler without parentheses"
    assert f"write @{kind.__name__}(topic=..., consumer_group=...)" in (finding.fix or "")


def test_options_by_position_are_refused_with_their_names() -> None:
    listener: Any = rocketmq_listener
    finding = refused(lambda: listener("departures", "desk"))
    assert finding.what == "rocketmq_listener takes its options by their names, and 'departures' has none"
    assert finding.fix == "write topic='departures', consumer_group='desk'"


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("consumer_grup", "did you mean consumer_group=?"),
        ("consumerGroup", "did you mean consumer_group=?"),
        ("ConsumeMode", "did you mean consume_mode=?"),
        ("consumeThreadMax", "did you mean concurrency=?"),
        ("tag", "did you mean selector_expression=?"),
        ("colour_of_the_sky", "its options are: topic, consumer_group, "),
    ],
)
def test_an_option_that_is_misspelt_is_refused_with_the_one_that_is_meant(option: str, fix: str) -> None:
    listener: Any = rocketmq_listener
    finding = refused(lambda: listener(topic="departures", **{option: "desk"}))
    assert finding.what == f"rocketmq_listener has no option {option!r}"
    assert (finding.fix or "").startswith(fix)


def test_names_of_options_elsewhere_lead_to_options_that_there_are() -> None:
    options = {field.name for field in dataclasses.fields(rocketmq_listener)}
    assert {*marks.NAMES_ELSEWHERE.values()} <= options


def test_send_to_needs_a_destination() -> None:
    bare: Any = send_to
    assert refused(lambda: bare(handler)).what == "@send_to stands above handler without a destination"
    assert refused(lambda: bare(3)).what == "send_to takes its destination as text, not 3"


def test_a_class_cannot_be_marked_as_a_listener() -> None:
    assert refused(lambda: rocketmq_listener()(Desk)).what == "@rocketmq_listener marks functions, and Desk is a class"


def test_what_cannot_be_marked_is_named() -> None:
    class Desk:
        async def on_order(self, body: bytes) -> None: ...

    for target, what in ((Desk().on_order, "Desk.on_order, a method"), (print, "print, a builtin_function_or_method")):
        with pytest.raises(ConfigurationError) as caught:
            rocketmq_listener(topic="orders")(target)
        (finding,) = caught.value.findings
        assert what in finding.what
        assert "test_marks.py" in (finding.where or "")
        assert finding.fix == "write it above the def, of a method in the class of a @bean"


def test_a_mark_stays_a_plain_value() -> None:
    one = rocketmq_listener(topic="departures", consumer_group="desk")
    assert copy.copy(one) == pickle.loads(pickle.dumps(one)) == dataclasses.replace(one) == one
    assert marks_of(one(handler)) == (one,)
    del handler.__dict__[marks.MARKS]


def test_a_line_that_misuses_a_mark_is_what_a_failed_import_tells(tmp_path: Any, monkeypatch: Any) -> None:
    from rocketbox.autoconfigure.scan import load_modules

    monkeypatch.syspath_prepend(str(tmp_path))
    sources = {
        "misuses_an_option": "from rocketbox import rocketmq_listener\n"
        "\n@rocketmq_listener(topc='a')\ndef on(a): ...\n",
        "misuses_properties": "from rocketbox import bean, configuration_properties\n"
        "\n@configuration_properties\nclass A: ...\n",
    }
    said = {}
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
        with pytest.raises(ConfigurationError) as caught:
            load_modules("app", [name])
        (finding,) = caught.value.findings
        assert (finding.where or "").endswith(f"{name}.py:3")
        said[name] = f"{finding.what}; {finding.fix}"
        sys.modules.pop(name, None)
    assert said == {
        "misuses_an_option": "rocketmq_listener has no option 'topc'; did you mean topic=?",
        "misuses_properties": 'write @configuration_properties("desk") above A: its keys stand below a prefix; '
        "correct that line",
    }
