"""The harness on real servers: the same verbs in real time, on the embedded servers and on Apache's."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import ModuleType

import pytest

from rocketbox.client import Admin, Producer, PushConsumer
from rocketbox.client.tries import Tries
from rocketbox.errors import Reject
from rocketbox.protocol.prepared_sends import PLAIN_NUMBERS, SendRequest
from rocketbox.testing import Harness, HarnessError, Outcome, given
from tests.conformance.apache import NEWEST, ROOT
from tests.docs.pages import FENCE
from tests.support.framework.services import ServiceMaker

pytestmark = [pytest.mark.anyio, pytest.mark.smoke]

SOURCE = """
from rocketbox import ConsumeMode, MessageModel, Reject, RetryLater, RocketBox, rocketmq_listener, send_to

app = RocketBox("payments", scan=[__name__])
paid, filed, walked, news = [], [], [], []

@rocketmq_listener(topic="payments-RUN", consumer_group="payer-RUN")
@send_to("receipts-RUN")
async def pay(number: str) -> str:
    if int(number) < 0:
        raise Reject("too little")
    paid.append(int(number))
    return f"receipt {number}"

@rocketmq_listener(topic="receipts-RUN", consumer_group="archive-RUN")
def file_receipt(receipt: str) -> None:
    filed.append(receipt)

@rocketmq_listener(topic="steps-RUN", consumer_group="walker-RUN", consume_mode=ConsumeMode.ORDERLY)
async def step(text: str) -> None:
    walked.append(text)
    if text == "two" and walked.count("two") == 1:
        raise ConnectionError("stumbled")

@rocketmq_listener(topic="news-RUN", consumer_group="reader-RUN", message_model=MessageModel.BROADCASTING)
async def read(text: str) -> None:
    news.append(text)
"""

SETTINGS = """
rocketmq:
  name-server: ns1.example:9876
  producer: {group: payments}
"""


@pytest.fixture
def run() -> str:
    return uuid.uuid4().hex[:8]


@pytest.fixture
def payments(service: ServiceMaker, run: str) -> ModuleType:
    return service(SOURCE.replace("RUN", run), SETTINGS)


@pytest.fixture
def harness_of(payments: ModuleType, name_server: str) -> Callable[..., Harness]:
    return lambda **options: Harness(payments.app, name_server=name_server, **options)


async def test_messages_are_handled_and_drain_waits_for_all_that_follows(
    payments: ModuleType, harness_of: Callable[..., Harness], run: str
) -> None:
    async with harness_of() as harness:
        for number in range(20):
            await harness.send(f"payments-{run}", str(number))
        await harness.send(f"news-{run}", "rain")
        await harness.drain()
        assert sorted(payments.paid) == list(range(20))
        assert sorted(payments.filed) == sorted(f"receipt {number}" for number in range(20))
        assert payments.news == ["rain"]
        assert len(harness.sent(f"receipts-{run}")) == len(harness.calls("pay")) == 20
        assert sum(each.consumed for each in harness.offsets(f"payer-{run}")) == 20
        assert {each.lag for each in harness.offsets(f"payer-{run}")} == {0}


async def test_what_fails_comes_back_in_real_time(
    payments: ModuleType, harness_of: Callable[..., Harness], run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(given, "tell", told.append)
    async with harness_of() as harness:
        harness.handler("pay").fails(error=ConnectionError("closed"))
        await harness.send(f"payments-{run}", "1")
        await harness.drain()
        assert [call.outcome for call in harness.calls("pay")] == [Outcome.COMES_BACK]
        (call,) = await harness.consumed(f"payer-{run}", within="60s")
        assert (call.attempt, payments.paid) == (2, [1])
        before = harness.now
        await harness.advance("500ms")
        assert (harness.now - before).total_seconds() >= 0.5
    assert told[0] == "waits for real, 1m at most"
    assert told[1].startswith("advance waits for real: 500ms, until ")


async def test_a_rejected_message_is_a_dead_letter(harness_of: Callable[..., Harness], run: str) -> None:
    async with harness_of() as harness:
        await harness.send(f"payments-{run}", "-1", keys="p1")
        await harness.drain()
        (letter,) = harness.dead_letters(f"payer-{run}")
        assert isinstance(letter.why, Reject)
        assert (letter.payload(str), letter.message.keys) == ("-1", ("p1",))
        assert letter.message.topic == f"%DLQ%payer-{run}"


async def test_a_dead_letter_without_an_id_of_its_client_is_found(
    harness_of: Callable[..., Harness], run: str, name_server: str
) -> None:
    """Not all clients give one."""
    async with harness_of() as harness, Producer("elsewhere", name_server=name_server) as producer:
        bare = SendRequest(f"payments-{run}", b"-1", b"KEYS\x01k1", "", 0, numbers=PLAIN_NUMBERS)
        await producer._sender.deliver(bare, Tries(monotonic(), 5.0, 0))
        await harness.drain()
        (letter,) = harness.dead_letters(f"payer-{run}")
        assert (letter.attempts, str(letter.why)) == (1, "too little")


async def test_a_queue_in_order_waits_for_what_failed_and_drain_does_not(
    payments: ModuleType, harness_of: Callable[..., Harness], run: str
) -> None:
    async with harness_of(failures="keep") as harness:
        for text in ("one", "two", "three"):
            await harness.send(f"steps-{run}", text, hash_key="way")
        await harness.consumed(f"walker-{run}", 3, within="60s")
        assert payments.walked == ["one", "two", "two", "three"]


async def test_a_run_begins_behind_what_an_earlier_one_has_left(
    payments: ModuleType, harness_of: Callable[..., Harness], name_server: str, run: str
) -> None:
    async with harness_of() as harness:
        with harness.freeze(f"payer-{run}"):
            await harness.send(f"payments-{run}", "1")
            await harness.send(f"news-{run}", "rain")
            await harness.drain()
    async with harness_of() as harness:
        await harness.send(f"payments-{run}", "2")
        await harness.drain()
        assert payments.paid == [2]
        assert payments.news == ["rain"]
        assert [(each.consumed, each.end) for each in harness.offsets(f"payer-{run}")] == [(1, 1)]
    async with Admin(name_server) as admin:
        ends = [await admin.max_offset(queue) for queue in await admin.queues(f"payments-{run}")]
    assert sum(ends) == 2


async def test_what_waits_for_a_frozen_group_is_its_lag(harness_of: Callable[..., Harness], run: str) -> None:
    """A group that takes nothing hears of no message: who drains asks the servers."""
    async with harness_of() as harness:
        with harness.freeze(f"payer-{run}"), harness.freeze(f"reader-{run}"):
            for _ in range(2):
                await harness.send(f"payments-{run}", "1", hash_key="one queue")
            await harness.send(f"news-{run}", "rain")
            await harness.drain()
            for group, waits in ((f"payer-{run}", 2), (f"reader-{run}", 1)):
                assert [(each.consumed, each.end, each.lag) for each in harness.offsets(group)] == [(0, waits, waits)]
        await harness.drain()
        assert [(each.consumed, each.lag) for each in harness.offsets(f"payer-{run}")] == [(2, 0)]


async def test_it_begins_anew_between_tests(payments: ModuleType, harness_of: Callable[..., Harness], run: str) -> None:
    async with harness_of() as harness:
        await harness.send(f"payments-{run}", "1")
        await harness.drain()
        with harness.freeze(f"payer-{run}"):
            await harness.send(f"payments-{run}", "2")
            await harness.fresh()
        assert (harness.log, harness.offsets(f"payer-{run}")) == ("nothing has happened", [])
        await harness.send(f"payments-{run}", "3")
        await harness.drain()
        assert payments.paid == [1, 3]


async def test_a_group_that_somebody_else_is_in_is_left_alone(
    payments: ModuleType, harness_of: Callable[..., Harness], name_server: str, run: str
) -> None:
    async def handle(messages: object) -> None: ...

    async with Admin(name_server) as admin:
        await admin.create_topic(f"payments-{run}")
    async with PushConsumer(f"payer-{run}", name_server=name_server) as consumer:
        await consumer.subscribe(f"payments-{run}", "*", handle)
        with pytest.raises(HarnessError, match=f"group payer-{run} has members on {name_server}: .*: stop them"):
            async with harness_of():
                raise AssertionError("it started")


async def test_what_needs_virtual_time_or_servers_in_memory_is_refused(
    payments: ModuleType, harness_of: Callable[..., Harness], run: str
) -> None:
    async with harness_of() as harness:
        with pytest.raises(HarnessError, match=r"runs on a real one: mark the test @pytest.mark.needs_virtual_time"):
            harness.broker.silence()
        with pytest.raises(HarnessError, match="those of servers in memory"):
            harness.disk.full()
        await harness.send(f"payments-{run}", "1")
        await harness.drain()
        for each in (harness.calls("pay")[0], harness.sent(f"payments-{run}")[0]):
            with pytest.raises(HarnessError, match="a message is delivered again by a broker in memory alone"):
                await harness.redeliver(each)


def test_in_a_plain_function(payments: ModuleType, harness_of: Callable[..., Harness], run: str) -> None:
    with harness_of() as harness:
        harness.blocking.send(f"payments-{run}", "1")
        harness.blocking.drain()
    assert payments.filed == ["receipt 1"]
    assert not (Path.cwd() / ".rocketbox").exists()


# --- whole suites of tests, as their users start them ----------------------------------------------------------------

UNDER_ASYNCIO = """
import pytest

@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
"""


@pytest.mark.parametrize("name_server", [NEWEST], indirect=True)
def test_the_tests_of_the_readme_and_of_the_flight_desk_pass_on_apache(name_server: str, tmp_path: Path) -> None:
    for _, told, code in FENCE.findall((ROOT / "README.md").read_text()):
        if " file=" in told:
            (tmp_path / told.partition(" file=")[2]).write_text(code)
    (tmp_path / "conftest.py").write_text(UNDER_ASYNCIO)
    tests = [str(tmp_path / "test_orders.py"), "tests/examples/test_flight_desk_in_harness.py"]
    options = ["-q", "-p", "no:cacheprovider", "-m", "not spark", "-o", f"pythonpath={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--rocketbox-name-server={name_server}", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "6 passed, 1 deselected" in done.stdout, done.stdout + done.stderr
