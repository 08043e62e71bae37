"""The pytest plugin: the fixture ``harness``, and what a failing test's report tells of it.

pytest loads this module in every run where rocketbox is installed, so it loads nothing of rocketbox before a test wants
a harness. Tests that are coroutines run under whatever plugin runs them (anyio's, pytest-asyncio): the harness is
entered around the test itself, in its task. For a plain function it runs in a thread (``harness.blocking``).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rocketbox.application import RocketBox
    from rocketbox.testing.harness import Harness

__all__ = ["harness", "harness_options", "rocketbox_app", "service_named"]

APP = "rocketbox_app"
_of_test = pytest.StashKey["Harness"]()


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


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.config.getoption("--rocketbox-name-server") and item.get_closest_marker("needs_virtual_time"):
        pytest.skip("it needs virtual time, and --rocketbox-name-server gives real servers")


@pytest.fixture
def rocketbox_app(request: pytest.FixtureRequest) -> RocketBox:
    """The service under test: what pytest's setting ``rocketbox_app`` names. A fixture of that name takes its place."""
    return service_named(str(request.config.getini(APP)))


def service_named(named: str) -> RocketBox:
    """The service that ``package.module:app`` names. Raises UsageError, with what to write."""
    module, separator, name = named.partition(":")
    if not separator:
        said = f"{named!r} names none" if named else "there is none"
        raise pytest.UsageError(
            f'the fixture harness needs a service, and {said}: write rocketbox_app = "package.module:app" into '
            "[tool.pytest.ini_options] of pyproject.toml, or a fixture rocketbox_app that returns it"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"rocketbox_app = {named}: {error}") from error
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

    options = dict(harness_options)
    for mark in reversed(list(request.node.iter_markers("harness"))):  # the nearest one wins
        if mark.args:
            raise pytest.UsageError("@pytest.mark.harness takes options by name, such as settings={...}")
        options = {**options, **mark.kwargs}
    made = request.node.stash[_of_test] = Harness(rocketbox_app, **options)
    test = request.node.obj
    if not inspect.iscoroutinefunction(test):
        with made:
            yield made
        return

    @functools.wraps(test)
    async def run(*args: Any, **named: Any) -> Any:
        async with made:
            return await test(*args, **named)

    request.node.obj = run
    yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test with the fixture whose batch for a Spark listener needs a Java that is not there."""
    try:
        return (yield)
    except Exception as error:
        java = sys.modules.get("rocketbox.spark.java")  # who has not loaded it does not raise its error
        if java is None or _of_test not in item.stash or not isinstance(error, java.JavaNotFoundError):
            raise
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed and (made := item.stash.get(_of_test, None)) is not None:
        time = "virtual" if made.is_virtual else "real"
        report.sections.append((f"rocketbox harness, in {time} time", made.log))
    return report
