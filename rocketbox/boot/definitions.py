"""Bean definitions: what a marked function or class provides, what it needs, and how it is called.

Which of them become beans is decided in ``boot.planning``; building them is the business of ``boot.beans``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rocketbox.boot.conditions import Condition
from rocketbox.boot.dependencies import (
    Dependency,
    dependency_of,
    hint_name,
    misplaced_qualifier,
    provided_name,
    provided_type,
)
from rocketbox.boot.marks import BeanMark, Cluster, Phase, bean_mark, is_primary
from rocketbox.errors import Finding
from rocketbox.hints import parameters_of, place_of, resolve_hint, return_annotation

__all__ = ["BeanDefinition", "BeanParameter", "Source", "Style", "define", "define_instance"]


class Source(Enum):
    """Who brought a definition; the order in which they are considered."""

    INSTANCE = "instance"
    USER = "user"
    AUTO = "auto-configuration"


class Style(Enum):
    """How a bean comes from its function."""

    INSTANCE = "instance"
    PLAIN = "plain"
    ASYNC = "async"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "async generator"
    CONTEXT = "context manager"


_WITH_CLEAN_UP = (Style.GENERATOR, Style.ASYNC_GENERATOR, Style.CONTEXT)
_UNIONS = (typing.Union, types.UnionType)
_MANAGERS = (contextlib.AbstractContextManager, contextlib.AbstractAsyncContextManager)


@dataclass(frozen=True)
class BeanParameter:
    """One parameter of a bean function. ``dependency`` is None when it cannot be known; ``problem`` says why."""

    name: str
    dependency: Dependency | None
    has_default: bool
    positional_only: bool
    problem: str = ""
    fix: str = ""


@dataclass(frozen=True, eq=False)
class BeanDefinition:
    """One bean that may be built. ``provides`` is None when its return type cannot be resolved.

    ``origin`` is the distribution that brought it, empty for rocketbox's own and the user's; ``bundle`` are the names
    of all that came with it.
    """

    name: str
    provides: Any
    style: Style
    source: Source
    where: str
    target: Callable[..., Any] | None = None
    value: Any = None
    mark: BeanMark = field(default_factory=BeanMark)
    cluster: Cluster | None = None
    problem: str = ""
    fix: str = ""
    origin: str = ""
    bundle: tuple[str, ...] = ()
    primary: bool = False

    @property
    def place(self) -> tuple[str, str, str]:
        """What it has in common with the definition of the same bean in another plan of the application."""
        return self.name, self.cluster_name, self.where

    def replaced_by(self, value: Any) -> BeanDefinition:
        """An object that is there already in the place of this one."""
        cluster, primary = self.cluster, self.primary
        return BeanDefinition(
            self.name, self.provides, Style.INSTANCE, Source.INSTANCE, self.where, value=value, cluster=cluster,
            primary=primary,
        )  # fmt: skip

    @property
    def label(self) -> str:
        return f"{self.name} [{self.cluster.name}]" if self.cluster and self.cluster.name else self.name

    @property
    def module(self) -> str:
        return str(getattr(self.target, "__module__", ""))

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self.mark.conditions

    @property
    def phase(self) -> Phase:
        return self.mark.phase or Phase.BEANS

    @property
    def cluster_name(self) -> str:
        return self.cluster.name if self.cluster else ""

    def for_cluster(self, cluster: Cluster) -> BeanDefinition:
        return dataclasses.replace(self, cluster=cluster)

    def is_named(self, name: str | Callable[..., Any]) -> bool:
        """Whether an ``after``, ``before`` or exclusion means this definition."""
        if not isinstance(name, str):
            return name is self.target
        return name in (self.name, self.module, f"{self.module}.{self.name}", *self.bundle)

    def parameters(self) -> Sequence[BeanParameter]:
        """What it needs; its hints are looked at only now, when it is going to be built."""
        if self.target is None:
            return ()
        return _own_parameters(self.target) if _is_own(self.target) else _parameters(self.target)

    def problem_finding(self) -> Finding | None:
        """What is wrong with the definition itself."""
        if not self.problem:
            return None
        fix = self.fix or f"write def {self.name}(...) -> TheType"
        if self.provides is not None and (asked := dependency_of(self.provides)).every:
            fix = f"return a tuple[{hint_name(asked.type_)}, ...], or a class that has the list"
        return Finding(f"bean {self.name} {self.problem}", self.where, fix)


def _is_own(target: Callable[..., Any]) -> bool:
    """Whether it is rocketbox's own function. What is read of one is kept for the next start in this process.

    What others have written may change until then: a name that a hint is resolved by, or the mark.
    """
    return inspect.isfunction(target) and target.__module__.startswith("rocketbox.")


def _parameters(target: Callable[..., Any]) -> tuple[BeanParameter, ...]:
    found = []
    for parameter in parameters_of(target):
        asked, problem, fix = None, "", ""
        has_default = parameter.default is not inspect.Parameter.empty
        if parameter.annotation is inspect.Parameter.empty:
            problem = "it has no type"
        else:
            try:
                hint = resolve_hint(target, parameter.annotation)
                asked = dependency_of(hint)
                if (wrong := misplaced_qualifier(parameter.name, hint, parameter.default)) is not None:
                    asked, has_default, problem, fix = None, False, f"it {wrong[0]}", wrong[1]
            except Exception as error:  # evaluating an annotation can raise anything
                problem = f"its type {parameter.annotation} cannot be resolved: {error}"
        found.append(
            BeanParameter(
                parameter.name,
                asked,
                has_default,
                parameter.kind is inspect.Parameter.POSITIONAL_ONLY,
                problem,
                fix,
            )
        )
    return tuple(found)


_own_parameters = functools.cache(_parameters)


def define(
    target: Callable[..., Any], source: Source, origin: str = "", bundle: tuple[str, ...] = ()
) -> BeanDefinition:
    """The definition of a bean function or class; without a mark, one that has no conditions."""
    if _is_own(target):
        return _define_own(target, source, origin, bundle, os.getcwd())
    return _define(target, source, origin, bundle)


@functools.cache
def _define_own(
    target: Callable[..., Any], source: Source, origin: str, bundle: tuple[str, ...], folder: str
) -> BeanDefinition:
    """``folder`` is the working directory, which decides how its place is told."""
    return _define(target, source, origin, bundle)


def _define(target: Callable[..., Any], source: Source, origin: str, bundle: tuple[str, ...]) -> BeanDefinition:
    mark = bean_mark(target) or BeanMark()
    where = place_of(target)
    name = mark.name or str(getattr(target, "__name__", "bean"))
    if isinstance(target, type):
        return BeanDefinition(
            name,
            target,
            Style.PLAIN,
            source,
            where,
            target,
            mark=mark,
            origin=origin,
            bundle=bundle,
            primary=is_primary(target),
        )
    style, wrapped = _style(target)
    provides, problem = None, ""
    annotation = return_annotation(target)
    if annotation is inspect.Signature.empty:
        problem = "does not say what it provides: it has no return type"
    else:
        try:
            hint = resolve_hint(target, annotation)
        except Exception as error:  # evaluating an annotation can raise anything
            problem = f"has a return type that cannot be resolved: {annotation} ({error})"
        else:
            if typing.get_origin(hint) in _MANAGERS and style is Style.PLAIN:
                style, wrapped = Style.CONTEXT, True
            provides = provided_type(hint, wrapped=wrapped)
            name = mark.name or provided_name(hint) or name
            if provides in (None, type(None), Any, object) or typing.get_origin(provides) in _UNIONS:
                problem = f"does not say what it provides: its return type is {hint_name(provides)}"
            elif dependency_of(provides).every:
                every = hint_name(dependency_of(provides).type_)
                problem = f"is a list[{every}], which asks for all beans of type {every}, so that nobody could have it"
    fix = ""
    if not problem and not mark.close and style in _WITH_CLEAN_UP:
        problem = "says close=False, and it yields: what stands behind its yield closes it"
        fix = "leave out close=False, or return the bean instead of yielding it"
    return BeanDefinition(
        name, provides, style, source, where, target,
        mark=mark, problem=problem, fix=fix, origin=origin, bundle=bundle, primary=is_primary(target),
    )  # fmt: skip


def _style(target: Callable[..., Any]) -> tuple[Style, bool]:
    plain = inspect.unwrap(target)
    if inspect.isasyncgenfunction(target):
        return Style.ASYNC_GENERATOR, True
    if inspect.isgeneratorfunction(target):
        return Style.GENERATOR, True
    if plain is not target and (inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain)):
        return Style.CONTEXT, True  # @contextmanager or @asynccontextmanager stands around it, or another decorator
    if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(plain):
        return Style.ASYNC, False
    return Style.PLAIN, False


def define_instance(value: Any, provides: Any, name: str, where: str, cluster: Cluster | None = None) -> BeanDefinition:
    """The definition of an object that exists already; its life is the giver's concern."""
    return BeanDefinition(name, provides, Style.INSTANCE, Source.INSTANCE, where, value=value, cluster=cluster)
