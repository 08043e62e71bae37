"""Every key of rocketmq and rocketbox with one letter wrong, in a file: refused, with the key that was meant."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from rocketbox.autoconfigure.loading import settings_models
from rocketbox.boot.root_settings import schema_of
from rocketbox.boot.shapes import key_text, uniform
from rocketbox.broker.options import setting_names
from rocketbox.errors import ConfigurationError
from tests.support.framework.services import ServiceMaker

SCHEMA = schema_of(settings_models([]))


SERVICE = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("flight-desk", scan=[__name__])

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: dict[str, str]) -> None: ...
"""


def keys() -> list[tuple[str, ...]]:
    """Every key that there is, with desk for names that the user chooses, and Apache's broker settings."""
    own = [tuple("desk" if part == "*" else part for part in path) for path, _ in SCHEMA.leaves()]
    return own + [("rocketbox", "embedded", name) for name in setting_names()]


def own_parts() -> list[tuple[str, ...]]:
    """The keys, and what they stand below; not what ends with a name of the user's."""
    beginnings = {path[:length] for path in keys() for length in range(2, len(path) + 1)}
    return sorted(path for path in beginnings if path[-1] != "desk")


def position(word: str) -> int:
    """Somewhere inside the word, always the same."""
    return 1 + zlib.crc32(word.encode()) % (len(word) - 1)


def without_a_letter(word: str) -> str:
    at = position(word)
    return word[:at] + word[at + 1 :]


def with_a_letter_twice(word: str) -> str:
    at = position(word)
    return word[:at] + word[at] + word[at:]


def with_another_letter(word: str) -> str:
    at = position(word)
    return word[:at] + ("x" if word[at] != "x" else "y") + word[at + 1 :]


def with_two_letters_swapped(word: str) -> str:
    at = position(word)
    return word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :]


EDITS: list[Callable[[str], str]] = [
    without_a_letter,
    with_a_letter_twice,
    with_another_letter,
    with_two_letters_swapped,
]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("value", ["7", "false"])
def test_a_misspelt_key_is_refused_with_the_one_that_was_meant(
    edit: Callable[[str], str], value: str, service: ServiceMaker
) -> None:
    wrong = {(*path[:-1], edit(path[-1])): path for path in own_parts()}
    wrong = {path: right for path, right in wrong.items() if uniform(path[-1]) != uniform(right[-1])}  # a dash is none
    module = service(SERVICE, "rocketmq.name-server: embedded\n" + "\n".join(f"{key_text(p)}: {value}" for p in wrong))
    with pytest.raises(ConfigurationError) as caught:
        module.app.check()
    fixes = {finding.what: finding.fix or "" for finding in caught.value.findings}
    missed = {}
    for path, right in wrong.items():
        told = next((fix for what, fix in fixes.items() if key_text(path) in what.split()), None)
        if told is None or f"did you mean {key_text(right)}?" not in told:
            missed[key_text(path)] = told
    assert missed == {}
    assert len(wrong) > 220
