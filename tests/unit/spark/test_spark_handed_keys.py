"""The file by which Spark on this machine gets keys: private, as new as the keys are, and gone at the end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rocketbox.client import ClientOptions, Credentials, CredentialsFile, CredentialsProvider, MQClientInstance
from rocketbox.spark.handed_keys import PREFIX, handed_keys
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.servers import Servers
from rocketbox.spark.write_options import WriteOptions
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.anyio

ODD = Credentials(access_key='user "x": {}', secret_key="ü\\n#\t= \U0001f680", security_token="null")


class Vault(CredentialsProvider):
    def __init__(self, first: Credentials) -> None:
        self.now = first

    async def credentials(self) -> Credentials:
        return self.now


def rights(file: Path) -> tuple[int, int]:
    return file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777


def names_in(folder: Path) -> list[str] | None:
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else None


async def test_a_private_file_has_the_keys_as_they_are_now_and_is_removed() -> None:
    vault = Vault(ODD)
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        options = ClientOptions(client_ip="192.0.2.7", credentials=vault)
        instance = MQClientInstance(cluster.name_server.address, options=options, clock=clock, network=cluster.network)
        async with instance:
            with handed_keys(instance) as name:
                assert name is not None
                file = Path(name)
                assert await CredentialsFile(file).credentials() == ODD
                assert rights(file) == (0o600, 0o700)
                vault.now = Credentials(access_key="renewed", secret_key="s")
                await clock.advance(61)
                assert await CredentialsFile(file).credentials() == vault.now
                assert rights(file) == (0o600, 0o700)
                assert names_in(file.parent) == ["keys.json"]
            assert names_in(file.parent) is None
            vault.now = ODD
            await clock.advance(61)
            assert names_in(file.parent) is None


async def test_a_file_that_cannot_be_written_anew_keeps_the_client_from_no_keys_and_is_written_later() -> None:
    vault = Vault(ODD)
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        options = ClientOptions(client_ip="192.0.2.7", credentials=vault)
        instance = MQClientInstance(cluster.name_server.address, options=options, clock=clock, network=cluster.network)
        async with instance:
            with handed_keys(instance) as name:
                assert name is not None
                file = Path(name)
                in_the_way = file.parent / "new.json"
                in_the_way.mkdir()
                vault.now = Credentials(access_key="renewed", secret_key="s")
                await clock.advance(61)
                assert instance.remoting.credentials == vault.now
                assert await CredentialsFile(file).credentials() == ODD
                assert f"cannot be written: Is a directory: {file}" in str(instance.state().keys_problem)
                in_the_way.rmdir()
                await clock.advance(31)
                assert await CredentialsFile(file).credentials() == vault.now
                assert instance.state().keys_problem is None


async def test_a_file_of_keys_is_handed_on_by_its_path_and_without_keys_there_is_none(tmp_path: Path) -> None:
    file = CredentialsFile(tmp_path / "keys.yaml")
    with handed_keys(MQClientInstance("ns:9876", options=ClientOptions(credentials=file))) as name:
        assert name == str(tmp_path / "keys.yaml")
    with handed_keys(MQClientInstance("ns:9876")) as name:
        assert name is None


SERVICE = """
import sys
from rocketbox.client import ClientOptions, Credentials, MQClientInstance
from rocketbox.spark.handed_keys import handed_keys

keys = Credentials(access_key="u", secret_key="hunter2")
with handed_keys(MQClientInstance("ns:9876", options=ClientOptions(credentials=keys))) as name:
    print(name, flush=True)
    sys.stdin.read()
"""


def service() -> tuple[subprocess.Popen[str], Path]:
    """A process that hands keys on until its input ends, and their file."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


async def test_what_a_killed_process_has_left_is_removed_by_the_next_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / f"{PREFIX}a-file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "keys.json").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere")
    killed, its = service()
    lives, other = service()
    with killed, lives:
        assert "hunter2" in its.read_text()
        killed.kill()
        killed.wait()
        assert its.exists()
        with handed_keys(MQClientInstance("ns:9876")) as name:
            assert name is None
        assert not its.parent.exists()
        assert "hunter2" in other.read_text(), "its owner lives"
        lives.communicate()
        assert not other.parent.exists()
    assert names_in(tmp_path) == ["elsewhere", f"{PREFIX}a-file", f"{PREFIX}link"]
    assert (tmp_path / "elsewhere" / "keys.json").exists()


async def test_what_cannot_be_removed_is_told_and_costs_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()

    def refuse(path: Path) -> None:
        raise PermissionError(1, "no", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with handed_keys(MQClientInstance("ns:9876")):
        assert f"{left}, where a process that was killed has left keys, is not removed" in caplog.text


@pytest.mark.parametrize("kind", [SourceOptions, WriteOptions])
@pytest.mark.parametrize("option", ["accessKey", "secretKey", "securityToken"])
async def test_a_key_is_no_option_and_a_file_of_keys_is(kind: type[SourceOptions | WriteOptions], option: str) -> None:
    told = {"nameServer": "ns:9876", "topic": "orders", "credentialsFile": "/run/keys.yaml"}
    options = kind(told)
    assert options.servers == Servers("ns:9876", credentials_file="/run/keys.yaml")
    assert options.servers.told() == {"nameServer": "ns:9876", "credentialsFile": "/run/keys.yaml"}
    with pytest.raises(ValueError, match="Spark shows options, so keys go in a file: say credentialsFile") as caught:
        kind({**told, option: "hunter2"})
    assert "hunter2" not in str(caught.value)
