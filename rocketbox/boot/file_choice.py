"""Which settings files count for a start: those of the active profiles, their documents, and what they import.

That has to be known before the settings are read as a whole, from single keys: of each the highest word counts, and
nothing is merged or bound for it.

Source: Spring Boot 3 ``ConfigDataEnvironment``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketbox.boot.conversion import UNSET, Converter
from rocketbox.boot.files import SettingsFiles
from rocketbox.boot.layers import ConditionalDocument, Entry
from rocketbox.boot.origins import split_key
from rocketbox.boot.profiles import AskedProfiles, ProfilesProperties, active_profiles, is_profile_name
from rocketbox.boot.sources import FileLayer, Glance, Sources, file_layer
from rocketbox.errors import Finding

__all__ = ["PROFILES_PREFIX", "ChosenFiles", "choose_files", "early_value"]

PROFILES_PREFIX = "rocketbox.profiles"


@dataclass(frozen=True)
class ChosenFiles:
    """What counts of the files: the active profiles, those that were asked for, the files, and their layers."""

    profiles: tuple[str, ...]
    asked: AskedProfiles
    paths: tuple[Path, ...]
    layers: list[FileLayer]


def choose_files(sources: Sources, file: Path | None, profiles: Sequence[str]) -> ChosenFiles:
    """What counts of the settings file and of those beside it, when ``profiles`` are asked for; () asks the sources."""
    documents = sources.read(file)
    active, asked, named = _active_profiles(sources, documents, profiles)
    files = SettingsFiles(sources, active)
    layers = [] if file is None else files.of_file(file, documents)
    layers += files.imported(layers)
    return ChosenFiles(active, AskedProfiles(asked, frozenset(files.profiles | named)), tuple(files.paths), layers)


def early_value(seen: Glance, entry: Entry) -> Any:
    """What an entry means by its type, or UNSET; what is wrong is found again when the settings are loaded."""
    return Converter([], [], seen.texts.collecting([], [])).value(entry.shape, entry.raw, entry.key)


def _active_profiles(
    sources: Sources, documents: Sequence[ConditionalDocument], asked: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, str], set[str]]:
    """What the sources say of profiles, before documents and files of profiles come in.

    The active ones; those of them that were asked for, or belong to a group that was, each with its place; and those
    that have a group, or are the default.
    """
    seen = sources.glance([file_layer(None, documents, (), conditional=False)])
    above = tuple(split_key(PROFILES_PREFIX))
    said: dict[tuple[str, ...], Any] = {}
    for path, entry in seen.entries.items():
        if path[: len(above)] == above:
            value = early_value(seen, entry)
            if value is not UNSET:
                said[path[len(above) :]] = value
    default = said.get(("default",), ProfilesProperties().default)
    groups = {path[1]: value for path, value in said.items() if path[0] == "group" and len(path) > 1}
    written = seen.entries.get((*above, "active"))
    where = "--profile" if asked else None if written is None else str(written.origin)
    asked = asked or said.get(("active",), ())
    active = active_profiles(asked, default, groups)
    for name in active:
        if not is_profile_name(name):
            what = f"the profile {name!r} has a name that no file can have"
            sources.findings.append(Finding(what, where, "use letters, digits and dashes"))
    usable = tuple(name for name in active if is_profile_name(name))
    places = {name: where or PROFILES_PREFIX for name in usable if name in asked}
    for group, members in groups.items() if asked else ():
        of_group = seen.entries.get((*above, "group", group))
        for name in members if group in usable else ():
            places.setdefault(
                name, str(of_group.origin) if of_group is not None else f"{PROFILES_PREFIX}.group.{group}"
            )
    return usable, places, {*groups, default}
