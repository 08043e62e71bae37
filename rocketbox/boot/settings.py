"""The settings of an application as a view: the models, single keys with their values, texts and places.

They are made by ``boot.root_settings``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rocketbox.boot.known_secrets import KnownSecrets
from rocketbox.boot.layers import Entry
from rocketbox.boot.masking import MASK, mask
from rocketbox.boot.origins import Origin, Scalar, file_label, split_key
from rocketbox.boot.placeholders import PlaceholderError, resolve_placeholders
from rocketbox.boot.profiles import AskedProfiles
from rocketbox.boot.schema import Schema
from rocketbox.boot.shapes import MISSING, Leaf, Section, Shape, Table, has_keys, unwrapped
from rocketbox.boot.sources import Texts
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.safe_repr import also_when_unmade

__all__ = ["Settings", "SettingsError", "SourceValue"]


@dataclass(frozen=True)
class SourceValue:
    """One source's word on a key; secrets are masked."""

    origin: Origin
    layer: str
    text: str


@dataclass(repr=False, eq=False)
class Settings:
    """What was loaded. Keys may be written in any spelling; ``winners`` are what is written, by their paths."""

    profiles: tuple[str, ...]
    asked_profiles: AskedProfiles
    files: tuple[Path, ...]
    warnings: tuple[Finding, ...]
    models: Mapping[str, BaseModel]
    schema: Schema
    winners: Mapping[tuple[str, ...], Entry]
    texts: Texts
    _history: Mapping[tuple[str, ...], Sequence[Entry]]
    lent: set[str] = field(default_factory=set)
    """Further texts that must never be shown, as long as they are in here: secrets that come while it is in use."""
    names_shown: set[str] = field(default_factory=set)
    """Names that stand in every log, such as the application's: put here before the first secret is looked for."""

    @also_when_unmade
    def __repr__(self) -> str:  # no values: some are secrets
        return f"Settings(profiles={self.profiles}, files={[file_label(file) for file in self.files]})"

    def get(self, prefix: str) -> Any:
        """The model bound to a prefix; KeyError for a prefix without one."""
        return self.models[prefix]

    def value(self, key: str) -> Any:
        """The typed value of a key, a default included; the text of one that no model declares; None for no value.

        Raises KeyError for a key that a model would have to declare and does not.
        """
        located = self.schema.locate(split_key(key))
        if located.unknown is not None:
            raise KeyError(key)
        path = (*located.path, *located.rest)
        for prefix in sorted(self.models, key=len, reverse=True):
            parts = tuple(split_key(prefix))
            if path[: len(parts)] == parts:
                found, value = _value_at(self.models[prefix], self.schema.sections[prefix], path[len(parts) :])
                if found:
                    return value
        return self.text(key)

    def text(self, key: str) -> str | None:
        """What is written under a key as text, placeholders replaced; None when nothing is. Defaults do not count.

        Truth values are ``true`` and ``false`` however they were written.
        """
        entry = self.winners.get(self._path(key))
        if entry is None:
            return None
        if isinstance(entry.shape, Leaf) and entry.shape.kinds == (bool,):
            value = self.value(key)
            if isinstance(value, bool):
                return str(value).lower()
        return self.texts.of_raw(entry.raw, entry.key)

    def has(self, key: str) -> bool:
        """Whether a source says something under a key or below it; defaults do not count."""
        path = self._path(key)
        return any(
            written[: len(path)] == path and not (isinstance(entry.raw, Scalar) and entry.raw.text is None)
            for written, entry in self.winners.items()
        )

    def origin(self, key: str) -> Origin | None:
        """Where the value of a key was written; None for a default. For a group: where the first key below it was."""
        path = self._path(key)
        entry = self.winners.get(path)
        if entry is None:
            entry = next((entry for written, entry in self.winners.items() if written[: len(path)] == path), None)
        return None if entry is None else entry.origin

    def names(self, key: str) -> list[str]:
        """The keys that are written directly below a key, such as the names of a table."""
        path = self._path(key)
        below = (written[len(path)] for written in self.winners if written[: len(path)] == path != written)
        return list(dict.fromkeys(below))

    def explain(self, key: str) -> list[SourceValue]:
        """Every source that says something under a key, the winner first."""
        said = []
        secrets = self.secrets
        for entry in reversed(self._history.get(self._path(key), ())):
            text = MASK if entry.is_secret else self.texts.of_raw(entry.raw, entry.key)
            said.append(SourceValue(entry.origin, entry.layer, mask(text or "", secrets)))
        return said

    def resolve(self, text: str, *, subject: str, where: str | None = None) -> str:
        """Text from elsewhere, such as a decorator's argument, with its placeholders replaced.

        Raises ConfigurationError naming ``subject``, ``where`` and the chain for one that cannot be.
        """
        try:
            return resolve_placeholders(text, self.texts.lookup, subject=subject, where=where or subject)
        except PlaceholderError as error:
            raise ConfigurationError(error.finding) from error

    @property
    def written(self) -> Iterator[Entry]:
        """What the sources say, the losers included."""
        return itertools.chain.from_iterable(self._history.values())

    @property
    def secrets(self) -> frozenset[str]:
        """The texts that must never be shown, as they were written and as they are."""
        return self._known_secrets.all | self.lent if self.lent else self._known_secrets.all

    @cached_property
    def _known_secrets(self) -> KnownSecrets:
        return KnownSecrets(list(self.written), self.models, self.texts, self.names_shown)

    def is_public(self, user: str) -> bool:
        """Whether the name of a user is one that everybody sees anyway, such as that of a producer's group."""
        return self._known_secrets.is_public(user)

    def _path(self, key: str) -> tuple[str, ...]:
        located = self.schema.locate(split_key(key))
        return (*located.path, *located.rest)


class SettingsError(ConfigurationError):
    """Settings that are wrong. ``settings`` is what holds without what is wrong; None when models lack values then.

    ``secrets`` are not to be shown: those of an error that is its cause may be among them.
    """

    def __init__(
        self, findings: Sequence[Finding], settings: Settings | None, secrets: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(findings)
        self.settings = settings
        self.secrets = secrets


def _value_at(model: Any, shape: Shape, path: Sequence[str]) -> tuple[bool, Any]:
    """The value at a path below a model, and whether it is there."""
    value = unwrapped(model)
    for part in path:
        if isinstance(shape, Section) and has_keys(value):
            shape = shape.of(value)
            known = shape.by_key(part)
            if known is not None:
                if known.feed is None:
                    return False, None
                value, shape = unwrapped(shape.get(value, known)), known.shape
                if value is MISSING:
                    return True, None
                continue
            extra = value if isinstance(value, Mapping) else getattr(value, "model_extra", None) or {}
            if part not in extra:
                return shape.extra is not None, None
            value, shape = extra[part], shape.extra or Leaf(())
        elif isinstance(value, Mapping):
            if part not in value:
                return True, None
            value = value[part]
            shape = shape.value if isinstance(shape, Table) else Leaf(())
        else:
            return value is None, None
        value = unwrapped(value)
    return True, value
