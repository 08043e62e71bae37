"""Where connections come from: TCP with TLS or without, or memory for tests and simulations.

A network opens a connection or a listener and puts a driver under each connection; what a connection does with its
bytes is ``connection``'s part. Networks raise OSError; ``client`` and ``server`` say which address it was.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
from anyio.streams.stapled import StapledObjectStream

from rocketbox.clock import RealClock
from rocketbox.remoting import asyncio_driver
from rocketbox.remoting.asyncio_driver import AsyncioDriver
from rocketbox.remoting.connection import Connection, Opened
from rocketbox.remoting.host_names import Address, addresses_of, first_connected
from rocketbox.remoting.stream_driver import ByteStream, StreamDriver
from rocketbox.remoting.tls import HandshakeError
from rocketbox.remoting.tls_advice import TO_CLIENTS, TlsAdvice
from rocketbox.remoting.tls_driver import AcceptedTlsDriver, ConnectingTlsDriver
from rocketbox.remoting.tls_files import ClientTls, LoopbackTls, ServerTls
from rocketbox.remoting.tls_stream import AcceptedTlsStream, ConnectedTlsStream
from rocketbox.tasks import Supervisor

__all__ = [
    "Listener",
    "MemoryNetwork",
    "Network",
    "TcpNetwork",
    "format_address",
    "parse_address",
    "reason_of",
    "without_tcp",
]


class Listener(Protocol):
    """Accepts connections until it is closed; those accepted stay open."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port as they are bound."""

    async def aclose(self) -> None: ...


class Network(Protocol):
    """Opens connections and listeners; tasks of theirs run in the supervisor that is handed in."""

    async def connect(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Connection:
        """Connect; raises OSError."""

    async def listen(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Listener:
        """Accept connections; port 0 takes a free one. Raises OSError."""


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``[IPv6]:port`` or, as Java takes it, ``IPv6:port``. Raises ValueError."""
    host, separator, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ValueError(f"{address!r} is not host:port")
    return host, int(port)


def format_address(name: Any) -> str:
    """``ip:port`` of a socket's name, an IPv6 address in brackets; the other side may be gone before it was asked."""
    if not isinstance(name, tuple) or len(name) < 2:
        return "unknown:0"
    host = str(name[0]).partition("%")[0]
    return f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"


def reason_of(error: OSError) -> str:
    """What an OSError says, without number; that of the last attempt where several addresses were tried."""
    if isinstance(error, HandshakeError):
        return str(error.strerror)
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[-1]
    if isinstance(cause, OSError):
        error = cause
    if error.errno and str(error.strerror).startswith("Connect call failed"):  # asyncio's words, with the address again
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__


_refused: ContextVar[str | None] = ContextVar("why nothing is reached by TCP", default=None)


@contextmanager
def without_tcp(reason: str) -> Iterator[None]:
    """No :class:`TcpNetwork` connects to anything, of this task and those that are started inside; ``reason`` says why.

    For tests that must not reach a real server, whatever the code under test takes for its address.
    """
    token = _refused.set(reason)
    try:
        yield
    finally:
        _refused.reset(token)


SEND_BUFFER_BYTES = 128 << 10


class TcpNetwork:
    """TCP. Under asyncio on its transports, elsewhere (or with ``streams``) on anyio's streams.

    With ``tls`` every connection that is made is encrypted, with ``accepted_tls`` those that are accepted, or those
    that want it. Without, ``advice`` tells what to do where the other side may have wanted it.

    ``send_buffer_bytes`` are asked of the system for each accepted connection (Linux gives twice as many, for what it
    needs itself); 0 leaves the size to the system. Left to itself Linux takes up to 4 MiB for every peer that does not
    read, and a hundred of them, each with some megabytes to be copied first, held everybody up for seconds (benchmark
    "100 peers that never read").
    """

    def __init__(
        self,
        *,
        streams: bool = False,
        send_buffer_bytes: int = SEND_BUFFER_BYTES,
        tls: ClientTls | LoopbackTls | None = None,
        accepted_tls: ServerTls | None = None,
        advice: TlsAdvice = TO_CLIENTS,
    ) -> None:
        self._streams = streams
        self._if_silent = f"it has answered nothing: {advice.no_answer}"
        self._send_buffer_bytes = send_buffer_bytes
        self._tls = tls
        self._accepted_tls = accepted_tls

    async def connect(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Connection:
        if (reason := _refused.get()) is not None:
            raise OSError(errno.ENETUNREACH, reason)
        tls = self._tls
        context = None if tls is None else await tls.context()
        if not self._streams and asyncio_driver.is_running():
            driver = (
                AsyncioDriver(opened)
                if tls is None or context is None
                else ConnectingTlsDriver(opened, tls, context, host)
            )
            connection = await asyncio_driver.connect(host, port, driver)
            connection.if_never_answered = "" if tls is not None else self._if_silent
            return connection
        stream = _TcpStream(await first_connected(host, port, _connected_stream, anyio.aclose_forcefully))
        if tls is None or context is None:
            connection = _start(stream, opened, tasks)
            connection.if_never_answered = self._if_silent
            return connection
        try:
            encrypted = ConnectedTlsStream(stream, tls, context, host)
            await encrypted.settle()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await stream.aclose()
            raise
        return _start(stream, opened, tasks, encrypted)

    async def listen(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Listener:
        family, address = await _address_to_listen_on(host, port)
        tls = self._accepted_tls
        if tls is not None:
            tasks.start("look at TLS files", tls.follow, RealClock())
        if not self._streams and asyncio_driver.is_running():
            listening = _bind(family, address)
            self._set_send_buffer(listening)
            make_driver = partial(AsyncioDriver, opened) if tls is None else partial(AcceptedTlsDriver, opened, tls)
            return _listen_on_asyncio(listening, make_driver, tasks)
        listener = await anyio.create_tcp_listener(
            local_host=address[0],
            local_port=port,
            family=family,  # type: ignore[arg-type]  # AF_INET or AF_INET6, as resolved
            backlog=asyncio_driver.BACKLOG,
        )
        self._set_send_buffer(listener.extra(anyio.abc.SocketAttribute.raw_socket))

        async def accepted(stream: anyio.abc.SocketStream) -> None:
            plain = _TcpStream(stream)
            if tls is None:
                _start(plain, opened, tasks)
                return
            encrypted = AcceptedTlsStream(plain, tls)
            _start(plain, opened, tasks, encrypted).handshake_begins()

        async def accept() -> None:
            await listener.serve(accepted)

        async def close() -> None:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await task.wait()
                await listener.aclose()

        bound = listener.extra(anyio.abc.SocketAttribute.local_address)
        task = tasks.start(f"accept at {format_address(bound)}", accept)
        return _StreamListener((str(bound[0]), int(bound[1])), close)

    def _set_send_buffer(self, listening: socket.socket) -> None:
        """Of a listening socket, from which those that it accepts have it."""
        if self._send_buffer_bytes:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)


def _listen_on_asyncio(
    listening: socket.socket, make_driver: Callable[[], AsyncioDriver], tasks: Supervisor
) -> Listener:
    async def close() -> None:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await task.wait()
        listening.close()

    async def accept() -> None:
        await asyncio_driver.accept(listening, make_driver)

    host, port = listening.getsockname()[:2]
    task = tasks.start(f"accept at {format_address((host, port))}", accept)
    return _StreamListener((host, port), close)


async def _connected_stream(address: Address) -> anyio.abc.SocketStream:
    _, (host, port, *more) = address
    scope = more[1] if more else 0  # of an IPv6 address that is good on one link alone
    try:
        return await anyio.connect_tcp(f"{host}%{scope}" if scope else host, port)
    except OSError as error:  # anyio's own, which says why by its cause
        raise error.__cause__ if isinstance(error.__cause__, OSError) else error from None


async def _address_to_listen_on(host: str, port: int) -> Address:
    """Of a name with several addresses its IPv4 one, as the rest of a cluster expects it; of an empty one, all."""
    found = await addresses_of(host, port, passive=True)
    return min(found, key=lambda address: address[0] != socket.AF_INET)


def _bind(family: socket.AddressFamily, address: Any) -> socket.socket:
    # With the protocol named, which accepted sockets inherit: only where it stands asyncio switches Nagle's algorithm
    # off. With it on, an answer behind another packet waits 40 ms for the acknowledgement of that.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setblocking(False)
        bound.bind(address)
        bound.listen(asyncio_driver.BACKLOG)  # here, so that a port in use is noticed here
    except BaseException:
        bound.close()
        raise
    return bound


@dataclass(frozen=True)
class _StreamListener:
    address: tuple[str, int]
    aclose: Callable[[], Any]


class _TcpStream:
    """anyio's socket stream, with the names of both its ends."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.names = (
            stream.extra(anyio.abc.SocketAttribute.local_address, None),
            stream.extra(anyio.abc.SocketAttribute.remote_address, None),
        )
        self.receive = stream.receive
        self.send = stream.send
        self.aclose = stream.aclose


class _MemoryStream:
    """One end of a connection in memory, with the names of both."""

    def __init__(self, stream: ByteStream, local: tuple[str, int], remote: tuple[str, int]) -> None:
        self.names = (local, remote)
        self.receive = stream.receive
        self.send = stream.send
        self.aclose = stream.aclose


def _start(
    stream: _TcpStream | _MemoryStream,
    opened: Opened,
    tasks: Supervisor,
    encrypted: ConnectedTlsStream | AcceptedTlsStream | None = None,
) -> Connection:
    driver = StreamDriver(encrypted or stream)
    connection = opened(driver, *stream.names)
    if encrypted is not None:
        encrypted.connection = connection
    driver.start(connection, tasks)
    return connection


class MemoryNetwork:
    """A network inside one process: any host name, ports of its own, nothing of the machine's.

    ``max_items``: how many writes one direction of a connection holds before the writer has to wait. One that fails
    overrides :meth:`at_server` or :meth:`refusal`.
    """

    FIRST_FREE_PORT = 20_000

    def __init__(self, *, max_items: int = 16) -> None:
        self._max_items = max_items
        self._listeners: dict[tuple[str, int], tuple[Opened, Supervisor, Context]] = {}
        self._next_port = self.FIRST_FREE_PORT

    async def connect(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Connection:
        await anyio.lowlevel.checkpoint()
        here, there = ("127.0.0.1", self.free_port()), (host, port)
        accepted, server_tasks, context = self.listening_at(there)
        to_server, at_server = anyio.create_memory_object_stream[bytes](self._max_items)
        to_client, at_client = anyio.create_memory_object_stream[bytes](self._max_items)
        at_the_server = _MemoryStream(self.at_server(StapledObjectStream(to_client, at_server), there), there, here)
        context.run(_start, at_the_server, accepted, server_tasks)  # as if a task of the listener had accepted it
        return _start(_MemoryStream(StapledObjectStream(to_server, at_client), here, there), opened, tasks)

    async def listen(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Listener:
        await anyio.lowlevel.checkpoint()
        address = (host, port or self.free_port())
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._listeners[address] = (opened, tasks, copy_context())

        async def close() -> None:
            self._listeners.pop(address, None)

        return _StreamListener(address, close)

    def at_server(self, stream: ByteStream, address: tuple[str, int]) -> ByteStream:
        """The end of a new connection that the listener at ``address`` is given."""
        return stream

    def refusal(self, host: str, port: int) -> OSError:
        """What connecting raises where nobody listens."""
        return ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    def listening_at(self, address: tuple[str, int]) -> tuple[Opened, Supervisor, Context]:
        """Who listens at ``address``, its tasks, and what it listens in. Raises what :meth:`refusal` gives."""
        if (listener := self._listeners.get(address)) is None:
            raise self.refusal(*address)
        return listener

    def free_port(self) -> int:
        """One that no other end of a connection has."""
        self._next_port += 1
        return self._next_port - 1
