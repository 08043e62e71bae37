"""The kind of ``@rocketmq_spark_listener``: from marks and settings to what ``rocketbox.spark.listener`` runs.

Nothing of Spark is imported before a mark is found. Options come from ``rocketmq.consumer.listeners.<group>``, the
decorator and the default. ``rocketmq.consumer`` gives the group, the topic, the selector expression, the namespace and
the keys alone: its other options are those of handlers.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from rocketbox.autoconfigure.kinds import ListenerKind, Need, Planning, Starting
from rocketbox.autoconfigure.listening import ResolveText, said_in_mark
from rocketbox.autoconfigure.properties import (
    SPARK_SHARES,
    RocketBoxProperties,
    RocketMQProperties,
    SparkMarkProperties,
    SparkProperties,
    cluster_prefix,
)
from rocketbox.autoconfigure.scan import Marked
from rocketbox.autoconfigure.service import Service, of_cluster
from rocketbox.autoconfigure.users import ClientInstances
from rocketbox.boot.dependencies import dependency_of
from rocketbox.boot.marks import bean
from rocketbox.client import CredentialsFile, MQClientInstance
from rocketbox.client.checks import MAX_TOPIC_CHARS, check_group
from rocketbox.client.options import UserOptions, mismatches, wrong_names
from rocketbox.durations import parse_duration
from rocketbox.errors import ConfigurationError, Finding, InvalidGroupError
from rocketbox.hints import name_of, place_of
from rocketbox.listeners.binding import Beans
from rocketbox.listeners.options import OnInvalid, OptionLayer
from rocketbox.listeners.payload_types import type_name
from rocketbox.listeners.registrar import ClusterSettings, unknown_cluster
from rocketbox.marks import rocketmq_spark_listener
from rocketbox.protocol.tags import is_valid_name
from rocketbox.spark.query_options import QUERY_OPTIONS, OnInvalidBody, RowForm

if TYPE_CHECKING:
    from rocketbox.spark.listener import SparkListenerContainer, SparkSignature
    from rocketbox.spark.listener_options import SparkListenerOptions
    from rocketbox.spark.session import SparkRuntime

__all__ = ["SparkCandidate", "SparkListeners", "SparkPlan", "spark_listeners"]

_log = logging.getLogger(__name__)

SESSION_SHARE = 0.5  # of what a stop has left when the listeners have ended: for Spark's Java process


@dataclass(frozen=True)
class SparkCandidate:
    """A marked function with what its decorator says, placeholders resolved; ``mark`` has what may be an object.

    A method is called on the bean that ``owner`` asks for.
    """

    function: Callable[..., Any]
    mark: rocketmq_spark_listener
    declared: Mapping[str, Any]
    owner: Any = None

    @property
    def cluster(self) -> str | None:
        cluster: str | None = self.declared.get("cluster")
        return cluster

    @property
    def group(self) -> str | None:
        group: str | None = self.declared.get("consumer_group")
        return group

    @property
    def label(self) -> str:
        return f"Spark listener {name_of(self.function)}"


@dataclass(frozen=True, kw_only=True)
class SparkPlan:
    """A Spark listener that is to run: what is known of it before anything is connected.

    ``name`` is its group, or ``group.topic`` where the group has several. ``options`` are those of ``QueryOptions``,
    by whoever says them.
    """

    cluster: str | None
    group: str
    name: str
    topic: str
    selector_expression: str
    checkpoint: str
    mark: rocketmq_spark_listener
    trigger: timedelta | Literal["available_now"]
    options: Mapping[str, Any]
    signature: SparkSignature

    @property
    def where(self) -> str:
        return self.signature.where

    @property
    def topics(self) -> tuple[str, ...]:
        return (self.topic,)

    @property
    def user(self) -> UserOptions:
        """That of its group, else the cluster's; Spark's processes have clients of their own, of the same user."""
        return UserOptions(**{name: self.options[name] for name in _OF_THE_USER})

    def listener_options(self) -> SparkListenerOptions:
        """The same as what runs it takes them."""
        from rocketbox.spark.listener_options import SparkListenerOptions
        from rocketbox.spark.listener_source import source_options

        return SparkListenerOptions(
            topic=self.topic,
            group=self.group,
            name=self.name,
            cluster=self.cluster,
            checkpoint=self.checkpoint,
            selector_expression=self.selector_expression,
            schema=self.mark.schema,
            trigger=self.trigger,
            max_messages=self.options["max_messages"],
            starting_offsets=self.options["starting_offsets"],
            as_=self.options["as_"],
            on_invalid=self.options["on_invalid"],
            source_options=source_options(self.options),
            max_batch_attempts=self.options["max_batch_attempts"],
            on_failed_batch=self.options["on_failed_batch"],
            persist=self.options["persist"],
        )

    def describe(self) -> list[str]:
        """Its line in the start log."""
        function = self.signature.function
        return [
            f"Spark listener {name_of(function)} ({self.where}): topic {self.topic}, "
            f"selector {self.selector_expression}, group {self.group}"
            + (f" of cluster {self.cluster}" if self.cluster else "")
            + f", checkpoint {self.checkpoint}"
        ]


class SparkListeners(ListenerKind[SparkCandidate, SparkPlan]):
    """Listeners that get a topic as DataFrames: one streaming query each, on one session for all."""

    mark = rocketmq_spark_listener
    options = (
        *SPARK_SHARES,
        *(name for name, option in QUERY_OPTIONS.items() if option.key is not None),
        *("access_key", "secret_key", "credentials_file"),
    )

    def __init__(self, properties: RocketMQProperties, own: RocketBoxProperties, service: Service) -> None:
        self._properties = properties
        self._own = own.spark
        self._shutdown = own.shutdown
        self._service = service

    def read(self, marked: Sequence[Marked], planning: Planning) -> list[SparkCandidate]:
        found: list[SparkCandidate] = []
        for each in marked:
            for mark in each.marks:
                if isinstance(mark, rocketmq_spark_listener):
                    planning.collect(
                        lambda each=each, mark=mark: found.append(  # type: ignore[misc]  # called at once
                            _candidate(each.target, mark, planning.resolve_text, each.owner)
                        )
                    )
        return found

    def plan(self, declared: Sequence[SparkCandidate], planning: Planning) -> list[SparkPlan]:
        plans: list[SparkPlan] = []
        for each in declared:
            planning.collect(lambda each=each: plans.extend(self._plan(each, planning)))  # type: ignore[misc]  # as above
        planning.findings += [finding for plan in plans for finding in self._keys_for(plan, planning)]
        planning.findings += _shared_places(plans)
        self._check_places(plans, planning)
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
            what = f"{candidate.label} is off: {_off_by(candidate, planning)}"
            planning.off.append(Finding(what, place_of(candidate.function)))

    def _check_places(self, plans: Sequence[SparkPlan], planning: Planning) -> None:
        """Whether Spark's processes, wherever they are, can reach brokers and checkpoints."""
        if not plans or not self._service.machine.spark_queries:
            return
        from rocketbox.spark.places import check_checkpoint, check_servers, known_conf

        conf = known_conf(self._own.conf)
        for plan in plans:
            name = f"Spark listener {name_of(plan.signature.function)}"
            key = f"{cluster_prefix(plan.cluster)}.name-server"
            if self._properties.cluster(plan.cluster or "").is_embedded:
                wrong, maybe = check_servers(conf, name, key, self._service.where(key))
                planning.findings += wrong
                planning.warnings += maybe
            planning.warnings += check_checkpoint(conf, plan.checkpoint, name, plan.where)

    def _keys_for(self, plan: SparkPlan, planning: Planning) -> Iterator[Finding]:
        """That Spark's processes on other machines have no keys, or speak no TLS."""
        own = self._properties.cluster(plan.cluster or "")
        has_keys = own.values()["access_key"] is not None and plan.options["credentials_file"] is None
        if (has_keys or plan.options["access_key"] is not None) and self._is_elsewhere():
            yield self._keys_stay_here(plan)
        if own.encrypts and own.tls.values()["key_password"] is not None:
            key = f"{cluster_prefix(plan.cluster)}.tls.key-password"
            yield Finding(
                f"{key} is set, and group {plan.group!r} is of a Spark listener: what its tasks are told stands in "
                "Spark's plans",
                self._service.where(key),
                "give the key in a file without a password, which only the user of the service and of Spark may read",
            )

    def _is_elsewhere(self) -> bool:
        """Whether Spark works on other machines than this one."""
        if not self._service.machine.spark_queries:
            return False
        from rocketbox.spark.places import known_conf, master_of

        master = master_of(known_conf(self._own.conf))
        return master is not None and not master.startswith("local")

    def _keys_stay_here(self, plan: SparkPlan) -> Finding:
        prefix = cluster_prefix(plan.cluster)
        return Finding(
            f"group {plan.group!r} of a Spark listener has keys from the settings or a bean, and Spark's executors on "
            "other machines cannot get them: options of a read, which Spark would carry there, are shown in its UI",
            plan.where,
            f"write the keys into a file that is at the same path on all machines, and say {prefix}.credentials-file",
        )

    def needs(self, plan: SparkPlan, need: Need) -> None:
        name = f"Spark listener {name_of(plan.signature.function)}"
        if need(MQClientInstance, plan.cluster, name, plan.where):
            need(ClientInstances, plan.cluster, name, plan.where)

    def clashes(self, plan: SparkPlan, processes: int, has_name: Callable[[str | None], bool]) -> Iterator[Finding]:
        yield Finding(
            f"--workers {processes}: each worker would run the Spark query of group {plan.group} on the same "
            "checkpoint",
            plan.where,
            "run Spark listeners in a service of their own, without --workers: Spark spreads their work itself",
        )

    async def start(self, plans: Sequence[SparkPlan], starting: Starting) -> list[SparkListenerContainer]:
        if not self._service.machine.spark_queries:
            for plan in plans:
                _log.info("Spark listener %s does not run: no query is wanted on this machine", plan.group)
            return []
        await self._expect_topics(plans, starting)
        signed_here = [
            plan for plan in plans
            if not isinstance(_instance(plan, starting).options.credentials, CredentialsFile | None)
        ]  # fmt: skip
        if signed_here and self._is_elsewhere():
            raise ConfigurationError([self._keys_stay_here(plan) for plan in signed_here])
        runtime = await starting.stack.enter_async_context(self._runtime())
        return [self._container(plan, runtime, starting) for plan in plans]

    def _runtime(self) -> SparkRuntime:
        from rocketbox.spark.session import SparkRuntime

        left = (self._shutdown.timeout - self._shutdown.drain_timeout).total_seconds()
        return SparkRuntime(
            self._service.name, self._own.conf, clock=self._service.clock, stop_timeout=SESSION_SHARE * left
        )

    async def _expect_topics(self, plans: Sequence[SparkPlan], starting: Starting) -> None:
        """Raise ConfigurationError for topics that do not exist, where the settings say that this is an error."""
        findings = []
        for plan in plans:
            if self._properties.cluster(plan.cluster or "").consumer.missing_topic != "fail":
                continue
            instance = _instance(plan, starting)
            if await instance.find_route(plan.topic) is None:
                name = f"Spark listener {name_of(plan.signature.function)}"
                servers = ", ".join(instance.name_servers)
                what = f"topic {plan.topic} of {name} does not exist at name server {servers}"
                fix = f"create it, or set {cluster_prefix(plan.cluster)}.consumer.missing-topic: wait"
                findings.append(Finding(what, plan.where, fix))
        if findings:
            raise ConfigurationError(findings)

    def _container(self, plan: SparkPlan, runtime: SparkRuntime, starting: Starting) -> SparkListenerContainer:
        from rocketbox.spark.handed_keys import handed_keys
        from rocketbox.spark.listener import SparkListenerContainer

        return SparkListenerContainer(
            plan.listener_options(),
            plan.signature,
            runtime=runtime,
            instance=_instance(plan, starting),
            provider=starting.beans.provider,
            clock=self._service.clock,
            drain_timeout=starting.drain_timeout,
            lines=plan.describe(),
            credentials_file=starting.stack.enter_context(handed_keys(_instance(plan, starting))),
        )


def _instance(plan: SparkPlan, starting: Starting) -> MQClientInstance:
    """The client by which the listener of a plan looks after its topic and lease."""
    clients: ClientInstances = starting.resolve(of_cluster(ClientInstances, plan.cluster))
    return clients.group(plan.group)


@bean
def spark_listeners(properties: RocketMQProperties, own: RocketBoxProperties, service: Service) -> SparkListeners:
    """Listeners of ``@rocketmq_spark_listener``; Spark itself is needed only where there are some."""
    return SparkListeners(properties, own, service)


_KEYS = ("access_key", "secret_key", "credentials_file")
_OF_THE_USER = (*_KEYS, "namespace", "namespace_v2")


def _keys_of(layers: Sequence[OptionLayer]) -> tuple[dict[str, Any], dict[str, str]]:
    """What the first layer says that says anything of keys, and where."""
    for layer in layers:
        if said := {name: layer.values[name] for name in _KEYS if layer.values.get(name) is not None}:
            return {**dict.fromkeys(_KEYS), **said}, {name: layer.where(name) for name in said}
    return dict.fromkeys(_KEYS), {}


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
    settings = clusters.get(candidate.cluster)
    if settings is None:
        raise ConfigurationError(unknown_cluster(name, candidate.cluster, clusters, here))
    group = candidate.group or settings.defaults.values.get("group")
    of_group = settings.groups.get(group or "", OptionLayer.empty())
    layers = (of_group, OptionLayer(candidate.declared, lambda option: here))
    said = {option: layer.values[option] for layer in reversed(layers) for option in layer.values}
    places = {option: layer.where(option) for layer in reversed(layers) for option in layer.values}
    topic = said.get("topic") or settings.defaults.values.get("topic")
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
    if settings.off_by is not None or said.get("enabled") is False:
        return None
    if settings.switches.get(group or "", {}).get(topic or "") is False:
        return None
    if beans.owner_left_out(candidate.owner, place_of(candidate.function)) is not None:
        return None
    from rocketbox.spark.listener_source import wrong_source_options  # only who has a Spark listener loads it

    options = {each.name: said.get(each.name, each.default) for each in QUERY_OPTIONS.values()}
    for option in ("namespace", "namespace_v2"):
        options[option] = said.get(option) or settings.defaults.values.get(option)
    keys, where_keys = _keys_of((of_group, settings.defaults))
    options |= keys
    places |= where_keys
    findings += [
        Finding(f"{each.told()}, for {name}", where_keys.get(each.given[0], here), each.fix)
        for each in mismatches([option for option, value in keys.items() if value is not None])
    ]
    form: RowForm = options["as_"]
    if options["on_invalid"] is OnInvalid.RETRY:  # as settings say it, for listeners of all kinds
        what = f"on-invalid of {name} is retry: a batch comes again as a whole"
        findings.append(
            Finding(what, places["on_invalid"], "say skip or dead-letter; in the decorator also fail, column")
        )
    else:
        options["on_invalid"] = OnInvalidBody(options["on_invalid"].value)
    signature = None
    try:
        from rocketbox.spark.deliveries import Delivery, missing_library
        from rocketbox.spark.listener import read_spark_signature

        signature = read_spark_signature(function, form, owner=candidate.owner)
        Delivery(  # looks at the schema; DDL alone is read by Spark itself, which does not run yet
            label=name,
            where=here,
            group=group or "",
            schema=mark.schema,
            as_=form,
            on_invalid=OnInvalidBody.COLUMN,
            clock=service.clock,
        )
        if (library := missing_library(form)) is not None:
            what = f"{name} asks for its rows as {form.value}, and {library} is not installed"
            findings.append(Finding(what, places.get("as_", here), f"pip install {library}, or leave as_ out"))
    except ModuleNotFoundError as error:
        missing = (error.name or "pyspark").partition(".")[0]
        findings.append(
            Finding(f"{name} needs {missing}, which is not installed", here, "pip install 'rocketbox[spark]'")
        )
    except ConfigurationError as error:
        findings += error.findings
    if candidate.owner is not None and not beans.has(candidate.owner):
        what = f"{name} is a method of {type_name(candidate.owner)}, and there is no such bean"
        findings.append(Finding(what, here, "mark the class @bean"))
    if signature is not None:
        findings += [
            beans.left_out(hint, name, here)
            or Finding(
                f"{name} takes a {type_name(hint)}, and there is no such bean",
                here,
                f"return {type_name(hint)} from a function marked @bean",
            )
            for hint in signature.beans
            if not beans.has(hint) and not dependency_of(hint).optional
        ]
    if mark.trigger is not None and "trigger" not in of_group.values:
        options["trigger"], places["trigger"] = mark.trigger, here
    tags = said.get("selector_expression") or settings.defaults.values.get("selector_expression") or "*"
    try:
        trigger = _trigger(options["trigger"])
    except ValueError as error:
        what = f"trigger of {name} is {options['trigger']!r}: {error}"
        findings.append(Finding(what, places["trigger"], "or write available_now"))
    findings += _wrong_names(name, topic, group, places, here)
    given = {option: options[option] for option in ("namespace", "namespace_v2") if options[option] is not None}
    findings += [Finding(f"{each.told()}, for {name}", here, each.fix) for each in mismatches(given)]
    findings += [
        Finding(f"{option} of {name} is {value!r}: {why}", places.get(option, here), "choose another one")
        for option, value, why in wrong_names(given)
    ]
    if topic and group:
        for option, why in wrong_source_options(options, topic, group, tags, has_schema=mark.schema is not None):
            findings.append(Finding(f"{option} of {name}: {why}", places.get(option, here)))
    if findings:
        raise ConfigurationError(findings)
    assert signature is not None
    assert group is not None
    assert topic is not None
    folder = properties.checkpoint or service.folder / "spark"
    if candidate.cluster is not None:  # groups of two clusters may have one name
        folder /= f"cluster-{quote(candidate.cluster, safe='')}"
    return SparkPlan(
        cluster=candidate.cluster,
        group=group,
        name=group,
        topic=topic,
        selector_expression=tags,
        checkpoint=options["checkpoint"] or str(folder / group),
        mark=mark,
        trigger=trigger,
        options=options,
        signature=signature,
    )


def _wrong_names(
    name: str, topic: str | None, group: str | None, places: Mapping[str, str | None], here: str
) -> Iterator[Finding]:
    if topic and (len(topic) > MAX_TOPIC_CHARS or not is_valid_name(topic)):
        yield Finding(
            f"{name}: topic {topic!r} is no name of a topic",
            places.get("topic", here),
            f"take at most {MAX_TOPIC_CHARS} letters, digits and % | _ -; a listener reads one topic: mark it "
            "once for each",
        )
    if group:
        try:
            check_group(group, "consumer")
        except InvalidGroupError as error:
            yield Finding(f"{name}: {error}", here, "choose another consumer group")


def _shared_places(plans: Sequence[SparkPlan]) -> Iterator[Finding]:
    """Two that one group has for one topic, the second of which would wait for ever, or that have one checkpoint."""
    from rocketbox.spark.paths import local_folder

    readers: dict[tuple[str | None, str, str], SparkPlan] = {}
    holders: dict[str, SparkPlan] = {}
    for plan in plans:
        other = readers.setdefault((plan.cluster, plan.group, plan.topic), plan)
        if other is not plan:
            yield Finding(
                f"two Spark listeners of group {plan.group!r} would read topic {plan.topic!r}, which one query of a "
                "group does",
                f"{other.where} and {plan.where}",
                "give each a consumer group of its own",
            )
            continue
        other = holders.setdefault(str(local_folder(plan.checkpoint) or plan.checkpoint), plan)
        if other is not plan:
            yield Finding(
                f"two Spark listeners would keep their progress in one checkpoint, {plan.checkpoint}",
                f"{other.where} and {plan.where}",
                "give each a consumer group of its own, or a checkpoint of its own",
            )


def _off_by(candidate: SparkCandidate, planning: Planning) -> str:
    settings = planning.clusters[candidate.cluster]
    group = candidate.group or settings.defaults.values.get("group") or ""
    path = f"{settings.prefix}.consumer.listeners.{group}"
    said = settings.groups.get(group, OptionLayer.empty()).values
    if settings.off_by is not None:
        return settings.off_by
    if said.get("enabled") is False:
        return f"{path}.enabled"
    if "enabled" not in said and candidate.declared.get("enabled") is False:
        return "its decorator"
    topic = said.get("topic") or candidate.declared.get("topic") or settings.defaults.values.get("topic") or ""
    left_out = planning.beans.owner_left_out(candidate.owner, place_of(candidate.function))
    if left_out is not None and settings.switches.get(group, {}).get(topic) is not False:
        return left_out.what
    return f"{path}.{topic}"


def _trigger(value: timedelta | str) -> timedelta | Literal["available_now"]:
    if value in ("available_now", "available-now"):
        return "available_now"
    pause = parse_duration(value, bare_numbers=False)
    if pause < timedelta(0):
        raise ValueError("a pause cannot be negative")
    return pause


def _candidate(
    function: Callable[..., Any], mark: rocketmq_spark_listener, resolve_text: ResolveText, owner: Any
) -> SparkCandidate:
    """The function with what its mark says; ConfigurationError with all that is wrong in it."""
    label, here = f"Spark listener {name_of(function)}", place_of(function)
    said, findings = said_in_mark(mark, SparkMarkProperties, label, here, resolve_text)
    texts: dict[str, Any] = {}
    for option in ("schema", "trigger"):
        value = getattr(mark, option)
        if isinstance(value, str) and "${" in value:
            try:
                texts[option] = resolve_text(value, f"{option} of {label}", here)
            except ConfigurationError as error:
                findings += error.findings
    if findings:
        raise ConfigurationError(findings)
    return SparkCandidate(function, dataclasses.replace(mark, **said, **texts), said, owner)
