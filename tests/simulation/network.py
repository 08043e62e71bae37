"""A network of hosts in one process that is as slow, lossy and broken as a simulation says.

Each host has its own :meth:`SimulatedNetwork.host`. Bytes of one direction of a link arrive in their order, as in TCP:
what is "lost" arrives after it was sent again. Links can be reset, be cut without a word (half-open), and hosts can be
silent: what is on its way from and to them waits.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from rocketbox.remoting.connection import Connection, Opened
from rocketbox.remoting.network import Listener
from rocketbox.tasks import Supervisor
from rocketbox.waiters import Waiter

__all__ = ["Conditions", "Host", "Link", "SimulatedNetwork"]

SENT_AGAIN = (0.2, 0.4, 0.8, 1.6)  # seconds after which TCP sends a lost packet again, one after the other
CONNECT_TIMEOUT = 60.0  # of a connect that nobody answers, as a system gives up


@dataclass
class Conditions:
    """Seconds that a packet takes, and how many of them are lost."""

    fastest: float = 0.0002
    slowest: float = 0.002
    loss: float = 0.0
    silent: dict[str, float] = field(default_factory=dict)
    """Hosts that say nothing until that time of the loop."""
    apart: dict[frozenset[str], float] = field(default_factory=dict)
    """Pairs of hosts that hear nothing of each other until then."""


class _End:
    """The driver of one end of a link."""

    def __init__(self, link: Link, host: str) -> None:
        self.link = link
        self.host = host
        self.peer: _End
        self.connection: Connection
        self.waiter: Callable[[], Waiter] = link.loop.create_future
        self.closed = False
        self.arrives = 0.0
        self._paused = False
        self._held: deque[bytes] = deque()

    # --- called by the connection ----------------------------------------------------------------------------------

    def schedule_flush(self) -> None:
        self.link.loop.call_soon(self._flush)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        while self._held and not self._paused and not self.closed:
            self.connection.received(self._held.popleft())

    def close(self) -> None:
        self._flush()
        self.end("closed by this side")
        self.link.deliver(self, lambda: self.peer.end("closed by the other side"))

    def abort(self) -> None:
        self.end("aborted")
        self.link.deliver(self, lambda: self.peer.end("Connection reset by peer"))

    # --- called by the link ----------------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        if self.closed:
            return
        if self._paused:
            self._held.append(data)
        else:
            self.connection.received(data)

    def end(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self.link.loop.call_soon(self._lost, reason)

    def _lost(self, reason: str) -> None:
        self.connection.lost(reason)
        self.link.ended()

    def _flush(self) -> None:
        data = b"" if self.closed else self.connection.take_output()
        if data:
            self.connection.flushed(len(data))
            self.link.network.trace(f"{self.host} > {self.peer.host} {len(data)}")
            self.link.deliver(self, lambda: self.peer.take(data))


class Link:
    """One connection: the end that connected and the one that accepted."""

    def __init__(self, network: SimulatedNetwork, client: str, server: str) -> None:
        self.network = network
        self.loop = network.loop
        self.cut = False
        self.ends = (_End(self, client), _End(self, server))
        self.ends[0].peer, self.ends[1].peer = self.ends[1], self.ends[0]

    def deliver(self, sender: _End, arrive: Callable[[], None]) -> None:
        """Call arrive when the packet does, behind those before it."""
        if not self.cut:
            sender.arrives = max(sender.arrives, self.network.arrival(sender.host, sender.peer.host))
            self.loop.call_at(sender.arrives, self._arrived, arrive)

    def _arrived(self, arrive: Callable[[], None]) -> None:
        if not self.cut:
            arrive()

    def reset(self) -> None:
        """Both ends learn of it at once."""
        for end in self.ends:
            end.end("Connection reset by peer")

    def ended(self) -> None:
        if all(end.closed for end in self.ends) or (self.cut and any(end.closed for end in self.ends)):
            self.network.forget(self)


class SimulatedNetwork:
    """All hosts, and the links between them. Only chance that comes from ``random`` decides."""

    def __init__(self, random: Random, trace: Callable[[str], object]) -> None:
        self.loop = asyncio.get_running_loop()
        self.trace = trace
        self.conditions = Conditions()
        self.listeners: dict[tuple[str, int], tuple[Opened, Supervisor]] = {}
        self.links: list[Link] = []
        self.refused = 0
        self._random = random
        self._next_port = 20_000

    def host(self, name: str) -> Host:
        """The network as the processes of one host have it."""
        return Host(self, name)

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def arrival(self, *hosts: str) -> float:
        """When what is sent now arrives."""
        conditions = self.conditions
        begin = self.loop.time()
        for host in hosts:
            begin = max(begin, conditions.silent.get(host, 0.0))
        if conditions.apart:
            begin = max(begin, conditions.apart.get(frozenset(hosts), 0.0))
        begin += conditions.fastest + (conditions.slowest - conditions.fastest) * self._random.random()
        if conditions.loss:
            for wait in SENT_AGAIN:
                if self._random.random() >= conditions.loss:
                    break
                begin += wait
        return begin

    def links_of(self, host: str) -> list[Link]:
        """Those that begin or end there."""
        return [link for link in self.links if host in (link.ends[0].host, link.ends[1].host)]

    def forget(self, link: Link) -> None:
        if link in self.links:
            self.links.remove(link)


@dataclass(frozen=True)
class _Listener:
    address: tuple[str, int]
    close: Callable[[], object]

    async def aclose(self) -> None:
        self.close()


class Host:
    """A :class:`rocketbox.remoting.network.Network` whose connections come from one host."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self._dead = False
        self._listening: list[tuple[str, int]] = []

    def die(self) -> None:
        """Its process is killed: the system resets its connections, and nothing of it is heard any more."""
        self._dead = True
        for address in self._listening:
            self.network.listeners.pop(address, None)
        self._listening.clear()
        for link in self.network.links_of(self.name):
            link.reset()

    async def connect(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Connection:
        network = self.network
        loop = network.loop
        if self._dead:
            raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN))
        there = network.arrival(self.name, host)
        back = max(network.arrival(host, self.name), there) - loop.time()
        await asyncio.sleep(min(back, CONNECT_TIMEOUT))
        if back > CONNECT_TIMEOUT:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        listener = None if self._dead else network.listeners.get((host, port))
        if listener is None:
            network.refused += 1
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        accepted, _ = listener
        link = Link(network, self.name, host)
        network.links.append(link)
        mine, theirs = (self.name, network.free_port()), (host, port)
        link.ends[1].connection = accepted(link.ends[1], theirs, mine)
        link.ends[0].connection = opened(link.ends[0], mine, theirs)
        return link.ends[0].connection

    async def listen(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Listener:
        if self._dead:
            raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN))
        address = (host, port or self.network.free_port())
        if address in self.network.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.network.listeners[address] = (opened, tasks)
        self._listening.append(address)

        def close() -> None:
            if address in self._listening:  # not any more those of another process, which came after this one's death
                self._listening.remove(address)
                del self.network.listeners[address]

        return _Listener(address, close)
