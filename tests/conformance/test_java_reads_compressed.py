"""Bodies that our producer has compressed, and messages of its batches, as Apache's Java client consumes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.client import Producer
from rocketbox.message import Compression, Message
from tests.conformance.apache import EACH_VERSION
from tests.conformance.java_member import JavaMember
from tests.support.broker.broker_process import BrokerProcess
from tests.support.waiting import until

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]

READ_BY = {"4.9.7": (Compression.NONE, Compression.ZLIB)}  # LZ4 and ZSTD came with 5.0


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_java_consumes_what_is_compressed_and_what_is_batched(version: str, tmp_path: Path) -> None:
    ways = READ_BY.get(version, tuple(Compression))
    with BrokerProcess(tmp_path / "store") as broker:
        async with Producer("desk", name_server=broker.name_server) as producer:
            sent = []
            for way in ways:
                sent += [f"{way.name} small ".ljust(200, "x"), f"{way.name} large ".ljust(100_000, "y")]
                for body in sent[-2:]:
                    await producer.send(Message("T", body.encode(), compression=way))
            sent += [f"of a batch {number}" for number in range(5)]
            await producer.send_batch([Message("T", body.encode()) for body in sent[-5:]])
        with JavaMember(broker.name_server, "T", "java", orderly=False, handler_ms=0, version=version) as member:
            await until(lambda: len([each for each in member.events if each[1] == "begins"]) >= len(sent))
            seen = [body for _, what, body in member.events if what == "begins"]
    assert sorted(seen) == sorted(sent)
