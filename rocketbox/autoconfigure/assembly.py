"""Everything about an application that can be known, and be wrong, before it connects to anything.

Scans the modules, loads the settings, plans beans and listeners, and finds what is missing. Starting what was planned
is ``application``'s business; the rules themselves are those of ``boot`` and ``listeners``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from rocketbox.autoconfigure import embedded, rocketmq
from rocketbox.autoconfigure.key_rules import key_findings
from rocketbox.autoconfigure.listening import ResolveText, candidate_of, cluster_settings
from rocketbox.autoconfigure.loading import Launch, find_others, load, settings_models
from rocketbox.autoconfigure.properties import (
    ClusterProperties,
    RocketBoxProperties,
    RocketMQProperties,
    cluster_prefix,
)
from rocketbox.autoconfigure.scan import Marked, load_modules, marked_in
from rocketbox.autoconfigure.service import ProducerLookup, Service
from rocketbox.autoconfigure.spark_listening import SparkPlan, plan_spark_listener
from rocketbox.autoconfigure.users import ClientInstances, PlannedClients, plan_clients
from rocketbox.boot.beans import BeanContainer, Bundle
from rocketbox.boot.failures import without_secrets
from rocketbox.boot.marks import BEAN, Qualifier, bean_mark
from rocketbox.boot.settings import Settings, SettingsError
from rocketbox.boot.shapes import uniform
from rocketbox.boot.wanted import Wanted
from rocketbox.client import MQClientInstance, Producer
from rocketbox.client.cached_bytes import CachedBytes
from rocketbox.client.unbuilt import SPARK_KEYS
from rocketbox.clock import Clock
from rocketbox.embedded import ServersInThread
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.hints import parameters_of, place_of, resolve_hint
from rocketbox.listeners import Beans
from rocketbox.listeners.binding import unreadable_payload
from rocketbox.listeners.container import ContainerPlan
from rocketbox.listeners.options import Said
from rocketbox.listeners.registrar import Candidate, ClusterSettings, plan_containers
from rocketbox.marks import MARKS, rocketmq_listener, rocketmq_spark_listener, send_to
from rocketbox.template import JsonMessageConverter, MessageConverter, RocketMQTemplate

__all__ = ["Assembly", "AssemblyError", "assemble", "of_cluster"]

_log = logging.getLogger(__name__)

AUTO_CONFIGURATIONS: tuple[ModuleType, ...] = (embedded, rocketmq)


class AssemblyError(ConfigurationError):
    """The application cannot start. ``report`` is the conditions report where it helps; ``secrets`` are not shown."""

    def __init__(self, findings: Sequence[Finding], report: str | None, secrets: frozenset[str]) -> None:
        super().__init__(without_secrets(findings, secrets))
        self.report = report
        self.secrets = secrets


@dataclass(repr=False)  # it holds the whole application
class Assembly:
    """What was found out, ready to be started, in ``took`` seconds; ``findings`` is everything that is wrong.

    ``wrong_settings`` are those of them that are about settings. The rest was found out without the wrong ones, and is
    no more than what is wrong whatever they should be.
    """

    service: Service
    settings: Settings
    container: BeanContainer
    rocketmq: RocketMQProperties
    rocketbox: RocketBoxProperties
    clients: PlannedClients
    plans: list[ContainerPlan] = field(default_factory=list)
    spark_plans: list[SparkPlan] = field(default_factory=list)
    hooks: list[Callable[..., Any]] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    wrong_settings: Sequence[Finding] = ()
    took: float = 0.0

    def describe_clients(self) -> Iterator[str]:
        """A line for each client of clusters that start, where there is something to say of them."""
        if self.rocketmq.off_by is None:
            for name, own in clusters_by_name(self.rocketmq).items():
                if own.name_server is not None and not own.is_off:
                    yield from self.clients.clusters[name].describe(name, own.name_server)

    @property
    def beans(self) -> Beans:
        """The container as listeners see it."""
        return Beans(self._may_have, self.container.resolve, self.container.left_out, self.container.ambiguous)

    def _may_have(self, hint: Any) -> bool:
        if self.container.has(hint):
            return True
        return bool(self.wrong_settings) and self.container.left_out(hint, "it") is not None

    def check_payloads(self, converter: MessageConverter) -> None:
        """Raise ConfigurationError for what the listeners want and the converter, a bean that runs now, cannot read."""
        functions = [function for plan in self.plans for function in plan.functions]
        findings = [each for function in functions if (each := unreadable_payload(function.signature, converter))]
        if findings:
            raise ConfigurationError(findings)

    def check(self) -> None:
        """Raise AssemblyError with all findings, if there are any."""
        if self.findings:
            missed = any("needs a bean" in finding.what or "no such bean" in finding.what for finding in self.findings)
            report = self.container.report.render() if missed else None
            raise AssemblyError(self.findings, report, self.settings.secrets)


def of_cluster(type_: Any, cluster: str | None) -> Any:
    """The hint by which a bean of a cluster is asked for."""
    return Annotated[type_, Qualifier(cluster)] if cluster else type_


def assemble(
    name: str,
    home: str,
    launch: Launch,
    *,
    scan: Sequence[str] | None,
    config: Path | str | None,
    exclude: Sequence[str],
    hooks: Sequence[Callable[..., Any]],
    instances: Iterable[Any],
    clock: Clock,
) -> Assembly:
    """Find out all about the application ``name``, which the module ``home`` makes.

    ``instances`` are objects that anybody may ask for by their type. Raises ConfigurationError when not even the
    modules or settings can be read; all other findings stand in the result.
    """
    since = clock.monotonic()
    modules = load_modules(home, scan)
    others = find_others(modules, home, launch, config, exclude)
    wrong_settings: Sequence[Finding] = ()
    try:
        settings = load(settings_models(modules, others), modules, home, launch, config)
    except SettingsError as error:
        if error.settings is None:
            raise
        settings, wrong_settings = error.settings, error.findings
    properties: RocketMQProperties = settings.get("rocketmq")
    own: RocketBoxProperties = settings.get("rocketbox")
    cached_bytes = CachedBytes(own.client.max_cached_bytes)
    service = Service(name, clock, lambda key: _where(settings, key), cached_bytes)
    clients = PlannedClients()
    prefixes = {cluster: cluster_prefix(cluster) for cluster in properties.clusters}
    container = BeanContainer(settings, clock, prefix="rocketmq", clusters=prefixes)
    producers = ProducerLookup(lambda cluster: container.get(Producer, cluster))
    for instance in (*instances, service, producers, clients):
        container.add_instance(instance)
    container.add_models(settings.models)
    marked_beans = list(marked_in(modules, BEAN))
    users = [marked.target for marked in marked_beans if marked.owner is None]
    for target in users:
        container.add(target)
    for module in AUTO_CONFIGURATIONS:
        for target in vars(module).values():
            if bean_mark(target) is not None and target.__module__ == module.__name__:
                container.add(target, automatic=True)
    for other in others:
        container.add_bundle(Bundle(other.names, other.where, loaded=not other.excluded))
        for target in other.beans:
            if target not in users:  # who scans the package of another takes what is there for their own
                container.add(target, automatic=True, origin=other.origin)
    container.exclude(exclude, f"RocketBox({name!r}, exclude=...)")
    container.exclude(own.autoconfigure.exclude, service.where("rocketbox.autoconfigure.exclude"))
    assembly = Assembly(service, settings, container, properties, own, clients, hooks=list(hooks))
    assembly.warnings += settings.warnings
    assembly.wrong_settings = wrong_settings
    assembly.findings += wrong_settings
    assembly.findings += _embedded_settings(assembly)
    assembly.findings += [other.problem for other in others if other.problem is not None]
    assembly.findings += [_bean_in_class(marked) for marked in marked_beans if marked.owner is not None]
    of_beans = container.plan()
    for hint, value in launch.beans.items():
        of_beans += container.override(hint, value)
    listeners = _Listeners(assembly, list(marked_in(modules, MARKS)))
    if wrong_settings:  # what is missing may be there when the settings are right
        listeners.plan()
    else:
        assembly.findings += of_beans
        listeners.plan()
        listeners.check_needs()
        assembly.findings += _embedded_elsewhere(assembly)
        _check_hooks(assembly)
        _warn_of_absence(assembly)
    assembly.took = clock.monotonic() - since
    return assembly


def _bean_in_class(marked: Marked) -> Finding:
    return Finding(
        f"{marked.target.__qualname__} is marked @bean, and stands in a class",
        place_of(marked.target),
        "write it as a function of the module; what it needs are its parameters",
    )


def clusters_by_name(properties: RocketMQProperties) -> dict[str, ClusterProperties]:
    """All clusters; the main one has the empty name."""
    return {"": properties, **properties.clusters}


def _where(settings: Settings, key: str) -> str | None:
    origin = settings.origin(key)
    return None if origin is None else str(origin)


class _Listeners:
    """Plans the marked functions of an assembly, and finds what they need and do not have."""

    def __init__(self, assembly: Assembly, marked: list[Marked]) -> None:
        self.assembly = assembly
        self.marked = marked
        self.findings = assembly.findings
        self.clusters: dict[str | None, ClusterSettings] = {}

    def plan(self) -> None:
        properties = self.assembly.rocketmq
        clusters: dict[str | None, ClusterProperties] = {None: properties}
        for name, own in (clusters | properties.clusters).items():
            self.collect(partial(self.read_cluster, name, cluster_prefix(name), own))
        candidates = [candidate for marked in self.marked for candidate in self.candidates(marked)]
        self.name_groups(candidates)
        if properties.off_by is not None:
            _log.info("%s is false: nothing of RocketMQ starts", properties.off_by)
            return
        self.plan_groups(candidates)
        for name, own in clusters_by_name(properties).items():
            plans = [plan for plan in self.assembly.plans if (plan.cluster or "") == name]
            self.assembly.clients.clusters[name] = plan_clients(own, plans)
        self.findings += key_findings(
            properties, self.assembly.plans, self.assembly.clients.clusters, self.assembly.service.where
        )
        for marked in self.marked:
            for mark in marked.marks:
                if isinstance(mark, rocketmq_spark_listener):
                    self.collect(partial(self.plan_spark, marked.target, mark))
        self.findings += [finding for spark in self.assembly.spark_plans for finding in self.keys_for(spark)]
        self.warn_of_unknown_groups(candidates)

    def name_groups(self, candidates: Sequence[Candidate]) -> None:
        """Lead options to the group that is meant: ``FRONT_DESK`` in the name of a variable may be ``Front_desk``."""
        marks = [mark for marked in self.marked for mark in marked.marks if isinstance(mark, rocketmq_spark_listener)]
        for cluster, settings in self.clusters.items():
            names = {mark.consumer_group for mark in marks if mark.cluster == cluster}
            names |= {
                candidate.said.values.get("consumer_group")
                for candidate in candidates
                if candidate.said.values.get("cluster") == cluster
            }
            meant: dict[str, str] = {}
            for group in settings.groups.keys() - names:
                near = [name for name in names if name and uniform(name) == uniform(group)]
                if len(near) == 1 and near[0] not in settings.groups:
                    meant[group] = near[0]
            groups = {meant.get(group, group): said for group, said in settings.groups.items()}
            self.clusters[cluster] = replace(settings, groups=groups)

    def collect(self, step: Callable[[], None]) -> None:
        try:
            step()
        except ConfigurationError as error:
            self.findings += error.findings

    def read_cluster(self, name: str | None, prefix: str, properties: Any) -> None:
        self.clusters[name] = ClusterSettings(prefix=prefix)  # if its keys are wrong, the rest is still looked at
        self.clusters[name] = cluster_settings(prefix, properties, self.assembly.service.where)

    @property
    def resolve_text(self) -> ResolveText:
        settings = self.assembly.settings
        return lambda text, subject, where: settings.resolve(text, subject=subject, where=where)

    def candidates(self, marked: Marked) -> list[Candidate]:
        listeners = [mark for mark in marked.marks if isinstance(mark, rocketmq_listener)]
        replies = tuple(mark for mark in marked.marks if isinstance(mark, send_to))
        found: list[Candidate] = []
        for mark in listeners:
            self.collect(
                lambda mark=mark: found.append(  # type: ignore[misc]  # called at once
                    candidate_of(marked.target, mark, replies, resolve_text=self.resolve_text, owner=marked.owner)
                )
            )
        if replies and not listeners:
            self.findings.append(
                Finding(
                    f"{marked.target.__qualname__} has @send_to and is no listener",
                    place_of(marked.target),
                    "write @rocketmq_listener above it",
                )
            )
        return found

    def plan_groups(self, candidates: list[Candidate]) -> None:
        self.assembly.plans, findings = plan_containers(
            candidates, self.clusters, beans=self.assembly.beans, converter=self.converter()
        )
        self.findings += findings

    def converter(self) -> MessageConverter | None:
        """What to check payload types by; None: a converter of the user's, which comes to life at the start."""
        container = self.assembly.container
        known: MessageConverter | None = container.known(MessageConverter)
        if known is not None:
            return known
        found = container.planned.candidates(Wanted(MessageConverter))
        ours = not found or any(each.target is rocketmq.message_converter for each in found)
        return JsonMessageConverter() if ours else None

    def plan_spark(self, function: Callable[..., Any], mark: rocketmq_spark_listener) -> None:
        plan = plan_spark_listener(
            function,
            mark,
            self.clusters,
            beans=self.assembly.beans,
            resolve_text=self.resolve_text,
            properties=self.assembly.rocketbox.spark,
            service=self.assembly.service,
        )
        if plan is not None:
            self.assembly.spark_plans.append(plan)

    def keys_for(self, spark: SparkPlan) -> Iterator[Finding]:
        """That Spark's processes would have to sign their requests, if they would."""
        settings = self.clusters[spark.cluster]
        own = self.assembly.rocketmq.cluster(spark.cluster or "")
        layers = (settings.groups.get(spark.group, Said.nothing()), settings.defaults)
        if own.access_key is not None or any(layer.values.get("access_key") for layer in layers):
            where = spark.signature.where
            yield SPARK_KEYS.finding(f"group {spark.group!r} of a Spark listener, whose cluster has keys,", where)

    def check_needs(self) -> None:
        """A listener needs a client and a converter, a ``send_to`` a template."""
        for plan in self.assembly.plans:
            for function in plan.functions:
                name, where = f"listener {function.signature.name}", function.signature.where
                if self.need(MQClientInstance, plan.cluster, name, where):
                    self.need(ClientInstances, plan.cluster, name, where)
                self.need(MessageConverter, None, name, where)
                for reply in function.replies:
                    cluster = reply.cluster or plan.cluster
                    if cluster in self.clusters:  # else it is told already
                        self.need(RocketMQTemplate, cluster, f"@send_to({reply.destination!r}) of {name}", where)
        for spark in self.assembly.spark_plans:
            name = f"Spark listener {spark.signature.function.__qualname__}"
            self.need(MQClientInstance, spark.cluster, name, spark.signature.where)

    def need(self, type_: Any, cluster: str | None, who: str, where: str) -> bool:
        """Whether it is there; a finding tells when it is not."""
        finding = self.assembly.container.finding(of_cluster(type_, cluster), who, where)
        if finding is not None:
            self.findings.append(finding)
        return finding is None

    def warn_of_unknown_groups(self, candidates: Sequence[Candidate]) -> None:
        for cluster, settings in self.clusters.items():
            default = settings.defaults.values.get("group")
            known = {candidate.said.values.get("consumer_group") or default for candidate in candidates}
            known |= {spark.group for spark in self.assembly.spark_plans if spark.cluster == cluster}
            for group in settings.groups.keys() - known:
                key = f"{settings.prefix}.consumer.listeners.{group}"
                self.assembly.warnings.append(
                    Finding(f"{key} has no effect: no listener has that group", self.assembly.service.where(key))
                )


def _embedded_settings(assembly: Assembly) -> Sequence[Finding]:
    """What the embedded servers would refuse, if they are to start."""
    properties = assembly.rocketmq
    if properties.off_by is not None or not any(
        each.is_embedded for each in (properties, *properties.clusters.values())
    ):
        return ()
    try:
        embedded.embedded_options(assembly.rocketbox.embedded, assembly.service).broker_options()
    except ConfigurationError as error:
        return error.findings
    return ()


def _embedded_elsewhere(assembly: Assembly) -> Iterator[Finding]:
    """Clusters whose client is to use the embedded servers, when these do not run."""
    if assembly.container.has(ServersInThread):
        return
    for bean in assembly.container.planned.taken:
        if bean.target is rocketmq.client_instance and assembly.rocketmq.cluster(bean.cluster_name).is_embedded:
            key = f"{cluster_prefix(bean.cluster_name)}.name-server"
            others = "set rocketmq.name-server to embedded" if bean.cluster_name else "do not exclude embedded_servers"
            what = f"{key} is embedded, and the embedded servers do not run"
            yield Finding(what, assembly.service.where(key), f"{others}, or write an address")


def _check_hooks(assembly: Assembly) -> None:
    for hook in assembly.hooks:
        for parameter in parameters_of(hook):
            who, where = f"parameter {parameter.name} of startup hook {hook.__qualname__}", place_of(hook)
            if parameter.default is not parameter.empty:
                continue
            if parameter.annotation is parameter.empty:
                fix = f"give {parameter.name} the type of a bean, or a default"
                assembly.findings.append(Finding(f"{who} has no type", where, fix))
                continue
            try:
                hint = resolve_hint(hook, parameter.annotation)
            except Exception as error:  # evaluating an annotation can raise anything
                assembly.findings.append(Finding(f"{who} has a type that is not known at run time: {error}", where))
                continue
            if finding := assembly.container.finding(hint, who, where):
                assembly.findings.append(finding)


def _warn_of_absence(assembly: Assembly) -> None:
    """A missing name server is told, and a missing template where nothing listens: then nothing at all would be done.

    A service that only listens needs no template, and the report says why there is none.
    """
    container, properties = assembly.container, assembly.rocketmq
    if properties.off_by is not None or assembly.findings:
        return
    told = set()
    for cluster, own in {"": properties, **properties.clusters}.items():
        key = f"{cluster_prefix(cluster)}.name-server"
        if own.name_server is None and not container.has(of_cluster(MQClientInstance, cluster)):
            skipped = [
                bean.label
                for bean, verdict in container.planned.left_out
                if bean.mark.per_cluster and bean.cluster_name == cluster and verdict.key == key
            ]
            told.add(key)
            what = f"{key} is not set, so that the beans of RocketMQ are skipped: {', '.join(skipped)}"
            assembly.warnings.append(Finding(what, None, f"set {key} to an address, or to embedded"))
    verdict = container.planned.why_missing(RocketMQTemplate)
    if verdict is None or container.has(RocketMQTemplate) or assembly.plans or assembly.spark_plans:
        return
    if verdict.key is not None and verdict.key not in told:  # None: it is excluded
        what = f"there is no {Wanted(RocketMQTemplate)}: {verdict.reason}"
        assembly.warnings.append(Finding(what, None, verdict.fix))
