"""Members of groups who lose their user or their rights: they leave at once, and the others share the queues."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from rocketbox.protocol.codes import RequestCode as C
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.acl import RequestSigner
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from tests.support.broker.access import ADMIN, UserWires, broker_with_access, keys_of, put_policy
from tests.support.broker.in_memory import BrokerWire, HastyClock
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

RIGHTS = (("Topic:orders", "Sub", "Allow"), ("Group:board", "Sub", "Allow"))
TOPICS = {"orders": "*", "%RETRY%board": "*"}


@pytest.fixture
async def users() -> AsyncIterator[UserWires]:
    async with broker_with_access() as wires:
        yield wires


@pytest.fixture
async def admin(users: UserWires) -> BrokerWire:
    return await users.wire(ADMIN)


async def change(admin: BrokerWire, **values: str) -> RemotingCommand:
    return await admin.broker(C.AUTH_UPDATE_USER, {"username": "leaver"}, json.dumps(values).encode())


async def disable(admin: BrokerWire) -> RemotingCommand:
    return await change(admin, userStatus="disable")


async def delete(admin: BrokerWire) -> RemotingCommand:
    return await admin.broker(C.AUTH_DELETE_USER, {"username": "leaver"})


async def deny_topic(admin: BrokerWire) -> RemotingCommand:
    return await put_policy(admin, "leaver", "Topic:orders", "Sub", "Deny")


async def take_group(admin: BrokerWire) -> RemotingCommand:
    return await admin.broker(C.AUTH_DELETE_ACL, {"subject": "User:leaver", "resource": "Group:board"})


async def change_password(admin: BrokerWire) -> RemotingCommand:
    return await change(admin, password="another-secret")


def members(users: UserWires, group: str = "board") -> list[str]:
    found = users.broker.consumers.group(group)
    return [] if found is None else found.client_ids()


def producers(users: UserWires) -> set[str | None]:
    return {channel.access_key for channel in users.broker.producers.channels("producers").values()}


@pytest.mark.parametrize("take_away", [disable, delete, deny_topic, take_group])
async def test_who_may_not_be_a_member_any_more_is_dropped_and_the_others_are_told(
    users: UserWires, admin: BrokerWire, take_away: Callable[[BrokerWire], Awaitable[RemotingCommand]]
) -> None:
    told: list[str] = []

    def hear(connection: Connection, request: RemotingCommand) -> None:
        told.append(request.ext_fields["consumerGroup"])

    leaver = await users.new_user(admin, "leaver", *RIGHTS)
    await users.new_user(admin, "stayer", *RIGHTS)
    async with RemotingClient(
        clock=users.broker._clock, network=users.unsigned.network, hooks=[RequestSigner(keys_of("stayer"))],
        handlers={int(C.NOTIFY_CONSUMER_IDS_CHANGED): hear},
    ) as stayer:  # fmt: skip
        assert (await leaver.heartbeat("board", TOPICS, client_id="leaver")).code == 0
        assert (await admin.heartbeat("board", TOPICS, client_id="stayer", client=stayer)).code == 0
        with anyio.fail_after(PATIENCE):
            await until(lambda: len(told) == 1)  # of itself
            assert sorted(members(users)) == ["leaver", "stayer"]
            assert (await take_away(admin)).code == 0
            await until(lambda: members(users) == ["stayer"])
            await until(lambda: len(told) == 2)
    there = {"stayer"} if take_away in (disable, delete) else {"stayer", "leaver"}  # producing took no right of these
    assert producers(users) <= there


async def test_who_may_still_stays_though_keys_and_other_rights_change(users: UserWires, admin: BrokerWire) -> None:
    leaver = await users.new_user(admin, "leaver", *RIGHTS)
    assert (await leaver.heartbeat("board", TOPICS, client_id="leaver")).code == 0
    assert (await change_password(admin)).code == 0
    assert (await put_policy(admin, "leaver", "Topic:others", "Sub", "Deny")).code == 0
    other = await users.new_user(admin, "another", *RIGHTS)
    assert (await other.heartbeat("board", TOPICS, client_id="another")).code == 0
    assert (await admin.broker(C.AUTH_DELETE_USER, {"username": "another"})).code == 0
    with anyio.fail_after(PATIENCE):
        await until(lambda: members(users) == ["leaver"])
    assert producers(users) == {"leaver"}


async def test_of_many_members_those_of_the_user_are_dropped(users: UserWires, admin: BrokerWire) -> None:
    """More than are looked at in one turn of the loop."""
    leaver = await users.new_user(admin, "leaver", ("Topic:*", "Sub", "Allow"), ("Group:*", "Sub", "Allow"))
    stayer = await users.new_user(admin, "stayer", ("Topic:*", "Sub", "Allow"), ("Group:*", "Sub", "Allow"))
    for number in range(75):
        for name, wire in (("leaver", leaver), ("stayer", stayer)):
            assert (await wire.heartbeat(f"g{number}", {"orders": "*"}, client_id=name)).code == 0
    assert (await delete(admin)).code == 0
    with anyio.fail_after(PATIENCE):
        await until(lambda: all(members(users, f"g{number}") == ["stayer"] for number in range(75)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("accounts: [{0}, {1}]", "accounts: [{0}]"),
        ("globalWhiteRemoteAddresses: ['*']\naccounts: [{0}]", "accounts: [{0}]"),
        (
            "accounts: [{0}, {{accessKey: RocketMQ2, secretKey: 12345678, whiteRemoteAddress: '*'}}]",
            "accounts: [{0}, {{accessKey: RocketMQ2, secretKey: 12345678}}]",
        ),
    ],
)
async def test_a_file_of_accounts_that_is_read_again_counts_for_members_too(
    tmp_path: Path, before: str, after: str
) -> None:
    file = tmp_path / "acl.yml"
    may = "{{accessKey: {0}, secretKey: secret-of-{0}, topicPerms: [orders=SUB], groupPerms: [board=SUB]}}"
    one, two = may.format("RocketMQ"), may.format("RocketMQ2")
    file.write_text(before.format(one, two))
    async with broker_with_access({"acl-enable": True, "acl-file": str(file)}, clock=HastyClock()) as users:
        stayer, leaver = await users.wire(keys_of("RocketMQ")), await users.wire(keys_of("RocketMQ2"))
        assert (await leaver.heartbeat("board", TOPICS, client_id="leaver")).code == 0
        assert (await stayer.heartbeat("board", TOPICS, client_id="stayer")).code == 0
        assert sorted(members(users)) == ["leaver", "stayer"]
        file.write_text(after.format(one, two))
        with anyio.fail_after(PATIENCE):
            await until(lambda: members(users) == ["stayer"])


async def test_rights_that_are_taken_while_a_large_heartbeat_is_read_count_for_the_rest_of_it(
    users: UserWires, admin: BrokerWire
) -> None:
    leaver = await users.new_user(admin, "leaver", ("Topic:*", "Sub", "Allow"), ("Group:*", "Sub", "Allow"))
    groups = [
        {"groupName": f"g{number}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
         "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [], "unitMode": False}
        for number in range(60)
    ]  # fmt: skip
    body = json.dumps({"clientID": "leaver", "producerDataSet": [], "consumerDataSet": groups}).encode()
    answers: list[RemotingCommand] = []

    async def beat() -> None:
        answers.append(await leaver.broker(C.HEART_BEAT, None, body))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat)
            while not members(users, "g0"):
                await anyio.lowlevel.checkpoint()
            assert not members(users, "g59"), "the heartbeat is not through"
            users.broker.access.users.delete("leaver")  # type: ignore[union-attr]  # in this very turn of the loop
        await until(lambda: not any(members(users, f"g{number}") for number in range(60)))
    assert answers[0].code == 16
