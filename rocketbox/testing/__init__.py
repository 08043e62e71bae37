"""The test harness: a service on virtual time, on the production code of client and broker, in memory.

``Harness`` is the class, and pytest's fixture ``harness`` is an object of it. Nothing of the rest of rocketbox imports
this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketbox.testing.errors import HarnessError, SimulatedError, StuckError
    from rocketbox.testing.harness import Harness, QueueOffsets
    from rocketbox.testing.records import Call, DeadLetter, Outcome, Sent, SentMessages

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
]

_HOMES = {
    "errors": "HarnessError SimulatedError StuckError",
    "harness": "Harness QueueOffsets",
    "records": "Call DeadLetter Outcome Sent SentMessages",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rocketbox.testing' has no attribute {name!r}")
    value = getattr(import_module(f"rocketbox.testing.{_HOME_OF[name]}"), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
