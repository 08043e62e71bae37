"""Binding by type: which parameter of a handler is the payload, a message, a header or a bean.

:func:`read_signature` looks at a function without calling or building anything and finds everything that is wrong
with it; :meth:`HandlerSignature.bind` then fetches the beans once, so that a call costs only the reading of the body.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from rocketbox.client import Producer
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.hints import UnresolvedHintError, hint_of, parameters_of, place_of
from rocketbox.marks import Header
from rocketbox.message import RESERVED_PROPERTIES, Message, MessageExt
from rocketbox.template import MessageConverter, PayloadError, RocketMQTemplate
from rocketbox.template.converters import describe_validation_error

__all__ = [
    "Beans",
    "HandlerBinding",
    "HandlerSignature",
    "Parameter",
    "Role",
    "read_signature",
    "unreadable_payload",
]

Maker = Callable[[MessageExt], Any]

NEEDS_A_LOOP = (RocketMQTemplate, Producer)  # coroutines only: useless in a worker thread
PAYLOAD_TYPES = "a pydantic model, dataclass, TypedDict, dict, str, bytes, a union of them, or list[...] of one of them"


class Role(Enum):
    """What a parameter is given."""

    PAYLOAD = "payload"
    MESSAGE_EXT = "message"
    MESSAGE = "plain message"
    HEADER = "header"
    BEAN = "bean"
    DEFAULT = "default"


@dataclass(frozen=True)
class Beans:
    """What listeners know of the container of beans; hints come with their ``Annotated`` extras."""

    has: Callable[[Any], bool]
    resolve: Callable[[Any], Any]
    left_out: Callable[[Any, str, str], Finding | None] = lambda hint, who, where: None
    """What is wrong with somebody at a place asking for a hint, if the container knows why there is no such bean."""
    ambiguous: Callable[[Any, str, str], Finding | None] = lambda hint, who, where: None
    """The same if there are several such beans."""


@dataclass(frozen=True)
class Parameter:
    """One parameter and what it is given; ``type_`` is that of one message where the parameter takes a batch."""

    name: str
    role: Role
    type_: Any = None
    batch: bool = False
    keyword_only: bool = False
    default: Any = inspect.Parameter.empty
    header: str = ""


@dataclass(frozen=True)
class HandlerSignature:
    """What a handler takes. ``function`` is called with its parameters in their order.

    ``owner`` is the class of whose bean it is a method; None for a plain function.
    """

    function: Callable[..., Any]
    owner: type | None
    where: str
    is_async: bool
    is_batch: bool
    parameters: tuple[Parameter, ...]

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__qualname__", self.function))

    @property
    def payload(self) -> Any:
        """The type of one payload; None for a handler that takes the message only."""
        return next((parameter.type_ for parameter in self.parameters if parameter.role is Role.PAYLOAD), None)

    @property
    def beans(self) -> tuple[Any, ...]:
        """The types of the beans it needs."""
        return tuple(parameter.type_ for parameter in self.parameters if parameter.role is Role.BEAN)

    def bind(self, resolve: Callable[[Any], Any], converter: MessageConverter) -> HandlerBinding:
        """The signature with its beans, fetched by ``resolve(type)``, which raises when there is none."""
        return HandlerBinding(self, resolve, converter)


class HandlerBinding:
    """Turns messages into the arguments of one handler."""

    def __init__(self, signature: HandlerSignature, resolve: Callable[[Any], Any], converter: MessageConverter) -> None:
        self.signature = signature
        function = signature.function
        self._function = function if signature.owner is None else function.__get__(resolve(signature.owner))
        self._constants: list[Any] = []
        self._makers: list[tuple[int, Maker]] = []
        self._keywords = [parameter.name for parameter in signature.parameters if parameter.keyword_only]
        for index, parameter in enumerate(signature.parameters):
            self._constants.append(None)
            if parameter.role is Role.BEAN:
                self._constants[index] = resolve(parameter.type_)
            elif parameter.role is Role.DEFAULT:
                self._constants[index] = parameter.default
            else:
                self._makers.append((index, _maker(parameter, converter)))

    def arguments(self, message: MessageExt) -> list[Any]:
        """The arguments for one message; PayloadError when its body or a header cannot be read."""
        arguments = self._constants.copy()
        for index, make in self._makers:
            arguments[index] = make(message)
        return arguments

    def batch_arguments(self, messages: Sequence[MessageExt]) -> tuple[list[Any], dict[int, PayloadError]]:
        """The arguments for a batch, and by their index the messages that cannot be read and are not in it."""
        rows: list[list[Any]] = []
        invalid: dict[int, PayloadError] = {}
        for index, message in enumerate(messages):
            try:
                rows.append([make(message) for _, make in self._makers])
            except PayloadError as error:
                invalid[index] = error
        arguments = self._constants.copy()
        for column, (index, _) in enumerate(self._makers):
            arguments[index] = [row[column] for row in rows]
        return arguments, invalid

    def call(self, arguments: list[Any]) -> Any:
        """What the handler returns: for a coroutine function, the coroutine."""
        if not self._keywords:
            return self._function(*arguments)
        split = len(arguments) - len(self._keywords)
        return self._function(*arguments[:split], **dict(zip(self._keywords, arguments[split:], strict=True)))


def read_signature(
    function: Callable[..., Any], *, beans: Beans, converter: MessageConverter | None, owner: type | None = None
) -> HandlerSignature:
    """What each parameter is given, and every mistake in it. A function of ``owner`` is a method of its bean.

    ``converter`` says which types are payloads. None: one of the user's that is not there yet, so that any class may
    be a payload; :func:`unreadable_payload` tells when it is there.

    Raises ConfigurationError with all that is wrong with the signature; builds and calls nothing.
    """
    return _SignatureReader(function, beans, converter, owner).read()


def unreadable_payload(signature: HandlerSignature, converter: MessageConverter) -> Finding | None:
    """What is wrong with the payload of a handler for this converter, if anything is."""
    for parameter in signature.parameters:
        if parameter.role is Role.PAYLOAD:
            try:
                converter.check(parameter.type_)
            except PayloadError as error:
                what = f"listener {signature.name} takes a payload in parameter {parameter.name!r} that cannot be read"
                taken = f"take what {type(converter).__qualname__} can read, or return a bean of that type"
                return Finding(f"{what}: {error}", signature.where, taken)
    return None


class _SignatureReader:
    """Reads one signature and collects what is wrong with it."""

    def __init__(
        self, function: Callable[..., Any], beans: Beans, converter: MessageConverter | None, owner: type | None
    ) -> None:
        self.function = function
        self.owner = owner
        self.beans = beans
        self.converter = converter
        self.where = place_of(function)
        self.name = getattr(function, "__qualname__", str(function))
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inspect.unwrap(function))
        self.findings: list[Finding] = []

    def read(self) -> HandlerSignature:
        plain = inspect.unwrap(self.function)
        if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
            self.wrong("is a generator", "return the value instead of yielding it")
        if self.owner is not None and not self.beans.has(self.owner):
            self.wrong(f"is a method of {self.owner.__qualname__}, and there is no such bean", "mark the class @bean")
        raws = parameters_of(self.function)[0 if self.owner is None else 1 :]  # without self
        parameters = [parameter for raw in raws if (parameter := self.parameter(raw))]
        if not self.findings:
            self.check_together(parameters)
        if self.findings:
            raise ConfigurationError(self.findings)
        is_batch = any(parameter.batch for parameter in parameters)
        return HandlerSignature(self.function, self.owner, self.where, self.is_async, is_batch, tuple(parameters))

    def wrong(self, what: str, fix: str) -> None:
        self.findings.append(Finding(f"listener {self.name} {what}", self.where, fix))

    def parameter(self, raw: inspect.Parameter) -> Parameter | None:
        """The parameter and its role, or None with a finding."""
        has_default = raw.default is not inspect.Parameter.empty
        found = partial(
            Parameter, raw.name, keyword_only=raw.kind is inspect.Parameter.KEYWORD_ONLY, default=raw.default
        )
        try:
            hint = hint_of(self.function, raw)
        except UnresolvedHintError as error:
            if has_default:
                return found(Role.DEFAULT)
            self.wrong(
                f"has a parameter whose type is not known at run time: {error}",
                f"import or define {error.annotation} at the top of the module, not under TYPE_CHECKING",
            )
            return None
        if hint is inspect.Parameter.empty:
            if has_default:
                return found(Role.DEFAULT)
            self.wrong(
                f"has a parameter {raw.name!r} without a type, and parameters are bound by their type",
                f"annotate it: {PAYLOAD_TYPES}; MessageExt; Annotated[str, Header(...)]; or the type of a bean",
            )
            return None
        if header := _header_in(hint):
            return found(Role.HEADER, hint, header=header) if self.check_header(raw.name, hint, header) else None
        if (bean := self.bean_in(hint)) is not None:
            return found(Role.BEAN, bean) if self.check_sync(raw.name, bean) else None
        if hint in (MessageExt, Message):
            return found(Role.MESSAGE_EXT if hint is MessageExt else Role.MESSAGE)
        if has_default:
            return found(Role.DEFAULT)
        item = _item_of_list(hint)
        if item in (MessageExt, Message):
            return found(Role.MESSAGE_EXT if item is MessageExt else Role.MESSAGE, batch=True)
        payload = hint if item is None else item
        if not is_payload(payload) and _without_none(hint) != hint:  # a bean that may be absent, and is
            return replace(found(Role.DEFAULT), default=None)
        return found(Role.PAYLOAD, payload, batch=item is not None) if self.check_payload(raw.name, payload) else None

    def bean_in(self, hint: Any) -> Any:
        """The type under which the container has a bean for the hint; None when it has none."""
        return next((candidate for candidate in (hint, _without_none(hint)) if self.beans.has(candidate)), None)

    def check_sync(self, name: str, bean: Any) -> bool:
        if not self.is_async and isinstance(bean, type) and issubclass(bean, NEEDS_A_LOOP):
            self.wrong(
                f"is a plain def and takes {bean.__name__} in parameter {name!r}, which has coroutines only",
                f"declare it with async def and await {name}.send(...); or return the payload under @send_to",
            )
            return False
        return True

    def check_header(self, name: str, hint: Any, header: str) -> bool:
        try:
            TypeAdapter[Any](hint)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            self.wrong(
                f"takes header {header!r} in parameter {name!r} as a type that no text can become: "
                f"{str(error).splitlines()[0]}",
                "take str, int, float, bool, datetime, timedelta or an Enum",
            )
            return False
        return True

    def check_payload(self, name: str, payload: Any) -> bool:
        if payload is list:
            self.wrong(
                f"takes a list without saying of what in parameter {name!r}", "write list[Departure], list[dict]"
            )
            return False
        if not is_payload(payload):
            who = f"parameter {name} of listener {self.name}"
            known = self.beans.left_out(payload, who, self.where) or self.beans.ambiguous(payload, who, self.where)
            if known is not None:
                self.findings.append(known)
            elif self.converter is None:
                return True
            else:
                self.wrong(
                    f"has a parameter {name!r} of type {type_name(payload)}, which is neither a payload nor a bean",
                    f"return {type_name(payload)} from a function marked @bean; a payload is {PAYLOAD_TYPES}",
                )
            return False
        try:
            if self.converter is not None:
                self.converter.check(payload)
        except PayloadError as error:
            self.wrong(f"takes a payload in parameter {name!r} that cannot be read: {error}", f"take {PAYLOAD_TYPES}")
            return False
        return True

    def check_together(self, parameters: Sequence[Parameter]) -> None:
        payloads = [parameter for parameter in parameters if parameter.role is Role.PAYLOAD]
        messages = [parameter for parameter in parameters if parameter.role in (Role.MESSAGE_EXT, Role.MESSAGE)]
        if len(payloads) > 1:
            named = " and ".join(f"{payload.name}: {type_name(payload.type_)}" for payload in payloads)
            self.wrong(
                f"has more than one payload: {named}",
                "leave one of them; what is to be injected must be a bean: return it from a function marked @bean",
            )
        elif not payloads and not messages:
            given = [f"{each.name} is given by a bean" for each in parameters if each.role is Role.BEAN]
            self.wrong(
                f"takes neither a payload nor a message{': ' if given else ''}{', '.join(given)}",
                f"give it a parameter of {PAYLOAD_TYPES}, or MessageExt",
            )
        takers = [*payloads, *messages]
        if any(taker.batch for taker in takers):
            for taker in takers:
                if not taker.batch:
                    single = "MessageExt" if taker.role is not Role.PAYLOAD else type_name(taker.type_)
                    self.wrong(
                        f"takes a batch, and one {single} in parameter {taker.name!r}", f"take list[{single}] there too"
                    )
            for header in (parameter for parameter in parameters if parameter.role is Role.HEADER):
                self.wrong(
                    f"takes a batch, and one header {header.header!r} in parameter {header.name!r}",
                    "take list[MessageExt] and read each message's properties",
                )


def is_payload(hint: Any) -> bool:
    """Whether a body can be read as ``hint``: one of the types that a handler's payload may have."""
    origin = get_origin(hint)
    if origin is Annotated:
        return is_payload(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        return bool(members) and all(is_payload(member) for member in members)
    if alias := getattr(hint, "__value__", None):  # type Event = Departure | Arrival (Python 3.12)
        return is_payload(alias)
    kind = origin or hint
    if not isinstance(kind, type):
        return False
    return (
        kind in (str, bytes, dict, collections.abc.Mapping)
        or issubclass(kind, BaseModel)
        or dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
    )


def type_name(hint: Any) -> str:
    """A type as a user writes it."""
    return hint.__qualname__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def _header_in(hint: Any) -> str | None:
    if get_origin(hint) is Annotated:
        return next((extra.name for extra in get_args(hint)[1:] if isinstance(extra, Header)), None)
    return None


def _item_of_list(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is list else None


def _without_none(hint: Any) -> Any:
    """``T`` of ``T | None``, of ``Annotated[T, ...] | None`` likewise; any other hint as it is."""
    if get_origin(hint) in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        if len(members) == 1 and len(members) < len(get_args(hint)):
            return members[0]
    return hint


def _maker(parameter: Parameter, converter: MessageConverter) -> Maker:
    """How the parameter's value comes out of one message."""
    match parameter.role:
        case Role.MESSAGE_EXT:
            return lambda message: message
        case Role.MESSAGE:
            return _plain_message
        case Role.HEADER:
            return _header_reader(parameter)
        case _:
            type_, read = parameter.type_, converter.from_body
            return lambda message: read(message.body, type_)


def _plain_message(message: MessageExt) -> Message:
    own = {name: value for name, value in message.properties.items() if name not in RESERVED_PROPERTIES}
    return Message(message.topic, message.body, tag=message.tag, keys=message.keys, properties=own, flag=message.flag)


def _header_reader(parameter: Parameter) -> Maker:
    name, default = parameter.header, parameter.default
    adapter = TypeAdapter[Any](parameter.type_)
    required = default is inspect.Parameter.empty
    if required:
        try:
            default = adapter.validate_python(None)  # Annotated[str | None, Header("x")] is None when it is missing
            required = False
        except ValidationError:
            pass

    def read(message: MessageExt) -> Any:
        text = message.properties.get(name)
        if text is None:
            if required:
                raise PayloadError(f"header {name!r} is missing")
            return default
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            raise PayloadError(f"header {name!r} cannot be read: {describe_validation_error(error)}") from None

    return read
