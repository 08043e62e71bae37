"""The beginning of a service that tells in ``events`` what happens to it, and its one bean."""

__all__ = ["FLIGHT_DESK"]

FLIGHT_DESK = """
import asyncio
import functools
import threading
from collections.abc import AsyncIterator

import anyio
from rocketbox import RocketBox, bean, on_bean, on_profile, on_property

app = RocketBox("flight-desk", scan=[__name__])
events = []

class Desk: ...

@bean
async def desk() -> AsyncIterator[Desk]:
    events.append("desk opens")
    try:
        yield Desk()
    finally:
        events.append("desk closes")
"""
