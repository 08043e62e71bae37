"""The rules of ``tests/README.md``, held by reading the tests: where things are, and that what is asserted can fail."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SUITES = ("unit", "integration", "examples")


def always_true(test: ast.expr) -> bool:
    """Whether an assert of this can be seen, without running it, never to fail."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            return bool(elements)
        case ast.JoinedStr() | ast.GeneratorExp() | ast.Lambda():
            return True
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(always_true(value) for value in values)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(always_true(value) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Constant(value=value)):
            return not value
        case ast.Compare(left=ast.Call(func=ast.Name(id="len")), ops=[ast.GtE()], comparators=[ast.Constant(value=0)]):
            return True
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() | ast.LtE() | ast.GtE()], comparators=[right]):
            return ast.dump(left) == ast.dump(right) and not calls_something(left)
    return False


def calls_something(expression: ast.expr) -> bool:
    """Whether it may come out otherwise the second time."""
    return any(isinstance(node, ast.Call | ast.Await | ast.Attribute) for node in ast.walk(expression))


@pytest.fixture(scope="module")
def sources() -> list[tuple[Path, ast.Module]]:
    """Gone with the module's last test: a million and a half of objects, which every full collection would look at."""
    return [(path.relative_to(TESTS), ast.parse(path.read_text("utf-8"))) for path in sorted(TESTS.rglob("*.py"))]


def test_no_assert_is_always_true(sources: list[tuple[Path, ast.Module]]) -> None:
    found = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and always_true(node.test)
    ]
    assert found == [], "an assert that cannot fail shows nothing"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, True) for text in ("True", "'text'", "(a, 'b')", "[a]", "a or True", "a == a", "a >= a", "not 0")),
        *((text, True) for text in ("len(a) >= 0", "(b for b in a)", "f'{a}'", "lambda: a")),
        *((text, False) for text in ("a", "[]", "()", "''", "a == b", "a() == a()", "a.b == a.b", "a or b", "a != a")),
        *((text, False) for text in ("len(a) > 0", "len(a) >= 1", "[b for b in a]", "all(b for b in a)", "not a")),
    ],
)
def test_what_is_always_true_is_known(text: str, expected: bool) -> None:
    assert always_true(ast.parse(text, mode="eval").body) is expected


def test_suites_hold_tests_alone(sources: list[tuple[Path, ast.Module]]) -> None:
    others = [
        str(path)
        for path, _ in sources
        if path.parts[0] in SUITES and not path.name.startswith("test_") and path.name != "conftest.py"
    ]
    assert others == [], "what tests are made of is in tests/support, by subject: see tests/README.md"


def test_nothing_imports_from_a_module_of_tests(sources: list[tuple[Path, ast.Module]]) -> None:
    found = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.")
        if any(part.startswith("test_") for part in [*(node.module or "").split("."), *(n.name for n in node.names)])
    ]
    assert found == [], "what more than one module of tests needs is in tests/support: see tests/README.md"


WITHOUT_SPARK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "pandas", "pyarrow", "pyspark"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import pytest
sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_what_runs_on_later_pythons_is_collected_without_spark() -> None:
    unit = TESTS / "unit"
    modules = [*sorted(unit.glob("test_*.py")), unit / "boot", unit / "listeners"]  # as .ci/other-pythons has them
    command = [sys.executable, "-c", WITHOUT_SPARK, *map(str, modules)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"its extra is not installed there:\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
