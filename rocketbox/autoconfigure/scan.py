"""Looking for marked functions and classes in a user's modules.

There is no global registry: an application has what is defined in the modules that it scans, and nothing else. A name
that a module imports from elsewhere does not count there.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rocketbox.errors import ConfigurationError, Finding

__all__ = ["Marked", "import_finding", "load_modules", "marked_in"]

SPARK_LIBRARIES = ("pyspark", "pyarrow", "pandas")


@dataclass(frozen=True)
class Marked:
    """An object with marks; for a marked method, ``owner`` is the class whose bean it is called on."""

    target: Any
    marks: tuple[object, ...]
    owner: type | None = None


def load_modules(home: str, scan: Iterable[str] | None) -> list[ModuleType]:
    """The modules to look at: ``scan`` and all below it, else the package of the module ``home``, else that module.

    Raises ConfigurationError for a module that cannot be imported, naming the line that failed.
    """
    names = list(scan) if scan is not None else _home_package(home)
    modules: dict[str, ModuleType] = {}
    for name in names:
        for found in _with_submodules(name, home):
            modules[found.__name__] = found
    return list(modules.values())


def _home_package(home: str) -> list[str]:
    if home == "__main__":
        return [home]
    module = sys.modules[home]
    return [home if hasattr(module, "__path__") else home.rpartition(".")[0] or home]


def _with_submodules(name: str, home: str) -> Iterator[ModuleType]:
    module = _load(name)
    yield module
    if not hasattr(module, "__path__"):
        return
    for info in pkgutil.iter_modules(module.__path__, f"{name}."):
        if info.name.endswith(".__main__"):  # a program: running it is not looking at it
            continue
        if info.ispkg:
            yield from _with_submodules(info.name, home)
        else:
            yield _load(info.name)


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(import_finding(name, error)) from error


def import_finding(name: str, error: Exception) -> Finding:
    """What was wrong with importing a module: the line that failed, and what would mend it."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if not _is_machinery(frame.filename)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else name
    if isinstance(error, TypeError | ValueError) and frames and every[-1].filename.startswith(_OWN_FOLDER):
        return Finding(str(error), where, "correct that line")  # what a mark says of its use needs no more words
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else None
    if missing in SPARK_LIBRARIES:
        fix = "install Spark's part: pip install 'rocketbox[spark]'"
    elif missing and missing == name.partition(".")[0]:
        fix = f"start in the folder that holds {missing}, install it, or correct its name"
    elif missing:
        fix = f"install the package that has the module {missing}, or correct the import"
    elif isinstance(error, SyntaxError):
        fix = "correct that line"
    else:
        fix = "importing a module must work without side effects; --debug shows the traceback"
    return Finding(f"module {name} cannot be imported: {type(error).__name__}: {error}", where, fix)


_OWN_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"


def _is_machinery(filename: str) -> bool:
    return filename.startswith(("<frozen", _OWN_FOLDER)) or filename == importlib.__file__


def marked_in(modules: Iterable[ModuleType], attribute: str) -> Iterator[Marked]:
    """Every object defined in the modules that has marks under ``attribute``, each once, in the order of definition."""
    seen: set[int] = set()
    for module in modules:
        for target in list(vars(module).values()):
            if getattr(target, "__module__", None) != module.__name__ or id(target) in seen:
                continue
            seen.add(id(target))
            if marks := _own_marks(target, attribute):
                yield Marked(target, marks)
            if isinstance(target, type):
                for member in vars(target).values():
                    if marks := _own_marks(member, attribute):
                        yield Marked(member, marks, owner=target)


def _own_marks(target: object, attribute: str) -> tuple[object, ...]:
    # Its own __dict__ only: objects that answer every attribute, and marks of a base class, do not count.
    marks = getattr(target, "__dict__", {}).get(attribute, ())
    return marks if isinstance(marks, tuple) else (marks,)
