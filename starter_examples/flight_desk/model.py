"""What travels over the topics: departures and alerts."""

from __future__ import annotations

from pydantic import BaseModel

__all__ = ["Alert", "Departure"]


class Departure(BaseModel):
    """One row of the data; ``row`` counts from 1. A cancelled departure has no departure time and no delay."""

    row: int
    carrier: str
    flight: int
    origin: str
    dest: str
    scheduled: str
    departure_time: int | None
    delay_minutes: int | None

    @property
    def key(self) -> str:
        """The flight, such as ``UA1545``: by it messages are found, and within it they keep their order."""
        return f"{self.carrier}{self.flight}"


class Alert(BaseModel):
    """A late departure."""

    run: str
    row: int
    flight: str
    origin: str
    dest: str
    delay_minutes: int
