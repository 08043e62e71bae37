"""The rules by which benchmarks judge, and that those which need no servers measure something."""

import asyncio
import math

from tests.benchmarks.client_cost import LOADS, measure
from tests.benchmarks.clients import JAVA_SEND, SEND, tables_of_clients


def test_the_median_of_the_ratios_alone_decides_whether_a_goal_is_met() -> None:
    def judged(ours: list[float], java: list[float]) -> str:
        _, ratios = tables_of_clients({JAVA_SEND: java, SEND: ours}, "title")
        return str(next(iter(ratios.columns[-1].cells)))

    assert judged([8.0, 10.0, 10.0], [10.0, 10.0, 10.0]) == "goal missed", "one good round is no proof"
    assert judged([8.0, 8.0, 19.0], [10.0, 10.0, 10.0]) == "goal met", "one disturbed round is none either"


def test_the_cost_of_the_client_alone_is_measured_for_each_load() -> None:
    results = asyncio.run(measure(list(LOADS), rounds=2, share=0.02))
    assert set(results) == set(LOADS)
    for name, costs in results.items():
        assert len(costs) == 2, name
        assert all(0 < cost < math.inf for cost in costs), (name, costs)
