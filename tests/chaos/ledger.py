"""What clients sent and what they were told of it, and whether a broker that was killed since still has it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from rocketbox.client import Admin
from rocketbox.message import LocalTransactionState, MessageExt, MessageQueue

__all__ = ["GROUP", "TAGS", "TOPIC", "Entry", "Ledger"]

TOPIC = "ledger"
GROUP = "reader"
TAGS = ("a", "b", "c")
AGAIN = 100  # messages of a queue that were seen after an earlier kill, and are read once more


@dataclass(frozen=True)
class Entry:
    """A message that was sent. Its body says who sent it, and as its how-manieth.

    ``late``: others may stand before it that were sent after it. ``delayed``: it may be there twice, too.
    """

    body: bytes
    tag: str
    key: str
    delayed: bool = False
    late: bool = False


@dataclass
class Ledger:
    """``sent`` are all by body; ``acknowledged`` those that count, with their queue and its offset."""

    sent: dict[bytes, Entry] = field(default_factory=dict)
    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    delayed: dict[bytes, float] = field(default_factory=dict)
    """Delayed messages that were acknowledged, and when (monotonic seconds)."""
    recalled: set[bytes] = field(default_factory=set)
    """Messages with a time that were recalled before it."""
    works: dict[bytes, bool] = field(default_factory=dict)
    """Whether the work of each transaction was done, as a database knows it, whose half message was acknowledged."""
    committed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By queue the largest offset that was committed, or tried to be."""
    seen: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    found: dict[bytes, int] = field(default_factory=dict)
    """How often each body was found. Only a delayed one may be there twice."""

    def send(self, entry: Entry) -> None:
        self.sent[entry.body] = entry

    async def check(self, name_server: str, *, thorough: bool) -> list[str]:
        """What is wrong with the broker that was killed and started again. ``thorough``: all is read, not the end."""
        wrong: list[str] = []
        counted: Counter[bytes] = Counter()
        async with Admin(name_server=name_server) as admin:
            places: dict[tuple[int, int], bytes] = {}
            for queue in await admin.queues(TOPIC):
                end = await admin.max_offset(queue)
                if end < self.seen[queue.queue_id]:
                    wrong.append(f"queue {queue.queue_id} ends at {end}, before at {self.seen[queue.queue_id]}")
                begin = await admin.min_offset(queue) if thorough else max(0, self.seen[queue.queue_id] - AGAIN)
                messages = await _read(admin, queue, begin, end, wrong)
                wrong += self._check_queue(queue, begin, messages)
                places |= {(queue.queue_id, message.queue_offset): message.body for message in messages}
                counted.update(message.body for message in messages[max(0, self.seen[queue.queue_id] - begin) :])
                for tag in TAGS:
                    expected = [message.queue_offset for message in messages if message.tag == tag]
                    tagged = await _read(admin, queue, begin, end, wrong, tag)
                    if (by_tag := [message.queue_offset for message in tagged]) != expected:
                        wrong.append(f"queue {queue.queue_id}: tag {tag} finds {by_tag[:9]}, not {expected[:9]} ...")
                self.seen[queue.queue_id] = end
                wrong += await self._check_offset(admin, queue, end)
            for body, count in counted.items():
                self.found[body] = self.found.get(body, 0) + count
            for body, place in self.acknowledged.items():
                if body not in self.found:
                    wrong.append(f"acknowledged and lost: {body[:40]!r} at {place}")
                elif place in places and places[place] != body:
                    wrong.append(f"{body[:40]!r} was told {place}, where {places[place][:40]!r} is")
            for body, count in self.found.items():
                if count > 1 and not self.sent[body].delayed:
                    wrong.append(f"{count} times there: {body[:40]!r}")
                if body in self.recalled:
                    wrong.append(f"recalled and there: {body[:40]!r}")
                if self.sent[body].late and not self.sent[body].delayed and not self.works.get(body):
                    wrong.append(f"there, and its work was not done: {body[:40]!r}")
        return wrong

    def _check_queue(self, queue: MessageQueue, begin: int, messages: list[MessageExt]) -> list[str]:
        wrong = []
        name = f"queue {queue.queue_id}"
        if [message.queue_offset for message in messages] != list(range(begin, begin + len(messages))):
            wrong.append(f"{name} has gaps behind {begin}")
        last: dict[bytes, int] = {}
        for message in messages:
            entry = self.sent.get(message.body)
            if entry is None:
                wrong.append(f"{name} has what was never sent: {message.body[:40]!r}")
                continue
            if (message.tag, *message.keys) != (entry.tag, entry.key):
                wrong.append(f"{name}: {message.body[:40]!r} has tag {message.tag} and keys {message.keys}")
            sender, number = message.body.split(b" ")[:2]
            if not (entry.delayed or entry.late) and int(number) <= last.get(sender, -1):
                wrong.append(f"{name}: {message.body[:40]!r} stands behind number {last[sender]} of its sender")
            last[sender] = max(int(number), last.get(sender, -1))
        return wrong

    async def _check_offset(self, admin: Admin, queue: MessageQueue, end: int) -> list[str]:
        committed = await admin.committed(GROUP, queue)
        if committed is not None and committed > min(self.committed[queue.queue_id], end):
            most = self.committed[queue.queue_id]
            return [f"queue {queue.queue_id}: {committed} is committed, of {end}; {most} at most was"]
        return []

    def undelivered(self) -> list[bytes]:
        """Delayed messages that were acknowledged, and those of works that were done, which were not found yet."""
        wanted = [body for body in self.delayed if body not in self.recalled]
        return [body for body in (*wanted, *self._done()) if body not in self.found]

    def _done(self) -> list[bytes]:
        return [body for body, done in self.works.items() if done]

    def state_of(self, message: MessageExt) -> LocalTransactionState:
        """What a producer says of a transaction that a broker asks about."""
        done = self.works.get(message.body, False)
        return LocalTransactionState.COMMIT if done else LocalTransactionState.ROLLBACK


async def _read(
    admin: Admin, queue: MessageQueue, begin: int, end: int, wrong: list[str], expression: str = "*"
) -> list[MessageExt]:
    messages: list[MessageExt] = []
    while begin < end:
        result = await admin.pull(queue, begin, 32, expression)
        messages += [message for message in result.messages if message.queue_offset < end]
        if result.next_begin_offset <= begin:
            wrong.append(f"queue {queue.queue_id} cannot be read behind {begin}: {result.status}")
            break
        begin = result.next_begin_offset
    return messages
