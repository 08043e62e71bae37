"""Name servers of the embedded servers and of each version of Apache's, for tests that run on all of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.conformance.acl import AclServers, acl_servers
from tests.conformance.apache import EACH_VERSION
from tests.conformance.servers import EMBEDDED, running_name_server


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", params=[EMBEDDED, *EACH_VERSION])
def name_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_name_server(request.param, tmp_path_factory.mktemp(request.param)) as address:
        yield address


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Whose servers ``name_server`` is of: EMBEDDED, or the version of Apache's."""
    return str(request.node.callspec.params["name_server"])


@pytest.fixture(scope="session", params=EACH_VERSION)
def acl(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclServers]:
    """Apache's servers of each version with access control; who may do what is said by the module that uses them."""
    with acl_servers(
        tmp_path_factory.mktemp(request.param), request.param, traceTopicEnable="true", recallMessageEnable="true"
    ) as servers:  # 4.9.7 knows nothing of recalls
        yield servers


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex[:12]}"
