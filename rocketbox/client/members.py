"""The members of a consumer group, as a broker of one of its topics knows them.

Any broker of the topic may be asked. One that does not answer soon is not waited for: the next one is asked beside it,
and the first answer counts, unless somebody is missing in it who shared the queues until now: a broker that was just
started again knows nobody but those who have told it of themselves since. Then the others are asked as well, and who
one of them knows is in the group. A broker is asked once in a round, however many topics of the group it has.

Source: Apache RocketMQ 5.x ``MQClientInstance.findConsumerIdList``. Unlike there a silent broker costs 0.3 s, not 3 s,
a broker is not asked once for each topic, and a member that one broker has forgotten keeps its queues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio

from rocketbox.client.allocation import AllocationStrategy, sort_client_ids
from rocketbox.client.api.groups import consumer_ids
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.subscriptions import Subscriptions
from rocketbox.errors import AccessDeniedError, BrokerError, ClientError, NoRouteError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import ResponseCode
from rocketbox.safe_repr import safe_repr

__all__ = ["GroupMembers", "Said"]

NEXT_AFTER = 0.3  # seconds without an answer until the next broker is asked as well
LAST_FOR = 30.0  # seconds for which a broker that did not answer in time is asked after the others
HANDED_OVER_WITHIN = 2.0  # seconds after a decision in which former owners end what is in hand; they have less


@dataclass
class _Decision:
    """Among whom the queues of a topic were shared, and until when."""

    members: list[str]
    until: float = float("inf")


class Said:
    """What brokers say of a group in one round: each is asked once, by whoever first wants to know.

    ``ask(broker)`` returns the ids that it knows, or raises RocketBoxError.
    """

    def __init__(self, ask: Callable[[str], Awaitable[list[str]]]) -> None:
        self._ask = ask
        self._said: dict[str, list[str] | RocketBoxError] = {}
        self._being_asked: dict[str, anyio.Event] = {}

    async def by(self, broker: str) -> list[str]:
        """The ids that the broker knows. Raises RocketBoxError when it does not answer, to all who want to know."""
        while broker in self._being_asked:
            await self._being_asked[broker].wait()
        if broker not in self._said:  # also when who has asked was cancelled meanwhile
            over = self._being_asked[broker] = anyio.Event()
            try:
                self._said[broker] = await self._ask(broker)
            except RocketBoxError as error:
                self._said[broker] = error
            finally:
                del self._being_asked[broker]
                over.set()
        said = self._said[broker]
        if isinstance(said, RocketBoxError):
            raise said
        return said


class GroupMembers:
    """Asks who is in a group, and remembers who was: a queue's former owner may still have messages of it in hand."""

    def __init__(
        self, group: str, instance: MQClientInstance, subscriptions: Subscriptions, allocation: AllocationStrategy
    ) -> None:
        self._group = group
        self._subscriptions = subscriptions
        self._instance = instance
        self._clock = instance.clock
        self._allocation = allocation
        self._slow: dict[str, float] = {}  # broker name: when it did not answer in time
        self._decisions: dict[str, list[_Decision]] = {}  # topic: the one that holds, behind those just before it

    def round(self) -> Said:
        """What brokers say from now on."""
        return Said(self._ask)

    async def ask(self, topic: str, said: Said) -> list[str]:
        """The client ids of the group in their order; without this client while no broker that answers knows it.

        ``said`` is the round that the question belongs to. Raises RocketBoxError when no broker answers.
        """
        names = self._brokers(topic)
        if len(names) == 1:  # there is no other one to be asked beside it
            return sort_client_ids(await said.by(names[0]))
        known = set(self._decisions[topic][-1].members) if topic in self._decisions else set()
        answers: list[list[str]] = []
        errors: list[RocketBoxError] = []
        asked = [anyio.Event() for _ in names]  # over, with or without an answer

        async def ask_one(index: int) -> None:
            try:
                ids = await said.by(names[index])
            except RocketBoxError as error:
                errors.append(error)
                self._slow[names[index]] = self._clock.monotonic()
            else:
                answers.append(ids)
                if self._instance.client_id in ids and known <= {each for answer in answers for each in answer}:
                    tasks.cancel_scope.cancel()  # else another broker may know this member already, or others still
            asked[index].set()

        async with anyio.create_task_group() as tasks:
            for index, name in enumerate(names):
                tasks.start_soon(ask_one, index)
                with self._clock.move_on_after(NEXT_AFTER):
                    await asked[index].wait()
                if not asked[index].is_set():
                    self._slow[name] = self._clock.monotonic()
            if any(self._instance.client_id in ids for ids in answers):
                tasks.cancel_scope.cancel()  # all have had their time to add somebody
        if not answers:
            raise errors[0]
        return sort_client_ids({each for answer in answers for each in answer})

    def _brokers(self, topic: str) -> list[str]:
        """The names of topic's brokers in any order, those that were silent last."""
        instance = self._instance
        route = instance.cached_route(topic)
        known = {*instance.broker_names}
        names = [name for name in route.broker_names if name in known] if route else []
        if not names:
            raise NoRouteError(topic, instance.name_servers, namespace=instance.options.namespace)
        self._clock.random.shuffle(names)
        late = self._clock.monotonic() - LAST_FOR
        return sorted(names, key=lambda name: self._slow.get(name, late) > late)

    async def _ask(self, broker_name: str) -> list[str]:
        instance = self._instance
        if not self._subscriptions.known_to(broker_name):
            await self._subscriptions.tell(broker_name)
        address = instance.broker_address(broker_name, master=False)
        try:
            return await consumer_ids(instance.remoting, address, self._group, timeout=instance.options.api_timeout)
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR and not isinstance(error, AccessDeniedError):
                return []  # how a broker says that it knows no member
            raise

    def share(self, topic: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> Sequence[MessageQueue]:
        """Those of queues that are this member's. Raises ClientError when the allocation strategy fails."""
        return self._allocate(self._instance.client_id, queues, members) if queues else []

    def decided(self, topic: str, members: Sequence[str]) -> None:
        """The queues of topic are shared among members from now on."""
        now, present = self._clock.monotonic(), list(members)
        *earlier, last = self._decisions.get(topic) or [_Decision(self._others(members))]
        if last.members != present:
            last.until = now
            earlier, last = [*earlier, last], _Decision(present)
        recent = [decision for decision in earlier if now - decision.until < HANDED_OVER_WITHIN]
        self._decisions[topic] = [*recent, last]

    def forget(self, topic: str) -> None:
        """The consumer is done with topic."""
        self._decisions.pop(topic, None)

    def in_other_hands(
        self, topic: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> frozenset[MessageQueue]:
        """Those of queues that another member, one that is still there, had until now, or a moment ago.

        Who had what follows from who was in the group before: at the start, all others. A moment ago counts because a
        member that comes and goes passes queues on which their former owner has not let go yet.
        """
        late = self._clock.monotonic() - HANDED_OVER_WITHIN
        found: set[MessageQueue] = set()
        for before in self._decisions.get(topic) or [_Decision(self._others(members))]:
            if before.until > late:
                for other in self._others(before.members):
                    if other in members:
                        found.update(self._allocate(other, queues, before.members))
        return frozenset(found)

    def _others(self, members: Sequence[str]) -> list[str]:
        return [member for member in members if member != self._instance.client_id]

    def _allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        try:
            return self._allocation(client_id, queues, members)
        except Exception as error:  # a strategy may be anybody's
            raise ClientError(f"the allocation strategy of group {self._group} failed: {safe_repr(error)}") from error
