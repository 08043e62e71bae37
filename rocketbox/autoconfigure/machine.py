"""What an application runs on: time, network, storage, and how name server and broker are run beside it.

A :class:`Machine` comes by the ``Launch`` and reaches whatever the application starts by its ``Service``. The one that
is meant when nothing is said is the machine itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from rocketbox.client import ConsumeMiddleware, SendMiddleware
from rocketbox.clock import Clock, RealClock
from rocketbox.local_servers import LocalServers
from rocketbox.remoting.network import Network
from rocketbox.storage.file_system import Storage

if TYPE_CHECKING:
    from rocketbox.boot.settings import Settings
    from rocketbox.embedded import EmbeddedOptions
    from rocketbox.listeners.plans import ContainerPlan

__all__ = ["Machine"]


def _in_thread(options: EmbeddedOptions) -> LocalServers:
    from rocketbox.embedded import EmbeddedServers  # here: a service with servers elsewhere needs no broker

    return EmbeddedServers.in_thread(options)


def _none(cluster: str) -> tuple[()]:
    return ()


def _as_planned(plan: ContainerPlan) -> Mapping[str, Any]:
    return {}


def _as_it_is(settings: Settings, said: str | None) -> str | None:
    return said


def _nobody(what: str, error: Exception) -> None:
    """Nobody wants to know more than the log says."""


def _the_log_tells(told: str) -> None:
    """Nobody else wants to know."""


def _settings_as_they_are(settings: Settings) -> None:
    """Nobody waits for them."""


def _nothing_around(what: str) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """``Machine()`` is the one that this process runs on: TCP, its disk, servers in a thread of their own."""

    clock: Clock = field(default_factory=RealClock)
    network: Network | None = None
    """None: TCP."""
    storage: Storage | None = None
    """None: the disk."""
    servers: Callable[[EmbeddedOptions], LocalServers] = _in_thread
    """Makes name server and broker, which the application starts where its settings ask for them."""
    spark_queries: bool = True
    """Whether Spark listeners run: Spark's processes reach no network in memory, and see no virtual time."""
    client_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of all clients, such as how often they do what has to be done now and then; these win over settings."""
    consumer_options: Callable[[ContainerPlan], Mapping[str, Any]] = _as_planned
    """Options of the consumer of a group of listeners, in the same way."""
    name_server: Callable[[str, str], str] | None = None
    """Where the name server of a cluster is, given the cluster's name (empty: the main one) and what the settings say,
    an address by then. None: where the settings say. Raises ConfigurationError for one that must not be used."""
    main_name_server: Callable[[Settings, str | None], str | None] = _as_it_is
    """What the service itself says the main cluster's name server is, given the settings of the start and what holds of
    them. They differ where a test has put its own there. Two clusters for which a service says the same are one."""
    send_middleware: Callable[[str], Sequence[SendMiddleware]] = _none
    """What sees all sends to the cluster of that name, outside of the application's own middleware."""
    inner_send_middleware: Callable[[str], Sequence[SendMiddleware]] = _none
    """What sees all sends to that cluster inside of the application's own middleware: what really is sent."""
    consume_middleware: Callable[[str], Sequence[ConsumeMiddleware]] = _none
    """What sees all calls of handlers with messages of that cluster, outside of the application's own middleware."""
    hook_failed: Callable[[str, Exception], object] = _nobody
    """Is told of what hooks raise that the application only logs: what it was, and the error. Those at the shutdown,
    background tasks, scheduled functions."""
    transaction_listener_called: Callable[[str], AbstractContextManager[object]] = _nothing_around
    """Stands around each call of a transaction listener, in its task, and sees what it raises, which the application
    only logs; given is which one, in words."""
    scheduled_function_called: Callable[[str], AbstractContextManager[object]] = _nothing_around
    """Stands around each call of a scheduled function, in its task; given is which one, in words."""
    listener_paused: Callable[[str], object] = _the_log_tells
    """Is told when a group of listeners pauses itself: which one, why, and what to do, as the log says it."""
    payload_held: Callable[[], AbstractContextManager[object]] = nullcontext
    """Stands around the time in which a payload that cannot be read is held, since ``invalid-limit`` has paused its
    group; in the task of the call that it is for."""
    settings_read: Callable[[Settings], object] = _settings_as_they_are
    """Is told of the settings of a start, before anything of it runs and before what is wrong with it is refused."""
    handler_middleware: tuple[ConsumeMiddleware, ...] = ()
    """What sees all calls of handlers inside of it: next to the handler."""

    @classmethod
    def in_one_loop(cls, *, clock: Clock, network: Network | None = None, storage: Storage | None = None) -> Self:
        """One whose servers run in the application's own loop, on its clock, network and storage.

        On virtual time that is the only way: a thread has a time of its own.
        """
        from rocketbox.embedded import EmbeddedServers

        servers = partial(EmbeddedServers, clock=clock, network=network, storage=storage)
        return cls(clock=clock, network=network, storage=storage, servers=servers)
