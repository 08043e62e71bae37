"""``rocketbox doctor``: whether this machine has what services need, Spark listeners above all."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rocketbox.cli.service import failures_told, load_application
from rocketbox.version import __version__

__all__ = ["doctor"]

Target = Annotated[
    str | None,
    typer.Argument(metavar="[MODULE:APP]", help="Where the RocketBox is, if its settings count."),
]


def doctor(target: Target = None) -> None:
    """Look whether Spark listeners can run here: Java, libraries, PYSPARK_PYTHON, memory. Nothing is started.

    Status: 0 all is right; 1 something is not, and it is said what to do.
    """
    with failures_told(debug=False):
        from rocketbox.spark.environment import look_at_spark

        written = None if target is None else load_application(target).look().rocketbox.spark.conf
        looks = list(look_at_spark(written=written))
    print(f"ok     rocketbox {__version__}, Python {sys.version.partition(' ')[0]}")  # noqa: T201 - what it is for
    for each in looks:
        print(f"{'ok' if each.fix is None else 'WRONG':6} {each.what}")  # noqa: T201
        if each.fix is not None:
            print(f"       -> {each.fix}")  # noqa: T201
    if any(each.fix is not None for each in looks):
        raise typer.Exit(1)
