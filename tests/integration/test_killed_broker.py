"""kill -9 of the broker's process at seeded moments, with clients at work: nothing acknowledged is missing.

The machine lives on, and with it the page cache: what was written is there, synced or not. That nothing is acknowledged
before it is synced, and what a power failure may leave, is shown by ``tests/unit/store`` (``test_store_durability``,
``test_crash_states``).
"""

from __future__ import annotations

from pathlib import Path

from tests.chaos.cycles import run_cycles

KILLS = 10  # ``make chaos``: 100


def test_nothing_acknowledged_is_lost_when_the_process_of_the_broker_is_killed(tmp_path: Path) -> None:
    result = run_cycles(tmp_path, KILLS, seed=20130101, requests=False)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.cycles == KILLS
    assert result.acknowledged > 10 * KILLS  # as many as the machine has time for; that there is traffic is enough
    assert min(result.delayed, result.recalled, result.works) > 0
