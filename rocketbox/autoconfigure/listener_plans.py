"""From marked functions to the plans of all kinds of listeners, and what they need and do not have.

What the settings say is read once and handed to each kind (``kinds``); groups and clients, which all kinds share, are
looked at here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rocketbox.autoconfigure import rocketmq
from rocketbox.autoconfigure.groups_that_meet import groups_that_meet
from rocketbox.autoconfigure.key_rules import key_file_warnings, key_findings
from rocketbox.autoconfigure.kinds import DeclaredListener, ListenerKind, ListenerPlan, Planning
from rocketbox.autoconfigure.listening import cluster_settings
from rocketbox.autoconfigure.long_names import long_names
from rocketbox.autoconfigure.properties import ClusterProperties, RocketMQProperties, cluster_prefix
from rocketbox.autoconfigure.scan import Marked
from rocketbox.autoconfigure.service import Service, of_cluster
from rocketbox.autoconfigure.users import CredentialsBean, PlannedClients, plan_clients
from rocketbox.boot.beans import BeanContainer
from rocketbox.boot.beans_ahead import beans_ahead
from rocketbox.boot.dependencies import Dependency
from rocketbox.boot.failures import failure_findings
from rocketbox.boot.settings import Settings
from rocketbox.boot.shapes import uniform
from rocketbox.client import CredentialsProvider
from rocketbox.errors import ConfigurationError, Finding, RocketBoxError
from rocketbox.hints import name_of, place_of
from rocketbox.listeners import Beans
from rocketbox.listeners.registrar import ClusterSettings
from rocketbox.own_failures import failures_only
from rocketbox.template import CodecMessageConverter, MessageConverter

__all__ = ["KindPlans", "ListenerPlanner", "clusters_by_name"]

AnyKind = ListenerKind[Any, Any]
PLAN_NAMES = ("cluster", "group", "where", "user", "describe")  # of a ListenerPlan


@dataclass(frozen=True)
class KindPlans:
    """What one kind has planned."""

    kind: AnyKind
    plans: Sequence[ListenerPlan]

    @contextmanager
    def failing_in(self, step: str) -> Iterator[None]:
        """What is raised inside is told with the kind, which may be of another distribution."""
        try:
            with failures_only(exits=True, hosted=True):
                yield
        except RocketBoxError:
            raise
        except Exception as error:
            kind = type(self.kind)
            what = f"{kind.__qualname__}.{step} of the listeners of @{kind.mark.__name__} failed"
            raise ConfigurationError(failure_findings(what, place_of(kind), error)) from error


@dataclass
class ListenerPlanner:
    """Plans the marked functions of an application: :meth:`plan`, then, if the settings are right, :meth:`check_needs`.

    ``planned``, ``findings``, ``warnings`` and ``off`` are the result; ``clients`` is filled.
    """

    settings: Settings
    properties: RocketMQProperties
    service: Service
    container: BeanContainer
    beans: Beans
    clients: PlannedClients
    marked: Sequence[Marked]
    planned: list[KindPlans] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    off: list[Finding] = field(default_factory=list)

    def plan(self) -> None:
        kinds: list[AnyKind]
        kinds, findings = beans_ahead(ListenerKind, self.container.planned, self.container.providers)
        self.findings += findings
        clusters: dict[str | None, ClusterSettings] = {}
        planning = Planning(
            clusters, self.beans, self.resolve_text, self._converter(), self.findings, self.off, self.warnings
        )
        for name, own in clusters_by_name(self.properties).items():
            prefix = cluster_prefix(name)
            clusters[name or None] = ClusterSettings(prefix=prefix)  # its keys may be wrong: all else is looked at
            try:
                clusters[name or None] = cluster_settings(prefix, own, self.service.where)
            except ConfigurationError as error:
                self.findings += error.findings
        declared = [
            (kind, self._usable(kind, "read", self._read(kind, planning), ("cluster", "group"))) for kind in kinds
        ]
        self._check_marks(kinds)
        everything = [each for _, of_kind in declared for each in of_kind]
        for where, settings in clusters.items():
            clusters[where] = _with_groups_named(settings, [each for each in everything if each.cluster == where])
        if self.properties.off_by is not None:
            off_by = self.properties.off_by
            self.off.append(Finding(f"{off_by} is false: nothing of RocketMQ starts", self.service.where(off_by)))
            declared = [(kind, of_kind) for kind, of_kind in declared if not kind.needs_rocketmq]
        self._check_options(clusters, declared)
        for kind, of_kind in declared:
            given = self._asked(kind, "plan", of_kind, planning)
            self.planned.append(KindPlans(kind, self._usable(kind, "plan", given, PLAN_NAMES)))
        plans = [plan for each in self.planned for plan in each.plans]
        self._check_groups()
        if self.properties.off_by is not None:
            return
        for cluster, own in clusters_by_name(self.properties).items():
            of_cluster_ = [plan for plan in plans if (plan.cluster or "") == cluster]
            self.clients.clusters[cluster] = plan_clients(own, of_cluster_, self._keys_of(cluster, own))
        name_servers = {name: own.name_server for name, own in clusters_by_name(self.properties).items()}
        name_servers[""] = self.service.machine.main_name_server(self.settings, name_servers[""])
        self.findings += key_findings(self.properties, self.clients.clusters, self.service.where, name_servers)
        self.findings += groups_that_meet(name_servers, self.clients, plans)
        self.findings += long_names(self.properties, self.clients, plans, self.service.where)
        self.warnings += key_file_warnings(self.properties, self.clients.clusters, self.service.where)
        self._warn_of_unknown_groups(clusters, everything)

    def resolve_text(self, text: str, subject: str, where: str) -> str:
        """The text with its ``${...}`` replaced; ConfigurationError for one that cannot be."""
        return self.settings.resolve(text, subject=subject, where=where)

    def _keys_of(self, cluster: str, own: ClusterProperties) -> CredentialsBean | None:
        """The bean that gives a cluster its keys: made for it, or named as it; for the main one, any."""
        found = [
            bean
            for bean in self.container.planned.candidates(Dependency(CredentialsProvider, every=True))
            if (bean.cluster_name == cluster if bean.cluster is not None else bean.name == cluster)
            or (not cluster and bean.cluster is None and bean.name not in self.properties.clusters)
        ]
        found = [bean for bean in found if bean.primary] or found
        if not found:
            return None
        bean, *others = found
        prefix = cluster_prefix(cluster)
        if others:
            labels = " and ".join(each.label for each in found)
            what = f"{len(found)} beans are CredentialsProviders for {prefix}: {labels}"
            fix = "mark one of them @primary, or name each as the cluster that it is for: @bean(name=...)"
            self.findings.append(Finding(what, " and ".join(each.where for each in found), fix))
        for option in ("access-key", "secret-key", "security-token", "credentials-file"):
            if getattr(own, option.replace("-", "_")) is not None:
                key = f"{prefix}.{option}"
                what = f"{key} has no effect: bean {bean.label} gives the keys"
                self.warnings.append(Finding(what, self.service.where(key), "leave one of them out"))
        return CredentialsBean(
            bean.label, self.container.given_by(bean), lambda stack: self.container.start_alone(bean, stack)
        )

    def _converter(self) -> MessageConverter | None:
        """What to check payload types by; None: a converter of the user's, which comes to life at the start."""
        known: MessageConverter | None = self.container.known(MessageConverter)
        if known is not None:
            return known
        found = self.container.planned.candidates(Dependency(MessageConverter))
        ours = not found or any(each.target is rocketmq.message_converter for each in found)
        return CodecMessageConverter() if ours else None

    def _read(self, kind: AnyKind, planning: Planning) -> list[DeclaredListener]:
        of_kind = [each for each in self.marked if any(isinstance(mark, kind.mark) for mark in each.marks)]
        return self._asked(kind, "read", of_kind, planning) if of_kind else []

    def _asked(self, kind: AnyKind, step: str, given: Sequence[Any], planning: Planning) -> list[Any]:
        """What a step of a kind gives; what it raises is told with the kind, which may be of another distribution."""
        try:
            return list(getattr(kind, step)(given, planning))
        except Exception as error:
            what = f"{type(kind).__qualname__}.{step} of the listeners of @{kind.mark.__name__} failed"
            self.findings += failure_findings(what, place_of(type(kind)), error)
            return []

    def _usable(self, kind: AnyKind, step: str, given: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """What a step of a kind gave, without what lacks a name that everybody asks for; that is told."""
        usable = []
        lacking: dict[str, str] = {}
        for each in given:
            missing = [name for name in names if not _has(each, name)]
            if missing:
                lacking[type(each).__qualname__] = " and ".join(missing)
            else:
                usable.append(each)
        for name, missing_names in lacking.items():
            what = f"{type(kind).__qualname__}.{step} of the listeners of @{kind.mark.__name__} gave a {name} without "
            protocol = "ListenerPlan" if step == "plan" else "DeclaredListener"
            fix = f"give {name} all that {protocol} of rocketbox.autoconfigure.kinds has: {', '.join(names)}"
            self.findings.append(Finding(what + missing_names, place_of(type(kind)), fix))
        return usable

    def _check_marks(self, kinds: Sequence[AnyKind]) -> None:
        """Tell of marks that do nothing: a modifier alone, and one of a kind that nobody brings."""
        for marked in self.marked:
            if any(isinstance(mark, kind.mark) for kind in kinds for mark in marked.marks):
                continue
            name, mark = name_of(marked.target), marked.marks[0]
            beside = next((kind.mark for kind in kinds if isinstance(mark, kind.modifiers)), None)
            if beside is not None:
                what = f"{name} has @{type(mark).__name__} and is no listener"
                fix = f"write @{beside.__name__} above it"
            else:
                what = f"{name} has @{type(mark).__name__}, and there is no such kind of listeners"
                missing = self.container.planned.why_missing(ListenerKind)
                if missing is not None:
                    what += f": {missing.reason}"
                fix = (missing and missing.fix) or "install the distribution whose auto-configuration brings it"
            self.findings.append(Finding(what, place_of(marked.target), fix))

    def _check_groups(self) -> None:
        """A consumer group is of one kind: its members share offsets, and brokers know one set of topics of it."""
        owners: dict[tuple[str | None, str], tuple[AnyKind, ListenerPlan]] = {}
        for each in self.planned:
            for plan in each.plans:
                kind, other = owners.setdefault((plan.cluster, plan.group), (each.kind, plan))
                if kind is not each.kind:
                    self.findings.append(
                        Finding(
                            f"group {plan.group!r} has listeners of two kinds: @{kind.mark.__name__} and "
                            f"@{each.kind.mark.__name__}",
                            f"{other.where} and {plan.where}",
                            "give one of them another consumer group",
                        )
                    )

    def _check_options(
        self,
        clusters: Mapping[str | None, ClusterSettings],
        declared: Sequence[tuple[AnyKind, Sequence[DeclaredListener]]],
    ) -> None:
        """Tell of what the settings say of a group and its kind of listeners does not have."""
        for cluster, settings in clusters.items():
            default = settings.defaults.values.get("group")
            for group, said in settings.groups.items():
                members = [
                    kind
                    for kind, of_kind in declared
                    if any(each.cluster == cluster and (each.group or default) == group for each in of_kind)
                ]
                if len(members) != 1 or (known := members[0].options) is None:
                    continue
                for name in said.values.keys() - {*known}:
                    key = f"{settings.prefix}.consumer.listeners.{group}.{name.replace('_', '-')}"
                    what = f"{key} is no option of @{members[0].mark.__name__}, which the listeners of that group have"
                    options = ", ".join(sorted(each.replace("_", "-") for each in known))
                    self.findings.append(Finding(what, said.where(name), f"leave it out; there are: {options}"))

    def _warn_of_unknown_groups(
        self, clusters: Mapping[str | None, ClusterSettings], declared: Sequence[DeclaredListener]
    ) -> None:
        for cluster, settings in clusters.items():
            default = settings.defaults.values.get("group")
            known = {each.group or default for each in declared if each.cluster == cluster}
            for group in settings.groups.keys() - known:
                key = f"{settings.prefix}.consumer.listeners.{group}"
                self.warnings.append(
                    Finding(f"{key} has no effect: no listener has that group", self.service.where(key))
                )

    def check_needs(self) -> None:
        """Tell of beans that listeners need and that are not there."""
        for each in self.planned:
            for plan in each.plans:
                try:
                    with each.failing_in("needs"):
                        each.kind.needs(plan, self._need)
                except ConfigurationError as error:
                    self.findings += error.findings

    def _need(self, type_: Any, cluster: str | None, who: str, where: str) -> bool:
        finding = self.container.finding(of_cluster(type_, cluster), who, where)
        if finding is not None:
            self.findings.append(finding)
        return finding is None


def _has(value: object, name: str) -> bool:
    try:
        inspect.getattr_static(value, name)
    except AttributeError:
        return hasattr(value, name)  # of an object that answers for names of its own making
    return True


def clusters_by_name(properties: RocketMQProperties) -> dict[str, ClusterProperties]:
    """All clusters; the main one has the empty name."""
    return {"": properties, **properties.clusters}


def _with_groups_named(settings: ClusterSettings, declared: Sequence[DeclaredListener]) -> ClusterSettings:
    """Lead options to the group that is meant: ``FRONT_DESK`` in the name of a variable may be ``Front_desk``."""
    names = {each.group for each in declared}
    meant: dict[str, str] = {}
    for group in settings.groups.keys() - names:
        near = [name for name in names if name and uniform(name) == uniform(group)]
        if len(near) == 1 and near[0] not in settings.groups:
            meant[group] = near[0]
    return replace(settings, groups={meant.get(group, group): said for group, said in settings.groups.items()})
