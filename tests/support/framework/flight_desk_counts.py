"""What the example of the flight desk counts of the first 2,000 departures, wherever it runs."""

from __future__ import annotations

__all__ = ["FIRST_2000", "IN_THE_LAKE"]

FIRST_2000 = {
    "sent": 2000,
    "audit: distinct rows": 2000,
    "desk: distinct rows": 880,
    "desk: alerts": 33,
    "desk: rejected, in the dead-letter queue": 5,
    "lost": 0,
}
IN_THE_LAKE = {
    "lake: rows": 2000,
    "lake: rows with a delay": 1988,
    "lake: messages left out": 0,
    "lake: messages kept twice": 0,
}
