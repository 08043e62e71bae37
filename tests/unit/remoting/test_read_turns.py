"""Requests with large answers take turns: what is read for peers that do not read, and who goes past them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand, encode_command
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.read_turns import ANSWER_BYTES_PER_TURN, LULL, MAX_RUNNING_READS, MAX_WAITING_READS, PAUSE
from rocketbox.remoting.server import RemotingServer
from tests.support.clocks import VirtualClock, settle
from tests.support.remoting.by_hand import Peer

pytestmark = pytest.mark.anyio

READ = RequestCode.PULL_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2
ANSWER = bytes(256 << 10)


class Reads:
    """A server whose reads have large answers, and what they came to."""

    def __init__(self) -> None:
        self.read: dict[Connection, int] = {}  # bytes, by peer
        self.in_this_turn = 0
        self.most_in_a_turn = 0
        self.sent = 0
        self.server: RemotingServer
        self.clock: VirtualClock

    def answer(self, connection: Connection, _: RemotingCommand) -> RemotingCommand:
        self.read[connection] = self.read.get(connection, 0) + len(ANSWER)
        self.in_this_turn += len(ANSWER)
        self.most_in_a_turn = max(self.most_in_a_turn, self.in_this_turn)
        return RemotingCommand.response(0, None, None, ANSWER)

    def take(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        self.sent += 1
        return RemotingCommand.response(0)

    async def turn(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.in_this_turn = 0


@asynccontextmanager
async def serving(handlers: Mapping[int, RequestHandler] | None = None) -> AsyncIterator[Reads]:
    reads = Reads()
    async with RemotingServer(
        {READ: reads.answer, SEND: reads.take, **(handlers or {})},
        host="broker",
        port=0,
        clock=(clock := VirtualClock()),
        network=MemoryNetwork(),
        options=RemotingOptions(max_unread_bytes=1 << 30),
        reads={READ},
    ) as reads.server:
        reads.clock = clock
        try:
            yield reads
        finally:
            for connection in [*reads.server.connections, *reads.server._closing]:
                connection.lost("the test is over")


def requests(code: int, count: int) -> bytes:
    return b"".join(encode_command(RemotingCommand.request(code), number) for number in range(count))


def take_what_the_socket_takes(peer: Peer) -> None:
    """Bytes that leave for a peer which does not read fill its socket."""
    if peer.connection.take_output():
        peer.connection.pause_writing()


async def test_little_is_read_in_a_turn_and_for_peers_that_do_not_read() -> None:
    async with serving() as reads:
        peers = [Peer(reads.server, port) for port in range(1, 101)]
        for peer in peers:
            peer.send(requests(READ, 60))
        for _ in range(300):
            await reads.turn()
            for peer in peers:
                take_what_the_socket_takes(peer)
        assert reads.most_in_a_turn <= 2 * ANSWER_BYTES_PER_TURN
        assert set(reads.read) == {peer.connection for peer in peers}, "everybody has had a turn"
        assert max(reads.read.values()) <= 2 * len(ANSWER), "no more is read for a peer whose socket is full"
        assert not any(peer.driver.reading for peer in peers)


async def test_other_requests_go_past_the_reads_that_wait() -> None:
    async with serving() as reads:
        peers = [Peer(reads.server, port) for port in range(1, 31)]
        for peer in peers:
            peer.send(requests(READ, 3))
        healthy = Peer(reads.server, 99)
        healthy.send(requests(READ, 1) + requests(SEND, 5))
        assert reads.sent == 5, "also of a connection that has a read among them"
        peers[20].send(requests(SEND, 1))
        assert reads.sent == 6


async def test_all_reads_of_peers_that_read_are_answered_in_their_order() -> None:
    async with serving() as reads:
        peers = [Peer(reads.server, port) for port in range(1, 6)]
        answered: dict[Connection, list[int]] = {peer.connection: [] for peer in peers}
        for peer in peers:
            peer.send(requests(READ, 3 * MAX_WAITING_READS))
        assert not any(peer.driver.reading for peer in peers), "what waits for a turn is bounded"
        for _ in range(3 * MAX_WAITING_READS * len(peers) + 10):
            await reads.turn()
            for peer in peers:
                answered[peer.connection] += [answer.opaque for answer in peer.read()]
            lengths = [len(opaques) for opaques in answered.values()]
            assert max(lengths) - min(lengths) <= 2, "one after another"
        assert list(answered.values()) == [list(range(3 * MAX_WAITING_READS))] * len(peers)
        assert all(peer.driver.reading for peer in peers)


async def test_a_peer_that_is_gone_or_full_has_no_turn() -> None:
    async with serving() as reads:
        first, gone, full = (Peer(reads.server, port) for port in (1, 2, 3))
        for peer in (first, gone, full):
            peer.send(requests(READ, 2))
        gone.connection.close()
        full.connection.pause_writing()
        for _ in range(10):
            await reads.turn()
            first.read()
        assert reads.read == {first.connection: 2 * len(ANSWER)}
        full.connection.resume_writing()
        for _ in range(10):
            await reads.turn()
            full.read()
        assert reads.read[full.connection] == 2 * len(ANSWER)
        assert not reads.server._read_turns._line


async def test_few_reads_of_a_connection_run_in_threads_at_once() -> None:
    running = most = answered = 0
    go_on = anyio.Event()

    async def read(_: Connection, request: RemotingCommand) -> RemotingCommand:
        nonlocal running, most, answered
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        answered += 1
        return RemotingCommand.response(0)

    async with serving({READ: read}) as reads:
        peer = Peer(reads.server, 1)
        peer.send(requests(READ, MAX_RUNNING_READS + MAX_WAITING_READS - 1) + requests(SEND, 1))
        assert reads.sent == 1
        await settle()
        assert running == MAX_RUNNING_READS
        assert len(reads.server._read_turns) == 0, "nobody has a turn who cannot use it"
        go_on.set()
        await settle()
        assert (most, answered) == (MAX_RUNNING_READS, MAX_RUNNING_READS + MAX_WAITING_READS - 1)


async def test_reads_pause_between_their_turns_while_others_are_answered() -> None:
    async with serving() as reads:
        peers = [Peer(reads.server, port) for port in range(1, 101)]
        healthy = Peer(reads.server, 999)
        for peer in peers:
            peer.send(requests(READ, 10))
        before = sum(reads.read.values())
        for _ in range(50):  # turns of the loop, a send in each
            healthy.send(requests(SEND, 1))
            await reads.turn()
            healthy.read()
        assert reads.sent == 50
        assert sum(reads.read.values()) - before <= 2 * ANSWER_BYTES_PER_TURN, "no time has passed"
        before = sum(reads.read.values())
        for _ in range(5):
            await reads.clock.advance(PAUSE)
        assert sum(reads.read.values()) - before <= 6 * ANSWER_BYTES_PER_TURN, "one turn behind each pause"
        await reads.clock.advance(LULL)
        before = sum(reads.read.values())
        for _ in range(20):
            await reads.turn()
        assert sum(reads.read.values()) - before >= 15 * ANSWER_BYTES_PER_TURN, "without others there is no pause"
