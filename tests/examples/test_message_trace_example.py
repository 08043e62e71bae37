"""The example of message trace, on virtual time: the way of an order is printed, some seconds later."""

from __future__ import annotations

import pytest

from rocketbox.testing import Harness
from starter_examples.message_trace.app import app, bill

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_way_of_an_order_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    async with Harness(app, failures="keep") as harness:
        await harness.consumed("bills")
        await harness.advance("6s")
        await harness.drain()
        assert [str(call.outcome) for call in harness.calls(bill)][-1].endswith("CONSUMED")
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "order-1 was handled by bills: SUCCESS",
        "order-1 was handled in vain by bills: EXCEPTION",
        "order-1 was sent by orders to orders",
    ]
