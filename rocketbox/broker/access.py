"""Access control as the broker's settings have it: which kind, whose accounts, and by which keys the servers sign.

``acl-enable`` takes accounts from a file (ACL 1.0, ``plain_acl.yml``), which is read again when it changes;
``authentication-enabled`` keeps users and policies in the store (ACL 2.0). It is one or the other. The broker signs
what it sends to name servers as an account of the servers' own: the one that
``inner-client-authentication-credentials`` names, else one that is made for this start and known to nobody else. What
is signed by that goes to the name server beside it alone, since others could send it again (:class:`InnerSigner`).

Source: Apache RocketMQ 4.9.7 ``AclFileWatchService``; 5.x ``AuthConfig``, ``AuthenticationMetadataManagerImpl``.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rocketbox.access.accounts import EVERYTHING, Account
from rocketbox.access.addresses import AddressMatch, source_match
from rocketbox.access.control import AccessControl
from rocketbox.access.plain import PlainAccounts, PlainTable
from rocketbox.access.users import SUPER, UserError, UserTable
from rocketbox.blocking import run_blocking
from rocketbox.broker.options import BrokerOptions
from rocketbox.clock import Clock
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.protocol.auth_bodies import UserInfo
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.remoting.acl import Credentials, RequestSigner
from rocketbox.remoting.signing import SigningKey

__all__ = [
    "InnerSigner",
    "PlainAclFile",
    "ServerAccess",
    "access_findings",
    "inner_signers",
    "registration_sources",
    "server_access",
]

_log = logging.getLogger(__name__)

LOOKS_EVERY = 1.0  # seconds between two looks at the file of accounts
SETTLED_AFTER = 0.1  # seconds between two looks at one that has changed, which must be alike
INNER_NAME = "rocketbox-servers-"
_UNREAD = (-1, -1, -1)  # of a file of accounts: the state of none


class PlainAclFile:
    """The file of accounts of ACL 1.0, and the table that was last read from it without a fault."""

    def __init__(
        self, path: Path, accounts: PlainAccounts, clock: Clock, trusts_everybody: Callable[[], None] | None = None
    ) -> None:
        self._path = path
        self._trusts_everybody = trusts_everybody
        self._accounts = accounts
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None

    def read(self, *, again: bool = False) -> PlainTable:
        """What it says now. Raises ConfigurationError with everything that is wrong with it.

        One that is read ``again`` and is empty is wrong: whoever writes it anew makes it empty first.
        """
        from rocketbox.access.plain_file import LARGEST, read_plain_acl  # only who has such a file loads YAML

        label = str(self._path)
        state, self._seen = self._state(), _UNREAD  # what keeps it from being read may pass, and leave it as it is
        try:
            if state is not None and not self._path.is_file():  # reading a pipe would wait for who writes to it
                what = f"the file of accounts {label} is no plain file"
                raise ConfigurationError(Finding(what, label, "let acl-file name a plain_acl.yml"))
            with self._path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(LARGEST + 1)
        except OSError as error:
            what = f"the file of accounts {label} cannot be read: {error.strerror}"
            raise ConfigurationError(Finding(what, label, "let acl-file name a plain_acl.yml")) from None
        self._seen = state
        try:
            if len(data) > LARGEST:
                what = f"the file of accounts {label} has more than {LARGEST} bytes"
                raise ConfigurationError(Finding(what, label, "shorten it"))
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            what = f"the file of accounts {label} is not UTF-8: byte {error.start}"
            raise ConfigurationError(Finding(what, label, "save it as UTF-8")) from None
        if again and not text.strip():
            what = f"the file of accounts {label} is empty"
            raise ConfigurationError(Finding(what, label, "write accounts: [] to take all of them away"))
        table = read_plain_acl(text, label)
        if table.trusts_everybody and self._trusts_everybody is not None:
            self._trusts_everybody()
        if mode & stat.S_IWOTH:
            _log.warning(
                "every user of this machine may change the file of accounts %s, and so give himself all rights; take "
                "that from them (chmod o-w)", label,
            )  # fmt: skip
        return table

    async def watch(self) -> None:
        """Read it again when it has changed; what is wrong is told, and the table before stays.

        What cannot be read is tried at each look, and told once.
        """
        told = ""
        while True:
            await self._clock.sleep(LOOKS_EVERY)
            try:
                if await self._has_changed():
                    self._accounts.replace(await run_blocking(partial(self.read, again=True)))
                    told = ""
                    _log.info("accounts were read again from %s: %d", self._path, len(self._accounts.table.accounts))
            except ConfigurationError as error:
                if self._seen != _UNREAD or str(error) != told:
                    _log.error("the file of accounts has changed and cannot be used, those before stay:\n%s", error)
                told = str(error)

    async def _has_changed(self) -> bool:
        """Whether it is another one than was read, and nobody writes it just now: two looks have found the same."""
        state = await run_blocking(self._state)
        while state != self._seen:
            before = state
            await self._clock.sleep(SETTLED_AFTER)
            state = await run_blocking(self._state)
            if state == before:
                return True
        return False

    def _state(self) -> tuple[int, int, int] | None:
        """What tells two versions of the file apart, that of a link's target; None when there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class InnerSigner:
    """Signs a broker's requests to name servers ``at`` some addresses; None: wherever they are.

    What is signed holds neither time nor code, so whoever gets it may send it again and ask for something else by it.
    """

    def __init__(self, credentials: Credentials, at: Sequence[str] | None) -> None:
        self._signer = RequestSigner(credentials)
        self._at = None if at is None else frozenset(at)

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """Sign a command for whom it may be signed."""
        if self._at is None or address in self._at:
            self._signer.before_request(address, command)

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        """Nothing: a broker sends no messages."""
        return b""

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        """An answer is not signed."""


@dataclass(frozen=True, kw_only=True)
class ServerAccess:
    """Access control of a broker and of the name server beside it."""

    control: AccessControl
    inner: Credentials
    """By which the broker signs what it sends to name servers."""
    inner_is_said: bool = False
    """Whether other servers know it: it stands in the settings."""
    users: UserTable | None = None
    """ACL 2.0's."""
    file: PlainAclFile | None = None
    """ACL 1.0's."""
    init_user: UserInfo | None = None

    def signer(self, beside: Sequence[str]) -> InnerSigner:
        """What signs for the broker; ``beside`` are the addresses of the name servers that know its own account."""
        return InnerSigner(self.inner, None if self.inner_is_said else beside)

    def ready(self) -> None:
        """Make the first user, if the table has been read and he is not there, and say what may surprise.

        Who has the name by which the servers sign, as in the settings that Apache shows, is there by that account.
        """
        if self.users is None:
            return
        if self.init_user is not None and self.init_user.username != self.inner.access_key:
            known = self.users.get(self.init_user.username or "")
            if known is None:
                self.users.create(self.init_user)
                _log.info("user %a was made (init-authentication-user)", self.init_user.username)
            elif known.password != self.init_user.password:
                _log.warning(
                    "user %a of init-authentication-user is there already with another password, which stays",
                    known.name,
                )
        if not self.users.authorizes:
            _log.warning(
                "authorization-enabled is not set: every user may read, write and delete what belongs to others; what "
                "policies say counts for changes of users and registrations of brokers alone"
            )
        if not self.users.has_a_super_user and not self.inner_is_said:
            _log.warning(
                "nobody can administer users here: there is no enabled super user, and init-authentication-user "
                "names none"
            )


def access_findings(options: BrokerOptions, prefix: str = "") -> list[Finding]:
    """What is wrong with the settings of access control, apart from what stands in a file."""
    findings = []
    if options.acl_enable and (options.authentication_enabled or options.authorization_enabled):
        what = f"{prefix}acl-enable (ACL 1.0) and {prefix}authentication-enabled (ACL 2.0) are both set"
        findings.append(Finding(what, fix="choose one of the two"))
    if options.acl_enable and not options.acl_file:
        what = f"{prefix}acl-enable is set and {prefix}acl-file is not: nobody could do anything"
        findings.append(Finding(what, fix=f"let {prefix}acl-file name a plain_acl.yml"))
    if options.acl_file and not options.acl_enable:
        what = f"{prefix}acl-file is set and {prefix}acl-enable is not: everybody could do everything"
        findings.append(Finding(what, fix=f"set {prefix}acl-enable: true, or leave the file out"))
    if options.authorization_enabled and not options.authentication_enabled:
        what = f"{prefix}authorization-enabled is set and {prefix}authentication-enabled is not"
        findings.append(Finding(what, fix=f"set {prefix}authentication-enabled: true as well"))
    if options.init_authentication_user is not None and not options.authentication_enabled:
        what = f"{prefix}init-authentication-user is set and {prefix}authentication-enabled is not"
        findings.append(Finding(what, fix=f"set {prefix}authentication-enabled: true, or leave the user out"))
    first, inner = "init-authentication-user", "inner-client-authentication-credentials"
    keys: dict[str, str | None] = {}  # of each that is said, by its name
    for setting, read in ((first, _init_user), (inner, _inner)):
        try:
            said = read(options)
        except _SettingError as error:
            findings.append(Finding(f"{prefix}{setting}: {error}", fix=f"write {prefix}{setting}: '{error.args[1]}'"))
            continue
        name, key = _name_and_key(said)
        if name is not None and keys.setdefault(name, key) != key:
            what = f"{prefix}{first} and {prefix}{inner} name the same user, with different keys"
            findings.append(Finding(what, fix="give both the same key, or each a name of its own"))
    try:
        registration_sources(options)
    except ValueError:
        what = f"{prefix}registration-addresses is {options.registration_addresses!r}"
        findings.append(Finding(what, fix="write addresses or networks, for example 10.0.0.7,10.1.0.0/16"))
    return findings


def server_access(
    options: BrokerOptions, clock: Clock, trusts_everybody: Callable[[], None] | None = None
) -> ServerAccess | None:
    """What the settings ask for; None: everybody may do everything. Raises ConfigurationError.

    ``trusts_everybody`` is called for a file of accounts that asks signatures of nobody, and may raise it: now, and
    whenever the file is read again, then in another thread.
    """
    findings = access_findings(options)
    if findings:
        raise ConfigurationError(findings)
    if not (options.acl_enable or options.authentication_enabled):
        return None
    said = _inner(options)
    inner = said or Credentials(access_key=INNER_NAME + clock.uuid(), secret_key=clock.secret())
    own = Account(inner.access_key, SigningKey(inner.secret_key), EVERYTHING)
    cluster = options.broker_cluster_name
    if options.acl_enable:
        plain = PlainAccounts()
        file = PlainAclFile(Path(options.acl_file or ""), plain, clock, trusts_everybody)
        plain.replace(file.read())
        control = AccessControl(plain, clock, cluster=cluster, own=own)
        return ServerAccess(control=control, inner=inner, inner_is_said=said is not None, file=file)
    users = UserTable(authorize=options.authorization_enabled, reserved=own.name)
    control = AccessControl(users, clock, cluster=cluster, own=own)
    return ServerAccess(
        control=control, inner=inner, inner_is_said=said is not None, users=users, init_user=_init_user(options)
    )


def inner_signers(options: BrokerOptions, access: ServerAccess | None, beside: Sequence[str]) -> list[InnerSigner]:
    """What signs for a broker with such access control, or with none: other servers may ask for what this one does not.

    ``beside`` as in :meth:`ServerAccess.signer`.
    """
    if access is not None:
        return [access.signer(beside)]
    said = _inner(options)
    return [] if said is None else [InnerSigner(said, None)]


def registration_sources(options: BrokerOptions) -> tuple[AddressMatch, ...] | None:
    """From where brokers may register, beside this machine; None: not said. Raises ValueError."""
    text = options.registration_addresses
    if text is None:
        return None
    return tuple(source_match(each) for each in text.split(",") if each.strip())


def _init_user(options: BrokerOptions) -> UserInfo | None:
    shape = '{"username":"NAME","password":"PASSWORD"}'
    values = _json_setting(options.init_authentication_user, ("username", "password"), shape)
    if values is None:
        return None
    info = UserInfo(username=values["username"], password=values["password"], user_type=SUPER)
    try:
        UserTable().create(info)
    except UserError as error:
        raise _SettingError(str(error), shape) from None
    return info


def _inner(options: BrokerOptions) -> Credentials | None:
    shape = '{"accessKey":"KEY","secretKey":"SECRET"}'
    values = _json_setting(options.inner_client_authentication_credentials, ("accessKey", "secretKey"), shape)
    if values is None:
        return None
    return Credentials(access_key=values["accessKey"], secret_key=values["secretKey"])


def _name_and_key(said: UserInfo | Credentials | None) -> tuple[str | None, str | None]:
    if isinstance(said, Credentials):
        return said.access_key, said.secret_key
    return (None, None) if said is None else (said.username, said.password)


class _SettingError(ValueError):
    """What is wrong, and what would be right; without what was written."""

    def __str__(self) -> str:
        return str(self.args[0])


def _json_setting(text: str | None, names: tuple[str, ...], shape: str) -> dict[str, str] | None:
    """The values of a setting in JSON, as Apache has it; None when it is not set."""
    if text is None:
        return None
    try:
        values: Any = loads_loose(text)
    except (ValueError, RecursionError):
        raise _SettingError("it is no JSON", shape) from None
    if not isinstance(values, dict) or not values.keys() <= {*names}:
        raise _SettingError("it is no object of " + " and ".join(names), shape)
    for name in names:
        value = values.get(name)
        if not isinstance(value, str) or not value.strip():
            raise _SettingError(f"{name} is missing or no text", shape)
    return values
