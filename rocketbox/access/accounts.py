"""Accounts: by whose key a request is signed, and what he may.

What the two kinds of access control know of accounts stands behind ``Accounts``: ``plain`` is ACL 1.0's, ``users``
ACL 2.0's.

Source: own design, for what Apache RocketMQ 4.9.7 ``PlainPermissionManager`` and 5.x ``auth`` have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from rocketbox.access.resources import Need
from rocketbox.protocol.codes import ResponseCode
from rocketbox.remoting.signing import SigningKey
from rocketbox.safe_repr import also_when_unmade

__all__ = ["EVERYTHING", "LAST_WITHOUT_UNIQUE_KEY_QUERY", "UNIQUE_KEY_QUERY", "Account", "Accounts", "Rights"]

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
LAST_WITHOUT_UNIQUE_KEY_QUERY: Final = 399  # 4.9.3: its clients add the field behind the signature
MOST_DECISIONS = 10_000  # that an account remembers
LONGEST_REMEMBERED = 255  # characters of a name; topics and groups have no longer ones


class Rights(Protocol):
    """What an account may."""

    def refusal(self, need: Need, host: str) -> str | None:
        """Why it may not do this from there, for the remark of the answer, in which ``{code}`` is the request's.

        None when it may.
        """


class _Everything:
    def refusal(self, need: Need, host: str) -> str | None:
        return None


EVERYTHING: Final[Rights] = _Everything()


class Account:
    """One user's key and rights, as they are: a change makes a new one, so that what was decided is decided anew."""

    __slots__ = ("_decisions", "_rights", "is_super", "key", "name")

    def __init__(self, name: str, key: SigningKey, rights: Rights) -> None:
        self.name = name
        self.key = key
        self.is_super = rights is EVERYTHING
        self._rights = rights
        self._decisions: dict[tuple[Need, str], str | None] = {}

    def refusal(self, need: Need, host: str) -> str | None:
        """As :meth:`Rights.refusal`; asked once for each."""
        if self.is_super:
            return None
        if len(need.name) > LONGEST_REMEMBERED:
            return self._rights.refusal(need, host)
        try:
            return self._decisions[need, host]
        except KeyError:
            if len(self._decisions) >= MOST_DECISIONS:
                self._decisions.clear()
            found = self._decisions[need, host] = self._rights.refusal(need, host)
            return found

    @also_when_unmade
    def __repr__(self) -> str:
        return f"<Account {self.name[:4]!r}...>"


class Accounts(Protocol):
    """All accounts of a kind, and how that kind says no."""

    denied: ResponseCode
    """The code of every refusal."""
    unsigned: str
    """The remark to a request without an access key."""
    on_change: list[Callable[[], None]]
    """Called in the loop when an account came or went, or may something else from now on."""

    def find(self, access_key: str) -> Account | None:
        """The account, if it is there and not disabled."""

    def trusts(self, host: str, access_key: str | None) -> bool:
        """Whether what comes from there needs neither signature nor rights."""

    def wrong_signature(self, access_key: str) -> str:
        """The remark to a request that this key's user has not signed, or whose user nobody knows: the same."""

    def leaves_out(self, version: int) -> tuple[tuple[str, ...], ...]:
        """Which fields of a peer of that version are not signed; one way of them must fit."""

    def may_ask(self, need: Need) -> bool:
        """Whether a signature is all that this takes, whoever's."""
