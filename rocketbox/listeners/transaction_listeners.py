"""Transaction listeners: functions that say what became of the transactions of a producer, by topic and tag.

Holds their options, what one is planned as, and the container of those of one cluster, which has its producer ask them
(``client.transaction_checks``) from its start to its end.

Source: rocketmq-spring 2.3 ``RocketMQTransactionListener``, ``RocketMQLocalTransactionListener`` (one for each
producer; the pool's options and their defaults are those).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Annotated, Self

from rocketbox.client import CheckRoute, Producer, TransactionChecker, TransactionCheckOptions
from rocketbox.declarations import IN_CODE, Words, options_of
from rocketbox.errors import Finding
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.binding import Beans
from rocketbox.listeners.container_state import ContainerState, ContainerStatus
from rocketbox.listeners.signature import UNKNOWN, HandlerSignature
from rocketbox.message import LocalTransactionState, MessageExt
from rocketbox.template import MessageConverter

__all__ = [
    "TRANSACTION_LISTENER_OPTIONS",
    "TransactionContainer",
    "TransactionFunction",
    "TransactionListenerOptions",
    "TransactionPlan",
    "overlaps",
    "wrong_checker",
]


@dataclass(frozen=True, kw_only=True)
class TransactionListenerOptions(TransactionCheckOptions):
    """The options of the decorator; times in seconds."""

    topic: Annotated[str | None, IN_CODE, Words("the topic; none: every one that no other listener names")] = None
    tags: Annotated[str | None, IN_CODE, Words("tags of the topic such as paid || prepaid; none: all")] = None
    cluster: Annotated[str | None, IN_CODE, Words("the cluster whose producer it is for; none: the main one")] = None
    enabled: Annotated[bool, Words("false: it is not there")] = True


TRANSACTION_LISTENER_OPTIONS = options_of(TransactionListenerOptions)


@dataclass(frozen=True)
class TransactionFunction:
    """One listener: what it takes, and what it is for."""

    signature: HandlerSignature
    topic: str | None
    tags: frozenset[str] | None
    options: TransactionCheckOptions

    @property
    def is_for(self) -> str:
        """What it is for, in words."""
        if self.topic is None:
            return "transactions to all other topics"
        tags = "" if self.tags is None else f", tags {' || '.join(sorted(self.tags))}"
        return f"transactions to topic {self.topic}{tags}"


@dataclass(frozen=True)
class TransactionPlan:
    """The listeners of one cluster's producer."""

    cluster: str | None
    group: str
    functions: tuple[TransactionFunction, ...]
    user: None = None

    @property
    def where(self) -> str:
        return self.functions[0].signature.where

    def describe(self) -> list[str]:
        of_cluster = f" of cluster {self.cluster}" if self.cluster else ""
        return [
            f"transaction listener {each.signature.name} ({each.signature.where}): {each.is_for}{of_cluster}"
            for each in self.functions
        ]


def wrong_checker(signature: HandlerSignature) -> Iterator[Finding]:
    """What is wrong with a function as a transaction listener, beside its parameters."""
    says = "LocalTransactionState.COMMIT, ROLLBACK or UNKNOWN"
    if signature.is_batch:
        yield Finding(
            f"transaction listener {signature.name} takes a batch, and is asked about one transaction at a time",
            signature.where, "take one payload, or a MessageExt",
        )  # fmt: skip
    if signature.returns not in (UNKNOWN, LocalTransactionState):
        kind = getattr(signature.returns, "__name__", str(signature.returns))
        yield Finding(
            f"transaction listener {signature.name} returns {kind}, and has to say what became of a transaction",
            signature.where, f"return {says}, and write -> LocalTransactionState",
        )  # fmt: skip


def overlaps(functions: Sequence[TransactionFunction]) -> Iterator[Finding]:
    """Those of one cluster of which two would be asked about the same transaction."""
    for number, one in enumerate(functions):
        for other in functions[number + 1 :]:
            if one.topic != other.topic:
                continue
            shared = None if one.tags is None or other.tags is None else one.tags & other.tags
            if shared is None or shared:
                what = "all topics" if one.topic is None else f"topic {one.topic}"
                both = f", and both take tag {min(shared)}" if shared else ""
                yield Finding(
                    f"transaction listeners {one.signature.name} and {other.signature.name} are both for {what}{both}",
                    f"{one.signature.where} and {other.signature.where}",
                    "let each take tags of its own: tags='paid || prepaid'",
                )


class TransactionContainer:
    """Has a producer ask its listeners, from ``async with`` to its end: also while others drain, which may send."""

    def __init__(
        self,
        plan: TransactionPlan,
        *,
        producer: Producer,
        beans: Beans,
        converter: MessageConverter,
        called: Callable[[str], AbstractContextManager[object]],
    ) -> None:
        """``called`` stands around each call of a listener, which it is given in words."""
        self.plan = plan
        self._called = called
        self.cluster = plan.cluster
        self.group = plan.group
        self.name = plan.group
        self._producer = producer
        self._beans = beans
        self._converter = converter
        self._status = ContainerStatus.STOPPED
        self._stack = AsyncExitStack()
        self._routes: list[CheckRoute] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for function in self.plan.functions:
                route = self._producer.add_transaction_checker(
                    self._checker(function), topic=function.topic, tags=function.tags, options=function.options
                )
                route.around = partial(self._called, f"transaction listener {function.signature.name}")
                stack.callback(route.remove)
                self._routes.append(route)
            self._stack = stack.pop_all()
        self._status = ContainerStatus.RUNNING
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status = ContainerStatus.STOPPED
        await self._stack.__aexit__(kind, error, trace)

    async def drain(self, timeout: float) -> None:
        """Nothing to end: what is asked now and not answered is asked again."""

    def state(self) -> ContainerState:
        ready = self._status is ContainerStatus.RUNNING
        progress = {
            "asked": sum(route.asked for route in self._routes), "failed": sum(route.failed for route in self._routes),
        }  # fmt: skip
        return ContainerState(self.cluster, self.group, self._status, ready, None if ready else "stopped", progress)

    def describe(self) -> list[str]:
        return self.plan.describe()

    def _checker(self, function: TransactionFunction) -> TransactionChecker:
        """What the producer asks: of a ``def`` a ``def``, so that it binds and calls in a thread."""
        binding = HandlerBinding(function.signature, self._beans.provider, self._converter)

        async def check(message: MessageExt) -> LocalTransactionState:
            said: LocalTransactionState = await binding.call(binding.arguments(message))
            return said

        def check_in_thread(message: MessageExt) -> LocalTransactionState:
            said: LocalTransactionState = binding.call(binding.arguments(message))
            return said

        checker = check if binding.is_async else check_in_thread
        checker.__qualname__ = function.signature.name
        return checker
