"""A client for code that has no event loop: one for each process of Spark, in a thread of its own.

Spark calls its sources from plain functions, and its Python processes live on from batch to batch: so does the client.
It owns the process' one client instance, over which its admin asks and its producers send. A process that is told
other servers, as when name servers move, has a client for these too; one that nobody has held for some minutes is
closed when the next one is asked for.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from rocketbox.client import Admin, ClientOptions, CredentialsFile, MQClientInstance, Producer, TlsOptions
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import (
    AccessDeniedError,
    BrokerError,
    ClientError,
    ClientStateError,
    ConfigurationError,
    HookFailedError,
    InvalidGroupError,
    InvalidMessageError,
    LocalProtocolError,
    RemoteProtocolError,
    RemotingError,
)
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import ResponseCode
from rocketbox.remoting.tls import tls_findings
from rocketbox.spark.servers import Servers, SparkTls
from rocketbox.spark.worker_log import set_up_worker_log

__all__ = [
    "AT_ONCE",
    "PATIENCE",
    "UNREACHABLE",
    "ClientThread",
    "client",
    "gather",
    "may_be_closed",
    "may_pass",
    "patiently",
]

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
KeyT = TypeVar("KeyT")

UNREACHABLE = (RemotingError, BrokerError, ClientError)
"""What the client raises when a broker is away, starts, or is not known to the name server (yet); see may_pass."""
_PERMANENT = (
    AccessDeniedError, ClientStateError, HookFailedError, InvalidGroupError, InvalidMessageError, LocalProtocolError,
    RemoteProtocolError,
)  # fmt: skip
_PERMANENT_CODES = frozenset(
    {
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.VERSION_NOT_SUPPORTED,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.INVALID_PARAMETER,
    }
)
AT_ONCE = 64  # questions to one server that are in flight
PATIENCE = 60.0  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds
UNUSED = 300.0  # seconds without a use after which a client is closed


class ClientThread:
    """A client instance in an event loop of its own, with an :class:`Admin` and a :class:`Producer` for each group.

    Whoever uses it over more than one call holds it meanwhile, by ``with``. Raises what its start raises.
    """

    def __init__(self, servers: Servers) -> None:
        self.clock: Clock = RealClock()
        self._held = 0
        self._used_at = self.clock.monotonic()
        self._uses = threading.Lock()
        self._servers = servers
        self._options = ClientOptions(
            namespace=servers.namespace,
            namespace_v2=servers.namespace_v2,
            tls_enable=servers.tls is not None,
            tls=None if servers.tls is None else _tls(servers.tls),
            credentials=CredentialsFile(servers.credentials_file) if servers.credentials_file is not None else None,
        )
        self._started: Future[tuple[BlockingPortal, Admin]] = Future()
        self._producers: dict[str, Producer] = {}
        self._entered = AsyncExitStack()
        # A daemon: a worker of Spark ends without asking anybody.
        self._thread = threading.Thread(target=self._work, name=f"rocketmq {servers.name_server}", daemon=True)
        self._thread.start()
        self._portal, self._admin = self._started.result()

    def _work(self) -> None:
        async def main() -> None:
            async with (
                BlockingPortal() as portal,
                MQClientInstance(self._servers.name_server, options=self._options, clock=self.clock) as instance,
                Admin(instance=instance) as admin,
                self._entered,
            ):
                self._instance = instance
                self._started.set_result((portal, admin))
                await portal.sleep_until_stopped()

        try:
            anyio.run(main)
        except BaseException as error:  # it belongs to the thread that waits for the start
            if self._started.done():
                _log.exception("the client of %s has failed", self._servers.name_server)
            else:
                self._started.set_exception(error)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        with self._uses:
            self._held += 1
        return self

    def __exit__(self, *error: object) -> None:
        with self._uses:
            self._held -= 1
            self._used_at = self.clock.monotonic()

    def used(self) -> None:
        """Somebody is about to use it."""
        with self._uses:
            self._used_at = self.clock.monotonic()

    def is_unused(self) -> bool:
        """Whether nobody holds it, nor has for some minutes."""
        with self._uses:
            return self._held == 0 and self.clock.monotonic() - self._used_at >= UNUSED

    def call(self, function: Callable[[Admin], Awaitable[ResultT]]) -> ResultT:
        """The result of ``function(admin)``, run in the client's loop."""
        with self:
            return self._portal.call(function, self._admin)

    def start(self, function: Callable[[Admin], Awaitable[ResultT]]) -> Future[ResultT]:
        """The same, while the caller does something else, and holds the client."""
        return self._portal.start_task_soon(function, self._admin)

    def send(self, group: str, function: Callable[[Producer], Awaitable[ResultT]]) -> Future[ResultT]:
        """``function(producer)`` with the process' producer of ``group``, while the caller does something else, and
        holds the client.
        """

        async def run() -> ResultT:
            producer = self._producers.get(group)
            if producer is None:  # nothing waits until it is in the table: two that ask at once get one producer
                producer = await self._entered.enter_async_context(Producer(group, instance=self._instance))
                self._producers[group] = producer
            return await function(producer)

        return self._portal.start_task_soon(run)

    def pause(self, seconds: float) -> None:
        self._portal.call(self.clock.sleep, seconds)

    def end(self) -> None:
        """Have it close itself, in its own thread."""
        if self.alive:
            self._portal.start_task_soon(self._portal.stop)

    def close(self) -> None:
        self.end()
        self._thread.join(10)


def _tls(said: SparkTls) -> TlsOptions:
    """What the client is told. Raises ConfigurationError for files that cannot be used on this machine."""
    paths = (None if path is None else Path(path) for path in (said.ca_file, said.cert_file, said.key_file))
    ca_file, cert_file, key_file = paths
    options = TlsOptions(
        ca_file=ca_file, cert_file=cert_file, key_file=key_file, server_name=said.server_name, verify=said.verify
    )
    if findings := tls_findings(options, _option_of):
        raise ConfigurationError(findings)
    return options


def _option_of(name: str) -> str:
    """What an option of the client is called among Spark's."""
    return "option tls" + "".join(part.capitalize() for part in name.split("_"))


_clients: dict[tuple[int, Servers], ClientThread] = {}
_clients_lock = threading.Lock()


def client(servers: Servers) -> ClientThread:
    """This process' client of these servers."""
    key = (os.getpid(), servers)  # a worker is forked: the parent's thread is not there
    with _clients_lock:
        found = _clients.get(key)
        if found is None or not found.alive:
            set_up_worker_log()
            found = _clients[key] = ClientThread(servers)
            atexit.register(found.close)
        found.used()
        for other in [each for each in _clients if each != key and _clients[each].is_unused()]:
            unused = _clients.pop(other)
            atexit.unregister(unused.close)
            unused.end()
        return found


async def gather(function: Callable[[KeyT], Awaitable[ResultT]], keys: Iterable[KeyT]) -> dict[KeyT, ResultT]:
    """``function(key)`` for each key, all at the same time. Raises the first error, as it is.

    But ``AT_ONCE`` for each broker that keys are queues of, and ``AT_ONCE`` of all other keys: a server that is asked
    for thousands at a time refuses some, or answers too late.
    """
    results: dict[KeyT, ResultT] = {}
    errors: list[Exception] = []
    keys = list(keys)
    of_broker: dict[str | None, list[KeyT]] = {}

    async def run(waiting: Iterator[KeyT]) -> None:
        for key in waiting:
            try:
                results[key] = await function(key)
            except Exception as error:
                errors.append(error)
                group.cancel_scope.cancel()
                return

    async with anyio.create_task_group() as group:
        for key in keys:  # those that are no queues are for name servers
            of_broker.setdefault(key.broker_name if isinstance(key, MessageQueue) else None, []).append(key)
        for its in of_broker.values():
            waiting = iter(its)
            for _ in range(min(AT_ONCE, len(its))):
                group.start_soon(run, waiting)
    if errors:
        raise errors[0]
    return {key: results[key] for key in keys}


def may_pass(error: BaseException) -> bool:
    """Whether the same request may be answered later; not what is refused, and not what cannot be read."""
    if isinstance(error, BrokerError) and error.code in _PERMANENT_CODES:
        return False
    return isinstance(error, UNREACHABLE) and not isinstance(error, _PERMANENT)


def may_be_closed(error: BrokerError) -> bool:
    """Whether a broker may have refused a queue that its topic has no more to read, by its permission or by number."""
    closed = (ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER)
    return error.code in closed and not isinstance(error, AccessDeniedError)


async def patiently(
    clock: Clock, what: str, function: Callable[[], Awaitable[ResultT]], *, level: int = logging.WARNING
) -> ResultT:
    """The result of ``function()``, tried for a minute while the broker is not there. What stays is raised at once.

    That it is not there is logged once, at ``level``.
    """
    until = clock.monotonic() + PATIENCE
    pause, is_told = FIRST_PAUSE, False
    while True:
        try:
            return await function()
        except UNREACHABLE as error:
            if not may_pass(error) or clock.monotonic() + pause > until:
                raise
            if not is_told:
                is_told = True
                _log.log(level, "%s: %s; asked again and again, for %.0f s", what, error, PATIENCE)
        await clock.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
