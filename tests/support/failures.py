"""What tools tell of a failure that show the variables of each line which an error came through."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import rocketbox

__all__ = ["variables_of_ours"]

OURS = str(Path(rocketbox.__file__).parent)


def variables_of_ours(error: BaseException) -> Iterator[str]:
    """The variables of rocketbox's own lines, of the error and its causes: as pytest's ``--showlocals`` has them."""
    told: traceback.TracebackException | None = traceback.TracebackException.from_exception(error, capture_locals=True)
    while told is not None:
        for line in told.stack:
            if line.filename.startswith(OURS):
                for name, value in (line.locals or {}).items():
                    yield f"{line.filename}:{line.lineno}: {name} = {value}"
        told = told.__cause__
