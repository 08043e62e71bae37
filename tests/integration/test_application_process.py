"""A service as a process: the commands, signals, exit codes, and what stands on stdout and stderr."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.framework.services import SETTINGS, Service, send_until_it_ends

SERVICE = """
from __future__ import annotations

import time

import anyio
from pydantic import BaseModel
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("desk")

class Departure(BaseModel):
    flight: str
    seconds: float = 0.0

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: Departure) -> None:
    # One string: pieces would be torn apart by what a thread logs meanwhile.
    print(f"handling {departure.flight}", flush=True)
    await anyio.sleep(departure.seconds)
    print(f"handled {departure.flight}", flush=True)

@rocketmq_listener(topic="arrivals", consumer_group="arrivals")
def on_arrival(arrival: Departure) -> None:
    print(f"handling {arrival.flight}", flush=True)
    time.sleep(arrival.seconds)
    print(f"handled {arrival.flight}", flush=True)

@app.on_startup
async def send(template: RocketMQTemplate) -> None:
    await template.send(TOPIC, Departure(flight="UA1", seconds=SECONDS))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rocketbox.yaml").write_text(textwrap.dedent(SETTINGS) % {"folder": tmp_path})
    write_service(tmp_path)
    return tmp_path


def write_service(folder: Path, *, topic: str = "departures", seconds: float = 0.0) -> None:
    (folder / "desk.py").write_text(SERVICE.replace("TOPIC", repr(topic)).replace("SECONDS", str(seconds)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_service_in_order_after_its_running_handler(folder: Path, number: signal.Signals) -> None:
    write_service(folder, seconds=0.5)
    service = Service(folder, "run", "desk:app")
    service.wait_for("handling UA1")
    service.wait_for("desk is ready")
    service.process.send_signal(number)
    assert service.finish() == 0, service.output
    assert "handled UA1" in service.output
    assert "desk has stopped" in service.output
    assert "Traceback" not in service.output
    assert not (folder / "store" / "abort").exists()  # the store was closed


def test_a_handler_that_takes_too_long_is_cancelled_and_the_rest_stops_in_order(folder: Path) -> None:
    write_service(folder, seconds=60)
    service = Service(folder, "run", "desk:app", "--rocketbox.shutdown.timeout=3s")
    service.wait_for("handling UA1")
    service.wait_for("desk is ready")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output  # the drain had 75 % of the time, the rest was enough for the rest
    assert "handled UA1" not in service.output
    assert "1 handlers still run after 2.25 s" in service.output


def test_a_stop_that_hangs_is_cut_short_and_has_its_own_exit_code(folder: Path) -> None:
    with (folder / "desk.py").open("a") as file:
        file.write(
            """
from rocketbox import bean

class Tower:
    async def __aenter__(self) -> "Tower":
        return self

    async def __aexit__(self, *error: object) -> None:
        print("closing", flush=True)
        await anyio.sleep(60)

@bean
def tower() -> Tower:
    return Tower()
"""
        )
    service = Service(folder, "run", "desk:app", "--rocketbox.shutdown.timeout=2s")
    service.wait_for("desk is ready")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 3, service.output
    assert "the stop took longer than 2 s; phase beans was cut short" in service.output
    assert "Traceback" not in service.output


def test_a_def_handler_that_does_not_end_does_not_keep_the_process(folder: Path) -> None:
    write_service(folder, topic="arrivals", seconds=60)
    service = Service(folder, "run", "desk:app", "--rocketbox.shutdown.timeout=1s")
    service.wait_for("handling UA1")
    service.wait_for("desk is ready")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() in (0, 3), service.output
    assert "a def handler still runs in its thread" in service.output


def test_a_second_signal_ends_the_process_at_once(folder: Path) -> None:
    write_service(folder, seconds=60)
    service = Service(folder, "run", "desk:app")
    service.wait_for("handling UA1")
    service.wait_for("desk is ready")
    service.process.send_signal(signal.SIGTERM)
    service.wait_for("once more ends it at once")
    send_until_it_ends(service.process, signal.SIGTERM)
    assert service.finish() == 128 + signal.SIGTERM
    assert "ends at once" in service.output


def test_a_signal_during_the_start_ends_the_start(folder: Path) -> None:
    service_file = folder / "desk.py"
    service_file.write_text(
        service_file.read_text() + "\n@app.on_startup\nasync def slow() -> None:\n"
        "    print('slowly', flush=True)\n    await anyio.sleep(60)\n"
    )
    service = Service(folder, "run", "desk:app")
    service.wait_for("slowly")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output
    assert "is ready" not in service.output
    assert "Traceback" not in service.output


def test_check_lists_the_listeners_and_connects_to_nothing(folder: Path) -> None:
    service = Service(folder, "check", "desk:app", "--rocketmq.name-server=127.0.0.1:1")
    assert service.finish() == 0, service.output
    assert "listener on_departure (desk.py:" in service.output
    assert "desk: nothing is wrong" in service.output


def test_check_finds_everything_wrong_together(folder: Path) -> None:
    arguments = ("--rocketmq.producer.send-message-timeout=soon", "--rocketmq.producr.group=x")
    service = Service(folder, "check", "desk:app", *arguments)
    assert service.finish() == 1
    assert "1. " in service.output
    assert "2. " in service.output
    assert "did you mean" in service.output
    assert "Traceback" not in service.output


def test_conditions_are_printed(folder: Path) -> None:
    service = Service(folder, "conditions", "desk:app", "--rocketmq.name-server=127.0.0.1:1")
    assert service.finish() == 0
    assert "CONDITIONS REPORT" in service.output
    assert "embedded_servers" in service.output.partition("Not taken:")[2]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere:app", "No module named 'nowhere'"),
        ("desk:application", "desk:application is no RocketBox"),
    ],
)
def test_a_wrong_target_is_explained(folder: Path, target: str, says: str) -> None:
    service = Service(folder, "run", target)
    assert service.finish() == 1
    assert says in service.output
    assert "fix:" in service.output
    assert "Traceback" not in service.output


def test_a_profile_and_a_settings_file_can_be_named(folder: Path) -> None:
    (folder / "other.yaml").write_text((folder / "rocketbox.yaml").read_text())
    (folder / "other-late.yaml").write_text("rocketmq: {consumer: {listeners: {desk: {concurrency: 3}}}}\n")
    service = Service(folder, "check", "desk:app", "--config", "other.yaml", "--profile", "late")
    assert service.finish() == 0, service.output
    assert "concurrency 3" in service.output
    assert "said in other-late.yaml:1" in service.output


def test_full_collections_pass_over_what_the_start_has_loaded(folder: Path) -> None:
    script = (
        "import gc, desk\n"
        "desk.app.run(on_ready=lambda _: (print('passed over', gc.get_freeze_count() > 10_000), desk.app.shutdown()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "passed over True" in done.stdout
