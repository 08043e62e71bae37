"""Apache's Java clients and mqadmin on the embedded broker with access control: ACL 2.0 and 1.0."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from rocketbox.client import Admin, ClientOptions, Credentials
from rocketbox.clock import RealClock
from rocketbox.message import Message
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.acl import RequestSigner
from rocketbox.remoting.client import RemotingClient
from tests.conformance.acl import AclServers, producer
from tests.conformance.apache import EACH_BUT_NEWEST_BETWEEN, EACH_BUT_OLDEST_BETWEEN, NEWEST
from tests.conformance.java_exchange import exchange
from tests.conformance.java_tools import JavaTools
from tests.support.broker.access import ADMIN, keys_of
from tests.support.broker.broker_process import BrokerProcess
from tests.support.broker.rights import May

pytestmark = [pytest.mark.apache, pytest.mark.smoke]

DESK = keys_of("the-desk")
PLAIN_ACL = f"""
accounts:
- {{accessKey: {ADMIN.access_key}, secretKey: {ADMIN.secret_key}, admin: true}}
- accessKey: {DESK.access_key}
  secretKey: {DESK.secret_key}
  topicPerms: [departures=PUB|SUB, gates=PUB|SUB]
  groupPerms: [board=SUB, gate-board=SUB]
"""
ACL_2 = (
    "--authentication-enabled=true",
    "--authorization-enabled=true",
    "--init-authentication-user=" + json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
)
CLUSTER = ("-c", "DefaultCluster")


def exchange_as_desk(name_server: str, version: str) -> None:
    administrator, desk = ClientOptions(credentials=ADMIN), ClientOptions(credentials=DESK)
    exchange(name_server, version, administrator, desk, keys=DESK)


@pytest.mark.parametrize("version", EACH_BUT_OLDEST_BETWEEN)
def test_java_clients_exchange_messages_under_acl_1(version: str, tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(PLAIN_ACL)
    acl = ("--acl-enable=true", f"--acl-file={tmp_path / 'plain_acl.yml'}")
    with BrokerProcess(tmp_path / "store", *acl) as broker:
        exchange_as_desk(broker.name_server, version)


def test_mqadmin_changes_and_shows_users_and_policies(tmp_path: Path) -> None:
    """Each command once, of 5.5.0, as the administrator."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    with (
        BrokerProcess(tmp_path / "store", *ACL_2) as broker,
        JavaTools(tmp_path, NEWEST, broker.name_server) as tools,
    ):

        def admin(command: str, *arguments: str) -> str:
            return tools(command, *CLUSTER, *arguments)

        user, subject = ("-u", DESK.access_key), ("-s", f"User:{DESK.access_key}")
        assert "success" in admin("createUser", *user, "-p", DESK.secret_key, "-t", "Super")
        assert "success" in admin("updateUser", *user, "-t", "Normal")
        got = admin("getUser", *user)
        assert DESK.access_key in got
        assert "Normal" in got
        assert "enable" in got
        assert DESK.secret_key not in got
        assert ADMIN.access_key in admin("listUser")
        resources = "Topic:departures,Topic:gates,Group:*"
        assert "success" in admin("createAcl", *subject, "-r", resources, "-a", "Pub,Sub", "-d", "Allow")
        assert "success" in admin("updateAcl", *subject, "-r", "Topic:gates", "-a", "Pub", "-d", "Deny")
        got = admin("getAcl", *subject)
        assert "Topic:departures" in got
        assert "Deny" in got
        assert "success" in admin("deleteAcl", *subject, "-r", "Group:*")
        listed = admin("listAcl", *subject)
        assert "Topic:gates" in listed
        assert "Group:*" not in listed
        assert "success" in admin("deleteUser", *user)


@pytest.mark.between  # a quarter of a minute
@pytest.mark.parametrize("acl", [NEWEST], indirect=True)
def test_mqadmin_copies_a_user_and_its_policies_to_this_broker(acl: AclServers, tmp_path: Path) -> None:
    """From Apache's broker with its password; from this one, which tells none, if it is there already."""
    desk, gate = keys_of("copied-desk"), keys_of("copied-gate")
    anyio.run(acl.let, desk, May(policies={"Topic:departures": ("Pub",)}))
    anyio.run(acl.let, gate, May(policies={"Topic:gates": ("Sub",)}))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    with (
        BrokerProcess(tmp_path / "first", *ACL_2) as first,
        BrokerProcess(tmp_path / "second", *ACL_2) as second,
        JavaTools(tmp_path, NEWEST, first.name_server) as tools,
    ):
        to_first, to_second = ("-f", acl.broker, "-t", first.broker), ("-f", first.broker, "-t", second.broker)

        def rows(command: str, address: str) -> set[tuple[str, ...]]:
            return {tuple(line.split()) for line in tools(command, "-b", address).splitlines() if "copied-" in line}

        desk_user, desk_acl = ("-u", desk.access_key), ("-s", f"User:{desk.access_key}")
        assert "success" in tools("copyUser", *to_first, *desk_user)
        assert "success" in tools("copyAcl", *to_first, *desk_acl)
        its_user = {(desk.access_key, "null", "Normal", "enable")}
        its_policy = {(f"User:{desk.access_key}", "Custom", "Topic:departures", "[Pub]", "null", "Allow")}
        assert (rows("listUser", first.broker), rows("listAcl", first.broker)) == (its_user, its_policy)
        anyio.run(send_as, first.name_server, desk)

        assert "password can not be blank" in tools("copyUser", *to_second, *desk_user)
        assert rows("listUser", second.broker) == set()
        other_keys = Credentials(access_key=desk.access_key, secret_key="another-secret")
        made = ("-p", other_keys.secret_key, "-t", "Super")
        assert "success" in tools("createUser", "-b", second.broker, *desk_user, *made)
        assert "success" in tools("copyUser", *to_second, *desk_user)
        for _ in ("made", "overwritten"):
            assert "success" in tools("copyAcl", *to_second, *desk_acl)
            assert (rows("listUser", second.broker), rows("listAcl", second.broker)) == (its_user, its_policy)
        anyio.run(send_as, second.name_server, other_keys)


async def send_as(name_server: str, who: Credentials) -> None:
    async with Admin(name_server=name_server, client_options=ClientOptions(credentials=ADMIN)) as admin:
        await admin.create_topic("departures")
    async with producer(name_server, who) as sending:
        await sending.send(Message("departures", b"let in"))


@pytest.mark.parametrize("version", EACH_BUT_NEWEST_BETWEEN)
def test_java_clients_exchange_messages_under_acl_2(version: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", *ACL_2) as broker:
        anyio.run(make_desk, broker.broker)
        exchange_as_desk(broker.name_server, version)


async def make_desk(broker: str) -> None:
    """The user, with his rights, by requests."""
    name = DESK.access_key
    rights = {"Topic:departures": "Pub,Sub,Get", "Topic:gates": "Pub,Sub,Get", "Group:*": "Sub"}
    entries = [{"resource": on, "actions": may.split(","), "decision": "Allow"} for on, may in rights.items()]
    requests = [
        (RequestCode.AUTH_CREATE_USER, {"username": name}, {"username": name, "password": DESK.secret_key}),
        (RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, {"policies": [{"entries": entries}]}),
    ]
    async with RemotingClient(clock=RealClock(), hooks=[RequestSigner(ADMIN)]) as client:
        for code, fields, body in requests:
            request = RemotingCommand.request(code, fields, json.dumps(body).encode())
            assert (await client.request(broker, request, timeout=30)).code == 0
