"""The parts of pages that are made from the code are as the code makes them; ``REWRITE_GOLDEN=1`` writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rocketbox.autoconfigure.loading import settings_models
from rocketbox.boot.settings import schema_of
from rocketbox.cli.app import app
from tests.docs.generated import ROOT, generated, pages_with_parts, parts

CONFIGURATION = ROOT / "docs" / "reference" / "configuration.md"


@pytest.mark.parametrize("page", pages_with_parts(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_holds_what_the_code_says(page: Path) -> None:
    text = page.read_text("utf-8")
    fresh = generated(text)
    if os.environ.get("REWRITE_GOLDEN"):
        page.write_text(fresh, "utf-8")
    else:
        assert text == fresh, f"{page.name} is out of date: python -m tests.docs.generated"


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


def test_every_command_stands_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    names = [command.name for command in app.registered_commands]
    assert "run" in names
    assert [name for name in names if f"## `rocketbox {name}" not in text] == []
