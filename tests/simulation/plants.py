"""Faults that are planted in the product, to see that the simulation finds them.

Each puts a fault back that the client once had, or breaks a promise. The product knows nothing of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any

from rocketbox.broker import timer_messages, timers
from rocketbox.broker.half_messages import HalfMessages
from rocketbox.broker.open_halves import Half, OpenHalves
from rocketbox.broker.put_stage import PutOrigin
from rocketbox.broker.timer_recalls import Recalls
from rocketbox.broker.timers import TimerDelivery
from rocketbox.client import assignment, lock_upkeep
from rocketbox.client.api.pull import PullResult, PullStatus
from rocketbox.client.assignment import QueueAssignment
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.owned_queue import OwnedQueue, Ownership
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.client.pull_loop import PullLoop
from rocketbox.client.route_table import RouteTable
from rocketbox.client.start_offsets import StartOffsets
from rocketbox.client.waiting_requests import WaitingRequests
from rocketbox.errors import RocketBoxError
from rocketbox.message import MessageExt, MessageQueue
from rocketbox.protocol.bodies import TopicRouteData
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.remoting.connection import Connection

__all__ = ["PLANTS"]


def _commit_ahead() -> None:
    """What is held in memory counts as consumed."""
    ProcessQueue.commit_offset = property(lambda self: self.pulled_to)  # type: ignore[method-assign, assignment]


def _skipped_message() -> None:
    """Of several messages that a pull brings the first is passed over."""
    put = ProcessQueue.put

    def put_some(self: ProcessQueue, messages: Iterable[MessageExt], next_offset: int) -> int:
        some = list(messages)
        return put(self, some[1:] or some, next_offset)

    ProcessQueue.put = put_some  # type: ignore[method-assign]


def _old_address() -> None:
    """Of a broker that a new route does not name, the address counts that stands last among all routes.

    However long ago a name server knew that route.
    """
    confirm = RouteTable.confirm

    def confirm_and_gather(self: RouteTable, topic: str, data: TopicRouteData, asked_at: float) -> bool:
        changed = confirm(self, topic, data, asked_at)
        if changed:
            newest = {broker.broker_name for broker in data.broker_datas}
            for entry in self._entries.values():
                for broker in entry.route.data.broker_datas:
                    if broker.broker_name not in newest and broker.broker_name in self.brokers:
                        self.brokers[broker.broker_name] = dict(broker.broker_addrs)
        return changed

    RouteTable.confirm = confirm_and_gather  # type: ignore[method-assign]


def _one_after_another() -> None:
    """Queues are taken one after another, those of a broker that does not answer too."""
    turn, begin = QueueAssignment._turn, QueueAssignment._begin
    waiting: dict[int, asyncio.Lock] = {}

    async def turn_alone(self: QueueAssignment, broker_name: str) -> None:
        async with waiting.setdefault(id(self), asyncio.Lock()):
            await turn(self, broker_name)

    async def begin_always(self: QueueAssignment, owned: OwnedQueue) -> bool:
        await begin(self, owned)
        return True  # a failure of the broker does not end its turn

    assignment.SIDE_BY_SIDE = 1
    QueueAssignment._turn = turn_alone  # type: ignore[method-assign]
    QueueAssignment._begin = begin_always  # type: ignore[method-assign]


def _reset_in_a_round() -> None:
    """Queues are given away one after another, and what they held when the round began is committed and unlocked.

    One that is reset meanwhile holds something else by then, and goes on.
    """
    give_up = QueueAssignment._give_up
    lines: dict[int, list[tuple[OwnedQueue, ProcessQueue]]] = {}

    async def give_away(self: QueueAssignment, line: list[tuple[OwnedQueue, ProcessQueue]]) -> None:
        while line:
            owned, messages = line[0]
            messages.close()
            if owned.messages is messages and owned.pull is not None:
                owned.pull.cancel()
            await messages.idle()
            await self._offsets.persist([messages], wait=True)
            messages.drop()
            if self._locks is not None:
                await self._locks.unlock([owned.queue])
            if owned.messages is messages:
                self._out(owned, Ownership.HANDED_ON)
            line.pop(0)

    def put_into_line(self: QueueAssignment, owned: OwnedQueue) -> None:
        line = lines.setdefault(id(self), [])
        if owned.state is not Ownership.PULLED or owned.messages is None:
            give_up(self, owned)
        elif owned not in [each for each, _ in line]:
            line.append((owned, owned.messages))
            if len(line) == 1:
                self._tasks.start("giving queues away", give_away, self, line, restart=False)

    QueueAssignment._give_up = put_into_line  # type: ignore[method-assign]


def _lost_refresh() -> None:
    """A lock that was not confirmed is asked for again at the next turn, when it does not count any more."""
    lock_upkeep.REFRESH_AGAIN = lock_upkeep.REFRESH_INTERVAL


def _no_pause() -> None:
    """A pull that is sent to the offset it had asked for is made again at once."""
    handle = PullLoop._handle

    async def handle_at_once(self: PullLoop, result: PullResult) -> None:
        if result.status is PullStatus.OFFSET_ILLEGAL:
            await self._context.reset(self._queue, result.next_begin_offset)
        else:
            await handle(self, result)

    PullLoop._handle = handle_at_once  # type: ignore[method-assign]
    assignment.RESET_AGAIN_AFTER = 0.0


def _long_pause() -> None:
    """A pull that failed is made again after minutes."""

    async def recover_late(self: PullLoop, error: RocketBoxError) -> None:
        await self._clock.sleep(120.0)

    PullLoop._recover = recover_late  # type: ignore[method-assign]


def _one_back() -> None:
    """Who takes a queue over begins a message before the committed offset."""
    find = StartOffsets.find

    async def find_one_back(self: StartOffsets, queue: MessageQueue) -> tuple[int, bool]:
        start, stored = await find(self, queue)
        return max(0, start - 1), stored

    StartOffsets.find = find_one_back  # type: ignore[method-assign]


def _newest_first() -> None:
    """Of some messages that wait the last one is handled first."""
    take = ProcessQueue.take

    def take_last(
        self: ProcessQueue, limit: int, fits: Callable[[MessageExt], bool] | None = None, past: int = 0
    ) -> list[MessageExt]:
        self.waiting.rotate(1)
        return take(self, limit, fits, past)

    ProcessQueue.take = take_last  # type: ignore[method-assign]


def _task_left() -> None:
    """A client that ends leaves a task behind."""
    leave = MQClientInstance.__aexit__
    left: list[asyncio.Task[None]] = []

    async def leave_one(self: MQClientInstance, *error: Any) -> bool | None:
        left.append(asyncio.create_task(asyncio.sleep(1000.0), name="left behind"))
        return await leave(self, *error)

    MQClientInstance.__aexit__ = leave_one  # type: ignore[method-assign, assignment]


def _open_for_ever() -> None:
    """A transaction that has ended is not forgotten, and is checked again."""
    end = HalfMessages._end

    def end_and_leave_open(
        self: HalfMessages, half: Half, instead: tuple[StoredMessage, PutOrigin] | None, count: str
    ) -> int:
        offset = end(self, half, instead, count)
        half.ending = False
        return offset

    HalfMessages._end = end_and_leave_open  # type: ignore[method-assign]
    HalfMessages.forget = lambda self, half: None  # type: ignore[method-assign]


def _none_is_open() -> None:
    """A broker that starts does not know which transactions are open."""
    load = HalfMessages.load

    async def load_and_forget(self: HalfMessages) -> None:
        await load(self)
        self._open = OpenHalves()

    HalfMessages.load = load_and_forget  # type: ignore[method-assign]


def _deaf_to_recalls() -> None:
    """What was recalled is delivered."""
    Recalls.drop = lambda self, properties: False  # type: ignore[method-assign]


def _half_a_second_early() -> None:
    """Timer messages are due before their time."""
    timers.due_ms = lambda *of_message: timer_messages.due_ms(*of_message) - 500  # type: ignore[attr-defined]


def _no_copy_at_the_stop() -> None:
    """A broker that is stopped does not write what timer messages wait."""

    async def finish_nothing(self: TimerDelivery) -> None:
        pass

    TimerDelivery.finish = finish_nothing  # type: ignore[method-assign]


def _anybodys_reply() -> None:
    """A reply is taken for that of the request which was sent last."""
    receive = WaitingRequests.receive

    def receive_for_the_last(
        self: WaitingRequests, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        if self._waiting:
            last = next(reversed(self._waiting))
            own = re.sub("CORRELATION_ID\x01[^\x02]*", f"CORRELATION_ID\x01{last}", request.ext_fields["properties"])
            request.ext_fields = {**request.ext_fields, "properties": own}
        return receive(self, connection, request)

    WaitingRequests.receive = receive_for_the_last  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], Any]] = {
    "old address": _old_address,
    "one after another": _one_after_another,
    "reset in a round": _reset_in_a_round,
    "commit ahead": _commit_ahead,
    "skipped message": _skipped_message,
    "lost refresh": _lost_refresh,
    "no pause": _no_pause,
    "long pause": _long_pause,
    "one back": _one_back,
    "newest first": _newest_first,
    "task left": _task_left,
    "open for ever": _open_for_ever,
    "none is open": _none_is_open,
    "deaf to recalls": _deaf_to_recalls,
    "half a second early": _half_a_second_early,
    "no copy at the stop": _no_copy_at_the_stop,
    "anybody's reply": _anybodys_reply,
}
