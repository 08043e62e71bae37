"""Remoting over real sockets: both drivers, and peers that misbehave."""

from __future__ import annotations

import gc
import itertools
import select
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from operator import contains
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import pytest

from rocketbox.clock import RealClock
from rocketbox.errors import (
    ConnectError,
    ConnectionClosedError,
    RequestTimeoutError,
    RocketBoxError,
    TooManyRequestsError,
)
from rocketbox.protocol.command import RemotingCommand, encode_command
from rocketbox.protocol.framing import FrameReader
from rocketbox.remoting.asyncio_driver import AsyncioDriver
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection, Driver, RemotingOptions, RequestHandler, Role
from rocketbox.remoting.network import TcpNetwork, parse_address
from rocketbox.remoting.server import ListenError, RemotingServer
from rocketbox.remoting.sweep_times import SweepTimes
from rocketbox.remoting.tls import ServerTlsOptions, TlsMode, TlsOptions
from rocketbox.remoting.tls_files import ClientTls, ServerTls
from rocketbox.tasks import Supervisor
from tests.support.certificates import authority, certificate, write
from tests.support.loops import UVLOOP, needs_uvloop
from tests.support.threads import no_thread_left
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

ECHO, HOLD, SLOW, LARGE, NOTICE, ASK = 34, 35, 36, 37, 40, 307


DRIVERS = ["asyncio", pytest.param("uvloop", marks=needs_uvloop), "asyncio on streams", "trio"]
by_hand = pytest.mark.parametrize("driver", DRIVERS)  # a server that is made by hand, and speaks no TLS
WITH_TLS = ["asyncio, tls", pytest.param("uvloop, tls", marks=needs_uvloop), "asyncio, tls on streams", "trio, tls"]


@pytest.fixture(params=[*DRIVERS, *WITH_TLS])
def driver(request: pytest.FixtureRequest) -> str:
    """Under asyncio both drivers, that of transports also on uvloop's; under trio the only one there is."""
    name: str = request.param
    return name


@pytest.fixture
def anyio_backend(driver: str) -> object:
    name = driver.partition(" ")[0].strip(",")
    return UVLOOP if name == "uvloop" else name


@pytest.fixture
def network(driver: str, tmp_path: Path) -> TcpNetwork:
    """With TLS clients speak it; peers made by hand do not, which a permissive server allows."""
    streams = driver.endswith("streams")
    if "tls" not in driver:
        return TcpNetwork(streams=streams)
    (ca, _), (cert, key) = write(tmp_path, "ca", authority()), write(tmp_path, "server", certificate())
    accepted = ServerTls(ServerTlsOptions(mode=TlsMode.PERMISSIVE, cert_path=cert, key_path=key))
    return TcpNetwork(streams=streams, tls=ClientTls(TlsOptions(ca_file=ca)), accepted_tls=accepted)


class Desk:
    """Handlers of all kinds, and what they were asked."""

    def __init__(self) -> None:
        self.held: list[tuple[Connection, RemotingCommand]] = []
        self.notices: list[bytes] = []
        self.opened: list[Connection] = []
        self.closed: list[Connection] = []
        self.handlers: dict[int, RequestHandler] = {
            ECHO: lambda _, request: RemotingCommand.response(body=request.body),
            HOLD: self.hold,
            SLOW: self.slow,
            NOTICE: self.notice,
        }

    def hold(self, connection: Connection, request: RemotingCommand) -> None:
        self.held.append((connection, request))

    async def slow(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        await anyio.sleep(0.01)
        return RemotingCommand.response(body=request.body)

    def notice(self, _: Connection, request: RemotingCommand) -> None:
        self.notices.append(request.body)

    @asynccontextmanager
    async def serve(
        self, network: TcpNetwork, options: RemotingOptions | None = None, host: str = "127.0.0.1"
    ) -> AsyncIterator[RemotingServer]:
        with anyio.fail_after(PATIENCE):
            async with RemotingServer(
                self.handlers,
                host=host,
                port=0,
                clock=RealClock(),
                network=network,
                options=options,
                on_open=self.opened.append,
                on_close=self.closed.append,
            ) as server:
                yield server
        assert self.closed == self.opened or set(map(id, self.closed)) == set(map(id, self.opened))


def client_of(network: TcpNetwork, **options: object) -> RemotingClient:
    return RemotingClient(clock=RealClock(), network=network, **options)  # type: ignore[arg-type]  # passed on


def ask(code: int, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(code, {"k": "v"}, body)


async def raw(server: RemotingServer) -> anyio.abc.SocketStream:
    return await anyio.connect_tcp(*parse_address(server.address))


async def is_answered(server: RemotingServer, network: TcpNetwork) -> None:
    async with client_of(network) as client:
        assert (await client.request(server.address, ask(ECHO, b"still here"), timeout=PATIENCE)).body == b"still here"


async def closed_by_peer(stream: anyio.abc.SocketStream) -> bytes:
    """What still comes until the peer closes."""
    data = b""
    while True:
        try:
            data += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return data


async def test_a_thousand_requests_at_once_are_answered(network: TcpNetwork) -> None:
    desk = Desk()
    async with desk.serve(network) as server, client_of(network) as client:
        bodies: set[bytes] = set()

        async def one(number: int) -> None:
            body = b"%d" % number
            response = await client.request(
                server.address, ask(SLOW if number % 10 == 0 else ECHO, body), timeout=PATIENCE
            )
            assert response.body == body
            bodies.add(response.body)

        async with anyio.create_task_group() as group:
            for number in range(1000):
                group.start_soon(one, number)
        assert len(bodies) == 1000
        (connection,) = server.connections
        assert client._connections[server.address].requests_in_flight == 0
        assert connection.remote_address.startswith("127.0.0.1:")


async def test_answers_come_in_any_order(network: TcpNetwork) -> None:
    desk = Desk()
    async with desk.serve(network) as server, client_of(network) as client:
        order: list[bytes] = []

        async def one(body: bytes) -> None:
            order.append((await client.request(server.address, ask(HOLD, body), timeout=PATIENCE)).body)

        async with anyio.create_task_group() as group:
            for body in (b"a", b"b", b"c"):
                group.start_soon(one, body)
            await until(lambda: len(desk.held) == 3)
            for connection, request in sorted(desk.held, key=lambda entry: entry[1].body, reverse=True):
                connection.reply(request, RemotingCommand.response(body=request.body))
                await until(partial(contains, order, request.body))
        assert order == [b"c", b"b", b"a"]


async def test_oneway_requests_arrive_in_order_and_are_not_answered(network: TcpNetwork) -> None:
    desk = Desk()
    async with desk.serve(network) as server:
        async with client_of(network) as client:
            for number in range(500):
                await client.send_oneway(server.address, ask(NOTICE, b"%d" % number), timeout=PATIENCE)
            assert (await client.request(server.address, ask(ECHO, b"last"), timeout=PATIENCE)).body == b"last"
        assert desk.notices == [b"%d" % number for number in range(500)]


async def test_large_bodies_pass_in_both_directions(network: TcpNetwork) -> None:
    desk = Desk()
    body = bytes(range(256)) * 16_384  # 4 MiB
    async with desk.serve(network) as server, client_of(network) as client:

        async def one() -> None:
            assert (await client.request(server.address, ask(ECHO, body), timeout=PATIENCE)).body == body

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(one)


async def test_the_server_asks_its_client(network: TcpNetwork) -> None:
    async def info(_: Connection, request: RemotingCommand) -> RemotingCommand:
        await anyio.lowlevel.checkpoint()
        return RemotingCommand.response(body=request.body[::-1])

    desk = Desk()
    async with desk.serve(network) as server, client_of(network, handlers={ASK: info}) as client:
        await client.request(server.address, ask(ECHO), timeout=PATIENCE)
        (connection,) = server.connections
        assert (await connection.request(ask(ASK, b"abc"), timeout=PATIENCE)).body == b"cba"
        assert (await connection.request(ask(9999), timeout=PATIENCE)).code == 3


async def test_a_timeout_comes_in_time_and_the_connection_lives_on(network: TcpNetwork) -> None:
    desk = Desk()
    async with desk.serve(network) as server, client_of(network) as client:
        await client.request(server.address, ask(ECHO), timeout=PATIENCE)
        clock = RealClock()
        started = clock.monotonic()
        with pytest.raises(RequestTimeoutError):
            await client.request(server.address, ask(HOLD), timeout=0.3)
        assert clock.monotonic() - started >= 0.3
        ((connection, request),) = desk.held
        connection.reply(request, RemotingCommand.response(body=b"late"))
        assert (await client.request(server.address, ask(ECHO, b"x"), timeout=PATIENCE)).body == b"x"
        assert client._connections[server.address].requests_in_flight == 0
        assert len(desk.opened) == 1


async def test_cancelled_requests_leave_nothing(network: TcpNetwork) -> None:
    desk = Desk()
    async with desk.serve(network) as server, client_of(network) as client:
        await client.request(server.address, ask(ECHO), timeout=PATIENCE)
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(lambda: client.request(server.address, ask(HOLD), timeout=60))
            await until(lambda: len(desk.held) == 100)
            group.cancel_scope.cancel()
        assert client._connections[server.address].requests_in_flight == 0
        assert (await client.request(server.address, ask(ECHO, b"x"), timeout=PATIENCE)).body == b"x"


async def test_loss_fails_pending_requests_at_once_and_the_next_one_reconnects(network: TcpNetwork) -> None:
    desk = Desk()
    async with desk.serve(network) as server, client_of(network) as client:
        errors: list[RocketBoxError] = []

        async def one() -> None:
            try:
                await client.request(server.address, ask(HOLD), timeout=60)
            except RocketBoxError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(one)
            await until(lambda: len(desk.held) == 50)
            desk.opened[0].abort()
        assert [type(error) for error in errors] == [ConnectionClosedError] * 50
        assert (await client.request(server.address, ask(ECHO, b"again"), timeout=PATIENCE)).body == b"again"
        assert len(desk.opened) == 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40,  # a TLS hello
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\x00\x00\x00",
        b"\x80\x00\x00\x00",
        struct.pack(">II", 16_777_213, 20),  # one byte too large: refused before the rest arrives
        struct.pack(">II", 10_000_000, 5_000_000),  # a header too large
        struct.pack(">II", 10, 7) + b"nojson",
        encode_command(ask(ECHO), 1)[:-1] + b"\xff" * 60,
    ],
    ids=["tls", "http", "zero", "negative", "oversize frame", "oversize header", "header past frame", "rubbish behind"],
)
async def test_garbage_closes_that_connection_only(
    network: TcpNetwork, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    async with desk.serve(network, RemotingOptions(header_timeout=0.5)) as server, client_of(network) as client:
        await client.request(server.address, ask(ECHO), timeout=PATIENCE)
        stream = await raw(server)
        async with stream:
            await stream.send(garbage)
            await closed_by_peer(stream)
        assert (await client.request(server.address, ask(ECHO, b"x"), timeout=PATIENCE)).body == b"x"
        assert len(desk.opened) == 2
        lines = [record for record in caplog.records if record.name.startswith("rocketbox")]
        assert len(lines) == 1
        assert lines[0].exc_info is None
        assert "is closed" in lines[0].message


@by_hand
async def test_a_client_survives_a_server_that_talks_garbage(network: TcpNetwork) -> None:
    async def babble(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group, client_of(network) as client:
        group.start_soon(listener.serve, babble)
        with anyio.fail_after(PATIENCE), pytest.raises(ConnectionClosedError, match="protocol error"):
            await client.request(f"127.0.0.1:{port}", ask(ECHO), timeout=PATIENCE)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("size", [1, 5, 30])
async def test_half_a_frame_and_a_close_disturbs_nobody(network: TcpNetwork, size: int) -> None:
    desk = Desk()
    async with desk.serve(network) as server:
        stream = await raw(server)
        await stream.send(encode_command(ask(ECHO, b"x" * 100), 1)[:size])
        await until(lambda: len(desk.opened) == 1)
        await stream.aclose()
        await until(lambda: len(desk.closed) == 1)
        await is_answered(server, network)


async def test_a_frame_in_single_bytes_is_answered(network: TcpNetwork) -> None:
    desk = Desk()
    async with desk.serve(network) as server, await raw(server) as stream:
        for byte in encode_command(ask(ECHO, b"slowly"), 77):
            await stream.send(bytes([byte]))
        reader = FrameReader()
        responses: list[RemotingCommand] = []
        while not responses:
            responses = reader.feed(await stream.receive())
        assert (responses[0].opaque, responses[0].body) == (77, b"slowly")


async def test_a_peer_that_does_not_read_is_no_longer_read_either(network: TcpNetwork) -> None:
    desk = Desk()
    body = b"x" * 100_000
    taken = 0

    def large(_: Connection, __: RemotingCommand) -> RemotingCommand:
        nonlocal taken
        taken += 1
        return RemotingCommand.response(body=body)

    desk.handlers[LARGE] = large
    async with desk.serve(network, RemotingOptions(max_unwritten_bytes=200_000)) as server, await raw(server) as stream:
        count = 1000
        await stream.send(b"".join(encode_command(ask(LARGE), opaque) for opaque in range(count)))
        before = -1
        while before != taken or not taken:  # 100 MB of answers stay unmade until they are read
            before = taken
            await anyio.sleep(0.2)
        assert 0 < taken < count // 2
        assert "not reading" in repr(desk.opened[0])
        await is_answered(server, network)
        reader = FrameReader()
        opaques: list[int] = []
        while len(opaques) < count:
            opaques += [response.opaque for response in reader.feed(await stream.receive())]
        assert opaques == list(range(count))
        assert taken == count


@by_hand
async def test_a_server_that_does_not_read_holds_the_callers_back(network: TcpNetwork) -> None:
    written = 0
    with socket.socket() as deaf:  # the system accepts in its name; nobody ever reads
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with anyio.fail_after(PATIENCE):
            async with client_of(network, options=RemotingOptions(max_unwritten_bytes=100_000)) as client:

                async def send_many() -> None:
                    nonlocal written
                    while True:
                        await client.send_oneway(address, ask(NOTICE, b"x" * 50_000), timeout=60)
                        written += 1

                async with anyio.create_task_group() as senders:
                    senders.start_soon(send_many)
                    before = -1
                    while before != written or not written:
                        before = written
                        await anyio.sleep(0.2)
                    senders.cancel_scope.cancel()
                assert 0 < written < 1000
                assert "peer takes no bytes" in repr(client)
            # and leaving the client did not hang on what nobody will read


@by_hand
async def test_callers_wait_for_a_slow_server_when_the_bytes_that_were_allowed_wait_and_not_before(
    network: TcpNetwork, driver: str
) -> None:
    """A transport of asyncio's calls itself full at 64 KiB, whatever was allowed."""
    allowed, frame = 1_000_000, 20_000
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 50_000)
        slow.bind(("127.0.0.1", 0))
        slow.listen()
        address = f"127.0.0.1:{slow.getsockname()[1]}"
        with anyio.fail_after(PATIENCE):
            async with client_of(network, options=RemotingOptions(max_unwritten_bytes=allowed)) as client:
                written = 0
                with suppress(TooManyRequestsError):
                    while written < 100_000_000:
                        await client.send_oneway(address, ask(NOTICE, b"x" * frame), timeout=1.0)
                        written += frame
                peer, _ = await anyio.to_thread.run_sync(slow.accept)
                with peer:
                    peer.setblocking(False)
                    in_the_system = read_until_none_comes(peer)
                waiting = written - in_the_system
                assert waiting < 2 * allowed + 10 * frame
                if driver in {"asyncio", "uvloop"}:  # a stream keeps nothing itself
                    assert waiting > allowed // 2


def read_until_none_comes(peer: socket.socket) -> int:
    """The bytes that had left the other side, whose loop does not run meanwhile."""
    count = 0
    while True:
        try:
            count += len(peer.recv(1_000_000))
        except BlockingIOError:
            if not select.select([peer], [], [], 0.05)[0]:
                return count


async def test_idle_connections_are_closed(network: TcpNetwork) -> None:
    desk = Desk()
    options = RemotingOptions(idle_timeout=0.3, sweep_interval=0.05)
    async with desk.serve(network, options) as server, client_of(network) as client:
        await client.request(server.address, ask(ECHO), timeout=PATIENCE)
        await until(lambda: not client.connected(server.address))
        assert len(desk.closed) == 1
        assert (await client.request(server.address, ask(ECHO, b"x"), timeout=PATIENCE)).body == b"x"


async def test_a_port_in_use_is_named_with_its_reason(network: TcpNetwork) -> None:
    async with Desk().serve(network) as server:
        _, port = parse_address(server.address)
        second = RemotingServer({}, host="127.0.0.1", port=port, clock=RealClock(), network=network)
        with pytest.raises(ListenError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*in use"):
            async with second:
                raise AssertionError("entered")


async def test_a_host_that_is_not_ours_cannot_be_listened_on(network: TcpNetwork) -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:0"):
        async with RemotingServer({}, host="192.0.2.1", port=0, clock=RealClock(), network=network):
            raise AssertionError("entered")


async def test_a_refused_connect_says_so(network: TcpNetwork) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    async with client_of(network) as client:
        with pytest.raises(ConnectError, match=r"(?i)refused|failed"):
            await client.request(f"127.0.0.1:{port}", ask(ECHO), timeout=PATIENCE)


async def test_ipv6_works_where_the_machine_has_it(network: TcpNetwork) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    async with Desk().serve(network, host="::1") as server, client_of(network) as client:
        assert server.address.startswith("[::1]:")
        assert (await client.request(server.address, ask(ECHO, b"six"), timeout=PATIENCE)).body == b"six"


async def test_a_name_of_this_machine_is_listened_on(network: TcpNetwork) -> None:
    async with Desk().serve(network, host="localhost") as server, client_of(network) as client:
        _, port = parse_address(server.address)
        assert (await client.request(f"localhost:{port}", ask(ECHO, b"me"), timeout=PATIENCE)).body == b"me"


async def test_a_connection_by_name_needs_no_thread_that_who_waits_for_it_may_hold(network: TcpNetwork) -> None:
    async with Desk().serve(network, host="localhost") as server, client_of(network) as client, no_thread_left():
        _, port = parse_address(server.address)
        assert (await client.request(f"localhost:{port}", ask(ECHO, b"me"), timeout=5)).body == b"me"


@pytest.mark.parametrize("driver", ["asyncio", pytest.param("uvloop", marks=needs_uvloop)])
async def test_a_server_sends_small_packets_without_waiting_for_acknowledgements(network: TcpNetwork) -> None:
    desk = Desk()
    async with desk.serve(network) as server, client_of(network) as client:
        await client.request(server.address, ask(ECHO), timeout=PATIENCE)
        (accepted,) = desk.opened
        driver = accepted._driver
        assert isinstance(driver, AsyncioDriver)
        end: socket.socket = driver._transport.get_extra_info("socket")
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def test_a_stopped_server_leaves_no_socket_behind(network: TcpNetwork) -> None:
    desk = Desk()
    async with client_of(network) as client:
        async with desk.serve(network) as server:
            await client.request(server.address, ask(ECHO), timeout=PATIENCE)
            connection = desk.opened[0]
        assert connection.gone
        await until(lambda: not client.connected(server.address))
        with pytest.raises(ConnectError):
            await client.request(server.address, ask(ECHO), timeout=PATIENCE)
    gc.collect()  # a socket left open would warn here, and warnings are errors


@contextmanager
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_closed_connections_wait_for_no_collection_of_garbage(network: TcpNetwork) -> None:
    alive: list[weakref.ref[Connection]] = []
    desk = Desk()
    with anyio.fail_after(PATIENCE), without_collections():
        async with RemotingServer(
            desk.handlers, host="127.0.0.1", port=0, clock=RealClock(), network=network,
            on_open=lambda connection: alive.append(weakref.ref(connection)),
        ) as server:  # fmt: skip
            for closing in range(3):
                async with client_of(network) as client:
                    await client.request(server.address, ask(ECHO), timeout=PATIENCE)
                    await client.send_oneway(server.address, ask(NOTICE), timeout=PATIENCE)
                    if closing == 1:  # while a handler runs
                        await client.send_oneway(server.address, ask(SLOW), timeout=PATIENCE)
                if closing == 2:
                    async with await raw(server) as stream:
                        await stream.send(b"\0\0")  # half a frame
            await until(lambda: len(alive) == 4)
            await until(lambda: [each() for each in alive if each() is not None] == [])


async def test_a_cancelled_stop_still_closes_everything(network: TcpNetwork) -> None:
    desk = Desk()
    with anyio.CancelScope() as scope:
        async with desk.serve(network) as server, client_of(network) as client:
            await client.request(server.address, ask(ECHO), timeout=PATIENCE)
            scope.cancel()
            await anyio.sleep(1)
    assert scope.cancelled_caught
    assert desk.opened[0].gone
    gc.collect()


async def test_a_connect_that_is_given_up_as_it_succeeds_leaves_no_connection(network: TcpNetwork) -> None:
    """A loop may close the socket of a cancelled connect without a word to what was made for it (uvloop does)."""
    clock = RealClock()
    made: list[Connection] = []
    closed: list[Connection] = []
    async with Desk().serve(network) as server, Supervisor("test", clock) as tasks:
        role = Role(
            accepted=False, clock=clock, options=RemotingOptions(), opaques=itertools.count(), handlers={},
            handler_tasks=tasks, sweeps=SweepTimes(clock, 0.1), closed=closed.append,
        )  # fmt: skip

        def opened(driver: Driver, local: Any, remote: Any) -> Connection:
            made.append(Connection(driver, role, local_address=str(local), remote_address=str(remote)))
            scope.cancel()
            return made[0]

        with anyio.CancelScope() as scope:
            await network.connect(*parse_address(server.address), opened, tasks)
            await anyio.lowlevel.checkpoint()
        made[0].close("given up")
        await made[0].wait_closed()
    assert closed == made


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".com"])
async def test_what_can_be_no_host_name_is_not_taken_for_a_closed_client(host: str) -> None:
    async with RemotingClient(clock=RealClock()) as client:
        with pytest.raises(ConnectError) as caught:
            await client.request(f"{host}:80", RemotingCommand.request(1), timeout=3)
        assert "the client was closed" not in caught.value.reason


async def test_little_is_read_for_a_peer_that_never_reads(network: TcpNetwork) -> None:
    asked = 0

    def read(_: Connection, request: RemotingCommand) -> RemotingCommand:
        nonlocal asked
        asked += 1
        return RemotingCommand.response(body=bytes(256 << 10))

    async with (
        RemotingServer({11: read}, host="127.0.0.1", port=0, clock=RealClock(), network=network, reads={11}) as server,
        await anyio.connect_tcp(*parse_address(server.address)) as peer,
    ):
        await peer.send(b"".join(encode_command(RemotingCommand.request(11), number) for number in range(60)))
        with anyio.fail_after(PATIENCE):
            while not server.unread_bytes:
                await anyio.sleep(0.01)
        await anyio.sleep(0.2)  # that nothing more is read shows only when time passes
        assert asked <= 8, "up to 1 MiB here, and what the system takes"
