"""The rules by which benchmarks judge, and that those which need no servers measure something."""

import asyncio
import math
from pathlib import Path

import anyio
import pytest

from tests.benchmarks.__main__ import table_of_scenarios
from tests.benchmarks.client_cost import LOADS, measure
from tests.benchmarks.clients import JAVA_SEND, SEND, Cost, tables_of_clients
from tests.benchmarks.run import Run
from tests.benchmarks.scenario import SCENARIOS


def test_the_median_of_the_ratios_alone_decides_whether_a_goal_is_met() -> None:
    def judged(ours: list[float], java: list[float]) -> str:
        loads = {JAVA_SEND: java, SEND: ours}
        costs = {name: [Cost(each, 1.0) for each in rounds] for name, rounds in loads.items()}
        _, ratios = tables_of_clients(costs, "title")
        return str(next(iter(ratios.columns[-1].cells)))

    assert judged([8.0, 10.0, 10.0], [10.0, 10.0, 10.0]) == "goal missed", "one good round is no proof"
    assert judged([8.0, 8.0, 19.0], [10.0, 10.0, 10.0]) == "goal met", "one disturbed round is none either"


def test_flush_types_stand_beside_each_other() -> None:
    def rounds(seconds: float) -> list[dict[str, float]]:
        return [{"messages": 1000, "seconds": seconds, "cpu": 0.01, "broker_cpu": 0.02}]

    by_kind = {
        "SYNC_FLUSH": {"send_many": rounds(2), "one-way": rounds(4)},
        "ASYNC_FLUSH": {"send_many": rounds(1), "one-way": rounds(2), "store append": rounds(1)},
    }
    columns = [list(column.cells) for column in table_of_scenarios(by_kind, "title").columns]
    assert list(zip(*columns[:3], strict=True)) == [
        ("send_many", "SYNC_FLUSH", "500"), ("send_many", "ASYNC_FLUSH", "1,000"), ("one-way", "SYNC_FLUSH", "250"),
        ("one-way", "ASYNC_FLUSH", "500"), ("store append", "", "1,000"),
    ]  # fmt: skip


def test_the_peer_of_a_group_commit_has_as_many_producers_and_acknowledges_nothing_unsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run("", "", "t", 1000, str(tmp_path))
    syncs: list[int] = []
    monkeypatch.setattr("os.fdatasync", lambda fd: syncs.append(len(run.latencies)))
    anyio.run(SCENARIOS["store group commit (bare peer)"].run, run)
    assert len(run.latencies) == 1000
    assert syncs == [100 * number for number in range(10)], "each group of 100 waits for a sync of its own"
    assert (tmp_path / "log").stat().st_size == 1000 * 1024


def test_the_cost_of_the_client_alone_is_measured_for_each_load() -> None:
    results = asyncio.run(measure(list(LOADS), rounds=2, share=0.02))
    assert set(results) == set(LOADS)
    for name, costs in results.items():
        assert len(costs) == 2, name
        assert all(0 < cost < math.inf for cost in costs), (name, costs)
