"""Reads and binds the settings of an application: all sources in one order, models validated together.

Sources, lowest first: the models' defaults, the settings file (``rocketbox.yaml``), its documents for active profiles,
the files of active profiles (``rocketbox-<profile>.yaml``), what these import, ``.env``, environment variables,
``--key=value`` arguments, overrides of a program or test. Keys may be written in kebab, snake and camel case
everywhere, variables as ``ROCKETMQ_NAME_SERVER``, ``ROCKETMQ_NAMESERVER`` or ``ROCKETMQ__NAME_SERVER``.

The only module that knows pydantic-settings, which does the merging: each layer is a source of one root
``BaseSettings``, whose class is kept for the next start with the same models. A source says its entries, values as they
were written with their places; what pydantic-settings made of all of them has its ``${...}`` replaced, is turned into
values, and validated.

Source: Spring Boot 3 externalized configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

from pydantic import BaseModel, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from rocketbox.boot.conversion import UNSET, Converter
from rocketbox.boot.failures import failure_findings, without_secrets
from rocketbox.boot.file_choice import PROFILES_PREFIX, choose_files, early_value
from rocketbox.boot.files import exposed_secrets, idle_keys
from rocketbox.boot.imports import ConfigProperties
from rocketbox.boot.kept_by_models import KeptByModels
from rocketbox.boot.layers import Entry, Layer
from rocketbox.boot.origins import Origin, Ready, Scalar, split_key
from rocketbox.boot.placeholders import PlaceholderError
from rocketbox.boot.profiles import ProfilesProperties
from rocketbox.boot.schema import Schema
from rocketbox.boot.settings import Settings, SettingsError
from rocketbox.boot.shapes import Section, Shape, Table
from rocketbox.boot.sources import SourceOptions, Sources, Texts
from rocketbox.boot.validation import validation_findings
from rocketbox.frames import users_traceback

__all__ = ["RootSettings", "load_settings", "read_ahead", "schema_of"]

CONFIG_PREFIX = "rocketbox.config"
OWN_MODELS: Mapping[str, type[BaseModel]] = {PROFILES_PREFIX: ProfilesProperties, CONFIG_PREFIX: ConfigProperties}
STRICT_PREFIXES = ("rocketmq", "rocketbox")


def schema_of(models: Mapping[str, type[BaseModel]], strict_prefixes: Sequence[str] = STRICT_PREFIXES) -> Schema:
    """The keys that :func:`load_settings` knows for these models, its own about profiles and imports included."""
    models = {**models, **OWN_MODELS}
    return _schemas.of(models.items(), tuple(strict_prefixes), lambda: Schema(models, strict_prefixes))


_schemas: KeptByModels[Schema] = KeptByModels()
_roots: KeptByModels[type[RootSettings]] = KeptByModels()
_bound_now: ContextVar[_Binding] = ContextVar("what is bound now")


class _LayerSource(PydanticBaseSettingsSource):
    """What one layer says, as groups of keys; merging them with those of the others is pydantic-settings' business."""

    def __init__(self, settings_class: type[BaseSettings], layer: Layer, binding: _Binding) -> None:
        super().__init__(settings_class)
        self._layer = layer
        self._binding = binding

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self().get(field_name), field_name, True

    def __call__(self) -> dict[str, Any]:
        self._binding.said_by = self.settings_sources_data
        groups: dict[str, Any] = {}
        for path, entry in self._layer.entries.items():
            _put(groups, path, entry)
        for path in self._layer.names:
            _reach(groups, path)
        return groups


class RootSettings(BaseSettings):
    """The root of all settings: a field for each prefix. A subclass may put sources of its own before ours.

    Its sources name keys as they are declared (``{"desk": {"threshold-minutes": 5}}``).
    """

    model_config = SettingsConfigDict(hide_input_in_errors=True)  # an input may be a secret

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *args: Any, **kwargs: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Our layers, the highest first, and none of the sources that pydantic-settings would read by itself."""
        binding = _bound_now.get()
        return tuple(_LayerSource(settings_cls, layer, binding) for layer in reversed(binding.layers))

    @model_validator(mode="wrap")
    @classmethod
    def _bind(cls, merged: Any, validate: Callable[[Any], Self]) -> Self:
        binding = _bound_now.get()
        values = binding.values(merged)
        try:
            return validate(values)
        except ValidationError as error:  # what is right holds all the same
            binding.refuse(error)
            for problem in error.errors(include_url=False, include_context=False, include_input=False):
                _drop(values, problem["loc"])
            return validate(values)


def load_settings(
    models: Mapping[str, type[BaseModel]],
    *,
    strict_prefixes: Sequence[str] = STRICT_PREFIXES,
    root: type[RootSettings] = RootSettings,
    replaced: Collection[str] = (),
    **options: Unpack[SourceOptions],
) -> Settings:
    """Read all sources and bind them to ``models``, which stand below their prefixes (``{"desk": DeskProperties}``).

    The models of ``replaced`` prefixes are not made: their keys are known, and none is required. Below
    ``strict_prefixes``, and in models that forbid extra keys, an unknown key is an error; elsewhere a warning.

    Raises SettingsError with everything that is wrong.
    """
    schema = schema_of(models, strict_prefixes)
    models = {**models, **OWN_MODELS}
    file, env_file = options.get("file"), options.get("env_file")
    sources = Sources(schema, options)
    chosen = choose_files(sources, file, options.get("profiles", ()))
    layers = sources.layers(chosen.layers)
    sources.findings += idle_keys(layers[file is not None : len(chosen.layers)])
    made = {prefix: model for prefix, model in models.items() if prefix not in replaced}
    binding = _Binding(schema, made, layers, sources, file)
    bound: dict[str, BaseModel] = {}
    crash: Exception | None = None
    try:
        bound = binding.bind(root)
    except Exception as error:  # of a validator of the user's: pydantic takes ValueError and AssertionError alone
        sources.findings += failure_findings("a validator of the settings failed", None, error)
        crash = error.with_traceback(users_traceback(error))  # the variables of our lines are all values
    settings = Settings(
        chosen.profiles,
        chosen.asked,
        chosen.paths,
        (),
        bound,
        schema,
        binding.winners,
        binding.texts,
        binding.history,
    )
    if sources.findings:
        readable = {path: entry for path, entry in binding.winners.items() if _is_readable(entry, binding.texts)}
        rest = replace(settings, winners=readable) if bound else None
        told = without_secrets(sources.findings, settings.secrets)
        del options  # what shows the variables of a failure shows no arguments and overrides
        raise SettingsError(told, rest, settings.secrets) from crash
    read = [*chosen.paths, *([] if env_file is None else [env_file])]
    sources.warnings += exposed_secrets(settings.written, read)
    return replace(settings, warnings=tuple(sources.warnings))


def read_ahead(models: Mapping[str, type[BaseModel]], key: str, **options: Unpack[SourceOptions]) -> Any:
    """What the sources say of one key before all models are known, by its type in ``models``; None for nothing.

    Nothing is bound, and what is wrong is not told: it is found again when the settings are loaded.
    """
    schema = schema_of(models)
    sources = Sources(schema, options)
    seen = sources.glance(choose_files(sources, options.get("file"), options.get("profiles", ())).layers)
    entry = seen.entries.get(schema.locate(split_key(key)).path)
    value = UNSET if entry is None else early_value(seen, entry)
    return None if value is UNSET else value


def _is_readable(entry: Entry, texts: Texts) -> bool:
    try:
        texts.of_raw(entry.raw, entry.key)
    except PlaceholderError:
        return False
    return True


# --- binding -------------------------------------------------------------------------------------------------------


class _Binding:
    """From what pydantic-settings merged to the values that pydantic validates; ``winners`` are what was written."""

    def __init__(
        self,
        schema: Schema,
        models: Mapping[str, type[BaseModel]],
        layers: Sequence[Layer],
        sources: Sources,
        file: Path | None,
    ) -> None:
        self.winners: dict[tuple[str, ...], Entry] = {}
        self.texts = sources.texts(self.winners)
        self.history: dict[tuple[str, ...], list[Entry]] = {}
        self.said_by: Mapping[str, Mapping[str, Any]] = {}  # pydantic-settings' own record of its sources
        self._schema = schema
        self._models = models
        self._names = {prefix: f"section_{number}" for number, prefix in enumerate(models)}
        self.layers = layers
        self._sources = sources
        self._file = file
        self._refused = set(sources.refused)
        self._headings = {path: entry for layer in layers for path, entry in layer.names.items()}
        for layer in layers:
            for path, entry in layer.entries.items():
                self.history.setdefault(path, []).append(entry)

    def bind(self, root: type[RootSettings]) -> dict[str, BaseModel]:
        """The models by their prefixes, without the values that are wrong, which are findings then.

        Empty when models lack values without them.
        """
        fields: dict[str, Any] = {name: (self._models[prefix], ...) for prefix, name in self._names.items()}
        settings_class = _roots.of(
            self._models.items(), root, lambda: create_model("BoundSettings", __base__=root, **fields)
        )
        token = _bound_now.set(self)
        try:
            bound = settings_class()
        except ValidationError:
            return {}
        finally:
            _bound_now.reset(token)
        return {prefix: getattr(bound, name) for prefix, name in self._names.items()}

    def values(self, merged: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the merged entries by the names that pydantic takes, placeholders replaced."""
        self.winners.update(self._entries(merged, ()))
        findings = self._sources.findings
        unresolved: list[str] = []
        converter = Converter(findings, self._sources.warnings, self.texts.collecting(findings, unresolved))
        values: dict[str, Any] = {name: {} for name in self._names.values()}  # so that defaults and gaps are found
        prefixes = {tuple(split_key(prefix)): prefix for prefix in self._names}
        for path, entry in self.winners.items():
            told = len(findings), len(unresolved)
            value = converter.value(entry.shape, entry.raw, entry.key)
            if (len(findings), len(unresolved)) != told:
                self._refused.add(path)
            if value is UNSET:
                continue
            for length in range(1, len(path) + 1):
                prefix = prefixes.get(path[:length])
                if prefix is not None:
                    names = _names_for_pydantic(self._schema.sections[prefix], path[length:])
                    if names is not None:
                        _put(values, (self._names[prefix], *names), value)
        return values

    def refuse(self, error: ValidationError) -> None:
        """Note what pydantic found."""
        prefixes = {name: prefix for prefix, name in self._names.items()}
        self._sources.findings += validation_findings(
            error, prefixes, self._schema, self.winners, self.texts, self._refused, self._file
        )

    def _entries(self, merged: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Entry]]:
        """The entries at the ends of what was merged; a value that is none comes from a source of another kind."""
        for name, value in merged.items():
            path = (*above, name)
            if isinstance(value, Entry):
                yield path, value
            elif isinstance(value, Mapping):
                if not value and path in self._headings:  # a name of the user's, and nothing below it in any layer
                    yield path, self._headings[path]
                yield from self._entries(value, path)
            else:
                located = self._schema.locate(path)
                origin = Origin(self._source_of(path))
                raw = Scalar(value, origin) if isinstance(value, str) else Ready(value, origin)
                entry = Entry(path, located.shape, raw, str(origin))
                self.history.setdefault(path, []).append(entry)
                yield path, entry

    def _source_of(self, path: Sequence[str]) -> str:
        """The name of a source that is none of ours and says something there."""
        for name, said in self.said_by.items():
            found: Any = said
            for part in path:
                found = found.get(part) if isinstance(found, Mapping) else None
            if found is not None:
                return name
        return "another source"


def _put(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    group = _reach(into, path[:-1])
    if group is not None:
        group[path[-1]] = value


def _reach(into: dict[str, Any], path: Sequence[str]) -> dict[str, Any] | None:
    """The group at a path, made if need be; None where a single value of the same layer stands above it."""
    for part in path:
        inner = into.setdefault(part, {})
        if not isinstance(inner, dict):
            return None
        into = inner
    return into


def _names_for_pydantic(section: Section, path: Sequence[str]) -> list[str] | None:
    """A path below a prefix as pydantic calls it; None for one that belongs to a deeper prefix only."""
    names: list[str] = []
    shape: Shape | None = section
    for part in path:
        known = shape.by_key(part) if isinstance(shape, Section) else None
        if known is not None and known.feed is None:
            return None
        names.append(part if known is None else known.feed or part)
        if isinstance(shape, Section):
            shape = known.shape if known is not None else shape.extra
        else:
            shape = shape.value if isinstance(shape, Table) else None
    return names or None


def _drop(values: dict[str, Any], path: Sequence[int | str]) -> None:
    """Take the value at a path away, or the nearest one above it."""
    above, name = values, ""
    for step in path[:-1]:
        if str(step) not in values:  # the member of a union: all that is written for it goes
            above.pop(name, None)
            return
        above, name, below = values, str(step), values[str(step)]
        if not isinstance(below, dict):
            above.pop(name)
            return
        values = below
    values.pop(str(path[-1]), None)
