"""Access control of a server: whose a request is, and whether he may; asked before anything else is done with it.

A request is looked at when it has come, by ``guard``: its signature, then what its code needs. What only a handler can
know (names in a body, the topic of a message that it has read) it asks with ``refusal``; what needs no answer of access
control stands in no table and goes no further than this. Requests of a broker to its clients are not signed and do not
come here.

A key that nobody has and a signature that is wrong get one answer after one work: both are read in full, and one HMAC
is made. The quicker way is open only to a connection over which that key's user has already signed.

Source: Apache RocketMQ 5.x ``AuthenticationPipeline``, ``AuthorizationPipeline``; 4.9.7 ``PlainPermissionManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from hmac import compare_digest
from typing import Final

from rocketbox.access.accounts import Account, Accounts
from rocketbox.access.addresses import host_of
from rocketbox.access.needs import Fields, needs_by_code
from rocketbox.access.resources import Need
from rocketbox.access.signed_sends import MOST_SHAPES, SendForm, SendShape, cut_send
from rocketbox.clock import Clock
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.rare_log import RareLog
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.signing import ACCESS_KEY, SIGNATURE, SigningKey

__all__ = ["AccessControl"]

_log = logging.getLogger(__name__)

LONGEST_REMARK = 500  # characters; names in it are what the peer has written
LONGEST_KEY = 255  # characters of an access key that somebody may have
SEND_MESSAGE_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_PROVED = "access.proved"  # attribute of a connection: the accounts that have signed over it
_HOST = "access.host"
MOST_PROVED = 64  # of one connection


class AccessControl:
    """That of one server, or of a broker and its name server together.

    ``own`` is the account of the servers themselves, before all others: nobody can change or take it.
    """

    def __init__(self, accounts: Accounts, clock: Clock, *, cluster: str, own: Account | None = None) -> None:
        self.accounts = accounts
        self._own = own
        self._needs = needs_by_code(cluster)
        self._clock = clock
        self._nobody = SigningKey(clock.secret())  # checked against where there is no account
        self._shapes: dict[SendForm, SendShape] = {}
        self._log = RareLog(_log)
        self.refused = 0
        """How many requests were not let through."""

    def guard(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """The refusal of a request for which there is a handler; None lets it through.

        Raises RemoteProtocolError for fields that cannot be read.
        """
        host = _host(connection)
        cut = cut_send(request) if request.code == SEND_MESSAGE_V2 else None
        if cut is not None:
            shape = self._shapes.get(cut.form)
            if (
                shape is not None
                and shape.account in connection.attributes.get(_PROVED, ())
                and self.find(shape.access_key) is shape.account
                and shape.is_signed(cut, request.body)
            ):
                request.replace_raw_header(cut.header)
                return self._answer(connection, request, shape.account, shape.needs, host)
        fields = request.ext_fields
        access_key = fields.get(ACCESS_KEY)
        if self.accounts.trusts(host, access_key):
            return None
        if access_key is None:
            return self._refuse(connection, request, self.accounts.unsigned, "it is not signed")
        account = self._authenticate(access_key, request)
        if account is None:
            remark = self.accounts.wrong_signature(access_key)
            return self._refuse(connection, request, remark, "it is not signed by a user that is known here")
        rule = self._needs.get(request.code)
        if rule is None:
            remark = f"nothing is said here of who may send request {request.code}"
            return self._refuse(connection, request, remark, remark)
        needs = rule(fields)
        proved = connection.attributes.setdefault(_PROVED, [])
        if account not in proved:
            if len(proved) >= MOST_PROVED:
                proved.clear()
            proved.append(account)
        if cut is not None and (shape := SendShape.of(cut, fields, account, needs)) is not None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            self._shapes[cut.form] = shape
        return self._answer(connection, request, account, needs, host)

    def refusal(
        self, connection: Connection, request: RemotingCommand, needs: Iterable[Need]
    ) -> RemotingCommand | None:
        """The refusal of a request that :meth:`guard` has let through, for what its handler has read in it, or for what
        was taken from its user meanwhile.
        """
        fields: Fields = request.ext_fields
        host = _host(connection)
        access_key = fields.get(ACCESS_KEY)
        if self.accounts.trusts(host, access_key):
            return None
        account = None if access_key is None else self.find(access_key)
        if account is None:  # it was deleted meanwhile
            remark = self.accounts.unsigned if access_key is None else self.accounts.wrong_signature(access_key)
            return self._refuse(connection, request, remark, "its user is gone")
        return self._answer(connection, request, account, needs, host)

    def may_still(self, connection: Connection, access_key: str | None, needs: Iterable[Need]) -> bool:
        """Whether who has signed over a connection with this access key (None: with none) would be let through now."""
        host = _host(connection)
        if self.accounts.trusts(host, access_key):
            return True
        account = None if access_key is None else self.find(access_key)
        return account is not None and all(
            self.accounts.may_ask(need) or account.refusal(need, host) is None for need in needs
        )

    def find(self, access_key: str) -> Account | None:
        """Whose key it is: the servers' own account, or one of the accounts."""
        own = self._own
        return own if own is not None and access_key == own.name else self.accounts.find(access_key)

    @staticmethod
    def has_signed(connection: Connection, access_key: str) -> bool:
        """Whether a request that came over a connection was signed by this key's user."""
        return any(account.name == access_key for account in connection.attributes.get(_PROVED, ()))

    def user_of(self, connection: Connection, request: RemotingCommand) -> Account | None:
        """Who has signed a request that :meth:`guard` has let through; None for one that needed no signature, whatever
        access key it names: nobody has looked whether that signs it.
        """
        access_key = request.ext_fields.get(ACCESS_KEY)
        if access_key is None or self.accounts.trusts(_host(connection), access_key):
            return None
        return self.find(access_key)

    def _authenticate(self, access_key: str, request: RemotingCommand) -> Account | None:
        account = self.find(access_key) if len(access_key) <= LONGEST_KEY else None
        key = self._nobody if account is None else account.key
        given = request.ext_fields.get(SIGNATURE, "").encode("utf-8", "replace")
        right = False
        for leave_out in self.accounts.leaves_out(request.version):
            right |= compare_digest(key.signature(request.ext_fields, request.body, leave_out), given)
        return account if right else None

    def _answer(
        self, connection: Connection, request: RemotingCommand, account: Account, needs: Iterable[Need], host: str
    ) -> RemotingCommand | None:
        for need in needs:
            if self.accounts.may_ask(need):
                continue
            remark = account.refusal(need, host)
            if remark is not None:
                remark = remark.replace("{code}", str(request.code), 1)[:LONGEST_REMARK]
                return self._refuse(connection, request, remark, f"its user may not: {remark}")
        return None

    def _refuse(self, connection: Connection, request: RemotingCommand, remark: str, why: str) -> RemotingCommand:
        self.refused += 1
        self._log.tell(
            logging.WARNING, self._clock.monotonic(), ("refused", request.code), "request %d of %s is refused: %s",
            request.code, connection.remote_address, ascii(why)[1:-1],
        )  # fmt: skip
        return RemotingCommand.response(self.accounts.denied, remark)


def _host(connection: Connection) -> str:
    host: str | None = connection.attributes.get(_HOST)
    if host is None:
        host = connection.attributes[_HOST] = host_of(connection.remote_address)
    return host
