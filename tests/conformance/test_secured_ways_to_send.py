"""Each way to send on Apache's servers with TLS alone, users who may just what they need, and a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import anyio
import pytest

from rocketbox.client import Admin, ClientOptions
from tests.conformance.acl import AclServers, acl_servers, user
from tests.conformance.apache import EACH_VERSION
from tests.conformance.secured import TlsFiles
from tests.support.client.ways_to_send import OF_CLERKS, OF_SELLERS, each_way_to_send

pytestmark = [pytest.mark.apache, pytest.mark.anyio]

SELLER, CLERK = user("the-seller"), user("the-clerk")


@pytest.fixture(scope="module", params=EACH_VERSION)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclServers]:
    """They ask for the ends of transactions soon, though not sooner than Apache's write them down."""
    folder = tmp_path_factory.mktemp(request.param)
    tls = TlsFiles(tmp_path_factory.mktemp("tls"))
    with acl_servers(
        folder, request.param, tls=tls, transactionTimeOut="4000", transactionCheckInterval="3000",
        recallMessageEnable="true", traceTopicEnable="true",
    ) as running:  # fmt: skip
        anyio.run(prepare, running)
        yield running


async def prepare(servers: AclServers) -> None:
    await servers.let(SELLER, OF_SELLERS | OF_SELLERS.within("team"))
    await servers.let(CLERK, OF_CLERKS | OF_CLERKS.within("team"))
    for namespace in (None, "team"):
        options = replace(servers.administrator, namespace=namespace)
        async with Admin(servers.name_server, client_options=options) as admin:
            for topic in ("departures", "quotes"):
                await admin.create_topic(topic, queues=2)
    await servers.until_known(CLERK)


@pytest.mark.parametrize("namespace", ["namespace", "namespace_v2"])
async def test_each_way_to_send_with_tls_least_rights_and_a_namespace(servers: AclServers, namespace: str) -> None:
    def of(who: ClientOptions) -> ClientOptions:
        return replace(who, namespace="team") if namespace == "namespace" else replace(who, namespace_v2="team")

    seller, clerk = (of(replace(servers.administrator, credentials=keys)) for keys in (SELLER, CLERK))
    await each_way_to_send(servers.name_server, seller, clerk, has_timers=not servers.has_acl_1)
