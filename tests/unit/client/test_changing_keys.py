"""Keys that change while a client runs: from a provider, from a file, and when a server does not take the old ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from traceback import TracebackException
from typing import Any

import anyio
import pytest

from rocketbox.client import (
    ClientOptions,
    Credentials,
    CredentialsFile,
    CredentialsProvider,
    MQClientInstance,
    Producer,
)
from rocketbox.client.credentials import ANSWER_WITHIN
from rocketbox.errors import AccessDeniedError, ConfigurationError, CredentialsError
from rocketbox.message import Message
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.acl import RequestSigner
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock
from tests.support.failures import variables_of_ours
from tests.support.threads import no_thread_left
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


def keys(number: int, **more: Any) -> Credentials:
    return Credentials(
        access_key=f"user-{number}", secret_key=f"hunter2-{number}", security_token=f"token-{number}", **more
    )


class Vault(CredentialsProvider):
    """Gives what it has, or raises it."""

    def __init__(self, *given: Any) -> None:
        self.given = list(given)
        self.asked = 0

    async def credentials(self) -> Credentials:
        self.asked += 1
        answer = self.given.pop(0) if len(self.given) > 1 else self.given[0]
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer = answer()
        if answer == "hang":
            await anyio.sleep_forever()
        return answer  # type: ignore[no-any-return]


def instance_of(cluster: ScriptedCluster, provider: Any) -> MQClientInstance:
    return MQClientInstance(
        cluster.name_server.address, options=ClientOptions(client_ip="192.0.2.7", credentials=provider),
        clock=cluster.clock, network=cluster.network,
    )  # fmt: skip


def in_seconds(clock: VirtualClock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.time_ms() / 1000 + seconds, UTC)


def signed_by(request: RemotingCommand) -> str:
    """Whose request it is; all of it has to be signed with the keys of that one user."""
    fields = dict(request.ext_fields)
    signature = fields.pop("Signature")
    user = fields["AccessKey"]
    number = user.removeprefix("user-")
    assert fields["SecurityToken"] == f"token-{number}"
    values = "".join(fields[name] for name in sorted(fields)).encode() + request.body
    expected = base64.b64encode(hmac.digest(f"hunter2-{number}".encode(), values, hashlib.sha1)).decode()
    assert signature == expected
    return user


async def test_a_client_waits_for_its_first_keys_and_signs_all_with_them() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T", queues=1)
        async with instance_of(cluster, Vault(keys(1))) as instance, Producer("PG", instance=instance) as producer:
            await producer.send(Message("T", b"x"))
        assert {signed_by(each) for each in (*cluster.broker.requests, *cluster.name_server.requests)} == {"user-1"}


async def test_keys_change_under_running_sends_and_no_request_is_signed_with_two_users() -> None:
    clock = VirtualClock()
    vault = Vault(*(keys(number) for number in range(1, 30)))
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T", queues=4)
        async with instance_of(cluster, vault) as instance, Producer("PG", instance=instance) as producer:
            assert instance.keys is not None
            for _ in range(12):
                async with anyio.create_task_group() as tasks:
                    for _ in range(5):
                        tasks.start_soon(producer.send, Message("T", b"x"))
                    tasks.start_soon(producer.send_many, [Message("T", b"y")] * 20)
                    instance.keys.look()
                    await clock.advance(1.0)
        users = {signed_by(each) for each in (*cluster.broker.requests, *cluster.name_server.requests)}
        assert len(users) >= 10
        assert len(cluster.broker.sends) == 12 * 25


@pytest.mark.parametrize(("lifetime", "after"), [(3600, 2700), (40, 30), (1, 1)])
async def test_new_keys_are_asked_for_before_the_old_ones_end(lifetime: float, after: float) -> None:
    clock = VirtualClock()
    second = keys(2, expires_at=in_seconds(clock, 1_000_000))
    vault = Vault(keys(1, expires_at=in_seconds(clock, lifetime)), second)
    async with ScriptedCluster(clock) as cluster, instance_of(cluster, vault) as instance:
        await clock.advance(after - 0.5)
        assert vault.asked == 1
        await clock.advance(0.6)
        assert (vault.asked, instance.remoting.credentials) == (2, second)
        assert not instance.state().keys_expired


async def test_keys_without_an_end_are_asked_for_each_minute() -> None:
    clock = VirtualClock()
    vault = Vault(keys(1))
    async with ScriptedCluster(clock) as cluster, instance_of(cluster, vault):
        await clock.advance(301)
    assert vault.asked == 6


async def test_while_a_provider_fails_the_old_keys_stay_and_each_reason_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    vault = Vault(
        keys(1, expires_at=in_seconds(clock, 100)), *[ConnectionError("hunter2 is refused")] * 5, "hang", None,
        ConnectionError("hunter2"),
    )  # fmt: skip
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T", queues=1)
        async with instance_of(cluster, vault) as instance, Producer("PG", instance=instance) as producer:
            await clock.advance(80)
            await producer.send(Message("T", b"x"))
            assert [signed_by(each) for each in cluster.broker.sends] == ["user-1"]
            problem = instance.state().keys_problem
            assert problem is not None
            assert problem.startswith("Vault.credentials failed with ConnectionError (test_changing_keys.py:")
            assert not instance.state().keys_expired
            await clock.advance(200)
            assert instance.state().keys_expired
            vault.given[:] = [keys(2)]
            await clock.advance(31)
            assert instance.remoting.credentials == keys(2)
            assert (instance.state().keys_problem, instance.state().keys_expired) == (None, False)
    told = [record.message for record in caplog.records if "Vault" in record.message]
    assert ["have ended" in each for each in told if "asked for again" in each] == [False, True, True, True]
    assert f"gave no keys within {ANSWER_WITHIN:g} s" in told[1]
    assert "returned NoneType, and not Credentials" in told[2]
    assert told[-1] == "Vault.credentials has new keys: requests are signed as use..."
    assert "hunter2" not in caplog.text


async def test_brokers_hear_of_a_client_by_its_new_keys_at_once() -> None:
    """A broker knows a member by the user who has signed its last heartbeat, and drops it with him."""
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T", queues=1)
        vault = Vault(keys(1, expires_at=in_seconds(clock, 60)), keys(2))
        async with instance_of(cluster, vault) as instance, Producer("PG", instance=instance) as producer:
            await producer.send(Message("T", b"x"))
            await clock.advance(44.5)
            before = heartbeats_of(cluster)
            assert set(before) == {"user-1"}
            await clock.advance(1)
            assert instance.remoting.credentials == keys(2)
            assert heartbeats_of(cluster)[len(before) :] == ["user-2"]


def heartbeats_of(cluster: ScriptedCluster) -> list[str]:
    """By whom each heartbeat is signed."""
    return [signed_by(each) for each in cluster.broker.requests if each.code == RequestCode.HEART_BEAT]


async def test_new_keys_are_used_though_somebody_cannot_take_them_who_is_told_until_he_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as who has to write them to a disk that is full."""
    clock = VirtualClock()
    vault = Vault(keys(1), keys(2))
    takes: list[tuple[str, Credentials]] = []
    full = True

    def write(new: Credentials) -> None:
        takes.append(("tried", new))
        if full:
            raise OSError(f"no room for {new.secret_key}")

    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T", queues=1)
        async with instance_of(cluster, vault) as instance, Producer("PG", instance=instance) as producer:
            assert instance.keys is not None
            instance.keys.on_renewed[:0] = [write]
            instance.keys.on_renewed.append(lambda new: takes.append(("taken", new)))
            await clock.advance(60.5)
            assert takes == [("tried", keys(2)), ("taken", keys(2))]
            await producer.send(Message("T", b"x"))
            assert [signed_by(each) for each in cluster.broker.sends] == ["user-2"]
            problem = instance.state().keys_problem
            assert problem is not None
            assert "has given keys, and not everybody who needs them has them: OSError" in problem
            await clock.advance(10)
            full = False
            await clock.advance(30)
            assert instance.state().keys_problem is None
            tried = len(takes)
            await clock.advance(120)
            assert len(takes) == tried, "who has them is told of others only"
    assert takes == [("tried", keys(2)), ("taken", keys(2)), *[("tried", keys(2))] * (tried - 2)]
    told = [record.message for record in caplog.records if "Vault" in record.message]
    assert [each.split(" keys")[0] for each in told] == [
        "Vault.credentials has new", "Vault.credentials has given", "Vault.credentials gives",
    ]  # fmt: skip
    assert "hunter2" not in caplog.text
    assert not [record for record in caplog.records if "task keys" in record.message]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (ConnectionError("hunter2"), "failed with ConnectionError"),
        ("hang", "gave no keys within 10 s"),
        ("hunter2", "returned str, and not Credentials"),
        (keys(1, expires_at=datetime(2020, 1, 1, tzinfo=UTC)), "gave keys that ended at 2020-01-01 00:00:00 UTC"),
        (CredentialsError("the vault is sealed"), "the vault is sealed"),
    ],
)
async def test_a_client_without_first_keys_does_not_start(given: Any, told: str) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        failures: list[CredentialsError] = []

        async def start() -> None:
            with pytest.raises(CredentialsError, match=told) as caught:
                async with instance_of(cluster, Vault(given)):
                    raise AssertionError("it has started")
            failures.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            await clock.advance(11)
        (failure,) = failures
        assert "hunter2" not in repr(failure)
        assert not [line for line in variables_of_ours(failure) if "hunter2" in line]
        assert failure.__cause__ is None
        assert failure.__suppress_context__ or failure.__context__ is None
        assert cluster.name_server.requests == []


class Library(BaseException):
    """What some library raises to end its own tasks."""


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, Library])
async def test_a_provider_ends_nothing_but_its_own_answer(kind: type[BaseException]) -> None:
    def answer() -> Credentials:
        raise kind("hunter2")

    clock = VirtualClock()
    vault = Vault(keys(1), answer, keys(2))
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T", queues=1)
        async with instance_of(cluster, vault) as instance, Producer("PG", instance=instance) as producer:
            await clock.advance(60.5)
            assert "Vault.credentials failed with " in (instance.state().keys_problem or "")
            assert "hunter2" not in (instance.state().keys_problem or "")
            await producer.send(Message("T", b"x"))
            await clock.advance(2)
            assert instance.remoting.credentials == keys(2)
            assert instance.state().keys_problem is None
        with pytest.raises(CredentialsError, match=r"Vault\.credentials failed with "):
            async with instance_of(cluster, Vault(answer)):
                raise AssertionError("it has started")


async def test_what_is_no_provider_is_refused_with_what_to_write() -> None:
    class Sync:
        def credentials(self) -> Credentials:
            return keys(1)

    with pytest.raises(ConfigurationError, match=r"Sync\.credentials is no coroutine function") as caught:
        ClientOptions(credentials=Sync())  # type: ignore[arg-type]
    assert "async def credentials" in str(caught.value)
    with pytest.raises(ConfigurationError, match="str has no credentials"):
        ClientOptions(credentials="hunter2")  # type: ignore[arg-type]


def accepting(*users: str) -> Callable[[RemotingCommand], str | None]:
    return lambda request: None if request.ext_fields["AccessKey"] in users else "check signature failed."


async def test_a_send_whose_keys_were_changed_meanwhile_goes_out_with_the_new_ones() -> None:
    clock = VirtualClock()
    vault = Vault(keys(1), keys(2))
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T", queues=1)
        refuses = accepting("user-2")

        def on_send(request: RemotingCommand) -> RemotingCommand:
            remark = refuses(request)
            return cluster.broker.store(request) if remark is None else RemotingCommand.response(16, remark)

        cluster.broker.on_send = on_send
        async with (
            instance_of(cluster, vault) as instance,
            Producer("PG", instance=instance) as producer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(producer.send, Message("T", b"one"))
            tasks.start_soon(producer.send_many, [Message("T", b"two")] * 3)
            await clock.advance(3)
        assert sum(signed_by(each) == "user-2" for each in cluster.broker.sends) == 4
        assert vault.asked == 2


async def test_a_send_with_wrong_keys_is_refused_when_there_are_no_newer_ones_and_nobody_is_hammered() -> None:
    clock = VirtualClock()
    vault = Vault(keys(1))
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T", queues=1)
        cluster.broker.on_send = lambda request: RemotingCommand.response(16, "check signature failed.")
        async with instance_of(cluster, vault) as instance, Producer("PG", instance=instance) as producer:
            began = clock.monotonic()

            async def send() -> None:
                with pytest.raises(AccessDeniedError) as caught:
                    await producer.send(Message("T", b"x"))
                assert caught.value.wrong_keys
                assert (caught.value.who, caught.value.resource) == ("use...", None)
                assert clock.monotonic() - began <= 1.5

            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(send)
                await clock.advance(3)
        assert len(cluster.broker.sends) == 50
        assert vault.asked <= 3


async def test_a_provider_that_fails_is_asked_ever_more_seldom_though_every_send_is_refused() -> None:
    clock = VirtualClock()
    vault = Vault(keys(1), ConnectionError("the vault is down"))
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T", queues=1)
        cluster.broker.on_send = lambda request: RemotingCommand.response(16, "check signature failed.")
        async with instance_of(cluster, vault) as instance, Producer("PG", instance=instance) as producer:

            async def send() -> None:
                for _ in range(120):
                    with pytest.raises(AccessDeniedError):
                        await producer.send(Message("T", b"x"))
                    await clock.sleep(0.5)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                await clock.advance(80)
                assert len(cluster.broker.sends) == 120, "few of them wait for who fails"
                assert vault.asked <= 1 + 7, "a second after the start, then after 1, 2, 4, 8, 16 and 30 s"


async def test_a_provider_that_swallows_a_cancellation_holds_up_no_stop() -> None:
    clock = VirtualClock()
    swallowed: list[str] = []

    class Careless(CredentialsProvider):
        async def credentials(self) -> Credentials:
            if not clock.monotonic() > began:
                return keys(1)
            try:
                await anyio.sleep_forever()
            except BaseException as error:
                swallowed.append(type(error).__name__)
            return keys(2)

    began = clock.monotonic()
    async with ScriptedCluster(clock) as cluster:
        with anyio.fail_after(PATIENCE):
            async with instance_of(cluster, Careless()):
                await clock.advance(61)
                assert swallowed == []
    assert len(swallowed) == 1


async def test_nothing_goes_out_unsigned_before_there_are_keys() -> None:
    signer = RequestSigner()
    with pytest.raises(CredentialsError, match="there are no keys yet"):
        signer.before_request("b:1", RemotingCommand.request(RequestCode.HEART_BEAT))
    assert repr(signer) == "RequestSigner(no keys yet)"


# --- files ------------------------------------------------------------------------------------------------------------

FORMS = {
    "yaml": "accessKey: user-1\nsecretKey: 'hunter2-1'\nsecurityToken: token-1\n",
    "json": '# ours\n{"access-key": "user-1", "secret_key": hunter2-1, SECURITY-TOKEN: token-1}',
    "key file": "AccessKey=user-1\r\nSecretKey = hunter2-1\n\n# lent\nSecurityToken=token-1",
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_file_of_keys_is_yaml_or_apaches_key_file(tmp_path: Path, form: str) -> None:
    file = tmp_path / "keys"
    file.write_text(FORMS[form])
    assert await CredentialsFile(file).credentials() == keys(1)


async def test_keys_of_digits_and_with_odd_characters_are_text(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("accessKey: 0123\nsecretKey: yes\n")
    found = await CredentialsFile(file).credentials()
    assert (found.access_key, found.secret_key, found.security_token) == ("0123", "yes", None)
    file.write_text("AccessKey=a=b\nSecretKey=c: d#e==\n")
    found = await CredentialsFile(str(file)).credentials()
    assert (found.access_key, found.secret_key) == ("a=b", "c: d#e==")


async def test_a_file_of_keys_is_read_where_others_hold_all_threads(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("accessKey: user-1\nsecretKey: hunter2-1\nsecurityToken: token-1\n")
    with anyio.fail_after(PATIENCE):
        async with no_thread_left():
            assert await CredentialsFile(file).credentials() == keys(1)


ALIASES = b"&l0 [hunter2]" + b"".join(
    b", &l%d [%s]" % (level, b", ".join([b"*l%d" % (level - 1)] * 9)) for level in range(1, 30)
)  # written out it would have more than 9 ** 29 entries


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"hunter2", "is neither YAML nor a key file"),
        (b"accessKey: [hunter2", "is neither YAML nor a key file"),
        (b"[" * 5000 + b"hunter2", "is neither YAML nor a key file"),
        (b"accessKey: hunter2\n", "has no secretKey"),
        (b"AccessKey=hunter2\nSecretKey=\n", "has no secretKey"),
        (b"secretKey: hunter2\n", "has no accessKey"),
        (b"accessKey: a\nsecretKey: hunter2\npassword: hunter2\n", "is to have accessKey, secretKey"),
        (b"accessKey: a\nsecretKey: [hunter2]\n", "is to have accessKey, secretKey"),
        (b"accessKey: a\naccess-key: b\nsecretKey: hunter2\n", "each once"),
        (b"accessKey: a\naccessKey: b\nsecretKey: hunter2\n", "each once"),
        (b"accessKey: [a]\nsecretKey: hunter2\n", "each once as text"),
        (b"accessKey: {a: b}\nsecretKey: hunter2\n", "each once as text"),
        (b"accessKey: [" + ALIASES + b"]\nsecretKey: hunter2\n", "each once as text"),
        (b"? [" + ALIASES + b"]\n: hunter2\naccessKey: a\n", "each once as text"),
        (b"accessKey: &a [*a, *a]\nsecretKey: hunter2\n", "each once as text"),
        (b"accessKey: a\nsecretKey: hunter2\xff\n", "is not text in UTF-8"),
        (b"accessKey: a\nsecretKey: !!python/object/apply:os.system [hunter2]\n", "is to have accessKey, secretKey"),
        (b"accessKey: a\nsecretKey: hunter2\n#" + b"x" * 65_536, "has more than 65536 bytes"),
    ],
)
async def test_a_file_that_has_no_keys_is_refused_and_nothing_of_it_is_shown(
    tmp_path: Path, content: bytes, told: str
) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(CredentialsError, match=told) as caught:
        await CredentialsFile(file).credentials()
    assert str(file) in str(caught.value)
    assert "hunter2" not in str(caught.value)
    shown = "".join(TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "hunter2" not in shown.partition("client/credentials.py")[2], "nor where variables are shown with a failure"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


async def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="the keys cannot be read: No such file or directory"):
        await CredentialsFile(tmp_path / "keys").credentials()
    with pytest.raises(CredentialsError, match="the keys cannot be read: Is a directory"):
        await CredentialsFile(tmp_path).credentials()


async def test_a_pipe_that_nobody_writes_to_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys")
    with anyio.fail_after(5), pytest.raises(CredentialsError, match="is no plain file"):
        await CredentialsFile(tmp_path / "keys").credentials()


def yaml(number: int) -> str:
    return f"accessKey: user-{number}\nsecretKey: hunter2-{number}\nsecurityToken: token-{number}\n"


async def test_what_is_begun_to_be_written_does_not_count_though_it_looks_complete(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(yaml(1))
    source = CredentialsFile(file)
    assert await source.credentials() == keys(1)
    file.write_text("accessKey: user-2\nsecretKey: hunt")
    assert (await source.credentials(), source.settles) == (keys(1), True)
    file.write_text(yaml(2))
    assert (await source.credentials(), source.settles) == (keys(1), True)
    assert (await source.credentials(), source.settles) == (keys(2), False)
    file.write_text(yaml(1))
    assert await source.credentials() == keys(2)
    file.write_text(yaml(2))
    assert (await source.credentials(), source.settles) == (keys(2), False)


async def test_a_client_takes_keys_over_as_kubernetes_turns_its_link_and_keeps_them_while_the_file_is_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "keys").write_text(yaml(number))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys").symlink_to("..data/keys")
    source = CredentialsFile(tmp_path / "keys", interval=0.01)
    async with MQClientInstance("127.0.0.1:1", options=ClientOptions(credentials=source)) as instance:

        def signs() -> Credentials | None:
            return instance.remoting.credentials

        assert signs() == keys(1)
        (tmp_path / "..new").symlink_to("..2")
        os.replace(tmp_path / "..new", tmp_path / "..data")
        await until(lambda: signs() == keys(2))
        (tmp_path / "..2" / "keys").write_text("accessKey: user-3\nsecretKey")
        await until(lambda: instance.state().keys_problem is not None)
        (tmp_path / "..2" / "keys").unlink()
        await until(lambda: "No such file" in (instance.state().keys_problem or ""))
        assert signs() == keys(2)
        (tmp_path / "..2" / "keys").write_text(yaml(3))
        await until(lambda: signs() == keys(3))
        assert instance.state().keys_problem is None
    told = [record.message for record in caplog.records if "keys" in record.message]
    assert sum("neither YAML nor a key file" in each for each in told) == 1
    assert sum("stay in use" in each for each in told) == 2
    assert "hunter2" not in caplog.text
    assert "token-" not in caplog.text
    assert "user-" not in caplog.text


async def test_times_have_a_zone() -> None:
    with pytest.raises(ConfigurationError, match=r"Credentials\.expires_at has no time zone"):
        keys(1, expires_at=datetime(2030, 1, 1))  # noqa: DTZ001 # that is the point
    assert keys(1, expires_at=datetime(2030, 1, 1, tzinfo=UTC) + timedelta(hours=1)).who == "use..."
