"""A start that waits names what it waits for."""

from __future__ import annotations

import logging

import anyio
import pytest

from rocketbox.autoconfigure.loading import Launch
from rocketbox.autoconfigure.machine import Machine
from tests.support.clocks import VirtualClock
from tests.support.framework.services import ServiceMaker

SOURCE = """
from rocketbox import RocketBox, bean
from rocketbox.autoconfigure.service import Service

app = RocketBox("flight-desk", scan=[__name__])

class Desk: ...

@bean
async def desk(service: Service) -> Desk:
    await service.clock.sleep(5)
    return Desk()

@bean
async def quick(service: Service) -> Desk:
    await service.clock.sleep(1.9)
    return Desk()

@app.on_startup
async def warm_up(service: Service) -> None:
    await service.clock.sleep(3)
"""


@pytest.mark.anyio
async def test_a_slow_start_names_the_bean_and_the_hook_that_it_waits_for(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rocketbox")
    module = service(SOURCE, "")
    clock = VirtualClock(settle=anyio.wait_all_tasks_blocked)

    async def use() -> None:
        async with module.app.launched(Launch(machine=Machine(clock=clock))):
            await clock.sleep(60)

    await clock.run(use)
    told = [record.getMessage() for record in caplog.records if "still starting" in record.getMessage()]
    place = f"{module.__name__}.py"
    assert told == [
        f"flight-desk is still starting: it has waited 2 s for bean desk ({place}:8)",
        f"flight-desk is still starting: it has waited 4 s for bean desk ({place}:8)",
        f"flight-desk is still starting: it has waited 2 s for startup hook warm_up ({place}:18)",
    ]
