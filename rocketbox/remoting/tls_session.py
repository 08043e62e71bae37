"""TLS of one connection, without I/O: encrypted bytes in and out, plain bytes out and in.

Used by both drivers, so that both behave alike: what the other side is to be told of a failed handshake leaves before
the connection is closed, which asyncio's own TLS and anyio's do not see to. On asyncio's transports it is also one
layer less: bytes are decrypted straight into the frame reader's buffer.

Source: RFC 8446 and 5246 by OpenSSL (``ssl.SSLObject``); the first byte of a handshake is 22 (RFC 8446, 5.1).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, cast

from rocketbox.clock import RealClock
from rocketbox.remoting.tls import HandshakeError

__all__ = ["FIRST_BYTE", "TlsSession", "connecting_session"]

FIRST_BYTE: Final = 0x16  # of every TLS connection, and of no frame: it would announce 352 MiB


def connecting_session(context: ssl.SSLContext, name: str) -> TlsSession:
    """A client's, to a server that has to have this name. Raises HandshakeError for a name that is none."""
    try:
        return TlsSession(context, server_name=name)
    except ValueError as error:
        raise HandshakeError(f"{name!r} is no name that a certificate can have") from error


class TlsSession:
    """One side of one connection. Raises ssl.SSLError where the other side breaks the rules, or a check fails."""

    def __init__(self, context: ssl.SSLContext, *, server_name: str | None = None, server_side: bool = False) -> None:
        """``server_name`` is what a client expects. Raises ValueError when it is no name or address."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        # An IPv6 address without its zone, and a name without the dot that marks it as whole: no certificate has that,
        # nor has what the server is told (RFC 6066, 3).
        name = None if server_name is None else server_name.partition("%")[0].removesuffix(".")
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=name)
        self.established = False
        """Whether the handshake is over and plain bytes may pass."""
        self.ended = False
        """Whether the other side has said that nothing follows."""

    def feed(self, data: memoryview | bytes) -> None:
        """Take encrypted bytes that were received."""
        self._incoming.write(data)

    def shake(self) -> bool:
        """Go on with the handshake; whether it is over. :meth:`output` is to be sent in any case, also if it raises."""
        if not self.established:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return False
            if self._object.server_side and self._object.session_reused:
                _check_still_valid(self._object.getpeercert())
            self.established = True
        return True

    def read_into(self, room: memoryview) -> int:
        """Decrypt as much as is here and fits, and return how many bytes that are; 0 also when the other side ended."""
        read = 0
        while read < len(room):
            if not (self._incoming.pending or self._object.pending()):
                break
            try:
                size = cast("int", self._object.read(len(room) - read, room[read:]))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                size = 0
            if not size:
                self.ended = True
                break
            read += size
        return read

    @property
    def has_more(self) -> bool:
        """Whether :meth:`read_into` may have more."""
        return not self.ended and bool(self._incoming.pending or self._object.pending())

    def encrypt(self, data: bytes) -> bytes:
        """What is to be sent so that the other side reads data; the handshake is over."""
        self._object.write(data)
        return self._outgoing.read()

    @property
    def has_output(self) -> bool:
        """Whether :meth:`output` has something."""
        return self._outgoing.pending > 0

    def output(self) -> bytes:
        """What is to be sent of TLS' own: the handshake, answers to it, and what it failed by."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def end(self) -> bytes:
        """What is to be sent to say that nothing follows."""
        if self.established and not self.ended:
            with suppress(ssl.SSLError):  # the other side has not said it yet, and need not
                self._object.unwrap()
        return self.output()


def _check_still_valid(certificate: Mapping[str, Any] | None) -> None:
    """Refuse a client whose session is resumed when the time of his certificate is over, as if he showed it now.

    OpenSSL looks at certificates in whole handshakes alone, and knows a session of TLS 1.2 for two hours by its id,
    which Python cannot switch off. CAs that are trusted no more need no look: with other files the context is another,
    which knows no session of the one before. Raises ssl.SSLCertVerificationError.
    """
    if not certificate:
        return
    begins, ends = (ssl.cert_time_to_seconds(certificate[name]) for name in ("notBefore", "notAfter"))
    if not begins <= RealClock().time_ms() / 1000 <= ends:
        error = ssl.SSLCertVerificationError("the certificate of a resumed session is not valid at this time")
        error.verify_message = "it is not valid at this time, and the session of TLS 1.2 that is resumed began with it"
        raise error
