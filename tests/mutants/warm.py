"""A warm pytest: a process that has imported and collected what it can, and forks for each run of tests.

It reads a request a line from its standard input and answers each with a line. It stands in a copy of the project. At
first a run imports the project after the fork only, and sees what the copy holds then. After the request ``collect``
the tests are there, and with them the modules: now a run puts changed functions in the place of those that were
imported, which costs milliseconds, but cannot change what an import has done.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, TextIO

import pytest

__all__ = ["NOT_COLLECTED", "NOT_SWAPPED", "OVER_TIME", "main"]

OVER_TIME: Final = -1000
NOT_COLLECTED: Final = -1001
NOT_SWAPPED: Final = -1002
MEMORY = 4 * 1024**3  # an endless loop that appends ends here, not the machine
IDLE = 30.0  # seconds in which a process that waits uses nothing: no unit test sleeps so long
OURS = ("rocketbox", "tests", "starter_examples", "pyspark_rocketmq", "_")
_LONGEST_TEXT = 6000

Request = Mapping[str, Any]
Answer = dict[str, Any]


class Watch:
    """Chooses and times tests, and notes those that fail. ``only``: these, in this order.

    Seconds are those of the processor: others may work on the machine.
    """

    def __init__(self, only: list[str] | None = None, coverage: Any = None) -> None:
        self.only = only
        self._coverage = coverage
        self._began = 0.0
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.text = ""
        self.collected = True

    def choose(self, items: list[pytest.Item]) -> list[pytest.Item]:
        if self.only is None:
            return items
        by_id = {item.nodeid: item for item in items}
        return [by_id[test] for test in self.only if test in by_id]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = self.choose(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collected = False
            self.text = self.text or report.longreprtext[-_LONGEST_TEXT:]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began = time.process_time()
        if self._coverage is not None:
            self._coverage.switch_context(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = time.process_time() - self._began
        if self._coverage is not None:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
            self.text = self.text or report.longreprtext[-_LONGEST_TEXT:]

    def answer(self, status: int) -> Answer:
        return {
            "status": status if self.collected else NOT_COLLECTED,
            "failed": self.failed,
            "text": self.text,
            "seconds": self.seconds,
        }


class Collected:
    """In the place of pytest's loop over the tests: answers requests until there are no more."""

    def __init__(self, requests: TextIO, answers: TextIO, watch: Watch) -> None:
        self._requests, self._answers, self._watch = requests, answers, watch

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        functions = imported_functions(Path.cwd())
        gc.collect()
        gc.freeze()
        self._answers.write(json.dumps({"status": 0}) + "\n")
        for line in self._requests:
            request = json.loads(line)
            answer = in_fork(request, lambda request=request: self._run(session, functions, request))  # type: ignore[misc]
            self._answers.write(json.dumps(answer) + "\n")
        return True

    def _run(self, session: pytest.Session, functions: Functions, request: Request) -> Answer:
        if "source" in request and not swap(functions, request["module"], request["source"]):
            return {"status": NOT_SWAPPED, "failed": [], "text": "", "seconds": {}}
        self._watch.only = request["only"]
        items = self._watch.choose(session.items)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._watch.failed:
                break
        return self._watch.answer(1 if self._watch.failed else 0)


Functions = dict[tuple[str, str, int], list[FunctionType]]
"""By file, qualified name and first line: a decorated function, a method and a closure are found alike."""


def imported_functions(project: Path) -> Functions:
    found: Functions = defaultdict(list)
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(str(project)):
            found[_key(each.__code__)].append(each)
    return found


def swap(functions: Functions, module: str, source: str) -> bool:
    """Give the module's imported functions their code of this source; False when none differs, or one does not fit."""
    path = Path(module).resolve()
    before = {_key(code): code for code in _codes(compile(path.read_text(encoding="utf-8"), str(path), "exec"))}
    swapped = False
    for code in _codes(compile(source, str(path), "exec")):
        if before.get(_key(code)) == code:
            continue
        for function in functions.get(_key(code), ()):
            if function.__code__.co_freevars != code.co_freevars:
                return False
            function.__code__ = code
            swapped = True
    return swapped


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def options_of_pytest(request: Request) -> list[str]:
    """For the tests of the request. What they import is there before pytest and its plugins, and these warn of it."""
    options = ["-q", "-s", "--no-header", "-p", "no:cacheprovider", f"--basetemp={request['basetemp']}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", f"--hypothesis-seed={request['seed']}"]
    options += ["-W", "ignore::hypothesis.errors.HypothesisSideeffectWarning"]
    return [*options, *request["tests"]]


def run_tests(request: Request) -> Answer:
    """One run of pytest in this process; with ``cover`` it says which test runs which line of these modules."""
    coverage = None
    if request.get("cover"):
        from coverage import Coverage

        include = [str(Path(module).resolve()) for module in request["cover"]]
        coverage = Coverage(data_file=None, config_file=False, include=include)
        coverage.start()
    watch = Watch(request.get("only"), coverage)
    status = pytest.main([*options_of_pytest(request), *([] if coverage else ["-x"])], plugins=[watch])
    answer = watch.answer(int(status))
    if coverage is not None:
        coverage.stop()
        data = coverage.get_data()
        answer["lines"] = {module: data.contexts_by_lineno(str(Path(module).resolve())) for module in request["cover"]}
        # In the order of their imports: an extension like _asyncio must not come before what it belongs to.
        answer["imported"] = [name for name in sys.modules if not name.startswith(OURS)]
    return answer


def in_fork(request: Request, run: Callable[[], Answer]) -> Answer:
    """Run in a fork, within the seconds of the processor that the request allows."""
    output, result = Path(request["output"]), Path(request["output"] + ".json")
    result.unlink(missing_ok=True)
    if (child := os.fork()) == 0:
        status = 1
        try:
            os.setsid()
            written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(written, 1)
            os.dup2(written, 2)
            if "seconds" in request:
                most = int(request["seconds"]) + 1
                resource.setrlimit(resource.RLIMIT_CPU, (most, most))
                resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            result.write_text(json.dumps(run()))
            status = 0
        finally:
            os._exit(status)
    status = _wait(child)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the tests have started and left
    if result.exists() and (text := result.read_text()):
        answer: Answer = json.loads(text)
        return answer
    text = output.read_text(errors="replace")[-_LONGEST_TEXT:] if output.exists() else ""
    return {"status": status, "failed": [], "text": text, "seconds": {}}


def _wait(child: int) -> int:
    """How it ended. OVER_TIME: it had used up its time of the processor, or it waited for what never comes."""
    used, since = 0.0, time.monotonic()
    pause = 0.002
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return OVER_TIME if code in (-signal.SIGXCPU, -signal.SIGKILL) else -abs(code)
        if used != (now_used := _processor_time(child)):
            used, since = now_used, time.monotonic()
        elif time.monotonic() - since > IDLE:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return OVER_TIME
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def _processor_time(process: int) -> float:
    """What it has used, or a new number while it waits for the processor only."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except OSError:  # no Linux: only the limit of the processor's time holds
        return time.monotonic()
    return time.monotonic() if fields[0] != "S" else float(fields[11]) + float(fields[12])


def import_all(names: list[str]) -> Answer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            with suppress(Exception):  # not all of a package can be imported everywhere
                importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return {"status": 0}


def main() -> int:
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for line in requests:
        request = json.loads(line)
        if "collect" in request:
            watch = Watch()
            status = pytest.main(options_of_pytest(request), plugins=[watch, Collected(requests, answers, watch)])
            return int(status)
        if "import" in request:
            answer = import_all(request["import"])
        else:
            answer = in_fork(request, lambda request=request: run_tests(request))  # type: ignore[misc]
        answers.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
