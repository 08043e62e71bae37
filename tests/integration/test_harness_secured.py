"""The harness on real servers with TLS and access control: it asks them as the service's own users do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbox.client import Admin, ClientOptions, Credentials, CredentialsProvider, TlsOptions
from rocketbox.embedded import EmbeddedServers
from rocketbox.testing import Harness, HarnessError
from tests.support.broker.access import ADMIN, keys_of
from tests.support.broker.wire import small_options
from tests.support.certificates import authority, certificate, write
from tests.support.framework.desk_and_tower import DESK_AND_TOWER
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SENDER, READER = keys_of("the-sender"), keys_of("the-reader")
PLAIN_ACL = f"""
accounts:
- {{accessKey: {ADMIN.access_key}, secretKey: {ADMIN.secret_key}, admin: true}}
- {{accessKey: the-sender, secretKey: {SENDER.secret_key}, topicPerms: [departures=PUB, alerts=PUB]}}
- accessKey: the-reader
  secretKey: {READER.secret_key}
  topicPerms: [departures=SUB, alerts=SUB, "%DLQ%desk=SUB", "%DLQ%tower=SUB"]
  groupPerms: [desk=SUB, tower=SUB, TOOLS_CONSUMER=SUB]
"""
VAULT = """
class Vault:
    async def credentials(self) -> Credentials:
        raise AssertionError("a test has no vault")

@bean
def vault() -> CredentialsProvider:
    return Vault()
"""


class Keys:
    async def credentials(self) -> Credentials:
        return ADMIN


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    file = tmp_path / "ca.pem"
    file.write_bytes(authority().certificate)
    return file


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "plain_acl.yml").write_text(PLAIN_ACL)
    cert, key = write(tmp_path, "server", certificate())
    options = small_options(
        tmp_path / "store",
        acl_enable=True,
        acl_file=str(tmp_path / "plain_acl.yml"),
        tls_server_mode="enforcing",
        tls_server_cert_path=str(cert),
        tls_server_key_path=str(key),
    )
    with EmbeddedServers.in_thread(options) as servers:
        yield servers.name_server_address


async def test_it_asks_as_the_listeners_and_the_producer_do(
    service: ServiceMaker, name_server: str, ca_file: Path
) -> None:
    """Who may read may look at queues and ends, and nobody else needs more than the service itself has."""
    settings = f"""
rocketmq:
  name-server: ns:9876
  tls: {{enable: true, ca-file: {ca_file}}}
  producer: {{group: desk, access-key: the-sender, secret-key: {SENDER.secret_key}}}
  consumer: {{access-key: the-reader, secret-key: {READER.secret_key}}}
"""
    module = service(DESK_AND_TOWER, settings)
    client = ClientOptions(credentials=ADMIN, tls_enable=True, tls=TlsOptions(ca_file=ca_file))
    async with Admin(name_server, client_options=client) as admin:
        for topic in ("departures", "alerts"):
            await admin.create_topic(topic)
    async with Harness(module.app, name_server=name_server) as harness:
        await harness.send("departures", "UA1")
        await harness.send("departures", "bad")
        await harness.drain()
        assert module.seen == ["UA1"]
        (letter,) = harness.dead_letters("desk")
        assert (letter.payload(str), str(letter.why)) == ("bad", "no flight")
        await harness.fresh()
        assert harness.offsets("desk") == []


async def test_keys_of_a_bean_are_given_to_the_harness(service: ServiceMaker, name_server: str, ca_file: Path) -> None:
    settings = f"""
rocketmq:
  name-server: ns:9876
  tls: {{enable: true, ca-file: {ca_file}}}
  producer: {{group: desk}}
"""
    module = service(DESK_AND_TOWER + VAULT, settings)
    with pytest.raises(HarnessError, match=r"bean vault .*gives the keys when the service starts.*beans={Credentials"):
        async with Harness(module.app, name_server=name_server):
            raise AssertionError("it started")
    async with Harness(module.app, name_server=name_server, beans={CredentialsProvider: Keys()}) as harness:
        await harness.send("departures", "UA1")  # whose topic was made with these keys
        await harness.drain()
        assert module.seen == ["UA1"]
