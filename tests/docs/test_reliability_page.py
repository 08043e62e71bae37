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


def test_every_failure_names_what_makes_it_happen() -> None:
    page = (ROOT / "docs/reference/reliability.md").read_text()
    tables = page.partition("## Failures one by one")[2].partition("\n## ")[0]
    rows = [line for line in tables.splitlines() if line.startswith("| ") and not line.startswith("| Failure |")]
    assert len(rows) > 50
    assert [row for row in rows if not re.search(r"`(test_\w+|make \w+|\w+/[\w/]+\.py)`[^|]*\|$", row)] == []


def test_every_file_of_tests_that_the_page_names_exists() -> None:
    named = re.findall(r"`(\w+/[\w/]+\.py)`", (ROOT / "docs/reference/reliability.md").read_text())
    assert named
    assert [name for name in named if not (ROOT / "tests" / name.removeprefix("tests/")).exists()] == []
