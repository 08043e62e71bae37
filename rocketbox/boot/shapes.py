"""The shape of settings: which keys there are below a prefix, and where a written key leads.

A shape is a section (named keys), a table (keys of the user's choice), a list, or a leaf. What pydantic's own schema of
a model says becomes shapes in ``boot.schema_reading``, each when it is first looked at, so that a model may contain
itself. ``Schema.locate`` leads the parts of a written key, in any spelling, to its place; ``Schema.locate_variable``
does it for the name of an environment variable. Turning text into values is ``boot.conversion``'s business.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import typing_extensions
from pydantic import BaseModel, RootModel, Secret, SecretBytes, SecretStr

__all__ = [
    "ANY",
    "MISSING",
    "UNDECLARED",
    "Field",
    "Leaf",
    "Many",
    "Section",
    "Shape",
    "Table",
    "has_keys",
    "item_of",
    "key_text",
    "leaves_of",
    "uniform",
    "unwrapped",
]

Path = tuple[str, ...]

MISSING: Any = object()
"""No default, or one that is made anew for each model."""


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

    kinds: tuple[Any, ...]
    nullable: bool = False
    validated: bool = False  # a validator of its own comes before pydantic's, and reads text itself
    description: str = ""  # of a time or size: "a size: 4194304 (bytes), 4MB"
    separator: str = ""  # between several of them in one text
    secret: bool = False

    @property
    def is_any(self) -> bool:
        return not self.kinds

    @property
    def is_secret(self) -> bool:
        classes = [typing.get_origin(kind) or kind for kind in self.kinds]
        return self.secret or any(
            isinstance(each, type) and issubclass(each, SecretStr | SecretBytes | Secret) for each in classes
        )


@dataclass(eq=False)
class Many:
    """A list. ``scalar`` is what a single value may be instead, ``group`` what a group of keys may be.

    ``first`` are the shapes of its first entries where they differ, as in a tuple.
    """

    read_item: Callable[[], Shape]
    read_first: tuple[Callable[[], Shape], ...] = ()
    nullable: bool = False
    validated: bool = False
    scalar: Leaf | None = None
    labelled: bool = False

    @cached_property
    def item(self) -> Shape:
        """What an entry is, wherever it stands."""
        return self.read_item()

    @cached_property
    def first(self) -> tuple[Shape, ...]:
        return tuple(read() for read in self.read_first)

    def item_at(self, index: int) -> Shape:
        return self.first[index] if index < len(self.first) else self.item


@dataclass(eq=False)
class Table:
    """A mapping whose keys the user chooses. ``scalar`` and ``many``: what it may be instead."""

    read_value: Callable[[], Shape]
    scalar: Leaf | None = None
    many: Many | None = None
    nullable: bool = False
    labelled: bool = False  # errors name the member of the union that they are about

    @cached_property
    def value(self) -> Shape:
        return self.read_value()


@dataclass(eq=False)
class Field:
    """A key of a section. ``feed`` is its name towards pydantic, None where it only leads to a deeper prefix.

    ``bounds`` are the constraints of its value (``annotated_types``). ``above`` is how many parts of a written key
    stand between the section and it: those of an ``AliasPath`` that leads to another key's place.
    """

    key: str
    read_shape: Callable[[], Shape]
    feed: str | None = None
    attribute: str = ""
    required: bool = False
    default: Any = MISSING
    description: str = ""
    bounds: tuple[Any, ...] = ()
    above: int = 0

    @cached_property
    def shape(self) -> Shape:
        return self.read_shape()


Fields = Callable[[], Mapping[str, Field]]


@dataclass(eq=False)
class Section:
    """Named keys, by their uniform names. ``extra`` is the shape of further ones, if they are taken.

    ``strict``: an unknown key is refused, else it is only told. ``loose``: nothing is known here, every key is taken.
    ``scalar`` and ``many``: what it may be instead. ``model`` is the class that its value has; several may have these
    keys together, its ``members``. One that is ``inside`` is only a step of an ``AliasPath`` to keys of the one above.
    ``known_extras`` are further keys that are known, by their names: those of the model that ``__settings_extras__`` of
    this one gives. Variables may set them, and the JSON Schema has them; who reads their values knows what they are.
    """

    read_fields: Fields = dict
    extra: Shape | None = None
    strict: bool = False
    loose: bool = False
    scalar: Leaf | None = None
    many: Many | None = None
    nullable: bool = False
    model: type | None = None
    members: tuple[Section, ...] = ()
    labelled: bool = False
    inside: bool = False
    known_extras: Fields = field(default=dict)

    @cached_property
    def fields(self) -> dict[str, Field]:
        return dict(self.read_fields())

    def by_key(self, key: str) -> Field | None:
        return self.fields.get(uniform(key))

    @cached_property
    def own(self) -> tuple[Field, ...]:
        """Its keys, each once."""
        return tuple(each for each in dict.fromkeys(self.fields.values()) if not each.above)

    @property
    def words(self) -> str:
        """The first paragraph of what its class says of itself."""
        if self.model is None:
            return ""
        own = vars(self.model)
        text = own.get("__doc__") or ""
        if "__dataclass_fields__" in own and text.startswith(f"{self.model.__name__}("):
            return ""  # the signature that Python writes there
        return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())

    def of(self, value: Any) -> Section:
        """The one of its members that a value belongs to; itself when it has none."""
        return next((each.of(value) for each in self.members if each.has(value)), self)

    def has(self, value: Any) -> bool:
        """Whether it describes a value: an object of its class, or a mapping with no other keys than its own."""
        if isinstance(value, Mapping):
            return typing_extensions.is_typeddict(self.model) and value.keys() <= {each.attribute for each in self.own}
        return (
            self.model is not None and not typing_extensions.is_typeddict(self.model) and isinstance(value, self.model)
        )

    def get(self, value: Any, known: Field) -> Any:
        """What a value that this section describes has for one of its keys; MISSING for nothing."""
        if isinstance(known.shape, Section) and known.shape.inside:
            return value
        if isinstance(value, Mapping):
            return value.get(known.attribute, MISSING)
        return getattr(value, known.attribute, MISSING)


Shape = Leaf | Many | Table | Section
ANY = Leaf(())
UNDECLARED = Leaf(())
"""A key that no model knows: its text may be referred to, and nobody reads it as a value."""


def item_of(shape: Shape | None) -> Shape | None:
    """What an entry is where a list may stand; None where none may."""
    many = shape if isinstance(shape, Many) else shape.many if isinstance(shape, Section | Table) else None
    return None if many is None else many.item


def unwrapped(value: Any) -> Any:
    """What stands in a ``RootModel``, whose own shape nobody sees."""
    while isinstance(value, RootModel):
        value = value.root
    return value


def has_keys(value: Any) -> bool:
    """Whether a value is what sections describe."""
    return isinstance(value, BaseModel | Mapping) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def leaves_of(shape: Shape, path: Path, above: Sequence[Any] = ()) -> Iterator[tuple[Path, Leaf | Many]]:
    """Every leaf below a shape; ``*`` stands for the keys of tables. What contains itself is gone through once."""
    if isinstance(shape, Section):
        origin = shape.members or shape.model or shape
        if origin in above:
            return
        for known in shape.own:
            yield from leaves_of(known.shape, (*path, known.key), (*above, origin))
    elif isinstance(shape, Table):
        if shape in above:
            return
        yield from leaves_of(shape.value, (*path, "*"), (*above, shape))
    else:
        yield path, shape
