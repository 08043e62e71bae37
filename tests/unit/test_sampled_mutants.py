"""Sampled mutants: which tests are chosen, what becomes of a mutant, and what is known of an earlier run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.packages import PACKAGES, Change, Package
from tests.mutants.trials import Copy, Coverage, Known, Result, covered

ROOT = Path(__file__).parents[2]
MODULE = "rocketbox/sums.py"
SUMS = """
LIMIT = 3

def add(a, b):
    while a > LIMIT + 97:
        a -= 1
    return a + b
"""
TESTS = """
import os, pathlib
from rocketbox.sums import LIMIT, add

def test_nothing_is_added(): assert add(2, 0) == 2
def test_sums(): assert add(2, 3) == 5
def test_much(): assert add(200, 3) == 103
def test_limit(): assert LIMIT == 3
def test_that_fails(): assert "away" == "here"
"""
FILE = "tests/test_sums.py"
ALL = [
    f"{FILE}::{name}" for name in ("test_nothing_is_added", "test_sums", "test_much", "test_limit", "test_that_fails")
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """Of a project with one module; its tests are collected."""
    root = tmp_path_factory.mktemp("project")
    package = [f"rocketbox/{path}" for path in ("__init__.py", "testing/__init__.py", "testing/plugin.py")]
    empty = [(path, "") for path in ("pyproject.toml", *package)]  # the plugin is there where rocketbox is installed
    for path, text in ((MODULE, SUMS), (FILE, TESTS), *empty):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    copy = Copy(root, root / "copies" / "0", seed=1)
    copy.warm_up([], [FILE])
    yield copy
    copy.close()
    assert (root / MODULE).read_text() == SUMS, "the working tree is never written to"
    assert not (root / "copies" / "0").exists()


def tried(copy: Copy, before: str, after: str, tests: list[str], at_import: bool = False) -> Result:
    line = SUMS[: SUMS.index(before)].count("\n") + 1
    change = Change(MODULE, "core/Any", 0, line, line)
    return copy.try_change(change, SUMS.replace(before, after), tests, seconds=0.0, at_import=at_import)


def test_a_mutant_is_killed_by_a_test_that_fails_with_it(copy: Copy) -> None:
    result = tried(copy, "a + b", "a - b", ALL[:2])
    assert (result.status, result.by, result.killed) == ("killed", ALL[1], True)


def test_a_mutant_that_no_test_notices_survives(copy: Copy) -> None:
    result = tried(copy, "a + b", "a - b", ALL[:1])
    assert (result.status, result.killed) == ("survived", False)


def test_a_mutant_leaves_nothing_behind_for_the_next(copy: Copy) -> None:
    assert tried(copy, "a + b", "a * b", ALL[1:2]).killed
    assert not tried(copy, "a + b", "b + a", ALL[:4]).killed


def test_a_constant_is_changed_by_a_new_import(copy: Copy) -> None:
    assert tried(copy, "LIMIT = 3", "LIMIT = 4", ALL[3:4]).by == ALL[3], "no function differs"


def test_a_mutant_that_does_not_end_is_killed(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.mutants.trials.SPARE_SECONDS", 0)
    result = tried(copy, "a -= 1", "a -= 0", ALL[2:3])
    assert (result.status, result.killed) == ("hung", True)


def test_a_test_that_fails_by_itself_notices_nothing(copy: Copy) -> None:
    assert tried(copy, "a + b", "a - b", [ALL[4], ALL[0]]).status == "survived"
    assert tried(copy, "a + b", "a - b", [ALL[4], ALL[1]]).by == ALL[1]


def test_what_cannot_be_imported_is_no_mutant(copy: Copy) -> None:
    assert tried(copy, "LIMIT = 3", "LIMIT = 3 +", ALL[:1], at_import=True).status == "no build"


def lines_of(*covered: tuple[int, list[str]]) -> dict[str, dict[str, list[str]]]:
    return {MODULE: {str(line): tests for line, tests in covered}}


def change(line: int) -> Change:
    return Change(MODULE, "core/Any", 0, line, line)


def test_the_tests_that_run_the_line_are_chosen_shortest_file_first() -> None:
    seconds = {"a::1": 3.0, "b::1": 1.0, "a::2": 0.5, "c::1": 0.1}
    coverage = Coverage(seconds, lines_of((5, ["a::1", "b::1", "a::2"]), (6, ["c::1"])), [])
    assert coverage.tests_of(change(5), budget=20) == ["b::1", "a::2", "a::1"]
    assert coverage.tests_of(change(5), budget=2) == ["a::2", "b::1"]
    assert coverage.tests_of(change(5), budget=0) == ["a::2"], "one at least"
    assert coverage.tests_of(change(5), budget=20, first=["a::1"]) == ["a::1", "b::1", "a::2"]


def test_a_further_test_of_a_function_counts_as_longer_than_it_is() -> None:
    seconds = {"a::1[x]": 0.4, "a::1[y]": 0.3, "a::1[z]": 0.5, "b::1": 0.7, "b::2[x]": 1.0}
    coverage = Coverage(seconds, lines_of((5, [*seconds])), [])
    longer = ["a::1[y]", "b::1", "a::1[x]", "b::2[x]", "a::1[z]"]
    for count in range(1, 6):
        budget = sum(seconds[test] for test in longer[:count]) + 0.01
        assert set(coverage.tests_of(change(5), budget)) == set(longer[:count])


def test_after_a_test_has_changed_only_its_file_is_run_to_see_which_lines_it_runs(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, kept, asked = tmp_path / "project", tmp_path / "coverage.json", list[list[str]]()
    for path in (MODULE, "tests/test_a.py", "tests/test_b.py", "tests/test_c.py"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("as it was")
    package = Package(name="sums", what="", modules=(MODULE,), tests=("tests/test_*.py",))

    def cover(tests: list[str], modules: list[str]) -> dict[str, object]:
        asked.append(tests)
        found = [f"{test}::{len(asked)}" for test in tests]
        lines = {MODULE: {"1": ["", *found], str(4 + len(asked)): found}}
        return {"lines": lines, "seconds": dict.fromkeys(found, 1.0), "imported": ["json"], "failed": found[:1]}

    monkeypatch.setattr(copy, "cover", cover)
    first = covered(copy, package, root, kept)
    assert covered(copy, package, root, kept) == first
    assert asked == [["tests/test_a.py", "tests/test_b.py", "tests/test_c.py"]]
    (root / "tests/test_b.py").write_text("stronger")
    (root / "tests/test_c.py").unlink()
    again = covered(copy, package, root, kept)
    assert covered(copy, package, root, kept) == again
    assert asked[1:] == [["tests/test_b.py"]]
    assert again.seconds == {"tests/test_a.py::1": 1.0, "tests/test_b.py::2": 1.0}
    both = ["tests/test_a.py::1", "tests/test_b.py::2"]
    assert again.lines == {MODULE: {"1": ["", *both], "5": both[:1], "6": both[1:]}}
    assert (again.imported, again.failed) == (["json"], both)
    (root / MODULE).write_text("other lines")
    covered(copy, package, root, kept)
    assert asked[2:] == [["tests/test_a.py", "tests/test_b.py"]]


def test_a_line_that_an_import_runs_concerns_all_tests_of_the_module() -> None:
    seconds = {"a::1": 3.0, "b::1": 1.0, "d::1": 9.0}
    coverage = Coverage(seconds, lines_of((2, [""]), (5, ["a::1"]), (6, ["b::1"])), [], failed=["b::1"])
    assert coverage.runs_at_import(change(2))
    assert not coverage.runs_at_import(change(5))
    assert coverage.tests_of(change(2), budget=20) == ["a::1"], "but those that fail anyway"
    only_imported = Coverage(seconds, lines_of((2, [""])), [])
    assert only_imported.tests_of(change(2), budget=20) == ["b::1", "a::1", "d::1"]


def test_what_is_known_is_not_tried_again_while_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "known.jsonl"
    known = Known(path, "tests as they are")
    known.add("mutant 1", Result("killed", 3, "a::1"))
    known.add("mutant 2", Result("survived", 3))
    again = Known(path, "tests as they are")
    assert again.get("mutant 1") == Result("killed", 3, "a::1")
    assert again.get("mutant 2") == Result("survived", 3)
    assert again.get("mutant 3") is None
    stronger = Known(path, "stronger tests")
    assert stronger.get("mutant 1") == Result("killed", 3, "a::1")
    assert stronger.get("mutant 2") is None, "it is tried once more"


def test_a_line_of_a_run_that_was_broken_off_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "known.jsonl"
    Known(path, "").add("mutant 1", Result("killed"))
    with path.open("a") as file:
        file.write('{"key": "12')
    known = Known(path, "")
    known.add("mutant 2", Result("killed"))
    assert Known(path, "").get("mutant 1") == Known(path, "").get("mutant 2") == Result("killed")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_each_package_names_modules_and_tests_that_are_there(package: Package) -> None:
    assert package.module_paths(ROOT)
    assert package.test_paths(ROOT)


def test_what_is_called_equivalent_is_a_change_of_a_line_that_is_there() -> None:
    gone = [
        (module, before)
        for module, before, after in EQUIVALENT
        if before not in [line.strip().partition("  # ")[0] for line in (ROOT / module).read_text().splitlines()]
        or after == before
    ]
    assert gone == [], "take them out of tests/mutants/equivalent.py"
