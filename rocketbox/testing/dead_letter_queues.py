"""Reads the dead-letter queues of groups from real brokers, from where they ended before the run.

A group's is the topic ``%DLQ%<group>``. Apache's broker makes it with the first message that the group gives up, on the
broker that has the message; it is readable from Apache 4.9 on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio

from rocketbox.client import Admin
from rocketbox.errors import NoRouteError, RemoteProtocolError, RocketBoxError
from rocketbox.message import MessageExt, MessageQueue
from rocketbox.protocol.codes import dlq_topic

__all__ = ["DeadLetterQueues"]

Group = tuple[str | None, str]
"""The first name of its cluster, and its name."""


class DeadLetterQueues:
    """``found(cluster, group, message)`` is called with each message that comes into one."""

    def __init__(self, found: Callable[[str | None, str, MessageExt], object]) -> None:
        self._found = found
        self._admins: dict[Group, Admin] = {}
        self._next: dict[tuple[Group, MessageQueue], int] = {}
        self._reading = anyio.Lock()  # two who read at once would find each message twice

    def __contains__(self, group: Group) -> bool:
        return group in self._admins

    async def watch(self, group: Group, admin: Admin) -> None:
        """Read that of a group as well, from its end on. ``admin`` asks in the group's namespace."""
        for queue in await _queues(admin, group[1]):
            self._next[group, queue] = await admin.max_offset(queue)
        self._admins[group] = admin

    def close(self) -> None:
        """Read none any more."""
        self._admins.clear()

    async def read(self) -> None:
        """Find all that has come since. Raises RocketBoxError where a server does not say."""
        async with self._reading:
            for group, admin in list(self._admins.items()):
                for queue in await _queues(admin, group[1]):
                    await self._read(group, queue, admin)

    async def read_if_possible(self) -> None:
        """The same, without an error: somebody reads again."""
        with suppress(RocketBoxError):
            await self.read()

    async def _read(self, group: Group, queue: MessageQueue, admin: Admin) -> None:
        place = group, queue
        while (offset := self._next.get(place, 0)) < await admin.max_offset(queue):
            messages, following = await _messages(admin, queue, offset)
            if following <= offset:
                return
            self._next[place] = following
            for message in messages:
                self._found(*group, message)


async def _queues(admin: Admin, group: str) -> list[MessageQueue]:
    try:
        return await admin.queues(dlq_topic(group))
    except NoRouteError:  # nothing was ever given up
        return []


async def _messages(admin: Admin, queue: MessageQueue, offset: int) -> tuple[list[MessageExt], int]:
    """What is there from an offset on, and the offset behind it; a message that cannot be unpacked as it is."""
    try:
        found = await admin.pull(queue, offset)
    except RemoteProtocolError:
        try:
            found = await admin.pull(queue, offset, 1)
        except RemoteProtocolError:
            found = await admin.pull(queue, offset, 1, decompress=False)
    return list(found.messages), found.next_begin_offset
