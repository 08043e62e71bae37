"""Each way to send on the embedded servers with TLS alone, users who may just what they need, and a namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.client import Admin, ClientOptions, TlsOptions
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from tests.support.broker.access import ADMIN, keys_of
from tests.support.broker.rights import account, plain_acl
from tests.support.certificates import authority, certificate, write
from tests.support.client.ways_to_send import OF_CLERKS, OF_SELLERS, each_way_to_send

pytestmark = pytest.mark.anyio

SELLER, CLERK = keys_of("the-seller"), keys_of("the-clerk")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_each_way_to_send_with_tls_least_rights_and_a_namespace(tmp_path: Path) -> None:
    ca, _ = write(tmp_path, "ca", authority())
    cert, key = write(tmp_path, "server", certificate())
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        plain_acl([account(SELLER, OF_SELLERS.within("team")), account(CLERK, OF_CLERKS.within("team"))])
    )
    broker: dict[str, object] = {
        "tls-server-cert-path": str(cert), "tls-server-key-path": str(key), "allocate-ahead": 0,
        "trace-topic-enable": True, "acl-enable": True, "acl-file": str(accounts),
        "transaction-time-out": 500, "transaction-check-interval": 100,
    }  # fmt: skip
    options = EmbeddedOptions(data_dir=tmp_path / "store", port=0, name_server_port=0, broker=broker)
    seller, clerk, admin = (
        ClientOptions(credentials=keys, namespace="team", tls_enable=True, tls=TlsOptions(ca_file=ca))
        for keys in (SELLER, CLERK, ADMIN)
    )
    async with EmbeddedServers(options) as servers:
        async with Admin(servers.name_server_address, client_options=admin) as making:
            for topic in ("departures", "quotes"):
                await making.create_topic(topic, queues=2)
        await each_way_to_send(servers.name_server_address, seller, clerk)
