"""A push consumer of Apache's Java client joins a group of ours and leaves it, on both brokers, while handlers run."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import ConsumerOptions, Producer, PushConsumer
from rocketbox.clock import RealClock
from rocketbox.message import ConsumeFromWhere, ConsumeMode, Message, MessageExt
from tests.conformance.apache import NEWEST
from tests.conformance.java_member import JavaMember
from tests.conformance.servers import EMBEDDED

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]

HANDLER_MS = 100
KEYS = 12
PAUSE = 0.1  # seconds between two messages: Java ends its orderly handlers only when a queue is empty
UP_TO_DATE = 4  # messages that nobody has begun with
SECONDS = 120


class Ledger:
    """What was sent, and who handled it when; a body is ``key number``."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.events: list[tuple[float, str, str]] = []
        self._clock = RealClock()
        self._numbers: Counter[str] = Counter()

    async def send(self, producer: Producer, topic: str, until: anyio.Event) -> None:
        while not until.is_set():
            key = f"k{len(self.sent) % KEYS}"
            body = f"{key} {self._numbers[key]}"
            self._numbers[key] += 1
            await producer.send(Message(topic, body.encode(), hash_key=key))
            self.sent.append(body)
            await anyio.sleep(PAUSE)

    async def handle(self, batch: list[MessageExt]) -> None:
        for message in batch:
            self.note("begins", message)
            await anyio.sleep(HANDLER_MS / 1000)
            self.note("ends", message)

    def note(self, what: str, message: MessageExt) -> None:
        self.events.append((self._clock.monotonic(), what, message.body.decode()))


@pytest.mark.parametrize("name_server", [EMBEDDED, NEWEST], indirect=True)
@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_java_member_joins_and_leaves_a_group_of_ours(
    name_server: str, mode: ConsumeMode, anyio_backend: str
) -> None:
    orderly = mode is ConsumeMode.ORDERLY
    topic, group = f"t{uuid.uuid4().hex[:12]}", f"g{uuid.uuid4().hex[:12]}"
    ledger, stop, clock = Ledger(), anyio.Event(), RealClock()
    options = ConsumerOptions(
        consume_mode=mode, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, concurrency=40,
    )  # fmt: skip
    java = JavaMember(name_server, topic, group, orderly=orderly, handler_ms=HANDLER_MS)
    async with (
        Producer("p", name_server=name_server) as producer,
        PushConsumer(group, name_server=name_server, options=options) as consumer,
        anyio.create_task_group() as tasks,
    ):
        await producer.send(Message(topic, b"first 0", hash_key="first"))  # makes the topic
        await consumer.subscribe(topic, "*", ledger.handle)
        tasks.start_soon(ledger.send, producer, topic, stop)
        with java:
            await anyio.to_thread.run_sync(java.wait_until_joined)
            with anyio.fail_after(SECONDS):  # it may have to wait for the next of its rounds, which are 20 s apart
                # Java interrupts what is not handled ten seconds after it was told to leave: it has to be up to date.
                while len(java.events) <= 2 * KEYS or len(waiting(ledger, java)) > UP_TO_DATE:
                    await anyio.sleep(0.1)
            leaving = clock.monotonic()
            await anyio.to_thread.run_sync(java.leave)
            await anyio.sleep(3)
            stop.set()

            def handled() -> list[str]:
                return [body for _, what, body in [*ledger.events, *java.events] if what == "ends"]

            with anyio.fail_after(SECONDS):
                while not set(ledger.sent) <= set(handled()):
                    await anyio.sleep(0.1)
            await anyio.sleep(1)  # for what comes twice
    times = Counter(handled())
    twice = {body for body in times if times[body] > 1}
    events = sorted([*ledger.events, *java.events])
    if orderly:
        assert twice == set()
        assert orders(events) == {body.split()[0]: list(range(count)) for body, count in counts(ledger.sent).items()}
    else:  # a Java member reads offsets as soon as it joins: what the old owner has in hand then comes to it as well
        assert len(twice) <= HANDLER_MS / 1000 / PAUSE + 1
    assert not {body for when, what, body in events if when > leaving and body in twice}, "nothing twice at the leave"


def waiting(ledger: Ledger, java: JavaMember) -> set[str]:
    """What was sent and no member has begun with."""
    return set(ledger.sent) - {body for _, what, body in [*ledger.events, *java.events] if what == "begins"}


def counts(sent: list[str]) -> dict[str, int]:
    return Counter(body.split()[0] for body in sent)


def orders(events: list[tuple[float, str, str]]) -> dict[str, list[int]]:
    """The numbers of each key in the order in which handlers began; fails when two of a key ran at once."""
    numbers: dict[str, list[int]] = defaultdict(list)
    running: dict[str, str] = {}
    for _, what, body in events:
        key, number = body.split()
        if key == "first":
            continue
        if what == "begins":
            assert key not in running, f"{body} begins while {running[key]} runs"
            running[key] = body
            numbers[key].append(int(number))
        else:
            del running[key]
    return dict(numbers)
