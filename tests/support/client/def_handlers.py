"""A consumer of ``def`` handlers on virtual time: its threads run in the time of the machine."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from rocketbox.client import ClientOptions, ConsumerOptions, PushConsumer
from rocketbox.message import ConsumeFromWhere
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, settle
from tests.support.waiting import PATIENCE

__all__ = ["Setting"]


class Setting:
    """One consumer's broker and clock; all but threads goes on when a test moves the clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.broker = ScriptedBroker(self.clock)
        self.broker.topics = {"T": 1, "%RETRY%g": 1}

    def consumer(self, **options: object) -> PushConsumer:
        options.setdefault("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)
        return PushConsumer(
            "g",
            name_server=self.broker.address,
            options=ConsumerOptions(**options),  # type: ignore[arg-type] # options of many types
            client_options=ClientOptions(client_ip="10.0.0.9", instance_name="c1"),
            clock=self.clock,
            network=self.broker.network,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait, in the time of threads, not of the clock."""
        with anyio.fail_after(PATIENCE):
            while not condition():
                await anyio.sleep(0.001)
                await settle(20)
