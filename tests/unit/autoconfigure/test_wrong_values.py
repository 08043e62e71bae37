"""Wrong types, ranges and units over the whole schema: each is one finding with key, value, place and what is allowed.

The keys are those that the models have, so that a new one is tested from its first day.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, Literal, get_origin

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from rocketbox.boot.root_settings import load_settings
from rocketbox.boot.shapes import Leaf, Many, key_text, uniform
from rocketbox.errors import ConfigurationError, Finding
from tests.support.framework.own_keys import MODELS, own_keys
from tests.support.framework.services import ServiceMaker

Key = tuple[tuple[str, ...], Leaf | Many]


def _keys() -> Iterator[Key]:
    """Those that are bound with all others."""
    return (
        (path, leaf)
        for path, leaf in own_keys()
        if path[:2] not in (("rocketbox", "profiles"), ("rocketbox", "config"))
    )


KEYS = list(_keys())


def _kind(leaf: Leaf | Many) -> Any:
    return leaf.kinds[0] if isinstance(leaf, Leaf) else list


def _is(kind: Any, *classes: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, classes)


def _words(leaf: Leaf) -> set[str]:
    """The words that an enum or Literal takes."""
    (kind,) = leaf.kinds
    members = [kind.__members__, [m.value for m in kind]] if _is(kind, Enum) else [kind.__args__]
    return {uniform(str(word)) for each in members for word in each}


TRUTHS = {"true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "1", "0"}
BLANKS = st.sampled_from(["", " ", "\t "])
WORDS = st.from_regex(r"[a-z]{2,9}", fullmatch=True)
NUMBERS = st.from_regex(r"[1-9][0-9]{0,4}", fullmatch=True)


def _texts(leaf: Leaf) -> st.SearchStrategy[str]:
    """Texts that the leaf must not take."""
    kind = _kind(leaf)
    if _is(kind, bool):
        return st.one_of(WORDS, NUMBERS.filter(lambda text: text != "1")).filter(lambda text: text not in TRUTHS)
    if _is(kind, timedelta):
        units = st.sampled_from(["y", "w", "min", "sec", "hours", "us", "ns", "ss", "m s"])
        wrong = st.one_of(WORDS, st.builds("{}{}".format, NUMBERS, units), st.builds("P{}W".format, NUMBERS))
        return st.one_of(wrong, NUMBERS) if "with its unit" in leaf.description else wrong
    if _is(kind, int) and leaf.description:
        units = st.sampled_from(["KiB", "mib", "K", "M", "XB", " bytes", "B/s", ".5MB", "s"])
        return st.one_of(WORDS, st.builds("{}{}".format, NUMBERS, units), NUMBERS.map("-{}".format))
    if _is(kind, int):
        parts = st.sampled_from(["x", ".5", "s", "%", ":30", " 1", "e3", "KB"])
        return st.one_of(WORDS, st.builds("{}{}".format, NUMBERS, parts), NUMBERS.map("0x{}".format))
    if get_origin(kind) is Literal or _is(kind, Enum):
        return WORDS.filter(lambda text: uniform(text) not in _words(leaf))
    if _is(kind, datetime):
        return WORDS
    assert _is(kind, str, SecretStr)
    return BLANKS


def _takes_any_text(key: Key) -> bool:
    path, leaf = key
    return isinstance(leaf, Many) or _is(_kind(leaf), PurePath) or path[-2] == "conf"


@st.composite
def wrong_values(draw: st.DrawFn) -> tuple[Key, str, str]:
    """A key, a value that is wrong for it as YAML, and what of the value must be shown."""
    key = draw(st.sampled_from(KEYS))
    path, leaf = key
    in_table = path[-2] in (
        "level",
        "conf",
        "attributes",
        "options",
    )  # with dots: what is nested is a longer key
    shapes = ["group"] if isinstance(leaf, Many) else ["list"] if in_table else ["list", "group"]
    if not _takes_any_text(key):
        shapes += ["text"] * 4
    shape = draw(st.sampled_from(shapes))
    if shape == "list":
        return key, "[hunter2, hunter3]", ""
    if shape == "group":
        return key, "{hunter2: hunter3}", ""
    assert isinstance(leaf, Leaf)
    text = draw(_texts(leaf))
    return key, json.dumps(text), text


def _findings(text: str, folder: Path) -> tuple[Finding, ...]:
    file = folder / "rocketbox.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(MODELS, file=file, environ={})
    return caught.value.findings


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wrong=wrong_values())
def test_a_wrong_value_is_one_finding_with_key_value_place_and_what_is_allowed(
    wrong: tuple[Key, str, str], tmp_path: Path
) -> None:
    (path, leaf), yaml, shown = wrong
    key = key_text(path)
    (finding,) = _findings(f"{key}: {yaml}\n", tmp_path)
    assert finding.what.startswith((f"{key} is ", f"{key} takes "))
    assert "rocketbox.yaml:1:" in str(finding.where)
    assert finding.fix
    if isinstance(leaf, Leaf) and leaf.is_secret:
        assert "hunter" not in str(finding)
    elif shown.strip():
        assert f"'{shown}'" in finding.what
    elif shown:
        assert f"{key} is empty" in finding.what


@settings(max_examples=200)
@given(wrong=wrong_values(), from_environment=st.booleans())
def test_a_wrong_text_is_the_same_finding_from_variables_and_arguments(
    wrong: tuple[Key, str, str], from_environment: bool
) -> None:
    (path, leaf), yaml, shown = wrong
    assume(yaml.startswith('"'))  # lists and groups are YAML's
    key, text = key_text(path), json.loads(yaml)
    name = "_".join(path).replace("-", "_").replace(".", "_").upper()
    where = f"environment variable {name}" if from_environment else f"argument --{key}"
    environ = {name: text} if from_environment else {}
    with pytest.raises(ConfigurationError) as caught:
        load_settings(MODELS, environ=environ, arguments=() if from_environment else [f"--{key}={text}"])
    (finding,) = caught.value.findings
    assert finding.what.startswith(f"{key} is ")
    assert finding.where == where
    assert finding.fix
    if shown.strip() and not (isinstance(leaf, Leaf) and leaf.is_secret):
        assert f"'{shown}'" in finding.what


def test_wrong_values_of_all_keys_are_told_together(tmp_path: Path) -> None:
    lines = [f"{key_text(path)}: {'{a: b}' if isinstance(leaf, Many) else '[a]'}" for path, leaf in KEYS]
    findings = _findings("\n".join(lines), tmp_path)
    assert len(KEYS) > 150
    assert sorted(finding.what.partition(" ")[0] for finding in findings) == sorted(key_text(path) for path, _ in KEYS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rocketmq.producer.send-message-timeout", "-1"),
        ("rocketmq.producer.retry-times-when-send-failed", "-1"),
        ("rocketmq.producer.retry-times-when-send-async-failed", "-1"),
        ("rocketmq.producer.max-message-size", "0"),
        ("rocketmq.pull-consumer.pull-batch-size", "0"),
        ("rocketmq.pull-consumer.pull-batch-size", "1025"),
        ("rocketbox.embedded.port", "-1"),
        ("rocketbox.embedded.port", "65536"),
        ("rocketbox.embedded.name-server-port", "65536"),
        ("rocketbox.shutdown.timeout", "-1s"),
    ],
)
def test_a_value_out_of_range_is_told_with_its_range(tmp_path: Path, key: str, value: str) -> None:
    (finding,) = _findings(f"{key}: {value}\n", tmp_path)
    assert finding.what.startswith(f"{key} is '{value}', and must be ")
    assert any(word in finding.what for word in ("than", "or more", "from "))
    assert finding.where == f"{tmp_path}/rocketbox.yaml:1:{len(key) + 3}"


# --- options of listeners ---------------------------------------------------------------------------------------------


LISTENERS = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("flight-desk", scan=[__name__])

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departures: list[str]) -> None: ...
"""


@pytest.mark.parametrize("above", ["rocketmq.consumer", "rocketmq.consumer.listeners.desk"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("concurrency", "0"),
        ("concurrency", "-5"),
        ("concurrency", "1001"),
        ("consume-message-batch-max-size", "0"),
        ("consume-message-batch-max-size", "1025"),
        ("max-reconsume-times", "-2"),
        ("delay-level-when-next-consume", "-2"),
        ("delay-level-when-next-consume", "19"),
        ("pull-batch-size", "0"),
        ("pull-batch-size", "1025"),
        ("invalid-limit", "0"),
        ("consume-timeout", "-15m"),
        ("suspend-current-queue-time", "-1s"),
        ("pull-interval", "-1ms"),
        ("await-termination-when-shutdown", "-1s"),
    ],
)
def test_an_option_of_a_listener_out_of_range_is_told_with_its_range(
    service: ServiceMaker, above: str, option: str, value: str
) -> None:
    settings_text = f"rocketmq.name-server: ns:9876\n{above}.{option}: {value}\n"
    with pytest.raises(ConfigurationError) as caught:
        service(LISTENERS, settings_text).app.look()
    (finding,) = caught.value.findings
    assert finding.what.startswith(f"{above}.{option} is '{value}', and must be ")
    assert finding.where == f"rocketbox.yaml:2:{len(above) + len(option) + 4}"
    assert str(finding.fix).startswith("write ")
