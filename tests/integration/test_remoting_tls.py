"""TLS under remoting, over both drivers: which server is believed, what a refusal says, and peers that mean harm."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from rocketbox.cli.certificates import Certificate
from rocketbox.clock import RealClock
from rocketbox.errors import ConfigurationError, ConnectError, Finding, RemotingError
from rocketbox.protocol.command import RemotingCommand, encode_command
from rocketbox.remoting import tls_files
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection, RemotingOptions
from rocketbox.remoting.network import TcpNetwork, parse_address
from rocketbox.remoting.server import RemotingServer
from rocketbox.remoting.tls import ClientAuth, ServerTlsOptions, TlsMode, TlsOptions
from rocketbox.remoting.tls_files import ClientTls, FollowedContext, LoopbackTls, ServerTls
from tests.support.certificates import authority, certificate, encrypted, misdated, write
from tests.support.loops import UVLOOP, needs_uvloop
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

ECHO = 34
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a client's first record


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=needs_uvloop), "asyncio on streams", "trio"])
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def anyio_backend(driver: str) -> object:
    return UVLOOP if driver == "uvloop" else driver.partition(" ")[0]


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    return write(tmp_path, "ca", authority())[0]


class Place:
    """Where a test's server and clients run, with files of their own."""

    def __init__(self, folder: Path, driver: str) -> None:
        self.folder = folder
        self.streams = driver.endswith("streams")

    def server_options(self, made: Certificate | None = None) -> ServerTlsOptions:
        cert, key = write(self.folder, "server", made or certificate())
        return ServerTlsOptions(mode=TlsMode.ENFORCING, cert_path=cert, key_path=key)

    @asynccontextmanager
    async def serve(
        self, options: ServerTlsOptions | None, remoting: RemotingOptions | None = None
    ) -> AsyncIterator[RemotingServer]:
        def echo(_: Connection, request: RemotingCommand) -> RemotingCommand:
            return RemotingCommand.response(body=request.body)

        tls = None if options is None else ServerTls(options)
        network = TcpNetwork(streams=self.streams, accepted_tls=tls)
        with anyio.fail_after(PATIENCE):
            async with RemotingServer(
                {ECHO: echo}, host="127.0.0.1", port=0, clock=RealClock(), network=network, options=remoting
            ) as server:
                yield server

    def client(self, options: TlsOptions | None) -> RemotingClient:
        tls = None if options is None else ClientTls(options)
        network = TcpNetwork(streams=self.streams, tls=tls)
        return RemotingClient(clock=RealClock(), network=network, options=RemotingOptions(connect_timeout=PATIENCE))

    async def ask(self, address: str, options: TlsOptions | None) -> bytes:
        async with self.client(options) as client:
            answer = await client.request(address, RemotingCommand.request(ECHO, {}, b"hello"), timeout=PATIENCE)
            return answer.body

    async def refusal(self, address: str, options: TlsOptions) -> str:
        """Why the client does not connect."""
        with pytest.raises(ConnectError) as caught:
            await self.ask(address, options)
        assert caught.value.address == address
        return caught.value.reason


@pytest.fixture
def place(tmp_path: Path, driver: str) -> Place:
    return Place(tmp_path, driver)


# --- which server is believed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: misdated("20200101000000Z", "20210101000000Z"), "has expired"),
        (lambda: misdated("20900101000000Z", "20910101000000Z"), "is not valid yet; correct this machine's clock"),
        (lambda: certificate(names=("broker.example",)), "for another name than 127.0.0.1; set rocketmq.tls"),
        (lambda: certificate(by="another CA"), "no CA that is trusted here has signed it"),
        (lambda: authority("self-signed"), "no CA that is trusted here has signed it"),
        (lambda: certificate("client"), "unsuitable certificate purpose"),
    ],
    ids=["expired", "not yet valid", "another name", "another CA", "self-signed", "of a client"],
)  # fmt: skip
async def test_a_server_that_cannot_be_believed_is_told_nothing(
    place: Place, ca: Path, made: object, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(made)
    async with place.serve(place.server_options(made())) as server:
        reason = await place.refusal(server.address, TlsOptions(ca_file=ca))
        assert said in reason
        assert reason.startswith("its TLS certificate is not accepted: ")
        await until(lambda: server.counters.handshakes_failed == 1, "the server counts it")
        assert server.counters.handshakes_failed == 1
    (line,) = [record.message for record in caplog.records if record.name == "rocketbox.remoting.server"]
    assert "does not accept the certificate of this server" in line


async def test_the_expected_name_may_be_said(place: Place, ca: Path) -> None:
    async with place.serve(place.server_options(certificate(names=("broker.example", "*.mq.example")))) as server:
        for name in ("broker.example", "a.mq.example"):
            assert await place.ask(server.address, TlsOptions(ca_file=ca, server_name=name)) == b"hello"
        for name in ("example", "a.b.mq.example", "127.0.0.1"):
            said = await place.refusal(server.address, TlsOptions(ca_file=ca, server_name=name))
            assert f"for another name than {name}" in said


async def test_a_name_with_the_dot_of_a_whole_one_is_that_of_the_certificate(place: Place, ca: Path) -> None:
    """As ``mq.svc.cluster.local.``, which a resolver does not try below the domains that it searches."""
    async with place.serve(place.server_options(certificate(names=("broker.example",)))) as server:
        assert await place.ask(server.address, TlsOptions(ca_file=ca, server_name="broker.example.")) == b"hello"
        said = await place.refusal(server.address, TlsOptions(ca_file=ca, server_name="broker."))
        assert "for another name than broker" in said


async def test_without_verification_any_certificate_is_taken_and_that_is_said_aloud(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with place.serve(place.server_options(misdated("20200101000000Z", "20210101000000Z"))) as server:
        assert await place.ask(server.address, TlsOptions(verify=False)) == b"hello"
    assert "rocketmq.tls.verify is false" in caplog.text


async def test_the_systems_authorities_are_those_when_none_are_named(place: Place) -> None:
    async with place.serve(place.server_options()) as server:
        assert "no CA that is trusted here" in await place.refusal(server.address, TlsOptions())


async def test_tls_is_never_left_out(place: Place, ca: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with place.serve(None) as server:
        reason = await place.refusal(server.address, TlsOptions(ca_file=ca))
        assert "speaks no TLS at this port" in reason
        assert server.counters.garbage == 1, "and nothing else came"
    assert "it speaks TLS, and this side does not" in caplog.text


async def test_a_server_without_tls_that_answers_is_understood(place: Place, ca: Path) -> None:
    came = b""

    def answer(listening: socket.socket) -> None:
        nonlocal came
        accepted, _ = listening.accept()
        with accepted:
            came = accepted.recv(65_536)
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            accepted.recv(65_536)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, answer, listening)
            reason = await place.refusal(f"127.0.0.1:{port}", TlsOptions(ca_file=ca))
    assert "speaks no TLS at this port" in reason
    assert came.startswith(b"\x16\x03")
    assert b"hello" not in came


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_server_that_wants_a_certificate_says_so(
    place: Place, ca: Path, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(place.server_options(), need_client_auth=ClientAuth.REQUIRE, trust_cert_path=ca)
    own = [write(place.folder, "mine", certificate("client")), write(place.folder, "strange", certificate(by="x"))]
    (cert, key), (strange_cert, strange_key) = own
    async with place.serve(options) as server:
        for_all = TlsOptions(ca_file=ca)
        limited(monkeypatch, version)
        assert await place.ask(server.address, replace(for_all, cert_file=cert, key_file=key)) == b"hello"
        with pytest.raises(RemotingError) as caught:
            await place.ask(server.address, for_all)
        assert "certificate" in str(caught.value)
        with pytest.raises(RemotingError) as caught:
            await place.ask(server.address, replace(for_all, cert_file=strange_cert, key_file=strange_key))
        assert "certificate" in str(caught.value)
        await until(lambda: server.counters.handshakes_failed == 2, "both are counted")


def limited(monkeypatch: pytest.MonkeyPatch, version: ssl.TLSVersion) -> None:
    """Clients speak no newer TLS."""
    from rocketbox.remoting import tls

    harden = tls._harden

    def hardened(context: ssl.SSLContext) -> None:
        harden(context)
        context.maximum_version = version

    monkeypatch.setattr(tls, "_harden", hardened)


async def test_a_refused_client_certificate_is_a_failure_to_connect(place: Place, ca: Path) -> None:
    """Under TLS 1.3 the client believes itself connected and has sent its request already."""
    options = replace(place.server_options(), need_client_auth=ClientAuth.REQUIRE, trust_cert_path=ca)
    async with place.serve(options) as server, place.client(TlsOptions(ca_file=ca)) as client:
        reasons = []
        for _ in range(20):  # the server may reset the connection before its word is read: then it says what it may be
            try:
                await client.request(server.address, RemotingCommand.request(ECHO), timeout=PATIENCE)
            except RemotingError as error:
                reasons.append(error)
    assert len(reasons) == 20
    assert all("certificate" in str(error) for error in reasons)
    said = [error.reason for error in reasons if isinstance(error, ConnectError)]
    assert said
    assert said[0].startswith("the server wants a certificate of the client, and there is none: set rocketmq.tls.cert")


async def test_an_optional_certificate_is_checked_when_it_is_shown(place: Place, ca: Path) -> None:
    options = replace(place.server_options(), need_client_auth=ClientAuth.OPTIONAL, trust_cert_path=ca)
    strange_cert, strange_key = write(place.folder, "strange", certificate(by="x"))
    async with place.serve(options) as server:
        assert await place.ask(server.address, TlsOptions(ca_file=ca)) == b"hello"
        with pytest.raises(RemotingError):
            await place.ask(server.address, TlsOptions(ca_file=ca, cert_file=strange_cert, key_file=strange_key))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: misdated("20200101000000Z", "20210101000000Z"), "certificate has expired"),
        (lambda: misdated("20900101000000Z", "20910101000000Z"), "certificate is not yet valid"),
        (lambda: certificate("client", by="another CA"), "unable to get local issuer certificate"),
        (lambda: authority("self-signed"), "self-signed certificate"),
    ],
    ids=["expired", "not yet valid", "another CA", "self-signed"],
)
async def test_a_client_that_cannot_be_believed_is_served_nothing(
    place: Place, ca: Path, made: Callable[[], Certificate], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = replace(place.server_options(), need_client_auth=ClientAuth.REQUIRE, trust_cert_path=ca)
    cert, key = write(place.folder, "client", made())
    async with place.serve(options) as server:
        with pytest.raises(RemotingError):
            await place.ask(server.address, TlsOptions(ca_file=ca, cert_file=cert, key_file=key))
        await until(lambda: server.counters.handshakes_failed == 1)
        good_cert, good_key = write(place.folder, "good", certificate("client"))
        assert await place.ask(server.address, TlsOptions(ca_file=ca, cert_file=good_cert, key_file=good_key))
    assert f"its certificate is not accepted: {said}" in caplog.text


async def test_servers_with_the_same_files_speak_to_each_other(place: Place, ca: Path) -> None:
    """Whatever names their certificate has, and only if it is theirs."""
    made = certificate(names=("nobody.example",))
    options = replace(place.server_options(made), need_client_auth=ClientAuth.REQUIRE, trust_cert_path=ca)
    async with place.serve(options) as server:
        network = TcpNetwork(streams=place.streams, tls=LoopbackTls(options))
        async with RemotingClient(clock=RealClock(), network=network) as client:
            answer = await client.request(server.address, RemotingCommand.request(ECHO, {}, b"x"), timeout=PATIENCE)
            assert answer.body == b"x"
    other = write(place.folder, "other", certificate(nth=1))
    async with (
        place.serve(replace(options, cert_path=other[0], key_path=other[1])) as server,
        RemotingClient(clock=RealClock(), network=network) as client,
    ):
        with pytest.raises(ConnectError, match="its TLS certificate is not accepted"):
            await client.request(server.address, RemotingCommand.request(ECHO), timeout=PATIENCE)


def chained(made: Certificate) -> Certificate:
    """With its CA behind it, as those that issue certificates hand them out."""
    return Certificate(made.certificate + authority().certificate, made.key)


async def test_the_cas_behind_a_certificate_do_not_let_others_in(place: Place) -> None:
    """Others have certificates of the same CA, in files of the same form."""
    own = place.server_options(chained(certificate()))
    other = write(place.folder, "other", chained(certificate(nth=1)))
    network = TcpNetwork(streams=place.streams, tls=LoopbackTls(own))
    async with RemotingClient(clock=RealClock(), network=network) as client:
        async with place.serve(own) as server:
            answer = await client.request(server.address, RemotingCommand.request(ECHO, {}, b"x"), timeout=PATIENCE)
            assert answer.body == b"x"
        async with place.serve(replace(own, cert_path=other[0], key_path=other[1])) as server:
            with pytest.raises(ConnectError, match="its TLS certificate is not accepted"):
                await client.request(server.address, RemotingCommand.request(ECHO), timeout=PATIENCE)


# --- renewed files ---------------------------------------------------------------------------------------------------


def shown_by(address: str) -> bytes:
    """The certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(parse_address(address), PATIENCE) as plain,
        context.wrap_socket(plain) as encrypted_socket,
    ):
        shown = encrypted_socket.getpeercert(binary_form=True)
    assert shown is not None
    return shown


async def test_a_renewed_certificate_is_used_without_a_restart(
    place: Place, ca: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    options = place.server_options()
    async with place.serve(options) as server, place.client(TlsOptions(ca_file=ca)) as connected:
        hello = RemotingCommand.request(ECHO, {}, b"hello")
        await connected.request(server.address, hello, timeout=PATIENCE)
        renewed = certificate(nth=1)
        write(place.folder, "server", renewed)
        wanted = ssl.PEM_cert_to_DER_cert(renewed.certificate.decode())
        with anyio.fail_after(PATIENCE):
            while await anyio.to_thread.run_sync(shown_by, server.address) != wanted:
                await anyio.sleep(0.05)
        assert (await connected.request(server.address, hello, timeout=PATIENCE)).body == b"hello", "as it was"
        assert await place.ask(server.address, TlsOptions(ca_file=ca)) == b"hello"
    assert "the TLS files of the servers have changed; new connections use them" in caplog.text


async def test_a_certificate_that_ends_while_a_client_is_connected_is_refused_to_its_next_connection(
    place: Place, ca: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is connected goes on; whoever connects anew is told why not, and connects as soon as it is renewed."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(tls_files, "LOOK_INTERVAL", 0.01)
    async with place.serve(place.server_options()) as server, place.client(TlsOptions(ca_file=ca)) as client:

        async def ask() -> bytes:
            command = RemotingCommand.request(ECHO, {}, b"hello")
            return (await client.request(server.address, command, timeout=PATIENCE)).body

        async def show(made: Certificate) -> None:
            told = caplog.text.count("new connections use them")
            write(place.folder, "server", made)
            await until(lambda: caplog.text.count("new connections use them") > told)

        assert await ask() == b"hello"
        await show(misdated("20200101000000Z", "20210101000000Z"))
        assert await ask() == b"hello"
        client.close_connection(server.address)
        for _ in range(2):
            with pytest.raises(ConnectError) as caught:
                await ask()
            assert caught.value.reason == (
                "its TLS certificate is not accepted: it has expired, or one in its chain has; renew it, or correct "
                "this machine's clock"
            )
        await show(certificate(nth=1))
        assert await ask() == b"hello"


async def test_half_of_a_renewal_keeps_what_was_there_and_warns_once(
    place: Place, ca: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = place.server_options()
    tls = ServerTls(options)
    before = tls.context
    renewed = certificate(nth=1)
    assert options.cert_path is not None
    options.cert_path.write_bytes(renewed.certificate)
    for _ in range(3):
        assert await tls._context.look() is before
    options.cert_path.write_bytes(renewed.certificate[:100])
    assert await tls._context.look() is before
    options.cert_path.unlink()
    for _ in range(2):
        assert await tls._context.look() is before
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert "have changed and cannot be used; what was read before stays: key_path is " in warnings[0]
    assert "which is not the key of the certificate in" in warnings[0]
    write(place.folder, "server", renewed)
    assert await tls._context.look() is not before


async def test_a_renewed_certificate_that_could_not_be_loaded_for_a_moment_is_used_when_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when no descriptors are left: the files will not change again because of that."""
    file = tmp_path / "server.pem"
    file.write_text("first")
    failing: list[str] = []

    def make() -> ssl.SSLContext:
        if failing:
            raise ConfigurationError(Finding(failing[0], fix="wait"))
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    followed = FollowedContext(make, [file], "the servers")
    before = followed.current
    file.write_text("second")
    for what in ("it cannot be read: Too many open files", "it is no certificate"):
        failing[:] = [what]
        for _ in range(3):
            assert await followed.look() is before
    failing.clear()
    assert (await followed.look()) is not before
    assert (await followed.look()) is followed.current
    warnings = [record.message.partition("stays: ")[2] for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["it cannot be read: Too many open files", "it is no certificate"]


async def test_a_client_looks_at_its_files_before_each_connection(place: Place, ca: Path) -> None:
    renewed = certificate(by="another CA", nth=1)
    options = TlsOptions(ca_file=ca)
    async with place.serve(place.server_options(renewed)) as server, place.client(options) as client:
        with pytest.raises(ConnectError):
            await client.request(server.address, RemotingCommand.request(ECHO), timeout=PATIENCE)
        write(place.folder, "ca", authority("another CA"))
        await client.request(server.address, RemotingCommand.request(ECHO), timeout=PATIENCE)


# --- files that cannot be used ---------------------------------------------------------------------------------------


def test_what_is_wrong_with_files_is_said_of_all_of_them_at_once(tmp_path: Path) -> None:
    cert, key = write(tmp_path, "mine", certificate("client"))
    _, other_key = write(tmp_path, "other", certificate("client", nth=1))
    locked = tmp_path / "locked.pem"
    locked.write_bytes(encrypted(certificate("client").key, "right-password"))
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    missing = tmp_path / "missing.pem"

    def told(**options: object) -> list[str]:
        with pytest.raises(ConfigurationError) as caught:
            ClientTls(TlsOptions(**options))  # type: ignore[arg-type]  # passed on
        assert "password-of" not in str(caught.value)
        return [finding.what.removeprefix("TlsOptions.") for finding in caught.value.findings]

    assert told(ca_file=missing, cert_file=tmp_path) == [
        f"ca_file is {missing}, and there is no such file",
        f"cert_file is {tmp_path}, which is a directory",
    ]
    assert told(ca_file=rubbish) == [f"ca_file is {rubbish}, which holds no certificate in PEM form"]
    assert told(cert_file=rubbish, key_file=key) == [f"cert_file is {rubbish}, which holds no certificate in PEM form"]
    assert told(cert_file=cert, key_file=rubbish) == [f"key_file is {rubbish}, which holds no private key in PEM form"]
    assert told(cert_file=cert) == [f"cert_file is {cert}, which holds no private key in PEM form"]
    assert told(cert_file=cert, key_file=other_key) == [
        f"key_file is {other_key}, which is not the key of the certificate in {cert}"
    ]
    assert told(cert_file=cert, key_file=locked) == [
        f"key_file is {locked}, whose key is encrypted, and no password is set"
    ]
    assert told(cert_file=cert, key_file=locked, key_password="password-of-another") == [
        f"key_password does not open the key in {locked}"
    ]
    assert told(cert_file=cert, key_file=locked, key_password="password-of-" * 100) == [
        "key_password is too long for a password of a key"
    ]
    assert told(key_file=key) == ["key_file is set and its certificate is not"]
    assert told(server_name="a..b") == ["server_name is 'a..b', which is no name or address of a server"]
    assert told(server_name="b:10911") == ["server_name is 'b:10911', which is no name or address of a server"]
    ClientTls(TlsOptions(cert_file=cert, key_file=locked, key_password="right-password", server_name="::1"))
    together = tmp_path / "together.pem"
    together.write_bytes(cert.read_bytes() + key.read_bytes())
    ClientTls(TlsOptions(cert_file=together))
    assert "right-password" not in repr(TlsOptions(cert_file=cert, key_file=locked, key_password="right-password"))


# --- peers that mean harm --------------------------------------------------------------------------------------------


async def test_half_open_handshakes_do_not_stop_the_healthy(
    place: Place, ca: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = 1_000
    options = RemotingOptions(max_handshakes=many // 2, max_connections=many, max_connections_per_address=many)
    async with place.serve(place.server_options(), options) as server:
        with ExitStack() as stack:
            for number in range(many):
                peer = stack.enter_context(socket.create_connection(parse_address(server.address), PATIENCE))
                peer.sendall(HELLO if number % 2 else b"")
                if number % 50 == 0:
                    assert await place.ask(server.address, TlsOptions(ca_file=ca)) == b"hello"
            await until(lambda: server.counters.handshakes_given_up == many // 2, "the oldest give way")
            assert server.handshakes == many // 2
            assert len(server.connections) == many // 2
            assert await place.ask(server.address, TlsOptions(ca_file=ca)) == b"hello"
        await until(lambda: server.handshakes == 0, "those that have gone are forgotten")
    assert "and it is the oldest" in caplog.text
    assert len([record for record in caplog.records if record.name.startswith("rocketbox")]) < 20


async def test_connections_that_are_refused_are_in_no_handshake(place: Place, ca: Path) -> None:
    options = RemotingOptions(max_connections_per_address=3, max_handshakes=5)
    async with place.serve(place.server_options(), options) as server:
        with ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(socket.create_connection(parse_address(server.address), PATIENCE))
            await until(lambda: server.counters.connections_refused_of_one_address == 17)
            assert (server.handshakes, server.counters.handshakes_given_up) == (3, 0)
        await until(lambda: not server.handshakes, "those that have gone are forgotten")
        assert await place.ask(server.address, TlsOptions(ca_file=ca)) == b"hello"


async def test_handshakes_have_a_deadline(place: Place, ca: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with place.serve(place.server_options(), RemotingOptions(header_timeout=0.2)) as server:
        for first in (b"", HELLO):
            with socket.create_connection(parse_address(server.address), PATIENCE) as peer:
                peer.sendall(first)
                assert await anyio.to_thread.run_sync(peer.recv, 1) == b""
        await until(lambda: server.counters.handshakes_failed == 2)
        assert await place.ask(server.address, TlsOptions(ca_file=ca)) == b"hello"
    assert "its TLS handshake was not over within 0.2 s" in caplog.text


async def test_plaintext_is_refused_where_tls_is_enforced(
    place: Place, ca: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with place.serve(place.server_options()) as server:
        with pytest.raises(RemotingError, match=r"where it speaks TLS alone, set rocketmq\.tls\.enable"):
            await place.ask(server.address, None)
        assert await place.ask(server.address, TlsOptions(ca_file=ca)) == b"hello"
        assert server.counters.handshakes_failed == 1
    assert "it does not speak TLS, and tls-server-mode is enforcing" in caplog.text


async def test_a_permissive_server_serves_both(place: Place, ca: Path) -> None:
    options = replace(place.server_options(), mode=TlsMode.PERMISSIVE)
    async with place.serve(options) as server:
        assert await place.ask(server.address, None) == b"hello"
        assert await place.ask(server.address, TlsOptions(ca_file=ca)) == b"hello"
        await until(lambda: server.handshakes == 0)


async def test_garbage_in_every_place_of_a_handshake_closes_that_connection_only(place: Place, ca: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="x").do_handshake()
    hello = outgoing.read()
    async with place.serve(place.server_options()) as server:
        for at in range(1, len(hello), 37):
            with socket.create_connection(parse_address(server.address), PATIENCE) as peer:
                peer.sendall(hello[:at] + b"\xff" * 2_000)
                while await anyio.to_thread.run_sync(peer.recv, 65_536):
                    pass
        assert await place.ask(server.address, TlsOptions(ca_file=ca)) == b"hello"
        await until(lambda: not server.connections)


async def test_old_versions_of_tls_are_refused(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with place.serve(place.server_options()) as server:
        done = await anyio.to_thread.run_sync(s_client, server.address, b"", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
        assert b"protocol version" in done
    assert "it offers no way of TLS that is spoken here" in caplog.text


async def test_a_server_of_old_versions_of_tls_is_told_nothing(
    place: Place, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By clients that verify nothing too, and by those that could speak them: OpenSSL is told to allow what it can."""
    from rocketbox.remoting import tls

    harden = tls._harden

    def weakened(context: ssl.SSLContext) -> None:
        harden(context)
        context.set_ciphers("ALL:@SECLEVEL=0")

    came = b""

    def answer(listening: socket.socket) -> None:
        nonlocal came
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.load_cert_chain(*write(place.folder, "server", certificate()))
        for _ in range(2):
            accepted, _ = listening.accept()
            with accepted, suppress(OSError), context.wrap_socket(accepted, server_side=True) as wrapped:
                came += wrapped.recv(65_536)

    monkeypatch.setattr(tls, "_harden", weakened)
    with anyio.fail_after(PATIENCE), socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, answer, listening)
            for options in (TlsOptions(ca_file=ca), TlsOptions(verify=False)):
                reason = await place.refusal(address, options)
                assert reason.startswith("the server and this client have no way of TLS in common (")
                assert reason.endswith("); TLS 1.2 and 1.3 are spoken here")
    assert came == b""


async def test_nothing_is_negotiated_again(place: Place, ca: Path) -> None:
    async with place.serve(place.server_options()) as server:
        done = await anyio.to_thread.run_sync(s_client, server.address, b"R\n", "-tls1_2")
        assert b"RENEGOTIATING" in done
        assert b"no renegotiation" in done
        assert await place.ask(server.address, TlsOptions(ca_file=ca)) == b"hello"


async def test_nobody_resumes_what_a_certificate_that_has_ended_began(place: Place) -> None:
    async with place.serve(place.server_options()) as server:
        done = await anyio.to_thread.run_sync(s_client, server.address, b"", "-tls1_3")
        assert b"TLSv1.3" in done
        assert b"New Session Ticket" not in done


@pytest.mark.parametrize("days", [60, -2], ids=["has ended", "has not begun"])
async def test_nobody_resumes_a_session_of_tls_1_2_after_the_time_of_his_certificate(
    place: Place, ca: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, days: int
) -> None:
    """Sessions last for two hours, and OpenSSL looks at no certificate when one is resumed."""
    options = replace(place.server_options(), need_client_auth=ClientAuth.REQUIRE, trust_cert_path=ca)
    context = ssl.create_default_context(cafile=str(ca))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(*write(place.folder, "client", certificate("client")))
    asked = encode_command(RemotingCommand.request(ECHO, {}, b"hello"), 1)

    with ExitStack() as connections:  # as long as one is open, the server knows its session

        def ask(address: str, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
            plain = connections.enter_context(socket.create_connection(parse_address(address), PATIENCE))
            wrapped = context.wrap_socket(plain, server_hostname="localhost", session=session)
            peer = connections.enter_context(wrapped)
            assert peer.session_reused is (session is not None)
            with suppress(ConnectionError):  # it may be closed already
                peer.sendall(asked)
                return peer.recv(1000), peer.session
            return b"", None

        async with place.serve(options) as server:
            answer, session = await anyio.to_thread.run_sync(ask, server.address, None)
            assert answer.endswith(b"hello")
            assert session is not None
            assert not session.has_ticket
            answer, _ = await anyio.to_thread.run_sync(ask, server.address, session)
            assert answer.endswith(b"hello"), "as long as it is valid he may"
            at = RealClock().time_ms() + days * 86_400_000
            monkeypatch.setattr(RealClock, "time_ms", lambda _: at)
            answer, _ = await anyio.to_thread.run_sync(ask, server.address, session)
            assert answer == b""
            assert server.counters.handshakes_failed == 1
    assert "its certificate is not accepted: it is not valid at this time, and the session of TLS 1.2" in caplog.text


def s_client(address: str, typed: bytes, *arguments: str) -> bytes:
    """What OpenSSL's own client says."""
    done = subprocess.run(
        ["openssl", "s_client", "-connect", address, *arguments],
        input=typed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False,
    )  # fmt: skip
    return done.stdout
