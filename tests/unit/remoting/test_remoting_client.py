"""The client and the server on the network in memory, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from rocketbox.errors import (
    ConnectError,
    ConnectionClosedError,
    HookFailedError,
    NotStartedError,
    RequestTimeoutError,
    RocketBoxError,
)
from rocketbox.protocol.codes import SerializeType
from rocketbox.protocol.command import RemotingCommand, encode_ext_fields
from rocketbox.protocol.prepared_sends import SendRequest, SendTemplate
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection, Opened, RemotingOptions, RequestHandler
from rocketbox.remoting.network import Listener, MemoryNetwork, format_address, parse_address
from rocketbox.remoting.server import ListenError, RemotingServer
from rocketbox.tasks import Supervisor
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

COARSE = RemotingOptions(sweep_interval=0.5)  # fewer turns of the virtual clock


def echo(_: Connection, request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(body=request.body)


def silent(_: Connection, __: RemotingCommand) -> None:
    return None


def hello(body: bytes = b"hi") -> RemotingCommand:
    return RemotingCommand.request(34, body=body)


class CountingNetwork(MemoryNetwork):
    """Counts connects; with a gate they take until it opens."""

    def __init__(self) -> None:
        super().__init__()
        self.connects = 0
        self.gate: anyio.Event | None = None

    async def connect(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Connection:
        self.connects += 1
        if self.gate is not None:
            await self.gate.wait()
        return await super().connect(host, port, opened, tasks)


class World:
    """A clock, a network, and servers on it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.network = CountingNetwork()
        self.handlers: dict[int, RequestHandler] = {34: echo, 35: silent}

    def server(self, port: int = 10911, **options: object) -> RemotingServer:
        options.setdefault("options", COARSE)
        return RemotingServer(
            self.handlers,
            host="127.0.0.1",
            port=port,
            clock=self.clock,
            network=self.network,
            **options,  # type: ignore[arg-type]  # passed on as they are
        )

    @asynccontextmanager
    async def client(self, **options: object) -> AsyncIterator[RemotingClient]:
        options.setdefault("options", COARSE)
        client = RemotingClient(clock=self.clock, network=self.network, **options)  # type: ignore[arg-type]  # likewise
        async with client:
            yield client
        assert not client._connections
        assert not client._others
        assert not client._connecting


async def outcome(call: Callable[[], object], results: list[object]) -> None:
    try:
        results.append(await call())  # type: ignore[misc]  # a coroutine function
    except RocketBoxError as error:
        results.append(error)


ADDRESS = "127.0.0.1:10911"


async def test_callers_share_one_connection_and_one_connect() -> None:
    world = World()
    async with world.server() as server, world.client() as client:
        bodies: list[bytes] = []

        async def call(body: bytes) -> None:
            bodies.append((await client.request(ADDRESS, hello(body), timeout=3)).body)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(call, b"%d" % number)
        assert sorted(bodies, key=int) == [b"%d" % number for number in range(20)]
        await client.request(ADDRESS, hello(), timeout=3)
        assert world.network.connects == 1
        assert len(server.connections) == 1


async def test_a_cancelled_caller_does_not_take_the_connect_with_it() -> None:
    world = World()
    world.network.gate = anyio.Event()
    async with world.server(), world.client() as client, anyio.create_task_group() as others:
        results: list[object] = []
        async with anyio.create_task_group() as first:
            first.start_soon(outcome, lambda: client.request(ADDRESS, hello(), timeout=3), results)
            await settle()
            others.start_soon(outcome, lambda: client.request(ADDRESS, hello(b"second"), timeout=3), results)
            await settle()
            first.cancel_scope.cancel()
        world.network.gate.set()
        await settle()
        assert [response.body for response in results if isinstance(response, RemotingCommand)] == [b"second"]
        assert world.network.connects == 1


async def test_nobody_listening_is_a_connect_error() -> None:
    world = World()
    async with world.client() as client:
        with pytest.raises(ConnectError, match=r"127.0.0.1:10911: Connection refused"):
            await client.request(ADDRESS, hello(), timeout=3)
        with pytest.raises(ConnectError, match="not host:port"):
            await client.request("nowhere", hello(), timeout=3)


async def test_a_connect_takes_at_most_3_s() -> None:
    world = World()
    world.network.gate = anyio.Event()
    async with world.server(), world.client() as client, anyio.create_task_group() as group:
        results: list[object] = []
        group.start_soon(outcome, lambda: client.request(ADDRESS, hello(), timeout=10), results)
        await world.clock.advance(2.9)
        assert results == []
        await world.clock.advance(0.2)
        (error,) = results
        assert isinstance(error, ConnectError)
        assert "no answer within 3 s" in str(error)


async def test_the_connect_is_part_of_the_requests_time() -> None:
    world = World()
    world.network.gate = anyio.Event()
    async with world.server(), world.client() as client, anyio.create_task_group() as group:
        early: list[object] = []
        late: list[object] = []
        group.start_soon(outcome, lambda: client.request(ADDRESS, hello(), timeout=1), early)
        group.start_soon(outcome, lambda: client.request(ADDRESS, RemotingCommand.request(35), timeout=2.5), late)
        await world.clock.advance(1.5)
        assert isinstance(early[0], ConnectError)
        world.network.gate.set()
        await world.clock.advance(0.9)
        assert late == []
        await world.clock.advance(0.6)
        (error,) = late
        assert isinstance(error, RequestTimeoutError)
        assert error.timeout == pytest.approx(1.0)


async def test_a_lost_connection_is_made_anew_by_the_next_request() -> None:
    world = World()
    async with world.server() as server, world.client() as client:
        seen: list[str] = []
        client.on_connected.append(lambda address: seen.append(f"connected {address}"))
        client.on_disconnected.append(lambda address: seen.append(f"lost {address}"))
        await client.request(ADDRESS, hello(), timeout=3)
        (connection,) = server.connections
        connection.close()
        await settle()
        assert not client.connected(ADDRESS)
        await world.clock.advance(10)
        assert world.network.connects == 1, "nobody needs it, so nobody connects"
        await client.request(ADDRESS, hello(), timeout=3)
        client.close_connection(ADDRESS)
        assert seen == [f"connected {ADDRESS}", f"lost {ADDRESS}"] * 2


async def test_pending_requests_fail_as_soon_as_the_server_is_gone() -> None:
    world = World()
    async with world.client() as client, anyio.create_task_group() as group:
        results: list[object] = []
        async with world.server():
            group.start_soon(outcome, lambda: client.request(ADDRESS, RemotingCommand.request(35), timeout=60), results)
            await settle()
        await settle()
        assert isinstance(results[0], ConnectionClosedError)


async def test_a_callback_that_fails_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    async with world.server(), world.client() as client:

        def fail(address: str) -> None:
            raise KeyError(address)

        client.on_connected.append(fail)
        assert (await client.request(ADDRESS, hello(), timeout=3)).body == b"hi"
    assert len(caplog.records) == 1


async def test_leaving_the_client_fails_what_is_pending() -> None:
    world = World()
    results: list[object] = []
    async with world.server() as server, anyio.create_task_group() as group:
        async with world.client() as client:
            group.start_soon(outcome, lambda: client.request(ADDRESS, RemotingCommand.request(35), timeout=60), results)
            await settle()
            world.network.gate = anyio.Event()
            group.start_soon(outcome, lambda: client.request("other:1", hello(), timeout=60), results)
            await settle()
        await settle()
        assert {type(result) for result in results} == {ConnectionClosedError, ConnectError}
        assert not server.connections
    with pytest.raises(NotStartedError):
        await client.request(ADDRESS, hello(), timeout=1)


async def test_what_was_written_before_the_client_was_left_still_arrives() -> None:
    world = World()
    arrived: list[bytes] = []
    world.handlers[40] = lambda _, request: arrived.append(request.body)
    async with world.server():
        async with world.client() as client:
            await client.send_oneway(ADDRESS, RemotingCommand.request(40, body=b"farewell"), timeout=3)
        await settle()
        assert arrived == [b"farewell"]


@pytest.mark.parametrize("by_frame", [False, True])
async def test_a_server_that_goes_away_is_asked_once_more_on_a_new_connection(by_frame: bool) -> None:
    world = World()
    asked: list[tuple[str, int]] = []

    def go_away_once(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        asked.append((connection.remote_address, request.opaque))
        return RemotingCommand.response(1500) if len(asked) == 1 else RemotingCommand.response(body=b"welcome")

    world.handlers[34] = go_away_once
    async with world.server() as server, world.client() as client, anyio.create_task_group() as group:
        pending: list[object] = []
        group.start_soon(outcome, lambda: client.request(ADDRESS, RemotingCommand.request(35), timeout=5), pending)
        await settle()
        if by_frame:
            response = await client.request_prepared(ADDRESS, prepared(), timeout=3)
        else:
            response = await client.request(ADDRESS, hello(), timeout=3)
        assert response.body == b"welcome"
        (first, first_opaque), (second, second_opaque) = asked
        assert first != second
        assert first_opaque != second_opaque
        await world.clock.advance(2)
        assert len(server.connections) == 2, "the old one is kept for what it still awaits"
        assert pending == []
        await world.clock.advance(4)
        assert isinstance(pending[0], RequestTimeoutError)
        assert len(server.connections) == 1


async def test_a_server_that_goes_away_twice_is_a_connect_error() -> None:
    world = World()
    world.handlers[34] = lambda *_: RemotingCommand.response(1500, "bye")
    async with world.server(), world.client() as client:
        with pytest.raises(ConnectError, match="bye"):
            await client.request(ADDRESS, hello(), timeout=3)
        assert world.network.connects == 2


def prepared() -> SendRequest:
    """A request whose frame is written without a command."""
    request = SendRequest("T", b"hi", b"", "ID", 1_700_000_000_000, code=34)
    request.template = SendTemplate("PG", "T", 0, "broker-a")
    return request


class Signing:
    """A hook that adds a field, and keeps what it saw."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self.seen.append(f"{self.name} before {command.code}")
        command.ext_fields = {**command.ext_fields, self.name: address}

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        self.seen.append(f"{self.name} before {request.code}")
        return encode_ext_fields({self.name: address})

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        self.seen.append(f"{self.name} after {code}: {response.code}")


async def test_hooks_see_and_change_every_request() -> None:
    world = World()
    got: list[dict[str, str]] = []

    def keep(_: Connection, request: RemotingCommand) -> RemotingCommand:
        got.append(dict(request.ext_fields))
        return RemotingCommand.response(17)

    world.handlers[34] = keep
    seen: list[str] = []
    async with world.server(), world.client(hooks=[Signing("one", seen), Signing("two", seen)]) as client:
        await client.request(ADDRESS, hello(), timeout=3)
        await client.request_prepared(ADDRESS, prepared(), timeout=3)
        await client.send_oneway(ADDRESS, hello(), timeout=3)
        await settle()
    both = {"one": ADDRESS, "two": ADDRESS}
    assert [{name: fields[name] for name in both} for fields in got] == [both, both, both]
    assert [fields.get("b") for fields in got] == [None, "T", None]
    round_trip = ["one before 34", "two before 34", "one after 34: 17", "two after 34: 17"]
    assert seen == round_trip * 2 + ["one before 34", "two before 34"]


class Faulty(Signing):
    """A hook that fails in one place."""

    def __init__(self, place: str, error: BaseException) -> None:
        super().__init__("faulty", [])
        self.place = place
        self.error = error

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self.fail("before")

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        self.fail("before")
        return b""

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        self.fail("after")

    def fail(self, place: str) -> None:
        if place == self.place:
            raise self.error


HOOK_ERRORS = [KeyError("token"), asyncio.CancelledError("token"), SystemExit("token")]


@pytest.mark.parametrize("error", HOOK_ERRORS)
async def test_hook_that_fails_before_a_request_is_named_and_nothing_is_sent(error: BaseException) -> None:
    world = World()
    world.handlers[34] = lambda _, request: RemotingCommand.response(17)
    async with world.server(), world.client(hooks=[Faulty("before", error)]) as client:
        for ask in (
            lambda: client.request(ADDRESS, hello(), timeout=3),
            lambda: client.request_prepared(ADDRESS, prepared(), timeout=3),
            lambda: client.send_oneway(ADDRESS, hello(), timeout=3),
            lambda: client.send_prepared_oneway(ADDRESS, prepared(), timeout=3),
        ):
            with pytest.raises(HookFailedError, match=r"Faulty.*token.*nothing was sent") as caught:
                await ask()
            assert caught.value.__cause__ is error
        assert not client.connected(ADDRESS)


@pytest.mark.parametrize("error", HOOK_ERRORS)
async def test_hook_that_fails_behind_an_answer_takes_nothing_from_it(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.handlers[34] = lambda _, request: RemotingCommand.response(17)
    seen: list[str] = []
    async with world.server(), world.client(hooks=[Faulty("after", error), Signing("two", seen)]) as client:
        for _ in range(5):
            assert (await client.request(ADDRESS, hello(), timeout=3)).code == 17
            assert (await client.request_prepared(ADDRESS, prepared(), timeout=3)).code == 17
    assert seen.count("two after 34: 17") == 10
    assert len([record for record in caplog.records if "Faulty" in record.getMessage()]) == 1


async def test_headers_are_json_by_setting_prepared_frames_too() -> None:
    world = World()
    kinds: list[SerializeType | None] = []

    def keep(_: Connection, request: RemotingCommand) -> RemotingCommand:
        kinds.append(request.serialization)
        return RemotingCommand.response()

    world.handlers[34] = keep
    options = RemotingOptions(serialization=SerializeType.JSON)
    async with world.server(), world.client(options=options) as client:
        await client.request(ADDRESS, hello(), timeout=3)
        await client.request_prepared(ADDRESS, prepared(), timeout=3)
        await client.send_oneway(ADDRESS, hello(), timeout=3)
        await settle()
    assert kinds == [SerializeType.JSON] * 3


async def test_a_server_asks_its_client_and_is_answered() -> None:
    world = World()

    async def info(_: Connection, request: RemotingCommand) -> RemotingCommand:
        await world.clock.sleep(1)
        return RemotingCommand.response(body=b"info on " + request.body)

    async with world.server() as server, world.client(handlers={307: info}) as client:
        notices: list[bytes] = []
        client.register_handler(40, lambda _, request: notices.append(request.body))
        await client.request(ADDRESS, hello(), timeout=3)
        (connection,) = server.connections
        results: list[object] = []
        async with anyio.create_task_group() as group:
            group.start_soon(
                outcome, lambda: connection.request(RemotingCommand.request(307, body=b"group"), timeout=10), results
            )
            connection.send_oneway(RemotingCommand.request(40, body=b"changed"))
            unknown = await connection.request(RemotingCommand.request(9999), timeout=10)
            await world.clock.advance(1.5)
        assert unknown.code == 3
        assert notices == [b"changed"]
        (response,) = results
        assert isinstance(response, RemotingCommand)
        assert response.body == b"info on group"


async def test_both_ends_close_an_idle_connection_after_120_s() -> None:
    for idle_client in (True, False):
        world = World()
        patient = RemotingOptions(sweep_interval=0.5, idle_timeout=100_000)
        closed: list[Connection] = []
        async with (
            world.server(options=patient if idle_client else COARSE, on_close=closed.append),
            world.client(options=COARSE if idle_client else patient) as client,
        ):
            await client.request(ADDRESS, hello(), timeout=3)
            await world.clock.advance(119)
            assert closed == []
            await world.clock.advance(2)
            assert len(closed) == 1
            assert not client.connected(ADDRESS)


async def test_a_server_tells_of_every_connection_once() -> None:
    world = World()
    opened: list[Connection] = []
    closed: list[Connection] = []
    async with world.server(on_open=opened.append, on_close=closed.append):
        for _ in range(3):
            async with world.client() as client:
                await client.request(ADDRESS, hello(), timeout=3)
        async with world.client() as client:
            await client.request(ADDRESS, hello(), timeout=3)
            assert len(opened) == 4
            assert len(closed) == 3
    assert closed == opened
    assert len(set(map(id, closed))) == 4


async def test_a_stopped_server_has_cancelled_its_handlers_and_serves_no_more(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    ended: list[str] = []

    async def forever(_: Connection, __: RemotingCommand) -> RemotingCommand:
        try:
            await anyio.Event().wait()
        finally:
            ended.append("cancelled")
        return RemotingCommand.response()

    world.handlers[36] = forever
    results: list[object] = []
    async with world.client() as client, anyio.create_task_group() as group:
        async with world.server(options=RemotingOptions(max_running_handlers=2)) as server:
            for _ in range(4):
                group.start_soon(
                    outcome, lambda: client.request(ADDRESS, RemotingCommand.request(36), timeout=60), results
                )
            await settle()
        assert ended == ["cancelled"] * 2
        assert not server.connections
        await settle()
        assert [type(result) for result in results] == [ConnectionClosedError] * 4
        with pytest.raises(ConnectError):
            await client.request(ADDRESS, hello(), timeout=3)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_port_in_use_is_named() -> None:
    world = World()
    async with world.server():
        with pytest.raises(ListenError, match=r"cannot listen on 127.0.0.1:10911: Address already in use") as caught:
            async with world.server():
                raise AssertionError("entered")
        assert caught.value.address == ADDRESS
    async with world.server():  # free again
        pass


async def test_port_0_takes_a_free_port() -> None:
    world = World()
    async with world.server(0) as one, world.server(0) as two, world.client() as client:
        assert one.address != two.address
        assert (await client.request(two.address, hello(), timeout=3)).body == b"hi"


async def test_a_closed_listener_is_no_longer_connected_to() -> None:
    network = MemoryNetwork()
    clock = VirtualClock()
    async with Supervisor("test", clock) as tasks:

        def opened(*_: object) -> Connection:
            raise AssertionError("nobody connects")

        listener: Listener = await network.listen("host", 0, opened, tasks)
        assert listener.address == ("host", MemoryNetwork.FIRST_FREE_PORT)
        await listener.aclose()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(*listener.address, opened, tasks)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("localhost:9876", ("localhost", 9876)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
        ("[::1]:9876", ("::1", 9876)),
        ("::1:9876", ("::1", 9876)),
    ],
)
def test_addresses_are_parsed(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "host:70000", "host:-1", "host:\u0661"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_address(text)


def test_names_of_sockets_become_addresses() -> None:
    assert format_address(("127.0.0.1", 1)) == "127.0.0.1:1"
    assert format_address(("fe80::1%eth0", 1, 0, 2)) == "[fe80::1]:1"
    assert format_address(None) == "unknown:0"
