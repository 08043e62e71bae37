"""The settings of an application: all sources in one order, every value with its origin, models validated together.

Sources, lowest first: the models' defaults, the settings file (``rocketbox.yaml``), its documents for active profiles,
the files of active profiles (``rocketbox-<profile>.yaml``), what these import, ``.env``, environment variables,
``--key=value`` arguments, overrides of a program or test. Keys may be written in kebab, snake and camel case
everywhere, variables as ``ROCKETMQ_NAME_SERVER``, ``ROCKETMQ_NAMESERVER`` or ``ROCKETMQ__NAME_SERVER``.

The only module that knows pydantic-settings: one root ``BaseSettings``, composed from the models at run time, with one
source of our own for each layer. Each source gives what its layer won, so that merging them cannot mix up spellings.

Source: Spring Boot 3 externalized configuration.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from rocketbox.boot.conversion import UNSET, Converter
from rocketbox.boot.failures import without_secrets
from rocketbox.boot.files import SettingsFiles, exposed_secrets, idle_keys
from rocketbox.boot.imports import ConfigProperties
from rocketbox.boot.layers import ConditionalDocument, Entry
from rocketbox.boot.masking import MASK, mask
from rocketbox.boot.merging import Merged, Sources, Texts, file_layer
from rocketbox.boot.origins import Origin, Ready, Scalar, file_label, split_key
from rocketbox.boot.placeholders import PlaceholderError, resolve_placeholders
from rocketbox.boot.profiles import ProfilesProperties, active_profiles, is_profile_name
from rocketbox.boot.secrets import credentials_in, is_guessable, is_secret, secret_values, secrets_in
from rocketbox.boot.shapes import Leaf, Many, Schema, Section, Shape, Table
from rocketbox.boot.units import DataSize, Duration, DurationWithUnit
from rocketbox.boot.validation import validation_findings
from rocketbox.errors import ConfigurationError, Finding

__all__ = [
    "DataSize",
    "Duration",
    "DurationWithUnit",
    "Origin",
    "Said",
    "Settings",
    "SettingsError",
    "find_settings_file",
    "load_settings",
    "schema_of",
]

ModelT = TypeVar("ModelT", bound=BaseModel)

FILE_NAMES = ("rocketbox.yaml", "config/rocketbox.yaml")
FILE_VARIABLE = "ROCKETBOX_CONFIG"
MIN_SECRET = 6  # what is short and only lies among secrets, such as "true", would hide every text it is part of
PROFILES_PREFIX = "rocketbox.profiles"
CONFIG_PREFIX = "rocketbox.config"
OWN_MODELS: Mapping[str, type[BaseModel]] = {PROFILES_PREFIX: ProfilesProperties, CONFIG_PREFIX: ConfigProperties}
STRICT_PREFIXES = ("rocketmq", "rocketbox")


def find_settings_file(
    config: Path | str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    beside: Path | None = None,
) -> Path | None:
    """The settings file: ``config``, else ``$ROCKETBOX_CONFIG``, else in ``directory``, else beside a module's file.

    None when there is none and none was named; ConfigurationError when the one that was named does not exist.
    """
    variables = os.environ if environ is None else environ
    here = Path.cwd() if directory is None else directory
    for named, where in ((config, "--config or config="), (variables.get(FILE_VARIABLE), FILE_VARIABLE)):
        if named:
            file = here / named
            if file.exists():
                return file
            finding = Finding(f"the settings file {named} does not exist", where, "name a YAML file that exists")
            raise ConfigurationError(finding)
    candidates = [here / name for name in FILE_NAMES]
    if beside is not None:
        candidates.append(beside.parent / FILE_NAMES[0])
    return next((file for file in candidates if file.is_file()), None)


@dataclass(frozen=True)
class Said:
    """One source's word on a key; secrets are masked."""

    origin: Origin
    layer: str
    text: str


@dataclass(frozen=True, repr=False)
class _Known:
    """What is looked for in text before it is shown, and what is not because everybody sees it anyway."""

    secrets: frozenset[str]
    public: frozenset[str]


@dataclass(repr=False, eq=False)
class Settings:
    """What was loaded. Keys may be written in any spelling; ``winners`` are what is written, by their paths."""

    profiles: tuple[str, ...]
    files: tuple[Path, ...]
    warnings: tuple[Finding, ...]
    models: Mapping[str, BaseModel]
    schema: Schema
    winners: Mapping[tuple[str, ...], Entry]
    texts: Texts
    _history: Mapping[tuple[str, ...], Sequence[Entry]]

    def __repr__(self) -> str:  # no values: some are secrets
        return f"Settings(profiles={self.profiles}, files={[file_label(file) for file in self.files]})"

    def get(self, prefix: str) -> Any:
        """The model bound to a prefix; KeyError for a prefix without one."""
        return self.models[prefix]

    def find(self, model: type[ModelT]) -> ModelT:
        """The one model of this class; KeyError when there is none."""
        for value in self.models.values():
            if type(value) is model:
                return value
        raise KeyError(model)

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
                found, value = _walk(self.models[prefix], self.schema.sections[prefix], path[len(parts) :])
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

    def explain(self, key: str) -> list[Said]:
        """Every source that says something under a key, the winner first."""
        said = []
        secrets = self.secrets
        for entry in reversed(self._history.get(self._path(key), ())):
            text = MASK if entry.is_secret else self.texts.of_raw(entry.raw, entry.key)
            said.append(Said(entry.origin, entry.layer, mask(text or "", secrets)))
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
        known = self._known
        return known.secrets | {each for each in self.texts.secrets if not is_guessable(each, known.public)}

    @cached_property
    def _known(self) -> _Known:
        found: set[str] = set()
        for entry in self.written:
            for raw in secrets_in(entry.path, entry.shape, entry.raw):
                said = list(self._texts_of_secret(entry, raw))
                if is_secret(entry.path, entry.shape):
                    found.update(said)
                else:
                    found.update(text for text in said if len(text) >= MIN_SECRET)
            if isinstance(entry.raw, Scalar):
                for text in (entry.raw.text or "", self._resolved(entry) or ""):
                    found.update(credentials_in(text))
        for model in self.models.values():  # defaults, and what validators made of what was written
            found.update(secret_values(model))
        public = frozenset(self._public())
        return _Known(frozenset(text for text in found if text.strip() and not is_guessable(text, public)), public)

    def _texts_of_secret(self, entry: Entry, raw: Scalar | Ready) -> Iterator[str]:
        if isinstance(raw, Ready):
            yield from secret_values(raw.value)
            if not isinstance(raw.value, list | tuple | Mapping | BaseModel):
                yield self.texts.of_raw(raw, entry.key) or ""
            return
        with contextlib.suppress(PlaceholderError):
            text = self.texts.of_scalar(raw, entry.key) or ""
            yield text
            if isinstance(entry.shape, Many):  # several with commas
                yield from (part.strip() for part in text.split(","))

    def _resolved(self, entry: Entry) -> str | None:
        with contextlib.suppress(PlaceholderError):
            return self.texts.of_raw(entry.raw, entry.key)
        return None

    def _public(self) -> Iterator[str]:
        """Words that stand in keys, and texts that are written as values and are no secret."""
        for entry in self.written:
            for part in entry.path:
                yield from (part, *part.split("-"))
            if isinstance(entry.raw, Scalar) and entry.raw.text and not entry.is_secret:
                yield entry.raw.text

    def _path(self, key: str) -> tuple[str, ...]:
        located = self.schema.locate(split_key(key))
        return (*located.path, *located.rest)


class SettingsError(ConfigurationError):
    """Settings that are wrong. ``settings`` is what holds without what is wrong; None when models lack values then."""

    def __init__(self, findings: Sequence[Finding], settings: Settings | None) -> None:
        super().__init__(findings)
        self.settings = settings


def schema_of(models: Mapping[str, type[BaseModel]], strict_prefixes: Sequence[str] = STRICT_PREFIXES) -> Schema:
    """The keys that :func:`load_settings` knows for these models, its own about profiles and imports included."""
    return Schema({**models, **OWN_MODELS}, strict_prefixes)


def load_settings(
    models: Mapping[str, type[BaseModel]],
    *,
    file: Path | None = None,
    profiles: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    env_file: Path | None = None,
    arguments: Sequence[str] | Mapping[str, str] = (),
    overrides: Mapping[str, Any] | None = None,
    strict_prefixes: Sequence[str] = STRICT_PREFIXES,
) -> Settings:
    """Read all sources and bind them to ``models``, which stand below their prefixes (``{"desk": DeskProperties}``).

    ``profiles`` take the place of ``rocketbox.profiles.active``. ``environ`` is the process's own when it is None.
    Below ``strict_prefixes``, and in models that forbid extra keys, an unknown key is an error; elsewhere a warning.

    Raises SettingsError with everything that is wrong.
    """
    models = {**models, **OWN_MODELS}
    schema = Schema(models, strict_prefixes)
    variables = os.environ if environ is None else environ
    loader = Sources(schema, variables, env_file, arguments, overrides or {})
    documents = loader.read(file)
    active = _active_profiles(loader, schema, documents, profiles)
    files = SettingsFiles(loader, active)
    layers = [] if file is None else files.of_file(file, documents)
    layers += files.imported(layers)
    merged = loader.merge(layers)
    loader.findings += idle_keys(merged.layers[file is not None : len(layers)])
    bound = _bind(schema, merged, models, file, loader.findings, loader.warnings)
    settings = Settings(active, tuple(files.paths), (), bound, schema, merged.winners, merged.texts, merged.history)
    if loader.findings:
        readable_winners = {path: entry for path, entry in merged.winners.items() if _is_readable(entry, merged.texts)}
        rest = replace(settings, winners=readable_winners) if bound else None
        raise SettingsError(without_secrets(loader.findings, settings.secrets), rest)
    readable = [*files.paths, *([] if env_file is None else [env_file])]
    loader.warnings += exposed_secrets(settings.written, readable)
    return replace(settings, warnings=tuple(loader.warnings))


def _is_readable(entry: Entry, texts: Texts) -> bool:
    try:
        texts.of_raw(entry.raw, entry.key)
    except PlaceholderError:
        return False
    return True


def _active_profiles(
    loader: Sources, schema: Schema, documents: Sequence[ConditionalDocument], asked: Sequence[str]
) -> tuple[str, ...]:
    """What the sources say of profiles, before documents and files of profiles come in."""
    merged = loader.merge_quietly([file_layer(None, documents, (), conditional=False)])
    bound = _bind(schema, merged, {PROFILES_PREFIX: ProfilesProperties}, None, [], [])
    said = bound.get(PROFILES_PREFIX)
    if not isinstance(said, ProfilesProperties):  # what is wrong with them is found again as well
        said = ProfilesProperties()
    active = active_profiles(asked or said.active, said.default, said.group)
    entry = merged.winners.get((*split_key(PROFILES_PREFIX), "active"))
    where = "--profile" if asked else None if entry is None else str(entry.origin)
    for name in active:
        if not is_profile_name(name):
            what = f"the profile {name!r} has a name that no file can have"
            loader.findings.append(Finding(what, where, "use letters, digits and dashes"))
    return tuple(name for name in active if is_profile_name(name))


# --- binding -------------------------------------------------------------------------------------------------------


class _LayerSource(PydanticBaseSettingsSource):
    """What one layer won, by the names that pydantic takes."""

    def __init__(self, settings_class: type[BaseSettings], values: dict[str, Any]) -> None:
        super().__init__(settings_class)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


def _bind(
    schema: Schema,
    merged: Merged,
    models: Mapping[str, type[BaseModel]],
    file: Path | None,
    findings: list[Finding],
    warnings: list[Finding],
) -> dict[str, BaseModel]:
    """The models by their prefixes, without the values that are wrong, which are then in ``findings``.

    Empty when models lack values without them.
    """
    names = {prefix: f"section_{index}" for index, prefix in enumerate(models)}
    unresolved: list[str] = []
    converter = Converter(findings, warnings, _collecting(merged.texts, findings, unresolved))
    nothing: dict[str, Any] = {name: {} for name in names.values()}  # so that defaults and missing keys are found
    values: dict[str, dict[str, Any]] = {}
    refused: set[tuple[str, ...]] = set()
    for path, entry in merged.winners.items():
        told = len(findings), len(unresolved)
        value = converter.value(entry.shape, entry.raw, entry.key)
        if (len(findings), len(unresolved)) != told:
            refused.add(path)
        if value is UNSET:
            continue
        for prefix, name in names.items():
            parts = tuple(split_key(prefix))
            if path[: len(parts)] == parts:
                into = values.setdefault(entry.layer, {})
                _put(into, name, schema.sections[prefix], path[len(parts) :], value)
    sources = [nothing, *(values[layer.name] for layer in merged.layers if layer.name in values)]

    class Root(BaseSettings):
        model_config = SettingsConfigDict(hide_input_in_errors=True)  # an input may be a secret

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *own: Any, **kwargs: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_LayerSource(settings_cls, source) for source in reversed(sources))

    fields: dict[str, Any] = {name: (models[prefix], ...) for prefix, name in names.items()}
    model = create_model("RootSettings", __base__=Root, **fields)
    try:
        root = model()
    except ValidationError as error:
        prefixes = {name: prefix for prefix, name in names.items()}
        findings += validation_findings(error, prefixes, schema, merged, refused, file)
        for problem in error.errors(include_url=False, include_context=False, include_input=False):
            for source in sources:
                _drop(source, problem["loc"])
        try:
            root = model()
        except ValidationError:
            return {}
    return {prefix: getattr(root, name) for prefix, name in names.items()}


def _drop(values: dict[str, Any], path: Sequence[int | str]) -> None:
    """Take the value at a path away, or the nearest one above it."""
    for step in path[:-1]:
        below = values.get(str(step))
        if not isinstance(below, dict):
            values.pop(str(step), None)
            return
        values = below
    values.pop(str(path[-1]), None)


def _collecting(texts: Texts, findings: list[Finding], unresolved: list[str]) -> Any:
    """Texts for the converter; what cannot be replaced is a finding, once for all keys that it is the fault of.

    The keys of all of them are added to ``unresolved``.
    """
    causes: set[frozenset[str]] = set()

    def text(scalar: Scalar, key: str) -> str | None:
        try:
            return texts.of_scalar(scalar, key)
        except PlaceholderError as error:
            unresolved.append(key)
            if error.cause not in causes:
                causes.add(error.cause)
                findings.append(error.finding)
            return None

    return text


def _put(into: dict[str, Any], name: str, section: Section, path: Sequence[str], value: Any) -> None:
    """Put a value where pydantic looks for it; a path that belongs to a deeper prefix only is none of this model's."""
    keys = [name]
    shape: Shape = section
    for part in path:
        if isinstance(shape, Section):
            known = shape.by_key(part)
            if known is not None and known.feed is None:
                return
            keys.append(part if known is None else known.feed or part)
            shape = known.shape if known is not None else shape.extra or Leaf(Any, ())
        else:
            keys.append(part)
            shape = shape.value if isinstance(shape, Table) else shape
    for key in keys[:-1]:
        inner = into.setdefault(key, {})
        if not isinstance(inner, dict):
            return  # a single value of the same layer stands above it
        into = inner
    into[keys[-1]] = value


def _walk(model: Any, shape: Shape, path: Sequence[str]) -> tuple[bool, Any]:
    """The value at a path below a model, and whether it is there."""
    value = model
    for part in path:
        if isinstance(value, BaseModel) and isinstance(shape, Section):
            known = shape.by_key(part)
            if known is not None:
                if known.feed is None:
                    return False, None
                value, shape = getattr(value, known.attribute), known.shape
            else:
                extra = value.model_extra or {}
                if part not in extra:
                    return shape.extra is not None, None
                value, shape = extra[part], shape.extra or Leaf(Any, ())
        elif isinstance(value, Mapping):
            if part not in value:
                return True, None
            value = value[part]
            shape = shape.value if isinstance(shape, Table) else shape
        else:
            return value is None, None
    return True, value
