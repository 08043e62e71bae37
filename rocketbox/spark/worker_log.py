"""The log of Spark's own Python processes: lines of one form on stderr, where Spark puts what its workers say.

The application's process has the logging that ``rocketbox.logging`` says, or its program's own. Spark starts others,
for the source on the driver and for tasks, in which nobody has set logging up.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["set_up_worker_log"]

TEXT = "%(asctime)s %(levelname)-7s [spark worker %(process)d] %(name)s: %(message)s"
PROGRAMS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.")
"""What Spark's Python processes run, or how it begins."""


def set_up_worker_log(program: str | None = None) -> None:
    """Let warnings of rocketbox go to stderr if this is one of Spark's processes and its log goes nowhere yet."""
    if program is None:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        program = "" if spec is None else spec.name
    ours = logging.getLogger("rocketbox")
    if program.startswith(PROGRAMS) and not ours.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(TEXT))
        ours.addHandler(handler)
