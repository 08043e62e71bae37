"""Seeds hold what is promised, replay exactly, and find faults that are planted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEEDS = 8
"""As many as fit into the time of the whole suite; ``make simulate SEEDS=1000`` runs more."""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=os.environ)


def test_seeds_hold_what_is_promised() -> None:
    ran = run(SEEDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("acknowledged") == SEEDS


def test_a_seed_replays_exactly() -> None:
    ran = run(2, "--twice")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("acknowledged") == 2 * 2


@pytest.mark.parametrize(
    ("plant", "fault", "seed", "words"),
    [
        ("commit ahead", "killed broker", 1, "was never handled"),
        ("skipped message", "killed broker", 1, "comes when"),
        ("no pause", "broker that moves nobody", 1, "150 times within 10 s"),
    ],
)
def test_a_planted_fault_is_found_and_the_command_that_shows_it_is_printed(
    plant: str, fault: str, seed: int, words: str
) -> None:
    ran = run("--only", seed, "--quiet", "--plant", plant, "--faults", fault)
    assert ran.returncode == 1
    assert words in ran.stdout
    assert f'python -m tests.simulation --only {seed} --plant "{plant}" --faults "{fault}"' in ran.stdout
