"""Name server and broker in this process: in the loop that runs here, or in a thread and loop of their own.

What they do is in ``nameserver`` and ``broker``; here they are joined, and errors of the start are put into the words
of the settings (``rocketbox.embedded.*``).
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import anyio

from rocketbox.blocking import run_blocking
from rocketbox.broker.access import ServerAccess, access_findings, registration_sources, server_access
from rocketbox.broker.broker import Broker
from rocketbox.broker.options import BrokerOptions, broker_settings, read_broker_options
from rocketbox.broker.peer_limits import remoting_options
from rocketbox.broker.server_tls import server_network, server_tls_findings, tls_options_of
from rocketbox.broker.store.options import FlushDiskType
from rocketbox.clock import Clock, RealClock
from rocketbox.declarations import Option
from rocketbox.errors import ClientStateError, ConfigurationError, Finding, NotStartedError
from rocketbox.local_servers import LocalServers, ServersHealth
from rocketbox.loops import call_soon_from_thread, loop_name, loop_options, run_loop
from rocketbox.nameserver.name_server import NameServer, NameServerOptions
from rocketbox.nameserver.route_info import RouteLimits
from rocketbox.remoting.name_server_addresses import address_server_of, parse_name_servers
from rocketbox.remoting.network import Network
from rocketbox.remoting.server import ListenError
from rocketbox.remoting.tls import TlsMode
from rocketbox.storage.file_system import Storage

__all__ = ["EmbeddedOptions", "EmbeddedServers", "ServersHealth", "ServersInThread"]

_log = logging.getLogger(__name__)

PREFIX = "rocketbox.embedded."
ServerT = TypeVar("ServerT", NameServer, Broker)


@dataclass(frozen=True, kw_only=True)
class EmbeddedOptions:
    """Settings of the embedded servers (``rocketbox.embedded.*``); port 0 takes a free one."""

    data_dir: Path
    host: str = BrokerOptions.bind_address
    port: int = BrokerOptions.listen_port
    name_server_port: int = 9876
    flush_disk_type: str = FlushDiskType.SYNC_FLUSH.value
    """SYNC_FLUSH acknowledges after the disk has a message, ASYNC_FLUSH before."""
    insecure: bool = False
    """Allow another address than the machine's own without access control or TLS: who reaches it can do everything."""
    broker: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Further settings of Apache's broker by name (``broker-name``, ``broker_name`` or ``brokerName``). No ``repr``
    shows them: passwords may be among them.
    """
    prefix: str = PREFIX
    """How the settings are called where the user wrote them, for errors."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where (file:line) a setting was written, for errors; by its name without prefix."""

    def __eq__(self, other: object) -> bool:
        """Written out, for pytest tells the fields of what a dataclass compares by itself, passwords too."""
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    @staticmethod
    def broker_settings() -> Mapping[str, Option]:
        """The further settings by their names in kebab case, as broker and store declare them."""
        return broker_settings()

    def broker_options(self) -> BrokerOptions:
        """What the broker is started with. Raises ConfigurationError with everything that is wrong."""
        try:
            options = read_broker_options(
                {"flush-disk-type": self.flush_disk_type, **self.broker},
                prefix=self.prefix,
                places=self.places,
                store_path_root_dir=Path(self.data_dir),
                bind_address=self.host,
                listen_port=self.port,
            )
        except ConfigurationError as error:  # what is said of protection is not known then, unless it is nothing
            said = any(word in key.lower() for key in self.broker for word in ("acl", "auth", "tls"))
            plain = BrokerOptions(store_path_root_dir=Path(self.data_dir), bind_address=self.host)
            raise ConfigurationError([*([] if said else self._exposure(plain)), *error.findings]) from error
        findings = server_tls_findings(options, self.prefix, self.places)
        findings += access_findings(options, self.prefix)
        findings += self._name_server_findings(options)
        findings += self._exposure(options)
        if findings:
            raise ConfigurationError(findings)
        return options

    def enforces_tls(self) -> bool:
        """Whether clients without TLS are refused. Raises ConfigurationError with everything that is wrong."""
        return tls_options_of(self.broker_options()).mode is TlsMode.ENFORCING

    def _name_server_findings(self, options: BrokerOptions) -> list[Finding]:
        """What is wrong with the further name servers that are to be told of the broker."""
        further = options.namesrv_addr
        if further is None or address_server_of(further) is not None:
            return []
        place = next((self.places[key] for key in ("namesrv-addr", "namesrvAddr") if key in self.places), None)
        try:
            parse_name_servers(further)
        except ConfigurationError as error:
            return [Finding(f"{self.prefix}namesrv-addr: {each.what}", place, each.fix) for each in error.findings]
        return []

    def _exposure(self, options: BrokerOptions) -> list[Finding]:
        """That the servers could be reached from other machines and are not protected, unless that is allowed."""
        missing, prefix = missing_protection(options), self.prefix
        if not missing or self.insecure:
            return []
        return [
            Finding(
                f"{prefix}host is {self.host}: this address can be reached from other machines, and the embedded "
                f"servers have no {' and no '.join(missing)}",
                self.places.get("host"),
                f"leave {prefix}host at 127.0.0.1; or set {prefix}authentication-enabled (or {prefix}acl-enable) "
                f"and {prefix}tls-server-cert-path, with what belongs to them; or, if the network is closed, "
                f"{prefix}insecure: true (insecure=True in code)",
            )
        ]


def missing_protection(options: BrokerOptions) -> list[str]:
    """What servers that other machines can reach should have, and these have not; nothing of those on loopback."""
    if is_loopback(options.bind_address):
        return []
    missing = [] if options.acl_enable or options.authentication_enabled else ["access control"]
    return missing if tls_options_of(options).mode is TlsMode.ENFORCING else [*missing, "TLS that is enforced"]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class EmbeddedServers(LocalServers):
    """``async with EmbeddedServers(options) as servers: servers.name_server_address, servers.broker_address``.

    Runs in the loop that enters it. Raises ConfigurationError (a setting is wrong, a port is taken), StoreLockedError,
    StoreCorruptError.
    """

    def __init__(
        self,
        options: EmbeddedOptions,
        *,
        clock: Clock | None = None,
        network: Network | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.options = options
        self._clock = clock or RealClock()
        self._network = network
        self._storage = storage
        self._name_server: NameServer | None = None
        self._broker: Broker | None = None
        self._access: ServerAccess | None = None
        self.on_health_change: list[Callable[[ServersHealth], object]] = []
        """Called in the loop of the servers when their health has changed."""
        self._failed = anyio.Event()
        self._stack = AsyncExitStack()

    @property
    def name_server_address(self) -> str:
        return self._started(self._name_server).address

    @property
    def broker_address(self) -> str:
        return self.broker.address

    @property
    def broker(self) -> Broker:
        """The broker itself, for tests and health."""
        return self._started(self._broker)

    @property
    def name_server(self) -> NameServer:
        """The name server itself, for tests and health."""
        return self._started(self._name_server)

    @property
    def health(self) -> ServersHealth:
        """How they are now; ``on_health_change`` tells of changes."""
        return _health_of(self.broker)

    async def failed(self) -> None:
        """Return when the store has failed for good: messages are read still, and no more are taken."""
        await self._failed.wait()

    def _store_changed(self, broker: Broker) -> None:
        health = _health_of(broker)
        if health.failure is not None:
            self._failed.set()
        for listener in self.on_health_change:
            listener(health)

    def _trusts_everybody(self) -> None:
        """Refuse a file of accounts that lets everybody in where other machines can reach the servers."""
        if is_loopback(self.options.host):
            return
        prefix = self.options.prefix
        what = (
            f"{prefix}host is {self.options.host}, which other machines can reach, and the file of {prefix}acl-file "
            "trusts every address (globalWhiteRemoteAddresses or whiteRemoteAddress is *)"
        )
        if not self.options.insecure:
            fix = f"name the addresses that are trusted; or, if the network is closed, set {prefix}insecure: true"
            raise ConfigurationError(Finding(what, self.options.places.get("acl-file"), fix))
        _log.warning("insecure: %s", what)

    @staticmethod
    def _started(server: ServerT | None) -> ServerT:
        if server is None:
            raise NotStartedError("EmbeddedServers")
        return server

    async def __aenter__(self) -> Self:
        options = self.options
        broker_options = options.broker_options()
        network = self._network = self._network or server_network(broker_options)
        if missing := missing_protection(broker_options):
            _log.warning(
                "insecure: the servers listen on %s, which other machines can reach, and have no %s",
                options.host, " and no ".join(missing),
            )  # fmt: skip
        access = self._access = server_access(broker_options, self._clock, self._trusts_everybody)
        async with AsyncExitStack() as stack:
            name_server = NameServer(
                NameServerOptions(
                    host=options.host,
                    port=options.name_server_port,
                    remoting=remoting_options(broker_options),
                    max_registration_bytes=broker_options.max_registration_bytes,
                    registration_sources=registration_sources(broker_options),
                    routes=RouteLimits(
                        max_brokers=broker_options.max_registered_brokers,
                        max_topics=broker_options.max_registered_topics,
                        max_entries=broker_options.max_registered_entries,
                        max_entries_per_connection=broker_options.max_registered_entries_per_connection,
                    ),
                ),
                clock=self._clock,
                network=network,
                access=None if access is None else access.control,
            )
            try:
                await stack.enter_async_context(name_server)
            except ListenError as error:
                raise _cannot_listen(options, "name-server-port", error) from error
            self._name_server = name_server
            stack.callback(self._forget)
            await self._run_broker(stack, broker_options)
            self._stack = stack.pop_all()
        return self

    async def _run_broker(self, stack: AsyncExitStack, options: BrokerOptions) -> None:
        """Start a broker that is stopped with the stack; errors are told in the words of the settings."""
        broker = Broker(
            options,
            name_servers=[self.name_server.address],
            clock=self._clock,
            network=self._network,
            storage=self._storage,
            access=self._access,
        )
        said = self.options
        try:
            await stack.enter_async_context(broker)
        except ListenError as error:
            raise _cannot_listen(said, "port", error) from error
        except OSError as error:
            raise ConfigurationError(
                Finding(
                    f"{said.prefix}data-dir: the store cannot be opened in {said.data_dir}: {error}",
                    said.places.get("data-dir"),
                    "see that this process may write there and that the disk has room, or choose another directory",
                )
            ) from error
        self._broker = broker
        broker.store.on_state_change.append(partial(self._store_changed, broker))
        self._store_changed(broker)

    def _forget(self) -> None:
        self._name_server = self._broker = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._forget()
        return await self._stack.__aexit__(kind, error, trace)

    @classmethod
    def in_thread(cls, options: EmbeddedOptions, *, storage: Storage | None = None) -> ServersInThread:
        """The servers in a thread and loop of their own: ``with EmbeddedServers.in_thread(options) as servers:``.

        ``async with``, where an event loop runs, which goes on meanwhile.
        """
        return ServersInThread(options, storage=storage)


class ServersInThread(LocalServers):
    """The embedded servers beside the caller's own code, which may block without stopping them.

    Entering returns when both servers answer, and raises what their start raises; leaving returns when they are
    stopped. ``with`` blocks until then; ``async with`` leaves both to another thread, and a cancellation waits for it.
    """

    def __init__(self, options: EmbeddedOptions, *, storage: Storage | None = None) -> None:
        self.options = options
        self._health = ServersHealth()
        self._storage = storage
        self._addresses = ("", "")
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = _nothing
        self._error: BaseException | None = None

    @property
    def health(self) -> ServersHealth:
        """How the servers are; may be read in any thread, and is replaced as a whole when it changes."""
        return self._health

    @property
    def name_server_address(self) -> str:
        return self._addresses[0]

    @property
    def broker_address(self) -> str:
        return self._addresses[1]

    async def __aenter__(self) -> Self:
        try:
            return await run_blocking(self.__enter__)
        except anyio.get_cancelled_exc_class():  # as asyncio.timeout() does it: they may have been started all the same
            if self._ready.is_set() and self._error is None:
                with anyio.CancelScope(shield=True):
                    await run_blocking(self.__exit__, None, None, None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # a store that is not closed has to recover
            await run_blocking(self.__exit__, kind, error, trace)

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise ClientStateError("these servers were started before; make new ones with EmbeddedServers.in_thread()")
        self._thread = threading.Thread(target=self._run, name="rocketbox-embedded", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._stop()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            run_loop(self._serve, **loop_options())
        except BaseException as error:  # it belongs to the thread that started this one
            if self._ready.is_set():
                _log.exception("the embedded servers have failed")
                reason = f"the embedded servers have ended: {type(error).__name__}: {error}"
                self._health = ServersHealth(reason, reason)
            self._error = error
        finally:
            self._ready.set()

    def _take_health(self, health: ServersHealth) -> None:
        self._health = health  # a frozen value: who reads it in another thread sees the old one or the new one

    async def _serve(self) -> None:
        stopped = anyio.Event()
        call_soon = call_soon_from_thread()
        servers = EmbeddedServers(self.options, storage=self._storage)
        servers.on_health_change.append(self._take_health)
        _log.debug("the embedded servers run on %s", loop_name())
        async with servers:
            self._addresses = (servers.name_server_address, servers.broker_address)
            self._stop = lambda: call_soon(stopped.set)
            self._ready.set()
            try:
                await stopped.wait()
            finally:  # what fails from here on must not be hidden by a call into a loop that has ended
                self._stop = _nothing


def _health_of(broker: Broker) -> ServersHealth:
    return ServersHealth(broker.store.failure, broker.store.refusal)


def _nothing() -> None:
    """What stopping is when nothing runs."""


def _cannot_listen(options: EmbeddedOptions, key: str, error: ListenError) -> ConfigurationError:
    cause = error.__cause__
    if isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno == errno.EADDRNOTAVAIL):
        return ConfigurationError(
            Finding(
                f"{options.prefix}host: cannot listen on {error.address}: {error.reason}",
                options.places.get("host"),
                f"set {options.prefix}host to an address of this machine, for example 127.0.0.1",
            )
        )
    return ConfigurationError(
        Finding(
            f"{options.prefix}{key}: cannot listen on {error.address}: {error.reason}",
            options.places.get(key),
            f"stop what uses that port, or set {options.prefix}{key} to another one (0 takes a free one)",
        )
    )
