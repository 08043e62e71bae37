"""Profiles: which are active, which documents and files belong to them, and which of those asked for nobody knows.

Source: Spring Boot 3 ``spring.profiles.*`` and ``spring.config.activate.on-profile``, under ``rocketbox.``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape as glob_escape
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from rocketbox.errors import ConfigurationError, Finding

__all__ = [
    "DEFAULT_PROFILE",
    "AskedProfiles",
    "ProfilesProperties",
    "active_profiles",
    "endings",
    "is_profile_name",
    "one_of_yaml",
    "profile_file",
    "profiles_of_files",
]

DEFAULT_PROFILE = "default"

_YAML = (".yaml", ".yml")
_NAME = re.compile(r"[^/\\\x00]{1,100}")


class ProfilesProperties(BaseModel):
    """``rocketbox.profiles``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    active: list[str] = Field(default_factory=list, description="the active profiles; later ones win")
    default: str = Field(default=DEFAULT_PROFILE, description="what is active when no profile is")
    group: dict[str, list[str]] = Field(default_factory=dict, description="profiles that a profile brings with it")


def active_profiles(
    asked: Sequence[str], default: str = DEFAULT_PROFILE, groups: Mapping[str, Sequence[str]] | None = None
) -> tuple[str, ...]:
    """The active profiles in their order, each followed by those of its group; the default one when none is asked."""
    active: list[str] = []

    def add(name: str) -> None:
        if name in active:
            return
        active.append(name)
        for member in (groups or {}).get(name, ()):
            add(member)

    for name in asked or [default]:
        add(name)
    return tuple(active)


def is_profile_name(name: str) -> bool:
    """Whether a file can have the name of a profile in its own."""
    return bool(_NAME.fullmatch(name))


def endings(file: Path) -> tuple[str, ...]:
    """The endings that a settings file of this name may have as well as its own: ``.yaml`` and ``.yml`` are alike."""
    return _YAML if file.suffix in _YAML else (file.suffix,)


def one_of_yaml(file: Path) -> Path | None:
    """The file of this name, ending in ``.yaml`` or ``.yml``; None when there is neither.

    A name that ends otherwise stands for itself. ConfigurationError when there are both: one of them would be ignored.
    """
    found = [each for ending in endings(file) if (each := file.with_suffix(ending)).is_file()]
    if len(found) > 1:
        what = f"there are {found[0].name} and {found[1].name}, and only one of them can count"
        raise ConfigurationError(Finding(what, str(found[0].parent), "put what they say into one of them"))
    return found[0] if found else None


def profile_file(file: Path, profile: str) -> Path | None:
    """``rocketbox-prod.yaml`` beside ``rocketbox.yaml``, if it is there; ConfigurationError as :func:`one_of_yaml`."""
    return one_of_yaml(file.with_name(f"{file.stem}-{profile}{file.suffix}"))


def profiles_of_files(file: Path) -> Iterator[str]:
    """The profiles that have a file beside this one, whether they are active or not."""
    for beside in file.parent.glob(f"{glob_escape(file.stem)}-*"):
        if beside.suffix in endings(file):
            yield beside.stem.removeprefix(f"{file.stem}-")


@dataclass(frozen=True)
class AskedProfiles:
    """The profiles somebody asked for, members of their groups included, each with the place that names it.

    ``known`` are those that settings files know: by a file, a document or a group.
    """

    asked: Mapping[str, str]
    known: frozenset[str]

    @property
    def where(self) -> str | None:
        """Where the first of them is named."""
        return next(iter(self.asked.values()), None)

    def unknown(self, elsewhere: Collection[str]) -> list[Finding]:
        """A finding for each that nobody knows; ``elsewhere`` are those that conditions name."""
        known = {*self.known, *elsewhere, DEFAULT_PROFILE}
        named = sorted(known - {DEFAULT_PROFILE})
        findings = []
        for name, where in self.asked.items():
            if name in known:
                continue
            near = difflib.get_close_matches(name, named, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            there = f"known are {', '.join(named)}; " if named else ""
            findings.append(
                Finding(
                    f"profile {name} is asked for, and no file, document, group or condition knows it",
                    where,
                    f"{meant}{there}one that changes nothing is written rocketbox.profiles.group.{name}: []",
                )
            )
        return findings
