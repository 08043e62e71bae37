"""What takes the places of beans in a plan: objects by the hints that ask for a bean, and overrides of an earlier plan.

It is planned as an object that is there already, so that conditions see it; that it is neither built, started nor
closed is the business of ``boot.bean_providers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rocketbox.boot.bean_providers import BeanProvider, BeanProviders, constant, overriding
from rocketbox.boot.definitions import BeanDefinition, Style, define_instance
from rocketbox.boot.dependencies import Dependency, dependency_of, fits, hint_name, is_bean_type
from rocketbox.boot.planning import Plan
from rocketbox.errors import Finding
from rocketbox.safe_repr import safe_repr

__all__ = ["Overrides", "Replacement", "replacements_in"]


@dataclass(frozen=True)
class Replacement:
    """A bean of an earlier plan of the application, and dependency-injector's providers that override it.

    ``made_of`` are the beans of that plan that these ask for.
    """

    bean: BeanDefinition
    overriding: tuple[BeanProvider, ...]
    made_of: tuple[BeanDefinition, ...] = ()

    def findings(self) -> Iterator[Finding]:
        """What is wrong with it: the beans of that plan never start, so that nothing can be made of them."""
        if self.made_of:
            names = " and ".join(bean.label for bean in self.made_of)
            what = f"the override of bean {self.bean.label} asks app.container for bean {names}, which a run starts"
            where = ", ".join(dict.fromkeys(bean.where for bean in (self.bean, *self.made_of)))
            yield Finding(what, where, "override it by an object, or by providers that ask for no bean")


def replacements_in(providers: BeanProviders) -> list[Replacement]:
    """What overrides beans now, in dependency-injector's way: for other plans of the same application."""
    started = {
        id(providers[bean]): bean
        for bean in providers
        if bean.style is not Style.INSTANCE and not overriding(providers[bean])
    }

    def asked_for(by: Sequence[Any]) -> Iterator[BeanDefinition]:
        for each in (inner for outer in by for inner in (outer, *outer.traverse())):
            if id(each) in started:
                yield started[id(each)]

    return [
        Replacement(bean, by, tuple(dict.fromkeys(asked_for(by))))
        for bean in providers
        if (by := overriding(providers[bean]))
    ]


class Overrides:
    """What takes the places of beans in the plans of one container.

    Before a plan :meth:`begin`; objects find their places in a first one, which is then made again with them.
    ``in_place`` are the beans that are there already in the places of others, with what provides them.
    """

    def __init__(self) -> None:
        self.in_place: dict[BeanDefinition, tuple[BeanProvider, ...]] = {}
        self._objects: list[tuple[Any, Any]] = []
        self._replacements: list[Replacement] = []
        self._wrong: list[Finding] = []

    @property
    def are_objects(self) -> bool:
        """Whether there are some whose places only a plan tells."""
        return bool(self._objects)

    def put(self, hint: Any, value: Any) -> None:
        """Put an object in the place of the bean that this hint asks for, or add it where there is no such bean."""
        self._objects.append((hint, value))

    def replace(self, replacements: Iterable[Replacement]) -> None:
        """Take over what overrides beans of another plan of the same application."""
        self._replacements += replacements

    def begin(self) -> None:
        """Know of no plan yet."""
        self.in_place = {each.bean.replaced_by(None): each.overriding for each in self._replacements}
        self._wrong = []

    def take_places(self, plan: Plan) -> None:
        """Find for each object the bean that it stands for."""
        self._wrong = [finding for hint, value in self._objects for finding in self._take_place(hint, value, plan)]

    def findings(self) -> list[Finding]:
        """What is wrong with them."""
        left = list(self.in_place.values())
        kept = [each for each in self._replacements if any(each.overriding is one for one in left)]
        return [*self._wrong, *(finding for each in kept for finding in each.findings())]

    def _take_place(self, hint: Any, value: Any, plan: Plan) -> Iterator[Finding]:
        if isinstance(hint, str):
            what = f"an override is for the text {hint!r}, and beans are found by their types"
            fix = f'write the type, or to mean one by its name Annotated[TheType, Qualifier("{hint}")]'
            yield Finding(what, None, fix)
            return
        asked = dependency_of(hint)
        if not is_bean_type(asked.type_):
            what = f"an override is for {_shown(hint)}, and beans are found by their types"
            yield Finding(what, None, "write the type that a parameter would have: beans={Desk: FakeDesk()}")
            return
        if asked.every:
            name = hint_name(asked.type_)
            what = f"an override is for list[{name}], which asks for all of them, and one object takes the place of one"
            yield Finding(what, None, f'write {name}, or Annotated[{name}, Qualifier("the name")] for each of several')
            return
        found = plan.candidates(asked)
        if len(found) > 1:
            yield plan.ambiguous(asked, found, "an override", None)
            return
        if not found:  # one that was left out, if there is no doubt about which
            found = [bean for bean, _ in plan.left_out if fits(bean.provides, asked.type_) and _is_called(bean, asked)]
        if len(found) == 1:
            taking = found[0].replaced_by(None)
        elif asked.qualifier is None:
            taking = define_instance(None, asked.type_, hint_name(asked.type_), "an override")
        else:  # a name that nobody has is a mistake
            yield plan.missing(asked, "an override", None)
            return
        others = {bean: each for bean, each in self.in_place.items() if bean.place != taking.place}
        self.in_place = {**others, taking: (constant(value),)}


def _shown(hint: Any) -> str:
    return hint_name(hint) if isinstance(hint, type) else safe_repr(hint)


def _is_called(bean: BeanDefinition, asked: Dependency) -> bool:
    """Whether the qualifier of who asks, or none, means this one."""
    if asked.qualifier is None:
        return not bean.cluster_name
    return asked.qualifier in (bean.cluster_name, bean.name)
