"""What a user reads when a service does not start: what is wrong, where it was written, what to do; all at once."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import SETTINGS, ServiceMaker, service_maker

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "failures"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceMaker]:
    yield from service_maker(tmp_path, monkeypatch)


HEAD = """
from pydantic import BaseModel
from rocketbox import RocketBox, RocketMQTemplate, bean, configuration_properties, rocketmq_listener, send_to

app = RocketBox("flight-desk", scan=[__name__])

class Departure(BaseModel):
    flight: str
"""

LISTENER = """
@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: Departure) -> None: ...
"""


CASES: dict[str, tuple[str, str | None]] = {
    "unknown_key": (
        LISTENER,
        """
        rocketmq:
          name-server: embedded
          producer: {group: desk, send-message-timeot: 5s}
        """,
    ),
    "unknown_option_of_a_listener": (
        LISTENER,
        """
        rocketmq:
          name-server: embedded
          consumer:
            listeners:
              desk:
                concurency: 64
        """,
    ),
    "unknown_topic_in_a_switch": (
        LISTENER,
        """
        rocketmq:
          name-server: embedded
          consumer: {listeners: {desk: {departurs: false}}}
        """,
    ),
    "wrong_types": (
        LISTENER
        + """
@configuration_properties("desk")
class DeskProperties(BaseModel):
    threshold_minutes: int = 60
""",
        """
        rocketmq:
          name-server: embedded
          producer: {group: desk, send-message-timeout: soon, retry-times-when-send-failed: -1}
          consumer: {listeners: {desk: {concurrency: many, consume-timeout: 15, consume-mode: sorted}}}
        desk:
          threshold-minutes: late
        """,
    ),
    "value_out_of_range": (
        LISTENER,
        """
        rocketmq:
          name-server: embedded
          consumer:
            listeners:
              desk: {concurrency: 0}
        """,
    ),
    "blank_name_server": (LISTENER, "rocketmq: {name-server: '${NAMESRV:}'}"),
    "unresolved_placeholder": (LISTENER, "rocketmq: {name-server: '${NAMESRV_OF_NOBODY}'}"),
    "missing_producer_group_with_a_send_to": (
        """
@rocketmq_listener(topic="departures", consumer_group="desk")
@send_to("alerts")
async def on_departure(departure: Departure) -> dict[str, str] | None:
    return None
""",
        "rocketmq: {name-server: embedded}",
    ),
    "missing_producer_group_with_a_template_in_a_handler_and_a_bean": (
        """
class Desk: ...

@bean
def desk(template: RocketMQTemplate) -> Desk:
    return Desk()

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: Departure, template: RocketMQTemplate, desk: Desk) -> None: ...
""",
        "rocketmq: {name-server: embedded}",
    ),
    "missing_name_server_with_a_listener": (LISTENER, None),
    "wrong_signatures": (
        """
class Desk: ...

@rocketmq_listener(topic="departures", consumer_group="a")
async def two_payloads(departure: Departure, alert: dict[str, str]) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="b")
def async_template_in_a_thread(departure: Departure, template: RocketMQTemplate) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="c")
async def no_bean(departure: Departure, desk: Desk) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="d")
async def no_hint(departure) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="e", consume_timeout="15")
async def time_without_a_unit(departure: Departure) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="f", concurrency=3)
async def first_of_group(departure: Departure) -> None: ...

@rocketmq_listener(topic="arrivals", consumer_group="f", concurrency=4)
async def second_of_group(arrival: Departure) -> None: ...
""",
        "rocketmq: {name-server: embedded, producer: {group: desk}}",
    ),
    "other_address_without_insecure": (
        LISTENER,
        """
        rocketmq: {name-server: embedded}
        rocketbox:
          embedded: {host: 0.0.0.0, data-dir: store}
        """,
    ),
    "unknown_setting_of_the_embedded_servers": (
        LISTENER,
        """
        rocketmq: {name-server: embedded}
        rocketbox:
          embedded:
            data-dir: store
            flush-disk-typ: ASYNC_FLUSH
        """,
    ),
    "nobody_answers": (LISTENER, "rocketmq: {name-server: '127.0.0.1:1'}"),
    "missing_topic": (
        LISTENER,
        SETTINGS.replace("producer:", "consumer: {missing-topic: fail}\n  producer:"),
    ),
    "bean_that_fails": (
        """
class Desk: ...

@bean
def desk() -> Desk:
    raise ValueError("no seat is free")
""",
        "rocketmq: {}",
    ),
}


def run(module: object, capsys: pytest.CaptureFixture[str]) -> str:
    """What the service writes on stderr when it is run and does not start; names that change are made the same."""
    with pytest.raises(SystemExit) as ended:
        module.app.run()  # type: ignore[attr-defined]
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
    name: str, service: ServiceMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    source, settings = CASES[name]
    text = run(service(HEAD + source, settings), capsys)
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
