"""Profiles: which are active, and which documents and files belong to them.

Source: Spring Boot 3 ``spring.profiles.*`` and ``spring.config.activate.on-profile``, under ``rocketbox.``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["DEFAULT_PROFILE", "ProfilesProperties", "accepts", "active_profiles", "is_profile_name", "profile_file"]

DEFAULT_PROFILE = "default"

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


def accepts(expressions: Sequence[str], active: Collection[str]) -> bool:
    """Whether a document with these ``on-profile`` expressions counts: one of ``prod``, ``!prod``, ``prod & eu``."""
    return any(all(_holds(term.strip(), active) for term in expression.split("&")) for expression in expressions)


def _holds(term: str, active: Collection[str]) -> bool:
    return term[1:].strip() not in active if term.startswith("!") else term in active


def is_profile_name(name: str) -> bool:
    """Whether a file can have the name of a profile in its own."""
    return bool(_NAME.fullmatch(name))


def profile_file(file: Path, profile: str) -> Path:
    """``rocketbox-prod.yaml`` beside ``rocketbox.yaml``."""
    return file.with_name(f"{file.stem}-{profile}{file.suffix}")
