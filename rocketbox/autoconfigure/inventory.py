"""What the scan of an application found and where, and what it did not reach although the application imports it.

The start says the one in a line, and warns of the other: a listener that nobody finds consumes nothing, and nothing
else would say so. Nothing is imported for it.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rocketbox.autoconfigure.scan import Marked, marked_in
from rocketbox.autoconfigure.source_trees import source_tree
from rocketbox.boot.marks import BEAN, PROPERTIES
from rocketbox.errors import Finding
from rocketbox.hints import place_of
from rocketbox.marks import MARKS

__all__ = ["Inventory", "unreached"]

SHOWN = 5  # names in a line; of more it is told how many there are
FOREIGN = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class Inventory:
    """How many listeners, hooks and beans there are, those that are off included, and in which modules."""

    listeners: int = 0
    hooks: int = 0
    beans: int = 0
    modules: tuple[str, ...] = ()

    @staticmethod
    def of(modules: Iterable[ModuleType], listeners: Sequence[Marked], hooks: Sequence[Any], beans: int) -> Inventory:
        """Those of an application that scanned ``modules``."""
        return Inventory(len(listeners), len(hooks), beans, tuple(module.__name__ for module in modules))

    def describe(self, off: int = 0) -> str:
        """``found 2 listeners, 1 hook, 3 beans in shop.app, shop.handlers (1 of them is off)``."""
        numbers = {"listener": self.listeners, "hook": self.hooks, "bean": self.beans}
        counts = ", ".join(f"{number} {name}{'' if number == 1 else 's'}" for name, number in numbers.items())
        where = ", ".join(self.modules[:SHOWN]) or "no module"
        more = f" and {len(self.modules) - SHOWN} more" if len(self.modules) > SHOWN else ""
        switched_off = f" ({off} of them {'is' if off == 1 else 'are'} off)" if off else ""
        return f"found {counts} in {where}{more}{switched_off}"


def unreached(
    name: str,
    home: str,
    modules: Sequence[ModuleType],
    scan: Sequence[str] | None,
    listeners: int,
    automatic: Collection[str] = (),
) -> Iterator[Finding]:
    """A warning for marked functions in modules of the application's own folder that it imports and does not scan.

    Who says ``scan`` has chosen; it is told only where no listener at all was found. ``automatic`` are the modules of
    auto-configurations, which come by themselves.
    """
    if scan is not None and listeners:
        return
    scanned = {id(module) for module in modules}
    marked = {
        other: found
        for other in _modules_beside(home)
        if id(other) not in scanned and other.__name__ not in automatic and (found := _marked_names(other))
    }
    if not marked:
        return
    imported = _imported_by(modules, sys.modules)
    for module in [other for other in marked if other.__name__ not in imported]:
        del marked[module]
    if not marked:
        return
    told = [each for found in marked.values() for each in found]
    named = ", ".join(told[:SHOWN]) + (f" and {len(told) - SHOWN} more" if len(told) > SHOWN else "")
    verb = "is" if len(told) == 1 else "are"
    wanted = ", ".join(["__name__" if scan is None else repr(each) for each in scan or [home]])
    others = ", ".join(repr(module.__name__) for module in marked)
    if scan is None and "." in home:
        wanted = repr(home.partition(".")[0])
    yield Finding(
        f"{named} {verb} not scanned, and so not part of {name}",
        None,
        f'write RocketBox("{name}", scan=[{wanted}, {others}])',
    )


def _modules_beside(home: str) -> Iterator[ModuleType]:
    """The modules that are loaded from the folder of the application's module, or of its top package, and below."""
    top = sys.modules.get(home.partition(".")[0]) if "." in home else sys.modules.get(home)
    file = _file_of(top)
    if top is None or file is None or _is_foreign(file):
        return
    for name in _names_below(os.path.dirname(os.path.dirname(file) if hasattr(top, "__path__") else file)):
        if (other := sys.modules.get(name)) is not None:
            yield other


# A folder, the modules that were loaded, and the names of those below it.
_looked_at: tuple[str, tuple[int, ...], tuple[str, ...]] = ("", (), ())


def _names_below(folder: str) -> tuple[str, ...]:
    """The modules that are loaded from a folder and below, by name, but for libraries and rocketbox's own.

    Tests start one service many times: what has not changed since the last look is not looked at again.
    """
    global _looked_at
    now = tuple(map(id, list(sys.modules.values())))  # a list: others may import meanwhile
    if _looked_at[:2] != (folder, now):
        loaded = list(sys.modules.items())
        _looked_at = folder, now, tuple(name for name, module in loaded if _is_meant(name, module, folder))
    return _looked_at[2]


def _is_meant(name: str, module: ModuleType, folder: str) -> bool:
    place = getattr(module, "__file__", None)  # of hundreds; what each further call here takes, all of them take
    if isinstance(place, str) and not place.startswith(folder):
        return False
    place = _file_of(module)
    return place is not None and _is_below(place, folder) and not _is_foreign(place) and not _is_ours(name)


def _file_of(module: ModuleType | None) -> str | None:
    """As text, since a service has loaded hundreds of modules: a Path of each would take 8 ms."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return file
    for folder in getattr(module, "__path__", ()) if module is not None else ():  # a package without __init__.py
        return os.path.join(folder, "__init__.py")
    return None


def _is_below(file: str, folder: str) -> bool:
    return file.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


def _is_foreign(file: str) -> bool:
    return not FOREIGN.isdisjoint(file.split(os.sep))


def _is_ours(module: str) -> bool:
    """Whether it is one of rocketbox's own modules, which may lie beside an application: in its own source tree."""
    return module.partition(".")[0] == __name__.partition(".")[0]


def _marked_names(module: ModuleType) -> list[str]:
    found = [each.target for mark in (MARKS, BEAN, PROPERTIES) for each in marked_in([module], mark)]
    return [f"{module.__name__}.{getattr(each, '__qualname__', each)} ({place_of(each)})" for each in found]


def _imported_by(modules: Iterable[ModuleType], known: dict[str, ModuleType]) -> set[str]:
    """The names of all modules that these import, by what their source says, and those in turn that lie beside them.

    What rocketbox imports is not looked at, wherever it lies: it imports no module of an application.
    """
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        for name in _imports(module):
            if name not in found and name in known:
                found.add(name)
                place = _file_of(known[name])
                if place is not None and not (
                    _is_ours(name) or _is_foreign(place) or _is_below(place, sys.base_prefix)
                ):
                    waiting.append(known[name])
    return found


def _imports(module: ModuleType) -> Iterator[str]:
    file = _file_of(module)
    tree = source_tree(file) if file is not None else None
    if tree is None:
        return
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    if module.__spec__ is not None and module.__name__ == "__main__":
        package = module.__spec__.parent or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                yield from (".".join(parts[: end + 1]) for end in range(len(parts)))
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
