"""Seeds hold what is promised, replay exactly, and find faults that are planted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEEDS = 6
"""As many as fit into the time of the whole suite; ``make simulate SEEDS=1000`` runs more."""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=os.environ)


def test_seeds_hold_what_is_promised() -> None:
    ran = run(SEEDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("acknowledged") == SEEDS


def test_a_seed_replays_exactly() -> None:
    first, again = (run("--only", 4, "--quiet").stdout.splitlines()[0] for _ in range(2))
    assert first.startswith("seed 4: ")
    assert first == again


@pytest.mark.parametrize(
    ("plant", "seed", "words"),
    [("commit ahead", 1, "was never handled"), ("skipped message", 1, "comes when")],
)
def test_a_planted_fault_is_found_and_the_command_that_shows_it_is_printed(plant: str, seed: int, words: str) -> None:
    ran = run("--only", seed, "--quiet", "--plant", plant)
    assert ran.returncode == 1
    assert words in ran.stdout
    assert f"python -m tests.simulation --only {seed}" in ran.stdout
