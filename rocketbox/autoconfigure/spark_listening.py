"""Spark listeners: from marks and settings to what ``rocketbox.spark.listener`` runs.

Nothing of Spark is imported before a mark is found. Options come as those of other listeners do:
``rocketmq.consumer.listeners.<group>``, the decorator, ``rocketmq.consumer``, the default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rocketbox.autoconfigure.listening import ResolveText
from rocketbox.autoconfigure.properties import SparkProperties
from rocketbox.autoconfigure.service import Service
from rocketbox.boot.wanted import wanted
from rocketbox.durations import parse_duration
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.hints import place_of
from rocketbox.listeners.binding import Beans, type_name
from rocketbox.listeners.options import Said
from rocketbox.listeners.registrar import ClusterSettings, unknown_cluster
from rocketbox.marks import rocketmq_spark_listener

if TYPE_CHECKING:
    from rocketbox.spark.listener import SparkListenerContainer, SparkSignature
    from rocketbox.spark.session import SparkRuntime

__all__ = ["SparkPlan", "plan_spark_listener", "spark_container", "spark_runtime"]


@dataclass(frozen=True, kw_only=True)
class SparkPlan:
    """A Spark listener that is to run: what is known of it before anything is connected."""

    cluster: str | None
    group: str
    topic: str
    selector_expression: str
    checkpoint: str
    mark: rocketmq_spark_listener
    trigger: timedelta | str | None
    signature: SparkSignature

    def describe(self) -> str:
        """Its line in the start log."""
        function = self.signature.function
        return (
            f"Spark listener {function.__qualname__} ({self.signature.where}): topic {self.topic}, "
            f"selector {self.selector_expression}, group {self.group}"
            + (f" of cluster {self.cluster}" if self.cluster else "")
            + f", checkpoint {self.checkpoint}"
        )


def plan_spark_listener(
    function: Callable[..., Any],
    mark: rocketmq_spark_listener,
    clusters: Mapping[str | None, ClusterSettings],
    *,
    beans: Beans,
    resolve_text: ResolveText,
    properties: SparkProperties,
    service: Service,
) -> SparkPlan | None:
    """The plan for one marked function; None when it is switched off.

    Raises ConfigurationError with everything that is wrong, also when pyspark is not installed.
    """
    here = place_of(function)
    name = f"Spark listener {function.__qualname__}"
    mark = _resolved(mark, name, here, resolve_text)
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


def _pause(value: timedelta | str) -> timedelta:
    pause = parse_duration(value, bare_numbers=False)
    if pause < timedelta(0):
        raise ValueError("a pause cannot be negative")
    return pause


def _resolved(
    mark: rocketmq_spark_listener, name: str, here: str, resolve_text: ResolveText
) -> rocketmq_spark_listener:
    """The mark with the ``${...}`` of all its texts replaced; ConfigurationError with all that cannot be."""
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


def spark_runtime(name: str, properties: SparkProperties) -> SparkRuntime:
    """The application's Spark; its session is made when the first listener asks for it."""
    from rocketbox.spark.session import SparkRuntime

    return SparkRuntime(name, properties.conf)


def spark_container(
    plan: SparkPlan,
    runtime: SparkRuntime,
    *,
    name_server: str,
    resolve: Callable[[Any], Any],
    service: Service,
    drain_timeout: float,
) -> SparkListenerContainer:
    """The container that runs the plan."""
    from rocketbox.spark.listener import SparkListenerContainer, SparkListenerOptions

    said: dict[str, Any] = {
        "trigger": plan.trigger,
        "max_messages": plan.mark.max_messages,
        "starting_offsets": plan.mark.starting_offsets,
    }
    options = SparkListenerOptions(
        topic=plan.topic,
        group=plan.group,
        name_server=name_server,
        checkpoint=plan.checkpoint,
        selector_expression=plan.selector_expression,
        schema=plan.mark.schema,
        **{name: value for name, value in said.items() if value is not None},
    )
    return SparkListenerContainer(
        options, plan.signature, runtime=runtime, resolve=resolve, clock=service.clock, drain_timeout=drain_timeout
    )
