"""What is said of profiles that somebody asked for: one that nobody knows, and embedded servers in one of them.

A profile's name that is misspelt drops all its settings, and what holds instead may well start: with servers of its
own, for example, where a cluster was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rocketbox.boot.conditions import Condition, profiles_named
from rocketbox.boot.origins import file_label
from rocketbox.boot.settings import Settings
from rocketbox.errors import Finding

__all__ = ["embedded_by_oversight", "unknown_profiles"]

NAME_SERVER = ("rocketmq", "name-server")


def unknown_profiles(settings: Settings, conditions: Iterable[Condition]) -> list[Finding]:
    """A finding for each profile asked for that no file, document, group or condition knows."""
    return settings.asked_profiles.unknown({name for each in conditions for name in profiles_named(each)})


def embedded_by_oversight(settings: Settings) -> Iterator[Finding]:
    """A warning where the embedded servers run under a profile somebody asked for, and nobody wanted just that.

    What the profile itself, the environment, an argument or a test says is wanted.
    """
    asked = settings.asked_profiles.asked
    written = settings.winners.get(NAME_SERVER)
    if not asked or written is None or (settings.text("rocketmq.name-server") or "").strip().lower() != "embedded":
        return
    shared = {file_label(file) for file in settings.files if not any(file.stem.endswith(f"-{name}") for name in asked)}
    if written.layer in shared:
        names = ", ".join(asked)
        yield Finding(
            f"the embedded servers run under profile {names}: nothing that profile says names another name server",
            settings.asked_profiles.where,
            f"set rocketmq.name-server in the settings of the profile; embedded there, if it is what {names} wants",
        )
