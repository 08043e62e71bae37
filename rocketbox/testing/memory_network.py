"""The network of a harness: in memory, with answers that may be kept back, and nothing of the real one behind it."""

from __future__ import annotations

import errno
from contextvars import Context, copy_context
from weakref import WeakSet

import anyio.lowlevel

from rocketbox.loops import callbacks_in_asyncio
from rocketbox.remoting.asyncio_driver import AsyncioDriver
from rocketbox.remoting.connection import Connection, Opened
from rocketbox.remoting.network import Listener, MemoryNetwork
from rocketbox.tasks import Supervisor
from rocketbox.testing.loop_turns import LoopTurns
from rocketbox.testing.memory_transport import MemoryTransport, connect_pair

__all__ = ["NO_REAL_ADDRESS", "HarnessNetwork"]

NO_REAL_ADDRESS = (
    "no real address is reached from a test's harness, whose servers are in memory; for a test on a real broker start "
    "pytest with --rocketbox-name-server=host:port, or write Harness(name_server=...)"
)

Address = tuple[str, int]


class HarnessNetwork(MemoryNetwork):
    """Its connections have the driver of TCP below them, and transports in memory, in the loop of ``turns``."""

    def __init__(self, turns: LoopTurns) -> None:
        super().__init__()
        self._loop = turns.loop
        self._silent: set[Address] = set()
        self._known: set[Address] = set()
        self._at_servers: WeakSet[MemoryTransport] = WeakSet()

    def silence(self, address: Address) -> None:
        """Keep back all that the server at ``address`` sends, over connections that are made later as well."""
        self._silent.add(address)

    def resume(self, address: Address) -> None:
        """Send what was kept back, in its order, and all that follows."""
        self._silent.discard(address)
        for end in list(self._at_servers):
            if end.names[0] == address:
                end.pass_on()

    def is_silent(self, address: Address) -> bool:
        return address in self._silent

    async def connect(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Connection:
        await anyio.lowlevel.checkpoint()
        there = (host, port)
        accepted, _, its_context = self.listening_at(there)
        here = ("127.0.0.1", self.free_port())
        driver = AsyncioDriver(opened)
        server = MemoryTransport(
            self._loop, AsyncioDriver(accepted), (there, here), its_context, lambda: there in self._silent
        )
        self._at_servers.add(server)
        connect_pair(MemoryTransport(self._loop, driver, (here, there), _context()), server)
        return await driver.connected()

    async def listen(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Listener:
        with callbacks_in_asyncio():
            listener = await super().listen(host, port, opened, tasks)
        self._known.add(listener.address)
        return listener

    def refusal(self, host: str, port: int) -> OSError:
        """Where a server has listened it is stopped; anywhere else is an address of the real network."""
        if (host, port) in self._known:
            return super().refusal(host, port)
        return OSError(errno.ENETUNREACH, NO_REAL_ADDRESS)


def _context() -> Context:
    """What a connection that is made here calls its driver in."""
    with callbacks_in_asyncio():
        return copy_context()
