"""From messages to the arguments of a handler: what each parameter's value comes out of.

Which parameter is what was decided by ``binding``. Beans are asked for at each call by what the container gives for
that once: an override counts from the next message on, and costs nobody more than a call of some 50 ns.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from rocketbox.bean_methods import BeanMethod
from rocketbox.listeners.payload_types import type_name
from rocketbox.listeners.signature import HandlerSignature, Parameter, Role
from rocketbox.message import MessageExt
from rocketbox.template import MessageConverter, PayloadError
from rocketbox.template.content_types import NAMES_CONTENT_TYPE, content_type_of, read_payload
from rocketbox.template.converters import describe_validation_error
from rocketbox.template.forwarding import as_message
from rocketbox.template.spring_headers import OF_THE_MESSAGE

__all__ = ["HandlerBinding"]

Maker = Callable[[MessageExt], Any]


class HandlerBinding:
    """Turns messages into the arguments of one handler, and calls it.

    ``provider(type)`` is what gives the bean, when it is called; it raises when there is none.
    """

    def __init__(
        self,
        signature: HandlerSignature,
        provider: Callable[[Any], Callable[[], Any]],
        converter: MessageConverter,
    ) -> None:
        self.signature = signature
        self.is_async, self.is_batch = signature.is_async, signature.is_batch
        self._function = signature.function
        self._owner = None if signature.owner is None else provider(signature.owner)
        self._method = BeanMethod(signature.function, signature.owner)
        self._keywords = [parameter.name for parameter in signature.parameters if parameter.keyword_only]
        plain = not self._keywords and self._owner is None
        self.positional: Callable[..., Any] | None = self._function if plain else None
        """What is called, where all arguments are given by their position: a step less on the fast path."""
        self._before: Callable[[], None] | None = None
        self._constants: list[Any] = []
        self._beans: list[tuple[int, Callable[[], Any]]] = []
        self._makers: list[tuple[int, Maker]] = []
        for index, parameter in enumerate(signature.parameters):
            self._constants.append(None)
            if parameter.role is Role.BEAN:
                self._beans.append((index, provider(parameter.type_)))
            elif parameter.role is Role.DEFAULT:
                self._constants[index] = parameter.default
            else:
                self._makers.append((index, _maker(parameter, converter)))
        self._only = self._makers[0][1] if len(self._makers) == len(signature.parameters) == 1 else None

    def arguments(self, message: MessageExt) -> list[Any]:
        """The arguments for one message; PayloadError when its body or a header cannot be read."""
        if self._only is not None:
            return [self._only(message)]
        arguments = self._constants.copy()
        for index, bean in self._beans:
            arguments[index] = bean()
        for index, make in self._makers:
            arguments[index] = make(message)
        return arguments

    def batch_arguments(self, messages: Sequence[MessageExt]) -> tuple[list[Any], dict[int, Exception]]:
        """The arguments for a batch, and by their index the messages that cannot be read and are not in it.

        PayloadError is what is wrong with one; any other is what a validator or a converter of the user's raised.
        """
        rows: list[list[Any]] = []
        invalid: dict[int, Exception] = {}
        for index, message in enumerate(messages):
            try:
                rows.append([make(message) for _, make in self._makers])
            except Exception as error:
                invalid[index] = error
        arguments = self._constants.copy()
        for index, bean in self._beans:
            arguments[index] = bean()
        for column, (index, _) in enumerate(self._makers):
            arguments[index] = [row[column] for row in rows]
        return arguments, invalid

    def with_check(self, before: Callable[[], None]) -> Self:
        """Another one of the same handler, that calls ``before`` first, with the arguments bound, in the same thread.

        What it raises counts as raised by the handler, which is not called then. It follows on what this one calls.
        """
        other = copy.copy(self)
        other.positional = None
        other._before = before if self._before is None else partial(_both, self._before, before)
        return other

    def call(self, arguments: list[Any]) -> Any:
        """What the handler returns: for a coroutine function, the coroutine."""
        if self._before is not None:
            self._before()
        function = self._function if self._owner is None else self._method.of(self._owner())
        if not self._keywords:
            return function(*arguments)
        split = len(arguments) - len(self._keywords)
        return function(*arguments[:split], **dict(zip(self._keywords, arguments[split:], strict=True)))


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def _maker(parameter: Parameter, converter: MessageConverter) -> Maker:
    """How the parameter's value comes out of one message."""
    match parameter.role:
        case Role.MESSAGE_EXT:
            return lambda message: message
        case Role.MESSAGE:
            return as_message
        case Role.HEADER:
            return _header_reader(parameter)
        case _:
            return _payload_reader(parameter, converter)


def _payload_reader(parameter: Parameter, converter: MessageConverter) -> Maker:
    type_, default, from_body = parameter.type_, parameter.default, converter.from_body

    def read_as_it_says(message: MessageExt) -> Any:
        return read_payload(converter, message.body, type_, content_type_of(message))

    def read(message: MessageExt) -> Any:  # on the fast path: one look, and no further call
        if NAMES_CONTENT_TYPE in message.raw_properties:
            return read_as_it_says(message)
        return from_body(message.body, type_)

    if default is not inspect.Parameter.empty:
        return lambda message: read(message) if message.body else default
    if not parameter.batch or type_ in (str, bytes):
        return read

    def read_one_of_a_batch(message: MessageExt) -> Any:
        try:
            return read(message)
        except PayloadError as error:
            if not message.body.lstrip().startswith(b"["):
                raise
            item = type_name(type_)
            raise PayloadError(
                f"{error}; the body is an array, and list[{item}] is a batch of messages that hold one {item} each: "
                f"for one message with an array take a pydantic RootModel[list[{item}]] of your own"
            ) from None

    return read_one_of_a_batch


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

    of_message = OF_THE_MESSAGE.get(name)

    def read(message: MessageExt) -> Any:
        text = message.properties.get(name) if of_message is None else of_message(message)
        if text is None:
            if required:
                raise PayloadError(f"header {name!r} is missing")
            return default
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            raise PayloadError(f"header {name!r} cannot be read: {describe_validation_error(error)}") from None

    return read
