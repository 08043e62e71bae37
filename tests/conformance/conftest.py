"""Name servers of the embedded servers and of each version of Apache's, for tests that run on all of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from tests.conformance.apache import EACH_VERSION, apache_servers


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["embedded", *EACH_VERSION])
def name_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param != "embedded":
        with apache_servers(folder, request.param) as servers:
            yield servers.name_server
    else:
        with EmbeddedServers.in_thread(EmbeddedOptions(data_dir=folder, port=0, name_server_port=0)) as embedded:
            yield embedded.name_server_address


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex[:12]}"
