"""What a handler takes and returns, as a value: ``binding`` reads it, ``arguments`` and ``dispatch`` call by it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rocketbox.hints import name_of

__all__ = ["UNKNOWN", "HandlerSignature", "Parameter", "Role"]

UNKNOWN = object()
"""The return type of a function that does not say it, or says it by a name that cannot be resolved."""


class Role(Enum):
    """What a parameter is given."""

    PAYLOAD = "payload"
    MESSAGE_EXT = "message"
    MESSAGE = "plain message"
    HEADER = "header"
    BEAN = "bean"
    DEFAULT = "default"


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

    ``owner`` is the hint of the bean whose method it is; None for a plain function.
    """

    function: Callable[..., Any]
    owner: Any
    where: str
    is_async: bool
    is_batch: bool
    parameters: tuple[Parameter, ...]
    returns: Any = UNKNOWN

    @property
    def name(self) -> str:
        return name_of(self.function)

    @property
    def payload(self) -> Any:
        """The type of one payload; None for a handler that takes the message only."""
        return next((parameter.type_ for parameter in self.parameters if parameter.role is Role.PAYLOAD), None)

    @property
    def beans(self) -> tuple[Any, ...]:
        """The types of the beans it needs."""
        return tuple(parameter.type_ for parameter in self.parameters if parameter.role is Role.BEAN)
