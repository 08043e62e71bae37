"""Which name servers there are: lists, address servers over HTTP, and lists that change while somebody uses them."""

from __future__ import annotations

import logging
import time
import traceback
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import Admin, ClientOptions, MQClientInstance, Producer
from rocketbox.clock import RealClock
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import ClientStateError, ConfigurationError, ConnectError, NoRouteError
from rocketbox.message import Message
from rocketbox.remoting import name_server_addresses
from rocketbox.remoting.name_server_addresses import AddressServer, address_server_of, parse_name_servers
from rocketbox.spark.servers import Servers
from rocketbox.spark.worker_client import ClientThread
from tests.support.certificates import authority, certificate, write
from tests.support.clocks import VirtualClock
from tests.support.remoting.address_server import HangingAddressServer, HttpAddressServer
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def servers(directory: Path, host: str = "127.0.0.1", **settings: object) -> EmbeddedServers:
    options = EmbeddedOptions(data_dir=directory, name_server_port=0, port=0, host=host, broker=settings)
    return EmbeddedServers(options)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Address servers are asked again soon."""
    monkeypatch.setattr(name_server_addresses, "ASK_AGAIN_AFTER", 0.05)
    monkeypatch.setattr(name_server_addresses, "RETRY_AFTER", 0.05)


# --- what is said ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("http://ns.example:8080/rocketmq/nsaddr", True),
        (" https://ns.example/ ", True),
        (["http://ns.example/nsaddr-unit?nofix=1"], True),
        ("http://ns.example:9876", False),
        ("ns.example:9876", False),
        ("http://a/x;http://b/y", False),
        ("ftp://ns.example/x", False),
    ],
)
def test_a_url_with_a_path_is_an_address_server(said: str | list[str], url: bool) -> None:
    text = said if isinstance(said, str) else said[0]
    assert address_server_of(said) == (text.strip() if url else None)


@pytest.mark.parametrize("said", ["http://ns.example/nsaddr;127.0.0.1:9876", "a:1,https://ns.example:80/x"])
def test_an_address_server_stands_alone(said: str) -> None:
    with pytest.raises(ConfigurationError, match=r"an address server stands beside other name servers[\s\S]*alone"):
        parse_name_servers(said)


@pytest.mark.parametrize(
    "said",
    [
        "http://admin:hunter2@ns.example:8080/rocketmq/nsaddr",
        "http://admin:hunter2;hunter2@ns.example/nsaddr?token=hunter2",
        "admin:hunter2@127.0.0.1:9876",
        "127.0.0.1:9876;http://hunter2@127.0.0.1:9877",
        ["http://admin:hunter2@127.0.0.1:9876"],
    ],
)
def test_a_password_before_a_host_is_refused_and_not_shown(said: str | list[str]) -> None:
    """It would be asked of the resolver as part of the host's name."""
    assert address_server_of(said) is None
    with pytest.raises(ConfigurationError, match="has a user or password before it") as caught:
        parse_name_servers(said)
    assert "hunter2" not in str(caught.value)


async def test_what_stands_behind_the_question_mark_of_a_url_is_asked_and_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with HttpAddressServer("", 403) as address_server:
        async with Producer("desk", name_server=f"{address_server.url}?token=hunter2") as producer:
            with pytest.raises(NoRouteError) as caught:
                await producer.send(Message("T", b"x"), timeout=5)
            assert producer.instance.name_servers == (address_server.url,)
            assert producer.instance.said_name_servers == (f"{address_server.url}?token=hunter2",)
            state = repr(producer.instance.state())
    assert address_server.paths[0] == "/rocketmq/nsaddr?token=hunter2"
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text + state
    assert address_server.url in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize("scheme", ["ftp", "file", "FTP"])
async def test_an_address_server_leads_to_nothing_that_does_not_speak_http(scheme: str) -> None:
    with HttpAddressServer("", 302) as address_server:
        address_server.leads_to = f"{scheme}://127.0.0.1:1/secret"
        with pytest.raises(ConnectError, match="HTTP 302: it leads to where it is not followed") as caught:
            await AddressServer(address_server.url, RealClock(), take=print, fail=print).ask()
    assert "secret" not in str(caught.value)


async def test_an_address_server_may_lead_to_another_one() -> None:
    with HttpAddressServer("ns:9876") as other, HttpAddressServer("", 302) as address_server:
        address_server.leads_to = other.url
        asking = AddressServer(address_server.url, RealClock(), take=print, fail=print)
        assert await asking.ask() == ("ns:9876",)


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The certificate of an address server, whose CA is one of the system's."""
    (tmp_path / "ca.pem").write_bytes(authority().certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return write(tmp_path, "server", certificate())


async def test_an_address_server_over_tls_leads_to_none_without(tls: tuple[Path, Path]) -> None:
    """Who is between could lead everybody to name servers of his own."""
    with HttpAddressServer("evil:9876") as other, HttpAddressServer("", 302, tls=tls) as address_server:
        address_server.leads_to = f"{other.url}?token=hunter2"
        asking = AddressServer(f"{address_server.url}?token=hunter2", RealClock(), take=print, fail=print)
        with pytest.raises(ConnectError, match="HTTP 302: it leads to where it is not followed") as caught:
            await asking.ask()
        assert other.paths == []
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


async def test_an_address_server_without_tls_that_leads_to_one_with_leads_not_back(tls: tuple[Path, Path]) -> None:
    with (
        HttpAddressServer("evil:9876") as third,
        HttpAddressServer("", 307, tls=tls) as second,
        HttpAddressServer("", 301) as first,
    ):
        first.leads_to, second.leads_to = second.url, third.url
        with pytest.raises(ConnectError, match="HTTP 307: it leads to where it is not followed"):
            await AddressServer(first.url, RealClock(), take=print, fail=print).ask()
        assert (len(second.paths), third.paths) == (1, [])


async def test_an_address_server_over_tls_may_lead_to_another_whose_certificate_is_checked(
    tls: tuple[Path, Path], tmp_path: Path
) -> None:
    unknown = write(tmp_path, "unknown", certificate(by="another CA"))
    with HttpAddressServer("ns:9876", tls=tls) as other, HttpAddressServer("evil:9876", tls=unknown) as evil:
        with HttpAddressServer("", 302, tls=tls) as address_server:
            asking = AddressServer(address_server.url, RealClock(), take=print, fail=print)
            address_server.leads_to = other.url
            assert await asking.ask() == ("ns:9876",)
            address_server.leads_to = evil.url
            with pytest.raises(ConnectError, match=r"(?i)certificate.verify.failed"):
                await asking.ask()
            address_server.leads_to = address_server.url  # for ever
            with pytest.raises(ConnectError, match="HTTP 302: it leads to where it is not followed"):
                await asking.ask()
        assert evil.paths == []


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (404, "", "it answered HTTP 404 Not Found"),
        (503, "down", "it answered HTTP 503"),
        (200, "", "there is no name server address"),
        (200, "<html>hello</html>", "'<html>hello</html>' is no address"),
        (200, "a:1;b", "'b' is no address"),
        (200, f"a:1;{'b' * 60_000}", f"name server '{'b' * 255}' is no address"),
        (200, f"{'b' * 300}:1", f"name server '{'b' * 255}' is no address"),
        (200, "ns:9876?token=hunter2", "it answered what cannot be shown: name server 'ns:9876' is no address"),
        (200, ";".join(f"h{number}:1" for number in range(101)), "with 101 name servers, and 100 are taken"),
    ],
)
async def test_answers_that_are_none_are_told_in_words(status: int, answer: str, reason: str) -> None:
    with HttpAddressServer(answer, status) as address_server:
        server = AddressServer(address_server.url, RealClock(), take=print, fail=print)
        with pytest.raises(ConnectError) as caught:
            await server.ask()
    assert reason in str(caught.value)
    assert address_server.url in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("answer", ["ns-admin:hunter2@10.0.0.1:9876", "http://a:hunter2@b"])
async def test_a_password_in_an_answer_is_not_shown(answer: str) -> None:
    with HttpAddressServer(answer) as address_server:
        asking = AddressServer(address_server.url, RealClock(), take=print, fail=print)
        with pytest.raises(ConnectError, match="has a user or password before it") as caught:
            await asking.ask()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("path", ["/ns?token=hunter2\x7f", "/ns?token=hunter2\u00e9"])
async def test_a_url_with_a_character_that_none_may_have_is_told_without_its_token(path: str) -> None:
    with HttpAddressServer() as address_server:
        asking = AddressServer(
            address_server.url.removesuffix("/rocketmq/nsaddr") + path, RealClock(), take=print, fail=print
        )
        with pytest.raises(ConnectError, match="a character that none may have") as caught:
            await asking.ask()
    assert "hunter2" not in str(caught.value)


async def test_an_address_that_would_be_looked_through_for_ever_is_none() -> None:
    """For the namespace that Apache's client takes from it; the loop stands still meanwhile."""
    with HttpAddressServer(f"MQ_INST_{'_' * 60_000}:9876") as address_server:
        server = AddressServer(address_server.url, RealClock(), take=print, fail=print, in_namespace=False)
        began = time.process_time()
        with pytest.raises(ConnectError, match="is no address"):
            await server.ask()
        assert time.process_time() - began < 2


async def test_a_reason_of_an_address_server_begins_no_line_of_the_log() -> None:
    beginning = b"HTTP/1.1 503 no\x0b\x85ERROR forged\x1b[2J\x00\x7f\x9b2J" + b"x" * 5000 + b"\r\n\r\n"
    with (
        HangingAddressServer(beginning) as hanging,
        pytest.raises(ConnectError, match="it answered HTTP 503 no") as caught,
    ):
        await AddressServer(hanging.url, RealClock(), take=print, fail=print).ask()
    text = str(caught.value)
    assert text.splitlines() == [text]
    assert text.isprintable(), "nor gives orders to a terminal"
    assert len(text) < 500


@pytest.mark.parametrize("proxy", ["http:/ns-admin:hunter2@10.0.0.1", "http://a:hunter2@10.0.0.1:x"])
async def test_a_wrong_proxy_is_told_without_its_password(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ConnectError) as caught:
        await AddressServer("http://ns.example/nsaddr", RealClock(), take=print, fail=print).ask()
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


async def test_an_address_server_that_is_not_there_is_told_with_its_reason() -> None:
    with HttpAddressServer() as address_server:
        url = address_server.url
    with pytest.raises(ConnectError, match="Connection refused"):
        await AddressServer(url, RealClock(), take=print, fail=print).ask()


# --- clients --------------------------------------------------------------------------------------------------------


HANGING = [(b"", False), (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", True), (b"HTTP/1.1 200 OK\r\nX: ", True)]


@pytest.mark.parametrize(("beginning", "dribbles"), HANGING)
async def test_an_address_server_that_hangs_holds_up_no_stop(
    tmp_path: Path, beginning: bytes, dribbles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a client, nor of a reader of Spark, nor of a broker that registers by it."""
    monkeypatch.setattr(name_server_addresses, "FETCH_TIMEOUT", 10 * PATIENCE)
    monkeypatch.setattr(name_server_addresses, "ANSWER_WITHIN", 10 * PATIENCE)
    with HangingAddressServer(beginning, dribbles=dribbles) as hanging, anyio.fail_after(PATIENCE):
        async with servers(tmp_path, **{"namesrv-addr": hanging.url}):
            async with Producer("p", name_server=hanging.url) as producer:
                with pytest.raises(NoRouteError, match="no answer within"):
                    await producer.send(Message("t", b"x"), timeout=0.2)
                await until(lambda: hanging.asked == 2)
            reader = ClientThread(Servers(hanging.url))
            await until(lambda: hanging.asked == 3)
            await anyio.to_thread.run_sync(reader.close)
            assert not reader.alive


async def test_what_is_slow_to_come_is_told_and_not_asked_for_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server_addresses, "ANSWER_WITHIN", 0.1)
    monkeypatch.setattr(name_server_addresses, "RETRY_AFTER", 0.01)
    beginning, dribbles = HANGING[1]
    problems: list[str] = []
    with HangingAddressServer(beginning, dribbles=dribbles) as hanging:
        server = AddressServer(hanging.url, RealClock(), take=print, fail=lambda error: problems.append(str(error)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.follow)
            await until(lambda: len(problems) == 3)
            tasks.cancel_scope.cancel()
        assert set(problems) == {f"cannot connect to {hanging.url}: no whole answer within 0.1 s"}
        assert hanging.asked == 1


async def test_an_address_server_is_asked_again_every_two_minutes_also_while_it_answers_with_what_is_none() -> None:
    clock, told = VirtualClock(), list[tuple[float, str]]()

    def take(addresses: tuple[str, ...]) -> None:
        told.append((clock.now, ";".join(addresses)))

    def fail(error: ConnectError) -> None:
        told.append((clock.now, "HTTP 503" if "HTTP 503" in str(error) else str(error)))

    with HttpAddressServer("ns:9876") as address_server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(AddressServer(address_server.url, clock, take=take, fail=fail).follow)
            for known, (answer, status) in enumerate([("ns:9876", 503), ("other:9876;ns:9876", 200)], 1):
                await until(lambda known=known: len(told) == known)  # type: ignore[misc]  # the clock stands still
                address_server.answer, address_server.status = answer, status
                due = clock.next_timer()
                assert due is not None
                clock.move_to(due)
            await until(lambda: len(told) == 3)
            due = clock.next_timer()
            tasks.cancel_scope.cancel()
        assert told == [(0.0, "ns:9876"), (120.0, "HTTP 503"), (240.0, "other:9876;ns:9876")]
        assert due == 360.0
        assert len(address_server.paths) == 3


async def test_a_producer_finds_its_name_servers_by_an_address_server(tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster:
        with HttpAddressServer(f"{cluster.name_server_address}\nwhat else there is") as address_server:
            async with Producer("desk", name_server=address_server.url) as producer:
                await producer.send(Message("T", b"x"))
                assert producer.instance.name_servers == (cluster.name_server_address,)
                assert producer.instance.said_name_servers == (address_server.url,)
        assert address_server.paths == ["/rocketmq/nsaddr"]


@pytest.mark.usefixtures("quickly")
async def test_a_send_that_comes_too_early_says_what_the_address_server_answers_and_a_later_one_succeeds(
    tmp_path: Path,
) -> None:
    async with servers(tmp_path) as cluster:
        with HttpAddressServer("", 500) as address_server:
            async with Producer("desk", name_server=address_server.url) as producer:
                with pytest.raises(NoRouteError, match=r"nsaddr: it answered HTTP 500"):
                    await producer.send(Message("T", b"x"))
                assert producer.instance.name_servers == (address_server.url,)
                address_server.answer, address_server.status = cluster.name_server_address, 200
                await until(lambda: producer.instance.name_servers == (cluster.name_server_address,))
                await producer.send(Message("T", b"x"))


@pytest.mark.usefixtures("quickly")
async def test_other_addresses_are_followed_and_bad_answers_change_nothing(tmp_path: Path) -> None:
    async with servers(tmp_path / "one") as one, servers(tmp_path / "two") as two:
        with HttpAddressServer(one.name_server_address) as address_server:
            async with MQClientInstance(address_server.url) as instance, Admin(instance=instance) as admin:
                await admin.create_topic("of-one")
                assert "of-one" in await admin.topic_names()
                address_server.answer = "<html>"
                seen = len(address_server.paths)
                await until(lambda: len(address_server.paths) > seen + 1)
                assert "of-one" in await admin.topic_names()
                address_server.answer = two.name_server_address
                await until(lambda: instance.name_servers == (two.name_server_address,))
                assert "of-one" not in await admin.topic_names()
                assert not instance.remoting.connected(one.name_server_address)


async def test_a_list_may_be_replaced_while_it_is_used(tmp_path: Path) -> None:
    async with servers(tmp_path / "one") as one, servers(tmp_path / "two") as two:
        said = f"{one.name_server_address};127.0.0.1:1"
        async with MQClientInstance(said) as instance, Admin(instance=instance) as admin:
            await admin.create_topic("of-one")
            instance.replace_name_servers(f"{two.name_server_address}, 127.0.0.1:1")
            assert "of-one" not in await admin.topic_names()
            assert set(instance.name_servers) == {two.name_server_address, "127.0.0.1:1"}
            with pytest.raises(ConfigurationError, match="no address"):
                instance.replace_name_servers("nowhere")
            assert "of-one" not in await admin.topic_names()


async def test_the_environment_may_name_the_name_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ClientStateError, match="or NAMESRV_ADDR"):
        Producer("desk")
    async with servers(tmp_path) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:1;{cluster.name_server_address}")
        async with Producer("desk") as producer, Admin() as admin:
            await producer.send(Message("T", b"x"))
            assert "T" in await admin.topic_names()
        async with Producer("desk", name_server=cluster.name_server_address) as producer:
            assert producer.instance.name_servers == (cluster.name_server_address,)


@pytest.mark.parametrize("host", ["::1", "localhost"])
async def test_ipv6_and_names_with_several_addresses(tmp_path: Path, host: str) -> None:
    async with servers(tmp_path, host) as cluster:
        port = cluster.name_server_address.rpartition(":")[2]
        said = f"[::1]:{port}" if host == "::1" else f"localhost:{port}"
        async with Producer("desk", name_server=said, client_options=ClientOptions()) as producer:
            result = await producer.send(Message("T", b"x"))
            assert result.offset_msg_id
            assert producer.instance.name_servers == (said,)


# --- the embedded broker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over_http", [False, True])
async def test_the_embedded_broker_registers_with_further_name_servers(tmp_path: Path, over_http: bool) -> None:
    async with servers(tmp_path / "far") as far:
        with HttpAddressServer(far.name_server_address) as address_server:
            said = address_server.url if over_http else f"{far.name_server_address};127.0.0.1:1"
            settings = {"namesrv-addr": said, "broker-name": "broker-z"}
            async with Admin(far.name_server_address) as admin:
                async with servers(tmp_path / "near", **settings) as near:
                    while "broker-z" not in (await admin.cluster()).brokers:
                        pass
                    async with Producer("desk", name_server=near.name_server_address) as producer:
                        await producer.send(Message("near-by", b"x"))
                    assert "near-by" in await admin.topic_names()
                assert "broker-z" not in (await admin.cluster()).brokers


@pytest.mark.usefixtures("quickly")
async def test_the_embedded_broker_leaves_a_name_server_that_is_not_told_any_more(tmp_path: Path) -> None:
    async with servers(tmp_path / "one") as one, servers(tmp_path / "two") as two:
        with HttpAddressServer(one.name_server_address) as address_server:
            settings = {"namesrv-addr": address_server.url, "broker-name": "broker-z"}
            async with (
                servers(tmp_path / "near", **settings),
                Admin(one.name_server_address) as at_one,
                Admin(two.name_server_address) as at_two,
            ):
                while "broker-z" not in (await at_one.cluster()).brokers:
                    pass
                address_server.answer = two.name_server_address
                while "broker-z" not in (await at_two.cluster()).brokers:
                    pass
                while "broker-z" in (await at_one.cluster()).brokers:
                    pass


def test_further_name_servers_that_are_none_are_refused_with_their_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"rocketbox\.embedded\.namesrv-addr: name server 'nowhere' is no"):
        EmbeddedOptions(data_dir=tmp_path, broker={"namesrv-addr": "nowhere"}).broker_options()
