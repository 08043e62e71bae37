"""The marks of the generic framework: ``bean``, ``configuration_properties``, ``Qualifier``; plain values, no work.

Importing this module loads the standard library only, and a marked function or class stays what it was. What the marks
mean is decided in ``boot.beans`` and ``boot.root_settings`` when an application starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from rocketbox.boot.conditions import Condition

__all__ = [
    "BeanMark",
    "Cluster",
    "Phase",
    "Qualifier",
    "bean",
    "bean_mark",
    "configuration_properties",
    "is_primary",
    "primary",
    "properties_prefix",
]

BEAN = "__rocketbox_bean__"
PRIMARY = "__rocketbox_primary__"
PROPERTIES = "__rocketbox_properties__"

TargetT = TypeVar("TargetT", bound=Callable[..., Any])
ClassT = TypeVar("ClassT", bound=type)


class Phase(IntEnum):
    """When something starts; stopping goes the other way. A bean starts in BEANS, or earlier if another needs it."""

    INFRASTRUCTURE = 1
    CLIENT = 2
    TEMPLATE = 3
    BEANS = 4
    STARTUP = 5
    LISTENERS = 6


@dataclass(frozen=True)
class Qualifier:
    """``Annotated[T, Qualifier("audit")]``: the bean of that name, or of the cluster of that name."""

    name: str


@dataclass(frozen=True)
class Cluster:
    """What a ``per_cluster`` bean function may ask for: which cluster it is built for.

    ``name`` is empty for the main one; ``prefix`` is where the cluster's keys stand.
    """

    name: str
    prefix: str


@dataclass(frozen=True)
class BeanMark:
    """What ``@bean`` said."""

    conditions: tuple[Condition, ...] = ()
    name: str | None = None
    after: tuple[str | Callable[..., Any], ...] = ()
    before: tuple[str | Callable[..., Any], ...] = ()
    per_cluster: bool = False
    phase: Phase | None = None
    close: bool = True


@overload
def bean(target: TargetT, /) -> TargetT: ...


@overload
def bean(
    *conditions: Condition,
    name: str | None = None,
    after: Sequence[str | Callable[..., Any]] = (),
    before: Sequence[str | Callable[..., Any]] = (),
    per_cluster: bool = False,
    phase: Phase | None = None,
    close: bool = True,
) -> Callable[[TargetT], TargetT]: ...


def bean(
    *conditions: Any,
    name: str | None = None,
    after: Sequence[str | Callable[..., Any]] = (),
    before: Sequence[str | Callable[..., Any]] = (),
    per_cluster: bool = False,
    phase: Phase | None = None,
    close: bool = True,
) -> Any:
    """Marks a function (its return type says what it provides) or a class as a bean, built once per application.

    Parameters are given by their types: ``T``, ``Annotated[T, Qualifier("name")]``, ``list[T]`` (all of them),
    ``T | None``. The function may be ``async``, or yield its bean once and clean up behind the ``yield``. A bean with
    ``__aenter__`` and ``__aexit__`` is entered at start and left at stop; of any other its ``aclose()`` or ``close()``
    is called at stop, if it has one that takes no arguments; one that has neither, and ``__enter__`` and ``__exit__``,
    is entered and left. A lock is left alone; so is what a function with ``close=False`` returns, which belongs to
    somebody else.

    ``conditions`` must all hold. ``name`` is the qualifier (default: the function's name). ``after`` and ``before``
    name bean functions, or modules of them, between which this one is considered and started. ``per_cluster`` makes
    one bean for each cluster, with the cluster's name as its qualifier. ``phase`` says when it starts.

    Raises TypeError for what is no condition.
    """
    if len(conditions) == 1 and callable(conditions[0]):
        if _makes_conditions(conditions[0]):
            name = conditions[0].__name__
            raise TypeError(f"@bean({name}) has no condition: call {name}, as in @bean(on_property('desk.name'))")
        return _mark(conditions[0], BeanMark())
    for condition in conditions:
        if not callable(getattr(condition, "evaluate", None)):
            raise TypeError(f"@bean takes conditions such as on_property(...), not {condition!r}; a name is name=...")
    mark = BeanMark(tuple(conditions), name, tuple(after), tuple(before), per_cluster, phase, close)
    return lambda target: _mark(target, mark)


def _makes_conditions(target: object) -> bool:
    """Whether it is a function such as ``on_property``, which is no bean function, and is called for a condition."""
    returned = getattr(target, "__annotations__", {}).get("return") if not isinstance(target, type) else None
    if returned == "Condition":  # others have classes of that name; ours may be known to type checkers alone
        returned = getattr(target, "__globals__", {}).get("Condition", returned)
    return returned == "Condition" or (
        getattr(returned, "__name__", "") == "Condition" and returned.__module__ == "rocketbox.boot.conditions"
    )


def _mark(target: TargetT, mark: BeanMark) -> TargetT:
    setattr(target, BEAN, mark)
    return target


def bean_mark(target: object) -> BeanMark | None:
    """The mark that ``@bean`` put on this very object; a subclass does not inherit that of its base."""
    mark = getattr(target, "__dict__", {}).get(BEAN)
    return mark if isinstance(mark, BeanMark) else None


def primary(target: TargetT) -> TargetT:
    """Marks the bean that is given where several of its type could be: ``@bean`` and ``@primary``, in any order.

    Who asks by name (``Qualifier``) or for all (``list[T]``) is given what they ask for.
    """
    setattr(target, PRIMARY, True)
    return target


def is_primary(target: object) -> bool:
    """Whether ``@primary`` stands on this very object."""
    return getattr(target, "__dict__", {}).get(PRIMARY) is True


def _name_of_class(given: object) -> str | None:
    return given.__name__ if isinstance(given, type) else None


def configuration_properties(prefix: str) -> Callable[[ClassT], ClassT]:
    """Binds the keys under ``prefix`` to a pydantic model: validated at start, and a bean of its own type.

    The bean is named as the prefix, for models that have a base class in common. Raises ValueError for a prefix that is
    none, and for a class that has one already; TypeError where it is left out.
    """
    if (class_name := _name_of_class(prefix)) is not None:
        raise TypeError(f'write @configuration_properties("desk") above {class_name}: its keys stand below a prefix')
    if not prefix or any(not part for part in prefix.split(".")):
        raise ValueError(f"configuration_properties needs a prefix such as 'desk' or 'desk.alerts', not {prefix!r}")

    def mark(class_: ClassT) -> ClassT:
        if (other := properties_prefix(class_)) is not None:
            raise ValueError(f"{class_.__name__} has the keys of {other!r}; write a subclass for those of {prefix!r}")
        setattr(class_, PROPERTIES, prefix)
        return class_

    return mark


def properties_prefix(class_: object) -> str | None:
    """The prefix that ``@configuration_properties`` gave this very class."""
    prefix = getattr(class_, "__dict__", {}).get(PROPERTIES)
    return prefix if isinstance(prefix, str) else None
