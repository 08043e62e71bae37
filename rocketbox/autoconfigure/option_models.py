"""From options as they are declared to pydantic models of the settings that say them, and back.

A model gets a field for each option that has a key, with its type as text has it (a time, a size, any spelling of an
enum), bounds, default and words; :meth:`Properties.as_options` gives the dataclass of its values. So an option that is
added to a dataclass is a key, and no key can be forgotten on its way to the client. Which model has which options is
said in ``autoconfigure.properties``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SecretStr,
    StringConstraints,
    create_model,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from rocketbox.boot.units import DataSize, Duration, DurationWithUnit, Timestamp
from rocketbox.declarations import BYTES, SECONDS, Option, bounds_in_words, options_of
from rocketbox.durations import format_duration

__all__ = [
    "Properties",
    "Secret",
    "Text",
    "default_of",
    "with_options",
]

ModelT = TypeVar("ModelT", bound="Properties")
OptionsT = TypeVar("OptionsT")

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _usable(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not text.strip():
        raise ValueError("a key cannot be blank; leave it out instead")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("a key must be text, and has bytes that are no UTF-8")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_usable)]


class _Within:
    """The bounds of an option as metadata of a field: the check, and ``ge``, ``gt``, ``le`` in the type of settings."""

    def __init__(self, option: Option) -> None:
        assert option.bounds is not None
        self.option = option
        self.bounds = option.bounds
        self.ge, self.gt, self.le = map(self._limit, (self.bounds.least, self.bounds.above, self.bounds.most))

    def _limit(self, number: float | None) -> Any:
        seconds = _seconds(self.option)
        return number if seconds is None or number is None else timedelta(seconds=number * seconds)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def check(self, value: Any) -> Any:
        if value is not None and not self.bounds.holds(_plain(self.option, value)):
            raise PydanticCustomError("out_of_range", "{told}", {"told": f"must be {bounds_in_words(self.option)}"})
        return value


class Properties(BaseModel):
    """What all of them share: kebab-case keys, no unknown ones, values that do not change."""

    model_config = ConfigDict(
        alias_generator=lambda name: name.rstrip("_").replace("_", "-"),
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        coerce_numbers_to_str=True,
        defer_build=True,  # each is built as a part of the root of all settings, or when it is used alone
    )

    declared: ClassVar[Mapping[str, Option]] = MappingProxyType({})
    """The options that it has, by the names of its fields."""

    def values(self) -> dict[str, Any]:
        """Its options as the client has them: times in seconds, secrets as plain text."""
        return {name: _plain(option, getattr(self, name)) for name, option in self.declared.items()}

    def as_options(self, class_: type[OptionsT]) -> OptionsT:
        """The dataclass of its options; each that has a key is given."""
        values = self.values()
        return class_(**{name: values[name] for name, option in options_of(class_).items() if option.key is not None})


def with_options(
    options: Mapping[str, Option], *, of_listeners: bool = False
) -> Callable[[type[ModelT]], type[ModelT]]:
    """Gives a model a field for each of these options.

    Those ``of_listeners`` are None where nothing is said, since another place may say it, and their times need a unit:
    rocketmq-spring has minutes in one of them and milliseconds in the next.
    """

    def derive(model: type[ModelT]) -> type[ModelT]:
        fields: dict[str, Any] = {name: _field(option, of_listeners) for name, option in options.items()}
        derived = create_model(
            model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields
        )
        derived.declared = MappingProxyType({**model.declared, **options})
        return derived

    return derive


def default_of(option: Option) -> Any:
    """The default as settings have it: a time is a timedelta."""
    seconds = _seconds(option)
    return option.default if seconds is None or option.default is None else timedelta(seconds=option.default * seconds)


def _field(option: Option, of_listeners: bool) -> Any:
    kind = _kind(option, of_listeners)
    if of_listeners or option.optional:
        kind = kind | None
    words, default = option.words, default_of(option)
    if of_listeners:
        if default is not None:
            words += f" (default {_shown(default)})"
        default = None
    if option.bounds is not None:
        kind = Annotated[kind, _Within(option)]
    alias: dict[str, Any] = {} if option.key in (None, option.name.replace("_", "-")) else {"alias": option.key}
    return kind, Field(default=default, description=words, **alias)


def _kind(option: Option, of_listeners: bool) -> Any:
    """The type of an option where it comes from text."""
    kind: Any = option.kind
    if option.secret:
        kind = Secret
    elif _seconds(option) is not None:
        kind = DurationWithUnit if of_listeners else Duration
    elif option.unit is BYTES:
        kind = DataSize
    elif kind is datetime:
        kind = Timestamp
    elif isinstance(kind, type) and issubclass(kind, Enum):
        kind = Annotated[kind, _any_spelling(kind)]
    elif kind is str:
        kind = Text
    elif kind == dict[str, str]:
        kind = dict[str, Text]
    return kind


def _plain(option: Option, value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, timedelta) and (seconds := _seconds(option)) is not None:
        return value.total_seconds() if option.unit is SECONDS else round(value.total_seconds() / seconds)
    return value


def _seconds(option: Option) -> float | None:
    """What one of its unit is in seconds, if it is a time."""
    return None if option.unit is None else option.unit.seconds


def _shown(default: Any) -> str:
    if isinstance(default, timedelta):
        return format_duration(default)
    return str(default).lower() if isinstance(default, bool) else str(getattr(default, "value", default))


def _any_spelling(enum: type[Enum]) -> BeforeValidator:
    """Lets an enum be written as its name or value, in any case, with - or _."""

    def plain(text: object) -> str:
        return str(text).replace("-", "").replace("_", "").lower()

    def read(value: Any) -> Any:
        for member in enum:
            if value is member or plain(value) in (plain(member.name), plain(member.value)):
                return member
        raise ValueError(f"{value!r} is none of {', '.join(str(member.value) for member in enum)}")

    return BeforeValidator(read)
