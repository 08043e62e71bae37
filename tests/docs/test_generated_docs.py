"""The parts of pages that are made from the code are as the code makes them; ``REWRITE_GOLDEN=1`` writes them anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rocketbox.autoconfigure.loading import settings_models
from rocketbox.boot.origins import split_key
from rocketbox.boot.root_settings import schema_of
from rocketbox.cli.app import app
from rocketbox.marks import rocketmq_listener
from rocketbox.template import RocketMQTemplate
from tests.docs.generated import ROOT, generated, pages_with_parts, parts
from tests.docs.pages import FENCE, PAGES
from tests.support.framework.spring_attributes import EXT_CONSUMER, EXT_TEMPLATE
from tests.support.golden import golden

CONFIGURATION = ROOT / "docs" / "reference" / "configuration.md"


@pytest.mark.parametrize("page", pages_with_parts(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_holds_what_the_code_says(page: Path) -> None:
    fresh = generated(page.read_text("utf-8"))
    assert fresh == golden(page, fresh), f"{page.name} is out of date: python -m tests.docs.generated"


def test_every_part_stands_in_a_page_once() -> None:
    text = "".join(page.read_text("utf-8") for page in pages_with_parts())
    assert sorted(re.findall(r"<!-- generated: ([\w-]+) -->", text)) == sorted(parts)


def test_every_key_stands_in_the_reference() -> None:
    text = CONFIGURATION.read_text("utf-8")
    keys = [
        ".".join(path).replace("*", "<name>")
        for path, _ in schema_of(settings_models([])).leaves()
        if path[:2] != ("rocketmq", "clusters")  # the same as those of rocketmq
    ]
    assert len(keys) > 100
    assert [key for key in keys if f"| `{key}` |" not in text] == []


def test_the_rule_for_names_of_variables_holds_for_every_key() -> None:
    """The page says: capitals, ``_`` for each dot, dashes as ``_`` or left out."""
    schema = schema_of(settings_models([]))
    for path, _ in schema.leaves():
        words = ["desk" if part == "*" else part for part in path]
        for dash in "_", "":
            variable = "_".join(word.replace("-", dash) for word in words).upper()
            assert schema.locate_variable(variable, lambda path: ["desk"]) == tuple(words), variable


@pytest.mark.parametrize("command", [command.name for command in app.registered_commands])
def test_every_command_stands_in_the_reference_with_its_options(command: str) -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    (section,) = re.findall(rf"^## `rocketbox {command}\b.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    wide = {"COLUMNS": "200", "TERM": "dumb"}
    printed = CliRunner().invoke(app, [command, "--help"], prog_name="rocketbox", env=wide).output
    boxes = [line.strip("│* ").split() for line in printed.splitlines() if line.startswith("│")]
    options = {words[0] for words in boxes if words and words[0].startswith("--")}
    assert options
    assert set(re.findall(r"^\| `(--[\w-]+)` \|", section, re.MULTILINE)) == options - {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_keys_that_pages_name_are_there(page: Path) -> None:
    schema = schema_of(settings_models([]))
    named = re.findall(r"`(rocket(?:mq|box)\.[a-z][\w.<>*-]*)(?:: [^`]*)?`", FENCE.sub("", page.read_text("utf-8")))
    keys = [re.sub(r"(\.\*|\.<\w+>)+$", "", key) for key in named if not is_other(key)]
    unknown = [key for key in keys if schema.locate(split_key(key)).unknown is not None]
    assert unknown == []


def is_other(name: str) -> bool:
    """Whether it is the settings file, or a module."""
    return name == "rocketbox.yaml" or bool(name.startswith("rocketbox.") and find_spec(".".join(name.split(".")[:2])))


def test_every_listener_option_has_its_attribute_of_spring() -> None:
    text = (ROOT / "docs" / "reference" / "coming-from-rocketmq-spring.md").read_text("utf-8")
    table = text.partition("## `@RocketMQMessageListener`")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| [^|]+ \| ([^|]+) \|", table, re.MULTILINE) for name in code(row)}
    assert {each.name for each in fields(rocketmq_listener)} == named - {"@rocketmq_listener"}


def section_of(heading: str) -> str:
    text = (ROOT / "docs" / "reference" / "coming-from-rocketmq-spring.md").read_text("utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, heading
    return section


@pytest.mark.parametrize(
    ("annotation", "attributes"), [("Template", EXT_TEMPLATE), ("Consumer", EXT_CONSUMER)], ids=["template", "consumer"]
)
def test_every_attribute_of_a_further_template_or_consumer_has_its_key(
    annotation: str, attributes: Mapping[str, object]
) -> None:
    rows = re.findall(
        r"^\| (`[^|]+) \| ([^|]+) \|$", section_of(f"`@ExtRocketMQ{annotation}Configuration`"), re.MULTILINE
    )
    named = {name: key for names, keys in rows for name, key in zip(code(names), code(keys), strict=False)}
    assert named.keys() == {"value", *attributes}
    schema = schema_of(settings_models([]))
    del named["value"]
    for attribute, key in named.items():
        found = schema.locate(split_key(key))
        assert found.unknown is None, key
        assert key.rpartition(".")[2].replace("-", "") == attribute.lower()


def test_the_methods_of_the_template_are_the_public_ones() -> None:
    table = re.findall(r"^\| [^|]+ \| ([^|]+) \|", section_of("Methods of `RocketMQTemplate`"), re.MULTILINE)
    named = {name for cell in table for name in re.findall(r"`(\w+)\(", cell)}
    sends = {name for name in vars(RocketMQTemplate) if name.startswith("send")}
    assert named == sends


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)
