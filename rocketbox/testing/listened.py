"""The topics of a service: no test waits for one to be made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rocketbox.listeners.plans import ContainerPlan

__all__ = ["topics_of"]


def topics_of(plans: Iterable[Any], belongs: Callable[[str | None], bool]) -> list[str]:
    """Those that listeners take from, and those that they send on to, of clusters that ``belongs`` says; None is the
    main one. Of plans for other kinds of listeners none."""
    topics: dict[str, None] = {}
    for plan in plans:
        for function in plan.functions if isinstance(plan, ContainerPlan) else ():
            if belongs(plan.cluster):
                topics[function.topic] = None
            for reply in function.replies:
                if belongs(reply.cluster or plan.cluster):
                    topics[reply.destination.partition(":")[0]] = None
    return list(topics)
