"""Message trace: ours on Apache's brokers and on ours, shown by Apache's mqadmin, and Apache's clients' on ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from rocketbox.client import ConsumerOptions, Producer, ProducerOptions, PushConsumer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.message import ConsumeFromWhere, LocalTransactionState, Message, MessageExt
from rocketbox.protocol.trace_records import (
    EndTransactionRecord,
    PubRecord,
    RecallRecord,
    SubAfterRecord,
    SubBeforeRecord,
    TracedType,
    TraceRecord,
)
from tests.conformance.apache import EACH_VERSION, NEWEST, apache_servers, mqadmin
from tests.conformance.java_program import JavaProgram
from tests.support.broker.broker_process import BrokerProcess
from tests.support.client.traced import trace_records

pytestmark = [pytest.mark.apache, pytest.mark.smoke]

SECONDS = 60.0
SEND = ProducerOptions(send_message_timeout=12.0, enable_msg_trace=True)
CONSUME = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, enable_msg_trace=True)


@dataclass
class Servers:
    name_server: str
    version: str
    folder: Path

    def shown(self, msg_id: str) -> str:
        """What mqadmin shows of a message's way: that of the same version, for the embedded ones the newest."""
        return mqadmin(self.folder, self.version, self.name_server, "queryMsgTraceById", "-i", msg_id)


@pytest.fixture(scope="module", params=["embedded", *EACH_VERSION])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("trace")
    if request.param == "embedded":
        options = EmbeddedOptions(
            data_dir=folder / "store", port=0, name_server_port=0, broker={"trace-topic-enable": True}
        )
        with EmbeddedServers.in_thread(options) as embedded:
            yield Servers(embedded.name_server_address, NEWEST, folder)
    else:
        with apache_servers(
            folder, request.param, keeps_store=False, traceTopicEnable="true", recallMessageEnable="true"
        ) as apache:
            yield Servers(apache.name_server, request.param, folder)


async def records(name_server: str, *msg_ids: str) -> list[TraceRecord]:
    """What the trace topic holds of these messages."""
    return [record for record in await trace_records(name_server) if record.msg_id in msg_ids]


async def commits(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.COMMIT


@pytest.mark.anyio
async def test_mqadmin_shows_our_trace(servers: Servers, topic: str) -> None:
    group = f"g-{topic}"
    failed = anyio.Event()
    handled: list[str] = []
    done = anyio.Event()

    async def handle(messages: list[MessageExt]) -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("the first time")
        handled.extend(message.msg_id for message in messages)
        if len(set(handled)) == 4:
            done.set()

    async with (
        Producer(group, name_server=servers.name_server, options=SEND, transaction_checker=commits) as producer,
        PushConsumer(group, name_server=servers.name_server, options=CONSUME) as consumer,
    ):
        one = await producer.send(Message(topic, b"one", tag="A", keys=["k1", "k2"]))
        batch = await producer.send_batch([Message(topic, b"two"), Message(topic, b"three")])
        async with producer.transaction(Message(topic, b"four")) as transaction:
            pass
        await consumer.subscribe(topic, "*", handle)
        with anyio.fail_after(SECONDS):
            await done.wait()
    ids = [one.msg_id, *(each.msg_id for each in batch), transaction.transaction_id]
    found = await records(servers.name_server, *ids)
    pubs = {each.msg_id: each for each in found if isinstance(each, PubRecord)}
    assert pubs.keys() == set(ids)
    assert pubs[one.msg_id].keys == "k1 k2"
    assert pubs[transaction.transaction_id].type is TracedType.HALF
    (end,) = [each for each in found if isinstance(each, EndTransactionRecord)]
    assert (end.msg_id, end.state) == (transaction.transaction_id, LocalTransactionState.COMMIT)
    befores = [each for each in found if isinstance(each, SubBeforeRecord)]
    afters = [each for each in found if isinstance(each, SubAfterRecord)]
    assert sorted(each.request_id for each in befores) == sorted(each.request_id for each in afters)
    assert [each.success for each in afters].count(False) == 1
    assert {each.msg_id for each in afters if each.success} == set(ids)
    for msg_id in (one.msg_id, batch[1].msg_id):  # of a batch each message is found by its own id
        lines = (await anyio.to_thread.run_sync(servers.shown, msg_id)).splitlines()
        pub = next(line.split() for line in lines if line.startswith("Pub"))
        subs = [line.split() for line in lines if line.startswith("Sub")]
        assert (pub[1], pub[-1]) == (group, "success"), lines
        assert {line[1] for line in subs} == {group}, lines
        assert "success" in {line[-1] for line in subs}, lines


@pytest.mark.anyio
async def test_a_recall_is_traced_beside_the_send_that_mqadmin_shows(servers: Servers, topic: str) -> None:
    """mqadmin reads Recall records and prints none: it shows sends and consumers' ends alone."""
    if servers.version.startswith("4."):
        pytest.skip("4.9.7 knows no recall")
    group = f"g-{topic}"
    async with Producer(group, name_server=servers.name_server, options=SEND) as producer:
        at_its_time = await producer.send(Message(topic, b"at its time", deliver_at=datetime.now(UTC)))
        sent = await producer.send(Message(topic, b"recalled", deliver_at=datetime.now(UTC) + timedelta(seconds=60)))
        assert await producer.recall(sent.recall_handle) == sent.msg_id
    found = await records(servers.name_server, sent.msg_id, at_its_time.msg_id)
    (recall,) = [each for each in found if isinstance(each, RecallRecord)]
    assert (recall.topic, recall.group, recall.msg_id, recall.success) == (topic, group, sent.msg_id, True)
    pubs = {each.msg_id: each for each in found if isinstance(each, PubRecord)}
    assert pubs.keys() == {sent.msg_id, at_its_time.msg_id}
    assert pubs[sent.msg_id].type is TracedType.DELAY
    assert len(found) == 3
    lines = (await anyio.to_thread.run_sync(servers.shown, sent.msg_id)).splitlines()
    (pub,) = [line.split() for line in lines if line.startswith("Pub")]
    assert (pub[1], pub[-1]) == (group, "success"), lines
    assert not [line for line in lines if line.startswith(("Sub", "Recall"))], lines


@pytest.mark.parametrize("version", EACH_VERSION)
def test_apaches_trace_on_the_embedded_broker(version: str, topic: str, tmp_path: Path) -> None:
    group = f"g-{topic}"
    with (
        BrokerProcess(tmp_path / "store", "--trace-topic-enable=true") as broker,
        JavaProgram(
            "rocketbox.Traced", broker.name_server, group, topic, options=("-Xmx256m",), version=version
        ) as java,
    ):
        assert java.told.readline().strip() == "started"
        sent, got = [], set()
        for line in ("one", "transaction two"):
            java.tell(line)
            while not (answer := java.told.readline().strip()).startswith("sent "):
                got.add(answer.removeprefix("got "))
            sent.append(answer.removeprefix("sent "))
        while got != set(sent):
            got.add(java.told.readline().strip().removeprefix("got "))
        java.tell_end()
        assert java.told.readline().strip() == "over"
        found = anyio.run(records, broker.name_server, *sent)
        shown = mqadmin(tmp_path, version, broker.name_server, "queryMsgTraceById", "-i", sent[0])
    kinds = [(each.kind, each.msg_id) for each in found]
    whole = [("Pub", sent[0]), ("SubBefore", sent[0]), ("SubAfter", sent[0])]
    whole += [("Pub", sent[1]), ("EndTransaction", sent[1]), ("SubBefore", sent[1]), ("SubAfter", sent[1])]
    assert sorted(kinds) == sorted(whole)
    assert [line.split()[:2] for line in shown.splitlines() if line[:3] in ("Pub", "Sub")] == [
        ["Pub", group],
        ["Sub", group],
    ]
