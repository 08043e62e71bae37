"""Names of hosts: looked up aside from everybody else's threads, and all of their addresses tried."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import anyio
import pytest

from rocketbox.clock import RealClock
from rocketbox.errors import ConnectError
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting import host_names
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.network import parse_address
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.server import RemotingServer
from tests.support.loops import anyio_backend as anyio_backend
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

NAME = "desk.test"
ECHO = 34


class Names:
    """What names lead to, in the place of the system's; how often each was looked up, and when it may be answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: dict[str, list[str]] = {}
        self.asked: Counter[str] = Counter()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._ask: Callable[..., list[Any]] = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.ask)

    def ask(self, host: Any, *args: Any, **more: Any) -> list[Any]:
        if host not in self.hosts or args[4] & socket.AI_NUMERICHOST:
            return self._ask(host, *args, **more)
        self.asked[host] += 1
        assert self.may_answer.wait(PATIENCE)
        return [each for said in self.hosts[host] for each in self._ask(said, *args, **more)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    known = Names(monkeypatch)
    try:
        yield known
    finally:
        known.may_answer.set()


def server(host: str = "127.0.0.1", port: int = 0) -> RemotingServer:
    handlers = {ECHO: lambda _, request: RemotingCommand.response(body=host.encode())}
    return RemotingServer(handlers, host=host, port=port, clock=RealClock())


async def asked(client: RemotingClient, port: int, name: str = NAME) -> str:
    with anyio.fail_after(PATIENCE):
        return (await client.request(f"{name}:{port}", RemotingCommand.request(ECHO), timeout=PATIENCE)).body.decode()


@contextmanager
def silent_host(host: str, port: int) -> Iterator[None]:
    """Whoever connects there waits: nobody takes the connections, and there is room for no more of them."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((host, port))
        listening.listen(0)
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.05)
            try:
                waiting.connect((host, port))
            except TimeoutError:
                break
        yield


async def test_an_address_that_is_silent_leaves_time_for_the_next_one(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_names, "HAPPY_EYEBALLS_DELAY", 0.02)
    async with server() as there, RemotingClient(clock=RealClock()) as client:
        _, port = parse_address(there.address)
        names.hosts[NAME] = ["127.0.0.2", "127.0.0.1"]
        with silent_host("127.0.0.2", port):
            assert await asked(client, port) == "127.0.0.1"


async def test_an_address_that_refuses_leads_to_the_next_one_at_once(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_names, "HAPPY_EYEBALLS_DELAY", 2 * PATIENCE)
    async with server() as there, RemotingClient(clock=RealClock()) as client:
        _, port = parse_address(there.address)
        names.hosts[NAME] = ["127.0.0.2", "::1", "127.0.0.1"]
        assert await asked(client, port) == "127.0.0.1"


async def test_where_no_address_can_be_connected_to_it_is_said_why(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    names.hosts[NAME] = ["127.0.0.1", "127.0.0.2"]
    async with RemotingClient(clock=RealClock()) as client:
        with pytest.raises(ConnectError, match=r"Connection refused$"):
            await asked(client, port)
        names.hosts[NAME] = ["127.0.0.1", "255.255.255.255"]
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1: Connection refused; 255\.255\.255\.255: \w+"):
            await asked(client, port)


async def test_a_name_is_looked_up_for_each_connection_and_what_it_leads_to_by_then_counts(names: Names) -> None:
    async with RemotingClient(clock=RealClock()) as client:
        async with server() as first:
            _, port = parse_address(first.address)
            names.hosts[NAME] = ["127.0.0.1"]
            assert await asked(client, port) == "127.0.0.1"
            assert await asked(client, port) == "127.0.0.1"
            assert names.asked[NAME] == 1
        names.hosts[NAME] = ["127.0.0.2"]
        await until(lambda: not client.connected(f"{NAME}:{port}"))
        async with server("127.0.0.2", port):
            assert await asked(client, port) == "127.0.0.2"
            assert names.asked[NAME] == 2


async def test_a_look_up_that_hangs_is_left_alone_and_asked_for_once_and_holds_up_no_other(
    names: Names,
) -> None:
    soon = RemotingClient(clock=RealClock(), options=RemotingOptions(connect_timeout=0.05))
    async with server() as there, soon, RemotingClient(clock=RealClock()) as client:
        _, port = parse_address(there.address)
        names.hosts[NAME] = ["127.0.0.1"]
        names.may_answer.clear()
        for _ in range(3):
            with pytest.raises(ConnectError, match=r"no answer within 0\.05 s"):
                await asked(soon, port)
        assert names.asked[NAME] == 1
        assert await asked(client, port, "localhost") == "127.0.0.1"
        names.may_answer.set()
        await until(lambda: not any(NAME in thread.name for thread in threading.enumerate()))
        assert await asked(client, port) == "127.0.0.1"


async def test_so_many_names_are_looked_up_at_once_and_no_more(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_names, "MOST_LOOK_UPS", 2)
    told = [f"{number}.test" for number in range(5)]
    names.hosts = {name: ["127.0.0.1"] for name in told}
    names.may_answer.clear()
    found: list[host_names.Address] = []

    async def look_up(name: str) -> None:
        found.extend(await host_names.addresses_of(name, 80))

    async with anyio.create_task_group() as tasks:
        for name in told:
            tasks.start_soon(look_up, name)
        await until(lambda: names.asked.total() == 2)
        await anyio.lowlevel.checkpoint()
        assert names.asked.total() == 2
        names.may_answer.set()
    assert found == [(socket.AF_INET, ("127.0.0.1", 80))] * 5
    assert names.asked.total() == 5


async def test_an_ip_address_needs_no_look_up(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert await host_names.addresses_of("127.0.0.1", 80) == [(socket.AF_INET, ("127.0.0.1", 80))]
    assert await host_names.addresses_of("::1", 80) == [(socket.AF_INET6, ("::1", 80, 0, 0))]
    (((_, (host, _, _, scope)),)) = await host_names.addresses_of("fe80::1%1", 80)
    assert (host, scope) == ("fe80::1", 1)


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a..b"])
async def test_a_name_that_leads_nowhere_is_an_error_each_time(name: str) -> None:
    for _ in range(2):
        with pytest.raises((OSError, UnicodeError)):
            await host_names.addresses_of(name)
