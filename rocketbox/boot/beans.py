"""The container of beans: it takes definitions, plans, builds, starts and hands out.

What becomes of an object at its start and its end stands in ``boot.entering``.

The only module that knows dependency-injector: every bean is a provider in a ``DynamicContainer``, and whoever is
given the bean has it from there. A plain bean function becomes a ``ThreadSafeSingleton``; one that is async, yields or
is a context manager a singleton of what its start left. Starting goes phase by phase in an ``AsyncExitStack`` of the
life cycle; dependency-injector's own async resources stay out, because they turn whoever needs them into futures.

What takes a bean's place before the start is planned as an object that is there already: conditions see it, and it is
neither built, started nor closed. What overrides a provider later counts for whoever asks it from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeVar, cast

from dependency_injector import containers, providers

from rocketbox.boot.bean_failures import BeanFailures
from rocketbox.boot.conditions import Condition, Verdict
from rocketbox.boot.definitions import BeanDefinition, Source, Style, define, given
from rocketbox.boot.entering import EnteredBeans, checked_bean
from rocketbox.boot.failures import failure_findings
from rocketbox.boot.marks import Cluster, Phase, Qualifier
from rocketbox.boot.planning import Argument, Bundle, Plan, SettingsView, evaluate, make_plan
from rocketbox.boot.report import ConditionsReport
from rocketbox.boot.wanted import Wanted, fits, hint_name, is_bean_type, wanted
from rocketbox.clock import Clock
from rocketbox.errors import ClientStateError, ConfigurationError, Finding, NotStartedError
from rocketbox.own_failures import failures_only
from rocketbox.safe_repr import safe_repr

__all__ = ["BeanContainer", "Bundle", "DynamicContainer", "Replacement", "SettingsView"]

_log = logging.getLogger(__name__)
BeanT = TypeVar("BeanT")


class DynamicContainer(containers.DynamicContainer):
    """dependency-injector's container with a provider for each bean, by its name.

    Once it is planned, no provider takes the place of another: whoever was given the first one would not see it.
    """

    is_planned = False

    def __setattr__(self, name: str, value: Any) -> None:
        if self.is_planned and isinstance(value, providers.Provider):
            raise ClientStateError(
                f"app.container.{name} = ... takes the place of no bean: write app.container.{name}.override(...) for "
                "one that is there, and a @bean function for a new one"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        names = ", ".join(sorted(self.__dict__.get("providers", {}))) or "none"
        raise AttributeError(f"the application has no bean {name!r}; there are: {names}")


@dataclass(frozen=True)
class Replacement:
    """A bean of an earlier plan of the application, and dependency-injector's providers that override it.

    ``made_of`` are the beans of that plan that these ask for.
    """

    bean: BeanDefinition
    overriding: tuple[providers.Provider[Any], ...]
    made_of: tuple[BeanDefinition, ...] = ()

    def findings(self) -> Iterator[Finding]:
        """What is wrong with it: the beans of that plan never start, so that nothing can be made of them."""
        if self.made_of:
            names = " and ".join(bean.label for bean in self.made_of)
            what = f"the override of bean {self.bean.label} asks app.container for bean {names}, which a run starts"
            where = ", ".join(dict.fromkeys(bean.where for bean in (self.bean, *self.made_of)))
            yield Finding(what, where, "override it by an object, or by providers that ask for no bean")


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
        self.container = DynamicContainer()
        self._settings = settings
        self._clock = clock
        self._main = Cluster("", prefix)
        self._clusters = {name: Cluster(name, where) for name, where in (clusters or {}).items()}
        self._definitions: list[BeanDefinition] = []
        self._exclude: dict[str, str | None] = {}
        self._bundles: list[Bundle] = []
        self._plan: Plan | None = None
        self._overrides: list[tuple[Any, Any]] = []
        self._replacements: list[Replacement] = []
        self._overriding: dict[BeanDefinition, tuple[providers.Provider[Any], ...]] = {}
        self._providers: dict[BeanDefinition, providers.Provider[Any]] = {}
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
        self._definitions.append(given(value, kind, name or hint_name(kind), where, belongs))

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
        self._overrides.append((hint, value))

    def replace(self, replacements: Iterable[Replacement]) -> None:
        """Take over what overrides beans of another plan of the same application."""
        self._replacements += replacements

    # --- deciding ------------------------------------------------------------------------------------------------

    def plan(self) -> list[Finding]:
        """Decide what is built and from what; returns everything that is wrong, an empty list when nothing is.

        Builds nothing. Afterwards :attr:`report` and :meth:`has` answer, and ``container`` holds the providers.
        """
        self._overriding = {each.bean.replaced_by(None): each.overriding for each in self._replacements}
        self._plan, findings = self._make_plan()
        findings += [finding for each in self._replacements for finding in each.findings()]
        if self._overrides:
            wrong = [finding for hint, value in self._overrides for finding in self._take_place(hint, value)]
            self._plan, findings = self._make_plan()
            left = list(self._overriding.values())
            kept = [each for each in self._replacements if any(each.overriding is one for one in left)]
            findings = [*wrong, *(finding for each in kept for finding in each.findings()), *findings]
        self.container = DynamicContainer()
        self._providers = {}
        for bean in self._plan.order:
            self._providers[bean] = self._make_provider(bean)
        for bean in sorted(self._providers, key=self._is_handed_in):
            # Objects that were handed in, such as models of settings, leave the plain name to a bean that has it too.
            self.container.set_provider(self._key(bean), self._providers[bean])
        self.container.is_planned = True
        return findings

    def add_left_out(self) -> None:
        """Have a provider as well for each bean that is not taken: it may be overridden for another plan that takes it.

        Asked, it says why there is none.
        """
        self.container.is_planned = False
        for bean, verdict in self.planned.left_out:
            provider = self._providers[bean] = providers.ThreadSafeSingleton(partial(_not_taken, bean.label, verdict))
            self.container.set_provider(self._key(bean), provider)
        self.container.is_planned = True

    def _make_plan(self) -> tuple[Plan, list[Finding]]:
        return make_plan(
            self._definitions,
            self._settings,
            main=self._main,
            clusters=list(self._clusters.values()),
            exclude=self._exclude,
            bundles=self._bundles,
            replaced=self._overriding,
        )

    def _take_place(self, hint: Any, value: Any) -> Iterator[Finding]:
        if isinstance(hint, str):
            what = f"an override is for the text {hint!r}, and beans are found by their types"
            fix = f'write the type, or to mean one by its name Annotated[TheType, Qualifier("{hint}")]'
            yield Finding(what, None, fix)
            return
        asked, plan = wanted(hint), self.planned
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
            taking = given(None, asked.type_, hint_name(asked.type_), "an override")
        else:  # a name that nobody has is a mistake
            yield plan.missing(asked, "an override", None)
            return
        others = {bean: each for bean, each in self._overriding.items() if bean.place != taking.place}
        self._overriding = {**others, taking: (providers.Object(value),)}

    def _is_handed_in(self, bean: BeanDefinition) -> bool:
        return bean.style is Style.GIVEN and bean not in self._overriding

    def replacements(self) -> list[Replacement]:
        """What overrides beans now, in dependency-injector's way: for other plans of the same application."""
        started = {
            id(provider): bean
            for bean, provider in self._providers.items()
            if bean.style is not Style.GIVEN and not _is_overridden(provider)
        }

        def asked_for(overriding: Sequence[Any]) -> Iterator[BeanDefinition]:
            for each in (inner for outer in overriding for inner in (outer, *outer.traverse())):
                if id(each) in started:
                    yield started[id(each)]

        return [
            Replacement(bean, provider.overridden, tuple(dict.fromkeys(asked_for(provider.overridden))))
            for bean, provider in self._providers.items()
            if _is_overridden(provider)
        ]

    def known(self, hint: Any) -> Any:
        """The object that this hint will be given, if it is there before the start: handed in, or an override."""
        found = self.planned.candidates(wanted(hint))
        provider = self._providers.get(found[0]) if len(found) == 1 else None
        if provider is None or not (found[0].style is Style.GIVEN or _is_overridden(provider)):
            return None
        return provider()

    def evaluate(self, condition: Condition) -> Verdict:
        """Whether a condition holds for something that is no bean, such as a hook."""
        return evaluate(condition, self.planned, self._settings, self._main)

    def made_ahead(self, kind: Any) -> tuple[list[Any], list[Finding]]:
        """The beans of a type that are needed before the start, made now, and what keeps others from that.

        They may need settings and what was handed in, and other plain functions that need no more.
        """
        made: list[Any] = []
        findings: list[Finding] = []
        for bean in self.planned.candidates(Wanted(kind, every=True)):
            late = self._starts_late(bean, ())
            if late is None:
                try:
                    made.append(self._made(bean))
                except Exception as error:
                    findings += failure_findings(f"bean {bean.label} failed", bean.where, error)
                continue
            what = "starts" if late is bean else f"needs {late.label}, which starts"
            findings.append(
                Finding(
                    f"bean {bean.label} is a {hint_name(kind)}, which is needed before the start, and it {what} later",
                    bean.where,
                    "write it as a plain function of settings, and take the other beans where they are used",
                )
            )
        return made, findings

    def _starts_late(self, bean: BeanDefinition, path: tuple[BeanDefinition, ...]) -> BeanDefinition | None:
        """The bean itself, or one that it needs, which can be made only at the start; None when there is none."""
        if bean.style is Style.GIVEN or (bean in self._providers and _is_overridden(self._providers[bean])):
            return None
        if bean.style is not Style.PLAIN or bean in path:
            return bean
        needed = [each for argument in self.planned.arguments[bean] for each in argument.beans]
        return next((late for each in needed if (late := self._starts_late(each, (*path, bean)))), None)

    def _made(self, bean: BeanDefinition) -> Any:
        if bean in self._providers:
            for needed in (each for argument in self.planned.arguments[bean] for each in argument.beans):
                self._made(needed)
            return self._filled(bean)()
        if bean.style is Style.GIVEN:  # others go in a circle, which is told already, and nothing has a provider
            return bean.value
        assert bean.target is not None
        given: dict[str, Any] = {}
        for argument in self.planned.arguments[bean]:
            if not argument.use_default:
                values = [self._made(each) for each in argument.beans]
                given[argument.parameter.name] = (
                    values if argument.every else values[0] if values else argument.constant
                )
        return bean.target(**given)

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
        asked = wanted(hint)
        found = self.planned.candidates(asked)
        return bool(found) if asked.every else len(found) == 1

    def finding(self, hint: Any, who: str, where: str | None = None) -> Finding | None:
        """What is wrong with ``who`` asking for this hint: missing or ambiguous; None when it can be given."""
        asked = wanted(hint)
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
        asked, planned = wanted(hint), self.planned
        if planned.candidates(asked):
            return None
        by_others = asked.qualifier is not None and planned.candidates(replace(asked, qualifier=None, every=True))
        if by_others or planned.why_missing(asked.type_, qualifier=asked.qualifier) is not None:
            return planned.missing(asked, who, where)
        return None

    def ambiguous(self, hint: Any, who: str, where: str | None = None) -> Finding | None:
        """What is wrong with ``who`` asking for this hint if there are several such beans; else None."""
        asked = wanted(hint)
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
        for bean in plan.order:
            if plan.phases[bean] is not phase:
                continue
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
            if bean.style is not Style.GIVEN:
                _log.debug("bean %s ready in %.1f ms", bean.label, (self._clock.monotonic() - since) * 1000)

    async def _start_bean(self, bean: BeanDefinition, stack: AsyncExitStack, is_cut_short: Callable[[], bool]) -> None:
        provider: Any = self._providers[bean]
        if bean.style is Style.GIVEN or _is_overridden(provider):
            self._entered.note(provider())  # whoever gave it looks after it
        elif bean.style is Style.PLAIN:
            await self._entered.enter(bean, self._filled(bean)(), stack)
        else:
            positional, named = self._injections(bean)
            arguments, keywords = [each() for each in positional], {name: each() for name, each in named.items()}
            made = await self._entered.call(bean, arguments, keywords, stack, is_cut_short)
            provider.set_provides(lambda: made)

    def _make_provider(self, bean: BeanDefinition) -> providers.Provider[Any]:
        """One that is filled when the bean is started, if it is not there already."""
        if bean.style is Style.GIVEN and bean not in self._overriding:
            return providers.Object(bean.value) if bean.value is not None else _without_value(bean)
        refuse = _was_replaced if bean in self._overriding else _not_started
        provider = providers.ThreadSafeSingleton(partial(refuse, bean.label))
        provider.disable_async_mode()  # an awaitable bean is a bean, no future of one
        for each in self._overriding.get(bean, ()):
            provider.override(each)
        return provider

    def _filled(self, bean: BeanDefinition) -> providers.Provider[Any]:
        """The provider of a plain bean, which builds it from now on when it is asked for the first time."""
        provider: Any = self._providers[bean]
        if bean.style is Style.PLAIN:
            assert bean.target is not None
            provider.set_provides(partial(_build, bean, *self._injections(bean)))
        return cast("providers.Provider[Any]", provider)

    def _injections(self, bean: BeanDefinition) -> tuple[list[Callable[[], Any]], dict[str, Callable[[], Any]]]:
        positional: list[Callable[[], Any]] = []
        named: dict[str, Callable[[], Any]] = {}
        for argument in self.planned.arguments[bean]:
            if argument.use_default:
                continue
            injection = self._injection(argument)
            if argument.parameter.positional_only:
                positional.append(injection)
            else:
                named[argument.parameter.name] = injection
        return positional, named

    def _injection(self, argument: Argument) -> Callable[[], Any]:
        if argument.every:
            return partial(_all_of, [self._providers[bean] for bean in argument.beans])
        if argument.beans:
            return self._providers[argument.beans[0]]
        return providers.Object(argument.constant)

    def _key(self, bean: BeanDefinition) -> str:
        name = "".join(letter if letter.isalnum() else "_" for letter in bean.name)
        name = f"{name}_{bean.cluster_name}" if bean.cluster_name and bean.cluster_name != bean.name else name
        while hasattr(self.container, name):  # a user's bean has the name, or the container itself
            name += "_"
        return name

    # --- handing out ---------------------------------------------------------------------------------------------

    def get(self, kind: type[BeanT], qualifier: str | None = None) -> BeanT:
        """The bean of this type; ``qualifier`` is a bean's or cluster's name.

        Raises ConfigurationError when there is none or several, NotStartedError before its phase.
        """
        return cast("BeanT", self._one(Wanted(kind, qualifier), f"get({hint_name(kind)})"))

    def resolve(self, hint: Any) -> Any:
        """What a parameter with this hint is given; raises as :meth:`get` does."""
        asked = wanted(hint)
        if asked.every:
            return [self._value(bean) for bean in self.planned.candidates(asked)]
        if asked.optional and not self.planned.candidates(asked):
            return None
        return self._one(asked, "somebody")

    def provider(self, hint: Any) -> Callable[[], Any]:
        """The provider that a parameter with this hint is given its value by, at each call anew; raises as ``get``.

        It costs some 50 ns, and what overrides it later counts from the next call on.
        """
        asked = wanted(hint)
        found = self.planned.candidates(asked)
        if asked.every:
            return partial(_all_of, [self._started_provider(bean) for bean in found])
        if asked.optional and not found:
            return providers.Object(None)
        return self._started_provider(self._only(asked, found, "somebody"))

    def _one(self, asked: Wanted, who: str) -> Any:
        return self._value(self._only(asked, self.planned.candidates(asked), who))

    def _only(self, asked: Wanted, found: Sequence[BeanDefinition], who: str) -> BeanDefinition:
        if not found:
            raise ConfigurationError(self.planned.missing(asked, who, None))
        if len(found) > 1:
            raise ConfigurationError(self.planned.ambiguous(asked, found, who, None))
        return found[0]

    def _value(self, bean: BeanDefinition) -> Any:
        return self._started_provider(bean)()

    def _started_provider(self, bean: BeanDefinition) -> providers.Provider[Any]:
        provider = self._providers[bean]
        if bean not in self._started and bean.style is not Style.GIVEN and not _is_overridden(provider):
            raise NotStartedError(f"bean {bean.label}")
        return provider


def _is_overridden(provider: Any) -> bool:  # Any: its own type says that there is always one that overrides
    return bool(provider.overridden)


def _without_value(bean: BeanDefinition) -> providers.Provider[Any]:
    """A provider to override, of a model whose settings are not known."""
    return providers.ThreadSafeSingleton(partial(_not_started, bean.label))


def _build(
    bean: BeanDefinition, positional: Sequence[Callable[[], Any]], named: Mapping[str, Callable[[], Any]]
) -> Any:
    """Call a plain bean function; what it is given is fetched here, for a provider that has a future among its own
    arguments becomes one itself."""
    assert bean.target is not None
    return checked_bean(
        bean, bean.target(*(each() for each in positional), **{name: each() for name, each in named.items()})
    )


def _all_of(found: Sequence[Callable[[], Any]]) -> list[Any]:
    return [each() for each in found]


def _not_started(label: str) -> Any:
    raise NotStartedError(f"bean {label}")


def _not_taken(label: str, verdict: Verdict) -> Any:
    raise ConfigurationError(Finding(f"bean {label} is not there: {verdict.reason}", None, verdict.fix))


def _was_replaced(label: str) -> Any:
    raise ClientStateError(
        f"bean {label} was overridden when the application started, so that it was not built: its override cannot be "
        "taken back before the next start"
    )


def _shown(hint: Any) -> str:
    return hint_name(hint) if isinstance(hint, type) else safe_repr(hint)


def _is_called(bean: BeanDefinition, asked: Wanted) -> bool:
    """Whether the qualifier of who asks, or none, means this one."""
    if asked.qualifier is None:
        return not bean.cluster_name
    return asked.qualifier in (bean.cluster_name, bean.name)
