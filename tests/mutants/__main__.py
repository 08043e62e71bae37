"""``make mutants``: breaks one promise after the other and shows which test notices. Status 1 if one goes unnoticed.

The tests are run whole first: one that fails by itself notices nothing. ``make mutants ARGS="fsync"`` tries those whose
names hold the word. ``make mutants ARGS="--package protocol"`` tries changes of single operators instead, 100 of the
package as a seed chooses them, against its unit tests (``sampled``); a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import broken_builds, broken_services  # noqa: F401 - they fill the table
from tests.mutants.packages import PACKAGES
from tests.mutants.table import MUTANTS, Mutant

__all__ = ["main", "try_mutant"]

ROOT = Path(__file__).parents[2]
SECONDS = 600
SEED = 20261123
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


def try_broken_builds(wanted: Sequence[Mutant]) -> int:
    """Print which test notices each broken build. Status 1 if one goes unnoticed."""
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


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make mutants ARGS=...", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="of the broken builds, those whose names hold all of these")
    names = [package.name for package in PACKAGES]
    sampled = parser.add_argument_group("sampled mutants")
    sampled.add_argument("--package", action="append", choices=[*names, "all"], help="whose; may be said several times")
    sampled.add_argument(
        "--one", metavar="ID", help="this mutant again, as a table printed it, with what its tests say"
    )
    sampled.add_argument("--seed", type=int, default=SEED, help=f"decides the sample ({SEED})")
    sampled.add_argument("--count", type=int, default=100, help="how many of a package (100)")
    sampled.add_argument(
        "--budget", type=float, default=20.0, metavar="SECONDS", help="of tests for a mutant, shortest first (20)"
    )
    sampled.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="side by side (2)")
    arguments = parser.parse_args()
    if arguments.package or arguments.one:
        try:
            from tests.mutants.sampled import run_packages, try_one  # only they need the extra
        except ModuleNotFoundError as error:
            parser.error(
                f"{error}; sampled mutants need the extra: pip install -e '.[mutants]' (`make mutants` does it)"
            )
        if arguments.one:
            return try_one(ROOT, arguments.one, arguments)
        wanted = [each for each in PACKAGES if {each.name, "all"} & set(arguments.package)]
        return run_packages(ROOT, wanted, arguments)
    wanted_builds = [mutant for mutant in MUTANTS if all(word in mutant.name for word in arguments.words)]
    if not wanted_builds:
        names = [mutant.name for mutant in MUTANTS]
        parser.error(f"no name holds {' and '.join(arguments.words)}; there are: {', '.join(names)}")
    return try_broken_builds(wanted_builds)


if __name__ == "__main__":
    sys.exit(main())
