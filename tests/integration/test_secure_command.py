"""``rocketbox secure init``: what it writes works at once, is for this user alone, and replaces nothing unasked."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rocketbox.cli.app import app
from rocketbox.client import ClientOptions, Producer, TlsOptions
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.message import Message
from tests.support.broker.broker_process import BrokerProcess
from tests.support.framework.services import ServiceMaker

FIRST_USER = "rocketbox.embedded.init-authentication-user"
FILES = {
    "ca.pem", "ca-key.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem", "client-keys.yml",
    f"server-secrets/{FIRST_USER}",
}  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def init(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["secure", "init", *arguments])
    return done.exit_code, done.output


def state_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_are_for_this_user_alone_and_no_secret_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    status, output = init("--directory", str(folder), "broker.example.org", "10.0.0.7")
    assert status == 0
    made = state_of(folder)
    assert made.keys() == FILES | {".gitignore"}
    for name in FILES:
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE((folder / "server-secrets").stat().st_mode) == 0o700
    (secret,) = [line[11:] for line in made["client-keys.yml"].decode().splitlines() if line.startswith("secretKey: ")]
    assert len(secret) == 64
    assert secret not in output
    said = yaml.safe_load(output)
    assert said["rocketbox"]["embedded"]["broker-ip1"] == said["rocketmq"]["tls"]["server-name"] == "broker.example.org"
    assert "--host 0.0.0.0 --broker-ip1 broker.example.org " in output
    assert "PRIVATE KEY" not in output
    assert "$(cat" not in output, "arguments of a process are seen by every user of the machine"
    assert f"--secrets-directory {folder / 'server-secrets'}" in output
    assert secret.encode() in made["server-secrets/rocketbox.embedded.init-authentication-user"]


CERTIFICATES = {"ca.pem", "server.pem", "client.pem"}


def seen_by_git(folder: Path) -> set[str]:
    """The files that ``git add -A`` would add."""
    git = ["git", "-C", str(folder)]
    subprocess.run([*git, "init", "-q"], capture_output=True, check=True, timeout=60)
    listed = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard"], capture_output=True, text=True, check=True, timeout=60
    )
    return set(listed.stdout.splitlines())


@pytest.mark.parametrize("there", [[], ["app.py"], ["app.py", "ca.pem", "server-secrets/another"]], ids=len)
def test_git_leaves_out_the_keys_and_nothing_else(tmp_path: Path, there: list[str]) -> None:
    """In a new folder, in a project, and in one where they are replaced; what is written later is seen."""
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    status, output = init("--directory", str(tmp_path), "--overwrite")
    assert status == 0
    assert ".gitignore" not in output
    (tmp_path / "later.py").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "ca-key.pem").touch()
    expected = CERTIFICATES | {".gitignore", "app.py", "later.py", "tests/ca-key.pem"}
    assert seen_by_git(tmp_path) == (expected if there else expected - {"app.py"})


@pytest.mark.parametrize(
    ("lines", "lacking"),
    [
        ("", ["ca-key.pem", "server-key.pem", "client-key.pem", "client-keys.yml", "server-secrets/"]),
        ("# *\n*.pyc\n/ca-key.pem\nclient-keys.yml  \n", ["server-key.pem", "client-key.pem", "server-secrets/"]),
        ("*-key.pem\n**/client-keys.yml\nserver-secrets\n", []),
        ("*-key.pem/\n/client-keys.*\nserver-secrets/\n", ["ca-key.pem", "server-key.pem", "client-key.pem"]),
        ("*\n", []),
        ("*\n!client-*\n", ["client-key.pem", "client-keys.yml"]),
        ("!client-*\n*\n", []),
        ("*.pem\n*.yml\nserver-secrets/*\n!/server-secrets/rocketbox*\n", ["server-secrets/"]),
    ],
)
def test_what_a_gitignore_lacks_is_said_and_it_stays_as_it_is(tmp_path: Path, lines: str, lacking: list[str]) -> None:
    ignoring = tmp_path / ".gitignore"
    ignoring.write_text(lines)
    status, output = init("--directory", str(tmp_path))
    assert status == 0
    assert ignoring.read_text() == lines
    told = "".join(f"#   /{name}\n" for name in lacking)
    head = f"# Add to {ignoring}, so that nobody commits the keys:\n{told}" if lacking else ""
    assert output.startswith(f"{head}# In {tmp_path}: keep ca-key.pem elsewhere")
    seen = seen_by_git(tmp_path)
    assert [name for name in lacking if not any(file.startswith(name) for file in seen)] == []
    with ignoring.open("a") as file:
        file.writelines(f"/{name}\n" for name in lacking)
    assert not seen_by_git(tmp_path) & (FILES - CERTIFICATES)


def test_a_gitignore_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").mkdir()
    status, output = init("--directory", str(tmp_path))
    assert status == 1
    assert f"{tmp_path / '.gitignore'} cannot be read: Is a directory" in output
    assert not state_of(tmp_path)


def test_certificates_are_what_openssl_takes_for_them(tmp_path: Path) -> None:
    init("--directory", str(tmp_path), "broker.example.org", "10.0.0.7", "--days", "7")
    for name, purpose in (("server", "sslserver"), ("server", "sslclient"), ("client", "sslclient")):
        command = ["verify", "-x509_strict", "-purpose", purpose, "-CAfile", "ca.pem", f"{name}.pem"]
        assert openssl(tmp_path, *command) == f"{name}.pem: OK\n"
    with pytest.raises(subprocess.CalledProcessError):
        openssl(tmp_path, "verify", "-purpose", "sslserver", "-CAfile", "ca.pem", "client.pem")
    shown = openssl(tmp_path, "x509", "-in", "server.pem", "-noout", "-text")
    for name in ("DNS:broker.example.org", "IP Address:10.0.0.7", "DNS:localhost", "IP Address:127.0.0.1"):
        assert name in shown
    assert "BEGIN PRIVATE KEY" in (tmp_path / "server-key.pem").read_text(), "PKCS#8, which Java reads"


def openssl(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    init("--directory", str(tmp_path))
    (tmp_path / "server.pem").unlink()
    (tmp_path / "server.pem").symlink_to(tmp_path / "elsewhere")
    before = state_of(tmp_path)
    status, output = init("--directory", str(tmp_path))
    assert status == 1
    assert "server.pem" in output
    assert "--overwrite" in output
    assert state_of(tmp_path) == before
    assert init("--directory", str(tmp_path), "--overwrite")[0] == 0
    after = state_of(tmp_path)
    assert after.keys() == FILES | {".gitignore"}, "and the link is no link any more"
    assert all(after[name] != before[name] for name in before.keys() - {".gitignore"})
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("own", [".", "server-secrets"])
def test_a_directory_that_everybody_may_write_to_is_refused(tmp_path: Path, own: str) -> None:
    """Whoever may write there can replace the CA that clients believe, and add to the settings of the servers."""
    (tmp_path / "made").mkdir()
    opened = tmp_path / "made" / own
    opened.mkdir(exist_ok=True)
    opened.chmod(0o777)
    status, output = init("--directory", str(tmp_path / "made"))
    assert status == 1
    assert "may be written to by everybody" in output
    assert f"chmod o-w {opened.resolve()}" in output
    assert not state_of(tmp_path)
    opened.chmod(0o775)
    assert init("--directory", str(tmp_path / "made"))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a b"], "'a b' is neither a host's name nor an IP address"),
        (["x.example:9876"], "'x.example:9876' is neither"),
        (["x.example, IP:6.6.6.6"], "is neither"),
        (["x\nsubjectAltName=DNS:y"], "is neither"),
        (["--user", "a b c d"], "--user is 'a b c d', which cannot be a user's name"),
    ],
)
def test_what_no_certificate_can_say_is_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    status, output = init("--directory", str(tmp_path / "new"), *arguments)
    assert status == 1
    assert said in output
    assert not (tmp_path / "new").exists()


def test_all_is_replaced_or_nothing(tmp_path: Path) -> None:
    """Servers that have a new CA and clients that have the old one would not find together."""
    assert init("--directory", str(tmp_path))[0] == 0
    (tmp_path / "client-keys.yml").unlink()
    (tmp_path / "client-keys.yml").mkdir()
    before = state_of(tmp_path)
    status, output = init("--directory", str(tmp_path), "--overwrite")
    assert status == 1
    assert "client-keys.yml is a directory" in output
    assert state_of(tmp_path) == before


def test_a_pattern_of_names_is_no_address_of_a_server(tmp_path: Path) -> None:
    status, output = init("--directory", str(tmp_path), "*.example.org", "broker.example.org")
    assert status == 0
    said = yaml.safe_load(output)
    assert said["rocketmq"]["name-server"] == "broker.example.org:9876"
    assert said["rocketbox"]["embedded"]["broker-ip1"] == said["rocketmq"]["tls"]["server-name"] == "broker.example.org"
    status, output = init("--directory", str(tmp_path / "other"), "*.example.org")
    assert status == 1
    assert "'*.example.org' is no name at which clients reach a server" in output


def test_a_directory_with_spaces_may_stand_in_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "my files"
    _, output = init("--directory", str(folder))
    arguments = arguments_of(output)
    assert arguments[arguments.index("--tls-server-cert-path") + 1] == str(folder / "server.pem")
    assert arguments[arguments.index("--secrets-directory") + 1] == str(folder / "server-secrets")


@pytest.mark.parametrize("odd", ["\n", "\r", "\x7f", "\x1b", "\x85", "\u2028", "\udcff", "\ufffe"], ids=ascii)
def test_a_directory_whose_name_no_line_of_settings_can_hold_is_refused(tmp_path: Path, odd: str) -> None:
    folder = tmp_path / f"a{odd}rocketmq: b"
    status, output = init("--directory", str(folder / "secure"))
    assert status == 1
    assert ascii(odd)[1:-1] in output
    assert "has a control character, or one that is no UTF-8, which settings cannot hold" in output
    assert "choose another --directory" in output
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_openssl_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, output = init("--directory", str(tmp_path / "new"))
    assert status == 1
    assert "there is no openssl on the PATH" in output
    assert not (tmp_path / "new").exists()


@pytest.mark.anyio
@pytest.mark.parametrize("names", [(), ("::1",), ("127.0.0.1",)], ids=["none", "ipv6", "ipv4"])
async def test_the_settings_that_are_printed_secure_servers_and_clients(tmp_path: Path, names: tuple[str, ...]) -> None:
    _, output = init(*names, "--directory", str(tmp_path / "secure"))
    said: dict[str, Any] = yaml.safe_load(output)
    embedded = said["rocketbox"]["embedded"]
    assert said["rocketbox"]["config.import"] == f"configtree:{tmp_path / 'secure' / 'server-secrets'}"
    host = embedded.pop("host")
    options = EmbeddedOptions(
        data_dir=tmp_path / "store", host=host, port=0, name_server_port=0,
        broker={name: value for name, value in embedded.items() if name.startswith("tls-")},
    )  # fmt: skip
    tls = said["rocketmq"]["tls"]
    assert tls.pop("enable") is True
    paths: Any = {name.replace("-", "_"): Path(value) for name, value in tls.items()}
    client = ClientOptions(tls_enable=True, tls=TlsOptions(**paths))
    at, _, _ = said["rocketmq"]["name-server"].rpartition(":")
    async with EmbeddedServers(options) as servers:
        _, _, port = servers.name_server_address.rpartition(":")
        async with Producer("p", name_server=f"{at}:{port}", client_options=client) as producer:
            await producer.send(Message("departures", b"UA1545"))


ODD = "50% of Käthe's ${files}, new"
SENDS = """
from rocketbox import RocketBox

app = RocketBox("desk", scan=[__name__])
"""


@pytest.mark.anyio
async def test_the_settings_that_are_printed_work_in_a_directory_of_an_odd_name(
    tmp_path: Path, service: ServiceMaker
) -> None:
    """Servers in the service and as a process, and its clients."""
    folder = tmp_path / ODD
    _, output = init("--directory", str(folder))
    assert {path.name for path in folder.iterdir()} >= {"ca.pem", "server-secrets"}
    ports = {"port": 0, "name-server-port": 0, "data-dir": str(tmp_path / "here")}
    one = service(SENDS, None)
    (tmp_path / "rocketbox.yaml").write_text(output)
    settings: dict[str, Any] = {"rocketmq": {"producer": {"group": "desk"}}}
    embedded = {"rocketmq": {**settings["rocketmq"], "name-server": "embedded"}, "rocketbox": {"embedded": ports}}
    async with one.app.started(settings=embedded) as app:
        await app.template.send("departures", "UA1545")
    with BrokerProcess(tmp_path / "there", *arguments_of(output)) as broker:
        there = {"rocketmq": {**settings["rocketmq"], "name-server": broker.name_server}}
        async with one.app.started(settings=there) as app:
            await app.template.send("departures", "UA1546")
        told = json.loads((folder / "server-secrets" / FIRST_USER).read_text())["password"]
        assert broker.stop() == 0
    assert told not in "".join(broker.errors)


def arguments_of(output: str) -> list[str]:
    """Those of the command that is printed, without where the store is."""
    lines = [line.removeprefix("#").removesuffix("\\") for line in output.splitlines() if line.startswith("#   ")]
    return shlex.split("".join(lines))[4:]


@pytest.mark.parametrize(
    ("name", "listens"), [("fd00::7", "::"), ("10.0.0.7", "0.0.0.0"), ("broker.example.org", "0.0.0.0")]
)
def test_servers_of_other_machines_listen_on_addresses_of_the_kind_they_are_reached_at(
    tmp_path: Path, name: str, listens: str
) -> None:
    _, output = init(name, "--directory", str(tmp_path / "secure"))
    embedded = yaml.safe_load(output)["rocketbox"]["embedded"]
    assert (embedded["host"], embedded["broker-ip1"]) == (listens, name)
    assert f" --host {listens} --broker-ip1 {name} " in output


def test_none_of_the_settings_that_are_printed_is_taken_for_a_secret(tmp_path: Path) -> None:
    _, output = init("--directory", str(tmp_path / "secure"))
    settings = tmp_path / "rocketbox.yaml"
    settings.write_text(output)
    settings.chmod(0o644)
    done = CliRunner().invoke(app, ["config", f"--config={settings}"])
    lines = [" ".join(line.partition("#")[0].split()) for line in done.output.splitlines()]
    assert "tls-server-need-client-auth: require" in lines
    masked = [line for line in lines if "******" in line and "canary" not in line]
    assert masked == ["init-authentication-user: ******"]
    assert "holds a secret" not in done.output
