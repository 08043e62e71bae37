"""Getting the lease of a listener's query, and keeping it: who does not get it stands by until it does.

What the lease is, and who gets it when, is ``lease``; here it is asked for again and again, and the listener hears what
it waits for. A keeper goes on until the lease is lost or given back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import AccessDeniedError, RocketBoxError
from rocketbox.spark.lease import Lease, LeaseAnswer
from rocketbox.tasks import SupervisedTask, Supervisor

__all__ = ["LeaseKeeper"]

_log = logging.getLogger(__name__)

STAND_BY_POLL = 2.0  # seconds between two tries to get the lease: so much later another driver takes over
LONGEST_POLL = 10.0  # seconds between two tries where it is refused; doubles up to that, as in ``client.refusals``


class LeaseKeeper:
    """Has ``lease`` for the listener of ``group`` and ``topic``. The tasks of ``tasks`` keep it.

    ``waits`` is called with the answer of each try that has not brought it.
    """

    def __init__(
        self,
        lease: Lease,
        group: str,
        topic: str,
        *,
        tasks: Supervisor,
        clock: Clock,
        waits: Callable[[LeaseAnswer], object],
    ) -> None:
        self._lease = lease
        self._group = group
        self._topic = topic
        self._tasks = tasks
        self._clock = clock
        self._waits = waits
        self._why: str | None = None  # what was told last
        self._seen_another = False  # since it was held last; known also when a try has failed meanwhile
        self._keeping: SupervisedTask | None = None
        self._lost = anyio.Event()

    @property
    def held(self) -> bool:
        """Whether nobody else can have it now."""
        return self._lease.held

    @property
    def lost(self) -> bool:
        """Whether it was lost since :meth:`take` has returned."""
        return self._lost.is_set()

    async def take(self) -> bool:
        """Return when it is held, and kept from then on; whether another driver was seen to have it.

        Whatever keeps brokers from being asked (no name server answers, the topic has no route) is waited for like a
        lock: who stands by while they are away takes over as soon as they are back.
        """
        self._why = None
        pause = STAND_BY_POLL
        while True:
            try:
                answer = await self._lease.take()
                if answer.held and self._seen_another:
                    answer = await self._lease.settle()
            except RocketBoxError as error:
                why = f"the brokers of topic {self._topic} cannot be asked for: {error}"
                answer = LeaseAnswer(False, why, refused=isinstance(error, AccessDeniedError))
            if answer.held:
                break
            self._seen_another = self._seen_another or answer.by_another
            self._tell(answer)
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL) if answer.refused else STAND_BY_POLL
        by_another, self._seen_another = self._seen_another, False
        if by_another:
            _log.warning("Spark listener %s takes over topic %s", self._group, self._topic)
        if self._keeping is not None:
            self._keeping.cancel()
        self._lost = anyio.Event()
        self._keeping = self._tasks.start("lease", self._keep, self._lost)
        return by_another

    async def release(self) -> None:
        """Give it back: who stands by has it at once."""
        await self._lease.release()

    async def stand_back(self) -> None:
        """Give it back, and return when a holder that brokers have forgotten must have it again."""
        await self._lease.stand_back()

    def _tell(self, answer: LeaseAnswer) -> None:
        if answer.why != self._why:
            does = "stands by" if answer.by_another else "waits"
            _log.warning("Spark listener %s %s: %s", self._group, does, answer.why)
        self._why = answer.why
        self._waits(answer)

    async def _keep(self, lost: anyio.Event) -> None:
        await self._lease.keep()
        lost.set()
