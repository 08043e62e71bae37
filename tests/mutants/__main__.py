"""``make mutants``: breaks one promise after the other and shows which test notices. Status 1 if one goes unnoticed.

The tests are run whole first: one that fails by itself notices nothing. ``make mutants ARGS="fsync"`` tries those whose
names hold the word.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.broken_builds import MUTANTS, Mutant

__all__ = ["main", "try_mutant"]

ROOT = Path(__file__).parents[2]
SECONDS = 600
_PASSED, _FAILED = 0, 1  # pytest's exit statuses


def run_tests(tests: Sequence[str], mutant: str = "") -> tuple[int, str]:
    """pytest's exit status, and the end of what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "tests.mutants.plugin", *tests]
    environment = {**os.environ, "ROCKETBOX_MUTANT": mutant}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-15:])


def try_mutant(mutant: Mutant) -> tuple[str, str]:
    """ "killed" (its test failed), "survived", or "broken" (it did not run at all), and what pytest printed."""
    status, output = run_tests([mutant.test], mutant.name)
    return {_PASSED: "survived", _FAILED: "killed"}.get(status, "broken"), output


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants ARGS=...", description=__doc__)
    parser.add_argument("words", nargs="*", help="only those whose names hold all of these")
    words = parser.parse_args().words
    wanted = [mutant for mutant in MUTANTS if all(word in mutant.name for word in words)]
    if not wanted:
        parser.error(f"no name holds {' and '.join(words)}; there are: {', '.join(mutant.name for mutant in MUTANTS)}")
    status, output = run_tests(sorted({mutant.test for mutant in wanted}))
    if status != _PASSED:
        print(f"the tests fail without any mutant:\n{output}")
        return 1
    print(f"| {'mutant':<42} | {'what it breaks':<82} | result   | s   |\n|{'-' * 44}|{'-' * 84}|----------|-----|")
    unnoticed = 0
    for mutant in wanted:
        began = time.monotonic()
        result, output = try_mutant(mutant)
        print(
            f"| {mutant.name:<42} | {mutant.breaks:<82} | {result:<8} | {time.monotonic() - began:3.0f} |", flush=True
        )
        if result != "killed":
            unnoticed += 1
            print(f"  {mutant.test}\n{output}")
    print(f"{len(wanted) - unnoticed} of {len(wanted)} killed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
