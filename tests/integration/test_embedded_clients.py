"""Heartbeats, members of groups, notices that they changed, queue locks; and the name server's own answers."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskStatus

from rocketbox.broker.broker import Broker
from rocketbox.clock import RealClock
from rocketbox.nameserver.name_server import NameServer, NameServerOptions
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection, RemotingOptions
from tests.support.broker.wire import Wire, embedded, small_options
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


class Listening:
    """Takes the notices that a group's members changed."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.heard = anyio.Event()

    def handle(self, connection: Connection, request: RemotingCommand) -> None:
        assert request.is_oneway
        self.groups.append(request.ext_fields["consumerGroup"])
        self.heard.set()

    async def next(self) -> None:
        with anyio.fail_after(PATIENCE):
            await self.heard.wait()
        self.heard = anyio.Event()

    def client(self) -> RemotingClient:
        return RemotingClient(clock=RealClock(), handlers={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.handle})


async def members(wire: Wire, group: str) -> list[str] | None:
    answer = await wire.broker(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return None
    found: list[str] = json.loads(answer.body)["consumerIdList"]
    return found


async def test_a_heartbeat_makes_the_retry_topic_and_its_route(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        answer = await wire.heartbeat("g", {"t": "*"})
        assert answer.code == 0
        assert answer.ext_fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
        assert answer.ext_fields["IS_SUB_CHANGE"] == "true"
        route = await wire.route("%RETRY%g")
        assert route is not None
        assert route["queueDatas"][0]["writeQueueNums"] == 1


async def test_members_come_and_go(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        assert await members(wire, "g") is None
        await wire.heartbeat("g", {"t": "*"}, client_id="a")
        assert await members(wire, "g") == ["a"]
        leave = {"clientID": "a", "consumerGroup": "g"}
        assert (await wire.broker(RequestCode.UNREGISTER_CLIENT, leave)).code == 0
        assert await members(wire, "g") is None


async def test_members_are_told_of_each_other(tmp_path: Path) -> None:
    first, second = Listening(), Listening()
    async with embedded(tmp_path) as wire, first.client() as one:
        await wire.heartbeat("g", {"t": "*"}, client_id="a", client=one)
        await first.next()  # of itself
        async with second.client() as two:
            await wire.heartbeat("g", {"t": "*"}, client_id="b", client=two)
            await first.next()
            await second.next()
            await wire.heartbeat("g", {"t": "*"}, client_id="b", client=two)  # nothing new
            assert await members(wire, "g") == ["a", "b"]
        await first.next()  # the connection of the second is gone
        assert await members(wire, "g") == ["a"]
        assert first.groups == ["g"] * 3
        assert second.groups == ["g"]


async def test_members_are_told_of_new_topics(tmp_path: Path) -> None:
    listening = Listening()
    async with embedded(tmp_path) as wire, listening.client() as client:
        await wire.heartbeat("g", {"t": "*"}, client=client)
        await listening.next()
        await wire.heartbeat("g", {"t": "*", "u": "*"}, client=client)
        await listening.next()
        assert listening.groups == ["g", "g"]


async def test_broadcasting_members_are_told_nothing(tmp_path: Path) -> None:
    listening = Listening()
    async with embedded(tmp_path) as wire, listening.client() as client:
        await wire.heartbeat("g", {"t": "*"}, model="BROADCASTING", client=client)
        assert await members(wire, "g") == ["client"]
        await wire.heartbeat("h", {"t": "*"}, client=client)
        await listening.next()
        assert listening.groups == ["h"], "notices come in order: nothing was on its way"


async def test_unregistering_tells_those_who_stay(tmp_path: Path) -> None:
    listening = Listening()
    async with embedded(tmp_path) as wire, listening.client() as client:
        await wire.heartbeat("g", {"t": "*"}, client_id="a", client=client)
        await wire.heartbeat("g", {"t": "*"}, client_id="b")
        await until(lambda: len(listening.groups) == 2, "it is told of itself and of the other")
        await wire.broker(RequestCode.UNREGISTER_CLIENT, {"clientID": "b", "consumerGroup": "g"})
        await until(lambda: len(listening.groups) == 3, "it is told that the other has left")
        assert await members(wire, "g") == ["a"]


async def test_a_heartbeat_with_a_fingerprint_may_leave_its_subscriptions_out(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:

        async def beat(subscriptions: list[dict[str, object]], *, without: bool, fingerprint: int = 7) -> str:
            consumer = {
                "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": subscriptions,
            }  # fmt: skip
            body = {
                "clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer],
                "heartbeatFingerprint": fingerprint, "withoutSub": without,
            }  # fmt: skip
            answer = await wire.broker(RequestCode.HEART_BEAT, None, json.dumps(body).encode())
            assert answer.code == 0
            return answer.ext_fields["IS_SUB_CHANGE"]

        subscription: dict[str, object] = {"topic": "BenchmarkTest", "subString": "*", "subVersion": 1}
        assert await beat([subscription], without=False) == "true"
        assert await beat([], without=True) == "false"
        assert (await wire.pull("BenchmarkTest", group="g", expression=None)).code == ResponseCode.PULL_NOT_FOUND
        assert await beat([], without=True, fingerprint=8) == "true"


async def test_subscriptions_by_tags_can_be_served_and_others_cannot(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        for kind, code in (("TAG", 0), (None, 0), ("SQL92", 1)):
            body = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "t", "expressionType": kind}}
            answer = await wire.broker(RequestCode.CHECK_CLIENT_CONFIG, None, json.dumps(body).encode())
            assert answer.code == code


def lock_body(client: str, *queues: int) -> bytes:
    return json.dumps(
        {
            "consumerGroup": "g",
            "clientId": client,
            "onlyThisBroker": False,
            "mqSet": [{"topic": "t", "brokerName": "broker-a", "queueId": queue} for queue in queues],
        }
    ).encode()


async def test_queues_are_locked_by_one_client(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:

        async def lock(client: str, *queues: int) -> list[int]:
            answer = await wire.broker(RequestCode.LOCK_BATCH_MQ, None, lock_body(client, *queues))
            assert answer.code == 0
            return sorted(queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"])

        assert await lock("a", 0, 1) == [0, 1]
        assert await lock("b", 1, 2) == [2]
        assert (await wire.broker(RequestCode.UNLOCK_BATCH_MQ, None, lock_body("a", 1))).code == 0
        assert await lock("b", 1) == [1]


# --- the name server ---


async def test_routes_are_strict_json_unless_an_old_client_asks(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        address = wire.servers.name_server_address
        strict = await wire.client.request(address, request, timeout=PATIENCE)
        assert b'"brokerAddrs":{"0":"' in strict.body
        async with RemotingClient(clock=RealClock(), options=RemotingOptions(version=317)) as old:
            loose = await old.request(address, request, timeout=PATIENCE)
            assert b'"brokerAddrs":{0:"' in loose.body
            asked = RemotingCommand.request(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102", "acceptStandardJsonOnly": "true"}
            )
            assert b'"brokerAddrs":{"0":"' in (await old.request(address, asked, timeout=PATIENCE)).body


async def test_an_unknown_topic_has_no_route(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        answer = await wire.name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "missing"})
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark is not None
        assert "missing" in answer.remark


async def register(client: RemotingClient, address: str, name: str, topics: list[str], crc: int = 0) -> RemotingCommand:
    """Register a broker as Apache's 5.5.0 does."""
    body = {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
            "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 1},
            "topicConfigTable": {
                topic: {
                    "attributes": {}, "order": False, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG",
                    "topicName": topic, "topicSysFlag": 0, "writeQueueNums": 4,
                }
                for topic in topics
            },
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        },
    }  # fmt: skip
    fields = {
        "brokerId": "0", "bodyCrc32": str(crc), "clusterName": "C", "brokerAddr": f"10.0.0.1:{len(name)}",
        "enableActingMaster": "false", "haServerAddr": "10.0.0.1:10912", "compressed": "false", "brokerName": name,
    }  # fmt: skip
    request = RemotingCommand.request(RequestCode.REGISTER_BROKER, fields, json.dumps(body).encode())
    return await client.request(address, request, timeout=PATIENCE)


async def test_a_broker_whose_connection_closes_is_forgotten_at_once(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        async with RemotingClient(clock=RealClock()) as other:
            assert (await register(other, wire.servers.name_server_address, "other", ["x", "y"])).code == 0
            assert await wire.route("x") is not None
        await until_answered(wire.client, wire.servers.name_server_address, "x", ResponseCode.TOPIC_NOT_EXIST)


async def test_a_first_registration_of_one_topic_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        address = wire.servers.name_server_address
        assert (await register(wire.client, address, "other", ["x"])).code == 1
        assert (await register(wire.client, address, "other", ["x", "y"], crc=5)).code == 1
        assert await wire.route("x") is None


async def test_a_broker_may_unregister(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await register(wire.client, wire.servers.name_server_address, "other", ["x", "y"])
        fields = {"brokerName": "other", "brokerAddr": "10.0.0.1:5", "clusterName": "C", "brokerId": 0}
        assert (await wire.name_server(RequestCode.UNREGISTER_BROKER, fields)).code == 0
        assert await wire.route("x") is None
        assert await wire.route("TBW102") is not None


async def serve_names(port: int, *, task_status: TaskStatus[tuple[str, anyio.Event, anyio.Event]]) -> None:
    """A name server until its stop is set; then the other event is."""
    stop, stopped = anyio.Event(), anyio.Event()
    async with NameServer(NameServerOptions(port=port)) as name_server:
        task_status.started((name_server.address, stop, stopped))
        await stop.wait()
    stopped.set()


async def test_the_broker_registers_again_with_a_name_server_that_was_restarted(tmp_path: Path) -> None:
    async with RemotingClient(clock=RealClock()) as client, anyio.create_task_group() as group:
        address, stop, stopped = await group.start(serve_names, 0)
        async with Broker(small_options(tmp_path).broker_options(), name_servers=[address]) as broker:
            assert (await client.request(address, route_request("TBW102"), timeout=PATIENCE)).code == 0
            stop.set()
            await stopped.wait()
            known = {"b": "BenchmarkTest", "e": "0"}
            send = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, known, b"x")
            assert (await client.request(broker.address, send, timeout=PATIENCE)).code == 0
            new = {"b": "meanwhile", "c": "TBW102", "d": "4", "e": "0"}
            send = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, new, b"x")
            assert (await client.request(broker.address, send, timeout=PATIENCE)).code == 0
            _, stop, _ = await group.start(serve_names, int(address.rpartition(":")[2]))
            await until_answered(client, address, "meanwhile", 0)
            stop.set()


def route_request(topic: str) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


async def until_answered(client: RemotingClient, address: str, topic: str, code: int) -> None:
    """Return when the name server answers a route request so."""
    with anyio.fail_after(PATIENCE):
        while True:
            if (await client.request(address, route_request(topic), timeout=PATIENCE)).code == code:
                return
            await anyio.sleep(0.02)


async def test_a_broker_starts_without_its_name_server(tmp_path: Path) -> None:
    options = small_options(tmp_path).broker_options()
    async with NameServer(NameServerOptions(port=0)) as gone:
        address = gone.address
    async with Broker(options, name_servers=[address]) as broker, RemotingClient(clock=RealClock()) as client:
        send = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {"b": "t", "c": "TBW102", "e": "0"}, b"x")
        assert (await client.request(broker.address, send, timeout=PATIENCE)).code == 0
