"""Topics and groups by request, as Apache's tools and clients ask for them, and by Admin."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from rocketbox.client import Admin
from rocketbox.errors import BrokerError, ClientError
from rocketbox.protocol.codes import PermName, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from tests.support.broker.wire import Wire, embedded
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

TOPIC: dict[str, object] = {
    "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0, "order": "false",
}  # fmt: skip


@asynccontextmanager
async def with_admin(directory: Path) -> AsyncIterator[tuple[Wire, Admin]]:
    async with (
        embedded(directory) as wire,
        Admin(name_server=wire.servers.name_server_address) as admin,
    ):
        yield wire, admin


async def make(wire: Wire, topic: str, **fields: object) -> RemotingCommand:
    return await wire.broker(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": topic, **TOPIC, **fields})


async def topics(wire: Wire) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await wire.broker(RequestCode.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]
    return found


async def groups(wire: Wire) -> dict[str, Any]:
    answer = await wire.broker(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    found: dict[str, Any] = json.loads(answer.body)["subscriptionGroupTable"]
    assert answer.ext_fields["totalGroupNum"] == str(len(found))
    return found


async def put_group(wire: Wire, **settings: object) -> RemotingCommand:
    return await wire.broker(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(settings, default=str).encode()
    )


async def test_a_topic_is_made_and_has_its_route_when_that_is_answered(tmp_path: Path) -> None:
    async with embedded(tmp_path, auto_create_topic_enable=False) as wire:
        assert (await wire.send("t")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await make(wire, "t", readQueueNums=5, writeQueueNums=3)).code == 0
        route = await wire.route("t")
        assert route is not None
        (queues,) = route["queueDatas"]
        assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (5, 3, 6)
        assert (await wire.send("t", queue=2)).code == 0
    async with embedded(tmp_path, auto_create_topic_enable=False) as wire:
        assert (await topics(wire))["t"]["writeQueueNums"] == 3
        assert len(await wire.messages("t", queue=2)) == 1


async def test_a_topic_is_changed_and_the_same_again_is_no_change(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        assert (await make(wire, "t")).code == 0
        assert (await make(wire, "t", writeQueueNums=2, perm=4, order="true", topicFilterType="MULTI_TAG")).code == 0
        version = wire.servers.broker.topics.version
        assert (await topics(wire))["t"] == {
            "attributes": {}, "order": True, "perm": 4, "readQueueNums": 4, "topicFilterType": "MULTI_TAG",
            "topicName": "t", "topicSysFlag": 0, "writeQueueNums": 2,
        }  # fmt: skip
        assert (await make(wire, "t", writeQueueNums=2, perm=4, order="true", topicFilterType="MULTI_TAG")).code == 0
        assert wire.servers.broker.topics.version == version
        route = await wire.route("t")
        assert route is not None
        assert route["queueDatas"][0]["perm"] == 4


BAD_TOPICS: list[tuple[str, dict[str, object], int, str]] = [
    ("bad topic", {}, 29, "The specified topic: bad topic, contains illegal characters"),
    (" ", {}, 29, "The specified topic is blank."),
    ("x" * 128, {}, 29, "is longer than topic max length: 127"),
    ("SCHEDULE_TOPIC_XXXX", {}, 29, "The topic[SCHEDULE_TOPIC_XXXX] is conflict with system topic."),
    ("TBW102", {}, 29, "is conflict with system topic"),
    ("DefaultCluster", {}, 29, "is conflict with system topic"),
    ("broker-a", {}, 29, "is conflict with system topic"),
    ("BenchmarkTest", {}, 29, "is conflict with system topic"),
    ("rmq_sys_mine", {}, 29, "is conflict with system topic"),
    ("t", {"topicFilterType": "NONSENSE"}, 1, "topicFilterType = [NONSENSE] value invalid"),
    ("t", {"topicFilterType": None}, 1, "topicFilterType is missing"),
    ("t", {"readQueueNums": "many"}, 1, "readQueueNums is 'many'"),
    ("t", {"attributes": "+nonsense=1"}, 1, "unsupported key: nonsense"),
    ("t", {"attributes": "+message.type=WRONG"}, 1, "value is not in set: ["),
    ("t", {"attributes": "+cleanup.policy=DELETE,+message.type=MIXED"}, 29, "MIXED message type is not supported."),
    ("t", {"attributes": "message.type=FIFO"}, 1, "add/alter attribute format is wrong: message.type"),
    ("t", {"attributes": "-message.type"}, 1, "only add attribute is supported while creating topic"),
    ("t", {"attributes": "+message.type=FIFO,+message.type=NORMAL"}, 1, "alter duplication key"),
    ("t", {"attributes": "+cleanup.policy=COMPACTION"}, 1, "value is not in set: [DELETE]"),
    ("t", {"readQueueNums": 0, "writeQueueNums": 0}, 29, "would have 0 queues to read and 0 to write"),
    ("t", {"readQueueNums": -1}, 29, "would have -1 queues to read"),
    ("t", {"writeQueueNums": 1025}, 16, "max-queues-per-topic"),
    ("t", {"perm": 8}, 29, "8 is no permission"),
    ("t", {"perm": -1}, 29, "-1 is no permission"),
]


async def test_what_cannot_be_a_topic_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        before = await topics(wire)
        for topic, fields, code, remark in BAD_TOPICS:
            answer = await make(wire, topic, **fields)
            assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark
        assert await topics(wire) == before


async def test_attributes_are_added_changed_and_removed_one_by_one(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        assert (await make(wire, "t", attributes="+message.type=FIFO,+cleanup.policy=DELETE")).code == 0
        assert (await topics(wire))["t"]["attributes"] == {"cleanup.policy": "DELETE", "message.type": "FIFO"}
        assert (await make(wire, "t", attributes="+message.type=NORMAL")).code == 0
        assert (await topics(wire))["t"]["attributes"]["message.type"] == "NORMAL"
        unchangeable = await make(wire, "t", attributes="+cleanup.policy=DELETE")
        assert "attempt to update an unchangeable attribute. key: cleanup.policy" in str(unchangeable.remark)
        assert (await make(wire, "t", attributes="-message.type")).code == 0
        again = await make(wire, "t", attributes="-message.type")
        assert "attempt to delete a nonexistent key: message.type" in str(again.remark)
        assert (await topics(wire))["t"]["attributes"] == {"cleanup.policy": "DELETE"}


async def test_a_topic_for_messages_of_all_types_is_made_where_the_setting_says_so(tmp_path: Path) -> None:
    async with embedded(tmp_path, enable_mixed_message_type=True) as wire:
        assert (await make(wire, "t", attributes="+message.type=MIXED")).code == 0
    async with embedded(tmp_path) as wire:
        assert (await topics(wire))["t"]["attributes"] == {"message.type": "MIXED"}
        assert (await make(wire, "t", perm=4)).code == 0, "it is as it was, and nobody asks for it now"
        assert (await topics(wire))["t"]["attributes"] == {"message.type": "MIXED"}


async def test_topics_are_listed_in_parts_when_that_is_asked_for(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        every = list(await topics(wire))
        part = await wire.broker(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": 0, "maxTopicNum": 3})
        first = json.loads(part.body)
        assert part.ext_fields["totalTopicNum"] == str(len(every))
        assert len(first["topicConfigTable"]) == 3
        version = json.dumps(first["dataVersion"])
        rest = await wire.broker(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": 3, "dataVersion": version})
        assert sorted([*first["topicConfigTable"], *json.loads(rest.body)["topicConfigTable"]]) == sorted(every)
        stale = await wire.broker(
            RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": 3, "maxTopicNum": 3, "dataVersion": '{"counter":999}'}
        )
        assert json.loads(stale.body)["topicConfigTable"] == first["topicConfigTable"]
        assert {"mappingDataVersion", "topicQueueMappingDetailMap", "topicQueueMappingInfoMap"} < set(first)


async def test_a_group_is_made_changed_and_kept(tmp_path: Path) -> None:
    async with embedded(tmp_path, auto_create_subscription_group=False) as wire:
        assert (await wire.pull("SELF_TEST_TOPIC", group="g")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (await put_group(wire, groupName="g", retryQueueNums=2, retryMaxTimes=5)).code == 0
        assert (await wire.pull("SELF_TEST_TOPIC", group="g")).code == ResponseCode.PULL_NOT_FOUND
        assert (await put_group(wire, groupName="g", consumeEnable=False, retryMaxTimes=5)).code == 0
        assert (await wire.pull("SELF_TEST_TOPIC", group="g")).code == ResponseCode.NO_PERMISSION
    async with embedded(tmp_path, auto_create_subscription_group=False) as wire:
        assert (await groups(wire))["g"] == {
            "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": False,
            "consumeFromMinEnable": True, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15,
            "groupName": "g", "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0,
            "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 5, "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }  # fmt: skip


BAD_GROUPS: list[tuple[bytes, int, str]] = [
    (b"{}", 1, "cannot be read"),
    (b"", 1, "cannot be read"),
    (b"nonsense", 1, "cannot be read"),
    (b'{"groupName":""}', 29, "The specified group is blank."),
    (b'{"groupName":"bad name"}', 29, "The specified group: bad name, contains illegal characters"),
    (b'{"groupName":"%b"}' % (b"g" * 121), 29, "is longer than group max length: 120"),
    (b'{"groupName":"g","retryQueueNums":-1}', 29, "retryQueueNums is -1"),
    (b'{"groupName":"g","retryQueueNums":1025}', 29, "retryQueueNums is 1025; it must be 0 to 1024"),
    (b'{"groupName":"g","retryMaxTimes":-7}', 29, "retryMaxTimes is -7"),
    (b'{"groupName":"g","retryMaxTimes":"often"}', 1, "cannot be read"),
    (b'{"groupName":"g","consumeEnable":"often"}', 1, "neither true nor false"),
    (b'{"groupName":"g","attributes":{"+nonsense":"1"}}', 1, "unsupported key: nonsense"),
]


async def test_what_cannot_be_a_group_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        before = await groups(wire)
        for body, code, remark in BAD_GROUPS:
            answer = await wire.broker(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
            assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark
        assert await groups(wire) == before


async def commit(wire: Wire, group: str, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": "t", "queueId": 0, "commitOffset": offset}
    assert (await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


async def committed(wire: Wire, group: str) -> int | None:
    fields = {"consumerGroup": group, "topic": "t", "queueId": 0, "setZeroIfNotFound": "false"}
    answer = await wire.broker(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    return int(answer.ext_fields["offset"]) if answer.code == 0 else None


async def test_a_deleted_group_keeps_its_offsets_unless_they_are_to_go(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("t")
        await commit(wire, "g", 1)
        await commit(wire, "other", 1)
        await wire.heartbeat("g", {"t": "*"})
        assert (await wire.broker(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})).code == 0
        assert "g" not in await groups(wire)
        assert await committed(wire, "g") == 1
        await commit(wire, "g", 1)  # the group is made again, as by any member
        gone = {"groupName": "g", "cleanOffset": "true"}
        assert (await wire.broker(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)).code == 0
        assert await committed(wire, "g") is None
        assert await committed(wire, "other") == 1
        assert "%RETRY%g" in await topics(wire)
        assert (await wire.broker(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)).code == 0
        assert "g" not in await groups(wire)


async def test_groups_that_every_broker_has_are_not_deleted(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        answer = await wire.broker(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "TOOLS_CONSUMER"})
        assert (answer.code, answer.remark) == (29, "The group[TOOLS_CONSUMER] is conflict with system group.")
        missing = await wire.broker(RequestCode.DELETE_SUBSCRIPTIONGROUP)
        assert missing.code == 1
        assert "TOOLS_CONSUMER" in await groups(wire)


async def test_pulls_on_hold_end_when_their_group_is_deleted(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire, anyio.create_task_group() as tasks:
        await wire.send("t")
        answers: list[int] = []

        async def wait() -> None:
            answers.append((await wire.pull("t", 1, group="g", suspend_ms=15_000)).code)

        tasks.start_soon(wait)
        with anyio.fail_after(PATIENCE):
            while not wire.servers.broker.held_pulls.waiting("t", 0, "g"):
                await anyio.sleep(0.01)
            await wire.broker(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
            while not answers:
                await anyio.sleep(0.01)
        assert answers == [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST]


async def delete(wire: Wire, topic: str) -> RemotingCommand:
    return await wire.broker(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


async def test_a_deleted_topic_is_gone_with_its_offsets_and_begins_anew(tmp_path: Path) -> None:
    async with embedded(tmp_path, auto_create_topic_enable=False) as wire:
        await make(wire, "t")
        await make(wire, "kept")
        for topic in ("t", "kept"):
            for body in (b"a", b"b"):
                assert (await wire.send(topic, body)).code == 0
        await commit(wire, "g", 2)
        assert (await delete(wire, "t")).code == 0
        assert "t" not in await topics(wire)
        assert (await wire.send("t")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await wire.pull("t")).code == ResponseCode.TOPIC_NOT_EXIST
        assert await committed(wire, "g") is None
        ends = await wire.broker(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": 0})
        begin = int(ends.ext_fields["offset"])
        assert begin == 1000  # the next file's first entry: no offset of the old topic hides a message of the new one
        assert await wire.route("t") is not None  # as Apache's: whoever deletes a topic tells the name server next
        assert (await wire.name_server(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "t"})).code == 0
        assert await wire.route("t") is None
        assert (await make(wire, "t")).code == 0
        await commit(wire, "g", 2)  # by a consumer that runs over the deletion
        assert (await wire.send("t", b"c")).ext_fields["queueOffset"] == str(begin)
        for offset in (0, 2):
            moved = await wire.pull("t", offset)
            assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(begin))
        new = {"consumerGroup": "new", "topic": "t", "queueId": 0}
        answer = await wire.broker(RequestCode.QUERY_CONSUMER_OFFSET, new)
        assert (answer.code, answer.ext_fields["offset"]) == (0, str(begin))
        assert [message.body for message in await wire.messages("t", first=begin)] == [b"c"]
    async with embedded(tmp_path, auto_create_topic_enable=False) as wire:
        assert [message.body for message in await wire.messages("t", first=begin)] == [b"c"]
        assert [message.body for message in await wire.messages("kept")] == [b"a", b"b"]
        assert (await delete(wire, "t")).code == 0
    async with embedded(tmp_path, auto_create_topic_enable=False) as wire:
        assert "t" not in await topics(wire)


async def test_topics_of_the_broker_itself_are_not_deleted_and_unknown_ones_are_no_error(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        for topic in ("TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "BenchmarkTest", "rmq_sys_mine"):
            answer = await delete(wire, topic)
            assert (answer.code, answer.remark) == (29, f"The topic[{topic}] is conflict with system topic.")
        assert (await delete(wire, " ")).code == 29
        assert (await wire.broker(RequestCode.DELETE_TOPIC_IN_BROKER)).code == 29
        assert (await delete(wire, "nowhere")).code == 0
        assert (await delete(wire, "bad topic")).code == 0


async def test_pulls_on_hold_end_when_their_topic_is_deleted(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire, anyio.create_task_group() as tasks:
        await wire.send("t")
        answers: list[int] = []

        async def wait() -> None:
            answers.append((await wire.pull("t", 1, group="g", suspend_ms=15_000)).code)

        tasks.start_soon(wait)
        with anyio.fail_after(PATIENCE):
            while not wire.servers.broker.held_pulls.waiting("t", 0, "g"):
                await anyio.sleep(0.01)
            await delete(wire, "t")
            while not answers:
                await anyio.sleep(0.01)
        assert answers == [ResponseCode.TOPIC_NOT_EXIST]


async def test_admin_deletes_a_topic_and_its_route(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (wire, admin):
        await admin.create_topic("orders")
        assert await wire.route("orders") is not None
        await admin.delete_topic("orders")
        await admin.delete_topic("orders")
        assert await wire.route("orders") is None
        assert "orders" not in {topic.name for topic in await admin.topics()}


async def test_admin_makes_changes_and_lists_topics(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (_, admin):
        await admin.create_topic("orders", queues=3, attributes={"message.type": "FIFO"})
        await admin.create_topic("orders", queues=5, perm=PermName.READ, attributes={"message.type": None})
        found = {topic.name: topic for topic in await admin.topics()}
        orders = found["orders"].brokers["broker-a"]
        assert (orders.read_queue_nums, orders.perm, dict(orders.attributes)) == (5, 4, {})
        assert found["orders"].write_queues == 5
        assert "TBW102" in found
        with pytest.raises(BrokerError, match="illegal characters") as caught:
            await admin.create_topic("bad topic")
        assert caught.value.code == 29


async def test_admin_makes_changes_lists_and_deletes_groups(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (_, admin):
        await admin.create_group("g")
        await admin.create_group(SubscriptionGroupConfig("h", retry_max_times=3))
        found = {group.name: group.brokers["broker-a"] for group in await admin.groups()}
        assert (found["g"].retry_max_times, found["h"].retry_max_times) == (16, 3)
        await admin.delete_group("g")
        assert "g" not in {group.name for group in await admin.groups()}


async def test_admin_knows_the_cluster_and_asks_which_one_is_meant(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (wire, admin):
        cluster = await admin.cluster()
        assert cluster.clusters == {"DefaultCluster": ("broker-a",)}
        assert cluster.masters() == {"broker-a": wire.servers.broker_address}
        with pytest.raises(ClientError, match="no cluster 'Other'; the name server knows DefaultCluster"):
            await admin.topics(cluster="Other")


async def test_deleting_topics_that_never_were_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("orders")
        for topic in ("misspelt", "never-there", "orders", "orders"):
            assert (await wire.broker(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})).code == 0
        store = wire.servers.broker.store
        assert [topic for topic in ("misspelt", "never-there", "orders") if store.was_deleted(topic)] == ["orders"]
