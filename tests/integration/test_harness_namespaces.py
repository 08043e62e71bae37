"""A secured service in the harness: tests name topics and groups of a namespace as it does, and need no files."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.testing import Harness
from tests.support.framework.desk_and_tower import DESK_AND_TOWER
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def desk(service: ServiceMaker, said: str) -> ModuleType:
    return service(DESK_AND_TOWER, f"rocketmq.name-server: 'ns:9876'\nrocketmq.producer.group: desk\n{said}")


@pytest.mark.parametrize("said", ["", "rocketmq.namespace: team\n", "rocketmq.namespace-v2: team\n"])
@pytest.mark.parametrize("real", [False, True])
async def test_topics_and_groups_have_plain_names(service: ServiceMaker, tmp_path: Path, said: str, real: bool) -> None:
    module = desk(service, said)
    with EmbeddedServers.in_thread(EmbeddedOptions(data_dir=tmp_path / "d", port=0, name_server_port=0)) as servers:
        async with Harness(module.app, name_server=servers.name_server_address if real else None) as harness:
            await harness.send("departures", "UA1")
            await harness.send("departures", "bad")
            await harness.drain()
            assert module.seen == ["UA1"]
            assert harness.sent("alerts").one(str) == "UA1"
            (letter,) = harness.dead_letters("desk")
            assert (letter.group, letter.payload(str), str(letter.why)) == ("desk", "bad", "no flight")
            assert sum(each.consumed for each in harness.offsets("desk")) == 2
            assert sum(each.lag for each in harness.offsets("desk")) == 0
            if not real:
                assert letter.message.topic == "%DLQ%desk"
                await harness.redeliver(harness.sent("alerts")[0])
                await harness.redeliver(harness.calls("alert")[0])
                await harness.drain()
                assert module.seen == ["UA1"] * 3
            await harness.fresh()
            assert not harness.offsets("desk")


async def test_a_group_of_another_namespace_gets_nothing_of_this_one(service: ServiceMaker) -> None:
    module = desk(service, "rocketmq.namespace: team\nrocketmq.consumer.listeners.tower.namespace: other\n")
    async with Harness(module.app) as harness:
        await harness.send("departures", "UA1")
        await harness.send("departures", "bad")
        await harness.drain()
        assert harness.sent("alerts").one(str) == "UA1"
        assert module.seen == [], "alerts of team are not those of other"
        assert [letter.group for letter in harness.dead_letters("desk")] == ["desk"]


async def test_files_of_tls_and_keys_that_are_only_in_production_are_left_out(service: ServiceMaker) -> None:
    module = desk(
        service,
        "rocketmq.credentials-file: /run/nowhere/keys.yaml\n"
        "rocketmq.tls: {enable: true, ca-file: /run/nowhere/ca.crt, cert-file: /run/nowhere/tls.crt}\n",
    )
    settings = {"rocketmq": {"tls": {"enable": False}, "credentials-file": None}}
    async with Harness(module.app, settings=settings) as harness:
        await harness.send("departures", "UA1")
        await harness.drain()
        assert module.seen == ["UA1"]
