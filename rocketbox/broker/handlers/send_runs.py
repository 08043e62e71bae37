"""Sends by the run: what has come of one connection in one read is checked, stored and answered in one go.

Only what is ordinary goes this way: a single message with IPv4 at both ends, to a topic and queue that are there,
announced and written down, with a unique id, a sender who waits for the disk, and no property that asks for something.
The first message that is not ends the run, and goes by :class:`SendHandler`, which does what is right; so does each
when hooks are around the handlers, or a step before the store wants to see all messages. Both ways store and answer the
same bytes.

Fast path: what is the same for all messages of a producer to a queue, or of a read, is done once. The benchmark "java
client: send, 256 in flight" shows what it gains.

Source: Apache RocketMQ 5.x ``SendMessageProcessor``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Final

from rocketbox.broker.context import BrokerContext
from rocketbox.broker.handlers.born_host import born_host
from rocketbox.broker.handlers.send_answers import SendAnswers
from rocketbox.broker.handlers.send_rules import INNER_BATCH
from rocketbox.broker.property_shapes import PropertyShapes
from rocketbox.broker.store.putting import LaneMessage, PutLane
from rocketbox.errors import InvalidMessageError, RemoteProtocolError
from rocketbox.protocol.codes import RETRY_PREFIX, SEND_FORBIDDEN_TOPICS, RequestCode
from rocketbox.protocol.command import ONEWAY_FLAG, RemotingCommand
from rocketbox.protocol.headers import HeaderError
from rocketbox.protocol.send_frames import SendHead, SendReader
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.remoting.connection import Connection, RunHandler
from rocketbox.remoting.peer_requests import MOST_IN_TURN

__all__ = ["SendRuns"]

MOST_LANES: Final = 10_000
SEND_MESSAGE_V2 = int(RequestCode.SEND_MESSAGE_V2)


class SendRuns:
    """Answers runs of sends. ``added`` is what the broker adds to the properties of each message."""

    def __init__(
        self,
        context: BrokerContext,
        reader: SendReader,
        shapes: PropertyShapes,
        answers: SendAnswers,
        added: bytes,
    ) -> None:
        self._put_run = context.puts.put_run
        self._lane_of = context.puts.lane
        self._topics = context.topics
        self._replies = context.replies
        self._registration = context.registration
        self._reader = reader
        self._shapes = shapes
        self._answers = answers
        self._added = added
        self._lanes: dict[int, tuple[SendHead, PutLane]] = {}  # by the head's id, which is no other's: it is kept
        self._lanes_of = context.topics.version

    def runs(self) -> Mapping[int, RunHandler]:
        return {SEND_MESSAGE_V2: self.take}

    def take(self, connection: Connection, inbox: deque[RemotingCommand]) -> int:
        """Store what the inbox begins with, as far as it is ordinary, and take it out; returns how many that were."""
        if self._lanes_of is not self._topics.version or len(self._lanes) > MOST_LANES:
            self._lanes.clear()
            self._lanes_of = self._topics.version
        read, keys_of, lanes, added = self._reader.read, self._shapes.keys_of, self._lanes, self._added
        messages: list[LaneMessage] = []
        sent: list[tuple[RemotingCommand, int, bytes]] = []
        for request in islice(inbox, max(0, min(self._replies.room, MOST_IN_TURN))):
            body = request.body
            if request.code != SEND_MESSAGE_V2 or request.flag & ONEWAY_FLAG or not body:
                break
            try:
                head, born, properties = read(request)
            except (HeaderError, RemoteProtocolError):
                break
            known = lanes.get(id(head))
            lane = known[1] if known is not None else self._lane(head)
            if lane is None:
                break
            if properties[-1:] != b"\x02":
                properties += b"\x02"
            keys = keys_of(properties)
            if keys is None:
                break
            messages.append((lane, born, body, properties + added, keys))
            sent.append((request, head.queue_id, keys[2] or b""))
        if not messages:
            return 0
        result = self._put_run(messages, born_host(connection))
        count = len(result.places)
        if count < len(messages) and messages[count][0].queue.is_deleted:  # the lane was made while its topic went
            self._lanes.clear()
        if count:
            del sent[count:]
            self._answers.answer_run(connection, sent, result)
            for _ in sent:
                inbox.popleft()
        return count

    def _lane(self, head: SendHead) -> PutLane | None:
        """Where messages with that head go; None when they have to be looked at one by one."""
        topic, queue_id = head.topic, head.queue_id
        config = self._topics.get(topic)
        if (
            config is None
            or config.order
            or config.topic_filter_type != "SINGLE_TAG"
            or not self._topics.is_written(topic)
            or self._registration.is_pending(topic)
            or topic in SEND_FORBIDDEN_TOPICS
            or topic.startswith(RETRY_PREFIX)
            or head.batch
            or head.sys_flag & INNER_BATCH
            or not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)
        ):
            return None
        try:
            lane = self._lane_of(
                StoredMessage(
                    topic, queue_id, b"", flag=head.flag, sys_flag=head.sys_flag, reconsume_times=head.reconsume_times
                )
            )
        except InvalidMessageError:
            return None
        if lane is not None:
            self._lanes[id(head)] = head, lane
        return lane
