"""Tests in the harness: how long one of the README's service takes, of 200 that pytest runs in a process of its own.

With a harness for each test, and with one for all of them and ``fresh()`` between. Beside it what ``fresh()`` takes, a
further message in a test, and five virtual hours in which nothing happens, in CPU.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from tests.benchmarks.processes import pinned

__all__ = ["HARNESS", "measure_harness", "table_of_harness"]

ROOT = Path(__file__).parents[2]
TESTS = 200
SECONDS = 300

CONFTEST = """
import json, time, pytest

took, began, ended, used = [], [], [], []

@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"

def pytest_runtest_logreport(report):
    if report.when == "call":
        took.append(report.duration * 1000)
    began.append(report.start)
    ended.append(report.stop)
    used.append(time.process_time() * 1000)

def pytest_sessionfinish():
    import test_them
    figures = {"a test, ms": sorted(took)[len(took) // 2], "slowest test, ms": max(took),
               "a test, CPU ms": (used[-1] - used[0]) / len(took),
               "200 tests, s": max(ended) - min(began), **getattr(test_them, "figures", {})}
    print("figures", json.dumps(figures))
"""

TEST = """
import time
import pytest
from orders import Order, app, bill
from rocketbox.testing import Harness

pytestmark = pytest.mark.anyio

async def send_one(harness):
    await harness.send("orders", Order(item="a cup"))
    await harness.drain()
    assert [call.payload.item for call in harness.calls(bill)] == ["a cup"]
"""

EACH = f"""{TEST}
@pytest.mark.parametrize("number", range({TESTS}))
async def test_an_order_is_billed(number):
    async with Harness(app, hooks=False) as harness:
        await send_one(harness)
"""

SHARED = f"""{TEST}
figures, fresh = {{}}, []

@pytest.fixture(scope="module")
async def started(anyio_backend):
    async with Harness(app, hooks=False) as harness:
        yield harness
        began = time.perf_counter()
        for _ in range(100):
            await send_one(harness)
            await harness.fresh()
        figures["a message, ms"] = (time.perf_counter() - began) * 10
        began = time.process_time()
        await harness.advance("5h")
        figures["five idle hours, CPU s"] = time.process_time() - began
        figures["fresh(), ms"] = sorted(fresh)[len(fresh) // 2] * 1000
        figures["a message, ms"] -= figures["fresh(), ms"]

@pytest.mark.parametrize("number", range({TESTS}))
async def test_an_order_is_billed(started, number):
    await send_one(started)
    began = time.perf_counter()
    await started.fresh()
    fresh.append(time.perf_counter() - began)
"""

HARNESS: dict[str, str] = {"harness, one for each test": EACH, "harness, one for all tests": SHARED}
"""The tests by the name of their scenario."""

GOALS = {"a test, ms": 30, "200 tests, s": 6, "fresh(), ms": 5}


def measure_harness(
    names: Sequence[str], rounds: int, directory: str | None, begins: Callable[[str], object]
) -> dict[str, dict[str, float]]:
    """The medians of all rounds, by scenario and by what was measured."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            begins(name)
            figures = _run(HARNESS[name], directory)
            if number:  # the first round warms up
                found[name].append(figures)
    return {
        name: {what: statistics.median(each[what] for each in of_rounds) for what in of_rounds[0]}
        for name, of_rounds in found.items()
    }


def _run(tests: str, directory: str | None) -> dict[str, float]:
    readme = (ROOT / "README.md").read_text()
    with tempfile.TemporaryDirectory(dir=directory) as made:
        folder = Path(made)
        for name in ("orders.py", "rocketbox.yaml"):
            found = re.search(rf"```\w+ file={re.escape(name)}\n(.*?)```", readme, re.DOTALL)
            assert found is not None, f"the README has no {name} any more"
            (folder / name).write_text(found[1])
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_them.py").write_text(tests)
        (folder / "pytest.ini").write_text("[pytest]\n")
        command = [*pinned(0), sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        line = re.search(r"figures (\{.*\})", done.stdout)
        if done.returncode or line is None:
            raise RuntimeError(f"the tests in the harness fail:\n{done.stdout}{done.stderr}")
        figures: dict[str, float] = json.loads(line[1])
        return figures


def table_of_harness(measured: dict[str, dict[str, float]], title: str) -> Table:
    table = Table(title=f"tests of the README's service in the harness, {title}")
    for column in ("", *measured, "goal"):
        table.add_column(column, justify="right" if column else "left")
    for what in dict.fromkeys(what for figures in measured.values() for what in figures):
        cells = [f"{figures[what]:.2f}" if what in figures else "" for figures in measured.values()]
        table.add_row(what, *cells, str(GOALS.get(what, "")))
    return table
