"""The embedded servers with TLS: what their settings ask for, and that broker and clients work with it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from rocketbox import RocketBox
from rocketbox.cli.certificates import Certificate
from rocketbox.client import ClientOptions, ConsumerOptions, Producer, PushConsumer, TlsOptions
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import AccessDeniedError, ConfigurationError, NoRouteError
from rocketbox.message import ConsumeFromWhere, ConsumeMode, Message, MessageExt
from rocketbox.remoting.acl import Credentials
from tests.support.certificates import authority, certificate, encrypted, write
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Files:
    """What a company's CA would give out."""

    def __init__(self, folder: Path) -> None:
        self.ca, _ = write(folder, "ca", authority())
        self.cert, self.key = write(folder, "server", certificate())
        self.client_cert, self.client_key = write(folder, "client", certificate("client"))
        self.settings: dict[str, object] = {
            "tls-server-cert-path": str(self.cert), "tls-server-key-path": str(self.key),
        }  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def options(folder: Path, **settings: Any) -> EmbeddedOptions:
    said = {name.replace("_", "-"): str(value) for name, value in settings.items()}
    return EmbeddedOptions(data_dir=folder / "store", port=0, name_server_port=0, broker=said)


def with_tls(tls: TlsOptions | None) -> ClientOptions:
    return ClientOptions(tls_enable=tls is not None, tls=tls, missing_route_interval=0.05)


async def goes_through(name_server: str, client: ClientOptions) -> None:
    """A message is sent and consumed."""
    came = anyio.Event()

    async def handle(batch: list[MessageExt]) -> None:
        assert [message.body for message in batch] == [b"hello"]
        came.set()

    first = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    with anyio.fail_after(PATIENCE):
        async with (
            Producer("p", name_server=name_server, client_options=client) as producer,
            PushConsumer("g", name_server=name_server, client_options=client, options=first) as consumer,
        ):
            await producer.send(Message("secrets", b"hello"))
            await consumer.subscribe("secrets", "*", handle)
            await came.wait()


async def test_messages_pass_under_tls_and_nothing_without(tmp_path: Path, files: Files) -> None:
    said = replace(options(tmp_path), broker=files.settings)
    async with EmbeddedServers(said) as servers:
        await goes_through(servers.name_server_address, with_tls(TlsOptions(ca_file=files.ca)))
        async with Producer("p", name_server=servers.name_server_address, client_options=with_tls(None)) as plain:
            with pytest.raises(NoRouteError):
                await plain.send(Message("secrets", b"never"))


async def test_clients_show_certificates_and_so_does_the_broker_to_its_name_server(
    tmp_path: Path, files: Files
) -> None:
    locked = tmp_path / "locked.pem"
    locked.write_bytes(encrypted(files.key.read_bytes(), "of-the-key"))
    said = options(
        tmp_path, tls_server_cert_path=files.cert, tls_server_key_path=locked, tls_server_key_password="of-the-key",
        tls_server_trust_cert_path=files.ca, tls_server_need_client_auth="require",
    )  # fmt: skip
    mine = TlsOptions(ca_file=files.ca, cert_file=files.client_cert, key_file=files.client_key)
    async with EmbeddedServers(said) as servers:
        await goes_through(servers.name_server_address, with_tls(mine))
        stranger = with_tls(TlsOptions(ca_file=files.ca))
        async with Producer("p", name_server=servers.name_server_address, client_options=stranger) as other:
            with pytest.raises(NoRouteError, match="certificate"):
                await other.send(Message("secrets", b"never"))


@pytest.mark.parametrize("here", [False, True], ids=["TLS is missing here", "another certificate is there"])
async def test_a_broker_is_told_by_its_own_settings_why_a_name_server_elsewhere_is_not_told_of_it(
    here: bool, tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = write(tmp_path, "other", certificate(nth=1))
    own = files.settings if here else {}
    elsewhere = options(tmp_path / "elsewhere", tls_server_cert_path=cert, tls_server_key_path=key)
    async with EmbeddedServers(elsewhere) as servers:
        said = options(tmp_path, namesrv_addr=servers.name_server_address)
        async with EmbeddedServers(replace(said, broker={**said.broker, **own})):
            await until(lambda: "was not told of this broker" in caplog.text)
    (why,) = {record.getMessage() for record in caplog.records if "was not told of this broker" in record.getMessage()}
    assert "tls-server-cert-path" in why
    assert "rocketmq.tls" not in why


async def test_a_permissive_server_serves_those_without_too(tmp_path: Path, files: Files) -> None:
    said = replace(options(tmp_path), broker={**files.settings, "tls-server-mode": "permissive"})
    async with EmbeddedServers(said) as servers:
        await goes_through(servers.name_server_address, with_tls(None))
    async with EmbeddedServers(said) as servers:
        await goes_through(servers.name_server_address, with_tls(TlsOptions(ca_file=files.ca)))


async def test_a_certificate_is_renewed_while_broker_and_clients_go_on(
    tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with EmbeddedServers(replace(options(tmp_path), broker=files.settings)) as servers:
        client = with_tls(TlsOptions(ca_file=files.ca))
        async with Producer("p", name_server=servers.name_server_address, client_options=client) as producer:
            await producer.send(Message("before", b"x"))
            write(tmp_path, "server", certificate(nth=1))
            await until(lambda: "new connections use them" in caplog.text)
            await producer.send(Message("behind", b"x"))  # a new topic: the broker tells the name server of it
        await goes_through(servers.name_server_address, client)


async def test_certificate_and_ca_are_replaced_under_sends_and_an_orderly_group_and_nothing_is_lost(
    tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """At first the certificate; then the CA, as it goes: clients trust both, servers show the new one, the old goes."""
    caplog.set_level(logging.INFO)
    acknowledged: list[bytes] = []
    seen: list[bytes] = []
    is_over = anyio.Event()
    client = with_tls(TlsOptions(ca_file=files.ca))

    async def handle(batch: list[MessageExt]) -> None:
        seen.extend(message.body for message in batch)

    async def send(producer: Producer) -> None:
        while not is_over.is_set():
            body = b"%d" % len(acknowledged)
            await producer.send(Message("departures", body, hash_key="one"))
            acknowledged.append(body)

    async def some_more() -> None:
        """Go on until messages were sent and consumed."""
        sent = len(acknowledged) + 20
        await until(lambda: len(acknowledged) >= sent and acknowledged[sent - 1] in seen, "messages go on")

    def trust(*authorities: str) -> None:
        new = files.ca.with_suffix(".new")
        new.write_bytes(b"".join(authority(name).certificate for name in authorities))
        new.replace(files.ca)

    consumes = ConsumerOptions(consume_mode=ConsumeMode.ORDERLY, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with EmbeddedServers(replace(options(tmp_path), broker=files.settings)) as servers:
        address = servers.name_server_address

        async def show(made: Certificate) -> None:
            """Have the servers show it, on connections that are all made anew."""
            told = caplog.text.count("new connections use them")
            write(tmp_path, "server", made)
            await until(lambda: caplog.text.count("new connections use them") > told, "it is loaded")
            for connection in [*servers.broker.server.connections, *servers.name_server.server.connections]:
                connection.abort()
            await some_more()

        async with (
            Producer("p", name_server=address, client_options=client) as producer,
            PushConsumer("board", name_server=address, client_options=client, options=consumes) as consumer,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, producer)
                await until(lambda: acknowledged, "the topic")
                await consumer.subscribe("departures", "*", handle)
                await some_more()
                await show(certificate(nth=1))
                trust("test CA", "another CA")
                await show(certificate(by="another CA"))
                trust("another CA")
                await show(certificate(by="another CA", nth=1))
                is_over.set()
            await until(lambda: set(acknowledged) <= set(seen), "nothing is lost")
    assert acknowledged == [b"%d" % number for number in range(len(acknowledged))]
    firsts = list(dict.fromkeys(seen))
    assert firsts == sorted(firsts, key=int), "the order is kept"


def test_what_is_wrong_is_said_before_anything_listens(tmp_path: Path, files: Files) -> None:
    def told(**settings: Any) -> list[str]:
        with pytest.raises(ConfigurationError) as caught:
            options(tmp_path, **settings).broker_options()
        assert "of-another-key" not in str(caught.value)
        return [finding.what.removeprefix("rocketbox.embedded.") for finding in caught.value.findings]

    pair = {"tls_server_cert_path": files.cert, "tls_server_key_path": files.key}
    assert told(tls_server_mode="enforcing") == ["tls-server-mode is enforcing, and there is no certificate"]
    assert told(tls_server_key_path=files.key)[0].startswith(
        "there is rocketbox.embedded.tls-server-key-path set, and "
    )
    assert told(**pair, tls_server_need_client_auth="require") == [
        "tls-server-need-client-auth is require, and nothing says whose certificates are taken"
    ]
    assert told(tls_server_cert_path=files.cert, tls_server_key_path=files.client_key) == [
        f"tls-server-key-path is {files.client_key}, which is not the key of the certificate in {files.cert}"
    ]
    other, _ = write(tmp_path, "other", authority("another CA"))
    (refused,) = told(**pair, tls_server_need_client_auth="require", tls_server_trust_cert_path=other)
    assert refused.startswith(f"the certificate in {files.cert}, which the broker shows its name server, is refused: ")
    required = {**pair, "tls_server_need_client_auth": "require", "tls_server_trust_cert_path": files.ca}
    both = told(**required, tls_server_mode="permissive")
    assert "whoever speaks no TLS is served without any certificate" in both[0]
    assert told(tls_server_mode="maybe")[0].startswith("tls-server-mode is 'maybe': none of DISABLED, PERMISSIVE")
    options(tmp_path, tls_server_mode="disabled", tls_server_cert_path=tmp_path / "nothing").broker_options()
    secret = options(tmp_path, **pair, tls_server_key_password="of-another-key")
    assert "of-another-key" not in repr(secret.broker_options())


async def test_a_service_is_secured_by_its_settings_alone(service: ServiceMaker, tmp_path: Path, files: Files) -> None:
    module = service(
        """
import anyio
from rocketbox import ConsumeFromWhere, RocketBox, rocketmq_listener

app = RocketBox("desk", scan=[__name__])
seen = anyio.Event()

@rocketmq_listener(topic="departures", consumer_group="board", consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
async def on_departure(text: str) -> None:
    seen.set()
""",
        f"""
rocketmq:
  name-server: embedded
  producer.group: desk
  tls: {{enable: true, ca-file: {files.ca}}}
rocketbox.embedded:
  port: 0
  name-server-port: 0
  data-dir: {tmp_path / "store"}
  tls-server-cert-path: {files.cert}
  tls-server-key-path: {files.key}
""",
    )
    with anyio.fail_after(PATIENCE):
        async with module.app as app:
            await app.template.send("departures", "UA1545")
            await module.seen.wait()


async def test_users_and_tls_let_other_machines_reach_the_servers(
    tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    user = Credentials(access_key="administrator", secret_key="secret-of-the-administrator")
    first = json.dumps({"username": user.access_key, "password": user.secret_key})
    said = {
        **files.settings,
        "authentication-enabled": True,
        "authorization-enabled": True,
        "init-authentication-user": first,
        "broker-ip1": "127.0.0.1",
    }
    async with EmbeddedServers(replace(options(tmp_path), host="0.0.0.0", broker=said)) as servers:
        port = servers.name_server_address.rpartition(":")[2]
        client = replace(with_tls(TlsOptions(ca_file=files.ca)), credentials=user)
        await goes_through(f"127.0.0.1:{port}", client)
        unsigned = with_tls(TlsOptions(ca_file=files.ca))
        async with Producer("p", name_server=f"127.0.0.1:{port}", client_options=unsigned) as stranger:
            with pytest.raises(AccessDeniedError):
                await stranger.send(Message("secrets", b"never"))
    assert "insecure" not in caplog.text


@pytest.mark.parametrize(
    ("trusted", "refused"),
    [
        ("globalWhiteRemoteAddresses: ['*']", True),
        ("accounts: [{accessKey: RocketMQ, secretKey: 12345678, whiteRemoteAddress: '*.*.*.*'}]", True),
        ("globalWhiteRemoteAddresses: [10.*]", False),
    ],
)
async def test_accounts_that_everybody_has_protect_nothing(
    trusted: str, refused: bool, tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """Where other machines reach the servers, TLS and a file that trusts every address are not both."""
    (tmp_path / "plain_acl.yml").write_text(trusted)
    said = {
        **files.settings,
        "acl-enable": True,
        "acl-file": str(tmp_path / "plain_acl.yml"),
        "broker-ip1": "127.0.0.1",
    }
    exposed = replace(options(tmp_path), host="0.0.0.0", broker=said)
    if refused:
        with pytest.raises(ConfigurationError, match="trusts every address"):
            async with EmbeddedServers(exposed):
                pass
        exposed = replace(exposed, insecure=True)
    async with EmbeddedServers(exposed):
        assert ("trusts every address" in caplog.text) is refused


@pytest.mark.parametrize(
    "trusted",
    [
        "globalWhiteRemoteAddresses: ['*']",
        "accounts: [{accessKey: RocketMQ, secretKey: 12345678, whiteRemoteAddress: '*'}]",
    ],
)
async def test_accounts_that_are_read_again_let_no_more_in_than_at_the_start(
    trusted: str, tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "plain_acl.yml"
    account = "accounts: [{accessKey: RocketMQ, secretKey: 12345678, admin: true}]"
    file.write_text(account)
    said = {**files.settings, "acl-enable": True, "acl-file": str(file), "broker-ip1": "127.0.0.1"}
    async with EmbeddedServers(replace(options(tmp_path), host="0.0.0.0", broker=said)) as servers:
        access = servers.broker.access
        assert access is not None
        accounts = access.control.accounts
        file.write_text(trusted)
        await until(lambda: "those before stay" in caplog.text)
        assert "trusts every address" in caplog.text
        assert not accounts.trusts("10.0.0.1", "RocketMQ")
        assert accounts.find("RocketMQ") is not None
        file.write_text(account.replace("RocketMQ", "RocketMQ2"))
        await until(lambda: accounts.find("RocketMQ2") is not None)


async def test_each_start_says_aloud_that_certificates_are_not_verified(
    service: ServiceMaker, tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    source = "from rocketbox import RocketBox\n\napp = RocketBox('desk', scan=[__name__])\n"
    settings = f"""
rocketmq:
  name-server: embedded
  producer.group: desk
  tls: {{enable: true, VERIFY}}
rocketbox.embedded:
  port: 0
  name-server-port: 0
  data-dir: {tmp_path / "store"}
  mapped-file-size-commit-log: 1MB
  tls-server-cert-path: {files.cert}
  tls-server-key-path: {files.key}
"""

    async def warnings(app: RocketBox) -> list[tuple[str, str]]:
        caplog.clear()
        async with app:
            pass
        return [(each.levelname, each.message) for each in caplog.records if "not verified" in each.message]

    unverified = service(source, settings.replace("VERIFY", "verify: false")).app
    told = (
        "WARNING",
        "TLS certificates of servers are not verified (rocketmq.tls.verify is false): whoever is between can read and "
        "change everything",
    )
    assert [await warnings(unverified) for _ in range(2)] == [[told], [told]]
    verified = service(source, settings.replace("VERIFY", f"ca-file: {files.ca}")).app
    assert await warnings(verified) == []


def test_clients_without_tls_of_embedded_servers_that_speak_nothing_else_are_a_finding(
    service: ServiceMaker, tmp_path: Path, files: Files
) -> None:
    source = "from rocketbox import RocketBox\n\napp = RocketBox('desk', scan=[__name__])\n"
    settings = f"""
rocketmq:
  name-server: embedded
  producer.group: desk
  TLS
rocketbox.embedded:
  data-dir: {tmp_path / "store"}
  tls-server-cert-path: {files.cert}
  tls-server-key-path: {files.key}
"""
    (finding,) = service(source, settings.replace("TLS", "")).app.look().findings
    assert "speak TLS alone (rocketbox.embedded.tls-server-cert-path), and rocketmq.tls.enable is not true" in (
        finding.what
    )
    assert "rocketbox.yaml:7" in str(finding.where)
    encrypted_ = settings.replace("TLS", f"tls: {{enable: true, ca-file: {files.ca}}}")
    assert service(source, encrypted_).app.look().findings == []
    permissive = settings.replace("TLS", "") + "  tls-server-mode: permissive\n"
    assert service(source, permissive).app.look().findings == []
