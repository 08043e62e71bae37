"""What a service's own middleware makes of calls and sends, as the records of a harness show it."""

from __future__ import annotations

import pytest

from rocketbox.testing import Harness
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

HEAD = """
from typing import Any

from rocketbox import RocketBox, bean, rocketmq_listener
from rocketbox.client import ConsumeContext, ConsumeMiddleware, ConsumeNext, SendContext, SendMiddleware, SendNext

app = RocketBox("shop", scan=[__name__])
ran = []
"""

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: shop}
"""

TWO_FUNCTIONS = """
@rocketmq_listener(
    topic="orders", consumer_group="desk", selector_expression="new", consume_message_batch_max_size=10
)
async def place(numbers: list[str]) -> None:
    ran.append(("place", numbers))

@rocketmq_listener(
    topic="orders", consumer_group="desk", selector_expression="gone", consume_message_batch_max_size=10
)
async def cancel(numbers: list[str]) -> None:
    ran.append(("cancel", numbers))
"""


async def test_each_function_of_a_topic_has_calls_of_its_own_in_a_mixed_batch(service: ServiceMaker) -> None:
    shop = service(HEAD + TWO_FUNCTIONS, SETTINGS)
    async with Harness(shop.app) as harness:
        failing = harness.handler(shop.cancel).fails(1)
        with harness.freeze("desk"):
            for number in ("1", "2", "3", "4"):
                tag = "new" if number in "13" else "gone"
                await harness.send("orders", number, tag=tag, hash_key="one queue")
        await harness.drain()
        assert shop.ran == [("place", ["1", "3"])]
        assert failing.left == 0
        await harness.advance("1m")
        assert [call.payload for call in harness.calls(shop.place)] == [["1", "3"]]
        assert [call.attempt for call in harness.calls(shop.cancel)] == [1, 2, 2]
        assert sorted(number for name, numbers in shop.ran if name == "cancel" for number in numbers) == ["2", "4"]
