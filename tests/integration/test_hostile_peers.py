"""Peers over TCP that mean harm, or have lost their way: servers stay within their bounds, and serve everybody else.

All request codes from 0 to 4,000 instead of a sample: ``ROCKETBOX_TESTS=all``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import re
import socket
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from rocketbox.clock import RealClock
from rocketbox.protocol.codes import RequestCode, SerializeType
from rocketbox.protocol.command import RemotingCommand, encode_command
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.descriptors import raise_descriptor_limit
from rocketbox.remoting.options import RemotingOptions
from tests.support.broker.bare_socket_client import BINARY_TYPE, JSON_TYPE, connect, request
from tests.support.broker.broker_process import BrokerProcess
from tests.support.broker.wire import Wire, embedded
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
LAST_CODE = 4_000
STEP = 1 if os.environ.get("ROCKETBOX_TESTS") == "all" else 29
FIELD_NAMES = (
    "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subscription",
    "subVersion", "consumerGroup", "offset", "timestamp", "clientID", "producerGroup", "group", "key", "maxNum",
    "beginTimestamp", "endTimestamp", "msgId", "delayLevel", "originTopic", "brokerName", "brokerAddr", "clusterName",
    "brokerId", "haServerAddr", "bodyCrc32", "compressed", *"abcdefghijklmn",
)  # fmt: skip
VALUES = (
    "", "0", "-1", "1", "9223372036854775807", "-9223372036854775808", "2147483648", "1e9", "NaN", "true", "x" * 300,
    "../../etc/passwd", "%RETRY%x", "TBW102", "a\x01b\x02", "\0", "ü" * 50, "null", "{}", "T", "*", "A||B",
)  # fmt: skip
BODIES = (
    b"", b"{}", b"[]", b"null", b'{"clientID":1}', b'{"consumerDataSet":[{}]}', b"[" * 3_000, b"{a:" * 500,
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t"}]}]}', b"\xff" * 400,
    b'{"mqSet":[{"topic":"t","brokerName":"b","queueId":-5}],"consumerGroup":"g","clientId":"c"}', bytes(5_000),
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"topicName":3}},"dataVersion":{"counter":"x"}}}',
)  # fmt: skip
# What stands in a traceback or is the name of a Python error.
LEAKS = re.compile(
    r"Traceback|File \"|\.py\b|\b(?:Key|Value|Type|Attribute|Index|Unicode\w*|Assertion|OS|Runtime)Error\b"
)


def strange_requests(codes: list[int]) -> Iterator[RemotingCommand]:
    chance = random.Random(8)
    for code in codes:
        some = {chance.choice(FIELD_NAMES): chance.choice(VALUES) for _ in range(chance.randrange(1, 12))}
        every = {name: chance.choice(VALUES) for name in FIELD_NAMES}
        wrong = dict.fromkeys(FIELD_NAMES, "no number")
        yield RemotingCommand.request(code)
        yield RemotingCommand.request(code, some)
        yield RemotingCommand.request(code, every, chance.choice(BODIES))
        yield RemotingCommand.request(code, wrong, b"{}")
        yield RemotingCommand.request(code, some, chance.randbytes(chance.randrange(300)))
        yield RemotingCommand.request(code, None, chance.choice(BODIES))


async def well(wire: Wire, topic: str = "healthy") -> None:
    """A send and what a reader gets of it."""
    sent = await wire.send(topic, b"fine")
    assert sent.code == 0, sent.remark
    assert (await wire.messages(topic, queue=int(sent.ext_fields["queueId"])))[-1].body == b"fine"


@pytest.mark.parametrize("serialization", [SerializeType.JSON, SerializeType.ROCKETMQ])
@pytest.mark.parametrize("server", ["broker", "name server"])
@on_asyncio
async def test_no_request_code_with_any_content_breaks_a_server_or_shows_its_inside(
    server: str, serialization: SerializeType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    codes = sorted({*(int(code) for code in RequestCode if code <= LAST_CODE), *range(0, LAST_CODE + 1, STEP)})
    answers: dict[int, set[int]] = {}
    silent: list[RemotingCommand] = []
    async with embedded(tmp_path) as wire:
        address = wire.servers.broker_address if server == "broker" else wire.servers.name_server_address
        options = RemotingOptions(serialization=serialization)
        pending = list(strange_requests(codes))

        async def ask(client: RemotingClient) -> None:
            while pending:
                command = pending.pop()
                try:
                    answer = await client.request(address, command, timeout=5)
                except anyio.get_cancelled_exc_class():
                    raise
                except Exception:
                    silent.append(command)
                    continue
                answers.setdefault(command.code, set()).add(answer.code)
                told = f"{answer.remark}\n{dict(answer.ext_fields)}\n{bytes(answer.body or b'').decode('latin-1')}"
                assert not LEAKS.search(told), (command, dict(command.ext_fields), told)
                assert str(tmp_path) not in told, (command, dict(command.ext_fields), told)

        async with RemotingClient(clock=RealClock(), options=options) as client, anyio.create_task_group() as group:
            for _ in range(64):
                group.start_soon(ask, client)
        await well(wire)
    assert {command.code for command in silent} <= {RequestCode.PULL_MESSAGE}, "a pull may be held"
    assert len(answers) >= len(codes) - 1
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@on_asyncio
async def test_garbage_closes_its_connection_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(9)
    whole = encode_command(RemotingCommand.request(RequestCode.HEART_BEAT, {"a": "b"}, b"{}"), 1)
    async with embedded(tmp_path) as wire:
        host, _, port = wire.servers.broker_address.rpartition(":")
        for number in range(150):
            garbage = bytearray(whole if number % 2 else chance.randbytes(200))
            for _ in range(number % 7):
                garbage[chance.randrange(len(garbage))] = chance.randrange(256)
            async with await anyio.connect_tcp(host, int(port)) as stream:
                await stream.send(bytes(garbage))
                with anyio.move_on_after(0.02), contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    await stream.receive()
        await well(wire)
        assert wire.servers.broker.server.counters.garbage > 50
    assert len(caplog.records) < 30
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@on_asyncio
async def test_frames_that_never_end_are_given_up_and_cost_little(tmp_path: Path) -> None:
    announced = (16_000_000).to_bytes(4, "big")
    async with embedded(tmp_path, header_timeout=400, frame_timeout=1500, max_connections=1000) as wire:
        host, _, port = wire.servers.broker_address.rpartition(":")
        server = wire.servers.broker.server
        async with RemotingClient(clock=RealClock()) as other:
            streams = [await anyio.connect_tcp(host, int(port)) for _ in range(240)]
            header = encode_command(RemotingCommand.request(10, {"b": "T"}, bytes(3_000_000)), 1)[:60_000]
            for number, stream in enumerate(streams):
                await stream.send((announced[:3], announced + b"\x01\0\0", header, b"")[number % 4])
            await well(Wire(wire.servers, other))
            assert server.half_frame_bytes <= 60 * 60_010
            with anyio.fail_after(PATIENCE):
                while server.counters.frames_too_slow < 180:
                    await anyio.sleep(0.05)
            assert server.half_frame_bytes == 0
            await well(Wire(wire.servers, other))
            for stream in streams:
                await stream.aclose()


@on_asyncio
async def test_bodies_too_large_for_their_code_are_answered_with_the_number_and_not_kept(tmp_path: Path) -> None:
    async with embedded(tmp_path, max_heartbeat_bytes=100_000) as wire:
        beat = await wire.broker(RequestCode.HEART_BEAT, None, b"{" + b'a:"b",' * 2_000_000)
        assert (beat.code, beat.remark) == (1, "the body of request 34 has 12000001 bytes; 100000 is the most here")
        sent = await wire.send("big", bytes(3_000_000))
        assert sent.code == 13
        assert sent.remark == f"the body of request 310 has 3000000 bytes; {(1 << 20) + 65_536} is the most here"
        pull = await wire.broker(RequestCode.PULL_MESSAGE, None, bytes(200_000))
        assert pull.code == 1
        group = await wire.broker(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b"{" + b"a:1," * 10_000)
        assert group.remark == "the body of request 200 has 40001 bytes; 16384 is the most here"
        registration = await wire.name_server(RequestCode.REGISTER_BROKER, None, bytes(5_000_000))
        assert registration.remark == "the body of request 103 has 5000000 bytes; 4194304 is the most here"
        assert wire.servers.broker.server.counters.bodies_refused == 4
        assert wire.servers.name_server.server.counters.bodies_refused == 1
        await well(wire)


@on_asyncio
async def test_who_never_reads_is_given_up_and_the_others_are_served(tmp_path: Path) -> None:
    async with embedded(tmp_path, max_unread_bytes="4MB") as wire:
        for _ in range(8):
            assert (await wire.send("full", bytes(200_000))).code == 0
        server = wire.servers.broker.server
        host, _, port = wire.servers.broker_address.rpartition(":")
        pull = {
            "consumerGroup": "deaf", "topic": "full", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        pulls = b"".join(
            encode_command(RemotingCommand.request(RequestCode.PULL_MESSAGE, pull), number) for number in range(60)
        )
        streams = [await anyio.connect_tcp(host, int(port)) for _ in range(40)]
        most = 0
        for stream in streams:
            await stream.send(pulls)
            await well(wire)
            most = max(most, server.unread_bytes)
        assert server.counters.unread_given_up > 0
        assert 1 << 20 < most <= 4 << 20
        for stream in streams:
            await stream.aclose()
        with anyio.fail_after(PATIENCE):
            while server.unread_bytes:
                await anyio.sleep(0.02)


@on_asyncio
async def test_a_flood_of_connections_leaves_those_that_are_there_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with embedded(tmp_path, max_connections=30, max_connections_per_address=30) as wire:
        host, _, port = wire.servers.broker_address.rpartition(":")
        server = wire.servers.broker.server
        await well(wire)
        streams: list[anyio.abc.SocketStream] = []
        for _ in range(300):
            streams.append(await anyio.connect_tcp(host, int(port)))
            if len(streams) % 50 == 0:
                await well(wire)
        assert server.connection_limit == 30
        with anyio.fail_after(PATIENCE):
            while server.counters.connections_refused < 271:
                await anyio.sleep(0.02)
        assert len(server.connections) <= 30
        await well(wire)
        for stream in streams:
            await stream.aclose()
        async with RemotingClient(clock=RealClock()) as later:
            with anyio.fail_after(PATIENCE):
                while len(server.connections) > 5:
                    await anyio.sleep(0.02)
            await well(Wire(wire.servers, later))
    assert len([message for message in caplog.messages if "max-connections" in message]) == 1


@LINUX  # where each machine has many addresses of its own
@on_asyncio
async def test_who_takes_all_connections_of_an_address_keeps_no_other_address_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with embedded(tmp_path, max_connections=40) as wire:
        servers = (wire.servers.broker.server, wire.servers.name_server.server)
        await well(wire)
        with ExitStack() as stack:
            for server in servers:
                host, _, port = server.address.rpartition(":")
                for _ in range(100):
                    stack.enter_context(socket.create_connection((host, int(port)), source_address=("127.0.0.66", 0)))
            with anyio.fail_after(PATIENCE):
                while any(server.counters.connections_refused_of_one_address < 80 for server in servers):
                    await anyio.sleep(0.02)
            async with RemotingClient(clock=RealClock()) as later:
                await well(Wire(wire.servers, later))
                assert await Wire(wire.servers, later).route("healthy") is not None
            assert [server.counters.connections_refused for server in servers] == [0, 0]
        assert len([text for text in caplog.messages if "connections of 127.0.0.66 are refused: 20" in text]) == 2


@contextmanager
def idle_sockets(address: str, count: int, first_bytes: Callable[[int], bytes]) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        sockets = []
        for number in range(count):
            sockets.append(stack.enter_context(connect(address)))
            sockets[-1].sendall(first_bytes(number))
        yield sockets


def send(address: str, topic: str, kind: int = BINARY_TYPE) -> None:
    fields = {
        "a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "j": "0",
        "k": "false", "m": "false",
    }  # fmt: skip
    with connect(address) as connection:
        request(connection, kind, RequestCode.SEND_MESSAGE_V2, 1, fields, b"hello")


def send_soon(address: str, topic: str) -> None:
    """As soon as the server has seen that others have gone."""
    ends_at = time.monotonic() + PATIENCE
    while True:
        try:
            send(address, topic, JSON_TYPE)
        except ConnectionError:
            assert time.monotonic() < ends_at
            time.sleep(0.05)
        else:
            return


def resident_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@LINUX
def test_idle_connections_that_eat_the_descriptors_do_not_stop_the_store(tmp_path: Path) -> None:
    raise_descriptor_limit()
    rocketbox = str(Path(sys.executable).with_name("rocketbox"))
    limited = ["sh", "-c", 'ulimit -n 300; exec "$@"', "sh", rocketbox]
    with BrokerProcess(tmp_path, "--max-connections-per-address=10000", command=limited) as broker:
        send(broker.broker, "before")
        with idle_sockets(broker.broker, 400, lambda _: b""), idle_sockets(broker.name_server, 400, lambda _: b""):
            time.sleep(0.3)
        for number in range(5):  # each opens the file of a queue
            send_soon(broker.broker, f"after{number}")
        assert broker.stop() == 0
    assert "is refused: 112 are open" in "".join(broker.errors)
    assert len(broker.errors) < 40


@LINUX
def test_hundreds_of_idle_and_slow_connections_cost_little(tmp_path: Path) -> None:
    raise_descriptor_limit()
    slow = encode_command(RemotingCommand.request(10, {"b": "T"}, bytes(9_000)), 1)
    with BrokerProcess(tmp_path) as broker:
        send(broker.broker, "warm")
        before = resident_bytes(broker.process.pid)
        whole = encode_command(RemotingCommand.request(9999), 1)
        with idle_sockets(broker.broker, 600, lambda number: (whole, slow[:5], slow[:2_000])[number % 3]) as sockets:
            for idle in sockets[::3]:
                idle.recv(1_000)
            used = cpu_seconds(broker.process.pid)
            time.sleep(2)
            used = (cpu_seconds(broker.process.pid) - used) / 2
            grown = resident_bytes(broker.process.pid) - before
            send(broker.broker, "meanwhile")
        assert grown < 600 * 32_768
        assert used < 0.10


@on_asyncio
async def test_connections_of_consumers_that_are_closed_wait_for_no_collection_of_garbage(tmp_path: Path) -> None:
    subscription = {"topic": "news", "subString": "*"}
    group = {
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription],
    }  # fmt: skip
    pull = {
        "consumerGroup": "g", "topic": "news", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32, "sysFlag": 2 | 4,
        "commitOffset": 0, "suspendTimeoutMillis": 20_000, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    alive: list[weakref.ref[Connection]] = []
    async with embedded(tmp_path) as wire:
        await wire.send("news")
        broker = wire.servers.broker
        gc.collect()
        gc.disable()
        try:
            for number in range(20):
                async with RemotingClient(clock=RealClock()) as client:
                    body = json.dumps({"clientID": f"c{number}", "consumerDataSet": [group]}).encode()
                    beat = RemotingCommand.request(RequestCode.HEART_BEAT, None, body)
                    assert (await client.request(wire.broker_address, beat, timeout=PATIENCE)).code == 0
                    fields = {name: str(value) for name, value in pull.items()}
                    await client.send_oneway(
                        wire.broker_address, RemotingCommand.request(RequestCode.PULL_MESSAGE, fields), timeout=PATIENCE
                    )
                    other = Wire(wire.servers, client)
                    assert (await other.send("news", b"more", queue=1)).code == 0
                    alive += [weakref.ref(each) for each in broker.server.connections]
            with anyio.fail_after(PATIENCE):
                while len({id(each()) for each in alive if each() is not None}) > 1:  # that of ``wire`` goes on
                    await anyio.sleep(0.02)
        finally:
            gc.enable()
