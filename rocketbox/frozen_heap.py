"""What full garbage collections pass over while an application runs as a program.

What the program has loaded stays: each full collection would look through it for 30 ms, in the start, in the loop and
at the end of the process (benchmark "start, with its store"). What a run uses while it is ready stays as long as it is.
A process may run one application after the other; what a run has left goes when the next one begins.
"""

from __future__ import annotations

import gc

__all__ = ["freeze_program", "freeze_run"]

_began = False
_run_is_frozen = False


def freeze_program() -> None:
    """Called where a run begins."""
    global _began, _run_is_frozen
    if _run_is_frozen:
        gc.unfreeze()
        _run_is_frozen = False
    if _began:  # after a start that failed, only what came since is looked through
        gc.collect()
    _began = True
    gc.freeze()


def freeze_run() -> None:
    """Called when the run is ready."""
    global _run_is_frozen
    _run_is_frozen = True
    gc.freeze()
