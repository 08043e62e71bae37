"""Seeds hold what is promised, replay exactly, and find faults that are planted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKS, BLOCK = 8, 25
"""So many seeds run with the tests, each block in a process of its own; ``make simulate SEEDS=1000`` runs more."""
TWICE = 3
"""So many of each block run in a second process too."""

SEEDS_FOR_A_PLANT = 100  # at most: which of them finds it changes with whatever changes the order of tasks


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=os.environ)


@pytest.mark.parametrize("first", range(0, BLOCKS * BLOCK, BLOCK))
def test_seeds_hold_what_is_promised_and_replay_exactly(first: int) -> None:
    ran = run(BLOCK, "--first", first, "--twice", TWICE, "--processes", 1)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("acknowledged") == BLOCK + TWICE


def find(plant: str, fault: str, words: str, *ways: str) -> str:
    """Run seeds until one finds the plant, and says so in these words (``|`` between several); which one that is."""
    for first in range(0, SEEDS_FOR_A_PLANT, BLOCK):
        ran = run(BLOCK, "--first", first, "--plant", plant, "--faults", fault, "--ways", *ways)
        if ran.returncode:
            break
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert any(each in ran.stdout for each in words.split("|")), ran.stdout
    again = re.search(r"python -m tests.simulation --only (\d+) --plant \"(.+)\" --faults \"(.+?)\"", ran.stdout)
    assert again is not None
    assert (again[2], again[3]) == (plant, fault)
    return again[1]


@pytest.mark.parametrize(
    ("plant", "fault", "words"),
    [
        ("commit ahead", "slow handlers", "was never handled"),
        ("skipped message", "killed broker", "comes when"),
        ("newest first", "slow handlers", "comes when"),
        ("one back", "joining member", "and no fault explains it"),
        ("no pause", "broker that moves nobody", "150 times within 10 s"),
        ("long pause", "reset connections", "and what may have kept it until then is"),
        ("task left", "leaving member", "left: tasks ['left behind'"),
    ],
)
def test_a_planted_fault_is_found_and_the_command_that_shows_it_is_printed(plant: str, fault: str, words: str) -> None:
    find(plant, fault, words)


@pytest.mark.parametrize(
    ("plant", "fault", "words", "way"),
    [
        ("open for ever", "slow handlers", "was committed 2 times", "transactions"),
        ("none is open", "killed broker", "was done, and came never", "transactions"),
        ("deaf to recalls", "slow handlers", "was recalled, and comes", "timers"),
        ("half a second early", "slow handlers", "comes before its time", "timers"),
        ("no copy at the stop", "stopped broker", "and no kill explains it", "timers"),
        ("anybody's reply", "slow handlers", "which is another's reply", "requests"),
    ],
)
def test_a_fault_planted_in_transactions_timers_or_replies_is_found(
    plant: str, fault: str, words: str, way: str
) -> None:
    find(plant, fault, words, way)


@pytest.mark.parametrize(
    ("plant", "fault", "words"),
    [
        ("old address", "broker that moves after a topic is gone", "which no name server has named since"),
        ("one after another", "member that joins beside a silent broker", "until then is: a member joins"),
        ("reset in a round", "group that is reset while a member joins", "both work on|both have MessageQueue"),
        ("lost refresh", "broker that is silent for some seconds", "orderly got it at"),
    ],
)
def test_a_fault_that_the_client_once_had_is_found_and_the_client_passes_that_seed(
    plant: str, fault: str, words: str
) -> None:
    seed = find(plant, fault, words)
    without = run("--only", seed, "--quiet", "--faults", fault)
    assert without.returncode == 0, without.stdout + without.stderr
