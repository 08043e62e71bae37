"""From bean definitions to a plan: which are taken, what each is given, in which order and phase they start.

Everything that is wrong is found here, together, before anything is built: missing, ambiguous and circular beans, with
who asked, what there was, which condition failed, and the key that would mend it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocketbox.boot.conditions import Condition, Verdict
from rocketbox.boot.definitions import BeanDefinition, BeanParameter, Source
from rocketbox.boot.dependencies import Dependency, fits, hint_name
from rocketbox.boot.failures import failure_findings
from rocketbox.boot.marks import Cluster, Phase
from rocketbox.boot.missing_beans import MissingBean
from rocketbox.boot.report import ConditionsReport, ReportEntry
from rocketbox.errors import Finding

__all__ = ["Argument", "Bundle", "Plan", "SettingsView", "evaluate", "make_plan"]


class SettingsView(Protocol):
    """What conditions need to know of the settings."""

    @property
    def profiles(self) -> Sequence[str]: ...

    def text(self, key: str) -> str | None: ...


@dataclass(frozen=True)
class Bundle:
    """Auto-configurations that came, or would have come, together. ``names`` are those by which they are left out.

    ``loaded`` is False for one that was left out as a whole, so that its beans are not known.
    """

    names: tuple[str, ...]
    where: str
    loaded: bool = True


@dataclass(frozen=True)
class Argument:
    """What one parameter is given: one bean, all of a type, a constant (None, or the Cluster), or its default."""

    parameter: BeanParameter
    beans: tuple[BeanDefinition, ...] = ()
    every: bool = False
    constant: Any = None
    use_default: bool = False


@dataclass
class Plan:
    """The result; ``taken`` in the order of registration, ``order`` in the order of starting.

    ``puzzling``: somebody misses a bean that no setting brings back, so that the whole report helps.
    """

    taken: list[BeanDefinition] = field(default_factory=list)
    left_out: list[tuple[BeanDefinition, Verdict]] = field(default_factory=list)
    order: list[BeanDefinition] = field(default_factory=list)
    arguments: dict[BeanDefinition, list[Argument]] = field(default_factory=dict)
    phases: dict[BeanDefinition, Phase] = field(default_factory=dict)
    report: ConditionsReport = field(default_factory=ConditionsReport)
    per_cluster_types: list[Any] = field(default_factory=list)
    puzzling: bool = False
    _by_type: dict[Any, tuple[int, list[BeanDefinition]]] = field(default_factory=dict, repr=False)

    # --- finding beans -------------------------------------------------------------------------------------------

    def candidates(
        self, dependency: Dependency, cluster: str = "", asking: BeanDefinition | None = None
    ) -> list[BeanDefinition]:
        """The taken beans that answer ``dependency``, for somebody in ``cluster`` (empty: the main one).

        ``asking`` is who asks, if it is a bean, which is never given itself. Of several beans those that are primary.
        """
        found = [bean for bean in self._fitting(dependency, cluster) if bean is not asking]
        if len(found) > 1 and not dependency.every:
            return [bean for bean in found if bean.primary] or found
        return found

    def _fitting(self, dependency: Dependency, cluster: str) -> Sequence[BeanDefinition]:
        fitting = self._of_type(dependency.type_)
        if dependency.qualifier is not None:
            of_cluster = [bean for bean in fitting if bean.cluster_name == dependency.qualifier]
            return of_cluster or [
                bean for bean in fitting if bean.name == dependency.qualifier and not bean.cluster_name
            ]
        if dependency.every and not cluster:
            return fitting
        own = [bean for bean in fitting if bean.cluster_name == cluster]
        if own or not cluster or self._is_per_cluster(dependency.type_):
            return own  # never that of another cluster
        return [bean for bean in fitting if bean.cluster is None]

    def _of_type(self, type_: Any) -> Sequence[BeanDefinition]:
        """The taken beans of a type. Each is looked at once for each type that is asked for, mostly many times."""
        try:
            seen, found = self._by_type.get(type_, (0, []))
        except TypeError:  # a hint that cannot be hashed
            return [bean for bean in self.taken if fits(bean.provides, type_)]
        if seen < len(self.taken):
            found += [bean for bean in self.taken[seen:] if fits(bean.provides, type_)]
            self._by_type[type_] = len(self.taken), found
        return found

    def _is_per_cluster(self, type_: Any) -> bool:
        return any(fits(provided, type_) for provided in self.per_cluster_types)

    def why_missing(self, type_: Any, cluster: str = "", qualifier: str | None = None) -> Verdict | None:
        """Why there is no bean of this type although there are definitions of one; None when there are none."""
        found = [
            (definition, verdict)
            for definition, verdict in self.left_out
            if fits(definition.provides, type_)
            and (
                definition.cluster_name == cluster
                if qualifier is None
                else qualifier in (definition.cluster_name, definition.name)
            )
        ]
        if not found:
            return None
        reasons = [f"{definition.label} was not built because {verdict.reason}" for definition, verdict in found]
        fixes = [verdict.fix for _, verdict in found if verdict.fix]
        key = next((verdict.key for _, verdict in found if verdict.key), None)
        causes = dict.fromkeys(verdict.root for _, verdict in found)
        return Verdict(False, "; ".join(reasons), key, ", or ".join(dict.fromkeys(fixes)) or None, "; ".join(causes))

    def missing(self, dependency: Dependency, who: str, where: str | None, cluster: str = "") -> Finding:
        """The finding that nobody provides what ``who`` needs."""
        what = f"{who} needs a bean of type {dependency}, and there is none"
        verdict = self.why_missing(dependency.type_, cluster, dependency.qualifier)
        if verdict is not None:
            self.puzzling |= verdict.key is None
            told, fix = f"{what}: {verdict.reason}", verdict.fix or _write_one(dependency)
            if verdict.key is None:
                return Finding(told, where, fix)
            return MissingBean(told, where, fix, who, str(dependency), verdict.reason, verdict.key, verdict.root)
        others = [bean for bean in self.taken if fits(bean.provides, dependency.type_)]
        if not others:
            return Finding(what, where, _write_one(dependency))
        shown = ", ".join(f"{bean.label} ({bean.where})" for bean in others)
        names = [bean.cluster_name or bean.name for bean in others]
        near = difflib.get_close_matches(dependency.qualifier or "", names, 1)
        by_name = f'Annotated[{hint_name(dependency.type_)}, Qualifier("{near[0] if near else names[0]}")]'
        fix = f"did you mean {by_name}?" if near else f"ask for it by name: {by_name}"
        return Finding(f"{what}; of this type there is {shown}", where, fix)

    def ambiguous(
        self, dependency: Dependency, found: Sequence[BeanDefinition], who: str, where: str | None
    ) -> Finding:
        """The finding that several beans could be given."""
        names = ", ".join(f"{bean.label} ({bean.where})" for bean in found)
        type_name = hint_name(dependency.type_)
        several = found[0].primary  # then all of them are, and that is what is wrong
        number = f"{len(found)}{' primary ones' * several}"
        by_mark = "leave @primary on one of them" if several else "mark one of them @primary"
        return Finding(
            f"{who} needs one bean of type {dependency}, and there are {number}: {names}",
            where,
            f'ask for one by name, Annotated[{type_name}, Qualifier("{found[0].name}")], or for all, '
            f"list[{type_name}], or {by_mark}",
        )


def _write_one(dependency: Dependency) -> str:
    named = f", with @bean(name={dependency.qualifier!r})" if dependency.qualifier is not None else ""
    return f"write a @bean function that returns {hint_name(dependency.type_)}{named}"


def make_plan(
    definitions: Iterable[BeanDefinition],
    settings: SettingsView,
    *,
    main: Cluster,
    clusters: Sequence[Cluster],
    exclude: Mapping[str, str | None],
    bundles: Sequence[Bundle] = (),
    replaced: Collection[BeanDefinition] = (),
) -> tuple[Plan, list[Finding]]:
    """Decide everything about the definitions; ``exclude`` maps what is left out to where that was said.

    ``replaced`` are objects that take the places of definitions, whose conditions then do not matter any more.
    """
    maker = _Planner(settings, main, clusters, replaced)
    maker.register(list(definitions), exclude, bundles)
    maker.check_names()
    maker.give_arguments()
    maker.order_starts()
    return maker.plan, maker.findings


def evaluate(condition: Condition, plan: Plan, settings: SettingsView, main: Cluster) -> Verdict:
    """Whether a condition holds for what is no bean: all that are taken are there, and the main cluster is meant."""
    return condition.evaluate(_Context(plan, settings, main, None))


@dataclass
class _Context:
    """What the conditions of one definition can ask; the view of ``boot.conditions.ConditionContext``."""

    plan: Plan
    settings: SettingsView
    main: Cluster
    cluster: Cluster | None

    @property
    def cluster_name(self) -> str:
        return self.cluster.name if self.cluster else ""

    def key(self, key: str) -> str:
        cluster = self.cluster
        if cluster is not None and (key == self.main.prefix or key.startswith(self.main.prefix + ".")):
            return cluster.prefix + key.removeprefix(self.main.prefix)
        return key

    def text(self, key: str) -> str | None:
        return self.settings.text(key)

    def profiles(self) -> Collection[str]:
        return self.settings.profiles

    def bean_names(self, kind: Any) -> Sequence[str]:
        return [bean.label for bean in self.plan.candidates(Dependency(kind), self.cluster_name)]

    def why_missing(self, kind: Any) -> Verdict | None:
        return self.plan.why_missing(kind, self.cluster_name)


class _Planner:
    def __init__(
        self, settings: SettingsView, main: Cluster, clusters: Sequence[Cluster], replaced: Collection[BeanDefinition]
    ) -> None:
        self.plan = Plan()
        self.findings: list[Finding] = []
        self._settings = settings
        self._main = main
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self._replaced = {bean.place: bean for bean in replaced}

    # --- which are taken -----------------------------------------------------------------------------------------

    def register(
        self, definitions: list[BeanDefinition], exclude: Mapping[str, str | None], bundles: Sequence[Bundle]
    ) -> None:
        self.plan.per_cluster_types = [bean.provides for bean in definitions if bean.mark.per_cluster]
        automatic = [bean for bean in definitions if bean.source is Source.AUTO]
        self._check_exclusions(automatic, exclude, bundles)
        self.plan.report.excluded += [
            ReportEntry(bundle.names[0], bundle.where) for bundle in bundles if not bundle.loaded
        ]
        users = [bean for bean in definitions if bean.source is Source.USER]
        instances = [bean for bean in definitions if bean.source is Source.INSTANCE]
        self.plan.taken += self._replaced.values()  # the first of all, so that every condition sees them
        for definition in (*instances, *self._sorted(users), *self._sorted(automatic)):
            for bean in self._expanded(definition):
                excluded_as = next((name for name in exclude if bean.is_named(name)), None)
                if bean.source is Source.AUTO and excluded_as is not None:
                    self._leave_out(bean, excluded_as, exclude[excluded_as])
                else:
                    self._consider(bean)

    def _leave_out(self, bean: BeanDefinition, name: str, where: str | None) -> None:
        self.plan.report.excluded.append(_entry(bean))
        reason = f"{name} is excluded" + (f" ({where})" if where else "")
        self.plan.left_out.append((bean, Verdict(False, reason, fix=f"do not exclude {name}")))

    def _check_exclusions(
        self, automatic: Sequence[BeanDefinition], exclude: Mapping[str, str | None], bundles: Sequence[Bundle]
    ) -> None:
        of_bundles = [name for bundle in bundles for name in bundle.names]
        for name, where in exclude.items():
            if name in of_bundles or any(bean.is_named(name) for bean in automatic):
                continue
            known = [text for bean in automatic for text in (bean.name, f"{bean.module}.{bean.name}", bean.module)]
            near = difflib.get_close_matches(name, [*known, *of_bundles], 1)
            shown = [*(bean.name for bean in automatic), *(bundle.names[0] for bundle in bundles)]
            names = ", ".join(dict.fromkeys(shown)) or "none"
            fix = f"did you mean {near[0]}?" if near else f"there are: {names}"
            self.findings.append(Finding(f"there is no auto-configuration {name} to exclude", where, fix))

    def _expanded(self, definition: BeanDefinition) -> Iterable[BeanDefinition]:
        if definition.mark.per_cluster:
            return [definition.for_cluster(cluster) for cluster in (self._main, *self._clusters.values())]
        own = self._clusters.get(definition.name) if definition.source is Source.USER else None
        if own is not None and any(fits(definition.provides, type_) for type_ in self.plan.per_cluster_types):
            return [definition.for_cluster(own)]  # it stands for that cluster's own
        return [definition]

    def _consider(self, bean: BeanDefinition) -> None:
        if bean.place in self._replaced:
            verdict = Verdict(False, "an object was given in its place")
            self.plan.report.negative.append(_entry(bean, verdict))
            return
        context = _Context(self.plan, self._settings, self._main, bean.cluster)
        verdicts = []
        for condition in bean.conditions:
            verdict = self._verdict(condition, context, bean)
            if not verdict.matched:
                self.plan.left_out.append((bean, verdict))
                self.plan.report.negative.append(_entry(bean, verdict))
                return
            verdicts.append(verdict)
        if (problem := bean.problem_finding()) is not None:
            self.findings.append(problem)
            return
        self.plan.taken.append(bean)
        if verdicts:  # what has no conditions is always there: the report is of what was decided
            self.plan.report.positive.append(_entry(bean, *verdicts))

    def _verdict(self, condition: Condition, context: _Context, bean: BeanDefinition) -> Verdict:
        try:
            verdict = condition.evaluate(context)
            if not isinstance(verdict, Verdict):
                raise TypeError(f"its evaluate() returned {type(verdict).__name__}, and must return a Verdict")
        except Exception as error:  # a condition of the user's own
            self.findings += failure_findings(f"the condition of bean {bean.label} failed", bean.where, error)
            return Verdict(False, "its condition failed")
        return verdict

    def _sorted(self, definitions: list[BeanDefinition]) -> list[BeanDefinition]:
        """As they came, except where ``after`` and ``before`` say otherwise."""
        needs = _edges(definitions)
        ordered, circle = _topological(definitions, needs)
        if circle:
            path = " -> ".join(bean.name for bean in (*circle, circle[0]))
            self.findings.append(
                Finding(f"after= and before= of beans go in a circle: {path}", circle[0].where, "take one of them away")
            )
        return ordered

    def check_names(self) -> None:
        seen: dict[tuple[str, str], BeanDefinition] = {}
        for bean in self.plan.taken:
            if bean.source is not Source.USER:
                continue
            other = seen.setdefault((bean.name, bean.cluster_name), bean)
            if other is not bean:
                self.findings.append(
                    Finding(
                        f"two beans are named {bean.label}",
                        f"{other.where} and {bean.where}",
                        "give one of them another name: @bean(name=...)",
                    )
                )

    # --- what each is given --------------------------------------------------------------------------------------

    def give_arguments(self) -> None:
        for bean in self.plan.taken:
            self.plan.arguments[bean] = [
                argument for parameter in bean.parameters() if (argument := self._argument(bean, parameter)) is not None
            ]

    def _argument(self, bean: BeanDefinition, parameter: BeanParameter) -> Argument | None:
        dependency = parameter.dependency
        who = f"parameter {parameter.name} of bean {bean.label}"
        if dependency is None:
            if parameter.has_default:
                return Argument(parameter, use_default=True)
            fix = parameter.fix or f"give {parameter.name} a type that exists at run time, or a default"
            self.findings.append(Finding(f"{who} cannot be given: {parameter.problem}", bean.where, fix))
            return None
        if dependency.type_ is Cluster and bean.cluster is not None:
            return Argument(parameter, constant=bean.cluster)
        found = self.plan.candidates(dependency, bean.cluster_name, asking=bean)
        if dependency.every and (found or not parameter.has_default):
            return Argument(parameter, tuple(found), every=True)
        if len(found) == 1:
            return Argument(parameter, (found[0],))
        if len(found) > 1:
            self.findings.append(self.plan.ambiguous(dependency, found, who, bean.where))
            return None
        if parameter.has_default:
            return Argument(parameter, use_default=True)
        if dependency.optional:
            return Argument(parameter)
        self.findings.append(self.plan.missing(dependency, who, bean.where, bean.cluster_name))
        return None

    # --- when each starts ----------------------------------------------------------------------------------------

    def order_starts(self) -> None:
        taken = self.plan.taken
        needs = {
            bean: [needed for argument in self.plan.arguments[bean] for needed in argument.beans] for bean in taken
        }
        _, circle = _topological(taken, needs)
        if circle:
            path = " -> ".join(bean.label for bean in (*circle, circle[0]))
            self.findings.append(
                Finding(
                    f"beans need each other in a circle: {path}",
                    ", ".join(bean.where for bean in circle),
                    "take one of these parameters away, or move what both need into a bean of its own",
                )
            )
            return
        for bean, earlier in _edges(taken).items():
            needs[bean] += [other for other in earlier if not _reaches(other, bean, needs)]
        phases = {bean: bean.phase for bean in taken}
        order, _ = _topological(taken, needs)
        for bean in reversed(order):  # what somebody needs starts no later than they do
            for needed in needs[bean]:
                phases[needed] = min(phases[needed], phases[bean])
        self.plan.order = sorted(order, key=phases.__getitem__)
        self.plan.phases = phases


def _entry(bean: BeanDefinition, *verdicts: Verdict) -> ReportEntry:
    return ReportEntry(bean.name, bean.where, verdicts, bean.cluster_name, bean.origin)


def _edges(definitions: Sequence[BeanDefinition]) -> dict[BeanDefinition, list[BeanDefinition]]:
    """For each definition those that ``after`` and ``before`` put in front of it; clusters apart from each other."""
    needs: dict[BeanDefinition, list[BeanDefinition]] = {bean: [] for bean in definitions}
    for bean in definitions:
        if not bean.mark.after and not bean.mark.before:
            continue
        for other in definitions:
            if bean is other or (bean.cluster and other.cluster and bean.cluster != other.cluster):
                continue
            if any(other.is_named(name) for name in bean.mark.after):
                needs[bean].append(other)
            if any(other.is_named(name) for name in bean.mark.before):
                needs[other].append(bean)
    return needs


def _reaches(start: BeanDefinition, goal: BeanDefinition, needs: Mapping[BeanDefinition, list[BeanDefinition]]) -> bool:
    seen: set[BeanDefinition] = set()
    waiting = [start]
    while waiting:
        bean = waiting.pop()
        if bean is goal:
            return True
        if bean not in seen:
            seen.add(bean)
            waiting += needs[bean]
    return False


def _topological(
    definitions: Sequence[BeanDefinition], needs: Mapping[BeanDefinition, list[BeanDefinition]]
) -> tuple[list[BeanDefinition], list[BeanDefinition]]:
    """The definitions with what each needs before it, else in their order; and the first circle that was met."""
    order: list[BeanDefinition] = []
    done: set[BeanDefinition] = set()
    path: list[BeanDefinition] = []
    circle: list[BeanDefinition] = []

    def visit(bean: BeanDefinition) -> None:
        if bean in done:
            return
        if bean in path:
            circle[:] = circle or path[path.index(bean) :]
            return
        path.append(bean)
        for needed in needs[bean]:
            visit(needed)
        path.pop()
        done.add(bean)
        order.append(bean)

    for bean in definitions:
        visit(bean)
    return order, circle
