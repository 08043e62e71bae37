"""``rocketbox run --workers N``: real processes that share a consumer group, die, and are stopped together."""

from __future__ import annotations

import os
import re
import signal
import textwrap
from pathlib import Path

import anyio
import pytest

from rocketbox.client import Producer
from rocketbox.message import Message
from tests.support.framework.services import SETTINGS, Service, send_until_it_ends

SERVICE = """
import multiprocessing
import time

import anyio
from rocketbox import RocketBox, bean, rocketmq_listener

app = RocketBox("desk")

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: str) -> None:
    print(f"handled by {multiprocessing.current_process().name}", flush=True)
    if departure == "block":
        time.sleep(600)
    if departure == "shutdown":
        app.shutdown()
"""

TOWER = """
class Tower:
    async def __aenter__(self) -> "Tower":
        print("opening", flush=True)
        if FAILS:
            raise OSError("no power")
        return self

    async def __aexit__(self, *error: object) -> None:
        print("closing", flush=True)
        await anyio.sleep(SECONDS)

@bean
def tower() -> Tower:
    return Tower()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rocketbox.yaml").write_text(textwrap.dedent(SETTINGS) % {"folder": tmp_path})
    write_service(tmp_path)
    return tmp_path


def write_service(folder: Path, *, fails: str = "False", seconds: float = 0.0) -> None:
    tower = TOWER.replace("FAILS", fails).replace("SECONDS", str(seconds))
    (folder / "desk.py").write_text(SERVICE + tower)


def started(folder: Path, *arguments: str, count: int = 2) -> Service:
    service = Service(folder, "run", "desk:app", f"--workers={count}", *arguments)
    service.wait_for(f"{count} workers are ready")
    return service


def send(service: Service, *bodies: str) -> None:
    """Send messages, each to another queue."""
    found = re.search(r"name server (127\.0\.0\.1:\d+)\n", service.output)
    assert found

    async def produce(address: str) -> None:
        async with Producer("test", name_server=address) as producer:
            for body in bodies:
                await producer.send(Message("departures", body.encode()))

    anyio.run(produce, found[1])


def pid(service: Service, worker: int) -> int:
    return int(re.findall(rf"worker {worker} is process (\d+)", service.output)[-1])


def test_workers_share_the_group_and_the_embedded_servers(folder: Path) -> None:
    level = "--rocketbox.logging.level.rocketbox.client.assignment=debug"
    service = Service(folder, "run", "desk:app", "--workers", "2", level)
    service.wait_for("2 workers are ready")
    send(service, "UA1")  # the topic is new: who gets which of its queues is known a moment later
    service.wait_for("handled by worker")
    service.wait_for("[worker 1] rocketbox.client.assignment: group desk: takes MessageQueue(topic='departures'")
    service.wait_for("[worker 2] rocketbox.client.assignment: group desk: takes MessageQueue(topic='departures'")
    send(service, *(f"UA{number}" for number in range(8)))
    service.wait_for("handled by worker 1")
    service.wait_for("handled by worker 2")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output
    assert "[worker 1] rocketbox.application: desk has stopped" in service.output
    assert "[worker 2] rocketbox.application: desk has stopped" in service.output
    assert service.output.count("name server listens on") == 1
    assert not (folder / "store" / "abort").exists()  # the store was closed
    assert "Traceback" not in service.output


def test_a_worker_that_dies_is_started_again_after_a_pause_that_grows(folder: Path) -> None:
    service = started(folder)
    first = pid(service, 2)
    os.kill(first, signal.SIGKILL)
    service.wait_for(f"worker 2 (process {first}) died with status 137; again in 1 s")
    service.wait_for("worker 2 is process", times=2)
    service.wait_for("[worker 2] rocketbox.running: desk is ready", times=2)
    os.kill(pid(service, 2), signal.SIGKILL)
    service.wait_for("died with status 137; again in 2 s")
    service.process.send_signal(signal.SIGTERM)  # during the pause
    assert service.finish() == 0, service.output
    assert service.output.count("worker 1 is process") == 1
    assert service.output.count("worker 2 is process") == 2


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--rocketmq.name-server=127.0.0.1:1", "no name server answers"),  # found out by the worker
        ("--rocketmq.producr.group=desk", "did you mean rocketmq.producer"),  # by the parent
        ("--rocketbox.embedded.port=1.5", "rocketbox.embedded.port"),
        ("--rocketbox.embedded.host=192.0.2.1", "insecure"),  # by the servers' start
    ],
)
def test_what_is_wrong_at_the_start_is_told_once_and_ends_all(folder: Path, argument: str, says: str) -> None:
    service = Service(folder, "run", "desk:app", "--workers", "3", argument)
    assert service.finish() == 1, service.output
    assert service.output.count("APPLICATION FAILED TO START") == 1
    assert says in service.output
    assert "worker 2 is process" not in service.output
    assert "Traceback" not in service.output


def test_a_further_worker_that_cannot_start_ends_all(folder: Path) -> None:
    write_service(folder, fails="multiprocessing.current_process().name != 'worker 1'")
    service = Service(folder, "run", "desk:app", "--workers", "4")
    assert service.finish() == 1, service.output
    assert service.output.count("no power") == 1
    assert "worker 2 did not start (status 1): all workers end" in service.output
    assert "[worker 1] rocketbox.application: desk has stopped" in service.output


def test_shutdown_by_one_worker_ends_all_with_status_0(folder: Path) -> None:
    service = started(folder)
    send(service, "shutdown")
    assert service.finish() == 0, service.output
    assert re.search(r"worker \d has ended by itself: all workers end", service.output)
    assert service.output.count("rocketbox.application: desk has stopped") == 2


def test_a_stop_that_is_cut_short_in_a_worker_has_its_exit_code(folder: Path) -> None:
    write_service(folder, seconds=60)
    service = started(folder, "--rocketbox.shutdown.timeout=1.5s")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 3, service.output
    assert service.output.count("phase beans was cut short") == 2
    assert "and is ended" not in service.output  # they needed nobody's help


def test_a_worker_whose_loop_is_blocked_is_ended(folder: Path) -> None:
    service = started(folder, "--rocketbox.shutdown.timeout=0.5s", count=1)
    send(service, "block")
    service.wait_for("handled by")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 3, service.output
    assert "the stop has not ended within 0.5 s, and the process ends" in service.output
    assert "in on_departure holds it up" in service.output
    assert not (folder / "store" / "abort").exists()


def test_a_reload_waits_until_blocked_workers_are_ended_and_the_servers_are_closed(folder: Path) -> None:
    service = started(folder, "--reload", "--rocketbox.shutdown.timeout=0.5s")
    send(service, "block")
    service.wait_for("handled by")
    source = (folder / "desk.py").read_text()
    (folder / "desk.py").write_text(source.replace('departure == "block"', 'departure == "never"'))
    service.wait_for("the stop has not ended within 0.5 s, and the process ends")
    service.wait_for("2 workers are ready", times=2)
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output
    assert "the service has not stopped" not in service.output


def test_a_second_signal_ends_all_at_once(folder: Path) -> None:
    write_service(folder, seconds=60)
    service = started(folder)
    service.process.send_signal(signal.SIGTERM)
    service.wait_for("closing", times=2)
    send_until_it_ends(service.process, signal.SIGTERM)
    assert service.finish() == 128 + signal.SIGTERM, service.output
    assert "desk ends at once" in service.output


def test_a_signal_while_workers_start_ends_all(folder: Path) -> None:
    service = Service(folder, "run", "desk:app", "--workers", "2")
    service.wait_for("opening", times=1)
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output
    assert "Traceback" not in service.output
    assert "did not start" not in service.output


def test_workers_stop_in_order_when_their_parent_is_gone(folder: Path) -> None:
    (folder / "rocketbox.yaml").write_text("rocketmq: {enabled: false}\n")
    service = started(folder)
    service.process.kill()
    service.finish()  # the workers have the pipe as well: this returns when they have ended
    assert service.output.count("rocketbox.application: desk has stopped") == 2


def test_lines_in_json_name_their_worker(folder: Path) -> None:
    (folder / "rocketbox.yaml").write_text("rocketmq: {enabled: false}\nrocketbox: {logging: {format: json}}\n")
    service = started(folder)
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0
    assert '"process": "worker 1", "logger": "rocketbox.running"' in service.output
    assert (
        '"level": "INFO", "logger": "rocketbox.cli.workers", "message": "desk: 2 workers are ready"' in service.output
    )


def test_workers_that_are_asked_twice_stop_in_order(folder: Path) -> None:
    write_service(folder, seconds=0.5)
    service = started(folder)
    workers = [pid(service, 1), pid(service, 2)]
    service.process.send_signal(signal.SIGTERM)  # as systemd does: to all of them, and each parent asks again
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
    assert service.finish() == 0, service.output
    assert "ends at once" not in service.output
    assert service.output.count("desk has stopped") == 3


def test_workers_that_stop_go_on_with_it_when_their_parent_is_gone(folder: Path) -> None:
    write_service(folder, seconds=1.0)
    service = started(folder)
    service.process.send_signal(signal.SIGTERM)
    service.wait_for("closing", times=2)
    service.process.kill()
    service.wait_for("[worker 1] rocketbox.application: desk has stopped")
    service.wait_for("[worker 2] rocketbox.application: desk has stopped")
    service.finish()
    assert "ends at once" not in service.output
