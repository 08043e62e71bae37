"""``python -m tests.simulation 100`` runs seeds 0 to 99, ``--only 17`` one of them, with all that happens to read.

Each block of seeds runs in a child process, whose hash seed is the block's number: so a seed is always run with the
same one. A seed that fails is printed with the command that runs it again.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.simulation.clients import WAYS
from tests.simulation.faults import KINDS
from tests.simulation.loop import hash_by_order
from tests.simulation.plants import PLANTS
from tests.simulation.run import simulate

BLOCK = 25
PROCESS = 4711
CHILD = "ROCKETBOX_SIMULATION_CHILD"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=100, help="how many seeds (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--only", type=int, help="this seed alone, with everything that happens")
    parser.add_argument("--quiet", action="store_true", help="with --only: only how it ends")
    parser.add_argument("--faults", nargs="+", choices=KINDS, metavar="KIND", help=f"only these: {', '.join(KINDS)}")
    ways = f"send in these ways besides: {', '.join(WAYS)} (as the seed has it)"
    parser.add_argument("--ways", nargs="*", choices=WAYS, metavar="WAY", help=ways)
    parser.add_argument("--plant", choices=sorted(PLANTS), help="break the product so; run until a seed finds it")
    twice = f"run so many seeds of each {BLOCK}, or all, in two processes, and compare them"
    parser.add_argument("--twice", nargs="?", type=int, const=BLOCK, default=0, metavar="N", help=twice)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that run at once")
    arguments = parser.parse_args()
    if arguments.only is not None:
        arguments.first, arguments.seeds = arguments.only, 1
    end = arguments.first + arguments.seeds
    if CHILD in os.environ:
        if arguments.plant:
            PLANTS[arguments.plant]()
        return _run_here(arguments, end)
    blocks = [
        (max(arguments.first, block * BLOCK), min(end, (block + 1) * BLOCK))
        for block in range(arguments.first // BLOCK, (end - 1) // BLOCK + 1)
    ]
    began = time.monotonic()
    with ThreadPoolExecutor(arguments.processes) as children:
        first = list(children.map(lambda block: _run_child(block[0], block[1], arguments), blocks))
        # The last ones: a seed is the same run whatever ran before it in its process.
        some = [(max(begin, end - arguments.twice), end) for begin, end in blocks if arguments.twice]
        again = list(children.map(lambda block: _run_child(block[0], block[1], arguments), some))
    codes = [code for code, _ in first]
    for block, (_, said), (_, said_again) in zip(some, first, again, strict=False):
        if not said.endswith(said_again):
            print(f"FAILED: one of the seeds from {block[0]} to {block[1] - 1} was not the same run again")
            codes.append(1)
    print(f"{arguments.seeds} seeds in {time.monotonic() - began:.0f} s", flush=True)
    return max(codes)


def _run_child(first: int, end: int, given: argparse.Namespace) -> tuple[int, str]:
    """Its status, and what it printed."""
    command = [sys.executable, "-m", "tests.simulation", str(end - first), "--first", str(first)]
    command += ["--plant", given.plant] if given.plant else []
    command += ["--only", str(given.only)] if given.only is not None else []
    command += ["--quiet"] if given.quiet else []
    command += ["--faults", *given.faults] if given.faults else []
    command += ["--ways", *given.ways] if given.ways is not None else []
    environment = {**os.environ, CHILD: "1", "PYTHONHASHSEED": str(first // BLOCK)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = ""
        for line in child.stdout:
            print(line, end="", flush=True)
            said += line
    return child.returncode, said


def _run_here(given: argparse.Namespace, end: int) -> int:
    talk = given.only is not None and not given.quiet
    again = "".join(f' --{name} "{value}"' for name, value in (("plant", given.plant),) if value)
    again += " --faults " + " ".join(f'"{kind}"' for kind in given.faults) if given.faults else ""
    again += " --ways " + " ".join(given.ways) if given.ways is not None else ""
    hash_by_order()
    os.getpid = lambda: PROCESS  # its length is that of a file, and decides with others how long disks take
    logging.getLogger("rocketbox").propagate = False
    failed = 0
    for seed in range(given.first, end):
        planted = given.plant is not None
        outcome = simulate(
            seed, talk=print if talk else None, kinds=given.faults or KINDS, ways=given.ways, until_violated=planted
        )
        print(
            f"seed {seed}: {outcome.digest} {outcome.acknowledged} acknowledged, {outcome.handled} handled", flush=True
        )
        if outcome.violations:
            failed = 1
            told = "\n".join(f"  {text}" for text in [*outcome.faults, "VIOLATED", *outcome.violations[:20]])
            print(
                f"FAILED seed {seed}; again with: python -m tests.simulation --only {seed}{again}\n{told}", flush=True
            )
            if planted:
                os._exit(failed)  # found; what runs in this process is of no use any more
    return failed


if __name__ == "__main__":
    sys.exit(main())
