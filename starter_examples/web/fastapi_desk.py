"""In FastAPI: ``fastapi run starter_examples/web/fastapi_desk.py``; ``curl -X POST localhost:8000/departures/UA1545``.

The service starts and stops with the server, in its loop.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI

from rocketbox import BlockingRocketMQTemplate, RocketMQTemplate
from starter_examples.web.desk import Departure, app

__all__ = ["api"]

api = FastAPI(lifespan=app.lifespan)
Template = Annotated[RocketMQTemplate, Depends(app.provider(RocketMQTemplate))]
Blocking = Annotated[BlockingRocketMQTemplate, Depends(app.provider(BlockingRocketMQTemplate))]


@api.post("/departures/{flight}")
async def departed(flight: str, template: Template) -> str:
    result = await template.send("departures", Departure(flight=flight), keys=flight)
    return result.msg_id


@api.post("/late-departures/{flight}")
def departed_late(flight: str, template: Blocking) -> str:
    """A ``def``, which FastAPI calls in a thread."""
    return template.send("departures", Departure(flight=flight), delay="1s").msg_id


@api.get("/ready")
async def ready() -> dict[str, object]:
    return app.health().as_dict()
