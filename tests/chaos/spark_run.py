"""``make chaos ARGS=spark``: all kinds of faults one after another, and what each came to, as a table."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.chaos.spark_cluster import run_cluster
from tests.chaos.spark_kinds import KINDS
from tests.chaos.spark_world import World

__all__ = ["NAMES", "Outcome", "run_kinds", "table_of"]

CLUSTER = "cluster"
CLUSTER_TITLE = "executor or driver killed, on Spark's standalone cluster"
EXECUTORS, DRIVERS = 20, 10
NAMES = [*KINDS, CLUSTER]


@dataclass
class Outcome:
    """What one kind came to; ``seen`` is told, ``wrong`` must be empty."""

    name: str
    title: str
    faults: int = 0
    rows: int = 0
    missing: int = 0
    extra: int = 0
    seconds: float = 0.0
    seen: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.wrong or self.missing or self.extra)

    @property
    def line(self) -> str:
        return (
            f"{self.name}: {self.faults} faults, {self.rows:,} rows, {self.missing:,} missing, {self.extra:,} extra "
            f"({self.seconds:.0f} s)"
        )


def run_kinds(
    names: Sequence[str], folder: Path, *, seed: int, times: int | None = None, once: bool = True
) -> list[Outcome]:
    """Run these kinds of faults, each ``times`` as often (None: as its own number says), and show how far it is."""
    outcomes = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=sum(_faults(name, times) for name in names))
        for name in names:
            progress.update(bar, description=name)
            place = folder / name
            place.mkdir()
            outcome = _run(name, place, random.Random(f"{seed} {name}"), times, lambda: progress.advance(bar), once)
            outcomes.append(outcome)
            progress.console.print(outcome.line, markup=False, highlight=False)
            for text in outcome.wrong:
                progress.console.print(f"WRONG {name}: {text}", markup=False, highlight=False)
    return outcomes


def _faults(name: str, times: int | None) -> int:
    if name == CLUSTER:
        return EXECUTORS + DRIVERS if times is None else 2 * times
    return KINDS[name].faults if times is None else times


def _run(
    name: str, folder: Path, chance: random.Random, times: int | None, happened: Callable[[], object], once: bool
) -> Outcome:
    began = time.monotonic()
    outcome = Outcome(name, CLUSTER_TITLE if name == CLUSTER else KINDS[name].title)
    try:
        if name == CLUSTER:
            _run_cluster(outcome, folder, chance, times, happened)
        else:
            _run_kind(outcome, folder, chance, _faults(name, times), happened, once)
    except Exception as error:  # the other kinds are worth their time
        outcome.wrong.append("".join(traceback.format_exception_only(error)).strip())
    outcome.seconds = time.monotonic() - began
    return outcome


def _run_kind(
    outcome: Outcome, folder: Path, chance: random.Random, times: int, happened: Callable[[], object], once: bool
) -> None:
    with World(folder, chance, happened=happened, once=once) as world:
        try:
            KINDS[outcome.name].run(world, times)
        finally:
            missing, extra = world.compare()
            outcome.faults, outcome.rows = world.faults, world.sent
            outcome.missing, outcome.extra = missing.total(), extra.total()
            outcome.seen, outcome.wrong = world.seen, world.wrong


def _run_cluster(
    outcome: Outcome, folder: Path, chance: random.Random, times: int | None, happened: Callable[[], object]
) -> None:
    executors, drivers = (EXECUTORS, DRIVERS) if times is None else (times, times)
    result = run_cluster(folder, executors, drivers, chance=chance, happened=happened)
    outcome.faults, outcome.rows = result.executors + result.drivers, result.rows
    outcome.missing, outcome.extra = result.missing, result.extra
    outcome.seen, outcome.wrong = result.seen, result.wrong


def table_of(outcomes: Sequence[Outcome], seed: int) -> Table:
    """A line for each kind, and one for all."""
    table = Table(title=f"Spark, seed {seed}")
    for column in ("kind", "fault", "faults", "rows sent", "missing", "extra", "s", "seen"):
        table.add_column(column, justify="left" if column in ("kind", "fault", "seen") else "right")
    for each in outcomes:
        table.add_row(each.name, each.title, *_numbers([each]), "; ".join(each.seen))
    table.add_section()
    table.add_row("", "all", *_numbers(outcomes), "")
    return table


def _numbers(outcomes: Sequence[Outcome]) -> list[str]:
    sums = [sum(getattr(each, name) for each in outcomes) for name in ("faults", "rows", "missing", "extra", "seconds")]
    return [f"{number:,.0f}" for number in sums]
