"""Where a group's offsets are kept: at the brokers, or for broadcasting in a file on this machine.

What may be committed is said by ``process_queue``; the stores only read and write.

Source: Apache RocketMQ 5.x ``RemoteBrokerOffsetStore``, ``LocalFileOffsetStore`` (path and content of the file). Unlike
there a commit is acknowledged by the broker and repeated until it is, an unchanged one is not sent again, and the file
is replaced as a whole.
"""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import anyio

from rocketbox.client.api.offsets import query_consumer_offset, update_consumer_offset
from rocketbox.client.failure_log import SeldomLog
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.errors import ClientError, RemoteProtocolError, RemotingError, RocketBoxError
from rocketbox.handoff import run_blocking
from rocketbox.message import MessageQueue
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.tasks import Supervisor

__all__ = [
    "LocalOffsetStore",
    "OffsetStore",
    "RemoteOffsetStore",
    "decode_offsets",
    "default_offset_dir",
    "encode_offsets",
]

_log = logging.getLogger(__name__)

OFFSET_TIMEOUT = 5.0  # seconds


class OffsetStore(Protocol):
    """Reads and writes the offsets of one group."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The committed offset; None when there is none. Raises RocketBoxError when it cannot be found out."""

    async def persist(self, queues: Iterable[ProcessQueue]) -> None:
        """Write the commit offsets that queues have when their turn comes, if they are not dropped by then.

        What cannot be written is logged, and written with the next call that has it.
        """

    def forget(self, queue: MessageQueue) -> None:
        """The queue is another member's now: nothing known of it counts any longer."""


class RemoteOffsetStore:
    """Offsets at the queue's broker (codes 14 and 15): its master, or a slave while that is away."""

    def __init__(self, group: str, instance: MQClientInstance) -> None:
        self._group = group
        self._instance = instance
        self._acknowledged: dict[MessageQueue, int] = {}
        self._told = SeldomLog(instance.clock)

    async def read(self, queue: MessageQueue) -> int | None:
        instance = self._instance
        address = instance.broker_address(queue.broker_name, master=False)
        offset = await query_consumer_offset(instance.remoting, address, self._group, queue, timeout=OFFSET_TIMEOUT)
        if offset is not None:
            self._acknowledged[queue] = offset
        return offset

    async def persist(self, queues: Iterable[ProcessQueue]) -> None:
        by_broker: dict[str, list[ProcessQueue]] = defaultdict(list)
        for messages in queues:
            by_broker[messages.queue.broker_name].append(messages)
        if len(by_broker) <= 1:
            for some in by_broker.values():
                await self._persist_at_one(some)
            return
        async with Supervisor(f"offsets of {self._group}", self._instance.clock) as tasks:
            brokers = [  # side by side: a silent one must not use up the time of the others
                tasks.start(name, self._persist_at_one, some, restart=False) for name, some in by_broker.items()
            ]
            for broker in brokers:
                await broker.wait()

    async def _persist_at_one(self, queues: Sequence[ProcessQueue]) -> None:
        instance = self._instance
        for messages in queues:
            # Read now, not before: a queue may have been given up while its neighbours were written, and an old offset
            # would overwrite what its next owner has committed.
            queue, offset = messages.queue, messages.commit_offset
            if self._acknowledged.get(queue) == offset or messages.dropped:
                continue
            try:
                await update_consumer_offset(
                    instance.remoting,
                    instance.broker_address(queue.broker_name, master=False),
                    self._group,
                    queue,
                    offset,
                    timeout=OFFSET_TIMEOUT,
                )
            except RocketBoxError as error:
                if self._told.due(queue.broker_name):
                    _log.warning("group %s: offset %d of %s is not committed yet: %s",
                                 self._group, offset, queue, error)  # fmt: skip
                if isinstance(error, RemotingError):
                    return  # its other queues would only wait as long
            else:
                self._acknowledged[queue] = offset
                self._told.over(queue.broker_name)

    def forget(self, queue: MessageQueue) -> None:
        self._acknowledged.pop(queue, None)


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The text of ``offsets.json`` as fastjson writes it, with objects as keys (5.5.0 refuses keys that are text)."""
    entries = [
        "{\n\t\t\t"
        f'"brokerName":{json.dumps(queue.broker_name)},\n\t\t\t"queueId":{queue.queue_id},\n\t\t\t'
        f'"topic":{json.dumps(queue.topic)}\n\t\t}}:{offset}'
        for queue, offset in sorted(offsets.items())
    ]
    table = "{\n\t\t" + ",\n\t\t".join(entries) + "\n\t}" if entries else "{}"
    return ('{\n\t"offsetTable":' + table + "\n}").encode()


def decode_offsets(data: bytes) -> dict[MessageQueue, int]:
    """The offsets of an ``offsets.json``, keys as objects or as text. Raises ValueError when it is not one."""
    body = loads_loose(data)
    table = body.get("offsetTable") if isinstance(body, dict) else None
    if not isinstance(table, dict):
        raise ValueError("it has no offsetTable")
    offsets = {}
    for key, offset in table.items():
        queue = loads_loose(key)
        if not isinstance(queue, dict) or not isinstance(offset, int):
            raise ValueError(f"{key!r}: {offset!r} is not a queue and its offset")
        try:
            offsets[MessageQueue(str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"]))] = offset
        except KeyError as missing:
            raise ValueError(f"queue {key!r} has no {missing}") from None
    return offsets


def default_offset_dir() -> Path:
    """``~/.rocketmq_offsets``, as Java's clients have it."""
    return Path.home() / ".rocketmq_offsets"


class LocalOffsetStore:
    """Offsets in ``<directory>/<client>/<group>/offsets.json``, which Java's clients read and write as well.

    The file is replaced as a whole (written beside, synced, renamed), the one before stays as ``offsets.json.bak``.
    """

    def __init__(self, directory: Path, client: str, group: str) -> None:
        self.path = directory / client / group / "offsets.json"
        self._backup = self.path.with_name("offsets.json.bak")
        self._offsets: dict[MessageQueue, int] | None = None
        self._writing = anyio.Lock()

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset in the file. Raises ClientError when the file and its backup are both damaged."""
        return (await self._loaded()).get(queue)

    async def persist(self, queues: Iterable[ProcessQueue]) -> None:
        async with self._writing:
            known = await self._loaded()
            merged = known | {messages.queue: messages.commit_offset for messages in queues if not messages.dropped}
            if merged == known:
                return
            try:
                await run_blocking(self._write, merged)
            except OSError as error:
                _log.warning("cannot write offsets to %s, they are written again later: %s", self.path, error)
            else:
                self._offsets = merged

    def forget(self, queue: MessageQueue) -> None:
        """Nothing is forgotten: with broadcasting a queue has no other owner."""

    async def _loaded(self) -> dict[MessageQueue, int]:
        if self._offsets is None:
            self._offsets = await run_blocking(self._load)
        return self._offsets

    def _load(self) -> dict[MessageQueue, int]:
        damage = None
        for path in (self.path, self._backup):
            try:
                return decode_offsets(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RemoteProtocolError) as error:
                _log.warning("cannot read offsets from %s: %s", path, error)
                damage = error
        if damage is not None:
            raise ClientError(
                f"{self.path} is damaged and there is no good backup beside it: {damage}; remove it to begin where "
                "consume_from_where says"
            ) from damage
        return {}

    def _write(self, offsets: Mapping[MessageQueue, int]) -> None:
        directory = self.path.parent
        directory.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name("offsets.json.new")
        with fresh.open("wb") as file:
            file.write(encode_offsets(offsets))
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            os.replace(self.path, self._backup)  # a crash between the two leaves the backup, which is read then
        os.replace(fresh, self.path)
        directory_descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(directory_descriptor)
        finally:
            os.close(directory_descriptor)
