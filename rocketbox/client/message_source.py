"""What handlers are fed from: the part of a queue that calling them needs, and nothing of how messages came.

``consume`` and ``workers`` stand on this alone. A ``ProcessQueue``, which pulls fill and whose offset is committed, is
one source; messages that are acknowledged one by one need no offset and can be another.

Source: own design; Apache RocketMQ 5.x has a service of its own for each kind (``ConsumeMessageConcurrentlyService``,
``ConsumeMessagePopConcurrentlyService``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Protocol

from rocketbox.message import MessageExt

__all__ = ["MessageSource", "WayBack"]


class MessageSource(Protocol):
    """Messages that wait for handlers: taken, and then removed or given back, each batch finished once."""

    attended: bool
    """It stands in the workers' line, is being worked on in order, or waits for its time: nobody else lines it up."""

    on_closed: list[Callable[[], object]]
    """What is called when it is closed; whoever adds something takes it out again."""

    @property
    def topic(self) -> str:
        """The topic they are read from; those of a retry topic have one of their own each."""

    @property
    def waiting(self) -> Sequence[MessageExt]:
        """The messages that nobody has taken, in their order."""

    @property
    def closed(self) -> bool:
        """Whether it gives nothing out any more; what is in hand still counts."""

    @property
    def dropped(self) -> bool:
        """Whether what is in hand no longer counts either: others get it again."""

    def lock_holds(self, now: float) -> bool:
        """Whether no other member may be handling messages of it; asked for orderly groups only."""

    def take(self, limit: int, fits: Callable[[MessageExt], bool] | None = None, past: int = 0) -> list[MessageExt]:
        """The first waiting message and up to ``limit - 1`` more that fit, in order.

        It looks past up to ``past`` messages that do not fit, which wait on in their places, and stops before the next
        one. Each batch that is not empty is followed by one :meth:`finish`.
        """

    def finish(self, batches: int = 1) -> None:
        """So many batches that were taken have been dealt with."""

    def remove(self, messages: Iterable[MessageExt]) -> None:
        """These are consumed, or safe elsewhere."""

    def give_back(self, messages: Sequence[MessageExt]) -> object:
        """Let messages wait again, before all others and in their order."""


class WayBack(Protocol):
    """Where messages go that were not consumed."""

    async def send_back(
        self, message: MessageExt, delay_level: int, max_reconsume_times: int, delay: timedelta | None = None
    ) -> bool:
        """Whether the message is safe at a broker again; False, after it was logged, when no broker took it.

        ``delay_level`` 0 lets the broker decide, -1 means the dead-letter topic; ``max_reconsume_times`` -1 means 16.
        ``delay`` is what is wanted in truth, where that is none of the levels and the broker can do it.
        """
