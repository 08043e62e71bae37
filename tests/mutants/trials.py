"""Tries mutants in copies of the project: which tests run a changed line, and what becomes of them.

The working tree is never written to. A mutant is killed when one of its tests fails that passes without it, or when
they do not end in a few times the time that they take undisturbed.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.mutants import warm
from tests.mutants.packages import Change, Package

__all__ = ["Copy", "Coverage", "Known", "Result", "Status", "copy_project", "covered"]

SPARE_SECONDS = 20  # of the processor, beside four times those of the undisturbed tests
COPIED = ("rocketbox", "tests", "starter_examples", "docs", "pyproject.toml", "Makefile", "README.md", "CHANGELOG.md")

Status = Literal["killed", "hung", "survived", "no build"]
"""``hung`` counts as killed. ``no build``: it cannot be imported, and is not counted."""


@dataclass(frozen=True)
class Result:
    status: Status
    tests: int = 0
    by: str = ""
    text: str = ""

    @property
    def killed(self) -> bool:
        return self.status in ("killed", "hung")


@dataclass(frozen=True)
class Coverage:
    """``lines``: module -> line -> tests that run it; "" stands for those that import the module."""

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[str]]]
    imported: list[str]
    failed: list[str] = field(default_factory=list)

    def tests_of(self, change: Change, budget: float, first: Sequence[str] = ()) -> list[str]:
        """The tests that run the changed lines, as many as take ``budget`` seconds undisturbed.

        Chosen are the shortest. The second test of a function counts as twice as long as it is, the third as three
        times: what one of them notices the others often do too, and a function more is worth more.
        Where lines are run by an import, these are all tests that run anything of the module, or all of the package.
        Tests of a file stay together, or its fixtures would be made for each anew; but those of ``first`` come first.
        """
        lines = self.lines.get(change.module, {})
        found = {test for line in range(change.first, change.last + 1) for test in lines.get(str(line), ())}
        if "" in found:
            found |= {test for tests in lines.values() for test in tests}
        if not found - {""}:
            found = set(self.seconds)  # a table that is only imported
        weights: dict[str, float] = {}
        of_function: Counter[str] = Counter()
        for test in sorted(found - {""} - set(self.failed), key=lambda test: (self.seconds.get(test, 0.0), test)):
            of_function[function := test.partition("[")[0]] += 1
            weights[test] = of_function[function] * self.seconds.get(test, 0.0)
        chosen: list[str] = []
        left = budget
        for test in sorted(weights, key=lambda test: (weights[test], test)):
            if (left := left - self.seconds.get(test, 0.0)) < 0 and chosen:
                break
            chosen.append(test)
        files: dict[str, float] = {}
        for test in chosen:
            files[_file(test)] = files.get(_file(test), 0.0) + self.seconds.get(test, 0.0)
        place = {test: number for number, test in enumerate(first)}
        return sorted(chosen, key=lambda test: (place.get(test, len(place)), files[_file(test)], _file(test)))

    def without(self, files: Collection[str]) -> Coverage:
        """But for the tests of these files."""
        return Coverage(
            {test: seconds for test, seconds in self.seconds.items() if _file(test) not in files},
            {
                module: {line: [test for test in tests if _file(test) not in files] for line, tests in lines.items()}
                for module, lines in self.lines.items()
            },
            self.imported,
            [test for test in self.failed if _file(test) not in files],
        )

    def with_those_of(self, other: Coverage) -> Coverage:
        """And what the tests of another part run."""
        lines = {module: dict(tests) for module, tests in self.lines.items()}
        for module, more in other.lines.items():
            known = lines.setdefault(module, {})
            for line, tests in more.items():
                known[line] = [*known.get(line, ()), *(test for test in tests if test not in known.get(line, ()))]
        imported = [*self.imported, *(name for name in other.imported if name not in self.imported)]
        return Coverage({**self.seconds, **other.seconds}, lines, imported, [*self.failed, *other.failed])

    def seconds_of(self, tests: Sequence[str]) -> float:
        return sum(self.seconds.get(test, 0.0) for test in tests)

    def runs_at_import(self, change: Change) -> bool:
        lines = self.lines.get(change.module, {})
        return any("" in lines.get(str(line), ()) for line in range(change.first, change.last + 1))


def copy_project(root: Path, folder: Path) -> Path:
    """What the tests need of the project."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, folder / name)
    return folder


class Copy:
    """A copy of the project with two warm pytests: one that has imported nothing of it, and one with all tests."""

    def __init__(self, root: Path, folder: Path, seed: int) -> None:
        self._root, self._folder, self._seed = root, folder, seed
        self.project = folder / "project"
        shutil.rmtree(folder, ignore_errors=True)
        copy_project(root, self.project)
        # Compiled files are compared by the content of the source: one of a mutant is never taken for another's.
        checked = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(self.project / "rocketbox", quiet=2, invalidation_mode=checked)
        (folder / "tmp").mkdir()
        self._log = folder / "log"
        self._passed_alone: set[str] = set()
        self._fresh = self._start()
        self._collected: subprocess.Popen[str] | None = None

    def _start(self) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
        paths = os.pathsep.join(filter(None, (str(self.project), os.environ.get("PYTHONPATH"))))
        more = {"PYTHONPATH": paths, "TMPDIR": str(self._folder / "tmp"), "OPENBLAS_NUM_THREADS": "1"}
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-P", str(Path(warm.__file__))],
                cwd=self.project, env={**kept, **more}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip

    def close(self) -> None:
        for process in filter(None, (self._fresh, self._collected)):
            process.kill()
            process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def warm_up(self, imported: list[str], tests: Sequence[str]) -> None:
        """Import what others wrote, and collect the tests."""
        self._collected = self._start()
        for process in (self._fresh, self._collected):
            self._ask(process, {"import": imported})
        self._ask(self._collected, {"collect": True, **self._said(tests)})

    def _said(self, tests: Sequence[str]) -> dict[str, Any]:
        places = {"output": str(self._folder / "output"), "basetemp": str(self._folder / "tmp" / "pytest")}
        return {"tests": list(tests), "seed": self._seed, **places}

    def cover(self, tests: Sequence[str], modules: Sequence[str]) -> dict[str, Any]:
        return self._ask(self._fresh, {**self._said(tests), "cover": list(modules)})

    def try_change(self, change: Change, source: str, tests: list[str], seconds: float, at_import: bool) -> Result:
        """What becomes of the tests when the module of ``change`` has this source."""
        limit = SPARE_SECONDS + 4 * seconds
        while True:
            answer = self._run(change, source, tests, limit, at_import)
            match answer["status"]:
                case 0:
                    return Result("survived", len(tests))
                case warm.NOT_COLLECTED:
                    return Result("no build", len(tests), text=answer["text"])
                case warm.OVER_TIME:
                    return Result("hung", len(tests), text=answer["text"])
                case status if status > 1:  # pytest's: it was told nonsense
                    raise RuntimeError(f"pytest ended with {status}: {self._log.read_text()[-4000:]}")
                case _ if not answer["failed"]:
                    return Result("killed", len(tests), f"pytest ended with {answer['status']}", answer["text"])
            failed = answer["failed"][0]
            if self._passes_alone(failed, limit):
                return Result("killed", len(tests), failed, answer["text"])
            tests = [test for test in tests if test != failed]  # it fails by itself, and notices nothing
            if not tests:
                return Result("survived")

    def _run(self, change: Change, source: str, tests: list[str], limit: float, at_import: bool) -> dict[str, Any]:
        path = self._root / change.module
        in_place = not at_import and path.read_text(encoding="utf-8").count("\n") == source.count("\n")
        if in_place and self._collected is not None:
            request = {**self._said(()), "only": tests, "seconds": limit, "module": change.module, "source": source}
            if (answer := self._ask(self._collected, request))["status"] != warm.NOT_SWAPPED:
                return answer
        copied = self.project / change.module
        copied.write_text(source, encoding="utf-8")
        try:
            files = sorted({_file(test) for test in tests})
            return self._ask(self._fresh, {**self._said(files), "only": tests, "seconds": limit})
        finally:
            shutil.copy2(path, copied)

    def _ask(self, process: subprocess.Popen[str], request: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        if not (line := process.stdout.readline()):
            raise RuntimeError(f"the process that runs the tests has ended: {self._log.read_text()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _passes_alone(self, test: str, limit: float) -> bool:
        """Whether the test passes without any mutant."""
        if test not in self._passed_alone:
            process = self._collected or self._fresh
            if self._ask(process, {**self._said([_file(test)]), "only": [test], "seconds": limit})["status"] != 0:
                return False
            self._passed_alone.add(test)
        return True


class Known:
    """The results of earlier runs, a line of JSON each. ``tests`` says which tests a mutant met that survived."""

    def __init__(self, path: Path, tests: str) -> None:
        self._path, self._tests = path, tests
        self._results: dict[str, Result] = {}
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            text = path.read_text()
            whole = text[: text.rfind("\n") + 1]
            path.write_text(whole)  # without a line that was broken off
            for line in whole.splitlines():
                kept = json.loads(line)
                key = kept.pop("key")
                self._results[key] = Result(**kept)

    def get(self, source: str) -> Result | None:
        return self._results.get(_key(source)) or self._results.get(_key(source, self._tests))

    def add(self, source: str, result: Result) -> None:
        key = _key(source) if result.killed else _key(source, self._tests)
        with self._lock, self._path.open("a") as file:
            self._results[key] = result
            file.write(json.dumps({"key": key, **asdict(result)}) + "\n")


def _key(source: str, tests: str = "") -> str:
    return hashlib.sha256((tests + source).encode()).hexdigest()[:24]


def covered(copy: Copy, package: Package, root: Path, kept: Path) -> Coverage:
    """Which test runs which line, and how long it takes: of the file ``kept``, but for tests that have changed.

    When a module has changed, all tests are run.
    """
    modules, files = package.module_paths(root), package.test_paths(root)
    digests = {"modules": digest_of(root, modules), **{file: digest_of(root, [file]) for file in files}}
    known = json.loads(kept.read_text()) if kept.exists() else {"digests": {}}
    if known["digests"].get("modules") != digests["modules"]:
        known = {"digests": {}, "seconds": {}, "lines": {}, "imported": [], "failed": []}
    coverage = Coverage(known["seconds"], known["lines"], known["imported"], known["failed"])
    if known["digests"] == digests:
        return coverage
    changed = [file for file in files if known["digests"].get(file) != digests[file]]
    coverage = coverage.without({*changed, *(set(known["digests"]) - set(digests))})
    if changed:
        answer = copy.cover(changed, modules)
        if "lines" not in answer:
            raise RuntimeError(f"the tests of {package.name} did not run: {answer['text']}")
        found = Coverage(answer["seconds"], answer["lines"], answer["imported"], answer["failed"])
        coverage = coverage.with_those_of(found)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"digests": digests, **asdict(coverage)}))
    return coverage


def digest_of(root: Path, paths: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.encode() + (root / path).read_bytes())
    return digest.hexdigest()[:16]


def _file(test: str) -> str:
    return test.partition("::")[0]
