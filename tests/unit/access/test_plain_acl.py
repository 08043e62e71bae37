"""ACL 1.0: what ``plain_acl.yml`` means, what is wrong with one, and that it is read again."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from rocketbox.access.plain import Perm, PlainAccounts, PlainRights
from rocketbox.access.plain_file import read_plain_acl
from rocketbox.access.resources import Action, Kind, Need, group_need, topic_need
from rocketbox.blocking import blocking_in_loop
from rocketbox.broker.access import PlainAclFile, server_access
from rocketbox.broker.options import read_broker_options
from rocketbox.clock import RealClock
from rocketbox.errors import ConfigurationError
from rocketbox.protocol.codes import RequestCode
from tests.support.broker.access import broker_with_access, keys_of
from tests.support.broker.in_memory import HastyClock
from tests.support.clocks import VirtualClock
from tests.support.file_rights import bound_to_file_modes
from tests.support.waiting import PATIENCE

PUB, SUB, GET = Action.PUB, Action.SUB, Action.GET
APACHES_OWN = """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=SUB

- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""


def rights(text: str = APACHES_OWN, name: str = "RocketMQ") -> PlainRights:
    return read_plain_acl(text, "plain_acl.yml").accounts[name].rights


def test_the_file_that_apache_ships_is_read() -> None:
    table = read_plain_acl(APACHES_OWN, "plain_acl.yml")
    one, two = table.accounts["RocketMQ"], table.accounts["rocketmq2"]
    assert [any(match(host) for match in table.trusted) for host in ("10.10.103.7", "10.10.104.7")] == [True, False]
    assert one.trusted is None, "a blank address trusts nobody"
    assert two.trusted is not None
    assert two.trusted("192.168.1.9")
    assert one.rights.topic_perms == {"topicA": Perm.DENY, "topicB": Perm.PUB | Perm.SUB, "topicC": Perm.SUB}
    assert two.rights.are_everything
    assert "12345678" not in repr(table)


@pytest.mark.parametrize(
    ("need", "allowed"),
    [
        (topic_need("topicA", PUB), False),
        (topic_need("topicB", PUB), True),
        (topic_need("topicC", PUB), False),
        (topic_need("topicC", SUB), True),
        (topic_need("topicC", GET), True),
        (topic_need("topicA", GET), False),
        (topic_need("topicC", PUB, SUB, GET), True),
        (topic_need("unnamed", SUB), False),
        (group_need("groupA", SUB), False),
        (group_need("groupC", SUB), True),
        (group_need("unnamed", SUB), True),
        (topic_need("%RETRY%groupA", SUB), False),
        (topic_need("%RETRY%groupC", PUB, of_group=(SUB,)), True),
        (topic_need("%DLQ%groupA", SUB), False),
        (topic_need("%DLQ%groupC", SUB), True),
        (topic_need("RMQ_SYS_TRACE_TOPIC", PUB), True),
        (topic_need("RMQ_SYS_TRACE_TOPIC", SUB), False),
        (topic_need("RMQ_SYS_TRACE_TOPIC", GET), True),  # its route
        (topic_need("topicB", Action.CREATE), False),
        (Need(Kind.CLUSTER, "c", (GET,)), False),
    ],
)
def test_rights_of_an_account(need: Need, allowed: bool) -> None:
    assert (rights().refusal(need, "10.0.0.1") is None) is allowed


def test_an_administrator_with_rights_of_topics_has_those_only_and_administers() -> None:
    admin = rights("accounts: [{accessKey: RocketMQ, secretKey: 12345678, admin: true, topicPerms: [a=SUB]}]")
    assert admin.refusal(topic_need("a", PUB), "h") == (
        "org.apache.rocketmq.acl.common.AclException: No default permission for topic:a"
    )
    assert admin.refusal(topic_need("b", Action.DELETE), "h") is None
    assert rights().refusal(topic_need("b", Action.DELETE), "h") == (
        "org.apache.rocketmq.acl.common.AclException: Need admin permission for request code={code}, but "
        "accessKey=RocketMQ is not"
    )


SOUND = "accounts: [{accessKey: RocketMQ, secretKey: hunter2hunter2}]\n"


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("accounts: [", "f.yml is not valid YAML", "f.yml:1:12"),
        ("- a", "the file is no group of keys", "f.yml:1:1"),
        ("acounts: []", "the file has no key of this name; did you mean accounts?", "f.yml:1:1"),
        ("accounts: x", "accounts is no list", "f.yml:1:11"),
        ("accounts:\n- hunter2hunter2", "an account is no group of keys", "f.yml:2:3"),
        ("accounts:\n- {secretKey: hunter2hunter2}", "an account has no accessKey", "f.yml:2:3"),
        ("accounts:\n- {accessKey: RocketMQ}", "an account has no secretKey", "f.yml:2:3"),
        ("accounts:\n- {accessKey: RocketMQ, secretKey: hunter}", "secretKey has 6 characters", "f.yml:2:36"),
        (
            "accounts:\n- {accessKey: RocketMQ, secretKey: hunter2hunter2, topicPerms: [secret*=DENY]}",
            "topicPerms names 'secret*', what no topic can be called",
            "f.yml:2:65",
        ),
        (
            "accounts:\n- {accessKey: RocketMQ, secretKey: hunter2hunter2, groupPerms: ['d\u00e9part=DENY']}",
            "groupPerms names 'd\u00e9part', what no group can be called",
            "f.yml:2:65",
        ),
        (
            "accounts:\n- {accessKey: RocketMQ, secretKey: hunter2hunter2, topicPerms: ['%RETRY%board=DENY']}",
            "topicPerms names '%RETRY%board', a retry topic, of which the right to its group counts",
            "f.yml:2:65",
        ),
        ("accounts:\n- {hunter2hunter2: 1}", "an account has no key like this", "f.yml:2:4"),
        (SOUND + "globalWhiteRemoteAddresses: [10.0.0]", "'10.0.0' is no pattern of addresses", "f.yml:2:30"),
        (SOUND.replace("}", ", admin: yes}"), "admin is 'yes'", "f.yml:1:68"),
        (SOUND.replace("}", ", topicPerms: [a]}"), "topicPerms has an entry that is not NAME=PERM", "f.yml:1:74"),
        (SOUND.replace("}", ", topicPerms: [a=ALL]}"), "topicPerms, a: says 'ALL'", "f.yml:1:74"),
        (SOUND.replace("}", ", topicPerms: [a=SUB, a=PUB]}"), "topicPerms names 'a' twice", "f.yml:1:81"),
        (SOUND.replace("}", ", defaultTopicPerm: SUBSCRIBE}"), "defaultTopicPerm says 'SUBSCRIBE'", "f.yml:1:79"),
        (
            SOUND.replace("]", ", {accessKey: RocketMQ, secretKey: hunter2hunter2}]"),
            "is in the file twice",
            "f.yml:1:62",
        ),
        ("a: &a [1]\nb: *a", "refers to an anchor (*...)", "f.yml:2:4"),
        ("a: " + "[" * 20, "is nested too deeply", "f.yml:1:"),
        ("x" * (1 << 21), "has more than 1048576 characters", "f.yml"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_without_secrets(text: str, what: str, where: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_plain_acl(text, "f.yml")
    finding = caught.value.findings[0]
    assert what in finding.what
    assert str(finding.where).startswith(where)
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("admin: [x]", "admin is no text"),
        ("defaultTopicPerm: {x: y}", "defaultTopicPerm is no text"),
        ("topicPerms: [[x]]", "topicPerms is no text"),
        ("whiteRemoteAddress: [x]", "an address is no text"),
    ],
)
def test_a_fault_is_told_once(said: str, what: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_plain_acl(SOUND.replace("}]", f", {said}}}]"), "f.yml")
    assert [finding.what for finding in caught.value.findings] == [what]


def test_an_empty_file_knows_nobody(tmp_path: Path) -> None:
    assert read_plain_acl("", "f.yml").accounts == {}
    (tmp_path / "acl.yml").write_text("")
    settings = {"acl-enable": True, "acl-file": str(tmp_path / "acl.yml")}
    options = read_broker_options(settings, store_path_root_dir=tmp_path)
    access = server_access(options, RealClock())
    assert access is not None
    assert access.control.find("") is None
    assert access.control.find(access.inner.access_key) is not None


def test_a_file_that_is_too_large_is_refused_and_not_cut(tmp_path: Path) -> None:
    (tmp_path / "acl.yml").write_text(f"# {'é' * 600_000}\n{SOUND}", "utf-8")  # fewer characters than bytes
    options = read_broker_options(
        {"acl-enable": True, "acl-file": str(tmp_path / "acl.yml")}, store_path_root_dir=tmp_path
    )
    with pytest.raises(ConfigurationError, match="has more than 1048576 bytes"):
        server_access(options, RealClock())


@pytest.mark.anyio
async def test_a_file_that_is_being_written_takes_no_account_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever writes a file anew makes it empty first."""
    file = anyio.Path(tmp_path / "acl.yml")
    text = "accounts: [{accessKey: RocketMQ, secretKey: secret-of-RocketMQ, topicPerms: [T=PUB]}]"
    await file.write_text(text)
    async with broker_with_access({"acl-enable": True, "acl-file": str(file)}, clock=HastyClock()) as users:
        wire = await users.wire(keys_of("RocketMQ"))
        await file.write_text("")
        with anyio.fail_after(PATIENCE):
            while "acl.yml is empty" not in caplog.text:
                assert (await wire.send("T")).code == 0
                await anyio.sleep(0.01)
        assert (await wire.send("T")).code == 0
        await file.write_text("accounts: []")
        with anyio.fail_after(PATIENCE):
            while (await wire.send("T")).code == 0:
                await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_the_file_is_read_again_and_a_wrong_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = anyio.Path(tmp_path / "acl.yml")
    account = "accounts: [{{accessKey: {0}, secretKey: secret-of-{0}, topicPerms: [T=PUB]}}]"
    await file.write_text(account.format("RocketMQ"))
    async with broker_with_access({"acl-enable": True, "acl-file": str(file)}, clock=HastyClock()) as users:
        first, second = await users.wire(keys_of("RocketMQ")), await users.wire(keys_of("RocketMQ2"))
        assert ((await first.send("T")).code, (await second.send("T")).code) == (0, 1)
        await file.write_text(account.format("RocketMQ2"))
        with anyio.fail_after(PATIENCE):
            while (await second.send("T")).code != 0:
                await anyio.sleep(0.01)
        assert (await first.send("T")).code == 1
        await file.write_text("accounts: nonsense")
        with anyio.fail_after(PATIENCE):
            while "those before stay" not in caplog.text:
                await anyio.sleep(0.01)
        assert (await second.send("T")).code == 0
        await file.unlink()
        with anyio.fail_after(PATIENCE):
            while "No such file" not in caplog.text:
                await anyio.sleep(0.01)
        assert (await second.send("T")).code == 0


@pytest.mark.anyio
async def test_a_file_that_cannot_be_read_is_read_when_it_can_though_nothing_else_of_it_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Or who was taken out of it would stay: until somebody has given the broker the right to read it, for example."""
    path, clock, accounts = tmp_path / "acl.yml", VirtualClock(), PlainAccounts()
    account = "accounts: [{{accessKey: {0}, secretKey: secret-of-{0}}}]"
    path.write_text(account.format("RocketMQ"))
    file = PlainAclFile(path, accounts, clock)
    accounts.replace(file.read())
    with bound_to_file_modes(), blocking_in_loop(lambda call: call()):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(file.watch)
            await clock.advance(1.5)
            for name in ("RocketMQ2", "RocketMQ3"):
                before, told = [*accounts.table.accounts], len(caplog.records)
                path.write_text(account.format(name))
                path.chmod(0)
                await clock.advance(10)
                assert [*accounts.table.accounts] == before
                (record,) = [each for each in caplog.records[told:] if each.levelname == "ERROR"]
                assert "acl.yml cannot be read: Permission denied" in record.getMessage()
                path.chmod(0o600)
                await clock.advance(1.5)
                assert [*accounts.table.accounts] == [name]
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "text",
    [
        "globalWhiteRemoteAddresses: [127.0.0.1]",
        "accounts: [{accessKey: RocketMQ, secretKey: another-secret, whiteRemoteAddress: 127.0.0.1}]",
    ],
)
async def test_who_is_trusted_by_address_needs_no_rights(text: str, tmp_path: Path) -> None:
    file = tmp_path / "acl.yml"
    file.write_text(text)
    async with broker_with_access({"acl-enable": True, "acl-file": str(file)}) as users:
        wire = await users.wire(keys_of("RocketMQ"))
        assert (await wire.send("T")).code == 0
        assert (await wire.heartbeat("g", {"T": "*"})).code == 0
        assert (await users.unsigned.send("T")).code == (0 if text.startswith("global") else 1)
        assert (await users.unsigned.broker(RequestCode.GET_ALL_TOPIC_CONFIG)).code == (
            0 if text.startswith("global") else 1
        )  # fmt: skip


@pytest.mark.anyio
async def test_a_file_that_would_be_waited_for_is_refused(tmp_path: Path) -> None:
    """Reading a pipe would wait for ever for who writes to it."""
    os.mkfifo(tmp_path / "acl.yml")
    with anyio.fail_after(PATIENCE), pytest.raises(ConfigurationError, match="is no plain file"):
        async with broker_with_access({"acl-enable": True, "acl-file": str(tmp_path / "acl.yml")}):
            pass


@pytest.mark.anyio
@pytest.mark.parametrize(("mode", "told"), [(0o602, True), (0o644, False), (0o600, False)])
async def test_who_else_may_change_the_file_is_told(
    mode: int, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "acl.yml"
    file.write_text("")
    file.chmod(mode)
    async with broker_with_access({"acl-enable": True, "acl-file": str(file)}):
        assert ("every user of this machine may change the file of accounts" in caplog.text) is told
