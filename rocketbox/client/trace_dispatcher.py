"""Sends message trace: in the background, by a client of its own, and never in the way of what is traced.

    record -> TraceDispatcher.add (bounded, at once) -> its task: joined into messages -> TraceClient's connection

A member (producer or consumer) with trace has a dispatcher. What it is told waits for others, up to 5 s or until there
are 10 records; the first record after 5 s of rest goes at once. More than 2,048 that wait are dropped, and counted; so
is what a broker does not take. The dispatchers of one client instance share a client, which is made when there is
something to send and ends with the last of them.

Source: Apache RocketMQ 5.5 ``AsyncTraceDispatcher``. Unlike there: a sender that is busy takes all that waits, not 20
records at a time; a message's keys are no more than brokers take; nothing is polled.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import anyio

from rocketbox.client.checks import MAX_GROUP_CHARS
from rocketbox.client.credentials import KeyKeeper
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.options import DEFAULT_INSTANCE_NAME, AccessChannel, MemberOptions, ProducerOptions
from rocketbox.client.sending import Sender
from rocketbox.client.tries import Tries
from rocketbox.errors import RocketBoxError
from rocketbox.message import Message, MessageExt
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.trace_records import CLOUD_TRACE_TOPIC_PREFIX, TraceRecord, without_separators
from rocketbox.rare_log import RareLog
from rocketbox.remoting.acl import Credentials
from rocketbox.remoting.connection import Connection
from rocketbox.tasks import SupervisedTask

__all__ = ["TraceCounts", "TraceDispatcher", "TracedRole"]

_log = logging.getLogger(__name__)

MOST_WAITING = 2048  # records
ENOUGH = 10  # records that are sent without waiting for more
FLUSH_INTERVAL = 5.0  # seconds that a record waits for others at most
MAX_BODY_BYTES = 128_000  # of a trace message
MAX_KEYS_CHARS = 8_000  # of the keys of one; all properties of a message have 32,767 bytes, and a character up to 4
SEND_TIMEOUT = 5.0  # seconds for a trace message, with all its tries
STOP_TIMEOUT = 5.0  # seconds at the end for what waits still
LATE_STOP_TIMEOUT = 0.5  # the same, when it was not enough for another member of the client
GOODBYE_TIMEOUT = 0.5  # seconds for that; brokers forget a client without it as well
REMINDER_PERIOD = 60.0  # seconds between two warnings of the same kind


class TracedRole(Enum):
    """What a member is that has trace; it stands in the name of its inner producer group."""

    PRODUCER = "PRODUCE"
    CONSUMER = "CONSUME"


@dataclass(frozen=True)
class TraceCounts:
    """Records of one member: that wait, that are stored, that there was no room for or no more time, that were refused
    or could not be sent."""

    waiting: int
    sent: int
    dropped: int
    failed: int


class _InnerProducer:
    """What the trace client tells brokers of a dispatcher: a producer group that asks for nothing."""

    def __init__(self, group: str, sender: Sender) -> None:
        self.group = group
        self._sender = sender

    def topics_in_use(self) -> set[str]:
        return self._sender.lanes.topics_in_use()

    def check_transaction(self, connection: Connection, request: RemotingCommand, message: MessageExt) -> None:
        """It has none."""


class _SameKeys:
    """Gives the trace client the keys of the traced one, where these change: nobody else is asked for them."""

    def __init__(self, keys: KeyKeeper) -> None:
        self._keys = keys

    async def credentials(self) -> Credentials:
        return self._keys.current


class TraceClient:
    """The client by which the members of a client instance send their trace, from the first to the last of them."""

    def __init__(self, traced: MQClientInstance) -> None:
        self._traced = traced
        self._members = 0
        self._numbers = itertools.count()
        self._task: SupervisedTask | None = None
        self._started = anyio.Event()
        self._over = anyio.Event()
        self._instance: MQClientInstance
        self.is_late = False
        """Whether a member could not send the rest of its trace in time at its end."""

    def enter(self) -> int:
        """One more member; the number that its group has."""
        self._members += 1
        return next(self._numbers)

    async def instance(self) -> MQClientInstance:
        """The client itself; it is started for who first asks."""
        if self._task is None:
            self._started, self._over = anyio.Event(), anyio.Event()
            self._task = self._traced.tasks.start("trace client", self._run)
        await self._started.wait()
        return self._instance

    async def leave(self, group: str) -> None:
        """One member less, with its group; the last one ends the client."""
        self._members -= 1
        if not self._members:
            _clients.pop(self._traced, None)
        if self._task is None:
            return
        if self._members:
            if self._started.is_set():
                await self._instance.unregister_producer(group)
            return
        task, self._task = self._task, None
        if not self._started.is_set():
            task.cancel()
        self._over.set()
        await task.wait()

    def follow(self) -> None:
        """Ask the name servers that the traced client asks, if it was given others."""
        said = self._traced.said_name_servers
        if {*said} != {*self._instance.said_name_servers}:
            self._instance.replace_name_servers(said)

    async def _run(self) -> None:
        traced = self._traced
        options = replace(
            traced.options,
            credentials=traced.options.credentials if traced.keys is None else _SameKeys(traced.keys),
            instance_name=DEFAULT_INSTANCE_NAME,  # a client of its own
            shutdown_timeout=min(traced.options.shutdown_timeout, GOODBYE_TIMEOUT),
            namespace=None,  # Apache's: the trace topic is the same for all namespaces that are written before names
            send_middleware=(),
            consume_middleware=(),
        )
        client = MQClientInstance(
            traced.said_name_servers, options=options, clock=traced.clock, network=traced.network,
            storage=traced.storage,
        )  # fmt: skip
        async with client as self._instance:
            if traced.keys is not None:
                traced.keys.on_renewed.append(self._look)
            try:
                self._started.set()
                await self._over.wait()
            finally:
                if traced.keys is not None:
                    traced.keys.on_renewed.remove(self._look)

    def _look(self, keys: Credentials) -> None:
        if self._instance.keys is not None:
            self._instance.keys.look()


_clients: dict[MQClientInstance, TraceClient] = {}  # of the traced ones; each goes with its last member


class TraceDispatcher:
    """Sends the trace of one member, from :meth:`start` to :meth:`stop`. ``group`` is the member's."""

    def __init__(self, role: TracedRole, group: str, instance: MQClientInstance, options: MemberOptions) -> None:
        self._role = role
        self._member = group
        self._traced = instance
        self._clock = instance.clock
        self._topic = options.customized_trace_topic
        self._is_cloud = instance.options.access_channel is AccessChannel.CLOUD
        self._waiting: deque[TraceRecord] = deque()
        self._on_its_way = self._sent = self._dropped = self._failed = 0
        self._some, self._enough = anyio.Event(), anyio.Event()
        self._ends = False
        self._log = RareLog(_log, REMINDER_PERIOD)
        self._client: TraceClient | None = None
        self._inner_group = ""
        self._task: SupervisedTask | None = None
        self._sender: Sender | None = None

    # --- for who is traced -------------------------------------------------------------------------------------------

    def is_own(self, topic: str) -> bool:
        """Whether trace itself goes to that topic: who traced that would never end."""
        return topic == self._topic or (self._is_cloud and topic.startswith(CLOUD_TRACE_TOPIC_PREFIX))

    def add(self, record: TraceRecord) -> None:
        """Have a record sent some time; when too many wait it is dropped, and counted."""
        waiting = self._waiting
        if len(waiting) >= MOST_WAITING or self._task is None or self._ends:
            self._drop(1)
            return
        waiting.append(record)
        if len(waiting) == 1:
            self._some.set()
        elif len(waiting) == ENOUGH:
            self._enough.set()

    def cannot_add(self, count: int, error: Exception) -> None:
        """So many records cannot be made, for an error that nobody else is to hear of."""
        self._dropped += count
        self._log.tell(
            logging.WARNING, self._clock.monotonic(), "not made",
            "trace of group %s: %d records cannot be made: %s", self._member, count, self._traced.told(error),
        )  # fmt: skip

    @property
    def counts(self) -> TraceCounts:
        """What became of the records so far."""
        return TraceCounts(len(self._waiting) + self._on_its_way, self._sent, self._dropped, self._failed)

    def _drop(self, count: int) -> None:
        self._dropped += count
        self._log.tell(
            logging.WARNING, self._clock.monotonic(), "dropped",
            "trace of group %s: there is more than is sent, or no time left for it; %d records are dropped",
            self._member, self._dropped,
        )  # fmt: skip

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Send from now on; the traced instance runs."""
        client = _clients.get(self._traced)
        if client is None:
            client = _clients[self._traced] = TraceClient(self._traced)
        self._client = client
        self._inner_group = _inner_group(self._member, self._role, client.enter())
        self._ends = False
        name = f"trace of {self._role.name.lower()} {self._member}"
        self._task = self._traced.tasks.start(name, self._run)

    async def stop(self) -> None:
        """Send what waits, within 5 s; what is left then is dropped. Never raises."""
        task, client = self._task, self._client
        if task is None or client is None:
            return
        self._ends = True
        self._some.set()
        self._enough.set()
        with anyio.CancelScope(shield=True):
            try:
                with self._clock.move_on_after(LATE_STOP_TIMEOUT if client.is_late else STOP_TIMEOUT) as scope:
                    await task.wait()
                client.is_late = scope.cancelled_caught
            finally:
                task.cancel()
                await task.wait()
                self._task = self._client = self._sender = None
                if left := len(self._waiting) + self._on_its_way:
                    self._waiting.clear()
                    self._on_its_way = 0
                    self._drop(left)
                await client.leave(self._inner_group)

    async def _run(self) -> None:
        assert self._client is not None
        flushed = -FLUSH_INTERVAL
        while self._waiting or not self._ends:
            if not self._waiting:
                self._some = anyio.Event()
                await self._some.wait()
                continue
            pause = flushed + FLUSH_INTERVAL - self._clock.monotonic()
            if pause > 0 and len(self._waiting) < ENOUGH and not self._ends:
                self._enough = anyio.Event()
                with self._clock.move_on_after(pause):
                    await self._enough.wait()
            if self._sender is None:  # once, also when this task had to be started again
                self._sender = await self._make_sender(self._client)
            self._client.follow()
            flushed = self._clock.monotonic()
            for topic, records, message in self._messages():
                await self._send(self._sender, topic, records, message)

    async def _make_sender(self, client: TraceClient) -> Sender:
        instance = await client.instance()
        options = ProducerOptions(
            send_message_timeout=SEND_TIMEOUT, max_message_size=MAX_BODY_BYTES, accept_weak_ack=True
        )
        sender = Sender(self._inner_group, instance, options)
        instance.register_producer(self._inner_group, _InnerProducer(self._inner_group, sender))
        return sender

    async def _send(self, sender: Sender, topic: str, records: int, message: Message) -> None:
        now = self._clock.monotonic()
        try:
            request = sender.request(message)
            await sender.deliver(request, Tries(now, SEND_TIMEOUT, sender.options.retry_times_when_send_failed))
        except RocketBoxError as error:
            self._failed += records
            self._log.tell(
                logging.WARNING, now, "failed",
                "trace of group %s: %d records could not be sent to %s, and are given up: %s",
                self._member, records, topic, error,
            )  # fmt: skip
        else:
            self._sent += records
            self._log.over("failed")
        self._on_its_way -= records

    # --- messages ----------------------------------------------------------------------------------------------------

    def _messages(self) -> Iterator[tuple[str, int, Message]]:
        """What waits now, in as few messages as their size allows: topic and number of records of each."""
        waiting, self._waiting = self._waiting, deque()
        self._on_its_way += len(waiting)
        for topic, records in self._by_topic(waiting).items():
            body = bytearray()
            keys: dict[str, None] = {}
            chars = count = 0
            for record in records:
                encoded = record.encode(cloud=self._is_cloud).encode(errors="replace")
                words = [word for word in _words(record) if word not in keys]
                more = sum(map(len, words)) + len(words)
                if count and (len(body) + len(encoded) > MAX_BODY_BYTES or chars + more > MAX_KEYS_CHARS):
                    yield topic, count, Message(topic, bytes(body), keys=list(keys))
                    body, keys, chars, count = bytearray(), {}, 0, 0
                    words = _words(record)
                    more = sum(map(len, words)) + len(words)
                body += encoded
                keys.update(dict.fromkeys(words))
                chars += more
                count += 1
            yield topic, count, Message(topic, bytes(body), keys=list(keys))

    def _by_topic(self, records: deque[TraceRecord]) -> dict[str, list[TraceRecord]]:
        if not self._is_cloud:
            return {self._topic: list(records)}
        found: dict[str, list[TraceRecord]] = {}
        for record in records:
            found.setdefault(CLOUD_TRACE_TOPIC_PREFIX + record.region_id, []).append(record)
        return found


def _words(record: TraceRecord) -> list[str]:
    """By which a record's message is to be found: the id, and of the message's keys as many as there is room for."""
    words = dict.fromkeys(without_separators(f"{record.msg_id} {record.keys or ''}").split())
    found, chars = [], 0
    for word in words:
        chars += len(word) + 1
        if chars > MAX_KEYS_CHARS:
            break
        found.append(word)
    return found


def _inner_group(member: str, role: TracedRole, number: int) -> str:
    """Apache's name for the group; of a long one as much as a group may have."""
    end = f"-{role.value}-{number}"
    begin = "_INNER_TRACE_PRODUCER-"
    return begin + member[: MAX_GROUP_CHARS - len(begin) - len(end)] + end
