"""Objects whose constructor has failed are told of by tools that show the variables of each line of a failure."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import rocketbox

ROOT = Path(rocketbox.__file__).parent


def _classes_that_write_themselves_out() -> list[str]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "def __repr__" in text else ():
            if isinstance(node, ast.ClassDef) and any(getattr(each, "name", "") == "__repr__" for each in node.body):
                module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
                found.append(f"{module}:{node.name}")
    return found


@pytest.mark.parametrize("name", _classes_that_write_themselves_out())
def test_one_whose_constructor_has_failed_can_be_written_out(name: str) -> None:
    module, _, kind = name.partition(":")
    made = getattr(import_module(module), kind)
    assert repr(object.__new__(made)) == f"<{kind} that was not made>"


def test_all_of_them_are_looked_at() -> None:
    assert "rocketbox.client.producer:Producer" in _classes_that_write_themselves_out()
