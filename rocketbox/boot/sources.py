"""All sources of settings, each as a layer, the lowest first; and the texts of entries with placeholders replaced.

Which layer wins is pydantic-settings' business (``boot.root_settings``), what texts mean ``boot.conversion``'s.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from pydantic import Secret, SecretBytes, SecretStr

from rocketbox.boot.layers import (
    ConditionalDocument,
    Entry,
    Layer,
    Placement,
    argument_items,
    conditional_documents,
    dotenv_values,
    override_items,
    place_items,
    place_variables,
)
from rocketbox.boot.origins import Listing, Origin, Raw, Ready, Scalar, file_label, split_key
from rocketbox.boot.placeholders import Found, PlaceholderError, resolve_placeholders
from rocketbox.boot.profile_expressions import accepts
from rocketbox.boot.schema import Schema
from rocketbox.boot.secrets import holds_a_secret, secret_values
from rocketbox.errors import Finding

__all__ = ["FileLayer", "Glance", "SourceOptions", "Sources", "Texts", "file_layer"]

_ABOVE_ENVIRONMENT = ("arguments", "overrides")


@dataclass(frozen=True)
class FileLayer:
    """What counts of one file; None for no file at all."""

    name: str
    documents: tuple[ConditionalDocument, ...]
    file: Path | None


def file_layer(
    file: Path | None, documents: Iterable[ConditionalDocument], active: Sequence[str], *, conditional: bool
) -> FileLayer:
    label = file_label(file) if file is not None else "no file"
    chosen = tuple(
        document
        for document in documents
        if bool(document.on_profile) is conditional and (not conditional or accepts(document.on_profile, active))
    )
    return FileLayer(f"{label} (profile documents)" if conditional else label, chosen, file)


@dataclass(frozen=True)
class Glance:
    """What the sources say of single keys before all files are known: those of profiles and imports."""

    entries: Mapping[tuple[str, ...], Entry]
    texts: Texts


class SourceOptions(TypedDict, total=False):
    """Where the settings of one start come from. ``environ`` is the process's own when it is None or lacks.

    ``profiles`` take the place of ``rocketbox.profiles.active``.
    """

    file: Path | None
    profiles: Sequence[str]
    environ: Mapping[str, str] | None
    env_file: Path | None
    arguments: Sequence[str] | Mapping[str, str]
    overrides: Mapping[str, Any] | None


class Sources:
    def __init__(self, schema: Schema, options: SourceOptions) -> None:
        environ, env_file = options.get("environ"), options.get("env_file")
        self.findings: list[Finding] = []
        self.warnings: list[Finding] = []
        self.refused: set[tuple[str, ...]] = set()
        self._schema = schema
        self._dotenv = {} if env_file is None else dotenv_values(env_file, self.findings)
        self._environ = {
            name: Scalar(value, Origin(f"environment variable {name}"), open_=False)
            for name, value in (os.environ if environ is None else environ).items()
        }
        self._arguments = argument_items(options.get("arguments", ()), self.findings)
        self._overrides = override_items(options.get("overrides") or {}, self.findings)

    def read(self, file: Path | None) -> list[ConditionalDocument]:
        return [] if file is None else conditional_documents(file, self.findings)

    def glance(self, files: Sequence[FileLayer]) -> Glance:
        """The highest word on each key, before all is known: what is wrong is not noted, it is found again later."""
        before = len(self.findings), len(self.warnings)
        layers = self.layers(files)
        del self.findings[before[0] :], self.warnings[before[1] :]
        entries = ChainMap(*(layer.entries for layer in reversed(layers)))
        return Glance(entries, self.texts(entries))

    def layers(self, files: Sequence[FileLayer]) -> list[Layer]:
        """What each source says, the lowest first."""
        placement = Placement(self._schema, self.findings, self.warnings, refused=self.refused)
        layers = []
        for file in files:
            layer = Layer(file.name)
            for document in file.documents:
                place_items(layer, document.items, placement)
            layers.append(layer)
        for name, variables in ((".env", self._dotenv), ("environment", self._environ)):
            layer = Layer(name)
            place_variables(layer, variables, placement, layers)
            layers.append(layer)
        for name, items in (("arguments", self._arguments), ("overrides", self._overrides)):
            layer = Layer(name)
            place_items(layer, items, placement, must_be_known=True)
            layers.append(layer)
        return layers

    def texts(self, entries: Mapping[tuple[str, ...], Entry]) -> Texts:
        """The texts of these entries, with the variables that ``${...}`` may name."""
        return Texts(self._schema, entries, {**self._dotenv, **self._environ})


@dataclass
class Texts:
    """The texts of the entries that win, with their placeholders replaced.

    ``secrets`` are those of variables that were asked for and have the name of a secret.
    """

    schema: Schema
    winners: Mapping[tuple[str, ...], Entry]
    variables: Mapping[str, Scalar]
    secrets: set[str] = field(default_factory=set, repr=False)
    _done: dict[Scalar, str] = field(default_factory=dict, repr=False)

    def lookup(self, name: str) -> Found | None:
        """What ``${name}`` stands for: an argument or override, a variable of just that name, then any key."""
        located = self.schema.locate(split_key(name))
        entry = self.winners.get((*located.path, *located.rest)) if located.unknown is None else None
        if entry is not None and entry.layer in _ABOVE_ENVIRONMENT:
            return _found(entry.raw)
        if name in self.variables:
            variable = self.variables[name]
            if variable.text and holds_a_secret(name, variable.text):
                self.secrets.add(variable.text)
            return _found(variable)
        return None if entry is None else _found(entry.raw)

    def of_scalar(self, scalar: Scalar, subject: str) -> str | None:
        """Raises PlaceholderError."""
        if scalar.text is None or not scalar.open_ or "${" not in scalar.text:
            return scalar.text
        if scalar not in self._done:
            self._done[scalar] = resolve_placeholders(
                scalar.text, self.lookup, subject=subject, where=str(scalar.origin)
            )
        return self._done[scalar]

    def of_raw(self, raw: Raw, subject: str) -> str | None:
        if isinstance(raw, Scalar):
            return self.of_scalar(raw, subject)
        if isinstance(raw, Listing):
            return ",".join(self.of_raw(item, subject) or "" for item in raw.items)
        if isinstance(raw, Ready):
            return _text_of(raw.value)
        return ""

    def collecting(self, findings: list[Finding], unresolved: list[str]) -> Callable[[Scalar, str], str | None]:
        """Texts for a converter; what cannot be replaced is a finding, once for all keys that it is the fault of.

        The keys of all of them are added to ``unresolved``.
        """
        causes: set[frozenset[str]] = set()

        def text(scalar: Scalar, key: str) -> str | None:
            try:
                return self.of_scalar(scalar, key)
            except PlaceholderError as error:
                unresolved.append(key)
                if error.cause not in causes:
                    causes.add(error.cause)
                    findings.append(error.finding)
                return None

        return text


def _found(raw: Raw) -> Found | None:
    if isinstance(raw, Scalar):
        return Found(raw.text or "", str(raw.origin), raw.open_)
    if isinstance(raw, Listing):
        texts = [item.text or "" for item in raw.items if isinstance(item, Scalar)]
        return Found(",".join(texts), str(raw.origin))
    if isinstance(raw, Ready):
        return Found(_text_of(raw.value), str(raw.origin), open_=False)
    return None


def _text_of(value: Any) -> str:
    if isinstance(value, SecretStr | SecretBytes | Secret):
        return next(secret_values(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
