"""What peers can make a server hold, on drivers that only record: bounds, who gives way, counters, lines in the log."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

import pytest

from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand, encode_command
from rocketbox.remoting import descriptors
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.remoting.descriptors import connection_limit
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.server import RemotingServer
from tests.support.clocks import VirtualClock
from tests.support.remoting.by_hand import Peer

pytestmark = pytest.mark.anyio


def serve(options: RemotingOptions, **handlers: RequestHandler) -> tuple[RemotingServer, VirtualClock]:
    clock = VirtualClock()
    table = {int(name.removeprefix("code_")): handler for name, handler in handlers.items()}
    return RemotingServer(table, host="", port=0, clock=clock, options=options), clock


def sweep(server: RemotingServer, clock: VirtualClock, seconds: int) -> None:
    """Let time pass; nobody waits for it here."""
    for _ in range(seconds):
        clock.now += 1
        for connection in list(server.connections):
            connection.sweep()


def frame(code: int, size: int, *, oneway: bool = False) -> bytes:
    return encode_command(RemotingCommand.request(code, {"a": "b"}, bytes(size)), 1, oneway=oneway)


async def test_connections_above_the_limit_are_closed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    opened: list[Connection] = []
    server, _ = serve(RemotingOptions(max_connections=3, max_connections_per_address=3))
    server._on_open = opened.append
    peers = [Peer(server, port) for port in range(1, 21)]
    assert [peer.open for peer in peers] == [True] * 3 + [False] * 17
    assert [peer.driver.state for peer in peers[3:]] == ["aborted"] * 17
    assert len(opened) == 3
    assert server.counters.connections_refused == 17
    assert [record.getMessage() for record in caplog.records] == [
        "the connection of 127.0.0.2:4 is refused: 3 are open, which is the most here (max-connections)"
    ]
    peers[0].connection.close("done")
    assert not Peer(server, 98).open, "its descriptor is still taken"
    peers[0].connection.lost("gone")
    assert Peer(server, 99).open, "a place that became free is taken again"


async def test_one_address_has_no_more_connections_than_one_may_have(caplog: pytest.LogCaptureFixture) -> None:
    server, clock = serve(RemotingOptions(max_connections=100, max_connections_per_address=3))
    peers = [Peer(server, port, "10.0.0.66") for port in range(1, 21)]
    others = [Peer(server, 1, f"10.0.0.{last}") for last in range(20)] + [Peer(server, port, "::1") for port in (1, 2)]
    assert [peer.open for peer in peers] == [True] * 3 + [False] * 17
    assert {peer.driver.state for peer in peers[3:]} == {"aborted"}
    assert all(peer.open for peer in others)
    assert (server.counters.connections_refused_of_one_address, server.counters.connections_refused) == (17, 0)
    (told,) = caplog.messages
    assert told == (
        "connections of 10.0.0.66 are refused: 3 of it are open, the most of one address "
        "(max-connections-per-address); told again when it had none meanwhile"
    )
    peers[0].connection.close("done")
    assert not Peer(server, 98, "10.0.0.66").open, "its descriptor is still taken"
    peers[0].connection.lost("gone")
    peers[0] = Peer(server, 99, "10.0.0.66")
    assert peers[0].open, "a place that became free is taken again"
    assert not Peer(server, 100, "10.0.0.66").open
    assert caplog.messages == [told], "told once"
    for peer in (*peers[:3], *others):
        peer.connection.lost("gone")
    server._sweep_once(all_of_them=True)
    assert (server._addresses._counts, server._addresses._told) == ({}, set()), "nothing is kept of who has left"
    clock.now += 10
    assert [Peer(server, port, "10.0.0.66").open for port in range(4)] == [True] * 3 + [False]
    assert caplog.messages == [told, told]


async def test_who_comes_and_goes_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server, clock = serve(RemotingOptions(max_connections_per_address=3))
    for round_ in range(100):
        for host in ("10.0.0.66", f"2001:db8::{round_}"):
            for peer in [Peer(server, port, host) for port in range(1, 5)][:3]:
                peer.connection.lost("gone")
        server._sweep_once(all_of_them=True)
        clock.now += 0.5
    assert len(caplog.messages) == 5, "one in ten seconds"
    assert caplog.messages[-1].endswith("(and 39 more like it)")


async def test_an_address_that_was_left_out_of_the_log_is_named_later(caplog: pytest.LogCaptureFixture) -> None:
    server, clock = serve(RemotingOptions(max_connections_per_address=1))
    for host in ("10.0.0.66", "10.0.0.67") * 2:
        Peer(server, 1, host)
    clock.now += 10
    for host in ("10.0.0.66", "10.0.0.67"):
        assert not Peer(server, 2, host).open
    assert [message.split()[2] for message in caplog.messages] == ["10.0.0.66", "10.0.0.67"]


@pytest.mark.parametrize(
    ("most", "of_one", "limits"),
    [
        (10_000, None, (1_792, 896)),
        (20_000, None, (1_792, 896)),
        (100, None, (100, 50)),
        (1, None, (1, 1)),
        (10_000, 100, (1_792, 100)),
        (10_000, 10_000, (1_792, 1_792)),
        (100, 60, (100, 60)),
    ],
)
async def test_one_address_has_half_of_all_connections_or_as_many_as_is_said(
    monkeypatch: pytest.MonkeyPatch, most: int, of_one: int | None, limits: tuple[int, int]
) -> None:
    monkeypatch.setattr("rocketbox.remoting.server.raise_descriptor_limit", lambda: 4_096)
    options = RemotingOptions(max_connections=most, max_connections_per_address=of_one)
    clock = VirtualClock()
    async with RemotingServer({}, host="here", port=0, clock=clock, network=MemoryNetwork(), options=options) as server:
        assert (server.connection_limit, server.address_limit) == limits


def test_the_limit_leaves_descriptors_for_files() -> None:
    assert connection_limit(10_000, None) == 10_000
    assert connection_limit(10_000, 1_048_576) == 10_000
    assert connection_limit(500, 1_048_576) == 500
    assert connection_limit(10_000, 4_096) == (4_096 - 512) // 2
    assert connection_limit(10_000, 256) == (256 - 64) // 2


@pytest.mark.parametrize(
    ("soft", "hard", "refused", "expected"),
    [(1024, 524_288, False, 524_288), (4096, 4096, False, 4096), (1024, -1, False, 1_048_576), (1024, -1, True, 1024)],
)
def test_the_limit_of_open_files_is_raised_as_far_as_the_system_lets_us(
    soft: int, hard: int, refused: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []

    def setrlimit(_: int, limits: tuple[int, int]) -> None:
        if refused:
            raise ValueError("not allowed to raise maximum limit")
        set_to.append(limits)

    fake = SimpleNamespace(RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda _: (soft, hard), setrlimit=setrlimit)
    monkeypatch.setattr(descriptors, "resource", fake)
    assert descriptors.raise_descriptor_limit() == expected
    assert set_to == ([] if refused or soft == expected else [(expected, hard)])


@pytest.mark.parametrize(
    ("came", "closed_after", "says"),
    [
        (frame(34, 50)[:3], 11, "the header of a frame was not complete within 10 s"),
        (frame(34, 50)[:12], 11, "the header of a frame was not complete within 10 s"),
        (frame(10, 100_000)[:12], 11, "the header of a frame was not complete within 10 s"),
        (frame(34, 50)[:-1], 61, "a frame was not complete within 60 s"),
        (frame(10, 100_000)[:-1], 61, "a frame was not complete within 60 s"),
    ],
)
async def test_a_frame_that_does_not_come_to_its_end_closes_its_connection(
    came: bytes, closed_after: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, clock = serve(RemotingOptions())
    peer = Peer(server, 1)
    peer.send(frame(34, 0) + came)
    sweep(server, clock, closed_after - 1)
    assert peer.open
    sweep(server, clock, 1)
    assert (peer.open, peer.driver.state) == (False, "aborted")
    assert server.counters.frames_too_slow == 1
    assert caplog.messages == [f"the connection with 127.0.0.2:1 is closed: {says}"]


async def test_a_byte_now_and_then_keeps_no_half_frame_alive() -> None:
    server, clock = serve(RemotingOptions())
    peer = Peer(server, 1)
    data = frame(10, 100_000)
    for at in range(300):
        if not peer.open:
            break
        peer.send(data[at : at + 1])
        sweep(server, clock, 5)
    assert clock.now <= 20


async def test_a_peer_that_sends_frame_after_frame_is_never_too_slow() -> None:
    server, clock = serve(RemotingOptions(), code_34=lambda *_: None)
    peer = Peer(server, 1)
    data = frame(34, 100)
    peer.send(data[:-1])
    for _ in range(200):  # each second the end of a frame and most of the next
        sweep(server, clock, 1)
        peer.send(data[-1:] + data[:-1])
    assert peer.open


async def test_time_in_which_nothing_is_read_is_not_the_peers_fault() -> None:
    server, clock = serve(RemotingOptions(max_unwritten_bytes=100, idle_timeout=1_000))
    peer = Peer(server, 1)
    peer.send(frame(9999, 0) + frame(9999, 0) + frame(34, 50)[:-1])
    assert "not reading" in repr(peer.connection)
    sweep(server, clock, 200)
    assert peer.open
    while peer.read():
        pass
    assert "not reading" not in repr(peer.connection)
    sweep(server, clock, 30)
    peer.send(frame(34, 50)[-1:])
    sweep(server, clock, 120)
    assert peer.open


async def test_above_the_limit_of_half_frames_the_oldest_gives_way(caplog: pytest.LogCaptureFixture) -> None:
    server, _ = serve(RemotingOptions(max_half_frame_bytes=1_000_000), code_10=lambda *_: None)
    busy, *slow = [Peer(server, port) for port in range(1, 11)]
    whole = frame(10, 300_000)
    busy.send(whole[:150_000])  # began before all others, and then comes to its end again and again
    for peer in slow:
        peer.send(frame(10, 10_000_000)[:200_000])
        busy.send(whole[150_000:] + whole[:150_000])
        assert server.half_frame_bytes <= 1_000_000
    assert [peer.open for peer in slow] == [False] * 5 + [True] * 4
    assert busy.open
    assert server.counters.half_frames_given_up == 5
    assert len([message for message in caplog.messages if "max-half-frame-bytes" in message]) == 1
    for peer in [busy, *slow]:
        peer.connection.lost("gone")
    assert server.half_frame_bytes == 0


async def test_above_the_limit_of_unread_answers_the_one_that_waits_longest_gives_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(_: Connection, __: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(body=bytes(100_000))

    server, _ = serve(RemotingOptions(max_unwritten_bytes=100_000, max_unread_bytes=1_000_000), code_11=answer)
    reading, *deaf = [Peer(server, port) for port in range(1, 31)]
    for peer in deaf:
        for _ in range(5):  # it goes on asking, and is not read any more
            peer.send(frame(11, 0))
        reading.send(frame(11, 0))
        assert len(reading.read()) == 1
        assert server.unread_bytes <= 1_000_000
    assert reading.open
    assert [peer.open for peer in deaf] == [False] * 21 + [True] * 8, "with the answer that is being read 9 fit"
    assert server.counters.unread_given_up == 21
    assert len([message for message in caplog.messages if "max-unread-bytes" in message]) == 1
    for peer in deaf[21:]:
        peer.read()
    assert server.unread_bytes < 8 * 100_100
    for peer in deaf:
        peer.connection.lost("gone")
    assert server.unread_bytes == 0


@pytest.mark.parametrize(("code", "answered"), [(34, ResponseCode.SYSTEM_ERROR), (310, ResponseCode.MESSAGE_ILLEGAL)])
async def test_a_body_too_large_for_its_code_is_answered_with_the_number_before_it_has_come(
    code: int, answered: int, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[int] = []

    def handler(_: Connection, request: RemotingCommand) -> RemotingCommand:
        handled.append(len(request.body))
        return RemotingCommand.response()

    server, _ = serve(
        RemotingOptions(max_request_bodies={code: 1_000}), code_34=handler, code_310=handler, code_35=handler
    )
    peer = Peer(server, 1)
    data = frame(code, 500_000)
    for _ in range(3):
        peer.send(data[:2_000])
        (response,) = peer.read()
        assert response.code == answered
        assert response.remark == f"the body of request {code} has 500000 bytes; 1000 is the most here"
        peer.send(data[2_000:])
    assert server.half_frame_bytes == 0
    peer.send(frame(code, 1_000) + frame(35, 2_000))
    assert [response.code for response in peer.read()] == [0, 0]
    assert handled == [1_000, 2_000]
    assert server.counters.bodies_refused == 3
    assert len(caplog.records) == 1


async def test_a_peer_that_repeats_its_mistakes_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Connection, __: RemotingCommand) -> RemotingCommand:
        raise ValueError("a fault of ours")

    server, clock = serve(RemotingOptions(), code_34=fail)
    for port in range(100):
        peer = Peer(server, port)
        for _ in range(10):
            peer.send(frame(34, 0))
        peer.send(b"GET / HTTP/1.1\r\n\r\n")
        assert not peer.open
    assert len(caplog.records) == 2
    assert asdict(server.counters)["failed_requests"] == 1_000
    assert server.counters.garbage == 100
    clock.now += 11
    Peer(server, 1).send(frame(34, 0))
    assert caplog.messages[-1] == "the handler of request 34 of 127.0.0.2:1 failed (and 999 more like it)"
