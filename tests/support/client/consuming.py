"""What the tests of consumers share: servers, and a handler that remembers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rocketbox.client import Admin, Producer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.message import Message, MessageExt
from tests.support.waiting import until

__all__ = ["Seen", "dead_letters", "send_all", "servers"]


def servers(directory: Path, *, name_server_port: int = 0, port: int = 0) -> EmbeddedServers:
    """A name server and a broker that keep their data in directory, and reserve no room on the disk."""
    return EmbeddedServers(
        EmbeddedOptions(data_dir=directory, name_server_port=name_server_port, port=port, broker={"allocate-ahead": 0})
    )


class Seen:
    """A handler that remembers what it got, and raises or returns what it is told to, once for each body."""

    def __init__(self, failures: dict[bytes, list[Exception]] | None = None) -> None:
        self.messages: list[MessageExt] = []
        self.batches: list[int] = []
        self._failures = failures or {}

    async def __call__(self, batch: list[MessageExt]) -> None:
        self.messages.extend(batch)
        self.batches.append(len(batch))
        for message in batch:
            if errors := self._failures.get(message.body):
                raise errors.pop(0)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    def counts(self) -> Counter[bytes]:
        return Counter(self.bodies)

    async def all_of(self, bodies: Iterable[bytes]) -> None:
        """Return when each of bodies has come at least once."""
        wanted = set(bodies)
        try:
            await until(lambda: wanted <= set(self.bodies), "all messages")
        except AssertionError:
            missing = sorted(wanted - set(self.bodies))
            raise AssertionError(f"{len(missing)} of {len(wanted)} did not come, such as {missing[:5]}") from None


async def send_all(producer: Producer, topic: str, bodies: Sequence[bytes], tag: str | None = None) -> None:
    """Send one message for each body, to all queues in turn."""
    for body in bodies:
        await producer.send(Message(topic, body, tag=tag))


async def dead_letters(admin: Admin, group: str) -> list[MessageExt]:
    """What the group's dead-letter topic holds."""
    found: list[MessageExt] = []
    for queue in await admin.queues(f"%DLQ%{group}"):
        offset, end = await admin.min_offset(queue), await admin.max_offset(queue)
        while offset < end:
            result = await admin.pull(queue, offset, 32)
            found.extend(result.messages)
            offset = result.next_begin_offset
    return found
