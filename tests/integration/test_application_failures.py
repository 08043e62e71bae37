"""What a user reads when a service does not start: what is wrong, where it was written, what to do; all at once."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rocketbox.cli.app import app as cli
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from tests.support.file_rights import bound_to_file_modes
from tests.support.framework.failure_cases import CASES, EMBEDDED, HEAD, LISTENER, Case
from tests.support.framework.services import SETTINGS, ServiceMaker
from tests.support.golden import golden

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "failures"


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())


def run(module: object, capsys: pytest.CaptureFixture[str], case: Case | None = None) -> str:
    """What the service writes on stderr when it is run and does not start; names that change are made the same."""
    told = case or Case()
    with pytest.raises(SystemExit) as ended:
        module.app.run(config=told.config, profiles=told.profiles, arguments=told.arguments)  # type: ignore[attr-defined]
    assert ended.value.code == 1
    return stable(capsys.readouterr().err)


def stable(text: str) -> str:
    """The text with names that change from run to run made the same."""
    text = re.sub(r"127\.0\.0\.1:\d{4,}", "127.0.0.1:PORT", text)
    text = re.sub(r"service_\d+", "service", text.replace(str(ROOT) + "/", "").replace(f"{Path.cwd()}/", ""))
    return re.sub(r"(rocketbox/[\w/]+\.py):\d+", r"\1:LINE", text)  # where our own source stands is no promise


@pytest.mark.parametrize("name", CASES)
def test_a_failed_start_says_what_where_and_what_to_do(
    name: str,
    service: ServiceMaker,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = CASES[name]
    write(tmp_path, case.files)
    if isinstance(case.settings, bytes):
        (tmp_path / "rocketbox.yaml").write_bytes(case.settings)
    if case.prepare is not None:
        case.prepare(tmp_path)
    for variable, value in case.environ.items():
        monkeypatch.setenv(variable, value)
    module = service(HEAD + case.source, case.settings if isinstance(case.settings, str) else None)
    text = run(module, capsys, case)
    assert text == golden(GOLDEN / f"{name}.txt", text)
    assert "Traceback" not in text


def test_a_port_in_use(service: ServiceMaker, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = SETTINGS.replace("{port: 0", f"{{port: {port}")
        text = run(service(HEAD + LISTENER, settings), capsys).replace(str(port), "PORT")
    assert text == golden(GOLDEN / "port_in_use.txt", text)


def test_an_import_that_fails_is_named_with_its_line(
    service: ServiceMaker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    package = tmp_path / "desk_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "lake.py").write_text("import json\nimport pyspark_of_nobody\n")
    module = service("from rocketbox import RocketBox\napp = RocketBox('desk', scan=['desk_package'])\n")
    text = run(module, capsys)
    assert text == golden(GOLDEN / "import_fails.txt", text)


def test_without_pyspark_the_extra_is_named(
    service: ServiceMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):  # other tests may have loaded it
        if name.startswith(("pyspark.", "rocketbox.spark.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    module = service(
        HEAD
        + """
from rocketbox import rocketmq_spark_listener

@rocketmq_spark_listener(topic="departures", consumer_group="lake")
def to_lake(departures) -> None: ...
""",
        "rocketmq: {name-server: embedded}",
    )
    text = run(module, capsys)
    assert text == golden(GOLDEN / "missing_pyspark.txt", text)


def test_a_store_in_use(service: ServiceMaker, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    servers = EmbeddedServers.in_thread(EmbeddedOptions(data_dir=tmp_path / "store", port=0, name_server_port=0))
    with servers:
        text = run(service(HEAD + LISTENER), capsys)
    assert text == golden(GOLDEN / "store_in_use.txt", text)


def test_a_broker_in_the_place_of_a_name_server(
    service: ServiceMaker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    servers = EmbeddedServers.in_thread(EmbeddedOptions(data_dir=tmp_path / "store", port=0, name_server_port=0))
    with servers:
        settings = f"rocketmq: {{name-server: '{servers.broker_address}'}}\n"
        text = run(service(HEAD + LISTENER, settings), capsys)
    assert text == golden(GOLDEN / "broker_in_the_place_of_a_name_server.txt", text)


def test_a_module_with_a_wrong_line(service: ServiceMaker, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(
        tmp_path,
        {"desk_with_faults/__init__.py": "", "desk_with_faults/lake.py": "def to_lake(:\n    pass\n"},
    )
    module = service("from rocketbox import RocketBox\napp = RocketBox('desk', scan=['desk_with_faults'])\n")
    text = run(module, capsys)
    assert text == golden(GOLDEN / "module_with_a_wrong_line.txt", text)


def test_an_application_that_is_not_there(service: ServiceMaker) -> None:
    module = service("from rocketbox import RocketBox\ndesk_app = RocketBox('desk')\n")
    results = [CliRunner().invoke(cli, ["check", name]) for name in (module.__name__, "module_of_nobody:app")]
    assert [result.exit_code for result in results] == [1, 1]
    text = stable("".join(result.output for result in results))
    assert text == golden(GOLDEN / "application_that_is_not_there.txt", text)


def test_auto_configurations_of_others_that_are_broken(
    service: ServiceMaker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    points = "[rocketbox.autoconfigure]\naudit = audit_kit_of_tests\nlake = lake_kit_of_nobody\nnight = json:loads\n"
    write(
        tmp_path,
        {
            "audit_kit-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: audit-kit\nVersion: 1.2\n",
            "audit_kit-1.2.dist-info/entry_points.txt": points,
            "audit_kit_of_tests.py": "raise RuntimeError('no licence')\n",
        },
    )
    text = run(service(HEAD + LISTENER, CASES["unknown_cluster"].settings), capsys)
    assert text == golden(GOLDEN / "broken_auto_configurations_of_others.txt", text)


# --- what is no failure --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "concurrency"),
    [
        (b"\xef\xbb\xbfrocketmq: {name-server: embedded, consumer: {concurrency: 3}}\n", 3),
        (b"", None),
        (b"# nothing but a comment\n---\n---\nrocketmq:\n", None),
        (b"rocketmq: {name-server: embedded, consumer: {concurrency: 3}}\r\n", 3),
    ],
)
def test_files_with_a_byte_order_mark_and_empty_ones_are_read(
    service: ServiceMaker, tmp_path: Path, content: bytes, concurrency: int | None
) -> None:
    (tmp_path / "rocketbox.yaml").write_bytes(content)
    assembly = service(HEAD, None).app.check()
    assert assembly.settings.value("rocketmq.consumer.concurrency") == concurrency


def test_variables_that_are_nobodys_are_never_refused(service: ServiceMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ROCKETMQ_PRODUCER_GRUOP": "x",
        "ROCKETMQ_HOME": "/opt/rocketmq",
        "ROCKETMQ_SERVICE_HOST": "10.0.0.1",
        "ROCKETMQ_NAME_SERVER_PORT": "tcp://10.0.0.1:9876",
        "ROCKETBOX_EMBEDED_PORT": "many",
        "ROCKETBOX_": "x",
    }.items():
        monkeypatch.setenv(name, value)
    assembly = service(HEAD + LISTENER, EMBEDDED).app.check()
    assert assembly.warnings == []


def test_a_file_that_this_user_may_not_read(
    service: ServiceMaker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    module = service(HEAD + LISTENER, EMBEDDED)
    (tmp_path / "rocketbox.yaml").chmod(0o200)
    with bound_to_file_modes():
        assert "rocketbox.yaml cannot be read: Permission denied" in run(module, capsys)


# --- tracebacks, secrets -------------------------------------------------------------------------------------------


def test_debug_shows_the_traceback(
    service: ServiceMaker, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    module = service(HEAD + LISTENER, "rocketmq: {name-server: '127.0.0.1:1'}")
    with pytest.raises(SystemExit):
        module.app.run(debug=True)
    assert "APPLICATION FAILED TO START" in capsys.readouterr().err
    assert "Traceback" in caplog.text


def test_a_secret_is_not_shown(service: ServiceMaker, capsys: pytest.CaptureFixture[str]) -> None:
    module = service(
        HEAD
        + """
from pydantic import SecretStr

@configuration_properties("bank")
class BankProperties(BaseModel):
    password: SecretStr
    port: int

@bean
def desk(properties: BankProperties) -> Departure:
    raise ValueError(f"wrong: {properties.password.get_secret_value()}")
""",
        "bank: {password: hunter2-of-the-bank, port: 7}",
    )
    text = run(module, capsys)
    assert "hunter2" not in text
    assert "ValueError: wrong: ******" in text
