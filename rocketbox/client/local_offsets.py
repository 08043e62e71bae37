"""The offsets of broadcasting consumers: a file on this machine, since there each member consumes all queues.

    <directory>/<client>/<group>/offsets.json           what Java's clients read and write as well (with a namespace,
                                                        names in it and that of the group are as servers know them)
    <directory>/<client>/<namespace>@<group>/...        the same in a namespace V2: a server may know other topics of
                                                        these names in it; Java's clients leave it out. No group's
                                                        name has an @, so it is no folder of a namespace V1
                                 offsets.json.bak       the one before
                                 offsets.json.damaged   one that could not be read, kept for who wants to look at it
                                 offsets.json.new       half of the next one
                                 offsets.json.lock      locked by the process that has the others, holds its id

The next one is written beside and synced before the file becomes ``.bak`` and the new one takes its name: after a crash
at any moment one of the two can be read. What may be committed is said by ``process_queue``.

Source: Apache RocketMQ 5.x ``LocalFileOffsetStore`` (path and content of the file). Unlike there the file is synced and
never written in place, and two consumers of one machine cannot have the same one, unless one of them is Java's.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TypeGuard
from urllib.parse import quote
from weakref import WeakKeyDictionary

import anyio

from rocketbox.blocking import run_briefly
from rocketbox.client.failure_log import PERIOD
from rocketbox.client.identity import call_in_forks
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.clock import Clock
from rocketbox.errors import ClientError, ClientStateError, RemoteProtocolError, StoreLockedError
from rocketbox.message import MessageQueue
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.protocol.namespaces import NO_NAMESPACE, Namespace
from rocketbox.rare_log import RareLog
from rocketbox.storage.file_system import LockHandle, Storage

__all__ = ["LocalOffsetStore", "decode_offsets", "default_offset_dir", "encode_offsets"]

_log = logging.getLogger(__name__)


def encode_offsets(offsets: Mapping[MessageQueue, int], namespace: Namespace = NO_NAMESPACE) -> bytes:
    """The text of ``offsets.json`` as fastjson writes it, with objects as keys (5.5.0 refuses keys that are text).

    Topics stand in it as servers know them.
    """
    entries = [
        "{\n\t\t\t"
        f'"brokerName":{json.dumps(queue.broker_name)},\n\t\t\t"queueId":{queue.queue_id},\n\t\t\t'
        f'"topic":{json.dumps(namespace.wrap(queue.topic))}\n\t\t}}:{offset}'
        for queue, offset in sorted(offsets.items())
    ]
    table = "{\n\t\t" + ",\n\t\t".join(entries) + "\n\t}" if entries else "{}"
    return ('{\n\t"offsetTable":' + table + "\n}").encode()


def decode_offsets(data: bytes, namespace: Namespace = NO_NAMESPACE) -> dict[MessageQueue, int]:
    """The offsets of an ``offsets.json``, keys as objects or as text. Raises ValueError when it is not one."""
    body = loads_loose(data)
    table = body.get("offsetTable") if isinstance(body, dict) else None
    if not isinstance(table, dict):
        raise ValueError("it has no offsetTable")
    offsets = {}
    for key, offset in table.items():
        queue = loads_loose(key)
        fields = (queue.get("topic"), queue.get("brokerName"), queue.get("queueId")) if isinstance(queue, dict) else ()
        match fields:
            case (str(topic), str(broker_name), queue_id) if _is_number(queue_id, 31) and _is_number(offset, 63):
                offsets[MessageQueue(namespace.unwrap(topic), broker_name, queue_id)] = offset
            case _:
                raise ValueError(f"{key!r}: {offset!r} is not a queue and its offset")
    return offsets


def _is_number(value: object, bits: int) -> TypeGuard[int]:
    """Whether it is what Java has in an int or long, and not below 0."""
    return type(value) is int and 0 <= value < 1 << bits


def default_offset_dir() -> Path:
    """``~/.rocketmq_offsets``, as Java's clients have it."""
    return Path.home() / ".rocketmq_offsets"


class LocalOffsetStore:
    """The offsets of one group in its file. While it is entered, nobody else on this machine may have the same file.

    Two members of a group that share it would overwrite each other's offsets, and of two clusters each other's queues.
    """

    _entered: ClassVar[WeakKeyDictionary[Storage, set[tuple[int, str]]]] = WeakKeyDictionary()
    """Process and path of each: a fork does not have what its parent has."""

    def __init__(
        self,
        storage: Storage,
        directory: Path,
        client: str,
        group: str,
        clock: Clock,
        namespace: Namespace = NO_NAMESPACE,
        namespace_v2: str | None = None,
    ) -> None:
        folder = namespace.wrap(group) if namespace_v2 is None else f"{quote(namespace_v2, safe='')}@{group}"
        self.path = directory / client / folder / "offsets.json"
        self._without_namespace = directory / client / group / "offsets.json"
        self._namespace_v2 = namespace_v2
        self._namespace = namespace
        self._storage = storage
        self._group = group
        self._claim: tuple[int, str] | None = None
        self._lock: LockHandle | None = None
        self._offsets: dict[MessageQueue, int] | None = None
        self._damaged = False  # the file itself; .bak is good
        self._reading = anyio.Lock()
        self._writing = anyio.Lock()
        self._clock = clock
        self._told = RareLog(_log, PERIOD)

    async def __aenter__(self) -> Self:
        claim = (os.getpid(), str(self.path.absolute()))
        entered = self._entered.setdefault(self._storage, set())
        if claim in entered:
            raise self._is_taken("this process")
        entered.add(claim)
        self._claim = claim
        try:
            await run_briefly(self._take_lock)
        except BaseException:
            self._let_go()
            raise
        call_in_forks(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()

    def _take_lock(self) -> None:
        path = f"{self.path}.lock"
        try:
            self._storage.make_directories(str(self.path.parent))
            self._lock = self._storage.lock(path)
            self._lock.write(str(os.getpid()).encode())
        except StoreLockedError as error:
            number = self._read(path).decode(errors="replace")
            raise self._is_taken(f"process {number}" if number else "another process") from error
        except OSError as error:  # a directory for reading only, or a file system without locks
            _log.warning("cannot lock %s, so nothing keeps other processes from it: %s", path, error)

    def _is_taken(self, where: str) -> ClientStateError:
        return ClientStateError(
            f"another broadcasting consumer of group {self._group!r} in {where} keeps its offsets in {self.path}; "
            "give one of them an instance_name (ClientOptions; rocketmq.consumer.instance-name) or local_offset_dir "
            "(ConsumerOptions) of its own"
        )

    def _let_go(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
        if self._claim is not None:
            self._entered[self._storage].discard(self._claim)

    def forked(self) -> None:
        """This process is a child of the one that has the file."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.leave_to_parent()

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset in the file. Raises ClientError when the file and its backup are both damaged."""
        return (await self._loaded()).get(queue)

    def behind(self, queues: Iterable[ProcessQueue]) -> list[ProcessQueue]:
        """Those of queues whose offset is not what the file holds."""
        known = self._offsets
        return [messages for messages in queues if known is None or known.get(messages.queue) != messages.commit_offset]

    async def persist(self, queues: Iterable[ProcessQueue], *, wait: bool = False) -> None:
        """Have the file hold the offsets of queues too; when it cannot be written that is logged, and done later."""
        if self._writing.locked() and not wait:
            return  # a slow disk is not waited for by more and more
        async with self._writing:
            known = await self._loaded()
            merged = known | {messages.queue: messages.commit_offset for messages in queues if not messages.dropped}
            if merged == known:
                return
            try:
                await run_briefly(self._write, encode_offsets(merged, self._namespace))
            except OSError as error:
                self._told.tell(
                    logging.WARNING, self._clock.monotonic(), "write",
                    "cannot write offsets to %s, they are written again later: %s", self.path, error,
                )  # fmt: skip
            else:
                self._offsets = merged
                self._told.over("write")

    def forget(self, queue: MessageQueue) -> None:
        """Nothing is forgotten: with broadcasting a queue has no other owner."""

    async def _loaded(self) -> dict[MessageQueue, int]:
        async with self._reading:  # once: a later reading would put an older state in the place of what was written
            if self._offsets is None:
                self._offsets = await run_briefly(self._load)
            return self._offsets

    def _load(self) -> dict[MessageQueue, int]:
        damage = None
        for path in (str(self.path), f"{self.path}.bak"):
            if not self._storage.exists(path):
                continue
            try:
                offsets = decode_offsets(self._read(path), self._namespace)
            except (OSError, ValueError, RemoteProtocolError) as error:
                _log.warning("cannot read offsets from %s: %s", path, error)
                damage = error
            else:
                self._damaged = damage is not None
                return offsets
        if damage is not None:
            raise ClientError(
                f"{self.path} is damaged and there is no good backup beside it: {damage}; remove it to begin where "
                "consume_from_where says"
            ) from damage
        self._tell_of_those_without_namespace()
        return {}

    def _tell_of_those_without_namespace(self) -> None:
        """They may be of other topics with the same names, so who knows better has to say."""
        if self._namespace_v2 is not None and self._storage.exists(str(self._without_namespace)):
            _log.warning(
                "there are no offsets of group %s in namespace %s yet, and some without it in %s, where Java's clients "
                "keep them. They are not used. To go on from them, stop this consumer and copy that file to %s",
                self._group, self._namespace_v2, self._without_namespace, self.path,
            )  # fmt: skip

    def _read(self, path: str) -> bytes:
        file = self._storage.open(path)
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def _write(self, data: bytes) -> None:
        path, fresh, directory = str(self.path), f"{self.path}.new", str(self.path.parent)
        self._storage.make_directories(directory)
        file = self._storage.open(fresh, create=True)
        try:
            file.truncate(0)  # what a write that failed has left
            file.write(0, [data])
            file.sync()
        finally:
            file.close()
        if self._storage.exists(path):  # a crash between the two leaves the backup, which is read then
            self._storage.rename(path, f"{path}.damaged" if self._damaged else f"{path}.bak")
            self._damaged = False
        self._storage.rename(fresh, path)
        self._storage.sync_directory(directory)
