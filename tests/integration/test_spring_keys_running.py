"""Keys of rocketmq-spring whose effect only shows while a service runs."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.client import MQClientInstance
from rocketbox.client.api.groups import consumer_ids
from rocketbox.errors import InvalidMessageError
from tests.support.framework.services import SETTINGS, ServiceMaker
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

SERVICE = """
from rocketbox import MessageExt, RocketBox, rocketmq_listener

app = RocketBox("desk", scan=[__name__])
seen = []

@rocketmq_listener()
async def on_departure(message: MessageExt) -> None:
    seen.append((message.topic, message.tag))
"""

KEYS = """
  consumer:
    group: desk
    topic: departures
    selector-expression: UA || AA
    pull-batch-size: 1
    instance-name: gate
  producer: {group: desk, max-message-size: 1KB}
"""


async def test_defaults_of_listeners_and_the_name_of_the_client_hold(service: ServiceMaker) -> None:
    module = service(SERVICE, SETTINGS.replace("\n  producer: {group: desk}\n", KEYS))
    async with module.app as app:
        for tag in ("UA", "XX", "AA"):
            await app.template.send(f"departures:{tag}", b"a departure")
        with anyio.fail_after(PATIENCE):
            while len(module.seen) < 2:
                await anyio.sleep(0.02)
        instance = app.get(MQClientInstance)
        (client_id,) = await consumer_ids(
            instance.remoting, instance.broker_address(*instance.broker_names), "desk", timeout=3.0
        )
        with pytest.raises(InvalidMessageError, match="1024 are allowed"):
            await app.template.send("departures", b"x" * 1025)
    assert sorted(module.seen) == [("departures", "AA"), ("departures", "UA")]
    assert client_id == instance.client_id
    assert client_id.endswith("@gate")
