"""py4j's log, which tells of each exception that a Python function of ours raises into Spark, with pages of Java."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["told_once"]


@contextmanager
def told_once(function: Callable[..., Any]) -> Iterator[None]:
    """Meanwhile py4j does not log what comes out of ``function``, which is logged here, nor each single call."""
    log = logging.getLogger("py4j.clientserver")

    def told(record: logging.LogRecord) -> bool:  # one for each listener: who leaves takes away its own
        return _is_told(record, function)

    log.addFilter(told)
    try:
        yield
    finally:
        log.removeFilter(told)


def _is_told(record: logging.LogRecord, function: Callable[..., Any]) -> bool:
    if record.levelno < logging.WARNING:
        return False
    trace = record.exc_info[2] if record.exc_info else None
    while trace is not None:
        if trace.tb_frame.f_code is function.__code__:
            return False
        trace = trace.tb_next
    return True
