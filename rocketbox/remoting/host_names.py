"""From the name of a host to a connection: look-ups on threads of their own, and the addresses of a name tried in turn.

The threads that an event loop or anyio gives away may all be held by who waits for the connection: blocking sends. So
none of them is needed here, nor for an IP address any thread. Who asks for a name that is being looked up waits for
that look-up; one that hangs, because no DNS server answers, is left to its thread, which keeps no process alive.

A name is looked up for each connection: what its addresses are by then counts, and nothing is remembered.

Source: RFC 6724 (the order of addresses is the system's), RFC 8305 (the next address is tried when one is slow).
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import RunVar

from rocketbox.clock import RealClock
from rocketbox.loops import at_interpreter_end, call_soon_from_thread
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["Address", "LookUps", "addresses_of", "connected_socket", "first_connected"]

Address = tuple[socket.AddressFamily, tuple[Any, ...]]
"""The family, and what a socket of it is connected to: host, port, and for IPv6 flow label and scope."""
Question = tuple[str, int]
ConnectedT = TypeVar("ConnectedT")

MOST_LOOK_UPS = 16  # at once, of different names; others wait in line
HAPPY_EYEBALLS_DELAY = 0.25  # seconds until the next address of a name is tried as well (RFC 8305)


async def addresses_of(host: str, port: int = 0, *, passive: bool = False) -> list[Address]:
    """The addresses of a host, the best one first; ``passive``: to listen on, where an empty host is all of them.

    Raises OSError for a name that leads nowhere, UnicodeError for what can be no name.
    """
    flags = socket.AI_PASSIVE if passive else 0
    try:
        found = _ask(host, flags | socket.AI_NUMERICHOST)
    except socket.gaierror:  # it is no IP address
        found = await _look_ups_here().find((host, flags))
    return [(family, (place[0], port, *place[2:])) for family, place in found]


async def first_connected(
    host: str,
    port: int,
    connect: Callable[[Address], Awaitable[ConnectedT]],
    drop: Callable[[ConnectedT], Awaitable[object]],
) -> ConnectedT:
    """What ``connect`` makes of the first address of a host that can be connected to; ``drop`` takes what comes later.

    The families take turns, and each address that is slow gets another one beside it. Raises OSError: that of the last
    address, or what all of them have failed with; UnicodeError as :func:`addresses_of`.
    """
    addresses = _in_turns(await addresses_of(host, port))
    if len(addresses) == 1:
        return await connect(addresses[0])
    connected: list[ConnectedT] = []
    failures: list[tuple[Address, OSError]] = []
    clock = RealClock()

    async def attempt(address: Address, over: anyio.Event) -> None:
        try:
            made = await connect(address)
        except OSError as error:
            failures.append((address, error))
            over.set()
            return
        if connected:
            with anyio.CancelScope(shield=True):
                await drop(made)
        else:
            connected.append(made)
            attempts.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as attempts:
            for address in addresses:
                over = anyio.Event()
                attempts.start_soon(attempt, address, over)
                with clock.move_on_after(HAPPY_EYEBALLS_DELAY):
                    await over.wait()
    except BaseException:
        for made in connected:
            with anyio.CancelScope(shield=True):
                await drop(made)
        raise
    if connected:
        return connected[0]
    raise _all_have_failed(failures)


async def connected_socket(address: Address) -> socket.socket:
    """A socket that does not block, connected to an address. Raises OSError."""
    family, place = address
    # With the protocol named: only where it stands asyncio switches Nagle's algorithm off.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setblocking(False)
        try:
            made.connect(place)
        except (BlockingIOError, InterruptedError):
            await anyio.wait_writable(made)
            if number := made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, os.strerror(number)) from None
    except BaseException:
        made.close()
        raise
    return made


class LookUps:
    """The look-ups of names by one event loop."""

    def __init__(self) -> None:
        self._call_soon = call_soon_from_thread()
        self._waiting: dict[Question, list[Waiter]] = {}
        self._line: deque[Question] = deque()
        self._under_way = 0

    async def find(self, question: Question) -> list[Address]:
        """The addresses, with port 0. Raises OSError, UnicodeError. A cancellation leaves the look-up to others."""
        waiting = self._waiting.get(question)
        waiter = make_waiter()
        if waiting is not None:
            waiting.append(waiter)
        else:
            self._waiting[question] = [waiter]
            if self._under_way < MOST_LOOK_UPS:
                self._begin(question)
            else:
                self._line.append(question)
        found: list[Address] = await waiter
        return found

    def _begin(self, question: Question) -> None:
        self._under_way += 1
        thread = threading.Thread(
            target=self._look, args=(question,), name=f"rocketbox looks up {question[0]}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            if at_interpreter_end(error):
                self._end(question, *_answer(question))
            else:
                self._end(question, [], OSError(f"no thread could be started to look the name up: {error}"))

    def _look(self, question: Question) -> None:  # in a thread
        answer = _answer(question)
        with suppress(RuntimeError):  # the loop may be gone
            self._call_soon(partial(self._end, question, *answer))

    def _end(self, question: Question, found: list[Address], failure: Exception | None) -> None:
        self._under_way -= 1
        for waiter in self._waiting.pop(question):
            if waiter.done():  # cancelled
                continue
            if failure is None:
                waiter.set_result(found)
            else:
                waiter.set_exception(failure)
        if self._line:
            self._begin(self._line.popleft())


_look_ups: RunVar[LookUps] = RunVar("rocketbox_look_ups")


def _look_ups_here() -> LookUps:
    try:
        return _look_ups.get()
    except LookupError:
        made = LookUps()
        _look_ups.set(made)
        return made


def _answer(question: Question) -> tuple[list[Address], Exception | None]:
    try:
        return _ask(*question), None
    except Exception as error:  # whatever it is belongs to who asks
        return [], error


def _ask(host: str, flags: int) -> list[Address]:
    # With a port, which an empty host needs; it is that of no address here.
    found = socket.getaddrinfo(host or None, 0, 0, socket.SOCK_STREAM, socket.IPPROTO_TCP, flags)
    return list(dict.fromkeys((each[0], tuple(each[4])) for each in found))


def _in_turns(addresses: Sequence[Address]) -> list[Address]:
    """The families in turn, that of the first address first."""
    first = [address for address in addresses if address[0] == addresses[0][0]]
    rest = [address for address in addresses if address[0] != addresses[0][0]]
    both = [each for pair in zip(first, rest, strict=False) for each in pair]
    return both + first[len(rest) :] + rest[len(first) :]


def _all_have_failed(failures: Sequence[tuple[Address, OSError]]) -> OSError:
    last = failures[-1][1]
    reasons = {place[0]: os.strerror(error.errno) if error.errno else str(error) for (_, place), error in failures}
    if len(set(reasons.values())) == 1:
        return last
    return OSError("; ".join(f"{host}: {reason}" for host, reason in reasons.items()))
