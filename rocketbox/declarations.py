"""What the fields of a dataclass of options say of themselves: unit, bounds, words, and their key in settings.

An option is declared once, where it acts::

    pull_interval: Annotated[float, SECONDS, Ge(0), Le(65.535), Words("pause between two pulls")] = 0.0

Read from there are the checks of the dataclass itself (``check_options``), and by others what settings, decorators and
pages of the reference say of it (``autoconfigure.option_models``). ``Ge``, ``Gt`` and ``Le`` are those of
``annotated_types``. A field with ``repr=False`` is a secret: its value is shown nowhere.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from annotated_types import Ge, Gt, Le

from rocketbox.durations import format_duration
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.sizes import format_size

__all__ = [
    "BYTES",
    "IN_CODE",
    "MILLISECONDS",
    "SECONDS",
    "Bounds",
    "Key",
    "Option",
    "Unit",
    "Words",
    "bounds_in_words",
    "check_options",
    "option_findings",
    "options_of",
]


@dataclass(frozen=True)
class Unit:
    """What the number of an option counts; of a time how many ``seconds`` each is."""

    name: str
    seconds: float | None = None


SECONDS = Unit("seconds", 1.0)
MILLISECONDS = Unit("milliseconds", 0.001)
BYTES = Unit("bytes")


@dataclass(frozen=True)
class Words:
    """What an option does, as the reference says it: no capital at the beginning, no full stop at the end."""

    text: str


@dataclass(frozen=True)
class Key:
    """The last part of an option's key where it is not its name in kebab case; None: only a program says it."""

    name: str | None


IN_CODE = Key(None)


@dataclass(frozen=True)
class Bounds:
    """Which numbers make sense; ``above`` is a border that is itself too small."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def holds(self, value: Any) -> bool:
        """Whether the value lies within; NaN never does."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    def told(self, show: Callable[[float], str] = "{:g}".format) -> str:
        """The bounds in words; ``show`` writes a number."""
        most = "" if self.most is None else f"to {show(self.most)}"
        if self.least is not None:
            return f"from {show(self.least)} {most}" if most else f"{show(self.least)} or more"
        if self.above is not None:
            return f"more than {show(self.above)}" + (f", up {most}" if most else "")
        return f"up {most}"


@dataclass(frozen=True)
class Option:
    """One field. ``kind`` is its type without None, ``default`` is ``dataclasses.MISSING`` where a factory makes it."""

    name: str
    kind: Any
    default: Any
    optional: bool
    unit: Unit | None
    bounds: Bounds | None
    words: str
    key: str | None
    secret: bool


def options_of(class_: type) -> Mapping[str, Option]:
    """The options of a dataclass, by name: its own in their order, then those of its bases.

    Raises TypeError for one that can be a setting and says nothing of what it does.
    """
    return _read(class_)


@functools.cache
def _read(class_: type) -> Mapping[str, Option]:
    hints = typing.get_type_hints(class_, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(class_)}
    names = dict.fromkeys(name for base in class_.__mro__ for name in inspect.get_annotations(base) if name in fields)
    found = {name: _option(fields[name], hints[name]) for name in names}
    for option in found.values():
        if option.key is not None and not option.words:
            raise TypeError(f"{class_.__name__}.{option.name} needs Words(...), or IN_CODE if it is no setting")
    return types.MappingProxyType(found)


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    metadata = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    kind = typing.get_args(hint)[0] if metadata else hint
    members = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    plain = [member for member in members if member is not type(None)]
    limits = {
        name: limit
        for each in metadata
        for name, class_, attribute in (("least", Ge, "ge"), ("above", Gt, "gt"), ("most", Le, "le"))
        if isinstance(each, class_) and (limit := getattr(each, attribute)) is not None
    }
    key = next((each.name for each in metadata if isinstance(each, Key)), field.name.replace("_", "-"))
    return Option(
        name=field.name,
        kind=plain[0] if len(plain) == 1 else kind,
        default=field.default,
        optional=len(plain) < len(members),
        unit=next((each for each in metadata if isinstance(each, Unit)), None),
        bounds=Bounds(**limits) if limits else None,
        words=next((each.text for each in metadata if isinstance(each, Words)), ""),
        key=key,
        secret=not field.repr,
    )


def bounds_in_words(option: Option) -> str:
    """The bounds of an option in the words and units of settings; empty where it has none."""
    if option.bounds is None:
        return ""
    if option.unit is not None and (seconds := option.unit.seconds) is not None:
        return option.bounds.told(lambda number: format_duration(timedelta(seconds=number * seconds)))
    return option.bounds.told((lambda number: format_size(int(number))) if option.unit is BYTES else str)


def option_findings(options: object) -> list[Finding]:
    """Everything wrong with the values of a dataclass of options: out of bounds, or blank."""
    owner = type(options).__name__
    findings = []
    for option in options_of(type(options)).values():
        value = getattr(options, option.name)
        if value is None and option.optional:
            continue
        right = ""
        if option.bounds is not None and not option.bounds.holds(value):
            unit = f" {option.unit.name}" if option.unit else ""
            right = f"{option.bounds.told()}{unit}"
        elif option.kind is str and not value.strip():
            right = "text that is not blank"
        if right:
            shown = "..." if option.secret else repr(value)
            or_none = "None or " if option.optional else ""
            findings.append(Finding(f"{owner}.{option.name} is {shown}", fix=f"it must be {or_none}{right}"))
    return findings


def check_options(options: object) -> None:
    """Raise ConfigurationError that names all options which are out of bounds."""
    if findings := option_findings(options):
        raise ConfigurationError(findings)
