"""The fast driver with TLS between its transport and its connection.

A client's connection is made when the handshake is over. A server's is there from the first moment, so that it counts
among those that are open and has its deadline; where plain connections are served as well, the first byte says which
it is, and it goes on as ``asyncio_driver`` would have it.

Encrypted bytes are received into one buffer for all drivers of a thread: what came is taken out of it before anything
else is received (asyncio and uvloop call ``buffer_updated`` straight behind the read).
"""

from __future__ import annotations

import errno
import ssl
import threading
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from rocketbox.remoting.asyncio_driver import AsyncioDriver, why_lost
from rocketbox.remoting.tls import (
    SPEAKS_NO_TLS,
    HandshakeError,
    TlsMode,
    is_refused_certificate,
    why_the_client_failed,
    why_the_server_failed,
)
from rocketbox.remoting.tls_files import ClientTls, LoopbackTls, ServerTls
from rocketbox.remoting.tls_session import FIRST_BYTE, TlsSession, connecting_session

if TYPE_CHECKING:
    from rocketbox.remoting.connection import Connection, Opened

__all__ = ["AcceptedTlsDriver", "ConnectingTlsDriver"]

BUFFER_BYTES = 64 << 10


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.encrypted = memoryview(bytearray(BUFFER_BYTES))


_buffers = _Buffers()
_RESET = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})


class _TlsDriver(AsyncioDriver, ABC):
    """What both sides do when the handshake is over."""

    def __init__(self, opened: Opened, session: TlsSession | None) -> None:
        super().__init__(opened)
        self._session = session
        """None: nothing has come yet, or this connection is a plain one."""
        self._plain = False  # this connection goes without TLS
        self._paused = False
        self._broken: Exception | None = None
        """What TLS failed by; the transport is told to close then, and tells nothing of it."""

    # --- called by the loop ----------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffers.encrypted

    def buffer_updated(self, nbytes: int) -> None:
        self._receive(_buffers.encrypted[:nbytes])

    def _receive(self, data: memoryview) -> None:
        session = self._session
        assert session is not None
        session.feed(data)
        try:
            if not session.established:
                over = session.shake()
                self._pass_on_own(session)
                if not over or not self._established():
                    return
            self._read(session)
        except ssl.SSLError as error:
            self._fail(session, error)

    @abstractmethod
    def _established(self) -> bool:
        """The handshake is over; whether the connection is wanted."""

    @abstractmethod
    def _failed(self, error: ssl.SSLError) -> None:
        """The handshake has failed, and the other side is told so."""

    def _pass_on_own(self, session: TlsSession) -> None:
        """Write what TLS itself has to say."""
        if (data := session.output()) and not self._transport.is_closing():
            self._transport.write(data)

    def _read(self, session: TlsSession) -> None:
        """Hand on all that is here, until the connection wants no more. Raises ssl.SSLError."""
        connection = self.connection
        while session.has_more and not self._paused and not connection.closed:
            room = connection.get_buffer(-1)
            size = session.read_into(room)
            if size:
                connection.buffer_updated(size)
            else:
                connection.give_back_buffer()
                break
        self._pass_on_own(session)  # an answer to a change of keys
        if session.ended and not connection.closed:
            self._transport.close()

    def _fail(self, session: TlsSession, error: ssl.SSLError) -> None:
        """The other side breaks TLS' rules, or a check of the handshake failed: it is told so."""
        self._broken = error
        self._pass_on_own(session)
        if session.established:
            self._transport.close()
        else:
            self._failed(error)

    # --- called by the connection ----------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        super().resume_reading()
        if self._session is not None and self._session.has_more:
            self._loop.call_soon(self._read_on, context=self._context)

    def _read_on(self) -> None:
        session = self._session
        if session is not None and not self.connection.closed:
            try:
                self._read(session)
            except ssl.SSLError as error:
                self._fail(session, error)

    def close(self) -> None:
        self._full = False
        self._flush()
        if self._session is not None and not self._transport.is_closing():
            self._transport.write(self._session.end())
        self._transport.close()

    def _flush(self) -> None:
        if self._full:  # resume_writing flushes
            return
        session = self._session
        if self._plain:
            super()._flush()
            return
        if session is None or not session.established:
            return
        data = self.connection.take_output()
        if data:
            if not self._transport.is_closing():
                try:
                    encrypted = session.encrypt(data)
                except ssl.SSLError as error:  # the other side has ended TLS
                    self._broken = error
                    self._transport.close()
                else:
                    self._transport.write(encrypted)  # calls pause_writing when it cannot pass all of it on
            self._passed_on(len(data))


class ConnectingTlsDriver(_TlsDriver):
    """A client's. ``await connected()`` gives the connection. Raises HandshakeError for a name that is none."""

    def __init__(self, opened: Opened, tls: ClientTls | LoopbackTls, context: ssl.SSLContext, host: str) -> None:
        self._name = tls.name_of(host)
        super().__init__(opened, connecting_session(context, self._name))
        self._why = partial(
            why_the_client_failed, name=self._name, shows_certificate=tls.shows_certificate, advice=tls.advice
        )
        self._connected = self.waiter()
        self._given_up = False

    def _begin(self) -> None:
        self._receive(memoryview(b""))  # the client speaks first

    def connection_lost(self, error: Exception | None) -> None:
        error = self._broken or error
        if not hasattr(self, "connection"):
            if not self._connected.done() and not self._given_up:  # else nobody would see it
                self._connected.set_exception(HandshakeError(self._why(error)))
            return
        if is_refused_certificate(error):
            self.connection.refused(self._why(error))
        reason = why_lost(error)
        if isinstance(error, OSError) and error.errno in _RESET and not self.connection.has_received:
            reason += " behind the TLS handshake; a server that takes no client without its certificate may do so"
        self.connection.lost(reason)

    async def connected(self) -> Connection:
        connection: Connection = await self._connected
        return connection

    def give_up(self) -> None:
        self._given_up = True
        if hasattr(self, "connection"):
            super().give_up()
        elif hasattr(self, "_transport"):
            self._transport.abort()

    def _established(self) -> bool:
        if self._connected.done() or self._given_up:
            return False
        super()._begin()  # may have the connect given up
        if self._connected.done():
            return False
        self._connected.set_result(self.connection)
        return True

    def _failed(self, error: ssl.SSLError) -> None:
        if not self._connected.done():
            self._connected.set_exception(HandshakeError(self._why(error)))
        self._transport.close()


class AcceptedTlsDriver(_TlsDriver):
    """A server's: with TLS, or where that is allowed without."""

    def __init__(self, opened: Opened, tls: ServerTls) -> None:
        super().__init__(opened, None)
        self._tls = tls

    def _begin(self) -> None:
        super()._begin()
        self.connection.handshake_begins()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connection.get_buffer(sizehint) if self._plain else _buffers.encrypted

    def buffer_updated(self, nbytes: int) -> None:
        if self._plain:
            self.connection.buffer_updated(nbytes)
            return
        if self.connection.closed:
            return
        data = _buffers.encrypted[:nbytes]
        if self._session is None and data[0] != FIRST_BYTE:
            self._go_without(data)
            return
        if self._session is None:
            self._session = TlsSession(self._tls.context, server_side=True)
        self._receive(data)

    def _go_without(self, data: memoryview) -> None:
        """The other side does not begin with TLS: it goes on without, or is refused."""
        if self._tls.options.mode is TlsMode.PERMISSIVE:
            self._plain = True
            self.connection.handshake_ends()
            self.connection.received(bytes(data))
            self._flush()
        else:
            self.connection.handshake_failed(*SPEAKS_NO_TLS)
            self._transport.close()

    def _established(self) -> bool:
        self.connection.handshake_ends()
        return True

    def _failed(self, error: ssl.SSLError) -> None:
        self.connection.handshake_failed(*why_the_server_failed(error))
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._session is not None and not self._session.established:
            self.connection.handshake_failed(*why_the_server_failed(None))
        super().connection_lost(self._broken or error)
