"""What a user reads when a service does not start: what is wrong, where it was written, what to do; all at once."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.failure_cases import CASES, HEAD, LISTENER, Case
from tests.services import SETTINGS, ServiceMaker, service_maker

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "failures"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceMaker]:
    yield from service_maker(tmp_path, monkeypatch)


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
    text = re.sub(r"127\.0\.0\.1:\d{4,}", "127.0.0.1:PORT", capsys.readouterr().err)
    text = re.sub(r"service_\d+", "service", text.replace(str(ROOT) + "/", "").replace(f"{Path.cwd()}/", ""))
    return re.sub(r"(rocketbox/[\w/]+\.py):\d+", r"\1:LINE", text)  # where our own source stands is no promise


def golden(name: str, text: str) -> str:
    """The text that is right; REWRITE_GOLDEN=1 in the environment takes what there is now, to be read and committed."""
    file = GOLDEN / f"{name}.txt"
    if "REWRITE_GOLDEN" in os.environ:
        file.write_text(text)
    return file.read_text()


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
    assert text == golden(name, text)
    assert "Traceback" not in text


def test_a_port_in_use(service: ServiceMaker, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = SETTINGS.replace("{port: 0", f"{{port: {port}")
        text = run(service(HEAD + LISTENER, settings), capsys).replace(str(port), "PORT")
    assert text == golden("port_in_use", text)


def test_an_import_that_fails_is_named_with_its_line(
    service: ServiceMaker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    package = tmp_path / "desk_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "lake.py").write_text("import json\nimport pyspark_of_nobody\n")
    module = service("from rocketbox import RocketBox\napp = RocketBox('desk', scan=['desk_package'])\n")
    text = run(module, capsys)
    assert text == golden("import_fails", text)


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
    assert text == golden("missing_pyspark", text)


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
