"""The page on exactly-once names the test of each promise: the tests are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_promise_names_a_test_that_exists() -> None:
    page = (ROOT / "docs/how-to/exactly-once.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_spark*.py"))
    assert len(named) > 10
    assert [name for name in sorted(named) if f"def {name}(" not in sources] == []
    promises = [line for line in page.splitlines() if line.startswith("| ") and "You can rely on" not in line]
    assert [line for line in promises if "`test_" not in line] == []
