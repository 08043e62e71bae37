"""Users and policies of ACL 2.0 as administrators change them: rules, answers, what is kept, and what is never told."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from rocketbox.access.users import UserTable
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.store_check import check_tables
from rocketbox.errors import ConfigurationError, StoreCorruptError, StoreError
from rocketbox.protocol.auth_bodies import UserInfo
from rocketbox.protocol.codes import RequestCode as C
from rocketbox.protocol.command import RemotingCommand
from rocketbox.storage.file_system import RealStorage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.access import ACL_2, ADMIN, UserWires, broker_with_access, keys_of, put_policy
from tests.support.broker.in_memory import BrokerWire

pytestmark = pytest.mark.anyio

USERS = "/store/config/authUsers.json"


async def put_user(wire: BrokerWire, code: int, name: str, **values: str) -> RemotingCommand:
    return await wire.broker(code, {"username": name}, json.dumps({"username": name, **values}).encode())


async def test_a_user_is_made_changed_disabled_and_deleted(users: UserWires, admin: BrokerWire) -> None:
    wire = await users.new_user(admin, "desk", ("Topic:T", "Pub", "Allow"))
    assert (await wire.send("T")).code == 0
    assert (await put_user(admin, C.AUTH_UPDATE_USER, "desk", userStatus="disable")).code == 0
    assert (await wire.send("T")).code == 16
    assert (await put_user(admin, C.AUTH_UPDATE_USER, "desk", userStatus="enable")).code == 0
    assert (await wire.send("T")).code == 0, "the password was not said, and is as before"
    assert (await put_user(admin, C.AUTH_UPDATE_USER, "desk", password="another secret")).code == 0
    assert (await wire.send("T")).code == 16
    assert (await put_user(admin, C.AUTH_UPDATE_USER, "desk", password=keys_of("desk").secret_key)).code == 0
    assert (await put_user(admin, C.AUTH_UPDATE_USER, "desk", userType="Super")).code == 0
    assert (await wire.send("anything")).code == 0
    assert (await admin.broker(C.AUTH_DELETE_USER, {"username": "desk"})).code == 0
    assert (await wire.send("T")).code == 16
    await users.new_user(admin, "desk")
    assert "no matched policies" in str((await wire.send("T")).remark), "his policies went with him"


async def test_what_cannot_be_done_with_users_is_refused(users: UserWires, admin: BrokerWire) -> None:
    async def made(name: str, **values: str) -> tuple[int, str | None]:
        answer = await put_user(admin, C.AUTH_CREATE_USER, name, **values)
        return answer.code, answer.remark

    assert await made("administrator", password="p") == (16, "The user is existed")
    assert await made("u") == (16, "password can not be blank")
    assert await made("", password="p") == (29, "username can not be blank")
    assert await made("u", password="p", userType="super duper") == (
        16, "'super duper' is no type of users; there are Super and Normal"
    )  # fmt: skip
    assert await made("u", password="p", userStatus="on") == (
        16, "'on' is no status of users; there are enable and disable"
    )  # fmt: skip
    assert (await made("u" * 256, password="p"))[0] == 29
    assert (await made("u\n", password="p"))[0] == 29
    assert (await made("u", password="p" * 256))[0] == 29
    unknown = await put_user(admin, C.AUTH_UPDATE_USER, "nobody", userStatus="enable")
    assert (unknown.code, unknown.remark) == (16, "The user is not exist")
    assert (await admin.broker(C.AUTH_DELETE_USER, {"username": "nobody"})).code == 0


async def test_no_answer_holds_a_password(users: UserWires, admin: BrokerWire) -> None:
    await users.new_user(admin, "desk", ("Topic:T", "Pub", "Allow"))
    got = await admin.broker(C.AUTH_GET_USER, {"username": "desk"})
    assert json.loads(got.body) == {"username": "desk", "userType": "Normal", "userStatus": "enable"}
    listed = await admin.broker(C.AUTH_LIST_USER, {"filter": "es"})
    assert json.loads(listed.body) == [json.loads(got.body)]
    everything = [await admin.broker(code, {"username": "desk", "subject": "User:desk"}) for code in range(3004, 3011)]
    assert not any(b"secret-of" in answer.body or "secret-of" in str(answer.remark) for answer in everything)
    assert (await admin.broker(C.AUTH_GET_USER, {"username": "nobody"})).body == b""
    assert "secret-of" not in repr(UserInfo(username="u", password="secret-of-u"))


async def test_only_a_super_user_makes_changes_and_deletes_super_users(users: UserWires, admin: BrokerWire) -> None:
    clerk = await users.new_user(admin, "clerk", ("Cluster:*", "Update,Get", "Allow"))
    assert (await put_user(clerk, C.AUTH_CREATE_USER, "another", password="p", userType="Normal")).code == 0
    made = await put_user(clerk, C.AUTH_CREATE_USER, "root", password="p", userType="super")
    assert (made.code, made.remark) == (1, "The super user can only be create by super user")
    raised = await put_user(clerk, C.AUTH_UPDATE_USER, "clerk", userType="Super")
    assert (raised.code, raised.remark) == (1, "The super user can only be update by super user")
    changed = await put_user(clerk, C.AUTH_UPDATE_USER, ADMIN.access_key, password="mine")
    assert (changed.code, changed.remark) == (16, "The super user can only be update by super user")
    deleted = await clerk.broker(C.AUTH_DELETE_USER, {"username": ADMIN.access_key})
    assert (deleted.code, deleted.remark) == (16, "The super user can only be update by super user")


async def test_policies_are_added_replaced_listed_and_deleted(users: UserWires, admin: BrokerWire) -> None:
    wire = await users.new_user(admin, "desk", ("Topic:T", "Sub", "Allow"), ("Group:g", "All", "Allow"))
    assert (await wire.send("T")).code == 16
    assert (await put_policy(admin, "desk", "Topic:T", "Pub,Sub")).code == 0
    assert (await wire.send("T")).code == 0
    got = json.loads((await admin.broker(C.AUTH_GET_ACL, {"subject": "User:desk"})).body)
    assert got == {
        "subject": "User:desk",
        "policies": [
            {
                "policyType": "Custom",
                "entries": [
                    {"resource": "Topic:T", "actions": ["Pub", "Sub"], "decision": "Allow"},
                    {"resource": "Group:g", "actions": ["All"], "decision": "Allow"},
                ],
            }
        ],
    }
    await users.new_user(admin, "other", ("Topic:U", "Pub", "Deny"))
    listed = json.loads((await admin.broker(C.AUTH_LIST_ACL, {"resourceFilter": "U"})).body)
    assert [each["subject"] for each in listed] == ["User:other"]
    listed = json.loads((await admin.broker(C.AUTH_LIST_ACL, {"subjectFilter": "desk"})).body)
    assert listed == [got]
    assert (await admin.broker(C.AUTH_DELETE_ACL, {"subject": "User:desk", "resource": "Topic:T"})).code == 0
    assert (await wire.send("T")).code == 16
    assert (await admin.broker(C.AUTH_DELETE_ACL, {"subject": "User:desk"})).code == 0
    assert (await admin.broker(C.AUTH_GET_ACL, {"subject": "User:desk"})).body == b""
    gone = await admin.broker(C.AUTH_DELETE_ACL, {"subject": "User:desk"})
    assert (gone.code, gone.remark) == (16, "The acl is not exist.")


@pytest.mark.parametrize(
    ("resource", "actions", "decision", "remark"),
    [
        ("Topic:T", "Pub", "Perhaps", "The decision is null or illegal."),
        ("Topic:T", "Any", "Allow", "The actions can not be Any."),
        (
            "Topic:T",
            "Publish",
            "Allow",
            "'Publish' is no action; there are Pub, Sub, Create, Update, Delete, Get, List",
        ),
        ("Topic", "Pub", "Allow", "'Topic' is no resource; write Topic:NAME"),
        ("Topic:", "Pub", "Allow", "'Topic:' is no resource"),
        ("Queue:T", "Pub", "Allow", "'Queue:T' is no resource"),
        ("Topic:a*b", "Pub", "Allow", "'Topic:a*b' has a * that is not at its end"),
        ("Topic:d\u00e9part", "Sub", "Deny", "'Topic:d\u00e9part' names what no topic can be called"),
        ("Topic:de\u0301part*", "Sub", "Deny", "'Topic:de\u0301part*' names what no topic can be called"),
        ("Group:a\nb", "Sub", "Deny", "'Group:a\\nb' names what no group can be called"),
        ("Topic:a\0", "Sub", "Deny", "'Topic:a\\x00' names what no topic can be called"),
        ("Topic: a", "Sub", "Deny", "'Topic: a' names what no topic can be called"),
        (
            "Topic:%RETRY%g",
            "Sub",
            "Deny",
            "'Topic:%RETRY%g' names a retry topic, of which the right to",
        ),
        (
            "Group:%RETRY%*",
            "Sub",
            "Deny",
            "'Group:%RETRY%*' names a retry topic, of which the right to",
        ),
    ],
)
async def test_wrong_policies_are_refused_whole(
    users: UserWires, admin: BrokerWire, resource: str, actions: str, decision: str, remark: str
) -> None:
    await users.new_user(admin, "desk")
    answer = await put_policy(admin, "desk", resource, actions, decision)
    assert (answer.code, str(answer.remark)[: len(remark)]) == (16, remark)
    assert (await admin.broker(C.AUTH_GET_ACL, {"subject": "User:desk"})).body == b""


async def test_a_policy_that_was_kept_with_a_name_that_none_has_can_be_taken_away() -> None:
    table = UserTable()
    user = {"password": "secret", "userType": "Normal", "userStatus": "enable"}
    entry = {"resource": "Topic:%RETRY%g", "actions": ["Sub"], "source_ips": [], "decision": "Deny"}
    table.load(json.dumps({"userTable": {"desk": {**user, "policies": {"Custom": [entry], "Default": []}}}}))
    table.delete_policies("User:desk", None, "Topic:%RETRY%g")
    desk = table.get("desk")
    assert desk is not None
    assert not desk.policies


async def test_policies_are_for_one_user_who_is_there(users: UserWires, admin: BrokerWire) -> None:
    await users.new_user(admin, "desk")
    nobody = await put_policy(admin, "nobody", "Topic:T", "Pub")
    assert (nobody.code, nobody.remark) == (16, "The subject is not exist.")
    address = await put_policy(admin, "desk", "Topic:T", "Pub", source_ips=("10.0.0.300",))
    assert (address.code, address.remark) == (16, "The source ip is invalid.")
    entry = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
    acl = {"subject": "User:administrator", "policies": [{"entries": [entry]}]}
    other = await admin.broker(C.AUTH_CREATE_ACL, {"subject": "User:desk"}, json.dumps(acl).encode())
    assert (other.code, other.remark) == (16, "The subjects of header and body differ.")


def whole(storage: MemoryStorage) -> bytes:
    file = storage.open(USERS)
    return file.read(0, file.size())


async def test_users_and_policies_are_there_after_a_crash_once_they_were_answered() -> None:
    storage = MemoryStorage()
    async with broker_with_access(storage=storage) as users:
        admin = await users.wire(ADMIN)
        await users.new_user(admin, "desk", ("Topic:T", "Pub", "Allow"))
        assert b'"desk"' in whole(storage)
    async with broker_with_access(storage=storage) as users:
        wire = await users.wire(keys_of("desk"))
        assert (await wire.send("T")).code == 0
        assert (await wire.send("U")).code == 16


async def test_the_file_of_users_is_private() -> None:
    async with broker_with_access() as users:
        assert users.broker.persister.users.file._private
        assert not users.broker.persister.topics.file._private


async def test_the_first_user_stays_as_he_is_there() -> None:
    storage = MemoryStorage()
    async with broker_with_access(storage=storage) as first:
        admin = await first.wire(ADMIN)
        assert (await put_user(admin, C.AUTH_UPDATE_USER, ADMIN.access_key, password="changed later")).code == 0
    async with broker_with_access(storage=storage) as second:
        assert (await (await second.wire(ADMIN)).send("T")).code == 16


async def test_a_file_that_holds_no_users_is_no_empty_table() -> None:
    storage = MemoryStorage()
    async with broker_with_access(storage=storage):
        pass
    file = storage.open(USERS)
    file.truncate(0)
    file.write(0, [b'{ "userTable": {"desk": {"password": "secret-of-desk"}}}'])
    with pytest.raises(StoreCorruptError) as caught:
        async with broker_with_access(storage=storage):
            pass
    assert "secret-of" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"authentication-enabled": True, "acl-enable": True, "acl-file": "f"}, "are both set"),
        ({"acl-enable": True}, "acl-file is not: nobody could do anything"),
        ({"acl-file": "f"}, "acl-enable is not: everybody could do everything"),
        ({"authorization-enabled": True}, "authentication-enabled is not"),
        ({"init-authentication-user": '{"username":"u","password":"hunter2"}'}, "authentication-enabled is not"),
        ({**ACL_2, "init-authentication-user": "hunter2"}, "init-authentication-user: it is no JSON"),
        ({**ACL_2, "init-authentication-user": '{"user":"hunter2"}'}, "it is no object of username and password"),
        ({**ACL_2, "init-authentication-user": '{"username":"hunter2"}'}, "password is missing or no text"),
        ({**ACL_2, "init-authentication-user": ["hunter2"]}, "init-authentication-user: not a text"),
        ({**ACL_2, "inner-client-authentication-credentials": "hunter2"}, "credentials: it is no JSON"),
        (
            {**ACL_2, "inner-client-authentication-credentials": '{"accessKey":"administrator","secretKey":"hunter2"}'},
            "name the same user, with different keys",
        ),
        ({"registration-addresses": "10.0.0.0/99"}, "registration-addresses is '10.0.0.0/99'"),
        ({"acl-enable": True, "acl-file": "/nowhere/plain_acl.yml"}, "cannot be read: No such file or directory"),
    ],
)
async def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with broker_with_access(settings):
            pass
    assert what in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_private_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "authUsers.json"
    file = ConfigFile(path, RealStorage(), private=True)
    for text in (b'{"first":1}', b'{"second":2}'):
        file.persist([text])
    of_it = (path, Path(f"{path}.bak"), Path(f"{path}.crc"))
    assert {stat.S_IMODE(each.stat().st_mode) for each in of_it} == {0o600}


def test_a_private_file_that_is_damaged_is_in_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config" / "authUsers.json"
    path.parent.mkdir()
    sound, damaged = '{"userTable":{}}', '{"userTable":{"root":{"password":planted"}}}'
    path.write_text(damaged)
    with pytest.raises(StoreError, match="it is not JSON") as caught:
        ConfigFile(path, RealStorage(), private=True).load()
    assert "planted" not in str(caught.value)
    assert "planted" not in str(ConfigFile(path, RealStorage(), private=True).problems())
    (finding,) = check_tables(RealStorage(), str(tmp_path))
    assert "planted" not in str(finding)
    Path(f"{path}.bak").write_text(sound)
    assert ConfigFile(path, RealStorage(), private=True).load() == sound
    assert "cannot be used" in caplog.text
    assert "planted" not in caplog.text


def test_nobody_reads_a_private_file_who_has_opened_what_was_in_its_place(tmp_path: Path) -> None:
    """As whoever may list the directory could, between its making and a change of its mode, or after a kill then."""
    path, fresh = tmp_path / "authUsers.json", tmp_path / "authUsers.json.tmp"
    fresh.write_bytes(b"")
    with fresh.open("rb") as opened:
        ConfigFile(path, RealStorage(), private=True).persist([b'{"root":{"password":"planted"}}'])
        assert opened.read() == b""
    assert b"planted" in path.read_bytes()
    fresh.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="a symbolic link stands in place of the file"):
        ConfigFile(path, RealStorage(), private=True).persist([b"{}"])
    assert fresh.is_symlink()


def test_a_private_file_is_made_so(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    before = os.umask(0)
    try:
        RealStorage().make_private_file(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
