"""The network of a harness: in memory, with answers that may be kept back, and nothing of the real one behind it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import anyio

from rocketbox.remoting.connection import Opened
from rocketbox.remoting.network import Listener, MemoryNetwork
from rocketbox.remoting.stream_driver import ByteStream
from rocketbox.tasks import Supervisor

__all__ = ["NO_REAL_ADDRESS", "HarnessNetwork"]

NO_REAL_ADDRESS = (
    "no real address is reached from a test's harness, whose servers are in memory; for a test on a real broker start "
    "pytest with --rocketbox-name-server=host:port, or write Harness(name_server=...)"
)

Address = tuple[str, int]


class HarnessNetwork(MemoryNetwork):
    """``start(coroutine, name)`` makes a task, which brings answers on their way that were kept back."""

    def __init__(self, start: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        super().__init__()
        self._start_task = start
        self._silent: set[Address] = set()
        self._known: set[Address] = set()
        self._ends: WeakSet[_ServersEnd] = WeakSet()

    def silence(self, address: Address) -> None:
        """Keep back all that the server at ``address`` sends, over connections that are made later as well."""
        self._silent.add(address)

    def resume(self, address: Address) -> None:
        """Send what was kept back, in its order, and all that follows."""
        self._silent.discard(address)
        for end in list(self._ends):
            if end.address == address and end.kept:
                self._start_task(end.send_kept(), f"answers of {address[0]}:{address[1]}")

    def is_silent(self, address: Address) -> bool:
        return address in self._silent

    def at_server(self, stream: ByteStream, address: Address) -> ByteStream:
        end = _ServersEnd(self, stream, address)
        self._ends.add(end)
        return end

    async def listen(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Listener:
        listener = await super().listen(host, port, opened, tasks)
        self._known.add(listener.address)
        return listener

    def refusal(self, host: str, port: int) -> OSError:
        """Where a server has listened it is stopped; anywhere else is an address of the real network."""
        if (host, port) in self._known:
            return super().refusal(host, port)
        return OSError(errno.ENETUNREACH, NO_REAL_ADDRESS)


class _ServersEnd:
    """A server's end of a connection: what it sends while it is silent is kept, so that it does not wait itself."""

    def __init__(self, network: HarnessNetwork, stream: ByteStream, address: Address) -> None:
        self.address = address
        self.kept: list[bytes] = []
        self._network = network
        self._stream = stream
        self.receive = stream.receive
        self.aclose = stream.aclose

    async def send(self, item: bytes, /) -> None:
        if self.kept or self._network.is_silent(self.address):
            self.kept.append(item)
        else:
            await self._stream.send(item)

    async def send_kept(self) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while self.kept and not self._network.is_silent(self.address):
                await self._stream.send(self.kept[0])
                del self.kept[0]  # not before: what is sent meanwhile stands in line behind it
            return
        self.kept.clear()
