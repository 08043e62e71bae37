"""Renegotiation of TLS 1.2: nobody is let change certificates or ciphers on a connection that is there."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketbox.remoting.tls import (
    ServerTlsOptions,
    TlsMode,
    TlsOptions,
    client_context,
    loopback_client_context,
    server_context,
)
from tests.support.certificates import authority, certificate, write
from tests.support.waiting import PATIENCE

RENEGOTIATE = b"r\n"  # a command of openssl s_server, which sends all other lines to the client


class Peer:
    """OpenSSL's own server, which speaks TLS 1.2."""

    def __init__(self, folder: Path) -> None:
        cert, key = write(folder, "server", certificate())
        self.process = subprocess.Popen(
            ["openssl", "s_server", "-accept", "127.0.0.1:0", "-tls1_2", "-cert", str(cert), "-key", str(key)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert self.process.stdout is not None
        lines = (line.decode() for line in self.process.stdout)
        self.port = next(int(line.rpartition(":")[2]) for line in lines if line.startswith("ACCEPT "))

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer(tmp_path)
    yield peer
    peer.process.kill()
    peer.process.communicate()


def connected(peer: Peer, context: ssl.SSLContext) -> ssl.SSLSocket:
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    raw = socket.create_connection(("127.0.0.1", peer.port), timeout=PATIENCE)
    return context.wrap_socket(raw, server_hostname="127.0.0.1")


def test_a_client_negotiates_nothing_again(peer: Peer, tmp_path: Path) -> None:
    ca, _ = write(tmp_path, "ca", authority())
    with connected(peer, client_context(TlsOptions(ca_file=ca))) as stream:
        peer.say(b"before\n")
        assert stream.recv(100) == b"before\n"
        peer.say(RENEGOTIATE)
        with pytest.raises(ssl.SSLError, match=r"(?i)handshake failure"):
            stream.recv(100)


@pytest.mark.parametrize(
    "make",
    [
        lambda options: server_context(options),
        lambda options: loopback_client_context(options),
        lambda options: client_context(TlsOptions(ca_file=options.cert_path)),
    ],
    ids=["server", "one server to another", "client"],
)
def test_no_side_takes_part_whatever_openssl_does_by_itself(
    make: Callable[[ServerTlsOptions], ssl.SSLContext], tmp_path: Path
) -> None:
    """OpenSSL 3 lets a client ask for it only where a server allows it, OpenSSL 1.1.1 everywhere."""
    cert, key = write(tmp_path, "server", certificate())
    context = make(ServerTlsOptions(mode=TlsMode.ENFORCING, cert_path=cert, key_path=key))
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION
