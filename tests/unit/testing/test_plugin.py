"""The pytest plugin, as users have it: a project with a service and tests, run by a pytest of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from rocketbox.testing.plugin import service_named

ROOT = Path(__file__).resolve().parents[3]

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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SERVICE)
    (tmp_path / "rocketbox.yaml").write_text("rocketmq: {name-server: ns1:9876, producer: {group: shop}}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nrocketbox_app = shop:app\npythonpath = .\nfilterwarnings = error\n")
    return tmp_path


def run(project: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (project / "test_shop.py").write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "rocketbox.testing.plugin", "-p", "no:cacheprovider"]
    return subprocess.run([*command, *arguments], cwd=project, capture_output=True, text=True, timeout=120)


def test_the_fixture_is_there_for_tests_that_await_and_for_those_that_do_not(project: Path) -> None:
    done = run(project, TESTS)
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_the_report_of_a_failing_test_tells_what_happened(project: Path) -> None:
    done = run(project, FAILING)
    assert "2 failed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("rocketbox harness, in virtual time") == 2
    assert "+0.000 s  shop: sell, attempt 1, keys o1: comes back (ValueError: nobody sells air)" in done.stdout
    assert "nothing was sent to receipts, and one was expected" in done.stdout


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("", 'the fixture harness needs a service, and there is none: write rocketbox_app = "package.module:app"'),
        ("json", "'json' names none"),
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
        "rocketbox", "rocketbox.version", "rocketbox.testing", "rocketbox.testing.plugin",
    }  # fmt: skip
    script = "import sys, rocketbox; from rocketbox import RocketBox; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert not {name for name in loaded if name.startswith(("rocketbox.testing", "pytest", "_pytest"))}
