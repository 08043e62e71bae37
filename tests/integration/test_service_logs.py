"""What a running service logs, of messages and of itself."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.framework.services import SETTINGS, Service

DESK = """
import logging
import anyio
from pydantic import BaseModel
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("desk", scan=[__name__])
log = logging.getLogger("desk")

class Departure(BaseModel):
    flight: str

@rocketmq_listener(topic="departures", consumer_group="desk", max_reconsume_times=0)
async def on_departure(departure: Departure) -> None:
    log.info("looking up %s", departure.flight, extra={"flight": departure.flight, "seats": {1, 1}})
    look_up(departure.flight)

def look_up(flight: str) -> None:
    if flight == "UA2":
        raise LookupError(f"nobody knows {flight}")
    log.info("found")

@rocketmq_listener(topic="arrivals", consumer_group="tower")
def on_arrival(arrival: str) -> None:
    log.info("landed")

@app.on_startup
async def send(template: RocketMQTemplate) -> None:
    await template.send("departures", Departure(flight="UA1"), keys="UA1")
    await template.send("departures", Departure(flight="UA2"), keys="UA2")
    await template.send("departures", b"{", keys="UA3")
    await template.send("arrivals", "UA4", keys="UA4")
"""


def desk(folder: Path, *arguments: str, form: str = "text") -> Service:
    (folder / "desk.py").write_text(DESK)
    (folder / "rocketbox.yaml").write_text(SETTINGS % {"folder": folder} + f"  logging: {{format: {form}}}\n")
    return Service(folder, "run", "desk:app", *arguments)


def finished(service: Service, *texts: str) -> str:
    for text in texts:
        service.wait_for(text)
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output
    return service.output


def test_lines_of_a_handler_carry_its_message_and_fields_of_its_own(tmp_path: Path) -> None:
    output = finished(desk(tmp_path, form="json"), '"found"', '"landed"', "desk is ready")
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    (looking,) = [line for line in lines if line["message"] == "looking up UA1"]
    assert (looking["group"], looking["topic"], looking["keys"]) == ("desk", "departures", "UA1")
    assert looking["msg_id"]
    assert (looking["flight"], looking["seats"]) == ("UA1", "{1}")
    (found,) = [line for line in lines if line["message"] == "found"]
    assert found["msg_id"] == looking["msg_id"]
    (landed,) = [line for line in lines if line["message"] == "landed"]  # in a thread
    assert (landed["group"], landed["keys"]) == ("tower", "UA4")
    assert "msg_id" not in next(line for line in lines if "desk is ready" in line["message"])


def test_a_line_of_text_ends_with_the_message_that_is_handled(tmp_path: Path) -> None:
    output = finished(desk(tmp_path), "desk: found", "desk: landed")
    line = next(line for line in output.splitlines() if "desk: found" in line)
    assert "desk: found [group desk, topic departures, msg_id " in line
    assert line.endswith(", keys UA1]")


def test_a_handler_that_fails_is_told_with_its_own_lines_only(tmp_path: Path) -> None:
    output = finished(desk(tmp_path), "nobody knows UA2", "it cannot be read")
    told = output.partition("Traceback (most recent call last):")[2].partition("LookupError: nobody knows UA2")[0]
    assert told.count("  File ") == 2, output
    assert ("in on_departure" in told, "in look_up" in told) == (True, True)
    failed = next(line for line in output.splitlines() if "LookupError('nobody knows UA2')" in line)
    assert " ERROR " in failed
    assert "attempt 1 of 1" in failed
    assert "%DLQ%desk" in failed
    assert "KEYS UA2" in failed


def test_all_lines_of_a_failure_are_shown_with_debug(tmp_path: Path) -> None:
    output = finished(desk(tmp_path, "--debug"), "LookupError: nobody knows UA2")
    told = output.partition("Traceback (most recent call last):")[2].partition("LookupError: nobody knows UA2")[0]
    assert "rocketbox/listeners/dispatch.py" in told.replace("\\", "/")


def test_a_payload_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    output = finished(desk(tmp_path), "it cannot be read (dead-letter)")
    assert sum("cannot be read" in line for line in output.splitlines()) == 1, output


def test_a_start_tells_of_groups_not_of_queues(tmp_path: Path) -> None:
    output = finished(desk(tmp_path), "queues of departures are this member's", "desk is ready")
    assert "takes MessageQueue" not in output
    assert "route of" not in output


@pytest.mark.parametrize("level", ["warning", "debug"])
def test_the_level_of_the_log_is_an_option(tmp_path: Path, level: str) -> None:
    output = finished(desk(tmp_path, "--log-level", level), "nobody knows UA2")
    assert (" INFO " in output, " DEBUG " in output) == (level == "debug", level == "debug")
