"""The embedded servers with access control, as clients meet them: both kinds, broker and name server, over sockets."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import TracebackException

import anyio
import pytest

from rocketbox.client import Admin, ClientOptions, ConsumerOptions, Credentials, Producer, PushConsumer
from rocketbox.clock import RealClock
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import AccessDeniedError, BrokerError, ClientError, ConfigurationError, StoreCorruptError
from rocketbox.message import ConsumeFromWhere, Message, MessageExt, format_offset_msg_id
from rocketbox.protocol.codes import RequestCode as C
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.acl import RequestSigner
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.server import RemotingServer
from tests.support.broker.access import ADMIN, keys_of
from tests.support.broker.wire import Wire, small_options
from tests.support.failures import variables_of_ours
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

PRODUCER, CONSUMER = keys_of("producer"), keys_of("consumer")
PLAIN_ACL = f"""
accounts:
- {{accessKey: {ADMIN.access_key}, secretKey: {ADMIN.secret_key}, admin: true}}
- {{accessKey: producer, secretKey: {PRODUCER.secret_key}, topicPerms: [departures=PUB]}}
- {{accessKey: consumer, secretKey: {CONSUMER.secret_key}, topicPerms: [departures=SUB], groupPerms: [board=SUB]}}
"""
ACL_2: dict[str, object] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
}
EVIL_BROKER = {
    "brokerName": "evil", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster", "haServerAddr": "",
    "brokerId": 0,
}  # fmt: skip
NO_TOPICS = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {}, "dataVersion": {}}}).encode()
Policies = Mapping[str, Sequence[tuple[str, Sequence[str]]]]
POLICIES: Policies = {
    "producer": [("Topic:departures", ["Pub"])],
    "consumer": [("Topic:departures", ["Sub", "Get"]), ("Group:board", ["Sub"])],
}


def secured(kind: str, folder: Path) -> EmbeddedOptions:
    if kind == "ACL 2.0":
        return small_options(folder / "store", **ACL_2)
    (folder / "plain_acl.yml").write_text(PLAIN_ACL)
    return small_options(folder / "store", acl_enable=True, acl_file=str(folder / "plain_acl.yml"))


async def give_rights(servers: EmbeddedServers, policies: Policies = POLICIES, *, change: bool = False) -> None:
    """Make the users with what they may, or change what they may."""
    async with RemotingClient(clock=RealClock(), hooks=[RequestSigner(ADMIN)]) as client:
        wire = Wire(servers, client)
        for name, entries in policies.items():
            if not change:
                user = {"username": name, "password": keys_of(name).secret_key}
                made = await wire.broker(C.AUTH_CREATE_USER, {"username": name}, json.dumps(user).encode())
                assert made.code == 0, made.remark
            policy = {"entries": [{"resource": what, "actions": how, "decision": "Allow"} for what, how in entries]}
            acl = json.dumps({"policies": [policy]}).encode()
            code = C.AUTH_UPDATE_ACL if change else C.AUTH_CREATE_ACL
            given = await wire.broker(code, {"subject": f"User:{name}"}, acl)
            assert given.code == 0, given.remark


def of(user: Credentials | None) -> ClientOptions:
    return ClientOptions(credentials=user)


@pytest.mark.parametrize("kind", ["ACL 1.0", "ACL 2.0"])
async def test_messages_go_from_who_may_send_to_who_may_read(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: set[bytes] = set()
    retried: list[int] = []
    complete = anyio.Event()

    async def handle(batch: list[MessageExt]) -> None:
        for message in batch:
            if message.body == b"again" and message.reconsume_times == 0:
                retried.append(message.reconsume_times)
                raise RuntimeError("the first time fails")
            seen.add(message.body)
        if seen >= sent:
            complete.set()

    sent = {b"%d" % number for number in range(20)} | {b"again"}
    refusals: dict[str | None, AccessDeniedError] = {}
    async with EmbeddedServers(secured(kind, tmp_path)) as servers:
        if kind == "ACL 2.0":
            await give_rights(servers)
        address = servers.name_server_address
        async with Admin(name_server=address, client_options=of(ADMIN)) as admin:
            await admin.create_topic("departures", queues=2)
        async with Producer("desk", name_server=address, client_options=of(PRODUCER)) as producer:
            await producer.send_many([Message("departures", body) for body in sent])
        options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, delay_level_when_next_consume=1)
        async with PushConsumer("board", name_server=address, client_options=of(CONSUMER), options=options) as consumer:
            await consumer.subscribe("departures", "*", handle)
            with anyio.fail_after(PATIENCE):
                await complete.wait()
        for user in (
            None,
            CONSUMER,
            keys_of("stranger"),
            Credentials(access_key="producer", secret_key="secret-of-another"),
        ):
            async with Producer("desk", name_server=address, client_options=of(user)) as producer:
                with pytest.raises(AccessDeniedError) as caught:
                    await producer.send(Message("departures", b"never"))
                refusals[None if user is None else user.access_key] = caught.value
    assert (seen, retried) == (sent, [0])
    assert "secret-of" not in caplog.text
    said = {who: (each.who, each.permission, each.resource, each.wrong_keys) for who, each in refusals.items()}
    assert said == {
        None: (None, None, None, True),
        "consumer": ("cons...", "PUB", "topic departures", False),
        "stranger": ("stra...", None, None, True),
        "producer": ("prod...", None, None, True),
    }
    for error in refusals.values():
        told = "".join(TracebackException.from_exception(error, capture_locals=True).format())
        for text in (told, repr(error), str(error), repr(vars(error))):
            assert "secret-of" not in text


class OffClock(RealClock):
    """That of a machine whose time is wrong."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._off = seconds

    def time_ms(self) -> int:
        return super().time_ms() + int(self._off * 1000)


@pytest.mark.parametrize("years", [-10, 10])
@pytest.mark.parametrize("kind", ["ACL 1.0", "ACL 2.0"])
async def test_keys_are_taken_from_a_client_whose_clock_is_off(kind: str, tmp_path: Path, years: int) -> None:
    """A signature holds no time, so that nobody is kept out by his clock."""
    async with EmbeddedServers(secured(kind, tmp_path)) as servers:
        if kind == "ACL 2.0":
            await give_rights(servers)
        address, clock = servers.name_server_address, OffClock(years * 365 * 86_400)
        async with Admin(name_server=address, client_options=of(ADMIN), clock=clock) as admin:
            await admin.create_topic("departures", queues=1)
            async with Producer("desk", name_server=address, client_options=of(PRODUCER), clock=clock) as producer:
                sent = await producer.send(Message("departures", b"UA1"))
            (message,) = (await admin.pull(sent.queue, 0)).messages
            assert message.body == b"UA1"
            assert abs(message.born_timestamp_ms - clock.time_ms()) < 3_600_000


LISTENER = """
from rocketbox import ConsumeFromWhere, RocketBox, rocketmq_listener

app = RocketBox("board", scan=[__name__])
seen = []

@rocketmq_listener(topic="departures", consumer_group="board", consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
async def on_departure(text: str) -> None:
    seen.append(text)
"""


async def test_a_service_is_not_ready_until_the_group_of_its_listener_may_read(
    tmp_path: Path, service: ServiceMaker
) -> None:
    async with EmbeddedServers(secured("ACL 2.0", tmp_path)) as servers:
        await give_rights(servers, {**POLICIES, "consumer": [("Topic:departures", ["Sub", "Get"])]})
        address = servers.name_server_address
        async with Admin(name_server=address, client_options=of(ADMIN)) as admin:
            await admin.create_topic("departures", queues=1)
        async with Producer("desk", name_server=address, client_options=of(PRODUCER)) as producer:
            await producer.send(Message("departures", b"UA1"))
        keys = f"access-key: {CONSUMER.access_key}\n  secret-key: {CONSUMER.secret_key}\n"
        module = service(LISTENER, f"rocketmq:\n  name-server: {address}\n  {keys}")
        reason = "the servers refuse it: user cons... lacks SUB on group board"
        async with module.app as app:
            container = app.listeners["board"]
            await until(lambda: not app.is_ready, "the refusal")
            assert (container.state().ready, container.state().reason) == (False, reason)
            assert app.not_ready_because == [f"the listeners of group board: {reason}"]
            assert (app.health().ready, list(app.health().reasons)) == (False, app.not_ready_because)
            assert module.seen == []
            await give_rights(servers, {"consumer": POLICIES["consumer"]}, change=True)
            await until(lambda: app.is_ready, "the permission")
            assert (container.state().ready, container.state().reason) == (True, None)
            assert (app.not_ready_because, app.health().ready) == ([], True)
            await until(lambda: module.seen == ["UA1"], "the message")


async def test_the_next_start_knows_users_and_policies(tmp_path: Path) -> None:
    for start in range(2):
        async with EmbeddedServers(secured("ACL 2.0", tmp_path)) as servers:
            address = servers.name_server_address
            if start == 0:
                await give_rights(servers)
                async with Admin(name_server=address, client_options=of(ADMIN)) as admin:
                    await admin.create_topic("departures", queues=2)
            async with Producer("desk", name_server=address, client_options=of(PRODUCER)) as producer:
                await producer.send(Message("departures", b"hello"))


async def test_no_broker_registers_without_the_servers_own_keys(tmp_path: Path) -> None:
    async with EmbeddedServers(secured("ACL 2.0", tmp_path)) as servers:
        await give_rights(servers)
        for user, code in ((None, 16), (PRODUCER, 16), (keys_of("rocketbox-servers-"), 16), (ADMIN, 0)):
            hooks = [] if user is None else [RequestSigner(user)]
            async with RemotingClient(clock=RealClock(), hooks=hooks) as client:
                answer = await Wire(servers, client).name_server(C.REGISTER_BROKER, EVIL_BROKER, NO_TOPICS)
                assert answer.code == code, answer.remark


async def test_the_servers_own_keys_may_be_said(tmp_path: Path) -> None:
    own = Credentials(access_key="servers", secret_key="secret-of-servers")
    said = json.dumps({"accessKey": own.access_key, "secretKey": own.secret_key})
    options = small_options(tmp_path, **ACL_2, inner_client_authentication_credentials=said)
    async with EmbeddedServers(options) as servers, RemotingClient(clock=RealClock(), hooks=[RequestSigner(own)]) as it:
        wire = Wire(servers, it)
        assert (await wire.broker(C.GET_ALL_TOPIC_CONFIG)).code == 0
        assert (await wire.broker(C.AUTH_LIST_USER)).code == 0
        assert b"servers" not in (await wire.broker(C.AUTH_LIST_USER)).body, "nobody changes or takes it"
        user = json.dumps({"username": "servers", "password": "mine"}).encode()
        assert (await wire.broker(C.AUTH_CREATE_USER, {"username": "servers"}, user)).remark == "The user is existed"


@pytest.mark.parametrize("was_a_user_before", [False, True])
async def test_the_first_user_may_be_by_whom_the_servers_sign(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, was_a_user_before: bool
) -> None:
    """As Apache's own settings have it. There is one key of his then, and it is said where nobody changes it."""
    said = json.dumps({"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key})
    if was_a_user_before:
        async with EmbeddedServers(small_options(tmp_path, **ACL_2)):
            pass
    options = small_options(tmp_path, **ACL_2, inner_client_authentication_credentials=said)
    async with EmbeddedServers(options) as servers, RemotingClient(
        clock=RealClock(), hooks=[RequestSigner(ADMIN)]
    ) as client:  # fmt: skip
        wire = Wire(servers, client)
        for name, kind in (("another", "Super"), ("desk", "Normal")):
            user = json.dumps({"username": name, "password": f"secret-of-{name}", "userType": kind}).encode()
            assert (await wire.broker(C.AUTH_CREATE_USER, {"username": name}, user)).code == 0
        assert (await wire.send("departures")).code == 0
        mine = json.dumps({"username": ADMIN.access_key, "password": "mine"}).encode()
        for code in (C.AUTH_UPDATE_USER, C.AUTH_CREATE_USER):
            assert (await wire.broker(code, {"username": ADMIN.access_key}, mine)).code == 16
        assert (await wire.broker(C.AUTH_LIST_USER)).code == 0, "he goes by the key he had"
    assert "nobody can administer users" not in caplog.text


async def test_authentication_alone_lets_every_user_do_what_he_likes_with_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = small_options(tmp_path, **{**ACL_2, "authorization_enabled": False})
    async with EmbeddedServers(options) as servers:
        await give_rights(servers)
        async with Producer("g", name_server=servers.name_server_address, client_options=of(CONSUMER)) as producer:
            await producer.send(Message("anything", b"hello"))
        async with RemotingClient(clock=RealClock()) as client:
            assert (await Wire(servers, client).send("anything")).code == 16
    assert (
        "authorization-enabled is not set: every user may read, write and delete what belongs to others" in caplog.text
    )


async def test_authentication_alone_lets_no_user_take_the_servers_from_the_others(tmp_path: Path) -> None:
    """Who made and changed users could keep all others out, and who registered a broker would get their messages."""
    options = small_options(tmp_path, **{**ACL_2, "authorization_enabled": False})
    async with EmbeddedServers(options) as servers:
        await give_rights(servers)
        async with RemotingClient(clock=RealClock(), hooks=[RequestSigner(PRODUCER)]) as client:
            wire = Wire(servers, client)
            name = CONSUMER.access_key
            new = json.dumps({"username": "new", "password": "secret"}).encode()
            stolen = json.dumps({"username": name, "password": "known to me"}).encode()
            subject = {"subject": f"User:{PRODUCER.access_key}"}
            for code, fields, body in (
                (C.AUTH_CREATE_USER, {"username": "new"}, new),
                (C.AUTH_UPDATE_USER, {"username": name}, stolen),
                (C.AUTH_DELETE_USER, {"username": name}, b""),
                (C.AUTH_CREATE_ACL, subject, b"{}"),
                (C.AUTH_UPDATE_ACL, subject, b"{}"),
                (C.AUTH_DELETE_ACL, subject, b""),
            ):
                refused = await wire.broker(code, fields, body)
                assert (refused.code, "to access Cluster:DefaultCluster" in str(refused.remark)) == (16, True), code
            for code in (C.REGISTER_BROKER, C.UNREGISTER_BROKER):
                refused = await wire.name_server(code, EVIL_BROKER, NO_TOPICS)
                assert (refused.code, "to access Cluster:DefaultCluster" in str(refused.remark)) == (16, True), code
            assert (await wire.broker(C.AUTH_LIST_USER)).code == 0
        async with RemotingClient(clock=RealClock(), hooks=[RequestSigner(ADMIN)]) as client:
            answer = await Wire(servers, client).broker(C.AUTH_CREATE_USER, {"username": "new"}, new)
            assert answer.code == 0, answer.remark


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
async def test_a_new_store_is_its_owners_alone(umask: int, tmp_path: Path) -> None:
    """Who would have to sign for a message at the port does not read it in the files either."""
    folder = tmp_path / "app" / "store"
    before = os.umask(umask)
    try:
        async with (
            EmbeddedServers(small_options(folder, **ACL_2)) as servers,
            Producer("g", name_server=servers.name_server_address, client_options=of(ADMIN)) as producer,
        ):
            await producer.send(Message("anything", b"hello", keys=("k",)))
            await give_rights(servers)
    finally:
        os.umask(before)
    modes = {path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert {"commitlog", "consumequeue/anything", "index", "config/topics.json", "lock"} <= modes.keys()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o777 & ~umask, "others may have theirs beside it"
    private = {name: mode for name, mode in modes.items() if name.startswith(("config/authUsers", "config/askers"))}
    assert {"config/authUsers.json", "config/authUsers.json.crc"} <= private.keys()
    assert set(private.values()) == {0o600}, private
    assert [name for name, mode in modes.items() if mode & 0o022 & umask] == []


def test_options_do_not_show_the_passwords_among_them(tmp_path: Path) -> None:
    said = {**ACL_2, "tls_server_key_password": "secret-of-the-key"}
    assert "secret" not in repr(small_options(tmp_path / "s", **said))


@pytest.mark.parametrize("said", [False, True])
async def test_name_servers_elsewhere_get_nothing_that_is_signed_by_the_servers_own_keys(
    said: bool, tmp_path: Path
) -> None:
    """Whoever gets such a request could send it again, also by another code, which is not signed."""
    heard: list[RemotingCommand] = []

    def hear(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        heard.append(RemotingCommand.request(C.AUTH_LIST_USER, dict(request.ext_fields), request.body))
        return RemotingCommand.response()

    settings = {"inner_client_authentication_credentials": '{"accessKey":"servers","secretKey":"of-all-servers"}'}
    clock = RealClock()
    async with RemotingServer({C.REGISTER_BROKER: hear}, host="127.0.0.1", port=0, clock=clock) as elsewhere:
        options = small_options(
            tmp_path / "store", namesrv_addr=elsewhere.address, **ACL_2, **(settings if said else {})
        )
        async with EmbeddedServers(options) as servers, RemotingClient(clock=clock) as client:
            with anyio.fail_after(PATIENCE):
                await until(lambda: bool(heard))
            assert heard[0].ext_fields.get("AccessKey") == ("servers" if said else None)
            again = await client.request(servers.broker_address, heard[0], timeout=PATIENCE)
            assert (again.code == 0) is said, "keys that are said are known to the others anyway"


@pytest.mark.parametrize("said", [False, True])
async def test_a_broker_that_asks_nobody_to_sign_signs_to_name_servers_that_do(said: bool, tmp_path: Path) -> None:
    own = Credentials(access_key="servers", secret_key="of-all-servers")
    keys = json.dumps({"accessKey": own.access_key, "secretKey": own.secret_key})
    settings = {"inner_client_authentication_credentials": keys}
    with_access = small_options(tmp_path / "one", broker_name="one", **ACL_2, **settings)
    async with EmbeddedServers(with_access) as elsewhere, RemotingClient(
        clock=RealClock(), hooks=[RequestSigner(own)]
    ) as client:  # fmt: skip
        further = {"namesrv_addr": elsewhere.name_server_address, "broker_name": "two"}
        options = small_options(tmp_path / "two", **further, **(settings if said else {}))
        async with (
            EmbeddedServers(options) as servers,
            Producer("g", name_server=servers.name_server_address) as sender,
        ):
            await sender.send(Message("departures", b"hello"))
            known = await Wire(elsewhere, client).route("departures")
            assert ([each["brokerName"] for each in known["brokerDatas"]] if known else []) == (["two"] if said else [])


async def test_a_message_id_that_somebody_made_up_sends_him_nothing_signed(tmp_path: Path) -> None:
    """It names the broker to be asked, and what is signed can be sent again, and for something else."""
    taken: list[RemotingCommand] = []

    def take(_: Connection, request: RemotingCommand) -> RemotingCommand:
        taken.append(request)
        return RemotingCommand.response(1, "taken")

    async with (
        EmbeddedServers(secured("ACL 2.0", tmp_path)) as servers,
        RemotingServer({C.VIEW_MESSAGE_BY_ID: take}, host="127.0.0.1", port=0, clock=RealClock()) as stranger,
        Admin(name_server=servers.name_server_address, client_options=of(ADMIN)) as admin,
        Producer("g", name_server=servers.name_server_address, client_options=of(ADMIN)) as producer,
    ):
        result = await producer.send(Message("departures", b"hello"))
        assert result.offset_msg_id is not None
        assert (await admin.view(result.offset_msg_id)).body == b"hello"
        port = int(stranger.address.rpartition(":")[2])
        made_up = format_offset_msg_id(socket.inet_aton("127.0.0.1"), port, 0)
        with pytest.raises(ClientError, match=f"the name server knows no broker at {stranger.address}"):
            await admin.view(made_up)
        assert taken == []
        async with RemotingClient(clock=RealClock(), hooks=[RequestSigner(ADMIN)]) as client:
            known = {**EVIL_BROKER, "brokerName": "known by its name", "brokerAddr": f"localhost:{port}"}
            answer = await Wire(servers, client).name_server(C.REGISTER_BROKER, known, NO_TOPICS)
            assert answer.code == 0, answer.remark
            with pytest.raises(BrokerError, match="taken"):
                await admin.view(made_up)


@pytest.mark.parametrize(
    "wrong", [{"max-handshakes": "many"}, {"max-handshaks": "1"}, {"max-handshakes": "0"}, {"acl-enable": "true"}, {}]
)
async def test_the_variables_of_a_start_that_fails_show_no_password(tmp_path: Path, wrong: dict[str, str]) -> None:
    """As pytest's --showlocals, and tools that report errors, tell those of each line that an error came through."""
    settings = {"authentication-enabled": "true", "tls-server-key-password": "hunter2-of-the-key", **wrong}
    settings["init-authentication-user"] = json.dumps({"username": "admin", "password": "hunter2-of-the-admin"})
    if not wrong:
        del settings["tls-server-key-password"]
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "authUsers.json").write_text('{"userTable":{"a":{"password":"hunter2-of-the-file"}}}')
    options = EmbeddedOptions(data_dir=tmp_path, port=0, name_server_port=0, broker=settings)
    with pytest.raises((ConfigurationError, StoreCorruptError)) as caught:
        async with EmbeddedServers(options):
            pass
    assert not [line for line in variables_of_ours(caught.value) if "hunter2" in line]
