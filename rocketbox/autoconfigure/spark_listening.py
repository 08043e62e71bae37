"""The kind of ``@rocketmq_spark_listener``: from marks and settings to what ``rocketbox.spark.listener`` runs.

Nothing of Spark is imported before a mark is found. Options come as those of other listeners do:
``rocketmq.consumer.listeners.<group>``, the decorator, ``rocketmq.consumer``, the default.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rocketbox.autoconfigure.kinds import ListenerKind, Need, Planning, Starting
from rocketbox.autoconfigure.listening import ResolveText
from rocketbox.autoconfigure.properties import RocketBoxProperties, RocketMQProperties, SparkProperties
from rocketbox.autoconfigure.scan import Marked
from rocketbox.autoconfigure.service import Service, of_cluster
from rocketbox.boot.marks import bean
from rocketbox.boot.wanted import wanted
from rocketbox.client import MQClientInstance
from rocketbox.client.unbuilt import SPARK_KEYS
from rocketbox.durations import parse_duration
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.frozen import frozen
from rocketbox.hints import place_of
from rocketbox.listeners.binding import Beans, type_name
from rocketbox.listeners.options import Said
from rocketbox.listeners.registrar import ClusterSettings, unknown_cluster
from rocketbox.marks import rocketmq_spark_listener

if TYPE_CHECKING:
    from rocketbox.spark.listener import SparkListenerContainer, SparkSignature
    from rocketbox.spark.session import SparkRuntime

__all__ = ["SparkCandidate", "SparkListeners", "SparkPlan", "spark_listeners"]


@frozen
class SparkCandidate:
    """A marked function with what its decorator says, placeholders resolved."""

    function: Callable[..., Any]
    mark: rocketmq_spark_listener

    @property
    def cluster(self) -> str | None:
        return self.mark.cluster

    @property
    def group(self) -> str | None:
        return self.mark.consumer_group

    @property
    def label(self) -> str:
        return f"Spark listener {self.function.__qualname__}"


@frozen(kw_only=True)
class SparkPlan:
    """A Spark listener that is to run: what is known of it before anything is connected.

    ``name`` is its group, or ``group.topic`` where the group has several.
    """

    cluster: str | None
    group: str
    name: str
    topic: str
    selector_expression: str
    checkpoint: str
    mark: rocketmq_spark_listener
    trigger: timedelta | str | None
    signature: SparkSignature

    @property
    def where(self) -> str:
        return self.signature.where

    @property
    def user(self) -> None:
        """The cluster's: Spark's processes have clients of their own, which sign nothing yet."""

    def describe(self) -> list[str]:
        """Its line in the start log."""
        function = self.signature.function
        return [
            f"Spark listener {function.__qualname__} ({self.where}): topic {self.topic}, "
            f"selector {self.selector_expression}, group {self.group}"
            + (f" of cluster {self.cluster}" if self.cluster else "")
            + f", checkpoint {self.checkpoint}"
        ]


class SparkListeners(ListenerKind[SparkCandidate, SparkPlan]):
    """Listeners that get a topic as DataFrames: one streaming query each, on one session for all."""

    mark = rocketmq_spark_listener

    def __init__(self, properties: RocketMQProperties, own: RocketBoxProperties, service: Service) -> None:
        self._properties = properties
        self._own = own.spark
        self._service = service

    def read(self, marked: Sequence[Marked], planning: Planning) -> list[SparkCandidate]:
        found: list[SparkCandidate] = []
        for each in marked:
            for mark in each.marks:
                if isinstance(mark, rocketmq_spark_listener):
                    planning.collect(
                        lambda each=each, mark=mark: found.append(  # type: ignore[misc]  # called at once
                            SparkCandidate(each.target, _resolved(mark, each.target, planning.resolve_text))
                        )
                    )
        return found

    def plan(self, declared: Sequence[SparkCandidate], planning: Planning) -> list[SparkPlan]:
        plans: list[SparkPlan] = []
        for each in declared:
            planning.collect(lambda each=each: plans.extend(self._plan(each, planning)))  # type: ignore[misc]  # as above
        planning.findings += [finding for plan in plans for finding in self._keys_for(plan, planning)]
        sizes = Counter((plan.cluster, plan.group) for plan in plans)
        return [
            plan
            if sizes[plan.cluster, plan.group] == 1
            else dataclasses.replace(plan, name=f"{plan.group}.{plan.topic}")
            for plan in plans
        ]

    def _plan(self, candidate: SparkCandidate, planning: Planning) -> Iterator[SparkPlan]:
        plan = _plan_listener(
            candidate, planning.clusters, beans=planning.beans, properties=self._own, service=self._service
        )
        if plan is not None:
            yield plan
        else:
            what = f"{candidate.label} is off: {_off_by(candidate.mark, planning)}"
            planning.off.append(Finding(what, place_of(candidate.function)))

    def _keys_for(self, plan: SparkPlan, planning: Planning) -> Iterator[Finding]:
        """That Spark's processes would have to sign their requests, if they would."""
        settings = planning.clusters[plan.cluster]
        own = self._properties.cluster(plan.cluster or "")
        layers = (settings.groups.get(plan.group, Said.nothing()), settings.defaults)
        if own.values()["access_key"] is not None or any(layer.values.get("access_key") for layer in layers):
            yield SPARK_KEYS.finding(f"group {plan.group!r} of a Spark listener, whose cluster has keys,", plan.where)

    def needs(self, plan: SparkPlan, need: Need) -> None:
        name = f"Spark listener {plan.signature.function.__qualname__}"
        need(MQClientInstance, plan.cluster, name, plan.where)

    def clashes(self, plan: SparkPlan, processes: int, has_name: Callable[[str | None], bool]) -> Iterator[Finding]:
        yield Finding(
            f"--workers {processes}: each worker would run the Spark query of group {plan.group} on the same "
            "checkpoint",
            plan.where,
            "run Spark listeners in a service of their own, without --workers: Spark spreads their work itself",
        )

    async def start(self, plans: Sequence[SparkPlan], starting: Starting) -> list[SparkListenerContainer]:
        from rocketbox.spark.session import SparkRuntime

        runtime = await starting.stack.enter_async_context(SparkRuntime(self._service.name, self._own.conf))
        return [self._container(plan, runtime, starting) for plan in plans]

    def _container(self, plan: SparkPlan, runtime: SparkRuntime, starting: Starting) -> SparkListenerContainer:
        from rocketbox.spark.listener import SparkListenerContainer, SparkListenerOptions

        instance: MQClientInstance = starting.resolve(of_cluster(MQClientInstance, plan.cluster))
        said: dict[str, Any] = {
            "trigger": plan.trigger,
            "max_messages": plan.mark.max_messages,
            "starting_offsets": plan.mark.starting_offsets,
        }
        options = SparkListenerOptions(
            topic=plan.topic,
            group=plan.group,
            name=plan.name,
            cluster=plan.cluster,
            name_server=";".join(instance.name_servers),
            checkpoint=plan.checkpoint,
            selector_expression=plan.selector_expression,
            schema=plan.mark.schema,
            **{name: value for name, value in said.items() if value is not None},
        )
        return SparkListenerContainer(
            options,
            plan.signature,
            runtime=runtime,
            provider=starting.beans.provider,
            clock=self._service.clock,
            drain_timeout=starting.drain_timeout,
            lines=plan.describe(),
        )


@bean
def spark_listeners(properties: RocketMQProperties, own: RocketBoxProperties, service: Service) -> SparkListeners:
    """Listeners of ``@rocketmq_spark_listener``; Spark itself is needed only where there are some."""
    return SparkListeners(properties, own, service)


def _plan_listener(
    candidate: SparkCandidate,
    clusters: Mapping[str | None, ClusterSettings],
    *,
    beans: Beans,
    properties: SparkProperties,
    service: Service,
) -> SparkPlan | None:
    """The plan for one marked function; None when it is switched off.

    Raises ConfigurationError with everything that is wrong, also when pyspark is not installed.
    """
    function, mark, name = candidate.function, candidate.mark, candidate.label
    here = place_of(function)
    settings = clusters.get(mark.cluster)
    if settings is None:
        raise ConfigurationError(unknown_cluster(name, mark.cluster, clusters, here))
    group = mark.consumer_group or settings.defaults.values.get("group")
    said = settings.groups.get(group or "", Said.nothing()).values
    topic = said.get("topic") or mark.topic or settings.defaults.values.get("topic")
    findings = [
        Finding(
            f"{name} has no {what}", here, f"write {option}= in its decorator, or set {settings.prefix}.consumer.{key}"
        )
        for value, what, option, key in (
            (group, "consumer group", "consumer_group", "group"),
            (topic, "topic", "topic", "topic"),
        )
        if not value
    ]
    if settings.off_by is not None or said.get("enabled", mark.enabled) is False:
        return None
    if settings.switches.get(group or "", {}).get(topic or "") is False:
        return None
    signature = None
    try:
        from rocketbox.spark.listener import read_spark_signature

        signature = read_spark_signature(function)
    except ModuleNotFoundError as error:
        missing = (error.name or "pyspark").partition(".")[0]
        findings.append(
            Finding(f"{name} needs {missing}, which is not installed", here, "pip install 'rocketbox[spark]'")
        )
    except ConfigurationError as error:
        findings += error.findings
    if signature is not None:
        findings += [
            beans.left_out(hint, name, here)
            or Finding(
                f"{name} takes a {type_name(hint)}, and there is no such bean",
                here,
                f"return {type_name(hint)} from a function marked @bean",
            )
            for hint in signature.beans
            if not beans.has(hint) and not wanted(hint).optional
        ]
    trigger = mark.trigger
    if trigger is not None and trigger != "available_now":
        try:
            trigger = _pause(trigger)
        except ValueError as error:
            findings.append(Finding(f"trigger of {name} is {trigger!r}: {error}", here, "or write available_now"))
    if findings:
        raise ConfigurationError(findings)
    assert signature is not None
    assert group is not None
    assert topic is not None
    folder = properties.checkpoint or service.folder / "spark"
    return SparkPlan(
        cluster=mark.cluster,
        group=group,
        name=group,
        topic=topic,
        selector_expression=said.get("selector_expression")
        or mark.selector_expression
        or settings.defaults.values.get("selector_expression")
        or "*",
        checkpoint=mark.checkpoint or str(folder / group),
        mark=mark,
        trigger=trigger,
        signature=signature,
    )


def _off_by(mark: rocketmq_spark_listener, planning: Planning) -> str:
    settings = planning.clusters[mark.cluster]
    group = mark.consumer_group or settings.defaults.values.get("group") or ""
    path = f"{settings.prefix}.consumer.listeners.{group}"
    said = settings.groups.get(group, Said.nothing()).values
    if settings.off_by is not None:
        return settings.off_by
    if said.get("enabled") is False:
        return f"{path}.enabled"
    if said.get("enabled", mark.enabled) is False:
        return "its decorator"
    return f"{path}.{said.get('topic') or mark.topic or settings.defaults.values.get('topic')}"


def _pause(value: timedelta | str) -> timedelta:
    pause = parse_duration(value, bare_numbers=False)
    if pause < timedelta(0):
        raise ValueError("a pause cannot be negative")
    return pause


def _resolved(
    mark: rocketmq_spark_listener, function: Callable[..., Any], resolve_text: ResolveText
) -> rocketmq_spark_listener:
    """The mark with the ``${...}`` of all its texts replaced; ConfigurationError with all that cannot be."""
    name, here = f"Spark listener {function.__qualname__}", place_of(function)
    texts: dict[str, Any] = {}
    findings: list[Finding] = []
    for field in dataclasses.fields(mark):
        value = getattr(mark, field.name)
        if isinstance(value, str) and "${" in value:
            try:
                texts[field.name] = resolve_text(value, f"{field.name} of {name}", here)
            except ConfigurationError as error:
                findings += error.findings
    if findings:
        raise ConfigurationError(findings)
    return dataclasses.replace(mark, **texts)
