"""Reads the departures, and works out from them alone what the service must find."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starter_examples.flight_desk.model import Departure

__all__ = ["DESK_CARRIERS", "Expected", "expect", "read_airlines", "read_departures"]

FOLDER = Path(__file__).parent / "data"
DESK_CARRIERS = ("UA", "AA", "DL")


def _number(text: str) -> int | None:
    return None if text == "NA" else int(text)


def read_departures(first: int | None = None) -> list[Departure]:
    """The first ``first`` departures of the file, or all 27,004."""
    departures = []
    with gzip.open(FOLDER / "flights-2013-01.csv.gz", "rt", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 1):
            if first is not None and number > first:
                break
            departures.append(
                Departure(
                    row=number,
                    carrier=row["carrier"],
                    flight=int(row["flight"]),
                    origin=row["origin"],
                    dest=row["dest"],
                    scheduled=row["time_hour"],
                    departure_time=_number(row["dep_time"]),
                    delay_minutes=_number(row["dep_delay"]),
                )
            )
    return departures


def read_airlines() -> dict[str, str]:
    """The airline's name for each carrier code."""
    with (FOLDER / "airlines.csv").open(newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


@dataclass(frozen=True)
class Expected:
    """How much of everything there must be at the end."""

    sent: int
    desk: int
    alerts: int
    rejected: int
    with_delay: int


def expect(departures: Sequence[Departure], threshold_minutes: int) -> Expected:
    """Count what the listeners must find, without any messages."""
    desk = [departure for departure in departures if departure.carrier in DESK_CARRIERS]
    return Expected(
        sent=len(departures),
        desk=len(desk),
        alerts=sum((departure.delay_minutes or 0) > threshold_minutes for departure in desk),
        rejected=sum(departure.departure_time is None for departure in desk),
        with_delay=sum(departure.delay_minutes is not None for departure in departures),
    )
