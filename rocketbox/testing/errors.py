"""What goes wrong with a harness itself, rather than with the service in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from rocketbox.errors import RocketBoxError

__all__ = ["EndlessError", "FrozenTimeError", "HarnessError", "SimulatedError", "StuckError", "UnendingError", "note"]


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


class UnendingError(StuckError):
    """One handler, or something else that is waited for, goes on in real time without coming to its end."""

    def __init__(self, waits: Sequence[str], seconds: float) -> None:
        self.waits = tuple(waits)
        RocketBoxError.__init__(
            self,
            f"it has not come to its end in {seconds:.3g} s of real time, in which no virtual time passes: "
            f"{'; '.join(waits)}. Give the handler something that answers (beans=...); what only takes long needs a "
            "harness that waits longer: Harness(app, patience=60)",
        )


class FrozenTimeError(StuckError):
    """Something goes on in real time, and the time of the event loop stands still, as freezegun lets it."""

    def __init__(self, waits: Sequence[str]) -> None:
        self.waits = tuple(waits)
        RocketBoxError.__init__(
            self,
            f"the time of the event loop stands still, so that nothing can be waited for in real time: "
            f"{'; '.join(waits)}. Write freeze_time(..., real_asyncio=True), which freezes the time of day alone",
        )


class EndlessError(StuckError):
    """Messages lead to each other without end, or a task sends them, and all of that at one moment of virtual time."""

    def __init__(self, latest: Sequence[str], seconds: float) -> None:
        self.waits = tuple(latest)
        RocketBoxError.__init__(
            self,
            f"messages come one after the other without end: for {seconds:.3g} s of real time no virtual time has "
            f"passed. The last were: {'; '.join(latest)}. Have a handler end that, or a task wait between two "
            "sends; what only takes long needs a harness that waits longer: Harness(app, patience=60)",
        )


class SimulatedError(RocketBoxError):
    """What a handler raises because a test has said so: ``harness.handler(pay).fails(2)``."""


def note(error: BaseException, text: str) -> None:
    """Note something at an error, where it takes notes: one that is frozen does not."""
    if text not in getattr(error, "__notes__", ()):
        with suppress(Exception):
            error.add_note(text)
