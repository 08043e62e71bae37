"""The page about reliability names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs/reference/reliability.md").read_text())
    there = set(
        re.findall(r"def (test_\w+)", "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py")))
    )
    assert len(named) > 50
    assert sorted(set(named) - there) == []


def test_every_file_of_tests_that_the_page_names_exists() -> None:
    named = re.findall(r"`(\w+/[\w/]+\.py)`", (ROOT / "docs/reference/reliability.md").read_text())
    assert named
    assert [name for name in named if not (ROOT / "tests" / name.removeprefix("tests/")).exists()] == []
