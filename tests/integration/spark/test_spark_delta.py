"""Delta tables by Delta Lake itself: each batch once, whatever ends the function, its process or the log's files.

Delta Lake must be in Spark's Java process from its start, and not in that of all other tests: each test has programs of
its own (``delta_service``, ``delta_steps``).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rocketbox.message import SendResult
from tests.support.spark.delta_lake import delta_conf
from tests.support.spark.delta_service import BATCH_SIZE, Plan
from tests.support.spark.topics import Broker, rows_of, wait_for
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",  # tasks that read a table's log, 50 else
}
Rows = Counter[tuple[str, int, int, str]]


@pytest.fixture(scope="module")
def conf() -> dict[str, str]:
    """The settings of a session with Delta Lake; skips where there is none."""
    return {**delta_conf(), **QUICK}


def program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"tests.support.spark.{name}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10 * PATIENCE, check=False)


class Service:
    """Runs of the program with one listener, whose table and checkpoint are in ``folder``."""

    def __init__(self, conf: dict[str, str], broker: Broker, topic: str, folder: Path) -> None:
        self.checkpoint, self.table, self._notes = folder / "checkpoint", folder / "table", folder / "notes"
        self._plan: dict[str, Any] = {"conf": conf, "name_server": broker.name_server, "topic": topic}

    def run(self, status: int = 0, **plan: Any) -> list[list[Any]]:
        """What a run has noted, when it and its Java process have ended."""
        self._notes.unlink(missing_ok=True)
        told = Plan(
            checkpoint=str(self.checkpoint), table=str(self.table), notes=str(self._notes), **self._plan, **plan
        )
        done = program("delta_service", json.dumps(asdict(told)))
        assert done.returncode == status, done.stdout + done.stderr
        (_, java), *notes = [json.loads(line) for line in self._notes.read_text().splitlines()]
        wait_for(lambda: not Path(f"/proc/{java}").exists())  # it ends when its driver has gone
        return notes

    def transactions(self) -> list[list[tuple[str, int]]]:
        """Query and batch of each commit in the table's log, in the commits' order."""
        found = []
        for commit in sorted((self.table / "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            told = [action["txn"] for action in actions if "txn" in action]
            found.append([(txn["appId"], txn["version"]) for txn in told])
        return found

    def query(self) -> str:
        """The id that Spark has given to the query."""
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])


@pytest.fixture
def service(conf: dict[str, str], broker: Broker, topic: str, tmp_path: Path) -> Service:
    return Service(conf, broker, topic, tmp_path)


def sent(results: list[SendResult], first: int) -> Rows:
    """The rows of messages that hold ``rows_of(first, ...)``."""
    bodies = [json.dumps(row) for row in rows_of(first, first + len(results))]
    return Counter(
        (result.queue.broker_name, result.queue.queue_id, result.queue_offset, body)
        for result, body in zip(results, bodies, strict=True)
    )


def shown(notes: list[list[Any]]) -> Rows:
    return Counter(tuple(note[1:]) for note in notes if note[0] == "row")


def happened(notes: list[list[Any]]) -> list[list[Any]]:
    return [note for note in notes if note[0] != "row"]


def test_a_function_that_raises_behind_its_write_to_a_delta_table_leaves_each_row_once(
    service: Service, broker: Broker, topic: str
) -> None:
    expected = sent(broker.send(topic, rows_of(0, 3 * BATCH_SIZE)), 0)
    notes = service.run(raises=True)
    assert happened(notes) == [
        note
        for batch in range(3)
        for note in (
            ["begins", batch, 1, False], ["written", batch, True, True],
            ["begins", batch, 2, True], ["written", batch, False, True],
        )
    ]  # fmt: skip
    assert shown(notes) == expected
    assert service.transactions() == [[(service.query(), batch)] for batch in range(3)]


def test_a_driver_that_is_killed_between_its_write_to_a_delta_table_and_the_commit_leaves_each_row_once(
    service: Service, broker: Broker, topic: str
) -> None:
    expected = sent(broker.send(topic, rows_of(0, 2 * BATCH_SIZE)), 0)
    before = service.run(status=-9, die_behind=1)
    assert happened(before) == [
        ["begins", 0, 1, False], ["written", 0, True, True],
        ["begins", 1, 1, False], ["written", 1, True, True],
    ]  # fmt: skip
    assert [each.name for each in (service.checkpoint / "commits").glob("[0-9]*")] == ["0"]
    expected += sent(broker.send(topic, rows_of(20, 25)), 20)
    after = service.run()
    assert happened(after) == [
        ["begins", 1, 2, True], ["written", 1, False, True],
        ["begins", 2, 1, False], ["written", 2, True, True],
    ]  # fmt: skip
    assert shown(after) == expected
    assert service.transactions() == [[(service.query(), batch)] for batch in range(3)]


@pytest.fixture
def step(conf: dict[str, str], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*name: str) -> dict[str, Any]:
        done = program("delta_steps", str(tmp_path), json.dumps(conf), *name)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


def test_two_attempts_that_write_a_batch_to_a_delta_table_at_once_leave_each_row_once(
    step: Callable[..., dict[str, Any]],
) -> None:
    """As a driver that was paused beyond its lease, and wakes up while another one has taken its batch over."""
    told = {"first": False, "second": True, "again": False}
    assert step("two_at_once") == {"making it": told, "behind that": told, "numbers": list(range(20))}


@pytest.mark.parametrize("form", ["classic", "parquet", "json"])
def test_batches_whose_commits_have_gone_from_a_delta_log_are_known_by_its_checkpoint(
    step: Callable[..., dict[str, Any]], form: str
) -> None:
    found = step("log_cut_off", form)
    names = found["log"]
    assert [name for name in names if re.fullmatch(r"\d+\.json", name)] == [f"{3:020}.json", f"{4:020}.json"]
    kind = r"checkpoint\.parquet" if form == "classic" else rf"checkpoint\.[-0-9a-f]{{36}}\.{form}"
    assert any(re.fullmatch(rf"{4:020}\.{kind}", name) for name in names), names
    assert (found["done"], found["other"]) == ([True, True, False], [True, True, False])
    assert found["again"] == [False, True]
    assert found["numbers"] == [0, 1, 2, 10, 11, 12, 20, 21, 22, 100, 101]


def test_a_batch_is_known_by_the_commits_of_a_delta_table_that_forgets_transactions(
    step: Callable[..., dict[str, Any]],
) -> None:
    assert step("forgotten") == {"written": [True, False], "numbers": [0, 1, 2, 10, 11, 12, 13]}


def test_batches_without_rows_with_new_columns_and_of_partitions_are_in_delta_tables_once(
    step: Callable[..., dict[str, Any]],
) -> None:
    assert step("kinds") == {
        "done": [True, False],
        "again": [False, False, False],
        "empty": [],
        "wider": list(range(4)),
        "columns": ["id", "double"],
        "parts": list(range(8)),
        "folders": ["odd=0", "odd=1"],
    }
