"""Health: what an application is asked by who decides whether it gets work, as data.

A part that can be ill is a bean of the type :class:`HealthIndicator`: ours (clients, embedded servers, listeners,
background work, the event loop), those of other distributions, and the user's own. The application is ready when all of
them are, those excepted that do not count (``counts``).

Source: Spring Boot 3 Actuator ``HealthIndicator``, ``Health``, ``Status`` (names and their meaning).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Self

from rocketbox.boot.masking import mask
from rocketbox.safe_repr import safe_repr

__all__ = ["ApplicationHealth", "Health", "HealthIndicator", "HealthStatus", "masked_health"]


TRIES = 3


class HealthStatus(Enum):
    UP = "UP"
    DOWN = "DOWN"
    OUT_OF_SERVICE = "OUT_OF_SERVICE"
    """It is well, and does nothing because somebody wants so: paused, stopping."""
    UNKNOWN = "UNKNOWN"
    """It cannot be said yet; that alone keeps nothing from being ready."""


_WORST_FIRST = (HealthStatus.DOWN, HealthStatus.OUT_OF_SERVICE, HealthStatus.UNKNOWN, HealthStatus.UP)


@dataclass(frozen=True)
class Health:
    """How a part is: ``reasons`` are sentences for people, ``details`` data for programs.

    One that has ``components`` is as the worst of them is.
    """

    status: HealthStatus = HealthStatus.UP
    reasons: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)
    components: Mapping[str, Health] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.status, HealthStatus):
            raise TypeError(f"status takes a HealthStatus, not {self.status!r}: write Health.down(...), or Health.up()")
        given: object = self.reasons
        if isinstance(given, str):
            raise TypeError("reasons takes a tuple of sentences, and was given one text: write (text,), or Health.down")

    @classmethod
    def up(cls, **details: object) -> Self:
        """All is well."""
        return cls(details=details)

    @classmethod
    def down(cls, reason: str, *more: str, **details: object) -> Self:
        """It does not work, and why."""
        return cls(HealthStatus.DOWN, (reason, *more), details)

    @classmethod
    def of(cls, components: Mapping[str, Health], **details: object) -> Self:
        """What several parts are together, with the reasons of all of them."""
        statuses = {each.status for each in components.values()}
        worst = next((status for status in _WORST_FIRST if status in statuses), HealthStatus.UP)
        reasons = tuple(reason for each in components.values() for reason in each.reasons)
        return cls(worst, reasons, details, dict(components))

    @property
    def works(self) -> bool:
        """Whether it is as it should be, as far as that is known."""
        return self.status in (HealthStatus.UP, HealthStatus.UNKNOWN)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON; what is empty is left out."""
        components = {name: each.as_dict() for name, each in self.components.items()}
        parts = {"reasons": list(self.reasons), "details": dict(self.details), "components": components}
        return {"status": self.status.value, **{name: part for name, part in parts.items() if part}}


class HealthIndicator(ABC):
    """Says how one part of the application is: a bean.

    ``name`` is what it is called in the health of the application. Where ``counts`` is False it is shown, and keeps the
    application from being ready no more than if it were not there.
    """

    name: str
    counts: bool = True

    @abstractmethod
    def health(self) -> Health:
        """How it is now. Asked often, in the event loop: it must neither wait nor block."""


@dataclass(frozen=True)
class ApplicationHealth:
    """How an application is: whether it is ready for work, if not why not, and each of its parts."""

    ready: bool
    reasons: tuple[str, ...] = ()
    components: Mapping[str, Health] = field(default_factory=dict)

    @classmethod
    def not_ready(cls, reason: str) -> Self:
        """Of an application that has no parts, because it does not run."""
        return cls(False, (reason,))

    @classmethod
    def of(cls, indicators: Iterable[HealthIndicator], *, not_because: Sequence[str] = ()) -> Self:
        """What the indicators say, and what else keeps the application from being ready."""
        components: dict[str, Health] = {}
        reasons = list(not_because)
        for indicator in indicators:
            name = _free_name(str(getattr(indicator, "name", type(indicator).__name__)), components.__contains__)
            components[name] = health = _ask(indicator, name)
            if indicator.counts and not health.works:
                reasons += health.reasons or [f"{name} is {health.status.value}"]
        return cls(not reasons, tuple(reasons), components)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON: ``{"ready": ..., "reasons": [...], "components": {...}}``."""
        components = {name: health.as_dict() for name, health in self.components.items()}
        return {"ready": self.ready, "reasons": list(self.reasons), "components": components}


def masked_health(health: ApplicationHealth, secrets: Collection[str]) -> ApplicationHealth:
    """The same as it may be shown: errors in it may quote what a user's own code said."""
    if not secrets:
        return health
    components = {name: _masked_part(each, secrets) for name, each in health.components.items()}
    return replace(health, reasons=tuple(mask(each, secrets) for each in health.reasons), components=components)


def _masked_part(part: Health, secrets: Collection[str]) -> Health:
    return replace(
        part,
        reasons=tuple(mask(each, secrets) for each in part.reasons),
        details={name: _masked(value, secrets) for name, value in part.details.items()},
        components={name: _masked_part(each, secrets) for name, each in part.components.items()},
    )


def _masked(value: object, secrets: Collection[str]) -> object:
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, str):
        return mask(value, secrets)
    if isinstance(value, Mapping):
        return {
            mask(key, secrets) if isinstance(key, str) else key: _masked(each, secrets) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        inner = [_masked(each, secrets) for each in value]
        return inner if isinstance(value, list) else tuple(inner)
    text = safe_repr(value)
    masked = mask(text, secrets)
    return value if masked == text else masked


def _free_name(name: str, is_taken: Callable[[str], bool]) -> str:
    free, number = name, 1
    while is_taken(free):
        number += 1
        free = f"{name}-{number}"
    return free


def _ask(indicator: HealthIndicator, name: str) -> Health:
    """What an indicator says; one that raises, or says something else than a Health, is down."""
    for left in reversed(range(TRIES)):
        try:
            told: object = indicator.health()
            break
        except Exception as error:
            # Of a service in the background other threads ask, and a table may change while one of them reads it.
            if not (left and isinstance(error, RuntimeError)):
                return Health.down(f"{name}: its health cannot be told: {safe_repr(error)}")
    if isinstance(told, Health):
        return told
    if hasattr(told, "close"):  # a coroutine, which would complain that nobody awaits it
        told.close()
    return Health.down(f"{name}: its health() returned {type(told).__name__}, and must return a Health without waiting")
