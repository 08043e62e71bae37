"""The text of values that are not ours, in messages of errors and logs: one that cannot be written out is named.

What a handler raised or returned may fail in its own ``__repr__`` or ``__str__`` (a row of a database whose session is
closed), and that must not take the place of what was to be told. Nor must ours: tools that show the
variables of each line have an object written out whose constructor has just failed.

Source: own design.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

__all__ = ["LONGEST_SAID", "also_when_unmade", "equal_by_fields", "one_line", "said_by_a_peer", "safe_repr", "safe_str"]

SelfT = TypeVar("SelfT")

LONGEST_SAID = 1000  # characters of what a peer says that an error or a line of the log repeats


def safe_repr(value: object) -> str:
    """``repr(value)``, or what it is and why that failed."""
    return _written(repr, value)


def safe_str(value: object) -> str:
    """``str(value)``, or what it is and why that failed."""
    return _written(str, value)


def also_when_unmade(write: Callable[[SelfT], str]) -> Callable[[SelfT], str]:
    """A ``__repr__`` that says so of an object whose constructor has failed, which lacks what ``write`` tells."""

    @wraps(write)
    def __repr__(self: Any) -> str:  # noqa: N807 - it is one
        try:
            return write(self)
        except AttributeError:
            return f"<{type(self).__qualname__} that was not made>"

    return __repr__


def equal_by_fields(self: object, other: object) -> bool:
    """The ``__eq__`` of a dataclass with secrets, set in its body: pytest tells the fields of one that compares by what
    ``dataclass`` has written.
    """
    return vars(self) == vars(other) if type(other) is type(self) else NotImplemented


def one_line(text: str) -> str:
    """What a peer has written, for a line of the log: what is not to be seen is escaped, so that it begins no other."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def said_by_a_peer(text: str) -> str:
    """As :func:`one_line`, and cut where it is long: a peer may say as much as a frame holds, again and again."""
    return one_line(text if len(text) <= LONGEST_SAID else f"{text[:LONGEST_SAID]}...")


def _written(write: Callable[[object], str], value: object) -> str:
    try:
        return write(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # as with what a handler raises
        kind, why = type(value).__qualname__, type(error).__qualname__
        return f"<{kind} that cannot be written out: its {write.__name__}() raised {why}>"
