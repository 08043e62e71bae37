"""``make soak`` runs the tests of the harness 1,000 times: a harness that fails now and then is worse than none.

Each run is a process of its own with a seed: the order of its tests, and of its hashes. ``--at-once 3`` has three of
them run beside each other, and with ``--load 2`` two processes more keep two cores busy all the time. ``--stops`` stops
each of them for a moment now and then, as a machine does that has other things to do: a test that asks for something
within some milliseconds fails there soon, and in one of hundreds of runs without it.
What was run stands in ``.rocketbox/soak/runs.jsonl``, so that the command goes on where it was stopped, and the output
of a run that failed beside it; ``--seed 17`` runs one of them again. Tests that start pytest in a process of their own
are in each tenth run: they take a third of the time, and little of it in the harness.
Status 1 when a run has failed.

``make soak ARGS=kinds`` sends 100,000 messages of each kind instead, and looks at tables and memory (``kinds``).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from tests.soak import kinds
from tests.soak.order import SEED

__all__ = ["main"]

HARNESS = ("tests/unit/testing",)
IN_PROCESSES = "tests/unit/testing/test_plugin.py"
EACH_SO_MANY = 10  # runs have these tests in one
FOLDER = Path(".rocketbox/soak")
STOPS = ((0.05, 0.03), (0.05, 0.15), (0.15, 0.06), (0.15, 0.4))
"""Seconds between two stops, and of one, at most: a run has one of these."""
BUSY = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()  # its parent is gone
while True:
    pass
"""


@dataclass(frozen=True)
class Run:
    """How a run ended; ``load`` is the machine's, of the last minute, and ``beside`` how many processes, other runs
    too, made it."""

    seed: int
    tests: tuple[str, ...]
    passed: bool
    seconds: float
    load: float
    beside: int
    end: str
    """pytest's last line."""
    stops: int = 0
    """How often it was stopped and went on."""


def main() -> int:
    if sys.argv[1:2] == ["kinds"]:
        return kinds.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("tests", nargs="*", default=HARNESS, help=f"which tests ({' '.join(HARNESS)})")
    parser.add_argument("--runs", type=int, default=1000, help="how many there are to be, those of before too (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed, where other machines have had some (0)")
    parser.add_argument("--seed", type=int, help="this run alone, with its output")
    parser.add_argument("--load", type=int, default=0, help="processes beside it that keep a core busy each (0)")
    parser.add_argument("--at-once", type=int, default=1, help="how many run beside each other (1)")
    parser.add_argument("--stops", action="store_true", help="stop them now and then for a moment, 0.4 s at most")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which a run hangs (900)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where runs are noted ({FOLDER})")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    tests = tuple(arguments.tests)
    with _busy(arguments.load):
        if arguments.seed is not None:
            run, output = _run(arguments.seed, tests, arguments.load, arguments.limit, arguments.stops)
            print(output)
            return not run.passed
        runs = _soak(
            arguments.folder,
            tests,
            arguments.runs,
            arguments.first,
            arguments.load,
            arguments.limit,
            arguments.at_once,
            arguments.stops,
        )
    failed = [run.seed for run in runs if not run.passed]
    told = f"failed: {', '.join(map(str, failed))}; their output is in {arguments.folder}" if failed else "0 failed"
    print(f"{len(runs)} runs, {told}")
    return bool(failed)


def _soak(
    folder: Path, tests: tuple[str, ...], wanted: int, begin: int, load: int, limit: float, at_once: int, stops: bool
) -> list[Run]:
    """All runs of these tests, once there are so many; seeds count from ``begin`` on."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "runs.jsonl"
    noted = [Run(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    runs = [run for run in noted if tuple(run.tests) == tests]
    first = max((run.seed for run in runs), default=begin - 1) + 1
    seeds = range(first, first + max(0, wanted - len(runs)))
    beside = load + at_once - 1
    with ThreadPoolExecutor(at_once) as pool:
        try:
            waiting = (partial(_run, seed, tests, beside, limit, stops) for seed in seeds)
            for run, output in _as_they_end(pool, waiting):
                runs.append(run)
                if not run.passed:
                    (folder / f"failed-{run.seed}.txt").write_text(output)
                with file.open("a") as notes:
                    notes.write(json.dumps(asdict(run)) + "\n")
                options = f"--load {beside}{' --stops' * stops}"
                again = f"python -m tests.soak --seed {run.seed} {options} {' '.join(tests)}"
                said = "" if run.passed else f"FAILED, {again}: "
                print(f"seed {run.seed}: {said}{run.end}, machine's load {run.load:.1f}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list(_children):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    return runs


def _as_they_end(pool: ThreadPoolExecutor, runs: Iterator[Callable[[], tuple[Run, str]]]) -> Iterator[tuple[Run, str]]:
    waiting = [pool.submit(run) for run in runs]
    for ended in as_completed(waiting):
        yield ended.result()


def _run(seed: int, tests: tuple[str, ...], beside: int, limit: float, stops: bool) -> tuple[Run, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.soak.order", *tests]
    if tests == HARNESS and seed % EACH_SO_MANY:
        command.append(f"--ignore={IN_PROCESSES}")
    environment = {**os.environ, SEED: str(seed), "PYTHONHASHSEED": str(seed % 2**32)}
    began = time.monotonic()
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as child:
        _children.add(child)
        made: AbstractContextManager[list[float]] = nullcontext([])
        if stops:
            made = _stopped_now_and_then(child, seed)
        try:
            with made as stopped:
                output, _ = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGABRT)  # with the stacks of all threads: pytest has faulthandler on
            output = child.communicate()[0] + f"\nit has not ended after {limit:g} s"
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
        finally:
            _children.discard(child)
    end = (output.strip().splitlines() or [f"status {child.returncode}"])[-1]
    seconds = round(time.monotonic() - began, 1)
    passed, load = child.returncode == 0, os.getloadavg()[0]
    return Run(seed, tests, passed, seconds, load, beside, end, len(stopped)), output


_children: set[subprocess.Popen[str]] = set()  # of the runs that go on


@contextmanager
def _stopped_now_and_then(child: subprocess.Popen[str], seed: int) -> Iterator[list[float]]:
    """Stop it for moments, until the block ends. Yields how long those were that there have been, in seconds."""
    chance, ended, stops = random.Random(seed), threading.Event(), list[float]()
    gap, longest = chance.choice(STOPS)

    def work() -> None:
        while not ended.wait(chance.uniform(0.001, gap)):
            stops.append(chance.uniform(0.005, longest))
            child.send_signal(signal.SIGSTOP)
            try:
                ended.wait(stops[-1])
            finally:
                child.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield stops
    finally:
        ended.set()
        thread.join()


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    made = [subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) for _ in range(processes)]
    try:
        yield
    finally:
        for each in made:
            each.kill()
            each.wait()


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
