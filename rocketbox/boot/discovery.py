"""Auto-configurations: modules of ``@bean`` functions that entry points name, our own and those of other distributions.

A distribution says so by an entry point of the group ``rocketbox.autoconfigure``::

    [project.entry-points."rocketbox.autoconfigure"]
    audit = "audit_kit.autoconfigure"          # a module, or module:function

Whoever brings some of his own with him hands their entry points to :func:`load_autoconfiguration`; all are excluded,
loaded and told of in the same way. What beans are built for is decided by their conditions (``boot.planning``).

Source: Spring Boot 3 ``AutoConfiguration.imports``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

from rocketbox.boot.installed import Installed, installed, name_and_origin
from rocketbox.boot.marks import bean_mark, properties_prefix
from rocketbox.errors import ConfigurationError, Finding

__all__ = [
    "GROUP",
    "AutoconfigurationModule",
    "discover_autoconfigurations",
    "has_autoconfigurations",
    "load_autoconfiguration",
]

GROUP = "rocketbox.autoconfigure"


@dataclass(frozen=True)
class AutoconfigurationModule:
    """What one entry point brings: bean functions and classes, and models of settings by their prefixes.

    ``origin`` is the distribution with its version, ``distribution`` its name, empty if it is not known. One that is
    ``excluded`` was not imported, and brings as little as one with a ``problem``. ``target`` is empty where the entry
    points of a distribution cannot be read.
    """

    name: str
    origin: str
    target: str
    distribution: str = ""
    beans: tuple[Callable[..., Any], ...] = ()
    properties: Mapping[str, type] = field(default_factory=dict)
    problem: Finding | None = None
    excluded: bool = False

    @property
    def where(self) -> str:
        """The place of the entry point, for findings and reports."""
        return f"{self.origin}, entry point{f' {self.name} = {self.target}' if self.target else 's'}"

    @property
    def module(self) -> str:
        """The module that the entry point names, or of what it names."""
        return self.target.partition(":")[0].strip()

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which it is excluded as a whole: those of the entry point, the module, the distribution."""
        names = (self.name, self.module, self.target, self.distribution)
        return tuple(dict.fromkeys(name for name in names if name))


def has_autoconfigurations() -> bool:
    """Whether any distribution brings one, or may; nothing is imported."""
    return bool(installed(GROUP))


def discover_autoconfigurations(exclude: Collection[str] = ()) -> list[AutoconfigurationModule]:
    """What the installed distributions bring, in the order of their names; modules are imported here.

    ``exclude`` are names of entry points, modules or distributions that are not imported at all. They are in the
    result all the same, and so is a module that cannot be imported, or has no beans and settings, with its ``problem``.
    So is a distribution whose entry points cannot be read, though the group is named there; its name stands for theirs.
    """
    there = installed(GROUP)
    found: dict[tuple[str, str, str], EntryPoint] = {}  # an editable installation may be listed twice
    for each in there:
        for point in each.points:
            found.setdefault((name_and_origin(each.distribution)[0], point.name, point.value), point)
    loaded = [load_autoconfiguration(point, exclude) for _, point in sorted(found.items(), key=lambda entry: entry[0])]
    return loaded + [_unreadable(each, each.unreadable, exclude) for each in there if each.unreadable is not None]


def load_autoconfiguration(
    point: EntryPoint, exclude: Collection[str] = (), *, of: str = ""
) -> AutoconfigurationModule:
    """What one entry point brings; ``of`` is the distribution of one that stands in no metadata."""
    origin, distribution = of or "an unknown distribution", of
    if point.dist is not None:
        distribution, origin = name_and_origin(point.dist)
    result = AutoconfigurationModule(point.name, origin, point.value, distribution)
    if not set(exclude).isdisjoint(result.names):
        return replace(result, excluded=True)

    def broken(what: str, fix: str) -> AutoconfigurationModule:
        problem = Finding(f"the auto-configuration {point.name} of {origin} {what}", result.where, fix)
        return replace(result, problem=problem)

    leave_out = f"update or remove {distribution or 'it'}, or set rocketbox.autoconfigure.exclude: {point.name}"  # noqa: S608 - no SQL
    try:
        loaded = point.load()
    except ConfigurationError as error:
        return broken(f"cannot be used: {error.findings[0].what}", leave_out)
    except (Exception, SystemExit) as error:  # an import can raise anything
        frames = [each for each in traceback.extract_tb(error.__traceback__) if "importlib" not in each.filename]
        line = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames[1:] else ""  # the first is our own
        return broken(f"cannot be imported: {type(error).__name__}: {error}{line}", leave_out)
    targets = [loaded] if not isinstance(loaded, ModuleType) else _defined_in(loaded)
    beans = tuple(target for target in targets if bean_mark(target) is not None)
    properties = {prefix: target for target in targets if (prefix := properties_prefix(target)) is not None}
    if not beans and not properties:
        return broken("has no @bean and no @configuration_properties", leave_out)
    return replace(result, beans=beans, properties=properties)


def _unreadable(brings: Installed, error: Exception, exclude: Collection[str]) -> AutoconfigurationModule:
    """A distribution whose entry points cannot be read, and may be some of ours; it is excluded by its name."""
    name, origin = name_and_origin(brings.distribution)
    result = AutoconfigurationModule(name, origin, "", name)
    if name in exclude:
        return replace(result, excluded=True)
    what = f"the entry points of {origin} cannot be read: {type(error).__name__}: {error}"
    fix = f"mend the file, update or remove {name}, or set rocketbox.autoconfigure.exclude: {name}"  # noqa: S608 - no SQL
    return replace(result, problem=Finding(what, brings.file, fix))


def _defined_in(module: ModuleType) -> list[Any]:
    """Objects of the module itself; what it imports from elsewhere belongs to others."""
    return [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
