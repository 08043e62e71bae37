"""Copies of payloads as handlers get them: what a handler makes of its own is not what a test looks at."""

from __future__ import annotations

import copy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from rocketbox.listeners.signature import HandlerSignature, Parameter, Role
from rocketbox.message import MessageExt

__all__ = ["PayloadCopies", "copied"]

NEVER_CHANGE = frozenset(
    {str, bytes, int, float, bool, complex, type(None), date, datetime, time, timedelta, Decimal, UUID}
)


class PayloadCopies:
    """Of the handlers of one harness."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[HandlerSignature, tuple[int, ...]]] = {}  # by identity of the signature

    def places(self, signature: HandlerSignature) -> tuple[int, ...]:
        """Which arguments of a handler are payloads that it could change."""
        found = self._places.get(id(signature))
        if found is None:
            places = tuple(index for index, each in enumerate(signature.parameters) if _may_change(each))
            found = self._places[id(signature)] = signature, places
        return found[1]


def _may_change(parameter: Parameter) -> bool:
    if parameter.role is Role.PAYLOAD:
        return parameter.batch or parameter.type_ not in NEVER_CHANGE
    return parameter.role in (Role.MESSAGE, Role.MESSAGE_EXT)


def copied(value: Any) -> Any:
    """A copy with all that is in it; what cannot be copied as it is, of a list each by itself."""
    if type(value) is list:
        return [copied(each) for each in value]
    if isinstance(value, MessageExt):
        return copy.copy(value)
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever an object of the user's has against it
        return value
