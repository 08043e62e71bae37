"""A store that has failed, or whose disk is full, is a state of its broker: told once, and seen by all who ask."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from rocketbox.clock import RealClock
from rocketbox.embedded import EmbeddedServers, ServersHealth
from rocketbox.errors import RocketBoxError
from rocketbox.protocol.codes import PermName, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from rocketbox.storage.file_system import _RealFile
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.broker_process import BrokerProcess
from tests.support.broker.wire import Wire, embedded, small_options
from tests.support.framework.services import ServiceMaker
from tests.support.loops import anyio_backend as anyio_backend
from tests.support.waiting import PATIENCE, until


class Disk(MemoryStorage):
    """Fails the syncs of the commit log, or has no room for more of it, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.full = False

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if "/commitlog/" in path:
            if self.broken and name == "sync":
                raise OSError(errno.EIO, "the disk is broken")
            if self.full and name in {"create", "allocate"}:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().record(name, path, offset, size)


async def writable(wire: Wire) -> bool:
    route = await wire.route("t")
    assert route is not None
    return bool(route["queueDatas"][0]["perm"] & PermName.WRITE)


async def until_writable(wire: Wire, wanted: bool) -> None:
    with anyio.fail_after(PATIENCE):
        while await writable(wire) != wanted:
            await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_a_failure_takes_the_write_permission_back_and_reads_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    async with embedded(tmp_path, disk) as wire:
        assert (await wire.send("t", b"kept")).code == 0
        assert await writable(wire)
        disk.broken = True
        codes: list[int] = []

        async def send() -> None:
            codes.append((await wire.send("t", b"lost")).code)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(send)
        assert codes == [ResponseCode.SERVICE_NOT_AVAILABLE] * 20
        await until_writable(wire, False)
        disk.broken = False
        assert (await wire.send("t", b"refused")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert [message.body for message in await wire.messages("t")] == [b"kept"]
        assert "the disk is broken" in str(wire.servers.health.failure)
        with anyio.fail_after(PATIENCE):
            await wire.servers.failed()
        assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


@pytest.mark.anyio
async def test_a_full_disk_takes_the_write_permission_back_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    heard: list[ServersHealth] = []
    small: dict[str, Any] = {"mapped_file_size_commit_log": 64 << 10, "max_message_size": 10 << 10}
    async with embedded(tmp_path, disk, **{name.replace("_", "-"): size for name, size in small.items()}) as wire:
        wire.servers.on_health_change.append(heard.append)
        assert (await wire.send("t", b"kept")).code == 0
        disk.full = True
        kept = 1
        while (code := (await wire.send("t", bytes(10_000))).code) == 0:  # as long as there is room in the file
            kept += 1
        assert code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert {(await wire.send("t", b"refused")).code for _ in range(5)} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        await until_writable(wire, False)
        assert wire.servers.health.failure is None
        assert "no room" in str(wire.servers.health.refusal)
        assert len(await wire.messages("t")) == kept
        disk.full = False
        await until_writable(wire, True)
        assert wire.servers.health == ServersHealth()
        assert (await wire.send("t", b"taken")).code == 0
        assert [message.body for message in await wire.messages("t")][kept:] == [b"taken"]
        assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    assert [health.refusal is None for health in heard] == [False, True]


def send(address: str) -> int:
    """The code of the answer to a send, from a loop of its own."""

    async def ask() -> int:
        fields = {
            "a": "group", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
            "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        async with RemotingClient(clock=RealClock()) as client:
            request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields, b"x")
            return (await client.request(address, request, timeout=20)).code

    return anyio.run(ask)


def test_the_health_of_servers_in_a_thread_is_read_outside_of_it(tmp_path: Path) -> None:
    disk = Disk()
    with EmbeddedServers.in_thread(small_options(tmp_path), storage=disk) as servers:
        assert send(servers.broker_address) == 0
        assert servers.health == ServersHealth()
        disk.broken = True
        assert send(servers.broker_address) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the disk is broken" in str(servers.health.failure)
        assert servers.health.refusal == servers.health.failure


BREAKING = """
import errno, os, sys
from pathlib import Path
from typing import Any
from rocketbox.storage import file_system
from rocketbox.cli.app import app

original = file_system._RealFile.sync

def sync(file):
    if "commitlog" in file.path and Path(sys.argv[1]).exists():
        raise OSError(errno.EIO, "the disk is broken")
    original(file)

file_system._RealFile.sync = sync
app(sys.argv[2:])
"""


def breaking(tmp_path: Path) -> tuple[Path, list[str]]:
    """A file that breaks the disk by being there, and a command that is ``rocketbox`` on that disk."""
    script, trigger = tmp_path / "breaking.py", tmp_path / "broken"
    script.write_text(BREAKING)
    return trigger, [sys.executable, str(script), str(trigger)]


def test_the_command_ends_with_status_1_when_it_is_stopped_after_a_failure(tmp_path: Path) -> None:
    trigger, command = breaking(tmp_path)
    with BrokerProcess(tmp_path / "store", command=command) as broker:
        assert send(broker.broker) == 0
        trigger.touch()
        assert send(broker.broker) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert send(broker.broker) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert broker.process.poll() is None
        assert broker.stop() == 1
    assert "rocketbox broker ended after a failure of its store" in "".join(broker.errors)


def test_the_command_ends_at_once_when_that_is_asked_for(tmp_path: Path) -> None:
    trigger, command = breaking(tmp_path)
    with BrokerProcess(tmp_path / "store", "--exit-on-failure", command=command) as broker:
        trigger.touch()
        assert send(broker.broker) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert broker.wait() == 1


@pytest.mark.anyio
async def test_a_service_with_embedded_servers_stays_up_and_is_not_ready(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = service(
        """
        from rocketbox import RocketBox, RocketMQTemplate

        app = RocketBox("flight-desk", scan=[__name__])
        """
    )

    def sync(file: _RealFile) -> None:
        if "commitlog" in file.path:
            raise OSError(errno.EIO, "the disk is broken")

    async with module.app as app:
        await app.template.send("departures", "UA1")
        assert app.is_ready
        assert app.not_ready_because == []
        monkeypatch.setattr(_RealFile, "sync", sync)
        with pytest.raises(RocketBoxError):
            await app.template.send("departures", "UA2")
        await until(lambda: not app.is_ready)
        (reason,) = app.not_ready_because
        assert reason.startswith("the embedded broker takes no messages: ")
        assert "the disk is broken" in reason
    assert app.not_ready_because == ["it does not run"]
