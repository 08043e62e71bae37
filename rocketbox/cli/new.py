"""``rocketbox new NAME``: a service that runs at once, with settings and tests, from the texts in ``cli/template``.

The texts are files of the package (``*.tmpl``, with ``string.Template``'s placeholders): not Python modules, which
tools would read as such.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from rocketbox.errors import ConfigurationError, Finding
from rocketbox.version import __version__

__all__ = ["make_service", "new", "package_name"]

SUFFIX = ".tmpl"
RENAMED = {"gitignore": ".gitignore"}  # a file of that name would count in the package itself

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
MAX_NAME = 60  # characters; it is the beginning of names of groups, which have 120 at most
TAKEN = ("tests", "rocketbox")


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The service's name, such as my-service.")],
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder to write to; ./NAME when it is left out.")
    ] = None,
) -> None:
    """Make a service: a package with a listener, a bean and a template, its settings, and tests that pass.

    It runs at once, on the embedded broker. Nothing that exists is overwritten.
    Status: 0 made; 1 not made, because of the name, or because something is there already.
    """
    try:
        folder, made = make_service(name, directory)
    except ConfigurationError as error:
        print(f"rocketbox new: nothing was made\n{error}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(1) from error
    package = package_name(name)
    print(  # noqa: T201 - a command's output
        "\n".join(
            [
                f"{name} is in {folder}:",
                *(f"  {file}" for file in made),
                "",
                "Next:",
                f"  cd {folder}",
                f"  rocketbox run {package}.app:app --reload",
                "  pytest",
                "",
                "The README tells more.",
            ]
        )
    )


def package_name(name: str) -> str:
    """The Python package of a service: ``my_service`` for ``my-service``. Raises ConfigurationError for a bad name."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        usable = "-".join(re.findall("[a-z0-9]+", name.lower()))[:MAX_NAME].strip("-").lstrip("0123456789-")
        raise ConfigurationError(
            Finding(
                f"{name!r} cannot be the name of a service",
                None,
                f"write lower case letters, digits and -, at most {MAX_NAME}"
                + (f", such as {usable}" if _NAME.fullmatch(usable) else ""),
            )
        )
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or package in TAKEN or package in sys.stdlib_module_names:
        raise _taken(name, f"{package} means something to Python already")
    return package


def make_service(name: str, directory: Path | None = None) -> tuple[Path, list[Path]]:
    """Write a service; its folder, and the files relative to it.

    Raises ConfigurationError for a bad name, when one of the files exists, or when one cannot be written; without a
    ``directory`` its folder must not have anything in it.
    """
    package = package_name(name)
    folder = Path(name) if directory is None else directory
    if directory is None and folder.is_dir() and any(folder.iterdir()):
        raise ConfigurationError(
            Finding(f"the folder {folder} exists", None, "choose another name, or name a folder by --directory")
        )
    texts = {file: text.substitute(name=name, package=package, version=__version__) for file, text in _texts()}
    texts = {Path(*(package if part == "package" else part for part in file.parts)): texts[file] for file in texts}
    existing = [str(file) for file in texts if (folder / file).exists()]
    if existing:
        raise ConfigurationError(
            Finding(f"{', '.join(existing)} in {folder} would be overwritten", None, "choose another folder")
        )
    if _is_importable(package):
        raise _taken(name, f"there is a module {package} already, which it would hide")
    for file, text in texts.items():
        try:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            with (folder / file).open("x", encoding="utf-8", newline="\n") as writing:
                writing.write(text)
        except OSError as error:
            raise ConfigurationError(
                Finding(f"{folder / file} cannot be written: {error.strerror}", None, "choose another folder")
            ) from error
    return folder, list(texts)


def _taken(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        Finding(f"{name!r} cannot be the name of a service: {why}", None, f"choose another one, such as {name}-service")
    )


def _is_importable(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module that has none, such as __main__
        return True
    return spec is not None and spec.origin is not None  # a folder without __init__.py hides nothing


def _texts() -> Iterator[tuple[Path, Template]]:
    def below(folder: Traversable, path: Path) -> Iterator[tuple[Path, Template]]:
        for entry in sorted(folder.iterdir(), key=lambda each: each.name):
            if entry.is_dir():
                yield from below(entry, path / entry.name)
            elif entry.name.endswith(SUFFIX):
                name = entry.name.removesuffix(SUFFIX)
                yield path / RENAMED.get(name, name), Template(entry.read_text("utf-8"))

    yield from below(files("rocketbox.cli") / "template", Path())
