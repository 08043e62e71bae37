"""Beans that a service takes once, when it starts: what would take the place of one afterwards is given to nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.hooks import HookRole
from rocketbox.autoconfigure.spark_listening import SparkPlan
from rocketbox.boot.definitions import BeanDefinition
from rocketbox.boot.dependencies import Dependency, dependency_of
from rocketbox.client import ConsumeMiddleware, SendMiddleware
from rocketbox.client.credentials import CredentialsProvider
from rocketbox.listeners.plans import ContainerPlan
from rocketbox.listeners.transaction_listeners import TransactionPlan
from rocketbox.otel import MessageSpans
from rocketbox.template import PayloadCodec

__all__ = ["taken_as"]

TAKEN: dict[Any, str] = {
    SendMiddleware: "middleware of sends",
    ConsumeMiddleware: "middleware of handlers",
    MessageSpans: "what makes spans",
    CredentialsProvider: "what gives keys",
    PayloadCodec: "a format of bodies",
}
CALLED_LATER = (HookRole.EVERY, HookRole.SHUTDOWN)


def taken_as(assembly: Assembly, bean: BeanDefinition) -> str | None:
    """What a bean is that the start has taken, in words; None for all others, and where a handler or a hook that is
    called later asks for it as well, which is given what overrides it."""
    planned = assembly.container.planned
    for kind, what in TAKEN.items():
        if bean in planned.candidates(Dependency(kind, every=True)):
            asked = any(bean in planned.candidates(dependency_of(hint)) for hint in _asked_later(assembly))
            return None if asked else what
    return None


def _asked_later(assembly: Assembly) -> Iterator[Any]:
    """What handlers and hooks ask for at each of their calls, as types."""
    for plan in assembly.plans:
        if isinstance(plan, ContainerPlan | TransactionPlan):
            for function in plan.functions:
                yield from (*function.signature.beans, function.signature.owner)
        elif isinstance(plan, SparkPlan):
            yield from (*(hint for _, hint in plan.signature.parameters), plan.signature.owner)
    for hook in assembly.hooks.planned:
        if hook.hook.role in CALLED_LATER:
            yield from (hint for _, hint, _ in hook.arguments)
