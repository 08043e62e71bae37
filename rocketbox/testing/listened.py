"""The topics of a service: no test waits for one to be made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rocketbox.autoconfigure.spark_listening import SparkPlan
from rocketbox.listeners.plans import ContainerPlan
from rocketbox.protocol.codes import dlq_topic

__all__ = ["topics_of"]


def topics_of(plans: Iterable[Any], belongs: Callable[[str | None], bool]) -> list[str]:
    """Those that listeners take from, and those that they send on to, of clusters that ``belongs`` says; None is the
    main one. Of a Spark listener its topic, and that of its dead letters; of other kinds of listeners none."""
    topics: dict[str, None] = {}
    for plan in plans:
        if isinstance(plan, SparkPlan) and belongs(plan.cluster):
            topics |= {plan.topic: None, dlq_topic(plan.group): None}
        for function in plan.functions if isinstance(plan, ContainerPlan) else ():
            if belongs(plan.cluster):
                topics[function.topic] = None
            for reply in function.replies:
                if belongs(reply.cluster or plan.cluster):
                    topics[reply.destination.partition(":")[0]] = None
    return list(topics)
