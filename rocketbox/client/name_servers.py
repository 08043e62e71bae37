"""The name servers of a cluster: which ones there are, and which one is asked.

One server is kept while it answers. When it does not, each of the others is tried once within the same timeout, and
the one that answers is kept from then on.

Name servers do not know of each other: one that was just started, or that a broker cannot reach, knows less than the
others, an address that is no more, or refuses to tell as long as it is not ready. So what one of them does not know or
tell the others are asked for, within a moment, and when what it said does not hold, another one is asked next
(``suspect``).

The list may change while it is used: whoever has one gives it (``replace``), or an address server tells it.

Source: Apache RocketMQ 5.x ``NettyRemotingClient.getAndCreateNameserverChannel`` (which tries one server a call),
``NettyRemotingClient.updateNameServerAddressList``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import ConnectError, NoNameServerError, RemotingError, RequestTimeoutError
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.acl import Credentials
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.name_server_addresses import AddressServer, address_server_of, parse_name_servers

__all__ = ["NameServers"]

_log = logging.getLogger(__name__)

OTHERS_WITHIN = 0.3  # seconds that each other server has for telling what the first one does not know
TURN_AGAIN_AFTER = 1.0  # seconds
AVOIDED_FOR = 30.0  # seconds for which one that did not answer is no alternative


class NameServers:
    """Asks the name servers of one cluster: those that are ``said``, or those that an address server tells.

    Raises ConfigurationError when they are none.
    """

    def __init__(
        self, said: str | Sequence[str], remoting: RemotingClient, clock: Clock, *, in_namespace: bool = True
    ) -> None:
        self._in_namespace = in_namespace
        self.address_server: AddressServer | None = None
        """Who tells the addresses, where they are not said."""
        self.addresses: list[str] = []
        """Those that are known now, the one that is asked first."""
        self._told = anyio.Event()
        self._problem: ConnectError | None = None
        if (url := address_server_of(said)) is not None:
            self.address_server = AddressServer(
                url, clock, take=self._take, fail=self._note_problem, in_namespace=in_namespace
            )
        else:
            self.addresses = list(parse_name_servers(said, in_namespace=in_namespace))
        clock.random.shuffle(self.addresses)  # clients spread over the servers
        self._remoting = remoting
        self.namespace = remoting.namespace
        self._clock = clock
        self._failed_at: dict[str, float] = {}
        self._turned_at = -TURN_AGAIN_AFTER

    @property
    def said(self) -> tuple[str, ...]:
        """What to give to another client of the same cluster."""
        return tuple(self.addresses) if self.address_server is None else (self.address_server.url,)

    @property
    def shown(self) -> tuple[str, ...]:
        """As logs and errors name them: the addresses that are known, else where they are asked for."""
        if self.addresses or self.address_server is None:
            return tuple(self.addresses)
        return (self.address_server.shown,)

    def replace(self, said: str | Sequence[str]) -> None:
        """Ask these from now on, the one that was asked until now first if it is among them.

        Raises ConfigurationError when they are none.
        """
        self._take(parse_name_servers(said, in_namespace=self._in_namespace))

    def _take(self, addresses: Sequence[str]) -> None:
        self._problem = None
        kept = [address for address in self.addresses if address in addresses]
        new = [address for address in addresses if address not in kept]
        gone = [address for address in self.addresses if address not in addresses]
        if new or gone:
            self._clock.random.shuffle(new)
            self.addresses[:] = kept + new
            _log.info("name servers are now %s", ", ".join(self.addresses))
        for address in gone:
            self._failed_at.pop(address, None)
            self._remoting.close_connection(address)
        self._told.set()

    def _note_problem(self, error: ConnectError) -> None:
        if self._problem is None or str(error) != str(self._problem):
            _log.warning("%s%s", error, "; the addresses that it told last are used" if self.addresses else "")
        self._problem = error
        self._told.set()

    async def _until_told(self, timeout: float) -> None:
        """Return when an address is known. Raises ConnectError when the address server does not tell any."""
        assert self.address_server is not None
        with self._clock.move_on_after(timeout):
            await self._told.wait()
        if not self.addresses:
            raise self._problem or ConnectError(
                self.address_server.shown, f"no answer within {timeout:.3g} s to where the name servers are"
            )

    def suspect(self) -> None:
        """What the server that is kept has said does not hold: ask another one next, if there is one that answers.

        Many may say so at once, of one thing: that is one reason to turn to another.
        """
        now = self._clock.monotonic()
        if now - self._turned_at < TURN_AGAIN_AFTER:
            return
        for address in self.addresses[1:]:
            if now - self._failed_at.get(address, -AVOIDED_FOR) >= AVOIDED_FOR:
                self._turned_at = now
                self.addresses.append(self.addresses.pop(0))
                self._keep(address)
                return

    @property
    def credentials(self) -> Credentials | None:
        """What they are asked with; None: nothing is signed."""
        return self._remoting.credentials

    async def request(
        self, command: RemotingCommand, *, timeout: float, unknown: int | None = None
    ) -> tuple[str, RemotingCommand]:
        """The first server's address that answers within timeout seconds, and its answer.

        One that is no success counts only if no other server answers otherwise soon: with ``unknown``, the code of who
        knows nothing, or a refusal, which says even less. Who refuses what another one answers is asked first no more.
        Raises RemotingError when none answers: NoNameServerError, if several were asked.
        """
        address, answer = await self._request_first(command, timeout)
        if answer.code != ResponseCode.SUCCESS:
            for other in [each for each in self.addresses if each != address]:
                try:
                    found = await self._remoting.request(other, command, timeout=min(timeout, OTHERS_WITHIN))
                except RemotingError as error:
                    self._note_failure(other, error)
                    continue
                told_more = found.code == unknown and answer.code != unknown
                if told_more or found.code == ResponseCode.SUCCESS:
                    if answer.code != unknown:
                        self._keep(other)
                    address, answer = other, found
                if found.code == ResponseCode.SUCCESS:
                    break
        return address, answer

    async def _request_first(self, command: RemotingCommand, timeout: float) -> tuple[str, RemotingCommand]:
        deadline = self._clock.monotonic() + timeout
        if not self.addresses:
            await self._until_told(timeout)
        failures: dict[str, RemotingError] = {}
        candidates = list(self.addresses)
        for tried, address in enumerate(candidates):
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0:
                break
            share = remaining / (len(candidates) - tried)  # a silent server must leave time for those after it
            try:
                answer = await self._remoting.request(address, command, timeout=share)
            except RemotingError as error:
                failures[address] = error
                self._note_failure(address, error)
                continue
            self._keep(address)
            return address, answer
        for address in candidates:
            failures.setdefault(address, RequestTimeoutError(address, f"request {command.code}", timeout))
        raise NoNameServerError(failures) if len(failures) > 1 else failures[candidates[0]]

    def _keep(self, address: str) -> None:
        """Ask this one first from now on."""
        if self.addresses[0] != address and address in self.addresses:
            self.addresses.remove(address)
            self.addresses.insert(0, address)

    def _note_failure(self, address: str, error: RemotingError) -> None:
        self._failed_at[address] = self._clock.monotonic()
        _log.debug("name server %s: %s", address, error)
