"""The listeners of a service under test, and its clusters, by the names that a test has for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rocketbox.application import RocketBox
from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.spark_listening import SparkPlan
from rocketbox.autoconfigure.users import ClientPlan, PlannedClients
from rocketbox.client.outcomes import DEAD_LETTER
from rocketbox.client.send_back import DEFAULT_MAX_RECONSUME_TIMES
from rocketbox.hints import name_of, plain_function
from rocketbox.listeners.plans import ContainerPlan, ListenerFunction
from rocketbox.listeners.signature import HandlerSignature
from rocketbox.message import ConsumeMode, MessageModel
from rocketbox.protocol.codes import dlq_topic
from rocketbox.protocol.namespaces import Namespace
from rocketbox.testing.errors import HarnessError
from rocketbox.testing.retries import Retries

__all__ = ["Asking", "Listened", "another_object", "is_meant", "is_same"]


Asking = tuple[str | None, str | None]
"""A cluster and a group of listeners there; without a group, what the service sends there."""


def is_meant(asked: Callable[..., Any] | str, function: Callable[..., Any], *names: str) -> bool:
    """Whether a marked function is asked for: by one of its names, by itself, or as a method of an object or class.

    The method of an object in the place of a bean is what is called for that which stands under its name above.
    """
    if isinstance(asked, str):
        return asked in names
    if getattr(asked, "__func__", asked) is getattr(function, "__func__", function):
        return True
    bases = type(asked.__self__).__mro__ if inspect.ismethod(asked) else ()
    return any(vars(base).get(asked.__name__) is function for base in bases)


def is_same(one: Any, other: Any) -> bool:
    """Whether two handlers are one: one object, or one method of one object. It does not ask what they are equal to."""
    if one is other:
        return True
    functions = [getattr(each, "__func__", each) for each in (one, other)]
    owners = [getattr(each, "__self__", None) for each in (one, other)]
    return functions[0] is functions[1] and owners[0] is owners[1]


def another_object(asked: Any, kind: str, meant: Sequence[Callable[..., Any]], places: Sequence[str]) -> str:
    """What is told of an object that only has the name of others, which are listeners of that kind at these places."""
    name, module, modules = name_of(asked), _module_of(asked), list(dict.fromkeys(map(_module_of, meant)))
    told = f"this {name} is another object than the {kind} of that name, {' and '.join(places)}"
    if module not in modules:
        told += f" (it is of module {module}, and not of {' or '.join(modules)})"
    by_name = f", or its name, {name!r}" if all(is_same(each, meant[0]) for each in meant) else ""
    return f"{told}: give the object that the decorator has marked{by_name}"


def _module_of(function: Any) -> str:
    return str(getattr(plain_function(function), "__module__", "?"))


class Listened:
    """What is known as soon as the service is planned; until then it has no listeners and no further clusters."""

    def __init__(self, app: RocketBox) -> None:
        self._app = app
        self.plans: list[ContainerPlan] = []
        self._spark: list[SparkPlan] = []
        self._first_names: Mapping[str, str | None] = {}
        self._clients = PlannedClients()

    def planned(self, assembly: Assembly, first_names: Mapping[str, str | None]) -> None:
        """``first_names`` has the first name of each further cluster, None for one that is the main one."""
        self.plans = [plan for plan in assembly.plans if isinstance(plan, ContainerPlan)]
        self._spark = [plan for plan in assembly.plans if isinstance(plan, SparkPlan)]
        self._first_names = first_names
        self._clients = assembly.clients

    # --- clusters ----------------------------------------------------------------------------------------------------

    @property
    def clusters(self) -> list[str | None]:
        """All of them, each once, by its first name: None is the main one."""
        return list(dict.fromkeys([None, *self._first_names.values()]))

    @property
    def further_clusters(self) -> list[str]:
        """All names of further clusters."""
        return list(self._first_names)

    def same_as(self, cluster: str | None) -> str | None:
        """The first name of a cluster that has several; None is the main one."""
        return self._first_names.get(cluster, cluster) if cluster else None

    def check_cluster(self, cluster: str | None) -> None:
        """Raises HarnessError for a name that the settings do not have."""
        known = self.further_clusters
        if cluster and cluster not in known:
            others = f"its further clusters are: {', '.join(known)}" if known else "it has no further ones"
            raise HarnessError(f"{cluster!r} is no cluster of {self._app.name} (rocketmq.clusters); {others}")

    def topics(self, cluster: str | None, *, of_spark: bool = False) -> dict[tuple[Namespace, str], Asking]:
        """Those that listeners take from, and those that they send on to, of the cluster with that first name.

        Each with the namespace that it is in, and who asks for it first.

        ``of_spark``: the topics of Spark listeners as well, and those of their dead letters. They are there before they
        are asked for: no test waits for one to be made.
        """
        topics: dict[tuple[Namespace, str], Asking] = {}

        def ask(topic: str, of: str | None, group: str | None = None) -> None:
            if self.same_as(of) == cluster:
                topics.setdefault((self.namespace_of(of, group), topic), (of, group))

        for plan in self._spark if of_spark else ():
            ask(plan.topic, plan.cluster, plan.group)
            ask(dlq_topic(plan.group), plan.cluster, plan.group)
        for each in self.plans:
            for function in each.functions:
                ask(function.topic, each.cluster, each.group)
                for reply in function.replies:
                    ask(reply.destination.partition(":")[0], reply.cluster or each.cluster)
        return topics

    def clients(self, cluster: str) -> tuple[ClientPlan, ...]:
        """All clients of a cluster, by its name; empty for the main one."""
        clients = self._clients.clusters.get(cluster)
        return () if clients is None else clients.clients

    def client_of(self, cluster: str | None, group: str | None = None) -> ClientPlan:
        """Who a group's listeners are to a cluster; with no group, who sends there."""
        clusters = self._clients.clusters
        if group is None:
            return clusters[cluster or ""].producer
        # Who has only the first name of a cluster may mean a group of another one of its names.
        same = (name for name in clusters if self.same_as(name or None) == self.same_as(cluster))
        return next(clusters[name].groups[group] for name in (cluster or "", *same) if group in clusters[name].groups)

    def namespace_of(self, cluster: str | None, group: str | None = None) -> Namespace:
        """The namespace of that client."""
        return Namespace(self.client_of(cluster, group).user.namespace or "")

    def namespaces(self, cluster: str | None) -> list[Namespace]:
        """All namespaces in the cluster with that first name."""
        users = [
            client.user
            for name, clients in self._clients.clusters.items()
            if self.same_as(name or None) == cluster
            for client in clients.clients
        ]
        return list(dict.fromkeys(Namespace(user.namespace or "") for user in users))

    def plain(self, cluster: str | None, name: str) -> str:
        """A topic or group of that cluster's broker as the service knows it."""
        return next((n.unwrap(name) for n in self.namespaces(cluster) if n.unwrap(name) != name), name)

    # --- groups ------------------------------------------------------------------------------------------------------

    def container(self, group: str, cluster: str | None) -> Any:
        """What runs the listeners of a group. Raises HarnessError for none."""
        self.check_group(group, cluster)
        return self._app.listeners[(cluster, group) if cluster else group]

    def check_group(self, group: str, cluster: str | None = None, *, or_of_spark: bool = False) -> None:
        """Raises HarnessError for a group that no listener has, and unless said otherwise for one of Spark's."""
        self.check_cluster(cluster)
        if or_of_spark and (group, cluster or None) in [(plan.group, plan.cluster or None) for plan in self._spark]:
            return
        known = [plan.group for plan in self.plans if (plan.cluster or None) == (cluster or None)]
        if group not in known:
            elsewhere = [plan.cluster for plan in self.plans if plan.group == group and plan.cluster]
            whose = f"cluster {cluster}" if cluster else self._app.name
            raise HarnessError(
                f"{self._no_group(group, whose)}; its groups are: {', '.join(known) or 'none'}"
                + (f" (cluster {elsewhere[0]} has one: write cluster={elsewhere[0]!r})" if elsewhere else "")
            )

    def _no_group(self, group: Any, whose: str) -> str:
        asked = group if isinstance(group, str) else name_of(group)
        if asked in [plan.group for plan in self._spark]:
            return f"{asked!r} is the group of a Spark listener, which consumes nothing here: call it by harness.batch"
        for plan in self.plans:
            if asked != plan.group and asked in [function.signature.name for function in plan.functions]:
                return f"{asked!r} is a handler, and its group is {plan.group!r}"
        return f"{asked!r} is no group of {whose}"

    def retries_of(self, group: str, cluster: str | None) -> Retries:
        """How messages of a group that have failed come again, or are given up; ``cluster`` is a first name."""
        for plan in self.plans:
            if plan.group == group and self.same_as(plan.cluster) == cluster:
                options = plan.options
                in_order = options.consume_mode is ConsumeMode.ORDERLY
                times = options.max_reconsume_times
                return Retries(
                    DEFAULT_MAX_RECONSUME_TIMES if times < 0 and not in_order else times,
                    are_kept=options.message_model is not MessageModel.BROADCASTING,
                    at_once_dead=options.delay_level_when_next_consume == DEAD_LETTER and not in_order,
                    in_order=in_order,
                )
        return Retries(DEFAULT_MAX_RECONSUME_TIMES)

    def groups_with_dead_letters(self) -> list[tuple[str | None, str]]:
        """Those that may give up messages, Spark's as well, each with its cluster."""
        of_brokers = [plan for plan in self.plans if plan.options.message_model is MessageModel.CLUSTERING]
        plans: list[ContainerPlan | SparkPlan] = [*of_brokers, *self._spark]
        return [(plan.cluster or None, plan.group) for plan in plans]

    # --- handlers ----------------------------------------------------------------------------------------------------

    def handler(self, asked: Callable[..., Any] | str) -> HandlerSignature:
        """The one that is meant by a function or a name. Raises HarnessError for none, and for a name of several."""
        known = [(function, plan.group) for plan in self.plans for function in plan.functions]
        found = [each for each in known if is_meant(asked, each[0].signature.function, each[0].signature.name)]
        if not found:
            raise HarnessError(self._no_handler(asked, known))
        first = found[0][0].signature
        if not all(is_same(each.signature.function, first.function) for each, _ in found):
            name = asked if isinstance(asked, str) else name_of(asked)
            raise HarnessError(
                f"{name} is the name of {len(found)} handlers of {self._app.name}: give the one that is meant itself, "
                f"and not its name: {', '.join(_place(*each) for each in found)}"
            )
        return first

    def _no_handler(self, asked: Any, known: Sequence[tuple[ListenerFunction, str]]) -> str:
        name = asked if isinstance(asked, str) else name_of(asked)
        for plan in self._spark:
            if is_meant(asked, plan.signature.function, plan.name, name_of(plan.signature.function)):
                return f"{name} is a Spark listener: harness.batch calls it, and returns what it returned"
        if alike := [each for each in known if each[0].signature.name == name]:
            places = [_place(*each) for each in alike]
            return another_object(asked, "handler", [each.signature.function for each, _ in alike], places)
        handlers = f"its handlers are: {', '.join(each.signature.name for each, _ in known) or 'none'}"
        if any(asked == plan.group for plan in self.plans):
            return f"{name} is a group of {self._app.name}, and calls are those of a handler; {handlers}"
        return f"{name} is no handler of {self._app.name}; {handlers}"


def _place(function: ListenerFunction, group: str) -> str:
    return f"{function.signature.name} of group {group} ({function.signature.where})"
