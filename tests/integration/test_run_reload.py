"""``rocketbox run --reload``: real processes, which real changes of files restart."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest

from tests.support.framework.services import SETTINGS, Service, send_until_it_ends

SERVICE = """
import anyio
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("desk")

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: str) -> None:
    print(f"version 1 {departure}", flush=True)

@app.on_startup
async def send(template: RocketMQTemplate) -> None:
    await template.send("departures", "UA1")
"""

SLOW = """
class Tower:
    async def __aenter__(self) -> "Tower":
        return self

    async def __aexit__(self, *error: object) -> None:
        print("closing", flush=True)
        await anyio.sleep(SECONDS)

from rocketbox import bean

@bean
def tower() -> Tower:
    return Tower()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rocketbox.yaml").write_text(textwrap.dedent(SETTINGS) % {"folder": tmp_path})
    (tmp_path / "desk.py").write_text(SERVICE)
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_change_of_code_restarts_the_service_and_a_signal_stops_it_in_order(folder: Path) -> None:
    service = Service(folder, "run", "desk:app", "--reload")
    service.wait_for("version 1 UA1")
    change(folder / "desk.py", "version 1", "the second version")
    service.wait_for("desk.py changed: the service restarts")
    service.wait_for("the second version UA1")
    service.wait_for("desk is ready", times=2)
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output
    assert service.output.count("desk has stopped") == 2
    assert not (folder / "store" / "abort").exists()  # the store was closed
    assert "Traceback" not in service.output


def test_every_file_that_the_service_reads_restarts_it(folder: Path) -> None:
    change(folder / "desk.py", 'RocketBox("desk")', 'RocketBox("desk", config="etc/desk.yaml")')
    (folder / "etc").mkdir()
    (folder / "rocketbox.yaml").rename(folder / "etc" / "desk.yaml")
    with (folder / "etc" / "desk.yaml").open("a") as file:
        file.write("  config: {import: 'configtree:../secrets/'}\n  profiles: {group: {late: []}}\n")
    (folder / "secrets").mkdir()
    (folder / "secrets" / "desk.token").write_text("one")
    (folder / "lib" / "deep").mkdir(parents=True)
    (folder / "lib" / "__init__.py").write_text("")
    service = Service(folder, "run", "desk:app", "--reload", "--profile", "late")
    service.wait_for(f"watches {folder / 'etc'}")  # the code says it: known when the service is ready
    restarts = 0
    for name, text in {
        "etc/desk-late.yaml": "desk: {late: true}",
        "secrets/desk.token": "two",
        "lib/deep/tower.py": "",
        "more.py": "",
        ".env": "DESK_LATE=false",
    }.items():
        restarts += 1
        service.wait_for("desk is ready", times=restarts)
        service.wait_for("version 1 UA1", times=restarts)
        (folder / "notes.txt").write_text("no file of the service")
        (folder / "store" / "desk.py").write_text("nor is what lies among its data")
        (folder / name).write_text(text)
        service.wait_for(f"reloading: {name} changed: the service restarts")
    service.wait_for("desk is ready", times=restarts + 1)
    service.process.send_signal(signal.SIGINT)
    assert service.finish() == 0, service.output
    assert service.output.count("the service restarts") == restarts


def test_a_service_that_cannot_start_is_watched_until_a_change_mends_it(folder: Path) -> None:
    (folder / "desk.py").write_text(SERVICE + "x = (\n")
    service = Service(folder, "run", "desk:app", "--reload")
    service.wait_for("SyntaxError")
    service.wait_for("the service did not start (status 1); the next change of a file starts it again")
    (folder / "desk.py").write_text(SERVICE)
    service.wait_for("desk.py changed: the service starts again")
    service.wait_for("version 1 UA1")
    settings = (folder / "rocketbox.yaml").read_text()
    (folder / "rocketbox.yaml").write_text("rocketmq: {nam-server: embedded}\n")
    service.wait_for("did you mean rocketmq.name-server?")
    service.wait_for("the service did not start", times=2)
    (folder / "rocketbox.yaml").write_text(settings)
    service.wait_for("version 1 UA1", times=2)
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output
    assert "Traceback" not in service.output


def test_a_signal_while_nothing_runs_ends_with_the_status_of_the_service(folder: Path) -> None:
    (folder / "desk.py").write_text("x = (\n")
    service = Service(folder, "run", "desk:app", "--reload")
    service.wait_for("the service did not start (status 1)")
    service.process.send_signal(signal.SIGINT)
    assert service.finish() == 1, service.output


def test_a_change_while_the_service_still_stops_is_not_lost(folder: Path) -> None:
    (folder / "desk.py").write_text(SERVICE + SLOW.replace("SECONDS", "1"))
    service = Service(folder, "run", "desk:app", "--reload")
    service.wait_for("version 1 UA1")
    change(folder / "desk.py", "version 1", "the second version")
    service.wait_for("closing")
    change(folder / "desk.py", "the second version", "the third and last version")
    service.wait_for("the third and last version UA1")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output
    assert "the second version" not in service.output


def test_the_exit_code_is_that_of_the_service(folder: Path) -> None:
    (folder / "desk.py").write_text(SERVICE + SLOW.replace("SECONDS", "60"))
    service = Service(folder, "run", "desk:app", "--reload", "--rocketbox.shutdown.timeout=1.5s")
    service.wait_for("desk is ready")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 3, service.output


def test_a_second_signal_ends_parent_and_service_at_once(folder: Path) -> None:
    (folder / "desk.py").write_text(SERVICE + SLOW.replace("SECONDS", "60"))
    service = Service(folder, "run", "desk:app", "--reload")
    service.wait_for("desk is ready")
    service.process.send_signal(signal.SIGINT)
    service.wait_for("closing")
    send_until_it_ends(service.process, signal.SIGINT)
    assert service.finish() == 128 + signal.SIGINT, service.output
    assert "the service ends at once" in service.output


def test_a_service_that_ends_by_itself_ends_the_watching(folder: Path) -> None:
    change(folder / "desk.py", 'print(f"version 1 {departure}", flush=True)', "app.shutdown()")
    service = Service(folder, "run", "desk:app", "--reload")
    assert service.finish() == 0, service.output
    assert "the service has ended by itself" in service.output


def test_the_service_stops_in_order_when_its_parent_is_gone(folder: Path) -> None:
    service = Service(folder, "run", "desk:app", "--reload")
    service.wait_for("desk is ready")
    service.process.kill()
    service.finish()  # the service has the pipe as well: this returns when it has ended
    assert "desk has stopped" in service.output
    assert not (folder / "store" / "abort").exists()


def test_a_change_restarts_all_workers(folder: Path) -> None:
    service = Service(folder, "run", "desk:app", "--reload", "--workers", "2")
    service.wait_for("2 workers are ready")
    change(folder / "desk.py", "version 1", "the second version")
    service.wait_for("2 workers are ready", times=2)
    service.wait_for("the second version UA1", times=2)
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output
    assert service.output.count("name server listens on") == 2  # one for each round, not for each worker
    assert not (folder / "store" / "abort").exists()


def test_without_watchfiles_the_error_says_what_to_install(folder: Path) -> None:
    (folder / "watchfiles.py").write_text("raise ModuleNotFoundError('hidden', name='watchfiles')\n")
    service = Service(folder, "run", "desk:app", "--reload")
    assert service.finish() == 1
    assert 'pip install "rocketbox[reload]"' in service.output
    assert "Traceback" not in service.output
