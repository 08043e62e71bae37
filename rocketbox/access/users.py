"""Users and policies of ACL 2.0: the table, its rules, and its form on disk (``config/authUsers.json``).

The file holds passwords as they are, as Apache's store does: whoever checks an HMAC needs the key itself. Only the
file's owner may read it. A user's policies stand with him, so that a deletion takes both in one step.

Source: Apache RocketMQ 5.x ``AuthenticationMetadataManagerImpl``, ``AuthorizationMetadataManagerImpl``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocketbox.access.accounts import (
    EVERYTHING,
    LAST_WITHOUT_UNIQUE_KEY_QUERY,
    UNIQUE_KEY_QUERY,
    Account,
    Rights,
)
from rocketbox.access.policies import (
    ANY_ACTION,
    CUSTOM,
    DEFAULT,
    Policies,
    PolicyEntry,
    PolicyRights,
    Resource,
    read_resource,
)
from rocketbox.access.resources import Action, Need, name_problem
from rocketbox.errors import RocketBoxError, StoreCorruptError
from rocketbox.protocol.auth_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.remoting.signing import SIGNATURE, SigningKey

__all__ = ["NORMAL", "SUPER", "ChangeFile", "User", "UserError", "UserTable", "read_entry"]

SUPER, NORMAL = "Super", "Normal"
ENABLED, DISABLED = "enable", "disable"
ALLOW, DENY = "Allow", "Deny"
SUBJECT_PREFIX = "User:"
LONGEST_NAME = 255  # characters of a name or password
MOST_USERS = 10_000
MOST_ENTRIES = 1_000  # of one user's policies


class UserError(RocketBoxError):
    """What an administrator asked for cannot be done; ``code`` is the answer's."""

    def __init__(self, remark: str, code: ResponseCode = ResponseCode.NO_PERMISSION) -> None:
        self.code = code
        super().__init__(remark)


class ChangeFile(Protocol):
    """Where a table is kept; see the broker's ``TableFile``."""

    def mark(self) -> int: ...

    async def written(self, change: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class User:
    """One user; a super user may do everything."""

    name: str
    password: str = field(repr=False)
    is_super: bool = False
    enabled: bool = True
    policies: Policies = field(default_factory=Policies)

    def info(self) -> UserInfo:
        """Without the password, which nobody is told."""
        return UserInfo(
            username=self.name,
            user_type=SUPER if self.is_super else NORMAL,
            user_status=ENABLED if self.enabled else DISABLED,
        )

    def acl(self, of_resource: str = "") -> AclInfo:
        """His policies, of them the entries whose resource has that text in it."""
        found = []
        for policy in (CUSTOM, DEFAULT):
            entries = [each for each in map(_entry_info, self.policies.of(policy)) if of_resource in str(each.resource)]
            if entries:
                found.append(PolicyInfo(policy_type=policy, entries=tuple(entries)))
        return AclInfo(subject=SUBJECT_PREFIX + self.name, policies=tuple(found))

    def account(self) -> Account:
        """What checks of requests need of him."""
        rights: Rights = EVERYTHING if self.is_super else PolicyRights(self.name, self.policies)
        return Account(self.name, SigningKey(self.password), rights)


class UserTable:
    """All users, as ``Accounts`` of signed requests. A change counts at once; the number that comes back is for
    :meth:`written`. Raises UserError for what cannot be done. Nobody can be made or changed who is called ``reserved``:
    the account of the servers is before him.
    """

    denied = ResponseCode.NO_PERMISSION
    unsigned = "username cannot be null."

    def __init__(self, *, authorize: bool = True, reserved: str | None = None) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.authorizes = authorize
        """Whether users need rights; else a signature is all that most requests take."""
        self._reserved = reserved
        self._file: ChangeFile | None = None
        self._users: dict[str, User] = {}
        self._accounts: dict[str, Account] = {}

    def keep_in(self, file: ChangeFile) -> None:
        """Mark changes there; until then the table is in memory only."""
        self._file = file

    # --- whose request it is ---

    def find(self, access_key: str) -> Account | None:
        return self._accounts.get(access_key)

    def trusts(self, host: str, access_key: str | None) -> bool:
        return False

    def wrong_signature(self, access_key: str) -> str:
        return "check signature failed."

    def leaves_out(self, version: int) -> tuple[tuple[str, ...], ...]:
        return ((SIGNATURE, UNIQUE_KEY_QUERY),) if version <= LAST_WITHOUT_UNIQUE_KEY_QUERY else ((SIGNATURE,),)

    def may_ask(self, need: Need) -> bool:
        return not (self.authorizes or need.always)

    # --- users ---

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    def all(self, part: str = "") -> list[User]:
        """Those whose name has that text in it, by their names."""
        return [user for name, user in sorted(self._users.items()) if part in name]

    @property
    def has_a_super_user(self) -> bool:
        """Whether somebody can administer this table."""
        return any(user.is_super and user.enabled for user in self._users.values())

    def create(self, info: UserInfo) -> int:
        """Add a user; Normal and enabled unless it is said."""
        name, password = _checked_name(info.username), info.password
        if password is None or not password.strip():
            raise UserError("password can not be blank")
        if name in self._users or name == self._reserved:
            raise UserError("The user is existed")
        if len(self._users) >= MOST_USERS:
            raise UserError(f"there are {len(self._users)} users; {MOST_USERS} is the most")
        return self._put(
            User(
                name=name,
                password=_checked_password(password),
                is_super=_is_super(info.user_type) or False,
                enabled=_is_enabled(info.user_status) is not False,
            )
        )

    def update(self, info: UserInfo) -> int:
        """Change what is said of a user, and nothing else."""
        user = self._users.get(info.username or "")
        if user is None:
            raise UserError("The user is not exist")
        password = info.password if info.password is not None and info.password.strip() else None
        is_super, enabled = _is_super(info.user_type), _is_enabled(info.user_status)
        return self._put(
            dataclasses.replace(
                user,
                password=user.password if password is None else _checked_password(password),
                is_super=user.is_super if is_super is None else is_super,
                enabled=user.enabled if enabled is None else enabled,
            )
        )

    def delete(self, name: str) -> int:
        """Forget a user with his policies; nothing, if there is none."""
        self._users.pop(name, None)
        self._accounts.pop(name, None)
        return self._changed()

    # --- policies ---

    def subject(self, text: str | None) -> User:
        """The user of a subject, ``User:name``."""
        name = (text or "").removeprefix(SUBJECT_PREFIX)
        if text is None or not text.startswith(SUBJECT_PREFIX):
            raise UserError("The subject is no user; write User:NAME")
        user = self._users.get(name)
        if user is None:
            raise UserError("The subject is not exist.")
        return user

    def add_policies(self, subject: str | None, acl: AclInfo) -> int:
        """Add entries to those of a subject, each in place of the one for the same resource."""
        user = self.subject(subject)
        if acl.subject not in (None, "", subject):
            raise UserError("The subjects of header and body differ.")
        if not acl.policies:
            raise UserError("The policies is empty.")
        policies = user.policies
        for policy in acl.policies:
            if not policy.entries:
                raise UserError("The policy entries is empty.")
            policies = policies.with_entries(_policy_type(policy.policy_type), map(_new_entry, policy.entries))
        if len(policies) > MOST_ENTRIES:
            raise UserError(f"the policies would have {len(policies)} entries; {MOST_ENTRIES} is the most")
        return self._put(dataclasses.replace(user, policies=policies))

    def delete_policies(self, subject: str | None, policy: str | None, resource: str | None) -> int:
        """Take the entry for a resource away, or without one all that is said of a subject."""
        user = self.subject(subject)
        if not user.policies:
            raise UserError("The acl is not exist.")
        left = Policies()
        if resource is not None and resource.strip():
            left = user.policies.without(_policy_type(policy), _resource(resource))
        return self._put(dataclasses.replace(user, policies=left))

    # --- on disk ---

    async def written(self, change: int) -> None:
        """Return when a change is on the disk. Raises StoreError when it cannot be written."""
        if self._file is not None:
            await self._file.written(change)

    def pieces(self) -> Iterator[bytes]:
        """The text of the file."""
        yield b'{"userTable":{'
        separator = b"\n"
        for name in sorted(self._users):
            user = self._users.get(name)
            if user is not None:  # it may have gone meanwhile
                yield separator + json.dumps(name).encode() + b":" + json.dumps(_to_json(user)).encode()
                separator = b",\n"
        yield b"}}\n"

    def load(self, text: str, file: str = "authUsers.json") -> None:
        """Add what a file holds. Raises StoreCorruptError when it is not one; passwords are in no error."""
        users = _users_in(text)
        if users is None:
            del text  # what shows the variables of a failure shows none of it
            raise StoreCorruptError(file, 0, "it does not hold users and their policies")
        for user in users:
            self._keep(user)

    def _put(self, user: User) -> int:
        if user.name == self._reserved:  # whatever was said of him would not count
            raise UserError(
                "The user is the servers' own, and may everything; his key is that of "
                "inner-client-authentication-credentials"
            )
        self._keep(user)
        return self._changed()

    def _keep(self, user: User) -> None:
        self._users[user.name] = user
        if user.enabled:
            self._accounts[user.name] = user.account()
        else:
            self._accounts.pop(user.name, None)

    def _changed(self) -> int:
        for tell in self.on_change:
            tell()
        return 0 if self._file is None else self._file.mark()


def read_entry(info: PolicyEntryInfo) -> PolicyEntry:
    """An entry as an administrator wrote it. Raises UserError."""
    if not info.actions:
        raise UserError("The actions is empty.")
    decision = (info.decision or "").lower()
    if decision not in (ALLOW.lower(), DENY.lower()):
        raise UserError("The decision is null or illegal.")
    try:
        return PolicyEntry(
            resource=_resource(info.resource),
            actions=_actions(info.actions),
            allow=decision == ALLOW.lower(),
            source_ips=info.source_ips,
        )
    except ValueError:
        raise UserError("The source ip is invalid.") from None


def _new_entry(info: PolicyEntryInfo) -> PolicyEntry:
    """As :func:`read_entry`, of a new one: what would never count is refused, for it may be a denial."""
    entry = read_entry(info)
    kind, name = entry.resource.kind, entry.resource.name
    if kind is not None and name is not None and (problem := name_problem(kind, name)) is not None:
        raise UserError(f"{str(entry.resource)[:100]!r} names {problem[0]}; {problem[1]}")
    return entry


def _entry_info(entry: PolicyEntry) -> PolicyEntryInfo:
    actions = (ANY_ACTION,) if entry.actions is None else tuple(sorted(each.value for each in entry.actions))
    return PolicyEntryInfo(
        resource=str(entry.resource),
        actions=actions,
        source_ips=entry.source_ips,
        decision=ALLOW if entry.allow else DENY,
    )


def _resource(text: str | None) -> Resource:
    try:
        return read_resource((text or "").strip())
    except ValueError as error:
        raise UserError(str(error)) from None


def _actions(texts: Iterable[str]) -> frozenset[Action] | None:
    known = {action.value.lower(): action for action in Action}
    found = set()
    everything = False
    for text in texts:
        name = text.strip().lower()
        if name == "any":
            raise UserError("The actions can not be Any.")
        if name == ANY_ACTION.lower():
            everything = True
        elif name in known:
            found.add(known[name])
        else:
            names = ", ".join([*(action.value for action in Action), ANY_ACTION])
            raise UserError(f"{text[:100]!r} is no action; there are {names}")
    return None if everything else frozenset(found)


def _policy_type(text: str | None) -> str:
    if text is None or not text.strip() or text.lower() == CUSTOM.lower():
        return CUSTOM
    if text.lower() == DEFAULT.lower():
        return DEFAULT
    raise UserError(f"{text[:100]!r} is no type of policies; there are {CUSTOM} and {DEFAULT}")


def _is_super(text: str | None) -> bool | None:
    if text is None or not text.strip():
        return None
    if text.lower() not in (SUPER.lower(), NORMAL.lower()):
        raise UserError(f"{text[:100]!r} is no type of users; there are {SUPER} and {NORMAL}")
    return text.lower() == SUPER.lower()


def _is_enabled(text: str | None) -> bool | None:
    if text is None or not text.strip():
        return None
    if text.lower() not in (ENABLED, DISABLED):
        raise UserError(f"{text[:100]!r} is no status of users; there are {ENABLED} and {DISABLED}")
    return text.lower() == ENABLED


def _checked_name(name: str | None) -> str:
    if name is None or not name.strip():
        raise UserError("username can not be blank", ResponseCode.INVALID_PARAMETER)
    if len(name) > LONGEST_NAME or not name.isprintable():
        what = f"a user's name has up to {LONGEST_NAME} characters that can be printed"
        raise UserError(what, ResponseCode.INVALID_PARAMETER)
    return name


def _checked_password(password: str) -> str:
    if len(password) > LONGEST_NAME or not password.isprintable():
        what = f"a password has up to {LONGEST_NAME} characters that can be printed"
        raise UserError(what, ResponseCode.INVALID_PARAMETER)
    return password


def _to_json(user: User) -> Mapping[str, Any]:
    info = user.info()
    return {
        "password": user.password,
        "userType": info.user_type,
        "userStatus": info.user_status,
        "policies": {
            policy: [dataclasses.asdict(_entry_info(entry)) for entry in user.policies.of(policy)]
            for policy in (CUSTOM, DEFAULT)
        },
    }


def _users_in(text: str) -> list[User] | None:
    """The users of a file; None where it does not hold them. It raises nothing: its variables are secrets."""
    try:
        return [_from_json(name, values) for name, values in loads_loose(text)["userTable"].items()]
    except (ValueError, KeyError, TypeError, AttributeError, RocketBoxError):
        return None


def _from_json(name: str, values: Mapping[str, Any]) -> User:
    def entries(policy: str) -> tuple[PolicyEntry, ...]:
        return tuple(
            read_entry(
                PolicyEntryInfo(
                    resource=each["resource"],
                    actions=tuple(each["actions"]),
                    source_ips=tuple(each["source_ips"]),
                    decision=each["decision"],
                )
            )
            for each in values["policies"][policy]
        )

    return User(
        name=_checked_name(name),
        password=_checked_password(values["password"]),
        is_super=_is_super(values["userType"]) is True,
        enabled=_is_enabled(values["userStatus"]) is True,
        policies=Policies(custom=entries(CUSTOM), default=entries(DEFAULT)),
    )
