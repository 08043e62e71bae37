"""The shape of settings: which keys there are below a prefix, read from pydantic models, and where a written key leads.

A shape is a section (a model), a table (a mapping with keys of the user), a listing, or a leaf. ``Schema.locate`` leads
the parts of a written key, in any spelling, to its place; ``Schema.locate_variable`` does it for the name of an
environment variable. Turning text into values is ``boot.conversion``'s business.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, Secret, SecretBytes, SecretStr, WithJsonSchema

from rocketbox.errors import ConfigurationError, Finding

__all__ = [
    "ANY",
    "UNDECLARED",
    "Field",
    "Leaf",
    "Located",
    "Many",
    "Schema",
    "Section",
    "Shape",
    "Table",
    "key_text",
    "uniform",
]

Path = tuple[str, ...]


def uniform(text: str) -> str:
    """One spelling for ``send-message-timeout``, ``send_message_timeout``, ``sendMessageTimeout``."""
    return text.replace("-", "").replace("_", "").lower()


def key_text(path: Iterable[str]) -> str:
    """A path as a user writes it: ``a.b[c.d].e``."""
    text = ""
    for part in path:
        text += f"[{part}]" if "." in part or not part else f".{part}" if text else part
    return text


@dataclass(frozen=True, eq=False)
class Leaf:
    """One value. ``kinds`` are the classes that it may have, without None; empty for any value at all."""

    hint: Any
    kinds: tuple[Any, ...]
    nullable: bool = False
    validated: bool = False  # the hint brings a validator that reads text itself
    description: str = ""  # what the hint says of itself in a JSON schema: "a size: 4194304 (bytes), 4MB"

    @property
    def is_any(self) -> bool:
        return not self.kinds

    @property
    def is_secret(self) -> bool:
        classes = [typing.get_origin(kind) or kind for kind in self.kinds]
        return any(isinstance(each, type) and issubclass(each, SecretStr | SecretBytes | Secret) for each in classes)


@dataclass(frozen=True, eq=False)
class Many:
    """A list of values or of sections."""

    hint: Any
    item: Shape
    nullable: bool = False


@dataclass(eq=False)
class Table:
    """A mapping whose keys the user chooses."""

    hint: Any
    value: Shape
    scalar: Leaf | None = None


@dataclass(eq=False)
class Field:
    """A key of a section. ``feed`` is its name towards pydantic, None where it only leads to a deeper prefix."""

    key: str
    shape: Shape
    feed: str | None = None
    attribute: str = ""
    required: bool = False


@dataclass(eq=False)
class Section:
    """A model's keys by their uniform names. ``extra`` is the shape of further ones, if the model takes them.

    ``strict``: an unknown key is refused, else it is only told. ``loose``: nothing is known here, every key is taken.
    ``scalar`` is what a single value may be instead.
    """

    fields: dict[str, Field] = field(default_factory=dict)
    extra: Shape | None = None
    strict: bool = False
    loose: bool = False
    scalar: Leaf | None = None
    model: type[BaseModel] | None = None

    def by_key(self, key: str) -> Field | None:
        return self.fields.get(uniform(key))


Shape = Leaf | Many | Table | Section
ANY = Leaf(Any, ())
UNDECLARED = Leaf(Any, ())
"""A key that no model knows: its text may be referred to, and nobody reads it as a value."""


@dataclass(frozen=True)
class Located:
    """Where a written key leads. ``unknown`` is the index of the part that nobody knows; ``within`` knew the rest.

    ``rest`` are parts below a leaf.
    """

    path: Path
    shape: Shape
    rest: Path = ()
    unknown: int | None = None
    within: Section | None = None


class Schema:
    """All keys of all models, each model below its prefix. Below ``strict`` prefixes unknown keys are refused.

    Raises ConfigurationError when a model cannot be a group of settings.
    """

    def __init__(self, models: Mapping[str, type[BaseModel]], strict: Sequence[str]) -> None:
        self.root = Section(loose=True)
        self.sections: dict[str, Section] = {}
        self._strict = tuple(strict)
        for prefix, model in sorted(models.items(), key=lambda entry: entry[0].count(".")):
            is_strict = any(prefix == name or prefix.startswith(name + ".") for name in strict)
            self.sections[prefix] = section = _section_of(model, is_strict, prefix)
            self._mount(prefix, section)

    def _mount(self, prefix: str, section: Section) -> None:
        *above, last = prefix.split(".")
        parent = self.root
        for part in above:
            known = parent.by_key(part)
            if known is None or not isinstance(known.shape, Section):
                is_strict = parent is self.root and part in self._strict
                known = Field(part, Section(loose=not is_strict, strict=is_strict))
                parent.fields[uniform(part)] = known
            assert isinstance(known.shape, Section)
            parent = known.shape
        native = parent.by_key(last)
        if native is not None:  # the model above has it as well
            native.shape = section
        else:
            parent.fields[uniform(last)] = Field(last, section)

    def locate(self, parts: Sequence[str]) -> Located:
        """Follow the parts of a key from the root."""
        shape: Shape = self.root
        path: list[str] = []
        index = 0
        while index < len(parts):
            part = parts[index]
            if isinstance(shape, Section):
                known = shape.by_key(part)
                if known is not None:
                    path.append(known.key)
                    shape = known.shape
                elif shape.extra is not None:
                    path.append(part)
                    shape = shape.extra
                elif shape.loose:
                    return Located((*path, *(uniform(rest) for rest in parts[index:])), UNDECLARED)
                else:
                    return Located(tuple(path), shape, unknown=index, within=shape)
                index += 1
            elif isinstance(shape, Table):
                single = isinstance(shape.value, Leaf | Many)
                path.append(".".join(parts[index:]) if single else part)
                index = len(parts) if single else index + 1
                shape = shape.value
            else:
                return Located(tuple(path), shape, tuple(parts[index:]))
        return Located(tuple(path), shape)

    def locate_variable(self, name: str, known: Callable[[Path], Iterable[str]]) -> Path | None:
        """The leaf that an environment variable sets; None when its name is that of no leaf.

        ``known(path)`` are the keys that a table has already: a name that fits one of them means that one.
        """
        words = [word.lower() for word in name.replace("-", "_").replace(".", "_").split("_") if word]
        return next(_matches(self.root, words, (), known), None)

    def leaves(self) -> Iterator[tuple[Path, Leaf | Many]]:
        """Every leaf of every model; ``*`` stands for the keys of tables."""
        yield from _leaves(self.root, ())


def _leaves(shape: Shape, path: Path) -> Iterator[tuple[Path, Leaf | Many]]:
    if isinstance(shape, Section):
        for known in shape.fields.values():
            yield from _leaves(known.shape, (*path, known.key))
    elif isinstance(shape, Table):
        yield from _leaves(shape.value, (*path, "*"))
    else:
        yield path, shape


def _matches(shape: Shape, words: list[str], path: Path, known: Callable[[Path], Iterable[str]]) -> Iterator[Path]:
    if isinstance(shape, Section):
        for length in range(1, len(words) + 1):
            candidate = shape.fields.get("".join(words[:length]))
            if candidate is not None:
                yield from _matches(candidate.shape, words[length:], (*path, candidate.key), known)
    elif isinstance(shape, Table):
        by_name = {uniform(key.replace(".", "")): key for key in known(path)}
        if isinstance(shape.value, Leaf | Many):
            if words:
                yield (*path, by_name.get("".join(words), ".".join(words)))
            return
        for wanted in (True, False):  # a key that is there already comes first
            for length in range(1, len(words)):
                existing = by_name.get("".join(words[:length]))
                if (existing is not None) is wanted:
                    key = existing if existing is not None else "-".join(words[:length])
                    yield from _matches(shape.value, words[length:], (*path, key), known)
    elif not words:
        yield path


# --- from types to shapes ------------------------------------------------------------------------------------------

_LISTS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Set, collections.abc.Iterable)
_TABLES = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _section_of(model: Any, strict: bool, prefix: str) -> Section:
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        name = getattr(model, "__qualname__", model)
        raise ConfigurationError(
            Finding(
                f"the class {name} of prefix {prefix} is no pydantic model",
                getattr(model, "__module__", None),
                f"write class {name}(BaseModel)",
            )
        )
    mode = model.model_config.get("extra")
    section = Section(strict=strict or mode == "forbid", model=model)
    section.extra = _extra_of(model, strict) if mode == "allow" else None
    by_name = bool(model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name"))
    for name, info in model.model_fields.items():
        alias = _alias_of(info)
        key = alias or name.strip("_").replace("_", "-")
        shape = _shape_of(info.annotation, tuple(info.metadata), section.strict, prefix)
        known = Field(key, shape, name if by_name or alias is None else alias, name, info.is_required())
        for spelling in {uniform(key), uniform(name)}:
            other = section.fields.setdefault(spelling, known)
            if other is not known:
                raise ConfigurationError(
                    Finding(
                        f"{model.__qualname__} has two keys that are one in every spelling: {other.key} and {key}",
                        model.__module__,
                        "rename one of them",
                    )
                )
    return section


def _alias_of(info: Any) -> str | None:
    alias = info.validation_alias if info.validation_alias is not None else info.alias
    if isinstance(alias, AliasChoices):
        alias = next((choice for choice in alias.choices if isinstance(choice, str)), None)
    return alias if isinstance(alias, str) else None


def _extra_of(model: type[BaseModel], strict: bool) -> Shape:
    for base in model.__mro__:
        if base is BaseModel:
            break
        hint = inspect.get_annotations(base).get("__pydantic_extra__")
        if hint is not None and not isinstance(hint, str) and typing.get_args(hint):
            return _shape_of(typing.get_args(hint)[1], (), strict, "")
    return ANY


def _shape_of(hint: Any, metadata: tuple[Any, ...], strict: bool, prefix: str) -> Shape:
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Annotated:
        return _shape_of(arguments[0], (*metadata, *arguments[1:]), strict, prefix)
    if isinstance(hint, typing.TypeAliasType if hasattr(typing, "TypeAliasType") else ()):
        return _shape_of(hint.__value__, metadata, strict, prefix)
    if origin in (typing.Union, types.UnionType):
        return _shape_of_union(hint, arguments, metadata, strict, prefix)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return _section_of(hint, strict, prefix)
    plain = origin or hint
    if plain in _TABLES:
        return Table(hint, _shape_of(arguments[1], (), strict, prefix) if len(arguments) == 2 else ANY)
    if plain in _LISTS:
        inner = next((argument for argument in arguments if argument is not Ellipsis), Any)
        return Many(hint, _shape_of(inner, (), strict, prefix))
    if hint in (Any, object):
        return ANY
    return Leaf(
        hint,
        (hint,),
        validated=any(isinstance(each, BeforeValidator) for each in metadata),
        description=next((_description(each) for each in metadata if isinstance(each, WithJsonSchema)), ""),
    )


def _description(schema: WithJsonSchema) -> str:
    return str((schema.json_schema or {}).get("description", ""))


def _shape_of_union(
    hint: Any, arguments: tuple[Any, ...], metadata: tuple[Any, ...], strict: bool, prefix: str
) -> Shape:
    shapes = [_shape_of(argument, metadata, strict, prefix) for argument in arguments if argument is not type(None)]
    nullable = type(None) in arguments
    leaves = [shape for shape in shapes if isinstance(shape, Leaf)]
    kinds = () if any(leaf.is_any for leaf in leaves) else tuple(kind for leaf in leaves for kind in leaf.kinds)
    leaf = None
    if leaves:
        descriptions = {each.description for each in leaves}
        description = descriptions.pop() if len(descriptions) == 1 else ""
        leaf = Leaf(hint, kinds, nullable, any(each.validated for each in leaves), description)
    for shape in shapes:
        if isinstance(shape, Section | Table):
            shape.scalar = leaf
            return shape
    for shape in shapes:
        if isinstance(shape, Many):
            return Many(hint, shape.item, nullable)
    return leaf or ANY
