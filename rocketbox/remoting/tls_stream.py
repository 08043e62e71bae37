"""TLS over anyio's streams: what ``tls_driver`` is to asyncio's transports.

The reader's task settles the handshake, before anything else is received; the writer's waits for it. Whatever is sent
goes one after the other, since TLS answers some of what is received.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import TYPE_CHECKING

import anyio

from rocketbox.remoting.stream_driver import ByteStream
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
    from rocketbox.remoting.connection import Connection

__all__ = ["AcceptedTlsStream", "ConnectedTlsStream"]

READ_BYTES = 64 << 10
_ENDS = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class _TlsStream:
    """What both sides do when the handshake is over."""

    def __init__(self, stream: ByteStream, session: TlsSession | None) -> None:
        self._stream = stream
        self._session = session
        self._sending = anyio.Lock()
        self.connection: Connection
        """What stands above the stream; set before its tasks begin."""

    async def receive(self) -> bytes:
        session = self._session
        assert session is not None
        room = memoryview(bytearray(READ_BYTES))
        while True:
            try:
                size = session.read_into(room)
            except ssl.SSLError as error:
                await self._send_own(session)
                self._broken(error)
                raise anyio.BrokenResourceError from error
            if session.ended and not size:
                raise anyio.EndOfStream
            await self._send_own(session)  # an answer to a change of keys
            if size:
                return bytes(room[:size])
            session.feed(await self._stream.receive())

    async def send(self, item: bytes, /) -> None:
        session = self._session
        assert session is not None
        async with self._sending:
            try:
                encrypted = session.encrypt(item)
            except ssl.SSLError as error:
                raise anyio.BrokenResourceError from error
            await self._send_all(session, encrypted)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _shake(self, session: TlsSession) -> None:
        """Settle the handshake. Raises ssl.SSLError when it fails, and what the stream raises."""
        while True:
            try:
                over = session.shake()
            except ssl.SSLError:
                await self._send_own(session)
                raise
            await self._send_own(session)
            if over:
                return
            session.feed(await self._stream.receive())

    async def _send_own(self, session: TlsSession) -> None:
        """Send what TLS itself has to say; whoever sends now takes it along, for the reader must not wait for him."""
        if session.has_output and not self._sending.locked():
            async with self._sending:
                await self._send_all(session, session.output())

    async def _send_all(self, session: TlsSession, data: bytes) -> None:
        while data:
            await self._stream.send(data)
            data = session.output()

    def _broken(self, error: ssl.SSLError) -> None:
        """The other side breaks TLS' rules, or refuses us behind the handshake."""


class ConnectedTlsStream(_TlsStream):
    """A client's: :meth:`settle` it before anything else. Raises HandshakeError for a name that is none."""

    def __init__(self, stream: ByteStream, tls: ClientTls | LoopbackTls, context: ssl.SSLContext, host: str) -> None:
        self._name = tls.name_of(host)
        self._why = partial(
            why_the_client_failed, name=self._name, shows_certificate=tls.shows_certificate, advice=tls.advice
        )
        super().__init__(stream, connecting_session(context, self._name))

    async def settle(self) -> None:
        """Go through the handshake. Raises HandshakeError."""
        assert self._session is not None
        try:
            await self._shake(self._session)
        except ssl.SSLError as error:
            raise HandshakeError(self._why(error)) from error
        except _ENDS as error:
            cause = error.__cause__
            raise HandshakeError(self._why(cause if isinstance(cause, OSError) else None)) from error

    def _broken(self, error: ssl.SSLError) -> None:
        if is_refused_certificate(error):
            self.connection.refused(self._why(error))


class AcceptedTlsStream(_TlsStream):
    """A server's: with TLS, or where that is allowed without."""

    def __init__(self, stream: ByteStream, tls: ServerTls) -> None:
        super().__init__(stream, None)
        self._tls = tls
        self._settled = anyio.Event()

    async def receive(self) -> bytes:
        if not self._settled.is_set() and (first := await self._settle()):
            return first
        return await (super().receive() if self._session is not None else self._stream.receive())

    async def send(self, item: bytes, /) -> None:
        await self._settled.wait()
        await (super().send(item) if self._session is not None else self._stream.send(item))

    async def _settle(self) -> bytes:
        """What has come already of a connection without TLS; of one with TLS nothing."""
        connection = self.connection
        data = await self._stream.receive()
        if data[0] != FIRST_BYTE:
            if self._tls.options.mode is not TlsMode.PERMISSIVE:
                connection.handshake_failed(*SPEAKS_NO_TLS)
                raise anyio.ClosedResourceError
            connection.handshake_ends()
            self._settled.set()
            return data
        session = TlsSession(self._tls.context, server_side=True)
        session.feed(data)
        try:
            await self._shake(session)
        except ssl.SSLError as error:
            connection.handshake_failed(*why_the_server_failed(error))
            raise anyio.BrokenResourceError from error
        except _ENDS:
            connection.handshake_failed(*why_the_server_failed(None))
            raise
        self._session = session
        connection.handshake_ends()
        self._settled.set()
        return b""
