"""Answers that wait for the disk: a request is answered when the flush that covers its record is done, not before.

Holds the count of those that wait, also of those for a new topic to be written down, and what is answered when the
flush fails; storing is the handlers' part.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rocketbox.errors import ClientStateError, StoreBusyError, StoreError, StoreFullError, StoreStalledError
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand, decode_command
from rocketbox.waiters import Waiter, make_waiter

if TYPE_CHECKING:
    from rocketbox.broker.registration import Registration
    from rocketbox.broker.store.message_store import MessageStore
    from rocketbox.broker.topics import TopicTable
    from rocketbox.remoting.connection import Connection

__all__ = ["DurableReplies", "code_of", "flush_failed"]

_log = logging.getLogger(__name__)

FRAME_LENGTH_BYTES = 4

_Answers = tuple["Connection", Sequence[RemotingCommand], Sequence[bytes]]  # who asked, what, and the whole frames


class DurableReplies:
    """The requests that are stored and wait for their flush, at most ``most`` of them."""

    def __init__(self, store: MessageStore, registration: Registration, most: int) -> None:
        self._store = store
        self._registration = registration
        self._most = most
        self.waiting = 0
        self._last = 0  # where the last message ends that somebody waits for
        self._give = self._give_all  # bound once: waiters of the same function are told together

    @property
    def room(self) -> int:
        """How many more may wait."""
        return self._most - self.waiting

    @property
    def is_full(self) -> bool:
        """Whether so many wait that new ones should be turned away."""
        return self.room <= 0

    def answer(
        self, connection: Connection, request: RemotingCommand, response: RemotingCommand, end_offset: int
    ) -> None:
        """Answer when everything before ``end_offset`` of the commit log is durable; a one-way request never."""
        self.waiting += 1
        self._last = end_offset

        def flushed(error: BaseException | None) -> None:
            self.waiting -= 1
            if not request.is_oneway:
                connection.reply(request, response if error is None else flush_failed(error, response))

        self._store.when_durable(end_offset, flushed)

    def answer_frames(
        self,
        connection: Connection,
        requests: Sequence[RemotingCommand],
        frames: Sequence[bytes],
        end_offset: int,
        *,
        wait: bool = True,
    ) -> None:
        """As :meth:`answer`, for answers that are written already, to requests whose records lie one behind the other.

        Without ``wait`` they are given when the records are written.
        """
        self.waiting += len(requests)
        self._last = end_offset
        tell = self._store.tell_when_durable if wait else self._store.tell_when_written
        tell(self._give, end_offset, (connection, requests, frames))

    def _give_all(self, answers: list[_Answers], error: BaseException | None) -> None:
        """Answer those of one group commit."""
        self.waiting -= sum([len(requests) for _, requests, _ in answers])
        for connection, requests, frames in answers:
            if error is None:
                connection.reply_frames(requests, frames)
                continue
            for request, frame in zip(requests, frames, strict=True):
                if not request.is_oneway:
                    connection.reply(request, flush_failed(error, decode_command(frame[FRAME_LENGTH_BYTES:])))

    def again_when_written(
        self,
        topics: TopicTable,
        topic: str,
        again: Callable[[], RemotingCommand | Awaitable[RemotingCommand | None] | None],
        code: ResponseCode,
        ext_fields: Mapping[str, str] | None = None,
    ) -> Awaitable[RemotingCommand | None]:
        """What ``again`` answers, called when the next start will know the new topic; many topics share one write.

        Those who wait for a topic are called in the order in which they came, before any who comes later.
        ``code`` and ``ext_fields`` are answered when the topic cannot be written down.
        """
        self.waiting += 1  # now, not when somebody awaits it: more requests of the same read look at it before
        called = False

        def handle() -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
            nonlocal called
            called = True
            self.waiting -= 1
            return again()

        turn = topics.in_turn(topic, handle)

        async def answer() -> RemotingCommand | None:
            try:
                result = await turn
            except StoreError as error:
                if called:
                    raise
                return RemotingCommand.response(code, str(error), ext_fields)
            finally:
                if not called:
                    self.waiting -= 1
            return await result if isinstance(result, Awaitable) else result

        return answer()

    async def all_answered(self) -> None:
        """Return when all who wait now for nothing but the disk have their answer."""
        try:
            await self._store.durable(self._last)
        except (StoreError, TimeoutError) as error:
            _log.debug("the last answers say that the flush failed: %s", error)

    def answer_when_known(
        self, topic: str, response: RemotingCommand, end_offset: int, *, wait: bool = True
    ) -> Awaitable[RemotingCommand]:
        """The response, once the record is durable (without ``wait``: written) and the name servers know the topic.

        Whoever sent the first message of a topic finds its route as soon as that message is acknowledged.
        """
        self.waiting += 1
        flushed = make_waiter()  # asked for now, not when the topic is known: see MessageStore.when_durable
        (self._store.when_durable if wait else self._store.when_written)(end_offset, flushed.set_result)
        return self._answer_when_known(topic, response, flushed)

    async def _answer_when_known(self, topic: str, response: RemotingCommand, flushed: Waiter) -> RemotingCommand:
        try:
            await self._registration.announced(topic)
            error = await flushed
        except Exception as failed:
            error = failed
        finally:
            self.waiting -= 1
        return response if error is None else flush_failed(error, response)


def code_of(error: StoreError) -> ResponseCode:
    """What a sender is answered whose message the store does not take: busy means that it may be sent again soon."""
    return ResponseCode.SYSTEM_BUSY if isinstance(error, StoreBusyError) else ResponseCode.SERVICE_NOT_AVAILABLE


def flush_failed(error: BaseException, response: RemotingCommand) -> RemotingCommand:
    """What is answered instead of ``response`` when the record may not have reached the disk.

    Why is logged by the store, once: thousands may wait for the flush that failed.
    """
    if isinstance(error, TimeoutError):  # it is in the log and will be flushed: FLUSH_DISK_TIMEOUT counts as stored
        return RemotingCommand.response(ResponseCode.FLUSH_DISK_TIMEOUT, str(error) or None, response.ext_fields)
    if isinstance(error, StoreFullError | StoreStalledError):  # the one was taken back, the other waits for room
        return RemotingCommand.response(code_of(error), str(error))
    if not isinstance(error, StoreError | ClientStateError):
        _log.error("a stored message could not be flushed", exc_info=error)
    return RemotingCommand.response(
        ResponseCode.SERVICE_NOT_AVAILABLE, f"the message was not flushed to disk and may be lost: {error}"
    )
