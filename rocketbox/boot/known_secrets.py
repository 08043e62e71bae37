"""The texts of one set of settings that must never be shown: what is written, what it resolves to, what models hold.

Which values are secret is decided in ``boot.secrets``, how they are replaced in text in ``boot.masking``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from rocketbox.boot.layers import Entry
from rocketbox.boot.origins import Group, Listing, Raw, Ready, Scalar
from rocketbox.boot.placeholders import PlaceholderError
from rocketbox.boot.secrets import (
    behind_a_question_mark,
    credentials_in,
    credentials_within,
    is_guessable,
    is_secret,
    names_a_user,
    secret_values,
    secrets_in,
)
from rocketbox.boot.shapes import Many
from rocketbox.boot.sources import Texts

__all__ = ["KnownSecrets"]

MIN_SECRET = 6  # what is short and only lies among secrets, such as "true", would hide every text it is part of


class KnownSecrets:
    """What is looked for in text before it is shown, and what is not because everybody sees it anyway."""

    def __init__(
        self, entries: Collection[Entry], models: Mapping[str, BaseModel], texts: Texts, names: Iterable[str] = ()
    ) -> None:
        self._texts = texts
        self._public = frozenset(_public(entries)).union(names)
        users = {text for entry in entries if names_a_user(entry.path) for text in self._of_entry(entry)}
        found = {text for entry in entries if not names_a_user(entry.path) for text in self._of_entry(entry)}
        self._users_in_public = (users & self._public) - found
        found |= users
        for model in models.values():  # defaults, and what validators made of what was written
            found.update(secret_values(model))
            found.update(credentials_within(model))
        self._secrets = frozenset(self._hidden(text for text in found if text.strip()))

    @property
    def all(self) -> frozenset[str]:
        """Those that were found, and those of variables that have been asked for since."""
        return self._secrets | set(self._hidden(self._texts.secrets))

    def is_public(self, user: str) -> bool:
        """Whether a user has a name that everybody sees anyway: to hide it would hide that in every line."""
        return user in self._public

    def _hidden(self, found: Any) -> Iterator[str]:
        shown = self._users_in_public
        return (text for text in found if text not in shown and not is_guessable(text, self._public))

    def _of_entry(self, entry: Entry) -> Iterator[str]:
        for raw in secrets_in(entry.path, entry.shape, entry.raw):
            said = self._texts_of_secret(entry, raw)
            if is_secret(entry.path, entry.shape):
                yield from said
            else:
                yield from (text for text in said if len(text) >= MIN_SECRET)
        for raw in _scalars(entry.raw):
            for text in (raw.text or "", self._resolved(raw, entry.key) or ""):
                yield from credentials_in(text)
                yield behind_a_question_mark(entry.path, text)

    def _texts_of_secret(self, entry: Entry, raw: Scalar | Ready) -> Iterator[str]:
        if isinstance(raw, Ready):
            yield from secret_values(raw.value)
            if not isinstance(raw.value, list | tuple | Mapping | BaseModel):
                yield self._texts.of_raw(raw, entry.key) or ""
            return
        with contextlib.suppress(PlaceholderError):
            text = self._texts.of_scalar(raw, entry.key) or ""
            if raw is entry.raw and not is_secret(entry.path, entry.shape, replace(raw, text=text)):
                return  # a number, which no longer looks like a placeholder
            yield text
            if isinstance(entry.shape, Many):  # several with commas
                yield from (part.strip() for part in text.split(","))

    def _resolved(self, raw: Scalar, key: str) -> str | None:
        with contextlib.suppress(PlaceholderError):
            return self._texts.of_raw(raw, key)
        return None


def _scalars(raw: Raw) -> Iterator[Scalar]:
    """The texts in a raw value."""
    if isinstance(raw, Scalar):
        yield raw
    elif isinstance(raw, Listing):
        for item in raw.items:
            yield from _scalars(item)
    elif isinstance(raw, Group):
        for _, _, inner in raw.entries:
            yield from _scalars(inner)


def _public(entries: Collection[Entry]) -> Iterator[str]:
    """Words that stand in keys, and texts that are written as values and are no secret."""
    for entry in entries:
        for part in entry.path:
            yield from (part, *part.split("-"))
        if isinstance(entry.raw, Scalar) and entry.raw.text and not entry.is_secret:
            yield entry.raw.text
