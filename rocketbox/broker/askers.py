"""Whose requests are to be answered: by the correlation id of each, the user who has sent it.

A reply goes to the client whose id it names (REPLY_TO_CLIENT). That id is no secret, it stands in every request, and
anybody may say to be that client. With access control the broker therefore remembers who has signed a request, and
hands a reply to a connection of that user alone. The first one counts who sends a correlation id: whoever has read it
in the request comes too late. A reply to a request that is not remembered reaches nobody, for nothing says whose it
is; the broker that took the request remembers it, and repliers try that one next. What is remembered is kept in a file,
``config/askers.json``, which is written each second with requests and when the broker stops.

Source: own design; Apache's broker hands a reply to whoever has said the client id last.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Protocol

from rocketbox.broker.property_text import find_property
from rocketbox.broker.table_text import encode_entry, table_pieces
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.protocol.request_reply import CORRELATION_ID, REPLY_TO_CLIENT

__all__ = ["ASKS_FOR_REPLY", "Askers"]

ASKS_FOR_REPLY: Final = REPLY_TO_CLIENT.encode()
"""The property by which a message is a request."""
_CORRELATION_ID = CORRELATION_ID.encode()
_LONGEST_ID = 128  # bytes of an id that is kept as it is; a UUID has 36


class ChangeFile(Protocol):
    """Where they are kept; see ``TableFile``."""

    def mark(self) -> int: ...


class Askers:
    """The users of the last ``most`` requests; about 300 bytes each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._file: ChangeFile | None = None
        self._users: OrderedDict[bytes, str | None] = OrderedDict()
        self._ids: dict[str | None, OrderedDict[bytes, None]] = {}  # of each user
        self.forgotten = 0
        """Requests of which there was no more room to know: their replies reach nobody."""

    def __len__(self) -> int:
        return len(self._users)

    def keep_in(self, file: ChangeFile) -> None:
        """Mark changes there; until then they are in memory only."""
        self._file = file

    def note(self, properties: bytes, user: str | None) -> None:
        """A message with these properties was signed by ``user``; None: by nobody, where it had not to be."""
        correlation_id = _id_of(properties)
        if not correlation_id or correlation_id in self._users:
            return
        self._note(correlation_id, user)
        if self._file is not None:
            self._file.mark()

    def _note(self, correlation_id: bytes, user: str | None) -> None:
        own = self._ids.setdefault(user, OrderedDict())
        own[correlation_id] = None
        self._users[correlation_id] = user
        if len(self._users) > self._most:
            self._forget(user)

    def _forget(self, user: str | None) -> None:
        """Make room: of who has more than his share his own oldest, so that nobody pushes others out."""
        if len(self._ids[user]) * len(self._ids) > self._most:
            correlation_id, _ = self._ids[user].popitem(last=False)
        else:
            correlation_id = next(iter(self._users))
            user = self._users[correlation_id]
            del self._ids[user][correlation_id]
        if not self._ids[user]:
            del self._ids[user]
        del self._users[correlation_id]
        self.forgotten += 1

    def knows(self, properties: bytes) -> bool:
        """Whether the request is remembered that a reply with these properties answers."""
        return _id_of(properties) in self._users

    def user_of(self, properties: bytes) -> str | None:
        """Who has signed that request, if it is remembered, and was signed."""
        correlation_id = _id_of(properties)
        return None if correlation_id is None else self._users.get(correlation_id)

    # --- on disk ---

    def pieces(self) -> Iterator[bytes]:
        """The text of the file: the user of each correlation id, the oldest first."""
        keys = [each.decode("utf-8", "surrogateescape") for each in self._users]
        yield from table_pieces([], [("requests", keys, self._text)])

    def _text(self, key: str) -> bytes | None:
        correlation_id = key.encode("utf-8", "surrogateescape")
        known = correlation_id in self._users  # it may have gone meanwhile
        return encode_entry(key, self._users[correlation_id]) if known else None

    def load(self, text: str, file: str = "askers.json") -> None:
        """Add what a file holds. Raises StoreCorruptError when it is not one, without what is in it."""
        try:
            requests = loads_loose(text)["requests"].items()
            found = [(key.encode("utf-8", "surrogateescape"), user) for key, user in requests]
        except (ValueError, KeyError, TypeError, AttributeError):
            found = [(b"", 0)]
        if not all(each and isinstance(user, str | None) for each, user in found):
            raise StoreCorruptError(file, 0, "it does not hold who has sent requests")
        for each, user in found:
            if each not in self._users:
                self._note(each, user)


def _id_of(properties: bytes) -> bytes | None:
    """The correlation id; of a long one a digest, which is longer than any other that is kept."""
    found = find_property(properties, _CORRELATION_ID)
    if found is None or len(found) <= _LONGEST_ID:
        return found
    return b"%b%b" % (found[:_LONGEST_ID], hashlib.sha256(found).digest())
