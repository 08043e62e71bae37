"""The kind of ``@rocketmq_listener``: a push consumer for each group, which calls the group's functions.

What decorators say is read in ``listening``, put together to groups in ``listeners.registrar``, and run by
``listeners.container``; here that is made a kind of listeners (``kinds``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from rocketbox.autoconfigure.kinds import ListenerKind, Need, Planning, Starting
from rocketbox.autoconfigure.listening import candidate_of
from rocketbox.autoconfigure.properties import DRAIN_SHARE, RocketBoxProperties, RocketMQProperties, cluster_prefix
from rocketbox.autoconfigure.scan import Marked
from rocketbox.autoconfigure.service import ConverterInUse, ConverterLookup, Service, of_cluster
from rocketbox.autoconfigure.users import ClientInstances
from rocketbox.boot.marks import bean
from rocketbox.client import MQClientInstance
from rocketbox.durations import format_duration
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.listeners import ListenerContainer
from rocketbox.listeners.binding import unreadable_payload
from rocketbox.listeners.options import LISTENER_OPTIONS
from rocketbox.listeners.plans import ContainerPlan
from rocketbox.listeners.registrar import Candidate, plan_containers
from rocketbox.marks import rocketmq_listener, send_to
from rocketbox.message import MessageModel
from rocketbox.template import MessageConverter, RocketMQTemplate

__all__ = ["PushListeners", "check_payloads", "push_listeners"]


class PushListeners(ListenerKind[Candidate, ContainerPlan]):
    """Listeners that brokers' messages are pushed to, as it looks from here: groups of functions."""

    mark = rocketmq_listener
    options = LISTENER_OPTIONS
    modifiers = (send_to,)

    def __init__(self, properties: RocketMQProperties, own: RocketBoxProperties, service: Service) -> None:
        self._properties = properties
        self._shutdown = own.shutdown
        self._service = service

    def read(self, marked: Sequence[Marked], planning: Planning) -> list[Candidate]:
        found: list[Candidate] = []
        for each in marked:
            replies = tuple(mark for mark in each.marks if isinstance(mark, send_to))
            for mark in each.marks:
                if isinstance(mark, rocketmq_listener):
                    planning.collect(
                        lambda each=each, mark=mark, replies=replies: found.append(  # type: ignore[misc]  # called at once
                            candidate_of(
                                each.target, mark, replies, resolve_text=planning.resolve_text, owner=each.owner
                            )
                        )
                    )
        return found

    def plan(self, declared: Sequence[Candidate], planning: Planning) -> list[ContainerPlan]:
        plans, findings, off = plan_containers(
            declared, planning.clusters, beans=planning.beans, converter=planning.converter
        )
        planning.findings += findings
        planning.off += off
        planning.findings += [finding for plan in plans for finding in self._longer_than_the_stop(plan)]
        return plans

    def _longer_than_the_stop(self, plan: ContainerPlan) -> Iterator[Finding]:
        seconds, whole, share = (
            plan.options.await_termination_when_shutdown, self._shutdown.timeout, self._shutdown.drain_timeout
        )  # fmt: skip
        if seconds is not None and (wanted := timedelta(seconds=seconds)) > share:
            key = "rocketbox.shutdown.timeout"
            said = plan.origins.get("await_termination_when_shutdown", plan.where)
            yield Finding(
                f"await-termination-when-shutdown of group {plan.group!r} is {format_duration(wanted)}, and {key} is "
                f"{format_duration(whole)}, of which handlers have three quarters, {format_duration(share)}",
                " and ".join(filter(None, (said, self._service.where(key)))),
                f"set {key} to {format_duration(wanted / DRAIN_SHARE)} or more (and Kubernetes' grace period to more "
                "than that), or leave out await-termination-when-shutdown",
            )

    def needs(self, plan: ContainerPlan, need: Need) -> None:
        """A listener needs a client and a converter, a ``send_to`` a template."""
        known = {None, *self._properties.clusters}
        for function in plan.functions:
            name, where = f"listener {function.signature.name}", function.signature.where
            has_client = need(MQClientInstance, plan.cluster, name, where)
            if has_client:
                need(ClientInstances, plan.cluster, name, where)
            need(MessageConverter, None, name, where)
            for reply in function.replies:
                cluster = reply.cluster or plan.cluster
                if cluster in known and (has_client or cluster != plan.cluster):  # else it is told already
                    need(RocketMQTemplate, cluster, f"@send_to({reply.destination!r}) of {name}", where)

    def clashes(self, plan: ContainerPlan, processes: int, has_name: Callable[[str | None], bool]) -> Iterator[Finding]:
        if plan.options.message_model is MessageModel.BROADCASTING and not has_name(plan.cluster):
            yield Finding(
                f"--workers {processes}: group {plan.group} is BROADCASTING, and the workers would share its one file "
                "of offsets",
                plan.where,
                f"set {cluster_prefix(plan.cluster)}.consumer.instance-name to a name of this service's own on this "
                "machine; each worker adds its number to it",
            )

    async def start(self, plans: Sequence[ContainerPlan], starting: Starting) -> list[ListenerContainer]:
        check_payloads(plans, starting.resolve(MessageConverter))
        converter = ConverterInUse(ConverterLookup(lambda: starting.beans.provider(MessageConverter)))
        machine = self._service.machine
        containers = []
        for plan in plans:
            cluster = self._properties.cluster(plan.cluster or "")
            instance = starting.resolve(of_cluster(ClientInstances, plan.cluster)).group(plan.group)
            if cluster.consumer.missing_topic == "fail":
                await _expect_topics(plan, instance)
            containers.append(
                ListenerContainer(
                    plan,
                    instance=instance,
                    beans=starting.beans,
                    converter=converter,
                    template_of=lambda name: starting.beans.provider(of_cluster(RocketMQTemplate, name)),
                    clock=self._service.clock,
                    await_termination=starting.drain_timeout,
                    given={"wait_for_servers": cluster.startup == "retry", **machine.consumer_options(plan)},
                    paused=machine.listener_paused,
                    payload_held=machine.payload_held,
                )
            )
        return containers


@bean
def push_listeners(properties: RocketMQProperties, own: RocketBoxProperties, service: Service) -> PushListeners:
    """Listeners of ``@rocketmq_listener``."""
    return PushListeners(properties, own, service)


def check_payloads(plans: Sequence[ContainerPlan], converter: MessageConverter) -> None:
    """Raise ConfigurationError for what the listeners want and the converter, a bean that runs now, cannot read."""
    functions = [function for plan in plans for function in plan.functions]
    findings = [each for function in functions if (each := unreadable_payload(function.signature, converter))]
    if findings:
        raise ConfigurationError(findings)


async def _expect_topics(plan: ContainerPlan, instance: MQClientInstance) -> None:
    findings = [
        Finding(
            f"topic {function.topic} of listener {function.signature.name} does not exist at name server "
            f"{', '.join(instance.name_servers)}",
            function.signature.where,
            "create it, or set rocketmq.consumer.missing-topic: wait",
        )
        for function in plan.functions
        if await instance.find_route(function.topic) is None
    ]
    if findings:
        raise ConfigurationError(findings)
