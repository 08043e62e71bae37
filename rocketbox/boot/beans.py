"""The container of beans: it takes definitions, plans, starts and hands out.

What makes a bean when it is asked for stands in ``boot.bean_providers``, what becomes of an object at its start and its
end in ``boot.entering``, what takes a bean's place in ``boot.overrides``. Starting goes phase by phase in an
``AsyncExitStack`` of the life cycle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import replace
from typing import Annotated, Any, TypeVar, cast

from rocketbox.boot.bean_failures import BeanFailures
from rocketbox.boot.bean_providers import BeanProvider, BeanProviders, constant, every_one
from rocketbox.boot.conditions import Condition, Verdict
from rocketbox.boot.definitions import BeanDefinition, Source, Style, define, define_instance
from rocketbox.boot.dependencies import Dependency, dependency_of, fits, hint_name
from rocketbox.boot.entering import EnteredBeans
from rocketbox.boot.failures import failure_findings
from rocketbox.boot.marks import Cluster, Phase, Qualifier
from rocketbox.boot.overrides import Overrides, Replacement
from rocketbox.boot.planning import Bundle, Plan, SettingsView, evaluate, make_plan
from rocketbox.boot.report import ConditionsReport
from rocketbox.clock import Clock
from rocketbox.errors import ConfigurationError, Finding, NotStartedError
from rocketbox.own_failures import failures_only

__all__ = ["BeanContainer", "Bundle", "SettingsView"]

_log = logging.getLogger(__name__)
BeanT = TypeVar("BeanT")


class BeanContainer:
    """The beans of one run of an application.

    Add definitions and objects, :meth:`plan`, then :meth:`start` each phase. ``prefix`` is where the main cluster's
    keys stand (``rocketmq``), ``clusters`` where those of further ones do, by name; conditions of ``per_cluster``
    beans are read with the one in place of the other.
    """

    def __init__(
        self,
        settings: SettingsView,
        clock: Clock,
        *,
        prefix: str = "",
        clusters: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._main = Cluster("", prefix)
        self._clusters = {name: Cluster(name, where) for name, where in (clusters or {}).items()}
        self._definitions: list[BeanDefinition] = []
        self._exclude: dict[str, str | None] = {}
        self._bundles: list[Bundle] = []
        self._plan: Plan | None = None
        self._overrides = Overrides()
        self.providers = BeanProviders(Plan(), {})
        """Of what was planned last."""
        self._started: set[BeanDefinition] = set()
        self._entered = EnteredBeans()
        self.failures = BeanFailures()

    # --- what there is -------------------------------------------------------------------------------------------

    def add(
        self, target: Callable[..., Any], *, automatic: bool = False, origin: str = "", bundle: Bundle | None = None
    ) -> None:
        """Take a function or class, marked or not, as a bean definition; ``automatic`` ones come after the users'.

        ``origin`` is the distribution that brought it, for the report, ``bundle`` what it came together with.
        """
        names = bundle.names if bundle is not None else ()
        self._definitions.append(define(target, Source.AUTO if automatic else Source.USER, origin, names))

    def add_bundle(self, bundle: Bundle) -> None:
        """Take the names by which auto-configurations are left out as a whole, or were."""
        self._bundles.append(bundle)

    def add_instance(
        self,
        value: Any,
        provides: Any = None,
        *,
        name: str | None = None,
        where: str = "the application",
        cluster: str | None = None,
    ) -> None:
        """Take an object that exists already as a bean of its type (or ``provides``); it is not entered or closed.

        ``cluster``: it belongs to that one; empty, to the main one, as a bean that has one per cluster.
        """
        kind = type(value) if provides is None else provides
        belongs = None if cluster is None else self._clusters.get(cluster, self._main)
        self._definitions.append(define_instance(value, kind, name or hint_name(kind), where, belongs))

    def add_models(self, models: Mapping[str, Any], types: Mapping[str, type] | None = None) -> None:
        """Take the models of the settings, by their prefixes, as beans of their types.

        ``types`` are those of models that were not made, None: an override takes their place, or their settings lack.
        """
        for prefix, model in models.items():
            kind = types[prefix] if model is None and types is not None else type(model)
            self.add_instance(model, kind, name=prefix, where=f"the settings below {prefix}")

    def exclude(self, names: Iterable[str], where: str | None = None) -> None:
        """Leave out auto-configurations: by bean name, module, ``module.name``, or a name of their bundle."""
        self._exclude.update(dict.fromkeys(names, where))

    def override(self, hint: Any, value: Any) -> None:
        """Put an object in the place of the bean that this hint asks for, or add it where there is no such bean."""
        self._overrides.put(hint, value)

    def replace(self, replacements: Iterable[Replacement]) -> None:
        """Take over what overrides beans of another plan of the same application."""
        self._overrides.replace(replacements)

    # --- deciding ------------------------------------------------------------------------------------------------

    def plan(self) -> list[Finding]:
        """Decide what is built and from what; returns everything that is wrong, an empty list when nothing is.

        Builds nothing. Afterwards :attr:`report` and :meth:`has` answer, and ``providers`` has one of each bean.
        """
        self._overrides.begin()
        self._plan, findings = self._make_plan()
        if self._overrides.are_objects:
            self._overrides.take_places(self._plan)
            self._plan, findings = self._make_plan()
        self.providers = BeanProviders(self._plan, self._overrides.in_place)
        return [*self._overrides.findings(), *findings]

    def _make_plan(self) -> tuple[Plan, list[Finding]]:
        return make_plan(
            self._definitions,
            self._settings,
            main=self._main,
            clusters=list(self._clusters.values()),
            exclude=self._exclude,
            bundles=self._bundles,
            replaced=self._overrides.in_place,
        )

    def known(self, hint: Any) -> Any:
        """The object that this hint will be given, if it is there before the start: handed in, or an override."""
        found = self.planned.candidates(dependency_of(hint))
        if len(found) != 1 or found[0] not in self.providers or not self.providers.is_there(found[0]):
            return None
        return self.providers[found[0]]()

    def evaluate(self, condition: Condition) -> Verdict:
        """Whether a condition holds for something that is no bean, such as a hook."""
        return evaluate(condition, self.planned, self._settings, self._main)

    @property
    def planned(self) -> Plan:
        """The plan; NotStartedError before :meth:`plan`."""
        if self._plan is None:
            raise NotStartedError("the container of beans")
        return self._plan

    @property
    def report(self) -> ConditionsReport:
        """What was taken, what was not, and why."""
        return self.planned.report

    def has(self, hint: Any) -> bool:
        """Whether a parameter with this hint can be given: ``T``, ``Annotated``, ``list[T]`` or ``T | None``."""
        asked = dependency_of(hint)
        found = self.planned.candidates(asked)
        return bool(found) if asked.every else len(found) == 1

    def finding(self, hint: Any, who: str, where: str | None = None) -> Finding | None:
        """What is wrong with ``who`` asking for this hint: missing or ambiguous; None when it can be given."""
        asked = dependency_of(hint)
        found = self.planned.candidates(asked)
        if asked.every or len(found) == 1 or (asked.optional and not found):
            return None
        if found:
            return self.planned.ambiguous(asked, found, who, where)
        return self.planned.missing(asked, who, where)

    def left_out(self, hint: Any, who: str, where: str | None = None) -> Finding | None:
        """What is wrong with ``who`` asking for this hint if it must mean a bean that is not there; else None.

        It must when a definition of such a bean was left out, or when there are some by other names.
        """
        asked, planned = dependency_of(hint), self.planned
        if planned.candidates(asked):
            return None
        by_others = asked.qualifier is not None and planned.candidates(replace(asked, qualifier=None, every=True))
        if by_others or planned.why_missing(asked.type_, qualifier=asked.qualifier) is not None:
            return planned.missing(asked, who, where)
        return None

    def ambiguous(self, hint: Any, who: str, where: str | None = None) -> Finding | None:
        """What is wrong with ``who`` asking for this hint if there are several such beans; else None."""
        asked = dependency_of(hint)
        found = self.planned.candidates(asked)
        return self.planned.ambiguous(asked, found, who, where) if len(found) > 1 and not asked.every else None

    def classes(self) -> dict[Any, Any]:
        """What each bean of the user's or of others provides, by the hint that asks for that one, taken or not.

        A class is its own hint where only one definition provides it.
        """
        found: dict[Any, Any] = {}
        definitions = [bean for bean in self._definitions if bean.target is not None and not bean.mark.per_cluster]
        for bean in definitions:
            if bean.provides is None:
                continue
            alike = sum(fits(other.provides, bean.provides) for other in definitions)
            hint = bean.provides if alike == 1 else Annotated[bean.provides, Qualifier(bean.name)]
            found[hint] = bean.provides
        return found

    def conditions(self) -> Iterator[Condition]:
        """The conditions of all definitions, of those that are not taken as well."""
        for bean in self._definitions:
            yield from bean.conditions

    def unmade(self) -> list[str]:
        """The models of the settings that were not made, and that no override takes the place of."""
        instances = [bean for bean in self.planned.taken if bean.style is Style.INSTANCE and bean.value is None]
        return [bean.name for bean in instances if bean not in self._overrides.in_place]

    def types(self) -> list[Any]:
        """The types of all beans, in the order of registration."""
        return [bean.provides for bean in self.planned.taken]

    # --- building and starting -----------------------------------------------------------------------------------

    async def start(
        self,
        phase: Phase,
        stack: AsyncExitStack,
        *,
        at: Callable[[str], AbstractContextManager[object]] = nullcontext,
        is_cut_short: Callable[[], bool] = lambda: False,
    ) -> None:
        """Build and start the beans of a phase, in order; ``stack`` closes them. ``at`` is told which one it is at.

        ``is_cut_short`` says, when they are closed, whether that is cancelled because its time is up.

        Raises ConfigurationError, naming the bean and its place, when one fails to start.
        """
        plan = self.planned
        await self._start([bean for bean in plan.order if plan.phases[bean] is phase], stack, at, is_cut_short)

    async def start_alone(self, wanted: BeanDefinition, stack: AsyncExitStack) -> None:
        """Build and start one bean of the plan and what it is given, and no others: for who runs no service.

        Raises as :meth:`start` does.
        """
        plan = self.planned
        needed: set[BeanDefinition] = set()
        waiting = [wanted]
        while waiting:
            bean = waiting.pop()
            if bean not in needed:
                needed.add(bean)
                waiting += [each for argument in plan.arguments.get(bean, ()) for each in argument.beans]
        beans = [bean for bean in plan.order if bean in needed and bean not in self._started]
        await self._start(beans, stack, nullcontext, lambda: False)

    async def _start(
        self,
        beans: Iterable[BeanDefinition],
        stack: AsyncExitStack,
        at: Callable[[str], AbstractContextManager[object]],
        is_cut_short: Callable[[], bool],
    ) -> None:
        for bean in beans:
            since = self._clock.monotonic()
            try:
                told = at(f"bean {bean.label} ({bean.where})")
                with told, self.failures.watched(bean, stack), failures_only(exits=True, hosted=True):
                    await self._start_bean(bean, stack, is_cut_short)
            except ConfigurationError:
                raise
            except Exception as error:
                findings = failure_findings(f"bean {bean.label} failed to start", bean.where, error)
                raise ConfigurationError(findings) from error
            self._started.add(bean)
            if bean.style is not Style.INSTANCE:
                _log.debug("bean %s ready in %.1f ms", bean.label, (self._clock.monotonic() - since) * 1000)

    async def _start_bean(self, bean: BeanDefinition, stack: AsyncExitStack, is_cut_short: Callable[[], bool]) -> None:
        providers = self.providers
        if providers.is_there(bean):
            self._entered.note(providers[bean]())  # whoever gave it looks after it
        elif bean.style is Style.PLAIN:
            await self._entered.enter(bean, providers.filled(bean)(), stack)
        else:
            arguments, keywords = providers.arguments(bean)
            providers.hold(bean, await self._entered.call(bean, arguments, keywords, stack, is_cut_short))

    # --- handing out ---------------------------------------------------------------------------------------------

    def get(self, kind: type[BeanT], qualifier: str | None = None) -> BeanT:
        """The bean of this type; ``qualifier`` is a bean's or cluster's name.

        Raises ConfigurationError when there is none or several, NotStartedError before its phase.
        """
        return cast("BeanT", self._one(Dependency(kind, qualifier), f"get({hint_name(kind)})"))

    def resolve(self, hint: Any) -> Any:
        """What a parameter with this hint is given; raises as :meth:`get` does."""
        asked = dependency_of(hint)
        if asked.every:
            return [self._value(bean) for bean in self.planned.candidates(asked)]
        if asked.optional and not self.planned.candidates(asked):
            return None
        return self._one(asked, "somebody")

    def given_by(self, bean: BeanDefinition) -> Callable[[], Any]:
        """What gives the value of one bean of the plan; called before its phase it raises NotStartedError."""
        return lambda: self._value(bean)

    def provider(self, hint: Any) -> Callable[[], Any]:
        """The provider that a parameter with this hint is given its value by, at each call anew; raises as ``get``.

        It costs some 50 ns, and what overrides it later counts from the next call on.
        """
        asked = dependency_of(hint)
        found = self.planned.candidates(asked)
        if asked.every:
            return every_one([self._started_provider(bean) for bean in found])
        if asked.optional and not found:
            return constant(None)
        return self._started_provider(self._only(asked, found, "somebody"))

    def _one(self, asked: Dependency, who: str) -> Any:
        return self._value(self._only(asked, self.planned.candidates(asked), who))

    def _only(self, asked: Dependency, found: Sequence[BeanDefinition], who: str) -> BeanDefinition:
        if not found:
            raise ConfigurationError(self.planned.missing(asked, who, None))
        if len(found) > 1:
            raise ConfigurationError(self.planned.ambiguous(asked, found, who, None))
        return found[0]

    def _value(self, bean: BeanDefinition) -> Any:
        return self._started_provider(bean)()

    def _started_provider(self, bean: BeanDefinition) -> BeanProvider:
        if bean not in self._started and not self.providers.is_there(bean):
            raise NotStartedError(f"bean {bean.label}")
        return self.providers[bean]
