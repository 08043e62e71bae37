"""The test harness: a service on virtual time, on the production code of client and broker, in memory.

``Harness`` is the class, and pytest's fixture ``harness`` is an object of it. Nothing of the rest of rocketbox imports
this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketbox.lazy_names import lazy_names

if TYPE_CHECKING:
    from rocketbox.testing.errors import HarnessError, SimulatedError, StuckError
    from rocketbox.testing.harness import Harness, QueueOffsets
    from rocketbox.testing.records import Call, DeadLetter, Outcome, Sent, SentMessages, Unreadable

__all__ = [
    "Call",
    "DeadLetter",
    "Harness",
    "HarnessError",
    "Outcome",
    "QueueOffsets",
    "Sent",
    "SentMessages",
    "SimulatedError",
    "StuckError",
    "Unreadable",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "errors": "HarnessError SimulatedError StuckError",
        "harness": "Harness QueueOffsets",
        "records": "Call DeadLetter Outcome Sent SentMessages Unreadable",
    },
)
