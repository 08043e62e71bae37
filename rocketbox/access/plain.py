"""Accounts of ACL 1.0, as ``plain_acl.yml`` has them: what each may, and who needs not sign.

How the file is read is ``plain_file``'s part. Rights are PUB and SUB of topics and SUB of groups, and being an
administrator. From the table of needs, which is that of ACL 2.0, follows what each request takes here: to PUB or SUB
that right; to look at a topic or group either of them; the cluster, and making and deleting, an administrator.

Source: Apache RocketMQ 4.9.7 ``PlainPermissionManager``, ``PlainAccessValidator``, ``Permission``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag

from rocketbox.access.accounts import EVERYTHING, LAST_WITHOUT_UNIQUE_KEY_QUERY, UNIQUE_KEY_QUERY, Account
from rocketbox.access.addresses import AddressMatch, everybody
from rocketbox.access.resources import ADMINISTRATION, Action, Kind, Need
from rocketbox.protocol.codes import ResponseCode
from rocketbox.remoting.signing import SIGNATURE, SigningKey

__all__ = ["Perm", "PlainAccount", "PlainAccounts", "PlainRights", "PlainTable"]

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SHOWN = 100  # characters of an access key that an answer repeats
_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "  # by which clients know a refusal: its code is 1


class Perm(Flag):
    """What may be done with a topic or group."""

    DENY = 0
    PUB = 4
    SUB = 8


@dataclass(frozen=True, kw_only=True)
class PlainRights:
    """What one account may. An administrator of whom no topic or group is said may everything."""

    name: str
    admin: bool = False
    default_topic_perm: Perm = Perm.DENY
    default_group_perm: Perm = Perm.DENY
    topic_perms: Mapping[str, Perm] = field(default_factory=dict)
    group_perms: Mapping[str, Perm] = field(default_factory=dict)

    @property
    def are_everything(self) -> bool:
        return self.admin and not self.topic_perms and not self.group_perms

    def refusal(self, need: Need, host: str) -> str | None:
        if need.kind is Kind.CLUSTER or (not ADMINISTRATION.isdisjoint(need.actions) and _asked(need) is None):
            if self.admin:
                return None
            return f"{_EXCEPTION}Need admin permission for request code={{code}}, but accessKey={self.name} is not"
        asked = _asked(need) or Perm.PUB | Perm.SUB
        if need.kind is Kind.TOPIC and need.name == TRACE_TOPIC and Perm.PUB in asked:  # also who asks for its route
            return None
        if self._owned(need) & asked:
            return None
        return f"{_EXCEPTION}No default permission for {need.kind.value.lower()}:{need.name}"

    def _owned(self, need: Need) -> Perm:
        if need.kind is Kind.GROUP:
            return self.group_perms.get(need.name, self.default_group_perm)
        if need.by_name:
            return self.topic_perms.get(need.name, Perm.DENY)
        if need.name in self.topic_perms or need.group is None:
            return self.topic_perms.get(need.name, self.default_topic_perm)
        owned = self.group_perms.get(need.group, self.default_group_perm)
        return Perm.PUB | Perm.SUB if owned & Perm.SUB else Perm.DENY  # who consumes in a group has its dead letters


def _asked(need: Need) -> Perm | None:
    """Which of the two rights; either, where both would do; None: neither is meant."""
    asked = Perm.DENY
    if Action.PUB in need.actions:
        asked |= Perm.PUB
    if Action.SUB in need.actions:
        asked |= Perm.SUB
    return asked or None


@dataclass(frozen=True, kw_only=True)
class PlainAccount:
    """One account of the file."""

    rights: PlainRights
    secret_key: str = field(repr=False)
    trusted: AddressMatch | None = field(default=None, repr=False)
    """From where it needs neither signature nor rights (``whiteRemoteAddress``)."""

    def account(self) -> Account:
        """What checks of requests need of it."""
        rights = EVERYTHING if self.rights.are_everything else self.rights
        return Account(self.rights.name, SigningKey(self.secret_key), rights)


@dataclass(frozen=True, kw_only=True)
class PlainTable:
    """What a file says, as a whole."""

    accounts: Mapping[str, PlainAccount] = field(default_factory=dict)
    trusted: Sequence[AddressMatch] = ()
    """From where nobody needs an account (``globalWhiteRemoteAddresses``)."""

    @property
    def trusts_everybody(self) -> bool:
        """Whether signatures are asked of nobody, or of nobody who writes a certain access key."""
        return everybody in (*self.trusted, *(account.trusted for account in self.accounts.values()))


class PlainAccounts:
    """The table that counts, as ``Accounts`` of signed requests; replaced as a whole when the file has changed."""

    denied = ResponseCode.SYSTEM_ERROR
    unsigned = f"{_EXCEPTION}No accessKey is configured"

    def __init__(self, table: PlainTable | None = None) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.replace(table or PlainTable())

    def replace(self, table: PlainTable) -> None:
        """From now on this table counts."""
        self.table = table
        self._accounts = {name: account.account() for name, account in table.accounts.items()}
        for tell in self.on_change:
            tell()

    def find(self, access_key: str) -> Account | None:
        return self._accounts.get(access_key)

    def trusts(self, host: str, access_key: str | None) -> bool:
        if any(matches(host) for matches in self.table.trusted):
            return True
        account = None if access_key is None else self.table.accounts.get(access_key)
        return account is not None and account.trusted is not None and account.trusted(host)

    def wrong_signature(self, access_key: str) -> str:
        return f"{_EXCEPTION}Check signature failed for accessKey={access_key[:SHOWN]}"

    def leaves_out(self, version: int) -> tuple[tuple[str, ...], ...]:
        """4.9.7 leaves the field out whatever the version, its own clients sign it: from them both are right."""
        without = (SIGNATURE, UNIQUE_KEY_QUERY)
        return (without,) if version <= LAST_WITHOUT_UNIQUE_KEY_QUERY else (without, (SIGNATURE,))

    def may_ask(self, need: Need) -> bool:
        return False
