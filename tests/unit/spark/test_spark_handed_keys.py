"""The file by which Spark on this machine gets keys: private, as new as the keys are, and gone at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.client import ClientOptions, Credentials, CredentialsFile, CredentialsProvider, MQClientInstance
from rocketbox.spark.handed_keys import handed_keys
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
    return [each.name for each in folder.iterdir()] if folder.exists() else None


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


async def test_a_file_of_keys_is_handed_on_by_its_path_and_without_keys_there_is_none(tmp_path: Path) -> None:
    file = CredentialsFile(tmp_path / "keys.yaml")
    with handed_keys(MQClientInstance("ns:9876", options=ClientOptions(credentials=file))) as name:
        assert name == str(tmp_path / "keys.yaml")
    with handed_keys(MQClientInstance("ns:9876")) as name:
        assert name is None


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
