"""``make mutants ARGS="--package protocol"``: 100 mutants of a package as a seed chooses them, against its unit tests.

What is known is kept in .rocketbox/mutants and not tried again: a killed mutant as long as its module is the same, one
that survived as long as the tests and their budget are the same too. So a run that was broken off goes on, and after a
test was made stronger only what survived is tried once more.
"""

from __future__ import annotations

import argparse
import difflib
import queue
import shutil
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.changes import changed_source, find_change, in_function, sampled_changes
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.packages import PACKAGES, Change, Package
from tests.mutants.trials import Copy, Coverage, Known, Result, copy_project, covered, digest_of

__all__ = ["run_packages", "try_one"]

GOAL = 0.85
_BAR = 30
_LIKELY = 8


@dataclass(frozen=True)
class Trial:
    change: Change
    removed: str
    added: str
    result: Result

    @property
    def why_equivalent(self) -> str | None:
        removed, added = (line.partition("  # ")[0] for line in (self.removed, self.added))
        return EQUIVALENT.get((self.change.module, removed, added))

    @property
    def mark(self) -> str:
        return "equivalent" if self.why_equivalent and not self.result.killed else self.result.status


def run_packages(root: Path, packages: Sequence[Package], arguments: argparse.Namespace) -> int:
    """Try the sample of each package, print what survived and a table.

    Status 1 when less than 85 of 100 are killed of those that a test could notice.
    """
    folder = root / ".rocketbox" / "mutants"
    rows = []
    for package in packages:
        trials = _Run(root, folder, package, arguments).run()
        rows.append((package, trials))
        for trial in trials:
            if not trial.result.killed:
                print(f"{trial.mark}: {trial.change.id} (line {trial.change.first}, {trial.result.tests} tests)")
                print(f"  - {trial.removed}\n  + {trial.added}")
                if trial.why_equivalent:
                    print(f"  {trial.why_equivalent}")
    print(f"\n| Package | Tried | Killed | of these hung | Equivalent | Survived | Killed of the rest |\n{'|---' * 7}|")
    few = []
    for package, trials in rows:
        marks = Counter(trial.mark for trial in trials)
        killed = marks["killed"] + marks["hung"]
        share = killed / max(len(trials) - marks["equivalent"], 1)
        print(
            f"| {package.name} | {len(trials)} | {killed} | {marks['hung']} | {marks['equivalent']} "
            f"| {marks['survived']} | {share:.0%} |"
        )
        if share < GOAL:
            few.append(package.name)
    print(f"seed {arguments.seed}; one of them again, with what its tests print: make mutants ARGS=\"--one '...'\"")
    if few:
        print(f"fewer than {GOAL:.0%} killed: {', '.join(few)}")
    return 1 if few else 0


def try_one(root: Path, said: str, arguments: argparse.Namespace) -> int:
    """Show one mutant and what its tests say. Status 1 when it survives."""
    try:
        package, change = find_change(root, PACKAGES, said, arguments.seed)
    except ValueError as error:
        print(error)
        return 2
    folder = root / ".rocketbox" / "mutants"
    before, after = (root / change.module).read_text(encoding="utf-8"), changed_source(root, change)
    print(
        "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), change.module, "mutant", lineterm=""))
    )
    copy = Copy(root, folder / f"{package.name}-one", arguments.seed)  # it collects nothing: one mutant is sooner tried
    try:
        coverage = covered(copy, package, root, folder / f"{package.name}-coverage.json")
        tests = coverage.tests_of(change, arguments.budget)
        result = copy.try_change(change, after, tests, coverage.seconds_of(tests), at_import=True)
    finally:
        copy.close()
    print(result.text)
    print(f"{result.status}, {result.tests} tests{f', by {result.by}' if result.by else ''}")
    return 0 if result.killed else 1


class _Run:
    """The sample of one package: a thread for each copy, which takes the next mutant from one line."""

    def __init__(self, root: Path, folder: Path, package: Package, arguments: argparse.Namespace) -> None:
        self._folder, self._package, self._arguments = folder, package, arguments
        # As it is now: whoever waits for the run may work on.
        self._root = root = copy_project(root, folder / f"{package.name}-begun")
        tests = f"{digest_of(root, package.test_paths(root))}, {arguments.budget:g} s"
        self._known = Known(folder / f"{package.name}.jsonl", tests)
        self._copies: list[Copy] = []
        self._trials: dict[int, Trial] = {}
        self._failed: list[BaseException] = []
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._killers: defaultdict[str, Counter[str]] = defaultdict(Counter)  # what noticed one may notice the next

    def run(self) -> list[Trial]:
        candidates = sampled_changes(self._root, self._package, self._arguments.seed)
        print(f"{self._package.name}: {self._package.what}; {len(candidates)} places, seed {self._arguments.seed}")
        line: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(candidates)):
            line.put(number)
        try:
            first = self._copy(0)
            coverage = covered(first, self._package, self._root, self._folder / f"{self._package.name}-coverage.json")
            for test in coverage.failed:
                print(f"left out, for it fails without any mutant: {test}")
            self._copies += [self._copy(number) for number in range(1, self._arguments.processes)]
            threads = [
                threading.Thread(target=self._work, args=(copy, coverage, candidates, line), daemon=True)
                for copy in self._copies
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for copy in self._copies:
                copy.close()
            shutil.rmtree(self._root, ignore_errors=True)
            print(file=sys.stderr)
        if self._failed:
            raise self._failed[0]
        return list(self._counted())

    def _copy(self, number: int) -> Copy:
        copy = Copy(self._root, self._folder / f"{self._package.name}-{number}", self._arguments.seed)
        if number == 0:
            self._copies.append(copy)
        return copy

    def _work(self, copy: Copy, coverage: Coverage, candidates: Sequence[Change], line: queue.SimpleQueue[int]) -> None:
        try:
            copy.warm_up(coverage.imported, self._package.test_paths(self._root))
            while len(list(self._counted())) < self._arguments.count:
                try:
                    number = line.get_nowait()
                except queue.Empty:
                    return
                self._trials[number] = self._try(copy, coverage, candidates[number])
                self._show()
        except BaseException as error:
            self._failed.append(error)

    def _try(self, copy: Copy, coverage: Coverage, change: Change) -> Trial:
        before, source = (self._root / change.module).read_text(encoding="utf-8"), changed_source(self._root, change)
        removed, added = _difference(before, source)
        if (result := self._known.get(source)) is None:
            with self._lock:
                likely = [test for test, _ in self._killers[change.module].most_common(_LIKELY)]
            tests = coverage.tests_of(change, self._arguments.budget, likely)
            at_import = coverage.runs_at_import(change) or not in_function(self._root, change)
            result = copy.try_change(change, source, tests, coverage.seconds_of(tests), at_import)
            with self._lock:
                self._killers[change.module][result.by] += 1
            self._known.add(source, result)
        return Trial(change, removed, added, result)

    def _counted(self) -> Iterator[Trial]:
        """The first of the sample, as many as are asked for: the same ones, whichever thread was faster."""
        trials = [self._trials[number] for number in sorted(self._trials)]
        counted = [trial for trial in trials if trial.result.status != "no build"]
        yield from counted[: self._arguments.count]

    def _show(self) -> None:
        trials = list(self._counted())
        killed = sum(trial.result.killed for trial in trials)
        share = len(trials) / self._arguments.count
        bar = "#" * int(_BAR * share) + "." * (_BAR - int(_BAR * share))
        text = (
            f"[{bar}] {len(trials)}/{self._arguments.count} of {self._package.name}: {killed} killed, "
            f"{len(trials) - killed} not, {time.monotonic() - self._began:.0f} s"
        )
        width = shutil.get_terminal_size().columns - 1
        if sys.stderr.isatty():
            print(f"\r{text:<{width}}"[: width + 1], end="", file=sys.stderr, flush=True)
        elif len(trials) % 10 == 0:
            print(text, file=sys.stderr, flush=True)


def _difference(before: str, after: str) -> tuple[str, str]:
    """The lines that went and those that came, each as one text."""
    changes = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "-+"]
    removed, added = ([line[2:].strip() for line in changes if line[0] == sign] for sign in "-+")
    return " / ".join(removed), " / ".join(added)
