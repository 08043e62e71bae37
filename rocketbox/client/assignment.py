"""The queues of a consumer: the one owner of each queue's state, from the round that gives it to this member on.

A queue is in one of these states; what is not in the table is not this member's:

=========  ========================================================  =============  ==================================
state      meaning                                                   process queue  commits
=========  ========================================================  =============  ==================================
wanted     a round gave it to this member; it is not had yet         none           no
locked     its broker gave the lock (or it needs none); where to     none           no
           begin is being asked
pulled     it is pulled and consumed                                 open           yes, while its lock counts
draining   it is another member's from now on: what is in hand       closed         yes, while its lock counts
           ends and counts, nothing new begins
dropped    it may be another's already: what is in hand ends and     dropped        no
           does not count
handed on  it was committed and unlocked, and is out of the table    dropped        no
=========  ========================================================  =============  ==================================

Changed by these events, and by nothing else (a dash: nothing happens):

======================  ============  ============  =========================  =====================  ================
event                   wanted        locked        pulled                     draining               dropped
======================  ============  ============  =========================  =====================  ================
a round: mine           -             -             -                          wanted, when handed    wanted, when out
                                                                               on
a round: not mine       handed on     handed on     draining                   -                      -
lock given              locked        -             (confirmed)                (confirmed)            -
lock refused            -             -             dropped                    (lock is gone)         -
lock not confirmed      -             wanted        dropped                    (lock is gone)         -
for 30 s
connection lost, or     -             wanted        (lock is doubted)          (lock is doubted)      -
broker is elsewhere
start offset known      -             pulled        -                          -                      -
broker failed           -             wanted        -                          -                      -
reset to an offset      -             -             pulled, with a fresh       -                      -
                                                    process queue
in hand ended, the      -             -             -                          handed on              out of the table
time for it is over, or
a fault of ours
======================  ============  ============  =========================  =====================  ================

Brokers are dealt with side by side, each in one *turn* at a time, so one that is silent delays no queue of another;
each queue is pulled as soon as it is had. Until a lock that is doubted is confirmed, nothing more of its queue is begun
or committed. Requests of one connection may be carried out in any order: a lock that is given after its queue has left
the table is given back, and a queue whose lock is being given back is not taken again before that is answered. Where
the broker does not answer, a lock is given back again each second, until it does or the queue comes back.

A graceful hand-over gives handlers ``HANDOVER`` seconds: the old owner ends what is in hand and commits, the new one
waits as long before it reads the offset. Of an orderly queue the lock is the proof, however long its batch takes.

When a round runs is in ``rebalance``, which queues it gives to this member in ``shares``, when locks are confirmed in
``lock_upkeep``; commits, locks and start offsets are carried out by ``offset_store``, ``queue_locks`` and
``start_offsets``.

Source: Apache RocketMQ 5.x ``RebalanceImpl``, ``RebalancePushImpl``. Unlike there: a start offset is committed at once;
what is in hand is waited for by both sides.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import anyio

from rocketbox.client.failure_log import PERIOD
from rocketbox.client.lock_upkeep import LockUpkeep
from rocketbox.client.membership import Membership
from rocketbox.client.offset_store import OffsetStore
from rocketbox.client.owned_queue import OwnedQueue, Ownership
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.client.queue_locks import QueueLocks
from rocketbox.client.rebalance import AFTER_A_CHANGE
from rocketbox.client.shares import Share, Shares
from rocketbox.client.start_offsets import StartOffsets
from rocketbox.errors import AccessDeniedError, RemotingError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import RETRY_PREFIX
from rocketbox.rare_log import RareLog
from rocketbox.tasks import SupervisedTask, TaskState, ended_most

__all__ = ["QueueAssignment"]

_log = logging.getLogger(__name__)

COMMIT_SHARE = 0.6  # of the time for the end
HANDOVER = 1.0  # seconds that handlers have to end what is in hand when their queue goes to another member
HANDOVER_NOTICE = AFTER_A_CHANGE + 0.3  # seconds more that the new owner waits: the old one has to hear of it
RESET_AGAIN_AFTER = 1.0  # seconds between two resets of one queue
PATIENCE = 0.3  # seconds that are waited for the other brokers after the first one was dealt with
SIDE_BY_SIDE = 16  # queues of one broker whose start offsets are asked for at once
UNLOCKED_BY = 2.0  # seconds by which an unlocking is over, answered or not
UNLOCK_AGAIN = 1.0  # seconds from one that was not answered to the next
UNLOCK_FOR = 90.0  # seconds for which that is tried: a broker keeps a lock for 60 s, and may have been silent before


class QueueAssignment:
    """The table of a consumer's queues.

    ``pull`` starts pulling one, ``offer`` lets handlers go on with one. ``locks`` None: queues need no lock.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        offsets: OffsetStore,
        locks: QueueLocks | None,
        pull: Callable[[ProcessQueue], SupervisedTask],
        offer: Callable[[ProcessQueue], None],
    ) -> None:
        self._group = membership.group
        self._instance = membership.instance
        self._clock = membership.instance.clock
        self._options = membership.options
        self._subscriptions = membership.subscriptions
        self._tasks = membership.tasks
        self._again = membership.again
        self._offsets = offsets
        self._locks = locks
        self._pull = pull
        self._offer = offer
        self._table: dict[MessageQueue, OwnedQueue] = {}
        self._shares: dict[str, frozenset[MessageQueue]] = {}  # topic: what the last round gave to this member
        self._turns: dict[str, SupervisedTask] = {}  # by broker name
        self._pokes: dict[str, anyio.Event] = {}  # by broker name: its turn has more to do
        self._hand_ons: dict[MessageQueue, SupervisedTask] = {}
        self._unlockings: Counter[MessageQueue] = Counter()  # under way, of queues that are not in the table
        self._unlock_tasks: list[SupervisedTask] = []
        self._closed = False
        self._refusals = membership.refusals
        self._told = RareLog(_log, PERIOD)
        self._asking = Shares(membership, decide=self._decide)
        self.starts = StartOffsets(self._group, self._instance, self._options, offsets)
        self.lock_upkeep = None if locks is None else LockUpkeep(
            membership, locks, self._table,
            confirmed=self._confirmed, doubted=self._doubt, dropped=self._drop, answered=self._unlock_what_went,
        )  # fmt: skip
        """Keeps the locks that were given; None where queues need none."""

    # --- what others see ---------------------------------------------------------------------------------------------

    @property
    def queues(self) -> list[ProcessQueue]:
        """What this consumer has of its queues: those that are pulled, and those that are being handed on."""
        return [owned.messages for owned in self._counting()]  # type: ignore[misc] # those have messages

    def _counting(self) -> list[OwnedQueue]:
        """The queues whose messages count when they have been consumed."""
        return [owned for owned in self._table.values() if owned.counts]

    def count(self, topic: str) -> int:
        """How many queues of topic are pulled."""
        return sum(owned.state is Ownership.PULLED and queue.topic == topic for queue, owned in self._table.items())

    def may_commit(self, messages: ProcessQueue) -> bool:
        """Whether the queue is this member's for certain; an orderly one is so only while its lock counts."""
        return self._locks is None or messages.lock_holds(self._clock.monotonic())

    async def persist(self, *, wait: bool = False) -> None:
        """Commit how far each queue is consumed; see ``OffsetStore.persist``."""
        if behind := self.uncommitted():
            await self._offsets.persist(behind, wait=wait)

    def uncommitted(self) -> list[ProcessQueue]:
        """The queues of which more is consumed than is committed, and may be."""
        return self._offsets.behind(messages for messages in self.queues if self.may_commit(messages))

    async def settled(self) -> None:
        """Return when what rounds decided is done, but for what hangs on a silent broker or on a handler."""
        await ended_most(self._asking.inquiries, PATIENCE, self._clock)
        waits = [owned.not_before for owned in self._table.values() if owned.state is Ownership.WANTED]
        rest = max(waits, default=0.0) - self._clock.monotonic()
        await ended_most(list(self._turns.values()), max(0.0, rest) + PATIENCE, self._clock)
        with self._clock.move_on_after(HANDOVER + PATIENCE):  # an orderly queue waits for its batch, however long
            for hand_on in list(self._hand_ons.values()):
                await hand_on.wait()

    def forget_topic(self, topic: str) -> None:
        """The consumer is done with topic."""
        self.starts.forget_topic(topic)
        self._asking.forget(topic)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def stop_pulling(self) -> None:
        """Take no more queues and pull nothing more; the queues stay."""
        self._closed = True
        self._asking.close()
        pulls = [owned.pull for owned in self._table.values() if owned.pull is not None]
        await _cancel([*self._asking.inquiries, *self._turns.values(), *pulls])

    async def release(self, timeout: float) -> None:
        """Commit for the last time and give locks back, within timeout seconds; :meth:`forget_all` is to follow."""
        upkeep = self.lock_upkeep
        refreshes = upkeep.refreshes if upkeep is not None else []
        await _cancel([*self._hand_ons.values(), *self._unlock_tasks, *refreshes])
        with self._clock.move_on_after(timeout * COMMIT_SHARE):  # a silent broker leaves time for the locks of others
            if upkeep is not None:
                await upkeep.settle_doubts()
            await self.persist(wait=True)
        with self._clock.move_on_after(timeout * (1 - COMMIT_SHARE)):
            if self._locks is not None:
                await self._locks.unlock_all()

    def forget_all(self) -> None:
        """All queues leave the table, and what is held of them no longer counts against the budget of bytes."""
        for owned in list(self._table.values()):
            self._out(owned, Ownership.HANDED_ON)

    def _out(self, owned: OwnedQueue, state: Ownership) -> None:
        """The queue leaves the table."""
        owned.state = state
        if owned.messages is not None:
            owned.messages.drop()
        if self._table.get(owned.queue) is owned:
            del self._table[owned.queue]

    # --- rounds: which queues should this member have ----------------------------------------------------------------

    def rebalance(self) -> None:
        """Begin to bring the table in line with what this member should have; what fails asks for another round."""
        wanted = self._subscriptions.topics
        for topic in {queue.topic for queue in self._table} - wanted:
            self._decide(topic, Share())
        self._asking.ask(wanted)
        self._start_turns()
        if self.lock_upkeep is not None:
            self.lock_upkeep.look_for_moved()

    def _decide(self, topic: str, share: Share) -> None:
        """The event of a round: this is the member's share of topic."""
        before = self._shares.get(topic, frozenset())
        mine = self._shares[topic] = frozenset(share.mine)
        if mine != before:
            _log.log(
                logging.DEBUG if topic.startswith(RETRY_PREFIX) else logging.INFO,
                "group %s: %d of the %d queues of %s are this member's",
                self._group,
                len(mine),
                len(share.queues),
                topic,
            )
        others = [
            owned for queue, owned in self._table.items()
            if queue.topic == topic and queue not in mine and owned.state not in (Ownership.DRAINING, Ownership.DROPPED)
        ]  # fmt: skip
        fresh = [queue for queue in share.mine if queue not in self._table]
        for owned in others:
            self._give_up(owned)
        if fresh:
            handed_over: frozenset[MessageQueue] = frozenset()
            if share.members and self._locks is None:  # a lock says by itself when the former owner has ended
                handed_over = self._asking.formerly_others(topic, share)
            later = self._clock.monotonic() + HANDOVER + HANDOVER_NOTICE
            for queue in fresh:
                self._table[queue] = OwnedQueue(queue, later if queue in handed_over else 0.0)
        self._asking.decided(topic, share)
        if fresh or others:
            self._subscriptions.renew(topic)
        self._start_turns()

    # --- taking queues -----------------------------------------------------------------------------------------------

    def _start_turns(self) -> None:
        for broker_name in {queue.broker_name for queue, owned in self._table.items() if self._is_wanted(owned)}:
            if broker_name in self._turns:
                self._pokes[broker_name].set()
            elif rest := self._refusals.rest(_taking(broker_name)):
                self._again(rest)
            elif not self._closed:
                self._pokes[broker_name] = anyio.Event()
                name = f"taking queues at {broker_name}"
                self._turns[broker_name] = self._tasks.start(name, self._turn, broker_name, restart=False)

    def _is_wanted(self, owned: OwnedQueue) -> bool:
        return owned.state is Ownership.WANTED

    async def _turn(self, broker_name: str) -> None:
        """Take what is wanted at a broker; its first failure ends the turn, and another round begins the next one."""
        tried: set[OwnedQueue] = set()

        def wanted() -> list[OwnedQueue]:
            here = (owned for queue, owned in self._table.items() if queue.broker_name == broker_name)
            return [owned for owned in here if self._is_wanted(owned)]

        def may_be_taken(owned: OwnedQueue, now: float) -> bool:
            return owned.not_before <= now and owned.queue not in self._unlockings

        try:
            while fresh := [owned for owned in wanted() if owned not in tried]:
                now = self._clock.monotonic()
                if due := [owned for owned in fresh if may_be_taken(owned, now)]:
                    tried.update(due)
                    if not await self._take(broker_name, due):
                        break
                    continue
                poke = self._pokes[broker_name] = anyio.Event()
                later = [owned.not_before for owned in fresh if owned.not_before > now]
                with self._clock.move_on_after(min(later) - now if later else UNLOCKED_BY):
                    await poke.wait()
        finally:
            del self._turns[broker_name], self._pokes[broker_name]
            if wanted():
                self._again(self._refusals.rest(_taking(broker_name)))

    async def _take(self, broker_name: str, wanted: Sequence[OwnedQueue]) -> bool:
        """Lock queues of one broker, ask where to begin, and pull each that is had; False when the broker failed."""
        await self._subscriptions.tell(broker_name)
        try:
            await self._lock(broker_name, wanted)
        except AccessDeniedError as error:
            self._refusals.refused(_taking(broker_name), error)
            return False
        except RocketBoxError as error:
            self._told.tell(
                logging.WARNING, self._clock.monotonic(), ("lock", broker_name),
                "group %s: cannot lock queues at %s, it is tried again: %s", self._group, broker_name, error,
            )  # fmt: skip
            return False
        queues = iter([owned for owned in wanted if owned.state is Ownership.LOCKED])
        failed: list[OwnedQueue] = []

        async def begin_some() -> None:
            for owned in queues:
                if failed:
                    return
                if not await self._begin(owned):
                    failed.append(owned)

        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(min(SIDE_BY_SIDE, len(wanted))):
                    tasks.start_soon(begin_some)
        finally:  # a fault of ours ends the turn for all of them
            for owned in wanted:
                if owned.state is Ownership.LOCKED:
                    owned.state = Ownership.WANTED
        if not failed:
            self._refusals.allowed(_taking(broker_name))
        return not failed

    async def _lock(self, broker_name: str, wanted: Sequence[OwnedQueue]) -> None:
        """The event of a lock given, for those of wanted that were. Raises RocketBoxError when that cannot be known."""
        now = self._clock.monotonic()  # from before the request: the broker's 60 s begin later
        address = self._instance.routes.master(broker_name)
        given = {owned.queue for owned in wanted}
        try:
            if self._locks is not None:
                given = await self._locks.lock(broker_name, [owned.queue for owned in wanted])
        finally:
            self._unlock_what_went(wanted)
        for owned in wanted:
            if owned.queue in given and self._is_wanted(owned):
                owned.state = Ownership.LOCKED
                owned.confirm_lock(now, address)

    async def _begin(self, owned: OwnedQueue) -> bool:
        """The event of a start offset known, or of its broker's failure (False)."""
        queue = owned.queue
        try:
            start, stored = await self.starts.find(queue)
        except AccessDeniedError as error:
            self._refusals.refused(_taking(queue.broker_name), error)
            return False
        except RocketBoxError as error:
            self._told.tell(
                logging.WARNING, self._clock.monotonic(), ("start", queue),
                "group %s: no start offset for %s, it is tried again: %s", self._group, queue, error,
            )  # fmt: skip
            return not isinstance(error, RemotingError)
        if owned.state is not Ownership.LOCKED:  # a round took it back meanwhile
            return True
        owned.state = Ownership.PULLED
        messages = self._open(owned, start)
        _log.debug(
            "group %s: takes %s from offset %d%s", self._group, queue, start, "" if stored else " (new to the group)"
        )
        self._start_pull(owned)
        if not stored:
            await self._offsets.persist(
                [messages], wait=True
            )  # a restart goes on here, whatever happens before the first commit
        return True

    def _open(self, owned: OwnedQueue, offset: int) -> ProcessQueue:
        owned.messages = ProcessQueue(
            owned.queue, offset, now=self._clock.monotonic(), cached=self._instance.cached_bytes
        )
        owned.messages.locked_at = owned.locked_at
        owned.messages.lock_doubted = owned.before_reset is not None and owned.before_reset.lock_doubted
        return owned.messages

    def _start_pull(self, owned: OwnedQueue) -> None:
        if owned.state is Ownership.PULLED and not self._closed:
            assert owned.messages is not None
            owned.pull = self._pull(owned.messages)

    # --- giving queues up --------------------------------------------------------------------------------------------

    def _give_up(self, owned: OwnedQueue) -> None:
        """The event of a round that gave the queue to another member, or to none."""
        if owned.state in (Ownership.WANTED, Ownership.LOCKED):
            self._out(owned, Ownership.HANDED_ON)
            self._unlock_what_went([owned])
        elif owned.state is Ownership.PULLED:
            assert owned.messages is not None
            owned.state = Ownership.DRAINING
            owned.messages.close()
            self._let_go(owned)

    def _let_go(self, owned: OwnedQueue) -> None:
        if owned.pull is not None:
            owned.pull.cancel()
            owned.pull = None
        task = self._tasks.start(f"handing on {owned.queue}", self._hand_on, owned, restart=False)
        self._hand_ons[owned.queue] = task

    async def _hand_on(self, owned: OwnedQueue) -> None:
        """Wait for what is in hand, commit where that may be done, and let the queue go."""
        queue, messages = owned.queue, owned.messages
        assert messages is not None
        try:
            await self._end(owned, messages)
            messages.drop()
            self._offsets.forget(queue)
            # Or it would be asked for again beside its unlocking, and perhaps given behind it.
            owned.locked_at = messages.locked_at = None
            if self._locks is not None:
                await self._locks.unlock([queue])
        except Exception:  # a fault of ours: the supervisor tells, and what was not committed comes to the next owner
            self._out(owned, Ownership.HANDED_ON)
            self._unlock_what_went([owned])
            self._offsets.forget(queue)
            raise
        else:
            self._out(owned, Ownership.HANDED_ON)
            self._unlock_what_went([owned])
            _log.debug("group %s: gave up %s at offset %d", self._group, queue, messages.commit_offset)
        finally:
            del self._hand_ons[queue]
            if owned.state is Ownership.HANDED_ON and queue in self._shares.get(queue.topic, ()):
                self._again()  # a round gave it back meanwhile

    async def _end(self, owned: OwnedQueue, messages: ProcessQueue) -> None:
        """Give what is in hand the time that it has, and commit."""
        if self._options.orderly:
            await owned.idle()  # its lock stays until its batch has ended, so nobody else begins
        else:
            with self._clock.move_on_after(HANDOVER):
                await owned.idle()
        if owned.state is Ownership.DRAINING and self.may_commit(messages):
            await self._offsets.persist([messages], wait=True)

    def _unlock_what_went(self, queues: Iterable[OwnedQueue]) -> None:
        """Give back the locks of those that left the table, where one was had, or may have been given unheard."""
        for owned in queues:
            queue, locks = owned.queue, self._locks
            if owned.state is not Ownership.HANDED_ON or queue in self._table or locks is None or self._closed:
                continue
            if locks.perhaps_has(queue):
                self._unlockings[queue] += 1
                task = self._tasks.start(f"unlocking {queue}", self._unlock, locks, queue, restart=False)
                self._unlock_tasks = [*(each for each in self._unlock_tasks if each.state is TaskState.RUNNING), task]

    async def _unlock(self, locks: QueueLocks, queue: MessageQueue) -> None:
        """Until it is answered the queue is not taken again: its broker might carry the two out in any order.

        Where it is not, it is tried again for as long as the broker may keep the lock, unless a round gives it back.
        """
        end = self._clock.monotonic() + UNLOCK_FOR
        while True:
            try:
                await locks.unlock([queue])
            finally:
                self._unlockings[queue] -= 1
                if not self._unlockings[queue]:
                    del self._unlockings[queue]
                    if queue.broker_name in self._pokes:
                        self._pokes[queue.broker_name].set()
            await self._clock.sleep(UNLOCK_AGAIN)
            if self._closed or queue in self._table or queue in self._unlockings or not locks.perhaps_has(queue):
                return
            if self._clock.monotonic() > end:
                return
            self._unlockings[queue] += 1

    def _drop(self, owned: OwnedQueue, why: str) -> None:
        """The event of a lock that is another member's, or may be."""
        assert owned.messages is not None
        _log.warning("group %s: drops %s at offset %d: %s",
                     self._group, owned.queue, owned.messages.commit_offset, why)  # fmt: skip
        owned.locked_at = owned.messages.locked_at = None
        owned.messages.drop()
        if owned.state is Ownership.PULLED:
            owned.state = Ownership.DROPPED
            self._let_go(owned)

    # --- locks of queues that are had --------------------------------------------------------------------------------

    def _confirmed(self, owned: OwnedQueue) -> None:
        """The event of a lock confirmed: it may have stood still since its lock did not count for a moment."""
        assert owned.messages is not None
        self._offer(owned.messages)

    def _doubt(self, owned: OwnedQueue) -> None:
        """The event of a connection lost, or of a broker that is elsewhere now, for one of its queues."""
        if owned.state is Ownership.LOCKED:
            owned.state = Ownership.WANTED
            self._again()
        elif owned.messages is not None and owned.locked_at is not None:
            owned.messages.lock_doubted = True

    # --- resets ------------------------------------------------------------------------------------------------------

    async def reset(self, messages: ProcessQueue, offset: int) -> None:
        """The event of a queue that goes on at offset: what is held of it no longer counts.

        Either the group's offset was reset at the broker, or messages were removed before they were read.
        """
        owned = self._table.get(messages.queue)
        if owned is None or owned.messages is not messages or owned.state is not Ownership.PULLED:
            return
        now = self._clock.monotonic()
        if owned.reset_at is not None and (wait := owned.reset_at + RESET_AGAIN_AFTER - now) > 0:
            await self._clock.sleep(wait)  # a broker that says now one offset and now another one is not asked for ever
            if owned.messages is not messages or owned.state is not Ownership.PULLED:
                return
            now = self._clock.monotonic()
        owned.reset_at = now
        moved = messages.pulled_to
        self._told.tell(
            logging.WARNING if moved else logging.INFO,  # from 0, which FIRST_OFFSET begins at, nothing is lost
            now, ("reset", owned.queue, bool(moved)),
            "group %s: %s goes on at offset %d instead of %d (%+d), as its broker says",
            self._group, owned.queue, offset, moved, offset - moved,
        )  # fmt: skip
        messages.drop()
        await self._go_on_at(owned, messages, offset)

    async def skip(self, ends: Mapping[MessageQueue, int]) -> None:
        """The event of queues that go on at these offsets because their user wants it so."""
        skipped = []
        for queue, end in ends.items():
            owned = self._table.get(queue)
            if owned is None or owned.state is not Ownership.PULLED:
                continue
            messages = owned.messages
            if messages is not None and messages.commit_offset < end:
                messages.drop()  # of all of them, before anything more of one is begun
                skipped.append((owned, messages, end))
        await _cancel([owned.pull for owned, _, _ in skipped if owned.pull is not None])
        for owned, messages, end in skipped:
            if owned.messages is messages and owned.state is Ownership.PULLED:
                await self._go_on_at(owned, messages, end)

    async def _go_on_at(self, owned: OwnedQueue, messages: ProcessQueue, offset: int) -> None:
        """Pull from another offset on, and commit that, when what is held (``messages``) was dropped."""
        owned.before_reset = messages
        fresh = self._open(owned, offset)
        if self.may_commit(fresh):  # in a task of its own: a fault of ours in it must not end the pulling
            persist = partial(self._offsets.persist, [fresh], wait=True)
            await self._tasks.start(f"commit of {owned.queue}", persist, restart=False).wait()
        if self._options.orderly:
            await messages.idle()
        if owned.messages is fresh:
            self._start_pull(owned)


def _taking(broker_name: str) -> str:
    """What is refused where a queue can be neither locked nor begun, in words."""
    return f"taking queues at {broker_name}"


async def _cancel(tasks: Iterable[SupervisedTask]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    for task in tasks:
        await task.wait()
