"""Whose requests are to be answered: by the correlation id of each, the user who has sent it.

A reply goes to the client whose id it names (REPLY_TO_CLIENT). That id is no secret, it stands in every request, and
anybody may say to be that client. With access control the broker therefore remembers who has signed a request, and
hands a reply to a connection of that user alone. The first one counts who sends a correlation id: whoever has read it
in the request comes too late.

Source: own design; Apache's broker hands a reply to whoever has said the client id last.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

from rocketbox.broker.property_text import find_property
from rocketbox.protocol.request_reply import CORRELATION_ID, REPLY_TO_CLIENT

__all__ = ["ASKS_FOR_REPLY", "Askers"]

ASKS_FOR_REPLY: Final = REPLY_TO_CLIENT.encode()
"""The property by which a message is a request."""
_CORRELATION_ID = CORRELATION_ID.encode()
_LONGEST_ID = 128  # bytes of an id that is kept as it is; a UUID has 36


class Askers:
    """The users of the last ``most`` requests; about 300 bytes each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._users: OrderedDict[bytes, str] = OrderedDict()
        self._ids: dict[str, OrderedDict[bytes, None]] = {}  # of each user
        self.forgotten = 0
        """Requests of which there was no more room to know: their replies go by the client id alone."""

    def __len__(self) -> int:
        return len(self._users)

    def note(self, properties: bytes, user: str) -> None:
        """A message with these properties was signed by ``user``."""
        correlation_id = _id_of(properties)
        if not correlation_id or correlation_id in self._users:
            return
        own = self._ids.setdefault(user, OrderedDict())
        own[correlation_id] = None
        self._users[correlation_id] = user
        if len(self._users) > self._most:
            self._forget(user)

    def _forget(self, user: str) -> None:
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

    def user_of(self, properties: bytes) -> str | None:
        """Who has sent the request that a reply with these properties answers, if that is known here."""
        correlation_id = _id_of(properties)
        return None if correlation_id is None else self._users.get(correlation_id)


def _id_of(properties: bytes) -> bytes | None:
    """The correlation id; of a long one a digest, which is longer than any other that is kept."""
    found = find_property(properties, _CORRELATION_ID)
    if found is None or len(found) <= _LONGEST_ID:
        return found
    return b"%b%b" % (found[:_LONGEST_ID], hashlib.sha256(found).digest())
