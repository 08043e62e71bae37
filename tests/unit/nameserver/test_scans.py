"""When the name server looks for silent brokers: when one may be silent for too long, and not before."""

from __future__ import annotations

import pytest

from rocketbox.nameserver.name_server import NameServer
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import RegisterBrokerRequestHeader
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.testing.loop_turns import LoopTurns
from rocketbox.testing.pace import Pace
from rocketbox.testing.virtual_clock import VirtualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio"


async def test_a_broker_with_a_short_time_of_its_own_is_dropped_though_the_scan_slept_longer() -> None:
    clock, network = VirtualClock(0), MemoryNetwork()
    pace = Pace(clock, LoopTurns(), lambda: (), lambda: 0, list, 1.0)
    async with (
        NameServer(clock=clock, network=network) as name_server,
        RemotingClient(clock=clock, network=network) as client,
    ):
        looks = 0
        expire = name_server.routes.expire

        def counted() -> object:
            nonlocal looks
            looks += 1
            return expire()

        name_server.routes.expire = counted  # type: ignore[method-assign, assignment]
        await pace.advance(3000)
        assert looks == 0, "nobody is there who could be silent"
        header = RegisterBrokerRequestHeader(
            broker_name="a", broker_addr="127.0.0.1:10911", cluster_name="C", ha_server_addr="", broker_id=0,
            heartbeat_timeout_millis=20_000,
        )  # fmt: skip
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header.encode(), b"")
        answer = await client.request(name_server.address, request, timeout=3)
        assert answer.code == 0, answer.remark
        await pace.advance(19)
        assert name_server.routes.clusters() == {"C": {"a"}}
        await pace.advance(7)
        assert name_server.routes.clusters() == {}
        assert looks == 2
