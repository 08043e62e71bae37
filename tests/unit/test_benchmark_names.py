"""Comments that give a benchmark as their evidence name one that can be run."""

import re
from pathlib import Path

from tests.benchmarks.client_cost import LOADS
from tests.benchmarks.hostile import HOSTILE
from tests.benchmarks.java import JAVA
from tests.benchmarks.scenario import SCENARIOS
from tests.benchmarks.start import STARTS

ROOT = Path(__file__).parents[2] / "rocketbox"
NAMED = re.compile(r"\bbenchmarks?\b[: ]+((?:``[^`]*``|\"[^\"]*\"|\w+_\w+)(?: and (?:``[^`]*``|\"[^\"]*\"))*)")


def test_every_benchmark_that_a_comment_names_is_a_scenario() -> None:
    named = [
        (path.relative_to(ROOT), name)
        for path in ROOT.rglob("*.py")
        for group in NAMED.findall(re.sub(r"\s*\n\s*(?:# )?", " ", path.read_text()))
        for name in re.findall(r"[^`\"]{3,}", group.replace('" and "', '""'))
    ]
    assert len(named) > 5
    assert [(path, name) for path, name in named if name not in {*SCENARIOS, *STARTS, *JAVA, *HOSTILE, *LOADS}] == []
