"""Start and stop of the embedded servers: what survives, what is refused, and a thread of their own."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import socket
import threading
from pathlib import Path

import anyio
import pytest

from rocketbox.broker.options import read_broker_options
from rocketbox.clock import RealClock
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers, missing_protection
from rocketbox.errors import ClientStateError, ConfigurationError, Finding, RemotingError, StoreLockedError
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.wire import SMALL_FILES, embedded, small_options
from tests.support.loops import needs_uvloop
from tests.support.waiting import PATIENCE, until


@pytest.mark.anyio
async def test_topics_groups_offsets_and_messages_survive_a_restart(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("t", b"kept", queue=1, d=2)
        await wire.heartbeat("g", {"t": "*"})
        update = {"consumerGroup": "g", "topic": "t", "queueId": 1, "commitOffset": 1}
        assert (await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, update)).code == 0
    saved = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())
    assert saved["offsetTable"] == {"t@g": {"1": 1}}
    groups = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
    assert groups["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 16
    async with embedded(tmp_path, auto_create_topic_enable=False, auto_create_subscription_group=False) as wire:
        assert [message.body for message in await wire.messages("t", queue=1, group="g")] == [b"kept"]
        query = {"consumerGroup": "g", "topic": "t", "queueId": 1}
        assert (await wire.broker(RequestCode.QUERY_CONSUMER_OFFSET, query)).ext_fields["offset"] == "1"
        route = await wire.route("t")
        assert route is not None
        assert route["queueDatas"][0]["writeQueueNums"] == 2
        assert await wire.route("%RETRY%g") is not None
        assert (await wire.send("t", b"next", queue=1)).ext_fields["queueOffset"] == "1"


@pytest.mark.anyio
async def test_offsets_are_written_while_the_broker_runs(tmp_path: Path) -> None:
    async with embedded(tmp_path, flush_consumer_offset_interval=50) as wire:
        await wire.send("t")
        update = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 1}
        await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, update)
        file = tmp_path / "config" / "consumerOffset.json"
        await until(file.exists, "the file is there")
        assert json.loads(file.read_text())["offsetTable"] == {"t@g": {"0": 1}}
        await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, {**update, "queueId": 1, "commitOffset": 7})
        both = {"t@g": {"0": 1, "1": 7}}
        await until(lambda: json.loads(file.read_text())["offsetTable"] == both, "what came later is written as well")


@pytest.mark.anyio
async def test_a_taken_port_is_a_finding_with_the_settings_name(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for options, key in (
            (EmbeddedOptions(data_dir=tmp_path, port=port, name_server_port=0, broker=SMALL_FILES), "port"),
            (EmbeddedOptions(data_dir=tmp_path, port=0, name_server_port=port, broker=SMALL_FILES), "name-server-port"),
        ):
            with pytest.raises(ConfigurationError) as caught:
                await EmbeddedServers(options).__aenter__()
            (finding,) = caught.value.findings
            assert finding.what.startswith(f"rocketbox.embedded.{key}: cannot listen on 127.0.0.1:{port}")
            assert finding.fix is not None
            assert "0 takes a free one" in finding.fix
    async with embedded(tmp_path) as wire:  # nothing was left behind
        assert (await wire.send("t")).code == 0


@pytest.mark.anyio
async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    async with embedded(tmp_path):
        with pytest.raises(StoreLockedError):
            await EmbeddedServers(small_options(tmp_path)).__aenter__()


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({}, ["access control", "TLS that is enforced"]),
        ({"authentication-enabled": True}, ["TLS that is enforced"]),
        ({"acl-enable": True, "acl-file": "f"}, ["TLS that is enforced"]),
        ({"tls-server-cert-path": "c"}, ["access control"]),
        ({"tls-server-cert-path": "c", "tls-server-mode": "permissive", "acl-enable": True}, ["TLS that is enforced"]),
        ({"tls-server-cert-path": "c", "authentication-enabled": True}, []),
    ],
)
def test_what_servers_lack_that_other_machines_can_reach(settings: dict[str, object], missing: list[str]) -> None:
    for host, lacks in (("10.0.0.9", missing), ("0.0.0.0", missing), ("::", missing), ("127.0.0.1", []), ("::1", [])):
        options = read_broker_options(settings, store_path_root_dir=Path("s"), bind_address=host)
        assert missing_protection(options) == lacks


@pytest.mark.anyio
async def test_another_address_than_the_machines_own_must_be_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = EmbeddedOptions(data_dir=tmp_path, host="0.0.0.0", port=0, name_server_port=0, broker=SMALL_FILES)
    with pytest.raises(ConfigurationError) as caught:
        await EmbeddedServers(options).__aenter__()
    assert "rocketbox.embedded.host" in str(caught.value)
    assert "insecure" in str(caught.value)
    open_options = EmbeddedOptions(
        data_dir=tmp_path, host="0.0.0.0", port=0, name_server_port=0, insecure=True, broker=SMALL_FILES
    )
    with pytest.raises(ConfigurationError, match="broker-ip1"):
        await EmbeddedServers(open_options).__aenter__()
    published = EmbeddedOptions(
        data_dir=tmp_path,
        host="0.0.0.0",
        port=0,
        name_server_port=0,
        insecure=True,
        broker={**SMALL_FILES, "broker-ip1": "127.0.0.1"},
    )
    caplog.clear()
    async with EmbeddedServers(published) as servers:
        assert servers.broker_address.startswith("127.0.0.1:")
    assert [(record.levelname, record.getMessage()) for record in caplog.records if "insecure" in record.message] == [
        ("WARNING", "insecure: the servers listen on 0.0.0.0, which other machines can reach, and have no access "
         "control and no TLS that is enforced"),
    ]  # fmt: skip


def listening() -> dict[int, str]:
    """The addresses at which sockets of this process listen, by port."""
    found: dict[int, str] = {}
    for name in os.listdir("/dev/fd"):
        try:
            number = os.dup(int(name))
        except OSError:  # that of the listing itself
            continue
        try:
            each = socket.socket(fileno=number)
        except OSError:  # no socket
            os.close(number)
            continue
        with each:
            if each.family in {socket.AF_INET, socket.AF_INET6} and each.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                host, port = each.getsockname()[:2]
                found[port] = host
    return found


@pytest.mark.anyio
async def test_only_this_machine_reaches_servers_of_which_nothing_else_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = listening()
    options = EmbeddedOptions(data_dir=tmp_path, port=0, name_server_port=0, broker=SMALL_FILES)
    async with EmbeddedServers(options) as servers:
        ports = [int(each.rpartition(":")[2]) for each in (servers.broker_address, servers.name_server_address)]
        assert {port: host for port, host in listening().items() if port not in before} == dict.fromkeys(
            ports, "127.0.0.1"
        )
    assert "insecure" not in caplog.text


async def finding(options: EmbeddedOptions, storage: MemoryStorage | None = None) -> Finding:
    with pytest.raises(ConfigurationError) as caught:
        async with EmbeddedServers(options, storage=storage):
            raise AssertionError("started")
    (found,) = caught.value.findings
    return found


@pytest.mark.anyio
async def test_a_directory_that_cannot_be_made_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = await finding(dataclasses.replace(small_options(tmp_path / "file" / "store"), places={"data-dir": "a:3"}))
    assert "rocketbox.embedded.data-dir" in found.what
    assert "Not a directory" in found.what
    assert found.where == "a:3"
    assert found.fix is not None
    assert "write" in found.fix


class ForbiddenStorage(MemoryStorage):
    """Lets itself be read and nothing else: mounted read-only, or another user's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def begin_call(self, name: str, path: str) -> None:
        if name in {"create", "make_directories", "write", "rename", "remove", "lock"}:
            raise OSError(self._number, os.strerror(self._number), path)


@pytest.mark.anyio
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("used", [True, False], ids=["store", "empty"])
async def test_a_directory_that_must_not_be_written_is_a_finding(tmp_path: Path, number: int, used: bool) -> None:
    options = dataclasses.replace(small_options(tmp_path / "store"), places={"data-dir": "a:3"})
    storage = ForbiddenStorage(number)
    if used:
        there = MemoryStorage()
        async with EmbeddedServers(options, storage=there):
            pass
        storage.take(there)
    found = await finding(options, storage)
    assert found.where == "a:3"
    for word in ("rocketbox.embedded.data-dir", os.strerror(number), str(tmp_path / "store")):
        assert word in found.what
    assert found.fix is not None
    assert "write" in found.fix


@pytest.mark.anyio
async def test_an_address_that_is_not_this_machines_is_a_finding_about_the_host(tmp_path: Path) -> None:
    for host in ("203.0.113.9", "no-such-host.invalid"):
        options = dataclasses.replace(small_options(tmp_path), host=host, insecure=True, places={"host": "a:4"})
        found = await finding(options)
        assert found.what.startswith("rocketbox.embedded.host: cannot listen on ")
        assert found.where == "a:4"
        assert found.fix is not None
        assert "of this machine" in found.fix


@pytest.mark.anyio
async def test_a_name_without_an_address_is_a_finding(tmp_path: Path) -> None:
    found = await finding(small_options(tmp_path, broker_ip1="no-such-host.invalid"))
    assert "no-such-host.invalid" in found.what
    assert found.fix is not None
    assert "broker-ip1" in found.fix


@pytest.mark.anyio
async def test_wrong_settings_are_found_together(tmp_path: Path) -> None:
    options = EmbeddedOptions(
        data_dir=tmp_path,
        host="10.1.2.3",
        flush_disk_type="NEVER",
        broker={"brokr-name": "x"},
        places={"brokr-name": "rocketbox.yaml:7"},
    )
    with pytest.raises(ConfigurationError) as caught:
        await EmbeddedServers(options).__aenter__()
    text = str(caught.value)
    assert len(caught.value.findings) == 3
    assert "rocketbox.embedded.flush-disk-type" in text
    assert "did you mean rocketbox.embedded.broker-name?" in text
    assert "rocketbox.yaml:7" in text


async def ask(address: str, code: int, fields: dict[str, str]) -> RemotingCommand:
    async with RemotingClient(clock=RealClock()) as client:
        return await client.request(address, RemotingCommand.request(code, fields), timeout=PATIENCE)


def test_servers_in_a_thread_answer_while_the_caller_blocks(tmp_path: Path) -> None:
    before = threading.active_count()
    with EmbeddedServers.in_thread(small_options(tmp_path)) as servers:
        route = anyio.run(
            ask, servers.name_server_address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "BenchmarkTest"}
        )
        assert servers.broker_address.encode() in route.body
        with pytest.raises(ClientStateError):
            servers.__enter__()
    anyio.run(until, lambda: threading.active_count() == before)  # idle threads of anyio end by themselves
    with EmbeddedServers.in_thread(small_options(tmp_path)):
        pass


def test_errors_of_the_start_come_out_of_the_thread(tmp_path: Path) -> None:
    with (
        EmbeddedServers.in_thread(small_options(tmp_path)),
        pytest.raises(StoreLockedError),
        EmbeddedServers.in_thread(small_options(tmp_path)),
    ):
        pass
    with (
        pytest.raises(ConfigurationError),
        EmbeddedServers.in_thread(EmbeddedOptions(data_dir=tmp_path, host="10.1.2.3")),
    ):
        pass


@pytest.mark.anyio
async def test_a_stop_ends_long_polls(tmp_path: Path) -> None:
    async with RemotingClient(clock=RealClock()) as client, anyio.create_task_group() as group:
        async with embedded(tmp_path) as wire:
            await wire.send("t")
            request = RemotingCommand.request(
                RequestCode.PULL_MESSAGE,
                {
                    "consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "1", "maxMsgNums": "1",
                    "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "120000", "subscription": "*",
                    "subVersion": "0",
                },
            )  # fmt: skip
            failed = anyio.Event()

            async def hold() -> None:
                with pytest.raises(RemotingError):
                    await client.request(wire.servers.broker_address, request, timeout=120)
                failed.set()

            group.start_soon(hold)
            await until(lambda: len(wire.servers.broker.held_pulls) == 1)
        with anyio.fail_after(PATIENCE):
            await failed.wait()


@pytest.mark.parametrize("has_uvloop", [pytest.param(True, marks=needs_uvloop), False])
def test_servers_in_a_thread_run_on_uvloop_where_it_is_installed(
    tmp_path: Path, has_uvloop: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("DEBUG", "rocketbox.embedded")
    if not has_uvloop:
        monkeypatch.setattr("rocketbox.loops.find_spec", lambda name: None)
    with EmbeddedServers.in_thread(small_options(tmp_path)) as servers:
        assert servers.health.refusal is None
    assert f"the embedded servers run on {'uvloop' if has_uvloop else 'asyncio'}" in caplog.text
