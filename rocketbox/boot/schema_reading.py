"""From pydantic's own schema of a model to the shape of its settings.

The core schema is what pydantic validates by: unions, discriminated unions, models that contain themselves,
dataclasses, typed dicts, root models, aliases and validators have their final form there. It is read step by step, each
part when it is first looked at. What has no keys and no text of its own here (a named tuple, a class with a validator
instead of a schema) takes what was written as YAML means it, and pydantic decides; what would be ambiguous is refused
by name.

Source: ``pydantic_core.core_schema``.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic_core import PydanticUndefined

from rocketbox.boot.shape_unions import UnionShapes
from rocketbox.boot.shapes import ANY, MISSING, Field, Leaf, Many, Section, Shape, Table, uniform
from rocketbox.boot.units import separator_of, words_of
from rocketbox.errors import ConfigurationError, Finding

__all__ = ["section_of"]

Core = Mapping[str, Any]
"""A part of pydantic's core schema: a mapping with its ``type``."""

_KINDS: Mapping[str, Any] = {
    "str": str,
    "bytes": bytes,
    "int": int,
    "float": float,
    "bool": bool,
    "timedelta": timedelta,
    "decimal": Decimal,
    "date": date,
    "datetime": datetime,
    "time": time,
    "uuid": UUID,
    "complex": complex,
    "url": str,
    "multi-host-url": str,
}
_LISTS = ("list", "set", "frozenset", "deque", "generator", "tuple")
_BEFORE = ("function-before", "function-wrap")
_SECRETS = (SecretStr, SecretBytes, Secret)
_BOUNDS = ("ge", "gt", "le", "lt")


def section_of(model: Any, strict: bool, prefix: str) -> Section:
    """The keys of a model; ConfigurationError for what cannot be a group of settings."""
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        name = getattr(model, "__qualname__", model)
        what = f"the class {name} of prefix {prefix} is no pydantic model"
        raise ConfigurationError(Finding(what, getattr(model, "__module__", None), f"write class {name}(BaseModel)"))
    if any(base.__name__ == "BaseSettings" and base.__module__.startswith("pydantic_settings") for base in model.mro()):
        what = (
            f"the class {model.__qualname__} of prefix {prefix} is a BaseSettings, which reads the whole environment "
            "by itself ($PATH for a field path), past the order and the origins of these settings"
        )
        fix = f"write class {model.__qualname__}(BaseModel): the keys below {prefix} come from all sources all the same"
        raise ConfigurationError(Finding(what, model.__module__, fix))
    if not model.__pydantic_complete__:
        try:
            model.model_rebuild()
        except Exception as error:  # evaluating a hint can raise anything
            what = f"the class {model.__qualname__} of prefix {prefix} has a type that is not known: {error}"
            raise ConfigurationError(Finding(what, model.__module__, "define it in the same module, above")) from error
    shape = _Reader(strict, prefix, model).shape(model.__pydantic_core_schema__)
    if not isinstance(shape, Section):  # a root model of something else has no keys
        what = f"the class {model.__qualname__} of prefix {prefix} is no group of keys"
        fix = f"give it keys, and use it as the type of one: class {model.__qualname__}Settings(BaseModel)"
        raise ConfigurationError(Finding(what, model.__module__, fix))
    return shape


class _Reader:
    """Reads the schema of one model. ``strict``: no key in it may be unknown."""

    def __init__(self, strict: bool, prefix: str, model: type) -> None:
        self.strict = strict
        self.prefix = prefix
        self.model = model
        self.definitions: dict[str, Core] = {}
        self.read: dict[str, Shape] = {}

    def later(self, schema: Core) -> Callable[[], Shape]:
        return lambda: self.shape(schema)

    def ambiguous(self, what: str, fix: str) -> ConfigurationError:
        return ConfigurationError(
            Finding(f"{self.model.__qualname__} of prefix {self.prefix} {what}", self.model.__module__, fix)
        )

    def shape(self, schema: Core, validated: bool = False) -> Shape:
        """The shape of a part; ``validated``: a validator of its own comes before it."""
        kind = schema["type"]
        if kind == "definitions":
            self.definitions.update({each["ref"]: each for each in schema["definitions"]})
            return self.shape(schema["schema"], validated)
        if kind == "definition-ref":
            reference = schema["schema_ref"]
            if reference not in self.read:
                self.read[reference] = self.shape(self.definitions[reference])
            return _validated(self.read[reference]) if validated else self.read[reference]
        if kind in _BEFORE:
            return self.of_validator(schema)
        if kind == "nullable":
            return _nullable(self.shape(schema["schema"], validated))
        if kind in ("default", "function-after", "custom-error", "model-field", "json-schema"):
            return self.of_wrapper(schema, validated)
        if kind == "chain":
            return self.shape(schema["steps"][0], validated)
        if kind in ("lax-or-strict", "json-or-python"):
            return self.of_forms(schema, validated)
        if kind == "union":
            return self.of_union(
                [each[0] if isinstance(each, tuple) else each for each in schema["choices"]], validated
            )
        if kind == "tagged-union":
            return self.of_union(
                [each for each in schema["choices"].values() if not isinstance(each, str | int)], validated
            )
        return self.of_container(schema, kind, validated)

    def of_container(self, schema: Core, kind: str, validated: bool) -> Shape:
        if kind in _LISTS:
            return self.of_list(schema, validated)
        if kind == "dict":
            return Table(self.later(schema.get("values_schema", {"type": "any"})), _text_of_validator(validated))
        if kind == "model":
            if schema.get("root_model"):
                return self.shape(schema["schema"], validated)
            return self.of_fields(schema["schema"], schema, validated)
        if kind == "dataclass":
            return self.of_fields(schema["schema"], schema, validated)
        if kind == "typed-dict":
            return self.of_fields(schema, schema, validated)
        return _leaf(schema, kind, validated)

    def of_wrapper(self, schema: Core, validated: bool) -> Shape:
        class_ = schema["function"]["function"] if schema["type"] == "function-after" else None
        if isinstance(class_, type) and issubclass(class_, _SECRETS):
            return Leaf((class_,), validated=validated, secret=True)
        return self.shape(schema["schema"], validated)

    def of_validator(self, schema: Core) -> Shape:
        """What stands behind a validator: times and sizes are known by theirs."""
        function = schema["function"]["function"]
        if separator := separator_of(function):
            plain = self.shape(schema["schema"])
            return replace(plain, separator=separator) if isinstance(plain, Leaf) else plain
        inner = self.shape(schema["schema"], validated=True)
        if isinstance(inner, Leaf) and (words := words_of(function)):
            return replace(inner, description=words)
        return inner

    def of_forms(self, schema: Core, validated: bool) -> Shape:
        """A type with several schemas: of Python's objects, of JSON. Classes that are read from text are leaves."""
        lax = schema.get("lax_schema", schema)
        class_ = _class_in(schema)
        if class_ is not None and not typing.get_origin(class_):
            if issubclass(class_, _SECRETS):
                return Leaf((class_,), validated=validated, secret=True)
            inner = self.shape(lax["json_schema"]) if "json_schema" in lax else ANY
            return inner if isinstance(inner, Many | Table) else Leaf((class_,), validated=validated)
        return self.shape(lax.get("json_schema", lax), validated)

    def of_list(self, schema: Core, validated: bool) -> Many:
        items = schema.get("items_schema", {"type": "any"})
        if not isinstance(items, list):
            return Many(self.later(items), validated=validated)
        variadic = schema.get("variadic_item_index")
        if variadic is not None and variadic != len(items) - 1:
            variadic = len(items) - 1  # what stands in the middle of a tuple is told apart by nobody
        first = items if variadic is None else items[:variadic]
        rest = [] if variadic is None else items[variadic:]
        everything = list(items) or [{"type": "any"}]
        if rest and not first:
            return Many(self.later(rest[0]), validated=validated)
        return Many(lambda: self.of_union(everything, False), tuple(map(self.later, first)), validated=validated)

    # --- groups of keys ---------------------------------------------------------------------------------------------

    def of_fields(self, schema: Core, owner: Core, validated: bool) -> Section:
        class_ = owner.get("cls")
        while schema["type"] not in ("model-fields", "dataclass-args", "typed-dict"):  # validators of the model itself
            validated = validated or schema["type"] in _BEFORE
            schema = schema["schema"]
        config: Mapping[str, Any] = owner.get("config") or {}
        mode = schema.get("extra_behavior") or config.get("extra_fields_behavior")
        extra: Shape | None = None
        if mode == "allow":
            extra = self.shape(schema["extras_schema"]) if "extras_schema" in schema else ANY
        elif validated and mode != "forbid":
            extra = ANY  # its validator may know keys that are none of its fields
        return Section(
            lambda: self.fields(schema, class_, config),
            extra,
            self.strict or mode == "forbid",
            scalar=_text_of_validator(validated),
            model=class_,
            known_extras=functools.partial(_extras_of, class_, self.prefix),
        )

    def fields(self, schema: Core, class_: Any, config: Mapping[str, Any]) -> dict[str, Field]:
        declared = schema["fields"]
        named = declared.items() if isinstance(declared, Mapping) else [(each["name"], each) for each in declared]
        by_name = bool(
            config.get("validate_by_name")
            or config.get("populate_by_name")
            or schema.get("populate_by_name")
            or getattr(class_, "model_config", {}).get("populate_by_name")
        )
        by_alias = config.get("validate_by_alias") is not False
        found: dict[str, Field] = {}
        for name, each in named:
            if each.get("init", True):
                for spelling, known in self.spellings(name, each, class_, by_name or not by_alias, by_alias):
                    self.add(found, spelling, known, class_)
        return found

    def add(self, found: dict[str, Field], spelling: str, known: Field, class_: Any) -> None:
        other = found.setdefault(uniform(spelling), known)
        if other is known:
            return
        if _is_step(other) and _is_step(known):  # two keys below one
            inner, more = other.shape, known.shape
            assert isinstance(inner, Section)
            assert isinstance(more, Section)
            for name, each in more.fields.items():
                self.add(inner.fields, name, each, class_)
            return
        name = getattr(class_, "__qualname__", class_)
        if _is_step(other) or _is_step(known):
            raise self.ambiguous(f"has the key {known.key} and an AliasPath through it", "rename one of the two")
        what = f"{name} has two keys that are one in every spelling: {other.key} and {known.key}"
        raise ConfigurationError(Finding(what, getattr(class_, "__module__", None), "rename one of them"))

    def spellings(
        self, name: str, declared: Core, class_: Any, by_name: bool, by_alias: bool
    ) -> Iterator[tuple[str, Field]]:
        """The keys that lead to a field, with the field as it stands there; the first is its own."""
        alias = declared.get("validation_alias") if by_alias else None
        paths = [] if alias is None else [[alias]] if isinstance(alias, str) else alias
        if paths and not isinstance(paths[0], list):
            paths = [paths]
        if any(not isinstance(part, str) for path in paths for part in path):
            what = f"has an AliasPath into a list for {name}, which no key can be written for"
            raise self.ambiguous(what, f"give {name} an alias without a number")
        plain = [path[0] for path in paths if len(path) == 1]
        own = name.strip("_").replace("_", "-")
        known = self.field(name, declared, class_)
        known.key = plain[0] if plain else own
        known.feed = name if by_name or not paths else plain[0] if plain else None
        if by_name or not paths:
            plain += [name, own]
        for spelling in dict.fromkeys(map(uniform, plain)):
            yield spelling, known
        for path in paths:
            if len(path) > 1:
                yield path[0], _steps(path, known if known.feed is None else replace(known, above=len(path) - 1))

    def field(self, name: str, declared: Core, class_: Any) -> Field:
        schema = declared["schema"]
        default = MISSING
        required = bool(declared.get("required", True))
        if schema["type"] == "default":
            required = False
            default = schema.get("default", MISSING)
        elif schema["type"] in _BEFORE and schema["schema"]["type"] == "default":
            required = False
        info = getattr(class_, "model_fields", {}).get(name) if isinstance(class_, type) else None
        words = (declared.get("metadata") or {}).get("pydantic_js_updates", {}).get("description", "")
        read = self.later(schema)
        if info is None:
            return Field("", read, None, name, required, default, words, _bounds_in(schema))
        default = info.get_default(call_default_factory=False)
        if _mentions_secret(info.annotation):
            read = lambda: _secret(self.shape(schema))  # noqa: E731 - the same as the other, marked
        return Field(
            key="",
            read_shape=read,
            attribute=name,
            required=info.is_required(),
            default=MISSING if default is PydanticUndefined else default,
            description=info.description or "",
            bounds=tuple(info.metadata),
        )

    # --- unions -----------------------------------------------------------------------------------------------------

    def of_union(self, choices: Sequence[Core], validated: bool) -> Shape:
        shapes = [self.shape(each, validated) for each in choices if each["type"] != "none"]
        shape = UnionShapes(self.ambiguous).of(shapes, labelled=len(shapes) > 1)
        return _nullable(shape) if any(each["type"] == "none" for each in choices) else shape


def _leaf(schema: Core, kind: str, validated: bool) -> Leaf:
    if kind == "enum":
        return Leaf((schema["cls"],), validated=validated)
    if kind == "literal":
        expected = tuple(each for each in schema["expected"] if each is not None)
        return Leaf((Literal[expected],), nullable=len(expected) < len(schema["expected"]), validated=validated)
    if kind in ("is-instance", "is-subclass", "json", "none"):
        named = {"is-instance": schema.get("cls"), "json": str, "none": type(None)}.get(kind)
        return Leaf((named if isinstance(named, type) else type,), validated=True)
    if kind in _KINDS:
        return Leaf((_KINDS[kind],), validated=validated)
    return ANY  # any value, and what only pydantic understands


def _extras_of(class_: Any, prefix: str) -> Mapping[str, Field]:
    """The further keys that a model knows, by their names."""
    extras = getattr(class_, "__settings_extras__", None)
    return {} if extras is None else {known.key: known for known in section_of(extras(), False, prefix).own}


def _nullable(shape: Shape) -> Shape:
    return shape if shape is ANY or shape.nullable else replace(shape, nullable=True)


def _validated(shape: Shape) -> Shape:
    """The same behind a validator of its own: text is handed to it as it stands."""
    if isinstance(shape, Leaf | Many):
        return replace(shape, validated=True)
    return replace(shape, scalar=_text_of_validator(True))


def _text_of_validator(validated: bool) -> Leaf | None:
    """A group of keys may be text if a validator of the model makes one of it."""
    return Leaf((str,), validated=True) if validated else None


def _secret(shape: Shape) -> Shape:
    if isinstance(shape, Leaf):
        return replace(shape, secret=True) if not shape.is_any else Leaf((str,), shape.nullable, True, secret=True)
    return shape


def _mentions_secret(hint: Any) -> bool:
    plain = typing.get_origin(hint) or hint
    if isinstance(plain, type) and issubclass(plain, _SECRETS):
        return True
    return any(_mentions_secret(each) for each in typing.get_args(hint))


def _class_in(schema: Core) -> Any:
    """The class whose objects a schema takes as they are, if it is that of one."""
    strict = schema.get("strict_schema", schema)
    python = strict.get("python_schema", strict)
    for each in (python, *(python.get("choices") or ())):
        if each.get("type") == "is-instance":
            return each["cls"] if isinstance(each["cls"], type) else None
    return None


def _bounds_in(schema: Core) -> tuple[Any, ...]:
    import annotated_types

    while "schema" in schema:
        schema = schema["schema"]
    kinds = {"ge": annotated_types.Ge, "gt": annotated_types.Gt, "le": annotated_types.Le, "lt": annotated_types.Lt}
    return tuple(kinds[name](schema[name]) for name in _BOUNDS if name in schema)


def _is_step(known: Field) -> bool:
    return known.feed is not None and known.attribute == "" and isinstance(known.shape, Section) and known.shape.inside


def _steps(path: Sequence[str], known: Field) -> Field:
    """A key that leads to a field by further ones, as an ``AliasPath`` does."""
    if not known.above:
        known.key = known.feed = path[-1]
    inner = known
    for part, name in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
        section = Section(functools.partial(dict, {uniform(name): inner}), inside=True)
        inner = Field(part, functools.partial(_same, section), part)
    return inner


def _same(shape: Shape) -> Shape:
    return shape
