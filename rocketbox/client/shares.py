"""A member's share of each topic's queues: asked for side by side, one inquiry of a topic at a time.

An answer that is under way may be from before the change that a round was begun for: then the topic is asked for again.
When rounds are is in ``rebalance``, who is in the group in ``members``; what becomes of a share is ``assignment``'s.

Source: Apache RocketMQ 5.x ``RebalanceImpl.rebalanceByTopic``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rocketbox.client.failure_log import PERIOD
from rocketbox.client.members import GroupMembers, Said
from rocketbox.client.membership import Membership
from rocketbox.errors import AccessDeniedError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.rare_log import RareLog
from rocketbox.tasks import SupervisedTask

__all__ = ["Share", "Shares"]

_log = logging.getLogger(__name__)

LONG_AFTER = 5.0  # seconds until a member is looked for again that servers refuse to know


@dataclass(frozen=True)
class Share:
    """``mine`` of a topic's ``queues``, which are shared among ``members`` (none: all have all queues)."""

    mine: Sequence[MessageQueue] = ()
    queues: Sequence[MessageQueue] = ()
    members: Sequence[str] = ()


class Shares:
    """Finds out shares; ``decide`` takes each of them. A failure asks for another round."""

    def __init__(self, membership: Membership, *, decide: Callable[[str, Share], None]) -> None:
        self._group = membership.group
        self._instance = membership.instance
        self._clock = membership.instance.clock
        self._options = membership.options
        self._subscriptions = membership.subscriptions
        self._tasks = membership.tasks
        self._again = membership.again
        self._decide = decide
        self._members = GroupMembers(self._group, self._instance, self._subscriptions, self._options.allocation)
        self._inquiries: dict[str, SupervisedTask] = {}  # by topic
        self._asked_meanwhile: set[str] = set()  # topics that a round wanted an answer for later than the one under way
        self._closed = False
        self._refusals = membership.refusals
        self._told = RareLog(_log, PERIOD)

    @property
    def inquiries(self) -> list[SupervisedTask]:
        """Those under way."""
        return list(self._inquiries.values())

    def ask(self, topics: Iterable[str]) -> None:
        """Find out the share of each of topics as it is from now on."""
        said = self._members.round()
        for topic in sorted(topics):
            if topic in self._inquiries:
                self._asked_meanwhile.add(topic)
            else:
                self._start(topic, said)

    def close(self) -> None:
        """Nothing more is asked or decided; inquiries under way are to be cancelled."""
        self._closed = True

    def formerly_others(self, topic: str, share: Share) -> frozenset[MessageQueue]:
        """The queues of a share's topic that another member, one that is still there, had until now."""
        return self._members.in_other_hands(topic, share.queues, share.members)

    def decided(self, topic: str, share: Share) -> None:
        """The queues of topic are shared like this from now on."""
        if share.members:
            self._members.decided(topic, share.members)

    def forget(self, topic: str) -> None:
        """The consumer is done with topic."""
        self._members.forget(topic)

    def _start(self, topic: str, said: Said) -> None:
        self._inquiries[topic] = self._tasks.start(f"queues of {topic}", self._inquire, topic, said, restart=False)

    async def _inquire(self, topic: str, said: Said) -> None:
        doing = f"asking who is in the group, for {topic}"
        try:
            if rest := self._refusals.rest(doing):
                self._again(rest)
                return
            share = await self._find(topic, said)
            self._refusals.allowed(doing)
            if share is None:
                self._instance.request_heartbeat()  # no broker that answers knows this member (yet, or any more)
                self._again(LONG_AFTER if self._refusals else 0.0)  # or none may be told of it
            elif not self._closed and topic in self._subscriptions.topics:
                self._decide(topic, share)
        except AccessDeniedError as error:
            self._again(self._refusals.refused(doing, error))
        except RocketBoxError as error:
            self._told.tell(
                logging.WARNING, self._clock.monotonic(), ("rebalance", topic),
                "group %s: rebalance of %s failed, it is tried again: %s", self._group, topic, error,
            )  # fmt: skip
            self._again()
        finally:
            del self._inquiries[topic]
            if topic in self._asked_meanwhile:
                self._asked_meanwhile.remove(topic)
                if not self._closed:
                    self._start(topic, self._members.round())

    async def _find(self, topic: str, said: Said) -> Share | None:
        """The share of topic; None while this client is no member. Raises RocketBoxError."""
        route = self._instance.cached_route(topic)
        queues = sorted(route.subscribe_queues) if route is not None else []  # else the instance keeps asking
        if self._options.broadcasting:
            return Share(queues, queues)
        if not queues:
            return Share()
        members = await self._members.ask(topic, said)
        if self._instance.client_id not in members:
            return None
        return Share(self._members.share(topic, queues, members), queues, members)
