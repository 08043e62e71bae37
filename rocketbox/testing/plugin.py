"""The pytest plugin: the fixture ``harness``, and what a failing test's report tells of it.

pytest loads this module in every run where rocketbox is installed, so it loads nothing of rocketbox before a test wants
a harness. Tests that are coroutines run under whatever plugin runs them (anyio's, pytest-asyncio): the harness is
entered around the test itself, in its task. For a plain function it runs in a thread (``harness.blocking``).
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
import unittest
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from rocketbox.testing import reported

if TYPE_CHECKING:
    from rocketbox.application import RocketBox
    from rocketbox.testing.harness import Harness

__all__ = ["harness", "harness_options", "rocketbox_app", "service_named"]

APP = "rocketbox_app"
BEGINS_WITH_THE_TEST = (
    "in an async test the fixture harness begins with the test itself, after its other fixtures: for a fixture that "
    "needs it before, put an async fixture harness of your own in its place, which yields inside of "
    "'async with Harness(app) as harness:'"
)
_is_called = pytest.StashKey[bool]()
_has_harness = pytest.StashKey[bool]()  # the harness itself would stay in memory until the end of the run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(APP, 'the service that the fixture harness runs, as "package.module:app"', default="")

    parser.getgroup("rocketbox").addoption(
        "--rocketbox-name-server",
        action="append",
        default=[],
        metavar="[CLUSTER=]HOST:PORT",
        help="let harnesses run on real servers, in real time; once more as name=host:port for each further cluster",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs_virtual_time: the test is skipped where harnesses run on a real broker, in real time"
    )
    config.addinivalue_line(
        "markers",
        "harness(**options): options of the Harness that the fixture harness makes, such as settings={...}",
    )

    reported.begin(config.rootpath)
    config.add_cleanup(reported.end)
    if texts := config.getoption("--rocketbox-name-server"):
        _use(texts, config)


def _use(texts: list[str], config: pytest.Config) -> None:
    """Have all harnesses run on these servers."""
    from rocketbox.testing import given

    if config.getoption("numprocesses", None):
        raise pytest.UsageError(
            "--rocketbox-name-server: tests beside each other would share the groups of the service on one broker; "
            "start pytest with -n 0"
        )
    try:
        given.name_servers.update(given.said(texts))
    except ValueError as error:
        raise pytest.UsageError(f"--rocketbox-name-server: {error}") from error
    given.tell = lambda text: _tell(text, config)
    config.add_cleanup(given.forget)


def _tell(text: str, config: pytest.Config) -> None:
    """Write it at once, whatever pytest captures."""
    capture, reporter = (config.pluginmanager.get_plugin(name) for name in ("capturemanager", "terminalreporter"))
    if capture is None or reporter is None:
        return
    with capture.global_and_fixture_disabled():
        reporter.ensure_newline()
        reporter.write_line(f"rocketbox: {text}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    reported.begin_test()
    if item.config.getoption("--rocketbox-name-server") and item.get_closest_marker("needs_virtual_time"):
        pytest.skip("it needs virtual time, and --rocketbox-name-server gives real servers")


@pytest.fixture
def rocketbox_app(request: pytest.FixtureRequest) -> RocketBox:
    """The service under test: what pytest's setting ``rocketbox_app`` names. A fixture of that name takes its place."""
    return service_named(str(request.config.getini(APP)))


def service_named(named: str) -> RocketBox:
    """The service that ``package.module:app`` names. Raises UsageError, with what to write."""
    module, _, name = named.partition(":")
    if not module or not name:
        said = f"{named!r} names none" if named else "there is none"
        raise pytest.UsageError(
            f'the fixture harness needs a service, and {said}: write rocketbox_app = "package.module:app" into '
            "[tool.pytest.ini_options] of pyproject.toml, or a fixture rocketbox_app that returns it"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        fix = "write the name of the RocketBox in it"
        if isinstance(error, ImportError):
            fix = "pytest's setting pythonpath names the folders that it looks in"
        raise pytest.UsageError(f"rocketbox_app = {named}: {error}; {fix}") from error
    from rocketbox.application import RocketBox

    if not isinstance(found, RocketBox):
        raise pytest.UsageError(f"rocketbox_app = {named} is a {type(found).__qualname__}, and not a RocketBox")
    return found


@pytest.fixture
def harness_options() -> dict[str, Any]:
    """Options of :class:`~rocketbox.testing.Harness` for all tests that see it: one of your own takes its place."""
    return {}


@pytest.fixture
def harness(
    request: pytest.FixtureRequest, rocketbox_app: RocketBox, harness_options: dict[str, Any]
) -> Iterator[Harness]:
    """A harness around the test, with what ``harness_options`` and ``@pytest.mark.harness(...)`` say."""
    from rocketbox.testing.harness import Harness

    if not isinstance(harness_options, Mapping):
        raise pytest.UsageError(
            f"the fixture harness_options gives {harness_options!r}, and takes options of a Harness by their names: "
            'return {"settings": {...}}'
        )
    options = dict(harness_options)
    for mark in reversed(list(request.node.iter_markers("harness"))):  # the nearest one wins
        if mark.args:
            raise pytest.UsageError("@pytest.mark.harness takes options by name, such as settings={...}")
        options = {**options, **mark.kwargs}
    _check(options, Harness)
    made = Harness(rocketbox_app, **options)
    request.node.stash[_has_harness] = True
    test = request.node.obj
    if not inspect.iscoroutinefunction(test):
        with made:
            yield made
        return
    if isinstance(request.instance, unittest.TestCase):
        raise pytest.UsageError(
            f"the fixture harness cannot be around {request.node.name}, for unittest runs it in a loop of its own: "
            "write self.harness = await self.enterAsyncContext(Harness(app)) in asyncSetUp"
        )
    made._how_to_start = BEGINS_WITH_THE_TEST

    @functools.wraps(test)
    async def run(*args: Any, **named: Any) -> Any:
        async with made:
            return await test(*args, **named)

    request.node.obj = run
    try:
        yield made
    finally:
        request.node.obj = test  # who runs a failed test once more runs the test itself, with a harness of its own


def _check(options: dict[str, Any], harness_type: type[Harness]) -> None:
    """Raises UsageError for an option that is none."""
    parameters = inspect.signature(harness_type).parameters.values()
    known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            raise pytest.UsageError(
                f"{name!r} is no option of a Harness (harness_options, @pytest.mark.harness); {fix}"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test with the fixture whose batch for a Spark listener needs a Java that is not there."""
    item.stash[_is_called] = True
    try:
        return (yield)
    except Exception as error:
        java = sys.modules.get("rocketbox.spark.java")  # who has not loaded it does not raise its error
        if java is None or _has_harness not in item.stash or not isinstance(error, java.JavaNotFoundError):
            raise
        pytest.skip(str(error))
    finally:
        item.stash[_is_called] = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the harnesses that ran in a test that failed: the fixture's, and all others."""
    report = yield
    is_part = item.stash.get(_is_called, False)  # of a test, a subtest
    if not (is_part and report.skipped):
        reported.test_ended(passed=report.passed, is_over=report.when == "teardown")
    if report.failed:
        made = reported.ran()
        for each in made:
            of = f" of {each.app.name}" if len(made) > 1 else ""
            time = "virtual" if each.is_virtual else "real"
            report.sections.append((f"rocketbox harness{of}, in {time} time", each.log_for_report))
    return report
