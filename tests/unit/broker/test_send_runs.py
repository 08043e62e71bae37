"""Sends that are taken many at once are stored and answered as sends that are taken one by one, byte for byte."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rocketbox.broker.extensions import BrokerExtensions
from rocketbox.clock import RealClock
from rocketbox.protocol.codes import RequestCode, ResponseCode, SerializeType
from rocketbox.protocol.command import RemotingCommand, decode_command, encode_command
from rocketbox.protocol.stored_message import RecordTemplate, encode_batch, encode_stored_message
from rocketbox.remoting.connection import Connection
from rocketbox.storage.memory_storage import MemoryStorage
from rocketbox.waiters import make_waiter
from tests.support.broker.in_memory import BrokerWire, broker_in_memory
from tests.support.store.store_tools import FaultyStorage, contents
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

NOW = 1_700_000_000_000


class StillClock(RealClock):
    """The same time, and the same dice, for both brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(7)

    def time_ms(self) -> int:
        return NOW


class Nothing:
    """A hook that does nothing; with one requests are taken one by one."""

    def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        return None

    def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None:
        return None


class Peer:
    """The far end of a connection, which writes what it likes in one piece; and how many sends were taken together."""

    def __init__(self, wire: BrokerWire, address: tuple[str, int] = ("127.0.0.1", 40_000)) -> None:
        self.waiter = make_waiter
        server = wire.running.server
        self.connection = server._opened(self, ("127.0.0.1", 10_911), address)
        self.taken: list[int] = []
        self.answers: dict[int, RemotingCommand] = {}
        runs = server._role.runs
        assert isinstance(runs, dict)
        for code, run in list(runs.items()):
            runs[code] = lambda connection, inbox, run=run: self._note(run(connection, inbox))

    def _note(self, count: int) -> int:
        self.taken.append(count)
        return count

    def schedule_flush(self) -> None:
        return None

    def pause_reading(self) -> None:
        return None

    def resume_reading(self) -> None:
        return None

    def close(self) -> None:
        self.connection.lost("closed")

    def abort(self) -> None:
        self.connection.lost("closed")

    async def write(self, frames: Sequence[bytes], *, answers: int) -> None:
        """Write frames, and return when so many answers are there."""
        self.connection.received(b"".join(frames))
        with anyio.fail_after(PATIENCE):
            while len(self.answers) < answers:
                await anyio.sleep(0.001)
                self.read()

    def read(self) -> None:
        data = self.connection.take_output()
        self.connection.flushed(len(data))
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            answer = decode_command(data[4:size])
            assert answer.opaque not in self.answers, "answered twice"
            self.answers[answer.opaque] = answer
            data = data[size:]


def send(opaque: int, *, topic: str = "t", queue: int = 0, body: bytes = b"hello", properties: str = "",
         code: int = RequestCode.SEND_MESSAGE_V2, oneway: bool = False,
         serialization: SerializeType = SerializeType.JSON, **fields: object) -> bytes:  # fmt: skip
    ext: dict[str, object] = {
        "a": "group", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": NOW, "h": 0, "i": properties, "j": 0,
        "k": "false", "m": "false", "n": "broker-a", **fields,
    }  # fmt: skip
    command = RemotingCommand.request(code, {name: str(value) for name, value in ext.items()}, body)
    return encode_command(command, opaque, oneway=oneway, serialization=serialization)


def ordinary(number: int) -> str:
    return f"KEYS\x01k{number} more\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01{'AB'[number % 2]}\x02"


ODD_PROPERTIES = [
    "", "UNIQ_KEY\x01\x02", "WAIT\x01false\x02", "DELAY\x013\x02", "TIMER_DELAY_SEC\x015\x02", "TRAN_MSG\x01true\x02",
    "TRAN_MSG\x01false\x02", "MSG_REGION\x01else\x02CLUSTER\x01c\x02", "__CRC32#\x010000000000\x02", "POP_CK\x01x\x02",
    "TAGS\x01\x02", "TAGS\x01A\x02TAGS\x01B\x02", "color\x01b\x01lue\x02", "no sign", "\x02\x02", "\x01\x02", "a\x01b",
    "KEYS\x01é ü\x02", "x\x01" + "y" * 33_000 + "\x02", "z\x01\x00\x02", "XWAIT\x01false\x02", "DELAY\x01oops\x02",
]  # fmt: skip


def scenario(seed: int) -> tuple[list[list[bytes]], int]:
    """Writes of several frames each, and how many of the requests are answered."""
    dice, frames, answered = random.Random(seed), list[bytes](), 0
    for number in range(400):
        oneway = dice.random() < 0.03
        properties, fields = ordinary(number), dict[str, object]()
        if dice.random() < 0.3:
            odd = dice.choice(ODD_PROPERTIES)
            properties = dice.choice([odd, properties + odd, odd + properties, properties.rstrip("\x02")])
        if dice.random() < 0.05:
            fields = dict([dice.choice(
                [("f", 1), ("f", 4), ("f", 8), ("f", 12), ("h", -5), ("h", 2**40), ("j", 3), ("g", "soon"), ("g", 12),
                 ("j", 17), ("m", "true"), ("e", -1), ("e", 99), ("e", "x"), ("l", 16)]
            )])  # fmt: skip
        topic = dice.choice(
            ["t", "t", "t", "u", "u", f"new-{number % 9}", "%RETRY%group", "SCHEDULE_TOPIC_XXXX", "a b"]
        )
        body = bytes([number % 256]) * dice.choice([1, 500, 3_000])
        body = body if dice.random() > 0.02 else dice.choice([b"", b"x" * 1_200_000])
        code = RequestCode.SEND_MESSAGE_V2 if dice.random() < 0.95 else RequestCode.SEND_BATCH_MESSAGE
        if code == RequestCode.SEND_BATCH_MESSAGE:
            body = encode_batch([(0, b"one", b"TAGS\x01A\x02"), (0, b"two", b"")])
        frames.append(
            send(number, topic=topic, queue=dice.randrange(3), body=body, properties=properties, code=code,
                 oneway=oneway, serialization=dice.choice(list(SerializeType)), **fields)
        )  # fmt: skip
        answered += not oneway
    writes = list[list[bytes]]()
    waiting = deque(frames)
    while waiting:
        writes.append([waiting.popleft() for _ in range(min(len(waiting), dice.choice([1, 2, 10, 60])))])
    return writes, answered


def files_below(storage: MemoryStorage, directory: str) -> list[str]:
    found = list[str]()
    for name in storage.list_directory(directory):
        path = f"{directory}/{name}"
        found += files_below(storage, path) if storage.is_directory(path) else [path]
    return found


Answers = dict[int, tuple[object, ...]]  # code, remark, fields and serialization by the request's opaque


async def outcome(
    seed: int, extensions: BrokerExtensions
) -> tuple[dict[int, tuple[object, ...]], dict[str, bytes], int]:
    """The answers by their request, what is on the disk after a stop, and how many sends were taken in runs."""
    storage = MemoryStorage()
    writes, answered = scenario(seed)
    async with broker_in_memory(storage=storage, clock=StillClock(), extensions=extensions) as wire:
        for topic in ("t", "u"):
            assert (await wire.send(topic, properties=ordinary(0))).code == 0
        peer = Peer(wire)
        for frames in writes:
            await peer.write(frames, answers=0)
        await peer.write([], answers=answered)
        answers: Answers = {
            opaque: (answer.code, answer.remark, dict(answer.ext_fields), answer.serialization)
            for opaque, answer in peer.answers.items()
        }
    paths = [path for kind in ("commitlog", "consumequeue", "index") for path in files_below(storage, f"/store/{kind}")]
    files = {path: contents(storage, path) for path in paths}
    return answers, files, sum(peer.taken)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio shuffles its tasks, so that new topics come in any order
@pytest.mark.parametrize("seed", range(6))
async def test_runs_leave_the_files_and_the_answers_that_single_sends_leave(seed: int) -> None:
    together, files, taken = await outcome(seed, BrokerExtensions())
    singly, expected, none = await outcome(seed, BrokerExtensions(hooks=[Nothing()]))
    assert together == singly
    assert files.keys() == expected.keys()
    for path, data in files.items():
        assert data == expected[path], path
    assert taken > 100, "hardly anything was taken in runs"
    assert none == 0


async def test_who_does_not_wait_for_the_disk_is_not_taken_in_a_run() -> None:
    async with broker_in_memory() as wire:
        await wire.send("t", properties=ordinary(0))
        peer = Peer(wire)
        properties = ["UNIQ_KEY\x01A\x02WAIT\x01false\x02", "UNIQ_KEY\x01B\x02XWAIT\x01false\x02"]
        await peer.write([send(n, properties=properties[n]) for n in range(2)], answers=2)
        assert peer.taken == [0, 1]


async def test_consumers_find_what_runs_have_stored_in_order_with_tags_and_keys() -> None:
    async with broker_in_memory() as wire:
        for queue in range(2):
            await wire.send("t", queue=queue, properties=ordinary(999))
        peer = Peer(wire)
        frames = [send(n, queue=n % 2, body=b"%d" % n, properties=ordinary(n)) for n in range(60)]
        await peer.write(frames, answers=60)
        assert peer.taken == [60]
        for queue in range(2):
            found = (await wire.messages("t", queue=queue))[1:]
            assert [int(message.body) for message in found] == list(range(queue, 60, 2))
            assert {message.tag for message in found} == {"AB"[queue]}
            assert [message.queue_offset for message in found] == list(range(1, 31))
        one = await wire.broker(
            RequestCode.QUERY_MESSAGE,
            {"topic": "t", "key": "k7", "maxNum": 5, "beginTimestamp": 0, "endTimestamp": 2**62},
        )
        assert one.code == 0


async def test_a_pull_on_hold_is_answered_with_all_of_a_run() -> None:
    async with broker_in_memory() as wire:
        await wire.send("t", properties=ordinary(0))
        async with anyio.create_task_group() as group:
            answers = list[RemotingCommand]()

            async def pull() -> None:
                answers.append(await wire.pull("t", 1, suspend_ms=10_000))

            group.start_soon(pull)
            with anyio.fail_after(PATIENCE):
                while len(wire.running.held_pulls) == 0:
                    await anyio.sleep(0.001)
            await Peer(wire).write([send(n, properties=ordinary(n)) for n in range(5)], answers=5)
        assert answers[0].code == ResponseCode.SUCCESS
        assert answers[0].ext_fields["nextBeginOffset"] == "6"


async def test_a_run_goes_on_in_the_next_file_of_the_log() -> None:
    storage = MemoryStorage()
    settings: dict[str, object] = {"mapped-file-size-commit-log": 16_384}
    async with broker_in_memory(storage=storage, settings=settings) as wire:
        await wire.send("t", properties=ordinary(0))
        peer = Peer(wire)
        await peer.write([send(n, body=b"%04d" % n * 250, properties=ordinary(n)) for n in range(40)], answers=40)
        assert {answer.code for answer in peer.answers.values()} == {0}
        assert [int(message.body[:4]) for message in (await wire.messages("t"))[1:]] == list(range(40))
        assert len(storage.list_directory("/store/commitlog")) > 2
        assert len(peer.taken) > 2


async def test_on_a_full_disk_each_send_of_a_run_is_refused_and_gets_no_place() -> None:
    storage = FaultyStorage()
    async with broker_in_memory(storage=storage) as wire:
        await wire.send("t", properties=ordinary(0))
        peer = Peer(wire)
        storage.fail(OSError(28, "No space left on device"), "write", where="commitlog", times=1)
        storage.fail(OSError(28, "No space left on device"), "allocate", where="commitlog", times=1)
        await peer.write([send(n, properties=ordinary(n)) for n in range(20)], answers=20)
        assert {answer.code for answer in peer.answers.values()} == {ResponseCode.SERVICE_NOT_AVAILABLE}


async def test_no_more_sends_wait_than_may_and_the_rest_of_a_run_is_told_so() -> None:
    async with broker_in_memory(settings={"send-thread-pool-queue-capacity": 10}) as wire:
        await wire.send("t", properties=ordinary(0))
        peer = Peer(wire)
        await peer.write([send(n, properties=ordinary(n)) for n in range(25)], answers=25)
        codes = [peer.answers[n].code for n in range(25)]
        assert codes == [0] * 10 + [ResponseCode.SYSTEM_BUSY] * 15
        assert len(await wire.messages("t")) == 11


async def test_a_retry_that_is_given_up_is_not_taken_in_a_run() -> None:
    async with broker_in_memory() as wire:
        await wire.send("%RETRY%readers", properties=ordinary(0))
        peer = Peer(wire)
        await peer.write([send(n, topic="%RETRY%readers", properties=ordinary(n), j=17) for n in range(2)], answers=2)
        assert sum(peer.taken) == 0
        assert len(await wire.messages("%DLQ%readers")) == 2


async def test_a_topic_that_is_deleted_and_made_again_takes_runs_into_its_new_queue() -> None:
    async with broker_in_memory() as wire:
        for _ in range(2):
            await wire.send("t", properties=ordinary(0))
            peer = Peer(wire)
            await peer.write([send(n, body=b"%d" % n, properties=ordinary(n)) for n in range(3)], answers=3)
            assert peer.taken[-1] == 3
            first = wire.running.store.min_offset("t", 0)
            assert [message.body for message in await wire.messages("t", first=first)] == [b"hello", b"0", b"1", b"2"]
            assert (await wire.broker(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"})).code == 0


class HeldStorage(MemoryStorage):
    """Notes no deleted topic until it is let go of."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.is_held = threading.Event(), threading.Event()

    def begin_call(self, name: str, path: str) -> None:
        if name == "rename" and "deletedTopics" in path and not self.free.is_set():
            self.is_held.set()
            self.free.wait(PATIENCE)
        super().begin_call(name, path)


async def test_sends_that_come_while_their_topic_is_deleted_do_not_keep_later_ones_out_of_runs() -> None:
    storage = HeldStorage()
    async with broker_in_memory(storage=storage) as wire:
        await wire.send("t", properties=ordinary(0))
        peer = Peer(wire)
        async with anyio.create_task_group() as group:
            group.start_soon(wire.broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"})
            with anyio.fail_after(PATIENCE):
                while not storage.is_held.is_set():
                    await anyio.sleep(0.001)
            for number in range(2):  # the first makes the topic again
                await peer.write([send(number, properties=ordinary(number))], answers=number + 1)
                assert "is being deleted" in str(peer.answers[number].remark)
            storage.free.set()
        for first in (2, 5):
            frames = [send(n, body=b"%d" % n, properties=ordinary(n)) for n in range(first, first + 3)]
            await peer.write(frames, answers=first + 3)
        assert peer.taken[-1] == 3
        first = wire.running.store.min_offset("t", 0)
        assert [int(message.body) for message in await wire.messages("t", first=first)] == list(range(2, 8))


async def test_a_peer_with_an_ipv6_address_is_served_one_by_one() -> None:
    async with broker_in_memory() as wire:
        await wire.send("t", properties=ordinary(0))
        peer = Peer(wire, ("2001:db8::1", 40_000))
        await peer.write([send(n, properties=ordinary(n)) for n in range(3)], answers=3)
        assert sum(peer.taken) == 0
        assert [message.born_host for message in (await wire.messages("t"))[1:]] == ["[2001:db8::1]:40000"] * 3


@pytest.mark.parametrize("serialization", list(SerializeType))
async def test_sends_before_one_whose_header_cannot_be_read_are_stored(
    serialization: SerializeType,
) -> None:
    async with broker_in_memory() as wire:
        await wire.send("t", properties=ordinary(0))
        peer = Peer(wire)
        whole = [send(n, body=b"%d" % n, properties=ordinary(n), serialization=serialization) for n in range(4)]
        broken = whole.pop()
        if serialization == SerializeType.JSON:
            broken = broken.replace(b'"b":"t"', b'"b":}t"')
        else:
            broken = broken.replace(b"\0\x01b\0\0\0\x01t", b"\0\x01b\0\0\x07\x01t")
        peer.connection.received(b"".join([*whole, broken]))
        with anyio.fail_after(PATIENCE):
            while wire.running.store.max_offset("t", 0) < 4:
                await anyio.sleep(0.001)
        assert peer.connection.closed
        assert [message.body for message in (await wire.messages("t"))[1:]] == [b"0", b"1", b"2"]
        assert wire.running.server.counters.unreadable_requests == 0, "one that can be read was refused"


@pytest.mark.parametrize("serialization", list(SerializeType))
@pytest.mark.parametrize("field", ["f", "g"])  # sysFlag and born time
async def test_a_number_out_of_range_in_a_run_refuses_that_message_and_no_other(
    field: str, serialization: SerializeType
) -> None:
    async with broker_in_memory() as wire:
        await wire.send("t", properties=ordinary(0))
        peer = Peer(wire)
        odd: dict[str, Any] = {field: 2**70}
        frames = [
            send(n, body=b"%d" % n, properties=ordinary(n), serialization=serialization, **(odd if n == 3 else {}))
            for n in range(6)
        ]
        await peer.write(frames, answers=6)
        codes = [peer.answers[n].code for n in range(6)]
        assert codes == [0, 0, 0, ResponseCode.MESSAGE_ILLEGAL, 0, 0]
        assert [message.body for message in (await wire.messages("t"))[1:]] == [b"0", b"1", b"2", b"4", b"5"]
        assert peer.taken == [3, 0, 2]


async def test_no_more_sends_wait_for_a_new_topic_than_may_and_the_first_are_taken() -> None:
    async with broker_in_memory(settings={"send-thread-pool-queue-capacity": 10}) as wire:
        peer = Peer(wire)
        await peer.write([send(n, body=b"%d" % n, properties=ordinary(n)) for n in range(25)], answers=25)
        assert [peer.answers[n].code for n in range(25)] == [0] * 10 + [ResponseCode.SYSTEM_BUSY] * 15
        assert "10 sends wait" in (peer.answers[24].remark or "")
        assert len(await wire.messages("t")) == 10


async def test_without_memory_for_one_message_of_a_run_that_one_is_refused_and_none_is_stored_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_memory(encode: Any) -> Any:
        def encode_or_fail(*args: Any, **more: Any) -> Any:
            if any(b"2" in (arg, getattr(arg, "body", b"")) for arg in args):
                raise MemoryError
            return encode(*args, **more)

        return encode_or_fail

    async with broker_in_memory() as wire:
        await wire.send("t", properties=ordinary(0))
        monkeypatch.setattr(RecordTemplate, "encode", without_memory(RecordTemplate.encode))
        monkeypatch.setattr(
            "rocketbox.broker.store.putting.encode_stored_message", without_memory(encode_stored_message)
        )
        peer = Peer(wire)
        await peer.write([send(n, body=b"%d" % n, properties=ordinary(n)) for n in range(5)], answers=5)
        assert [peer.answers[n].code for n in range(5)] == [0, 0, ResponseCode.SYSTEM_ERROR, 0, 0]
        assert [message.body for message in (await wire.messages("t"))[1:]] == [b"0", b"1", b"3", b"4"]


@pytest.mark.parametrize("hooks", [[], [Nothing()]], ids=["runs", "one by one"])
async def test_sends_that_come_while_a_topic_is_written_down_keep_their_order(hooks: list[Nothing]) -> None:
    async with broker_in_memory(extensions=BrokerExtensions(hooks=hooks)) as wire:
        peer = Peer(wire)
        for first in range(0, 1000, 10):
            await peer.write(
                [send(n, body=b"%d" % n, properties=ordinary(n)) for n in range(first, first + 10)], answers=0
            )
            await anyio.lowlevel.checkpoint()
        await peer.write([], answers=1000)
        assert [int(message.body) for message in await wire.messages("t")] == list(range(1000))
