"""Heartbeats: each broker is told in its turn of one's groups, every 30 s and whenever somebody asks for it.

Each address has a turn of its own, so a broker that does not answer keeps no heartbeat from the others. What is asked
for while a heartbeat to an address is under way is one more after it, however often it is asked. What a heartbeat says
and which brokers there are is ``instance``'s part.

A heartbeat of which a broker refuses one group is no heartbeat of any of them. So the groups are told one by one then,
and who is refused is left out of what is said of the others, until it is allowed (``refusals``).

Source: Apache RocketMQ 5.x ``MQClientInstance.sendHeartbeatToAllBroker``. Unlike there: side by side, and what is asked
for during a round is not dropped (a broker may then refuse pulls for 30 s); and a connection on which an answer is
awaited and nothing has come for 15 s gets one, so that a half-open link (the other machine lost power, a firewall its
memory) is given up within 20 s, where a pull would wait for 30.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

import anyio

from rocketbox.client.api import groups as groups_api
from rocketbox.client.api.groups import HeartbeatAnswer
from rocketbox.client.failure_log import PERIOD
from rocketbox.client.options import ClientOptions
from rocketbox.client.refusals import Refusals
from rocketbox.clock import Clock
from rocketbox.errors import AccessDeniedError, RocketBoxError
from rocketbox.protocol.bodies import HeartbeatData
from rocketbox.protocol.codes import CLIENT_INNER_PRODUCER
from rocketbox.rare_log import RareLog
from rocketbox.remoting.client import RemotingClient
from rocketbox.tasks import Supervisor

__all__ = ["Heartbeats"]

_log = logging.getLogger(__name__)

LOOK_EVERY = 1.0  # seconds, while one is silent


class _Turn:
    """The heartbeats of one address: the one that is under way, and the one that is asked for behind it."""

    __slots__ = ("asked", "sending")

    def __init__(self) -> None:
        self.asked: anyio.Event | None = None
        self.sending = False


class Heartbeats:
    """Sends what ``data`` says (None: there is nothing to tell) to ``addresses``.

    ``greeted`` is called after the first heartbeat over a new connection was answered: that broker knows this client
    now, and may not have before. ``refusals`` gives those of a consumer group.
    """

    def __init__(
        self,
        remoting: RemotingClient,
        clock: Clock,
        tasks: Supervisor,
        options: ClientOptions,
        *,
        addresses: Callable[[], Iterable[str]],
        data: Callable[[], HeartbeatData | None],
        greeted: Callable[[], None],
        refusals: Callable[[str], Refusals],
    ) -> None:
        self._remoting = remoting
        self._clock = clock
        self._tasks = tasks
        self._options = options
        self._addresses = addresses
        self._data = data
        self._greeted = greeted
        self._refusals = refusals
        self._refused: dict[str, set[str]] = {}  # the groups that a broker refuses, by its address
        self._turns: dict[str, _Turn] = {}
        self._new_connections: set[str] = set()
        self._answered: set[str] = set()
        self._failures: dict[str, str] = {}
        self._told_by: dict[str, tuple[object, HeartbeatAnswer]] = {}  # by address, with the connection it came over
        self._told = RareLog(_log, PERIOD)

    async def keep(self) -> None:
        """One to each broker every ``heartbeat_broker_interval``, for ever."""
        while True:
            await self._clock.sleep(self._options.heartbeat_broker_interval)
            self.request(self._addresses())

    async def ask_silent_links(self) -> None:
        """One over each connection that is silent while an answer is awaited, for ever.

        One that is not answered within ``api_timeout`` (3 s) closes it (``RemotingOptions.silence_timeout``).
        """
        silent_after = self._options.broker_suspend_max_time  # idle pulls are answered then, or a little later
        while True:
            # A little later than the first can be: rounded, it would not be silent for long enough just then.
            await self._clock.sleep(max(LOOK_EVERY, self._remoting.silent_in(silent_after) + 0.05))
            self.request(self._remoting.silent_addresses(silent_after))

    def request(self, addresses: Iterable[str]) -> None:
        """Send one to each of addresses soon."""
        for address in addresses:
            self._next(address)

    async def now(self, addresses: Iterable[str]) -> None:
        """Send one to each of addresses and return when each was answered or failed (which is logged only)."""
        for each in [self._next(address) for address in addresses]:
            await each.wait()

    def on_connected(self, address: str) -> None:
        """A connection to a broker was made: it must hear of this client over it."""
        self._new_connections.add(address)
        turn = self._turns.get(address)
        if turn is None or not turn.sending:  # else the heartbeat that is under way made this connection
            self._next(address)

    def is_known_to(self, address: str) -> bool:
        """Whether a broker knows this client, over the connection there is now, or cannot be told of it."""
        if address in self._failures:
            return True
        return address in self._answered and address not in self._new_connections and self._remoting.connected(address)

    def why_lost(self, address: str) -> str | None:
        """Why a broker that is told of this client cannot be reached as far as is known; None: it can, or may."""
        if (failure := self._failures.get(address)) is not None:
            return failure
        if address in self._answered and not self._remoting.connected(address):
            return "the connection is closed"
        return None

    def forget(self, address: str) -> None:
        """That address is no broker's any more."""
        self._told.over(address)
        self._answered.discard(address)
        self._failures.pop(address, None)
        self._told_by.pop(address, None)
        self._refused.pop(address, None)
        self._new_connections.discard(address)

    def _next(self, address: str) -> anyio.Event:
        """Set when the next heartbeat to address, one that has not begun yet, is over."""
        turn = self._turns.get(address)
        if turn is None:
            turn = self._turns[address] = _Turn()
            self._tasks.start(f"heartbeat to {address}", self._take_turn, address, turn, restart=False)
        if turn.asked is None:
            turn.asked = anyio.Event()
        return turn.asked

    async def _take_turn(self, address: str, turn: _Turn) -> None:
        try:
            while (asked := turn.asked) is not None:
                turn.asked = None
                turn.sending = True
                try:
                    await self._send(address)
                finally:
                    turn.sending = False
                    asked.set()
        finally:
            del self._turns[address]
            if turn.asked is not None:
                turn.asked.set()

    async def _send(self, address: str) -> None:
        data = self._data()
        if data is None or address not in self._addresses():
            return
        try:
            if not await self._tell_of_all(address, data):
                return
        except AccessDeniedError as error:  # which is logged
            self._failures[address] = str(error)
            return
        except RocketBoxError as error:
            self._failures[address] = str(error)
            self._told.tell(
                logging.WARNING, self._clock.monotonic(), address,
                "heartbeat to broker %s: %s", address, error,
            )  # fmt: skip
            return
        self._failures.pop(address, None)
        self._answered.add(address)
        self._told.over(address)
        if address in self._new_connections:
            self._new_connections.discard(address)
            self._greeted()

    async def _tell_of_all(self, address: str, data: HeartbeatData) -> bool:
        """Tell a broker of all groups that it does not refuse, and now and then of those that it does.

        Whether it was told of any. Raises AccessDeniedError when it refuses all of them.
        """
        parts = {each.group_name: replace(data, producer_data_set=(), consumer_data_set=(each,))
                 for each in data.consumer_data_set}  # fmt: skip
        if data.producer_data_set:
            parts[CLIENT_INNER_PRODUCER] = replace(data, consumer_data_set=())
        refused = self._refused.setdefault(address, set())
        refused.intersection_update(parts)
        doing = f"a heartbeat to {address}"
        together = [name for name in parts if name not in refused]
        if together:
            consumers = tuple(each for each in data.consumer_data_set if each.group_name in together)
            producers = data.producer_data_set if CLIENT_INNER_PRODUCER in together else ()
            try:
                await self._tell(address, replace(data, producer_data_set=producers, consumer_data_set=consumers))
            except AccessDeniedError:
                refused.update(together)
                together = []
        failure: AccessDeniedError | None = None
        for name in [name for name in parts if name in refused]:
            refusals = self._refusals(name)
            if refusals.rest(doing):
                continue
            try:
                await self._tell(address, parts[name])
            except AccessDeniedError as error:
                refusals.refused(doing, error)
                failure = error
            else:
                refusals.allowed(doing)
                refused.discard(name)
                together.append(name)
        if failure is not None and not together:
            raise failure
        return bool(together)

    async def _tell(self, address: str, data: HeartbeatData) -> None:
        before = self._remoting.connection_to(address)
        answer = await groups_api.send_heartbeat(self._remoting, address, data, timeout=self._options.api_timeout)
        connection = self._remoting.connection_to(address)
        if before in (None, connection):  # else another broker may have answered than is there now
            self._told_by[address] = (connection, answer)

    def answer(self, address: str) -> HeartbeatAnswer | None:
        """What the broker that the connection to address leads to has said of itself, if it has answered over it."""
        connection, answer = self._told_by.get(address, (None, None))
        return answer if connection is not None and connection is self._remoting.connection_to(address) else None
