"""Who a client is to name servers and brokers: its address, its id, and the ids of its messages.

All of it is made when the client starts, so that of a client which was made before a fork each process has its own; and
a client that is running when its process forks is told of it in the child, where its connections are not its own. Two
clients of one id are one to a broker, and each would get the queues of both: in one process that is refused.

Source: Apache RocketMQ 5.x ``ClientConfig.buildMQClientId``, ``ClientConfig.changeInstanceNameToPID``,
``NetworkUtil``. The pid form ends in a random number where Java has its nano time. Java's ``MQClientManager`` lets all
who ask for one id share one instance; here sharing is said (``instance=``).
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rocketbox.client.options import DEFAULT_INSTANCE_NAME, ClientOptions
from rocketbox.clock import Clock
from rocketbox.errors import ClientStateError
from rocketbox.protocol.ids import UniqIdGenerator

__all__ = ["Identity", "begin_alone", "call_in_forks", "caller", "local_ip", "make_identity"]

_OWN_MODULES = __name__.partition(".")[0] + "."

# Addresses kept for documentation (RFC 5737, RFC 3849): connecting a datagram socket to one sends nothing, but tells
# which of the machine's own addresses leads outside.
_OUTSIDE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def local_ip() -> str:
    """The machine's address toward the outside; 127.0.0.1 when it has no network."""
    for family, address in _OUTSIDE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


@dataclass(frozen=True)
class Identity:
    """Of one run of a client. ``client_id`` is ``ip@instance`` and, with a unit, ``@unit``."""

    process: int
    client_id: str
    unique_ids: UniqIdGenerator


def make_identity(options: ClientOptions, clock: Clock) -> Identity:
    """The identity of a client that starts now, in this process."""
    ip = options.client_ip or local_ip()
    ip_bytes = socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
    return Identity(os.getpid(), _client_id(ip, options, clock), UniqIdGenerator(clock.random, ip_bytes))


class HasForked(Protocol):
    """Something that does not outlive a fork of its process."""

    def forked(self) -> None:
        """Called in the child."""


_in_forks: weakref.WeakSet[HasForked] = weakref.WeakSet()
_registered = False


def call_in_forks(running: HasForked) -> None:
    """Tell running of each fork, in the child, for as long as somebody holds it.

    A hook instead of a look at the process id with each message, which is a call of the system.
    """
    global _registered  # the interpreter keeps such hooks for good, so there is one for all
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_after_fork)
    _in_forks.add(running)


def _after_fork() -> None:
    for running in list(_in_forks):
        running.forked()


class Runs(Protocol):
    """A client between its start and its end."""

    @property
    def identity(self) -> Identity: ...

    @property
    def name_servers(self) -> Sequence[str]: ...

    @property
    def network(self) -> object:
        """What it reaches its servers by; None: the system's own."""

    running: bool
    starting: bool
    """Whether it is on its way there: the start may wait for its keys."""
    made_at: str


_clients: weakref.WeakSet[Runs] = weakref.WeakSet()
_clients_lock = threading.Lock()


def _new_lock() -> None:
    """The thread that holds it may not be in the child."""
    global _clients_lock
    _clients_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def begin_alone(client: Runs) -> None:
    """Mark a client as starting. Raises ClientStateError when another one of this process, which runs or starts, has
    the same id at the same name servers.
    """
    with _clients_lock:
        _refuse_second(client)
        client.starting = True
        _clients.add(client)


def _refuse_second(starting: Runs) -> None:
    client_id = starting.identity.client_id
    for other in list(_clients):
        if (
            other is not starting
            and (other.running or other.starting)
            and other.identity.process == starting.identity.process
            and other.identity.client_id == client_id
            and other.network is starting.network
            and not set(other.name_servers).isdisjoint(starting.name_servers)
        ):
            raise ClientStateError(
                f"the clients made at {other.made_at} and at {starting.made_at} are both {client_id}, and brokers "
                "would take them for one: give them one MQClientInstance to share (instance=), or each an "
                "instance_name of its own (ClientOptions; rocketmq.consumer.instance-name), or none"
            )


def caller() -> str:
    """The line outside of rocketbox that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(_OWN_MODULES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _client_id(ip: str, options: ClientOptions, clock: Clock) -> str:
    instance = options.instance_name
    if instance == DEFAULT_INSTANCE_NAME:
        instance = f"{os.getpid()}#{clock.random.getrandbits(48)}"
    host = f"[{ip}]" if ":" in ip else ip
    return f"{host}@{instance}" + (f"@{options.unit_name}" if options.unit_name else "")
