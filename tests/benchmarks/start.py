"""How long a service takes from the start of its process to ready, and from SIGTERM to its end, step by step.

The service has three groups of listeners, a bean, settings in YAML with a profile, and the embedded servers; a hook
sends to both of its topics, so that they are there. It runs as a user runs it (``python desk.py``), its steps are read
from its log. Beside it, in the same rounds: the same client and servers without the framework, and the import of the
libraries that the framework stands on.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

__all__ = ["STARTS", "measure_starts", "table_of"]

ROOT = Path(__file__).parents[2]
SECONDS = 60
IDLE = 0.5  # seconds between ready and SIGTERM: pulls are held by then

STAMP = "import sys, time; print('stamp interpreter', time.perf_counter(), file=sys.stderr)\n"
STAMP_IMPORTED = "print('stamp import', time.perf_counter(), file=sys.stderr)\n"

SERVICE = f"""{STAMP}
from pydantic import BaseModel
from rocketbox import RocketBox, RocketMQTemplate, bean, configuration_properties, rocketmq_listener, send_to

app = RocketBox("desk")

class Departure(BaseModel):
    flight: str
    delay: int | None = None

class Alert(BaseModel):
    flight: str

@configuration_properties("desk")
class DeskProperties(BaseModel):
    threshold_minutes: int = 60

class Desk:
    def __init__(self, properties: DeskProperties, template: RocketMQTemplate) -> None:
        self.threshold = properties.threshold_minutes

@bean
def desk(properties: DeskProperties, template: RocketMQTemplate) -> Desk:
    return Desk(properties, template)

@rocketmq_listener(topic="departures", consumer_group="desk", concurrency=32)
@send_to("alerts")
async def on_departure(departure: Departure, desk: Desk) -> Alert | None:
    return Alert(flight=departure.flight) if (departure.delay or 0) > desk.threshold else None

@rocketmq_listener(topic="departures", consumer_group="audit")
def audit(departures: list[Departure]) -> None: ...

@rocketmq_listener(topic="alerts", consumer_group="alerts")
async def on_alert(alert: Alert) -> None: ...

@app.on_startup
async def announce(template: RocketMQTemplate) -> None:
    await template.send("departures", Departure(flight="UA1545"))
    await template.send("alerts", Alert(flight="UA1545"))

{STAMP_IMPORTED}
if __name__ == "__main__":
    app.run()
"""

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: desk, send-message-timeout: 3000}
  consumer: {listeners: {desk: {concurrency: 64}}}
rocketbox:
  embedded: {port: 0, name-server-port: 0}
  profiles: {active: dev}
  logging: {level: {rocketbox: DEBUG}}
desk: {threshold-minutes: 45}
---
rocketbox: {config: {activate: {on-profile: dev}}}
desk: {threshold-minutes: 15}
"""

BARE = f"""{STAMP}
import contextlib, signal
from pathlib import Path
import anyio
from rocketbox.client import Producer, PushConsumer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.message import Message
{STAMP_IMPORTED}

async def handle(messages): ...

async def main():
    options = EmbeddedOptions(data_dir=Path("store"), port=0, name_server_port=0)
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(anyio.open_signal_receiver(signal.SIGTERM))
        servers = stack.enter_context(EmbeddedServers.in_thread(options))
        address = servers.name_server_address
        producer = await stack.enter_async_context(Producer("desk", name_server=address))
        for topic in ("departures", "alerts"):
            await producer.send(Message(topic, b'{{"flight":"UA1545"}}'))
        for group, topic in (("desk", "departures"), ("audit", "departures"), ("alerts", "alerts")):
            consumer = await stack.enter_async_context(PushConsumer(group, name_server=address))
            await consumer.subscribe(topic, "*", handle)
        print("is ready after", file=sys.stderr)
        async for _ in signals:
            break

anyio.run(main)
"""

IMPORTS = f"{STAMP}import pydantic_settings, dependency_injector.containers\n{STAMP_IMPORTED}"

Steps = dict[str, float]
"""Milliseconds by step, in their order."""


def start(folder: Path, program: str) -> Steps:
    """Run a program to ready, and to its end by SIGTERM; what each step took."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")}
    begun = time.perf_counter()  # of the machine's monotonic clock, which the child's stamps are of as well
    process = subprocess.Popen(
        [sys.executable, program], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    try:
        steps, before, log = {}, begun, ""
        assert process.stderr is not None
        for line in process.stderr:
            log += line
            if stamp := re.match(r"stamp (\w+) ([\d.]+)", line):
                steps[stamp[1]] = (float(stamp[2]) - before) * 1000
                before = float(stamp[2])
            elif phase := re.search(r"phase (\w+) started in ([\d.]+) ms", line):
                steps[f"phase {phase[1]}"] = float(phase[2])
            elif "is ready after" in line:
                ready = time.perf_counter()
                of_phases = sum(took for step, took in steps.items() if step.startswith("phase"))
                if of_phases:
                    steps["settings, scan, plan, loop"] = (ready - before) * 1000 - of_phases
                steps["run() to ready"] = (ready - before) * 1000
                steps["process to ready"] = (ready - begun) * 1000
                time.sleep(IDLE)
                process.send_signal(signal.SIGTERM)
                before = time.perf_counter()
        if process.wait():
            sys.exit(f"{program} failed:\n{log}")
        if "process to ready" in steps:
            steps["SIGTERM to the end"] = (time.perf_counter() - before) * 1000
    finally:
        watchdog.cancel()
    return steps


STARTS: dict[str, tuple[str, bool]] = {
    "start, the first one": ("desk.py", True),
    "start, with its store": ("desk.py", False),
    "start (bare peer)": ("bare.py", True),
    "start (import of the libraries)": ("imports.py", False),
}
"""What is started, and whether it finds no store there."""


def measure_starts(
    names: list[str], rounds: int, directory: str | None, progress: Callable[[str], None]
) -> dict[str, Steps]:
    """The medians of the steps of each start, from ``rounds`` rounds; ``progress`` is told each name that begins."""
    measured: dict[str, list[Steps]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        for number in range(rounds + 1):
            folder = Path(temporary) / f"round-{number}"
            folder.mkdir()
            for file, text in (
                ("desk.py", SERVICE),
                ("bare.py", BARE),
                ("imports.py", IMPORTS),
                ("rocketbox.yaml", SETTINGS),
            ):
                (folder / file).write_text(text)
            for name in names:
                progress(name)
                program, fresh = STARTS[name]
                if not fresh and program == "desk.py" and not (folder / ".rocketbox").exists():
                    start(folder, program)
                steps = start(folder, program)
                if number:  # the first round writes the bytecode and warms files up
                    measured[name].append(steps)
    return {
        name: {step: statistics.median(steps[step] for steps in taken) for step in taken[0]}
        for name, taken in measured.items()
    }


def table_of(measured: dict[str, Steps], title: str) -> Table:
    """A column for each start, a line for each step; milliseconds."""
    table = Table(title=title)
    table.add_column("step, ms")
    for name in measured:
        table.add_column(name, justify="right")
    for step in dict.fromkeys(step for steps in measured.values() for step in steps):
        table.add_row(step, *(f"{steps[step]:.0f}" if step in steps else "" for steps in measured.values()))
    return table
