"""The embedded servers of a service whose start is cancelled."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
import pytest

from rocketbox.autoconfigure.embedded import embedded_servers
from rocketbox.autoconfigure.machine import Machine
from rocketbox.autoconfigure.properties import RocketBoxProperties
from rocketbox.autoconfigure.service import Service
from rocketbox.client.cached_bytes import CachedBytes
from rocketbox.embedded import ServersInThread

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_servers_whose_start_was_cancelled_do_not_stay_behind(
    anyio_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    started: list[ServersInThread] = []
    enter = ServersInThread.__enter__

    def enter_when_told(servers: ServersInThread) -> ServersInThread:
        begun.set()
        go_on.wait(10)
        started.append(enter(servers))
        return servers

    monkeypatch.setattr(ServersInThread, "__enter__", enter_when_told)

    async def use() -> None:
        settings = {"data-dir": tmp_path, "port": 0, "name-server-port": 0}
        properties = RocketBoxProperties.model_validate({"embedded": settings})
        service = Service("desk", Machine(), lambda key: None, CachedBytes())
        async with asynccontextmanager(embedded_servers)(properties, service):
            raise AssertionError("cancelled before")

    starting = asyncio.ensure_future(use())
    await anyio.to_thread.run_sync(begun.wait)
    starting.cancel()  # as asyncio.timeout() does it, which no scope of anyio's keeps away
    for _ in range(5):
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await anyio.to_thread.run_sync(int)
    assert len(started) == 1
    assert "rocketbox-embedded" not in {thread.name for thread in threading.enumerate()}
