"""A listener container of a few functions, on a client of the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocketbox.client import MQClientInstance
from rocketbox.listeners import ListenerContainer
from rocketbox.listeners.binding import Beans
from rocketbox.listeners.options import OptionLayer
from rocketbox.listeners.registrar import Candidate, ClusterSettings, plan_containers
from rocketbox.marks import marks_of, send_to
from rocketbox.template import JsonMessageConverter, RocketMQTemplate

__all__ = ["container_of"]

NO_BEANS = Beans(has=lambda hint: False, provider=lambda hint: lambda: None)


async def on_arrival(arrival: dict[str, Any]) -> None: ...


async def on_departure(departure: dict[str, Any]) -> None: ...


def container_of(
    instance: MQClientInstance,
    functions: dict[str, Callable[..., Any]] | None = None,
    *,
    template: RocketMQTemplate | None = None,
    **options: Any,
) -> ListenerContainer:
    """A container of group g with a function for each topic, at first A and T; ``template`` sends their replies on."""
    candidates = [
        Candidate(
            function,
            OptionLayer({"topic": topic, "consumer_group": "g", **options}, lambda name: "here"),
            tuple(mark for mark in marks_of(function) if isinstance(mark, send_to)),
        )
        for topic, function in (functions or {"A": on_arrival, "T": on_departure}).items()
    ]
    converter = JsonMessageConverter()
    (plan,), wrong, _ = plan_containers(candidates, {None: ClusterSettings()}, beans=NO_BEANS, converter=converter)
    assert not wrong

    def template_of(cluster: str | None) -> Callable[[], RocketMQTemplate]:
        assert template is not None, "nothing is sent on"
        return lambda: template

    return ListenerContainer(
        plan, instance=instance, beans=NO_BEANS, converter=converter, template_of=template_of, clock=instance.clock
    )
