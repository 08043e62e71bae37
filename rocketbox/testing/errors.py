"""What goes wrong with a harness itself, rather than with the service in it."""

from __future__ import annotations

from collections.abc import Sequence

from rocketbox.errors import RocketBoxError

__all__ = ["HarnessError", "SimulatedError", "StuckError"]


class HarnessError(RocketBoxError):
    """The harness cannot do what it was asked; the text says what would be right."""


class StuckError(HarnessError, TimeoutError):
    """Something in the service does not come to an end: a handler hangs, or waits for what nobody will do."""

    def __init__(self, waits: Sequence[str], seconds: float, *, virtual: bool = True) -> None:
        """``virtual``: it was in virtual time."""
        self.waits = tuple(waits)
        stands_still = " of real time, and no virtual time passes under code that waits in real time" if virtual else ""
        super().__init__(
            f"nothing has gone on for {seconds:g} s{stands_still}: {'; '.join(waits)}. Give the handler something that "
            "answers (beans=...), or let the harness wait longer: Harness(app, patience=60)"
        )


class SimulatedError(RocketBoxError):
    """What a handler raises because a test has said so: ``harness.handler(pay).fails(2)``."""
