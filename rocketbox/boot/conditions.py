"""Conditions on beans: named values that say whether they hold, why, and which key would mend it when they do not.

They stand in ``@bean(...)`` and are evaluated by ``boot.planning`` in order of registration; the words of each verdict
go into the conditions report and into the error when somebody misses the bean.

Source: Spring Boot 3 ``ConditionalOnProperty``, ``ConditionalOnMissingBean`` and their kin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from rocketbox.boot.profile_expressions import accepts, fault_of_expression, profiles_in

__all__ = [
    "Condition",
    "ConditionContext",
    "Verdict",
    "any_of",
    "not_",
    "on_bean",
    "on_missing_bean",
    "on_module",
    "on_profile",
    "on_property",
    "profiles_named",
]


@dataclass(frozen=True)
class Verdict:
    """Whether a condition holds, and why. ``key`` is the setting that would mend it, ``fix`` what to do, if any.

    ``cause`` is what the reason comes down to, where that is another verdict.
    """

    matched: bool
    reason: str
    key: str | None = None
    fix: str | None = None
    cause: str = ""

    @property
    def root(self) -> str:
        """The cause, or the reason itself where there is nothing behind it."""
        return self.cause or self.reason


class ConditionContext(Protocol):
    """What a condition can ask about, for one bean definition."""

    def key(self, key: str) -> str:
        """The key as it stands for this definition's cluster."""

    def text(self, key: str) -> str | None:
        """What the settings say under a key; None when nothing is written there. Defaults do not count."""

    def profiles(self) -> Collection[str]:
        """The active profiles."""

    def bean_names(self, kind: Any) -> Sequence[str]:
        """The beans of this type that are registered so far, in this definition's cluster."""

    def why_missing(self, kind: Any) -> Verdict | None:
        """Why a bean of this type was not built, if there is a definition of one."""


class Condition(Protocol):
    """Something that holds or does not, for one bean definition."""

    def evaluate(self, context: ConditionContext) -> Verdict: ...


def _type_name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


@dataclass(frozen=True)
class _OnProperty:
    written: str
    having: str | None
    missing: bool
    to: str | None

    def evaluate(self, context: ConditionContext) -> Verdict:
        key = context.key(self.written)
        text = context.text(key)
        needed = self.having or self.to
        fix = f"set {key} to {needed}" if needed else f"set {key}"
        if text is None:
            return Verdict(self.missing, f"{key} is not set", None if self.missing else key, fix)
        if self.having is None:
            matched = text.strip().lower() != "false"
            return Verdict(matched, f"{key} is set" if matched else f"{key} is false", key, fix)
        matched = text.strip().lower() == self.having.lower()
        reason = f"{key} is {self.having}" if matched else f"{key} is not {self.having}"
        return Verdict(matched, reason, key, fix)


def on_property(key: str, having: str | None = None, missing: bool = False, *, to: str | None = None) -> Condition:
    """Holds when ``key`` is written somewhere and not ``false``; with ``having``, when it is that (any case).

    ``missing`` is the answer when nothing is written. Defaults of models do not count as written. ``to`` says what the
    key could be set to, for the report and for errors.
    """
    return _OnProperty(key, having, missing, to)


@dataclass(frozen=True)
class _OnMissingBean:
    kind: Any

    def evaluate(self, context: ConditionContext) -> Verdict:
        names = context.bean_names(self.kind)
        if names:
            return Verdict(False, f"{_type_name(self.kind)} is provided already, by {', '.join(names)}")
        return Verdict(True, f"nothing else provides {_type_name(self.kind)}")


def on_missing_bean(kind: Any) -> Condition:
    """Holds when no bean of this type is registered before: a user's own takes the place of this one."""
    return _OnMissingBean(kind)


@dataclass(frozen=True)
class _OnBean:
    kind: Any

    def evaluate(self, context: ConditionContext) -> Verdict:
        names = context.bean_names(self.kind)
        if names:
            return Verdict(True, f"{_type_name(self.kind)} is provided by {', '.join(names)}")
        why = context.why_missing(self.kind)
        reason = f"nothing provides {_type_name(self.kind)}"
        if why is None:
            return Verdict(False, reason, fix=f"write a @bean function that returns {_type_name(self.kind)}")
        return Verdict(False, f"{reason}: {why.reason}", why.key, why.fix, why.root)


def on_bean(kind: Any) -> Condition:
    """Holds when a bean of this type is registered before."""
    return _OnBean(kind)


@dataclass(frozen=True)
class _OnModule:
    name: str

    def evaluate(self, context: ConditionContext) -> Verdict:
        try:
            found = find_spec(self.name) is not None
        except ModuleNotFoundError:  # a package above it is missing
            found = False
        if found:
            return Verdict(True, f"module {self.name} is installed")
        return Verdict(False, f"module {self.name} is not installed", fix=f"install what provides module {self.name}")


def on_module(name: str) -> Condition:
    """Holds when a module can be found; it is not imported."""
    return _OnModule(name)


@dataclass(frozen=True)
class _OnProfile:
    names: tuple[str, ...]

    def evaluate(self, context: ConditionContext) -> Verdict:
        active = context.profiles()
        wanted = " or ".join(self.names)
        matched = accepts(self.names, active)
        now = ", ".join(active) or "none"
        if matched:
            return Verdict(True, f"profile {wanted} (active: {now})")
        return Verdict(
            False,
            f"profile {wanted} is not active (active: {now})",
            "rocketbox.profiles.active",
            f"make profile {wanted} active with rocketbox.profiles.active",
        )


def on_profile(*names: str) -> Condition:
    """Holds when one of the profiles is active; ``!prod`` holds when prod is not, ``prod & eu`` when both are."""
    for name in names:
        if fault := fault_of_expression(name):
            raise ValueError(
                f"on_profile({name!r}): {fault}; write a profile, '!prod', or 'prod & eu' for both, "
                "and several arguments where one of them is enough"
            )
    return _OnProfile(names)


@dataclass(frozen=True)
class _AnyOf:
    conditions: tuple[Condition, ...]

    def evaluate(self, context: ConditionContext) -> Verdict:
        verdicts = [condition.evaluate(context) for condition in self.conditions]
        for verdict in verdicts:
            if verdict.matched:
                return verdict
        fixes = list(dict.fromkeys(verdict.fix for verdict in verdicts if verdict.fix))
        return Verdict(
            False,
            " and ".join(verdict.reason for verdict in verdicts),
            next((verdict.key for verdict in verdicts if verdict.key), None),
            ", or ".join(fixes) or None,
        )


def any_of(*conditions: Condition) -> Condition:
    """Holds when one of the conditions does."""
    return _AnyOf(conditions)


@dataclass(frozen=True)
class _Not:
    condition: Condition

    def evaluate(self, context: ConditionContext) -> Verdict:
        verdict = self.condition.evaluate(context)
        if not verdict.matched:
            return Verdict(True, verdict.reason)
        return Verdict(False, verdict.reason, verdict.key, f"change {verdict.key}" if verdict.key else None)


def not_(condition: Condition) -> Condition:
    """Holds when the condition does not."""
    return _Not(condition)


def profiles_named(condition: Condition) -> Iterator[str]:
    """The profiles that a condition asks about, by whatever conditions it is made of; those of others are not known."""
    match condition:
        case _OnProfile(names):
            yield from profiles_in(names)
        case _AnyOf(parts):
            for part in parts:
                yield from profiles_named(part)
        case _Not(part):
            yield from profiles_named(part)
