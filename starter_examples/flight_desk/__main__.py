"""``python -m starter_examples.flight_desk``: the whole job, from the file to the checked counts."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

from rocketbox import ConfigurationError
from starter_examples.flight_desk.app import app
from starter_examples.flight_desk.data import read_departures
from starter_examples.flight_desk.job import Report, run_job

__all__ = ["main"]

command = typer.Typer(add_completion=False)


@command.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def main(
    context: typer.Context,
    rows: Annotated[int | None, typer.Option(help="Only the first so many departures.", min=1)] = None,
    lake: Annotated[bool, typer.Option(help="Write the data lake with Spark (needs Java 17 or newer).")] = True,
) -> None:
    """Send the departures of January 2013 through the flight desk, and check that everything arrived.

    Keys of rocketbox.yaml can be given as well: --rocketmq.name-server=127.0.0.1:9876 runs the same service on Apache
    RocketMQ. Exit code 0: all counts are right; 1: they are not, or nothing moved for a minute; 130: stopped by Ctrl-C.
    """
    if lake:
        quiet_children()
    logging.basicConfig(level=logging.ERROR)  # rejected messages are warnings, and here they are expected
    console = Console()
    departures = read_departures(rows)
    started = time.monotonic()
    arguments = [*context.args, *([] if lake else ["--rocketmq.consumer.listeners.lake.enabled=false"])]

    async def run() -> Report:
        async with app.started(arguments=arguments):
            return await run_job(app, departures, lake=lake, console=console)

    try:
        report = anyio.run(run)
    except ConfigurationError as error:
        app.print_failure(error)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)
    report.print(console, time.monotonic() - started)
    sys.exit(1 if report.problems else 0)


def quiet_children() -> None:
    """Leave standard error to this process alone: what Spark's Java says at its start goes to spark.log."""
    log = Path(".rocketbox", "flight-desk", "spark.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)


if __name__ == "__main__":
    command()
