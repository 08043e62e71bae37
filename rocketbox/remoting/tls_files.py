"""TLS contexts that follow their files: a renewed certificate is used by the next connection, without a restart.

By content, as a mounted secret changes its files by links, and with a copy that was read while they were written the
former context stays: what is wrong is logged once, and looked at again.

Source: Apache RocketMQ 5.x ``FileWatchService`` (by digest; a file that is gone keeps what was read).
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from rocketbox.blocking import run_briefly
from rocketbox.clock import Clock
from rocketbox.errors import ConfigurationError
from rocketbox.remoting.tls import (
    ServerTlsOptions,
    TlsOptions,
    client_context,
    loopback_client_context,
    server_context,
)
from rocketbox.remoting.tls_advice import TO_BROKERS, advice_to_clients

__all__ = ["ClientTls", "FollowedContext", "LoopbackTls", "ServerTls"]

_log = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0  # seconds; Apache's is 0.5


class FollowedContext:
    """The context of some files, made anew when they change. Making it raises what ``make`` raises."""

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Sequence[Path], whose: str) -> None:
        self._make = make
        self._files = tuple(files)
        self._whose = whose
        self._digest = self._digest_of_all()
        self._refused: tuple[bytes, str] | None = None
        """What was told to be wrong, with the digest of the files; it is tried at each look, for it may not be them."""
        self._looking = False
        self.current = make()

    async def look(self) -> ssl.SSLContext:
        """Look at the files, in a thread, and return what is valid now; while somebody looks already, at once."""
        if self._files and not self._looking:
            self._looking = True
            try:
                await run_briefly(self.look_now)
            finally:
                self._looking = False
        return self.current

    def look_now(self) -> None:
        """The same in this thread."""
        digest = self._digest_of_all()
        if digest == self._digest:
            if self._refused is not None:
                self._refused = None
                _log.info("the TLS files of %s are what they were before", self._whose)
            return
        try:
            made = self._make()
        except ConfigurationError as error:
            refused = digest, "; ".join(finding.what for finding in error.findings)
            if digest == self._digest_of_all() and refused != self._refused:  # else they are being written right now
                self._refused = refused
                _log.warning(
                    "the TLS files of %s have changed and cannot be used; what was read before stays: %s",
                    self._whose, refused[1],
                )  # fmt: skip
            return
        if digest == self._digest_of_all():  # else it is made of two states, and the next look tells
            self.current, self._digest, self._refused = made, digest, None
            _log.info("the TLS files of %s have changed; new connections use them", self._whose)

    def _digest_of_all(self) -> bytes:
        digest = hashlib.sha256()
        for path in self._files:
            try:
                content = path.read_bytes() if path.is_file() else b""
            except (OSError, ValueError):
                content = b""  # gone, or not to be read
            digest.update(len(content).to_bytes(8, "big"))
            digest.update(content)
        return digest.digest()


class ClientTls:
    """What the connections of one client are made with. Raises ConfigurationError for files that cannot be used."""

    def __init__(
        self,
        options: TlsOptions,
        named: Callable[[str], str] = lambda option: f"TlsOptions.{option}",
        *,
        settings_prefix: str = "rocketmq",
    ) -> None:
        self.options = options
        self.advice = advice_to_clients(settings_prefix)
        self._context = FollowedContext(lambda: client_context(options, named), options.files, "the client")
        if not options.verify:
            _log.warning(
                "TLS certificates of servers are not verified (%s.tls.verify is false): whoever is between can "
                "read and change everything",
                settings_prefix,
            )

    async def context(self) -> ssl.SSLContext:
        """The context for a connection that is about to be made."""
        return await self._context.look()

    def name_of(self, host: str) -> str:
        """What the certificate of a server at ``host`` must be for."""
        return self.options.server_name or host

    @property
    def shows_certificate(self) -> bool:
        """Whether there is one for servers that want it."""
        return self.options.cert_file is not None


class ServerTls:
    """What the connections to some servers are made with, and those of one of them to another.

    Raises ConfigurationError for files that cannot be used.
    """

    def __init__(self, options: ServerTlsOptions, named: Callable[[str], str] = str) -> None:
        self.options = options
        self._context = FollowedContext(lambda: server_context(options, named), options.files, "the servers")

    @property
    def context(self) -> ssl.SSLContext:
        """What is valid now."""
        return self._context.current

    async def follow(self, clock: Clock) -> None:
        """Look at the files every second, for ever."""
        while True:
            await clock.sleep(LOOK_INTERVAL)
            await self._context.look()


class LoopbackTls:
    """A server's connections to another one with the same files, which has to have the same certificate."""

    advice = TO_BROKERS
    shows_certificate = True

    def __init__(self, options: ServerTlsOptions) -> None:
        self._context = FollowedContext(lambda: loopback_client_context(options), options.files, "the servers")

    async def context(self) -> ssl.SSLContext:
        return await self._context.look()

    def name_of(self, host: str) -> str:
        return host
