"""The kind of ``@rocketmq_transaction_listener``: who says what became of a producer's transactions.

Several functions of a service are for one producer, by topic and tag; what they are and how they are called stands in
``listeners.transaction_listeners``, here that is made a kind of listeners (``kinds``).

Source: rocketmq-spring 2.3 ``RocketMQTransactionConfiguration``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocketbox.autoconfigure.kinds import ListenerKind, Need, Planning, Starting
from rocketbox.autoconfigure.listening import said_in, said_in_mark
from rocketbox.autoconfigure.properties import (
    RocketMQProperties,
    TransactionListenerProperties,
    TransactionMarkProperties,
    cluster_prefix,
)
from rocketbox.autoconfigure.scan import Marked
from rocketbox.autoconfigure.service import ConverterInUse, ConverterLookup, Service, of_cluster
from rocketbox.boot.marks import bean
from rocketbox.boot.shapes import key_text, uniform
from rocketbox.client import Producer, TransactionCheckOptions
from rocketbox.declarations import options_of
from rocketbox.errors import ConfigurationError, Finding, InvalidMessageError
from rocketbox.hints import name_of, place_of
from rocketbox.listeners.binding import read_signature, unreadable_payload
from rocketbox.listeners.registrar import unknown_cluster
from rocketbox.listeners.transaction_listeners import (
    TransactionContainer,
    TransactionFunction,
    TransactionListenerOptions,
    TransactionPlan,
    overlaps,
    wrong_checker,
)
from rocketbox.marks import rocketmq_transaction_listener
from rocketbox.protocol.tags import parse_subscription
from rocketbox.template import MessageConverter

__all__ = ["TransactionListeners", "transaction_listeners"]

EVERY_OTHER = "*"
"""Stands in settings for the listeners that name no topic."""


@dataclass(frozen=True)
class TransactionCandidate:
    """A marked function with what its decorator says."""

    function: Callable[..., Any]
    owner: Any
    options: TransactionListenerOptions
    group: str
    off_by: str
    """What says so when ``options.enabled`` is false."""

    @property
    def cluster(self) -> str | None:
        return self.options.cluster

    @property
    def label(self) -> str:
        return f"transaction listener {name_of(self.function)}"

    @property
    def where(self) -> str:
        return place_of(self.function)


class TransactionListeners(ListenerKind[TransactionCandidate, TransactionPlan]):
    """Listeners that producers ask: those of one cluster together."""

    mark = rocketmq_transaction_listener
    options = ()

    def __init__(self, properties: RocketMQProperties, service: Service) -> None:
        self._properties = properties
        self._where = service.where
        self._called = service.machine.transaction_listener_called

    def read(self, marked: Sequence[Marked], planning: Planning) -> list[TransactionCandidate]:
        found: list[TransactionCandidate] = []
        for each in marked:
            for mark in each.marks:
                if isinstance(mark, rocketmq_transaction_listener):
                    planning.collect(
                        lambda each=each, mark=mark: found.append(  # type: ignore[misc]  # called at once
                            self._candidate(each, mark, planning)
                        )
                    )
        return found

    def _candidate(
        self, marked: Marked, mark: rocketmq_transaction_listener, planning: Planning
    ) -> TransactionCandidate:
        here, name = place_of(marked.target), name_of(marked.target)
        values, findings = said_in_mark(
            mark, TransactionMarkProperties, f"transaction listener {name}", here, planning.resolve_text
        )
        if findings:
            raise ConfigurationError(findings)
        off_by = "enabled=False"
        cluster, topic = values.get("cluster"), values.get("topic")
        if (key := self._key_for(cluster, topic)) is not None:
            said = said_in(self._settings(cluster)[key])
            values |= said
            if "enabled" in said:
                off_by = f"{self._path(cluster, key)}.enabled is false"
        options = TransactionListenerOptions(**values)
        return TransactionCandidate(marked.target, marked.owner, options, self._group(cluster), off_by)

    def _settings(self, cluster: str | None) -> Mapping[str, TransactionListenerProperties]:
        """What the settings say of a cluster's listeners, by the topic as it is written there."""
        known = cluster is None or cluster in self._properties.clusters
        return self._properties.cluster(cluster or "").producer.transaction_listeners if known else {}

    def _path(self, cluster: str | None, key: str) -> str:
        return f"{cluster_prefix(cluster)}.{key_text(('producer', 'transaction-listeners', key))}"

    def _key_for(self, cluster: str | None, topic: str | None) -> str | None:
        """The key of a topic: ``PAID_ORDERS`` in the name of a variable may be ``paid-orders``."""
        said, name = self._settings(cluster), topic or EVERY_OTHER
        near = [key for key in said if uniform(key) == uniform(name)]
        return name if name in said else near[0] if len(near) == 1 and topic is not None else None

    def _group(self, cluster: str | None) -> str:
        """How the container is called: no consumer group can be called so."""
        known = cluster is None or cluster in self._properties.clusters
        group = self._properties.cluster(cluster or "").producer.group if known else None
        return f"{group or 'producer'} (transactions)"

    def plan(self, declared: Sequence[TransactionCandidate], planning: Planning) -> list[TransactionPlan]:
        by_cluster: dict[str | None, list[TransactionFunction]] = {}
        for each in declared:
            planning.collect(lambda each=each: self._plan(each, planning, by_cluster))  # type: ignore[misc]  # as above
        plans = []
        for cluster, functions in by_cluster.items():
            planning.findings += overlaps(functions)
            plans.append(TransactionPlan(cluster, self._group(cluster), tuple(functions)))
        for cluster in planning.clusters:
            planning.warnings += self._without_effect(cluster, [each for each in declared if each.cluster == cluster])
        return plans

    def _without_effect(self, cluster: str | None, declared: Sequence[TransactionCandidate]) -> Iterator[Finding]:
        """Settings for topics that no listener names."""
        topics = [each.options.topic for each in declared]
        used = {self._key_for(cluster, topic) for topic in topics}
        for key in self._settings(cluster).keys() - used:
            path = self._path(cluster, key)
            named = ", ".join(sorted({topic or f"none, for which '{EVERY_OTHER}' stands" for topic in topics}))
            yield Finding(
                f"{path} has no effect: no transaction listener of the cluster names that topic",
                self._where(path),
                f"leave it out; topics that they name: {named}" if named else "leave it out; there are none",
            )

    def _plan(
        self,
        candidate: TransactionCandidate,
        planning: Planning,
        by_cluster: dict[str | None, list[TransactionFunction]],
    ) -> None:
        cluster, options, where = candidate.cluster, candidate.options, candidate.where
        if cluster is not None and cluster not in self._properties.clusters:
            raise ConfigurationError(unknown_cluster(candidate.label, cluster, planning.clusters, where))
        if not options.enabled or self._properties.cluster(cluster or "").is_off:
            off_by = f"{cluster_prefix(cluster)}.name-server is false" if options.enabled else candidate.off_by
            planning.off.append(Finding(f"{candidate.label} is off: {off_by}", where))
            return
        if (left_out := planning.beans.owner_left_out(candidate.owner, where)) is not None:
            planning.off.append(Finding(f"{candidate.label} is off: {left_out.what}", where))
            return
        signature = read_signature(
            candidate.function, beans=planning.beans, converter=planning.converter, owner=candidate.owner
        )
        tags = _tags(options, candidate)
        findings = list(wrong_checker(signature))
        if findings:
            raise ConfigurationError(findings)
        pool = TransactionCheckOptions(**{name: getattr(options, name) for name in options_of(TransactionCheckOptions)})
        by_cluster.setdefault(cluster, []).append(TransactionFunction(signature, options.topic, tags, pool))

    def needs(self, plan: TransactionPlan, need: Need) -> None:
        for function in plan.functions:
            name = f"transaction listener {function.signature.name}"
            need(Producer, plan.cluster, name, function.signature.where)
            need(MessageConverter, None, name, function.signature.where)

    async def start(self, plans: Sequence[TransactionPlan], starting: Starting) -> list[TransactionContainer]:
        own: MessageConverter = starting.resolve(MessageConverter)
        functions = [function for plan in plans for function in plan.functions]
        findings = [each for function in functions if (each := unreadable_payload(function.signature, own))]
        if findings:
            raise ConfigurationError(findings)
        converter = ConverterInUse(ConverterLookup(lambda: starting.beans.provider(MessageConverter)))
        return [
            TransactionContainer(
                plan, producer=starting.resolve(of_cluster(Producer, plan.cluster)), beans=starting.beans,
                converter=converter, called=self._called,
            )
            for plan in plans
        ]  # fmt: skip


def _tags(options: TransactionListenerOptions, candidate: TransactionCandidate) -> frozenset[str] | None:
    if options.tags is None:
        return None
    if options.topic is None:
        what = f"{candidate.label} has tags, and names no topic"
        raise ConfigurationError(Finding(what, candidate.where, "write topic='...' beside them"))
    try:
        tags = frozenset(parse_subscription(options.topic, options.tags).tags_set)
    except InvalidMessageError as error:
        what = f"tags of {candidate.label} is {options.tags!r}: {error}"
        raise ConfigurationError(Finding(what, candidate.where, "write tags='paid || prepaid'")) from error
    return None if "*" in tags or not tags else tags


@bean
def transaction_listeners(properties: RocketMQProperties, service: Service) -> TransactionListeners:
    """Listeners of ``@rocketmq_transaction_listener``."""
    return TransactionListeners(properties, service)
