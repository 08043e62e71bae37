"""The settings of an application and the models that they are read into: ours, the user's, those of others.

Others are installed distributions with auto-configurations (``boot.discovery``). Where sources stand and which wins is
``boot.root_settings``' business; what the settings ask for is planned in ``autoconfigure.assembly``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from rocketbox.autoconfigure.machine import Machine
from rocketbox.autoconfigure.own_beans import own_autoconfigurations
from rocketbox.autoconfigure.scan import marked_in
from rocketbox.boot.discovery import AutoconfigurationModule, discover_autoconfigurations, has_autoconfigurations
from rocketbox.boot.marks import PROPERTIES
from rocketbox.boot.root_settings import load_settings, read_ahead
from rocketbox.boot.settings import Settings
from rocketbox.boot.settings_file import find_settings_file
from rocketbox.boot.sources import SourceOptions
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.hints import place_of

__all__ = ["Launch", "find_others", "load", "refuse_text", "settings_models"]


@dataclass(frozen=True)
class Launch:
    """What a start is told from outside: settings file, profiles, ``--key=value`` arguments; what a test replaces.

    ``settings`` win over all others; ``beans`` are objects by the hint of the bean whose place they take. ``machine``
    is what it runs on: clock, network, storage and servers. Without ``hooks`` no function runs by itself: neither at
    start and stop, nor in the background, nor on a schedule.
    """

    config: Path | str | None = None
    profiles: Sequence[str] = ()
    arguments: Sequence[str] = field(default=(), repr=False)  # these and the next may be secrets
    settings: Mapping[str, object] = field(default_factory=dict, repr=False)
    beans: Mapping[Any, object] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    hooks: bool = True

    def __post_init__(self) -> None:
        refuse_text(profiles=self.profiles, arguments=self.arguments)
        for name, example in (("settings", '{"desk.limit": 3}'), ("beans", "{Desk: FakeDesk()}")):
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise TypeError(f"{name}= takes a mapping, not a {type(given).__name__}: write {name}={example}")


def refuse_text(**options: object) -> None:
    """Raise TypeError for an option that takes several texts and was given one, which would be its letters.

    What it holds may be a secret and is not shown.
    """
    for name, value in options.items():
        if isinstance(value, str | bytes):
            raise TypeError(f"{name}= takes a list of texts, and was given one text: write {name}=[...] around it")


def load(
    models: Mapping[str, type[BaseModel]],
    modules: Sequence[ModuleType],
    home: str,
    launch: Launch,
    config: Path | str | None,
    replaced: Collection[str] = (),
) -> Settings:
    """The settings of the application that the module ``home`` makes; SettingsError with everything that is wrong.

    The models of ``replaced`` prefixes are given by somebody else.
    """
    return load_settings(models, replaced=replaced, **_sources(modules, home, launch, config))


def _sources(modules: Sequence[ModuleType], home: str, launch: Launch, config: Path | str | None) -> SourceOptions:
    """Where the settings of that application come from."""
    beside = next((getattr(module, "__file__", None) for module in modules if module is sys.modules.get(home)), None)
    dotenv = Path(".env")
    return {
        "file": find_settings_file(launch.config or config, beside=Path(beside) if beside else None),
        "profiles": launch.profiles,
        "env_file": dotenv if dotenv.is_file() else None,
        "arguments": launch.arguments,
        "overrides": launch.settings,
    }


def find_others(
    modules: Sequence[ModuleType], home: str, launch: Launch, config: Path | str | None, exclude: Collection[str]
) -> list[AutoconfigurationModule]:
    """The auto-configurations of other distributions; those that ``exclude`` or the settings leave out are not loaded.

    What is wrong with the settings is not told here: it is found again when they are read with all models.
    """
    if not has_autoconfigurations():
        return []
    said: Any = None
    with contextlib.suppress(ConfigurationError):
        sources = _sources(modules, home, launch, config)
        said = read_ahead(settings_models(()), "rocketbox.autoconfigure.exclude", **sources)
    return discover_autoconfigurations([*exclude, *(said or ())])


def settings_models(
    modules: Sequence[ModuleType], others: Sequence[AutoconfigurationModule] = ()
) -> dict[str, type[BaseModel]]:
    """The models of all settings by their prefixes: ours, those of ``@configuration_properties``, those of others.

    Raises ConfigurationError when two want the same prefix.
    """
    models: dict[str, type[BaseModel]] = {}
    for ours in own_autoconfigurations():
        models.update(ours.properties)
    findings = []
    wanted: list[tuple[str, Any, str, str]] = []
    for marked in marked_in(modules, PROPERTIES):
        (prefix,) = marked.marks
        assert isinstance(prefix, str)
        wanted.append((prefix, marked.target, place_of(marked.target), "choose another prefix for one of them"))
    for other in others:
        fix = f"choose another prefix, or set rocketbox.autoconfigure.exclude: {other.name}"
        wanted += [(prefix, model, other.where, fix) for prefix, model in other.properties.items()]
    for prefix, model, where, fix in wanted:
        taken = models.setdefault(prefix, model)
        if taken is not model:
            what = f"{model.__qualname__} wants the keys of {prefix!r}, which {taken.__qualname__} has"
            findings.append(Finding(what, where, fix))
    if findings:
        raise ConfigurationError(findings)
    return models
