"""The scan of a user's modules: what it imports, and whose marks it takes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from rocketbox.autoconfigure.scan import load_modules, marked_in
from rocketbox.errors import ConfigurationError
from rocketbox.marks import MARKS, rocketmq_listener

LISTENER = "from rocketbox import rocketmq_listener\n@rocketmq_listener(topic='{0}')\nasync def {0}(body: bytes): ...\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose modules have listeners; one is a program, one takes names from its sibling."""
    name = f"scanned_{tmp_path.name}"
    inner = tmp_path / name / "inner"
    inner.mkdir(parents=True)
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "app.py").write_text(LISTENER.format("first"))
    (tmp_path / name / "other.py").write_text(f"from {name}.app import first\n" + LISTENER.format("second"))
    (tmp_path / name / "__main__.py").write_text("raise SystemExit('it was run')\n")
    (inner / "__init__.py").write_text("")
    (inner / "deep.py").write_text(LISTENER.format("third"))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(f"{name}.app")
    return name


def found(home: str, scan: list[str] | None = None) -> list[str]:
    return sorted(marked.target.__name__ for marked in marked_in(load_modules(home, scan), MARKS))


def test_the_package_of_the_applications_module_is_scanned_and_its_program_is_not_run(package: str) -> None:
    assert found(f"{package}.app") == ["first", "second", "third"]


def test_scan_names_packages_or_modules_instead(package: str) -> None:
    assert found(f"{package}.app", [f"{package}.inner"]) == ["third"]
    assert found(f"{package}.app", [f"{package}.other"]) == ["second"]  # first is defined elsewhere


def test_a_module_in_no_package_is_scanned_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alone_in_no_package.py").write_text(LISTENER.format("alone"))
    (tmp_path / "beside_it.py").write_text(LISTENER.format("beside"))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("alone_in_no_package")
    assert found("alone_in_no_package") == ["alone"]
    assert found("__main__") == []


def test_methods_are_found_with_their_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from rocketbox import rocketmq_listener\n"
        "class Desk:\n"
        "    @rocketmq_listener(topic='a')\n"
        "    async def on_a(self, body: bytes): ...\n"
        "class Other(Desk): ...\n"
    )
    (tmp_path / "with_methods.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("with_methods")
    (marked,) = marked_in([module], MARKS)
    assert marked.owner is module.Desk
    assert marked.marks == (rocketmq_listener(topic="a"),)


def test_marked_partials_and_objects_of_other_modules_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library_of_handlers.py").write_text(
        "class Handler:\n    async def __call__(self, body: bytes): ...\ndef handle(tag, body: bytes): ...\n"
    )
    (tmp_path / "marks_objects.py").write_text(
        "from functools import partial\nfrom rocketbox import rocketmq_listener\n"
        "from library_of_handlers import Handler, handle\n"
        "one = rocketmq_listener(topic='one')(Handler())\n"
        "two = rocketmq_listener(topic='two')(partial(handle, 'tag'))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("marks_objects")
    assert [each.target for each in marked_in([module], MARKS)] == [module.one, module.two]


def test_functions_that_code_of_another_module_made_are_found_where_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library_of_makers.py").write_text(
        "from rocketbox import rocketmq_listener\n"
        "def timed(function):\n    async def inner(body: bytes): ...\n    return inner\n"
        "def listener(topic):\n    @rocketmq_listener(topic=topic)\n    async def on_it(body: bytes): ...\n"
        "    return on_it\n"
    )
    (tmp_path / "makes_listeners.py").write_text(
        "from rocketbox import *\nfrom library_of_makers import listener, timed\n"
        "one = listener('one')\n"
        "@rocketmq_listener(topic='two')\n@timed\nasync def two(body: bytes): ...\n"
    )
    (tmp_path / "imports_listeners.py").write_text("from makes_listeners import one\nfrom makes_listeners import *\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("makes_listeners")
    importing = importlib.import_module("imports_listeners")
    assert [each.target for each in marked_in([module], MARKS)] == [module.one, module.two]
    assert list(marked_in([importing], MARKS)) == []


@pytest.mark.parametrize(
    ("source", "what", "line", "fix"),
    [
        ("import json\nimport nobody_has_this\n", "No module named 'nobody_has_this'", 2, "install the package"),
        ("def broken(:\n", "SyntaxError", 1, "correct that line"),
        ("\n\n1 / 0\n", "ZeroDivisionError", 3, "without side effects"),
    ],
)
def test_an_import_that_fails_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, what: str, line: int, fix: str
) -> None:
    (tmp_path / "does_not_import.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("does_not_import", None)
    importlib.invalidate_caches()
    with pytest.raises(ConfigurationError) as caught:
        load_modules("app", ["does_not_import"])
    (finding,) = caught.value.findings
    assert what in finding.what
    assert (finding.where or "").endswith(f"does_not_import.py:{line}")
    assert fix in (finding.fix or "")
