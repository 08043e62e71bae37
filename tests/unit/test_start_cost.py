"""What a start costs, in counts: which modules a service loads, how often a source is read, when models are built.

Milliseconds are measured by ``make bench ARGS="--only start"``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SERVICE = """
from pydantic import BaseModel
from rocketbox import RocketBox, RocketMQTemplate, bean, rocketmq_listener, send_to

app = RocketBox("desk")

class Departure(BaseModel):
    flight: str

class Desk:
    def __init__(self, template: RocketMQTemplate) -> None:
        self.template = template

    def note(self, departure: Departure) -> None: ...

@bean
def desk(template: RocketMQTemplate) -> Desk:
    return Desk(template)

@rocketmq_listener(topic="departures", consumer_group="desk")
@send_to("alerts")
async def on_departure(departure: Departure, desk: Desk) -> Departure | None:
    desk.note(departure)
    await desk.template.send("boards", departure)
    return departure

@app.on_startup
async def announce(template: RocketMQTemplate) -> None:
    await template.send("boards", Departure(flight="UA1545"))
"""

SETTINGS = """
rocketmq: {name-server: "127.0.0.1:9876", producer: {group: desk}}
"""

LOOK = """
import ast, json, sys

# dependency-injector imports web frameworks where they are installed: here for other tests, in a service for its own.
sys.modules |= dict.fromkeys(["fastapi", "starlette", "flask", "werkzeug"])

from rocketbox import RocketBox

import rocketbox.autoconfigure.properties as properties
built = [name for name in properties.__all__ if getattr(getattr(properties, name), "__pydantic_complete__", False)]

sources = []
plain_parse = ast.parse
def parse(source, *arguments, **named):
    sources.append(bytes(source[:40]).decode())
    return plain_parse(source, *arguments, **named)
ast.parse = parse

import service
service.app.check()
print(json.dumps({
    "modules": sorted(sys.modules),
    "built": built,
    "sources": sources,
}))
"""

NOT_FOR_A_SERVICE = {
    # commands, and what they are written with
    "rocketbox.cli",
    "typer",
    "click",
    "rich",
    "watchfiles",
    # what a service without Spark, without servers of its own, does without
    "rocketbox.spark.listener",
    "rocketbox.spark.session",
    "rocketbox.spark.source",
    "pyspark",
    "pyarrow",
    "pandas",
    "numpy",
    "rocketbox.embedded",
    "rocketbox.broker",
    "rocketbox.nameserver",
    "rocketbox.background",
    # pages and schemas that are made from the settings
    "rocketbox.boot.reference",
    "rocketbox.boot.json_schema",
    # of Python itself
    "http",
    "multiprocessing",
    "unittest",
    "pydoc",
    "doctest",
    "xml",
    "sqlite3",
    "trio",
    "pytest",
}


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process of its own counted, which has loaded and checked a small service."""
    folder: Path = tmp_path_factory.mktemp("service")
    (folder / "service.py").write_text(SERVICE)
    (folder / "rocketbox.yaml").write_text(SETTINGS)
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    counted: dict[str, Any] = json.loads(done.stdout)
    return counted


def test_a_service_loads_nothing_that_it_does_not_use(looked: dict[str, Any]) -> None:
    loaded = {
        above
        for module in looked["modules"]
        for above in (module, module.partition(".")[0], ".".join(module.split(".")[:2]))
    }
    assert not loaded.intersection(NOT_FOR_A_SERVICE)
    assert "rocketbox.autoconfigure.assembly" in loaded


def test_loading_builds_no_model_of_settings(looked: dict[str, Any]) -> None:
    assert looked["built"] == []


def test_a_start_reads_the_source_of_the_service_once_and_no_other(looked: dict[str, Any]) -> None:
    assert looked["sources"] == [SERVICE[:40]]
