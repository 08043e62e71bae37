"""The name servers of a cluster: which ones there are, and which one is asked.

One server is kept while it answers. When it does not, each of the others is tried once within the same timeout, and
the one that answers is kept from then on.

Name servers do not know of each other: one that was just started, or that a broker cannot reach, knows less than the
others, an address that is no more, or refuses to tell as long as it is not ready. So what one of them does not know or
tell the others are asked for, within a moment, and when what it said does not hold, another one is asked next
(``suspect``).

Source: Apache RocketMQ 5.x ``NettyRemotingClient.getAndCreateNameserverChannel`` (which tries one server a call) and
``NameServerAddressUtils``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from rocketbox.clock import Clock
from rocketbox.errors import ConfigurationError, Finding, NoNameServerError, RemotingError, RequestTimeoutError
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.namespaces import namespace_of_address
from rocketbox.remoting.acl import Credentials
from rocketbox.remoting.client import RemotingClient

__all__ = ["NameServers", "parse_name_servers"]

_log = logging.getLogger(__name__)

OTHERS_WITHIN = 0.3  # seconds that each other server has for telling what the first one does not know
TURN_AGAIN_AFTER = 1.0  # seconds
AVOIDED_FOR = 30.0  # seconds for which one that did not answer is no alternative

_ADDRESS = re.compile(r"[^\s/]+:([0-9]{1,5})")
_HTTP = re.compile(r"https?://", re.IGNORECASE)  # as Apache's NameServerAddressUtils knows them


def parse_name_servers(text: str | Sequence[str], *, in_namespace: bool = True) -> tuple[str, ...]:
    """The addresses in ``host:port;host:port``; commas separate as well, ``http://`` before a host is dropped.

    Raises ConfigurationError when there is none, or one that is no ``host:port``; for a client that is not
    ``in_namespace`` also when an address names the one which Apache's client would take from it.
    """
    parts = re.split(r"[;,]", text) if isinstance(text, str) else list(text)
    addresses = [_HTTP.sub("", part.strip()) for part in parts if part.strip()]
    wrong = [address for address in addresses if not _is_address(address)]
    if not addresses or wrong:
        what = f"name server {wrong[0]!r} is no address" if wrong else "there is no name server address"
        fix = "write host:port, several separated by ';' (127.0.0.1:9876)"
        _, scheme, rest = wrong[0].partition("://") if wrong else ("", "", "")
        if scheme and _is_address(rest):
            fix = f"write {rest}, without what stands before it"
        raise ConfigurationError(Finding(what, "rocketmq.name-server", fix))
    named = None if in_namespace else next(filter(None, map(namespace_of_address, addresses)), None)
    if named is not None:
        what = f"name server {addresses[0]} is that of instance {named}, and no namespace is set"
        fix = f"set rocketmq.namespace: {named}, which is what Apache's Java client takes from such an address"
        raise ConfigurationError(Finding(what, "rocketmq.name-server", fix))
    return tuple(dict.fromkeys(addresses))


def _is_address(address: str) -> bool:
    found = _ADDRESS.fullmatch(address)
    return found is not None and 0 < int(found[1]) < 65_536


class NameServers:
    """Asks the name servers of one cluster."""

    def __init__(self, addresses: Sequence[str], remoting: RemotingClient, clock: Clock) -> None:
        self.addresses = list(addresses)
        clock.random.shuffle(self.addresses)  # clients spread over the servers
        self._remoting = remoting
        self.namespace = remoting.namespace
        self._clock = clock
        self._failed_at: dict[str, float] = {}
        self._turned_at = -TURN_AGAIN_AFTER

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
