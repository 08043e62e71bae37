"""The service: two listeners here, the lake in ``lake.py``; everything else is in ``rocketbox.yaml``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel

from rocketbox import (
    ConsumeFromWhere,
    ConsumeMode,
    Header,
    MessageExt,
    Reject,
    RetryLater,
    RocketBox,
    bean,
    configuration_properties,
    rocketmq_listener,
    send_to,
)
from starter_examples.flight_desk.ledger import Ledger
from starter_examples.flight_desk.model import Alert, Departure

__all__ = ["DeskProperties", "app"]


@configuration_properties("desk")
class DeskProperties(BaseModel):
    """What the flight desk is told by ``desk.*`` in the YAML."""

    threshold_minutes: int = 60
    senders: int = 32


@bean
def ledger() -> Ledger:
    return Ledger()


@rocketmq_listener(
    topic="departures",
    consumer_group="desk",
    selector_expression="UA || AA || DL",
    consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
)
@send_to("alerts")
async def on_departure(
    departure: Departure,
    message: MessageExt,
    properties: DeskProperties,
    ledger: Ledger,
    run: Annotated[str, Header("run")],
) -> Alert | None:
    """Finds the late departures; what it returns is sent to the topic ``alerts``."""
    ledger.saw_at_desk(run, departure.row, redelivered=message.reconsume_times > 0)
    if departure.departure_time is None or departure.delay_minutes is None:
        raise Reject(f"{departure.key} of {departure.scheduled} has no departure time")
    if departure.delay_minutes <= properties.threshold_minutes:
        return None
    if ledger.may_stumble(run):
        raise RetryLater(timedelta(seconds=1))
    return Alert(
        run=run,
        row=departure.row,
        flight=departure.key,
        origin=departure.origin,
        dest=departure.dest,
        delay_minutes=departure.delay_minutes,
    )


@rocketmq_listener(
    topic="departures",
    consumer_group="audit",
    consume_mode=ConsumeMode.ORDERLY,
    consume_message_batch_max_size=200,
    consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
)
def audit(departures: list[Departure], messages: list[MessageExt], ledger: Ledger) -> None:
    """Proves that every row comes, and that rows of one flight come in order. A plain ``def`` runs in a thread."""
    ledger.saw_in_audit(
        (message.properties.get("run", ""), departure.key, departure.row)
        for departure, message in zip(departures, messages, strict=True)
    )


app = RocketBox("flight-desk")
