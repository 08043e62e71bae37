"""Names and folders which ``rocketbox new`` takes, and which it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.cli.new import make_service, package_name
from rocketbox.errors import ConfigurationError

FILES = {
    ".gitignore",
    "README.md",
    "desk/__init__.py",
    "desk/app.py",
    "pyproject.toml",
    "rocketbox.yaml",
    "tests/test_app.py",
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "package"), [("desk", "desk"), ("my-service", "my_service"), ("night_desk-2", "night_desk_2")]
)
def test_a_package_is_named_after_the_service(name: str, package: str) -> None:
    assert package_name(name) == package


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("My_Service", "such as my-service"),
        ("a b", "such as a-b"),
        ("1x", "such as x"),
        ("-x", "such as x"),
        ("desk/../..", "such as desk"),
        ("x" * 61, "at most 60"),
        ("", "at most 60"),
        ("東", "at most 60"),
        ("class", "class means something to Python already"),
        ("json", "json means something to Python already"),
        ("rocketbox", "such as rocketbox-service"),
    ],
)
def test_a_bad_name_is_refused_with_a_better_one(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make_service(name)
    assert list(Path().iterdir()) == []


def test_a_name_that_would_hide_a_module_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="there is a module pydantic already"):
        make_service("pydantic")


def test_it_is_written_to_a_folder_of_its_name() -> None:
    folder, made = make_service("desk")
    assert folder == Path("desk")
    assert {str(file) for file in made} == FILES
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == FILES


def test_it_is_written_to_the_folder_that_is_named_beside_what_is_there() -> None:
    Path("LICENSE").write_text("mine")
    folder, _ = make_service("desk", Path())
    assert folder == Path()
    assert Path("desk/app.py").is_file()
    assert Path("LICENSE").read_text() == "mine"


def test_a_folder_of_its_name_with_something_in_it_is_refused() -> None:
    Path("desk").mkdir()
    Path("desk/notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="the folder desk exists"):
        make_service("desk")
    assert [file.name for file in Path("desk").iterdir()] == ["notes.txt"]


def test_nothing_is_overwritten() -> None:
    Path("rocketbox.yaml").write_text("mine")
    Path("README.md").write_text("mine as well")
    with pytest.raises(ConfigurationError, match=r"README\.md, rocketbox\.yaml in \. would be overwritten"):
        make_service("desk", Path())
    assert Path("rocketbox.yaml").read_text() == "mine"
    assert not Path("desk").exists()


@pytest.mark.parametrize("directory", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_told(directory: str) -> None:
    Path("file").write_text("mine")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        make_service("desk", Path(directory))
    assert Path("file").read_text() == "mine"
