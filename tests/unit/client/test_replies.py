"""Replies on their way to who asked, while brokers do not know him: how often, how long, and what is told then."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from rocketbox.client import ClientOptions, MQClientInstance
from rocketbox.client.lanes import Lane
from rocketbox.client.replies import Replier
from rocketbox.errors import BrokerError, NoRouteError, RocketBoxError
from rocketbox.message import MessageExt, encode_properties
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import START_MS, VirtualClock
from tests.support.living_objects import living

pytestmark = pytest.mark.anyio

TOPIC = "C_REPLY_TOPIC"
CODE = RequestCode.SEND_REPLY_MESSAGE_V2
NOT_FOUND = "push reply message fail, channel of <asker> not found."


def request(ttl: float | None = 60, *, asked_before: float = 0, broker: str = "broker-a") -> MessageExt:
    """A message whose sender waited ``ttl`` seconds for a reply from so many seconds before the start on."""
    marks = {"CORRELATION_ID": "7", "REPLY_TO_CLIENT": "asker", "CLUSTER": "C"}
    if ttl is not None:
        marks["TTL"] = str(round(ttl * 1000))
    host = bytes(4)
    fields = (0, 0, 0, 0, 0, 0, 0, 0, START_MS - round(asked_before * 1000), host, 0, 0, host, 0, 0, 0, 1)
    return MessageExt(fields, b"x", "T", encode_properties(marks), broker)


class Brokers:
    """Two of them, which do not know who asked before ``knows`` (broker, seconds), and when each was asked."""

    def __init__(self, clock: VirtualClock, cluster: ScriptedCluster) -> None:
        self.clock = clock
        self.knows: tuple[str, float] = ("", 0)
        self.refusal = (int(ResponseCode.SYSTEM_ERROR), NOT_FOUND)
        self.asked: list[tuple[float, str]] = []
        self.handed: list[bytes] = []
        self.silent = False
        for name, broker in cluster.brokers.items():
            broker.scripts[CODE] = self._script(name)

    def _script(self, name: str) -> Callable[[Connection, RemotingCommand], RemotingCommand | None]:
        def take(_: Connection, request: RemotingCommand) -> RemotingCommand | None:
            self.asked.append((self.clock.now, name))
            knower, since = self.knows
            if name == knower and self.clock.now >= since:
                self.handed.append(request.body)
                return None if self.silent else RemotingCommand.response()
            return RemotingCommand.response(*self.refusal)

        return take

    @property
    def times(self) -> list[float]:
        """When the first of them was asked."""
        return [time for time, name in self.asked if name == "broker-a"]


@asynccontextmanager
async def replying() -> AsyncIterator[tuple[VirtualClock, Brokers, ScriptedCluster, Replier]]:
    clock = VirtualClock()
    cluster = ScriptedCluster(clock, brokers=("broker-a", "broker-b"))
    brokers = Brokers(clock, cluster)
    async with cluster:
        cluster.add_topic(TOPIC)
        async with MQClientInstance(
            cluster.name_server.address, options=ClientOptions(client_ip="192.0.2.7"), clock=clock,
            network=cluster.network,
        ) as instance:  # fmt: skip
            await instance.find_route(TOPIC)
            yield clock, brokers, cluster, Replier("desk", instance, timeout=3)


async def outcome_of(clock: VirtualClock, reply: Callable[[], Awaitable[None]]) -> tuple[RocketBoxError | None, float]:
    """What a reply raises, and after how many seconds it has ended."""
    began, found = clock.now, list[tuple[RocketBoxError | None, float]]()

    async def run() -> None:
        error: RocketBoxError | None = None
        try:
            await reply()
        except RocketBoxError as failure:
            error = failure
        found.append((error, clock.now - began))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await clock.advance(60)
    return found[0]


@pytest.mark.parametrize("ttl", ["9" * 400, "-" + "9" * 400, "9" * 5_000, "soon", ""])
async def test_a_request_that_is_waited_for_as_long_as_no_number_says_is_replied_to(ttl: str) -> None:
    async with replying() as (clock, brokers, _, replier):
        brokers.knows = ("broker-a", 0)
        asking = request(None)
        asking = MessageExt(
            asking.fields, b"x", "T", asking.raw_properties + encode_properties({"TTL": ttl}), "broker-a"
        )
        error, _ = await outcome_of(clock, lambda: replier.reply(asking, b"an answer"))
        assert (error, brokers.handed) == (None, [b"an answer"])


@pytest.mark.parametrize("knower", ["broker-a", "broker-b"])
async def test_a_reply_reaches_who_is_connected_again_within_the_time_of_both(knower: str) -> None:
    async with replying() as (clock, brokers, _, replier):
        brokers.knows = (knower, 1.5)
        error, seconds = await outcome_of(clock, lambda: replier.reply(request(), b"an answer"))
        assert (error, seconds, brokers.handed) == (None, 1.75, [b"an answer"])
        assert brokers.times == [0, 0.25, 0.75, 1.75], "in pauses that grow"


@pytest.mark.parametrize(
    ("ttl", "asked_before", "timeout", "asked"),
    [
        (60, 0, None, [0, 0.25, 0.75, 1.75]),  # reply_timeout, 3 s
        (60, 0, 8, [0, 0.25, 0.75, 1.75, 3.75, 5.75, 7.75]),
        (60, 59, None, [0, 0.25, 0.75]),  # who asked waits one second more
        (60, 61, None, [0]),
        (None, 0, None, [0, 0.25, 0.75, 1.75]),
    ],
)
async def test_nobody_is_asked_longer_than_somebody_waits(
    ttl: float | None, asked_before: float, timeout: float | None, asked: list[float]
) -> None:
    async with replying() as (clock, brokers, _, replier):
        late = request(ttl, asked_before=asked_before)
        error, seconds = await outcome_of(clock, lambda: replier.reply(late, b"x", timeout=timeout))
        assert isinstance(error, BrokerError)
        assert (error.code, error.remark, seconds) == (1, NOT_FOUND, asked[-1])
        assert brokers.asked == [(time, name) for time in asked for name in ("broker-a", "broker-b")]


async def test_what_does_not_pass_is_told_after_one_round() -> None:
    async with replying() as (clock, brokers, _, replier):
        brokers.refusal = (int(ResponseCode.MESSAGE_ILLEGAL), "a reply is one message")
        error, seconds = await outcome_of(clock, lambda: replier.reply(request(), b"x"))
        assert isinstance(error, BrokerError)
        assert (error.code, seconds, len(brokers.asked)) == (ResponseCode.MESSAGE_ILLEGAL, 0, 2)


async def test_a_broker_that_is_back_takes_the_reply() -> None:
    async with replying() as (clock, brokers, cluster, replier):
        brokers.knows = ("broker-a", 0)
        for broker in cluster.brokers.values():
            await broker.stop()

        async def start_later() -> None:
            await clock.sleep(1)
            await cluster.restart(cluster.broker)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start_later)
            error, seconds = await outcome_of(clock, lambda: replier.reply(request(), b"an answer"))
        assert (error, brokers.handed) == (None, [b"an answer"])
        assert seconds < 3


async def test_a_request_of_a_broker_that_nobody_knows_goes_by_others_or_says_so() -> None:
    async with replying() as (clock, brokers, _, replier):
        brokers.knows = ("broker-b", 0)
        error, _ = await outcome_of(clock, lambda: replier.reply(request(broker="broker-z"), b"1"))
        assert (error, brokers.handed) == (None, [b"1"])
        other = request(None, broker="broker-z")
        other.set_property("CLUSTER", "D")
        error, seconds = await outcome_of(clock, lambda: replier.reply(other, b"2", timeout=1))
        assert isinstance(error, NoRouteError)
        assert (error.topic, seconds) == ("D_REPLY_TOPIC", 0.75)


async def test_who_was_waited_for_in_vain_holds_up_no_further_replies() -> None:
    """A client that dies with many requests under way would keep all handlers of its responders for minutes."""
    async with replying() as (clock, brokers, _, replier):
        ended: list[float] = []

        async def reply() -> None:
            try:
                await replier.reply(request(ttl=600), b"x")
            except BrokerError:
                ended.append(clock.now)

        begin = clock.now
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reply)
            await clock.advance(2)
            for _ in range(3):
                tasks.start_soon(reply)
            await clock.advance(2)
            brokers.knows = ("broker-a", 0)
            tasks.start_soon(reply)
            await clock.advance(1)
            brokers.knows = ("", 0)
            tasks.start_soon(reply)  # he is back, and may lose his connection again
            await clock.advance(2)
        assert [time - begin for time in ended] == [1.75, 2, 2, 2, 6.75]
        assert brokers.handed == [b"x"]


async def test_a_client_that_takes_replies_and_says_nothing_holds_up_few_handlers_and_not_for_long() -> None:
    async with replying() as (clock, brokers, _, replier):
        brokers.knows = ("broker-a", 0)
        brokers.silent = True
        ended: list[float] = []

        async def handle() -> None:
            assert not await replier.try_to_reply(request(), b"x")
            ended.append(clock.now)

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(handle)
            await clock.advance(10)
        assert len(brokers.handed) == 8, "each is with the broker"
        assert ended[:6] == [pytest.approx(0.5, abs=0.3)] * 6
        assert ended[6:] == [pytest.approx(3, abs=0.3)] * 2
        began = clock.now
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle)
            await clock.advance(5)
        assert ended[-1] - began == pytest.approx(0.5, abs=0.3), "it is known not to answer"
        brokers.silent = False
        for _ in range(2):
            assert await replier.try_to_reply(request(), b"x")
        assert brokers.times[-1] == clock.now


async def test_what_requests_say_of_their_cluster_leaves_little_behind() -> None:
    """Brokers write it into messages, but into none of a batch: there it is what the sender says."""
    async with replying() as (_, brokers, _, replier):
        brokers.knows = ("broker-a", 0)
        gc.collect()
        before = len(living(Lane))
        for number in range(1_100):
            asked = request()
            asked.set_property("CLUSTER", f"C{number}")
            assert await replier.try_to_reply(asked, b"x")
        assert len(living(Lane)) - before <= 1_000


async def test_the_id_of_a_request_begins_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Its sender chooses it."""
    async with replying() as (clock, _, _, replier):
        asked = request(ttl=0.001)
        asked.set_property("UNIQ_KEY", "7\nforged" + "x" * 10_000)
        await clock.advance(1)
        assert not await replier.try_to_reply(asked, b"x")
    (told,) = [record.getMessage() for record in caplog.records if "did not reach" in record.getMessage()]
    assert ("\n" in told, "7\\nforged" in told, len(told) < 2_000) == (False, True, True)


async def test_many_replies_to_one_client_all_reach_it_when_it_is_connected_again() -> None:
    async with replying() as (clock, brokers, _, replier):
        brokers.knows = ("broker-a", 1.5)
        known: list[bool] = []

        async def handle() -> None:
            known.append(await replier.try_to_reply(request(), b"x"))

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(handle)
            await clock.advance(5)
        assert (known, len(brokers.handed)) == ([True] * 6, 6)
