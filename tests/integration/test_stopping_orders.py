"""What ends a service besides signals: its own wish, a bean that fails, limits that cannot hold, the end of Python."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from rocketbox import ClientStateError, ConfigurationError, NotStartedError
from tests.support.framework.services import Service, ServiceMaker
from tests.support.loops import anyio_backend as anyio_backend
from tests.support.waiting import PATIENCE, until

DESK = """
    import anyio
    from rocketbox import RocketBox, bean

    app = RocketBox("desk", scan=[__name__])
    steps = []

    class Radio: ...

    @bean
    async def radio() -> Radio:
        return Radio()

    @app.on_startup
    async def hook(radio: Radio) -> None:
        steps.append("started")
"""


# --- its own wish ----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_shutdown_in_a_block_lets_who_waits_for_it_go_on(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    async with service(DESK).app as app, anyio.create_task_group() as tasks:
        with anyio.fail_after(PATIENCE):
            tasks.start_soon(app.wait_for_shutdown)
            await anyio.wait_all_tasks_blocked()
            app.shutdown()
    assert "nobody waits for it" not in caplog.text


@pytest.mark.anyio
async def test_shutdown_in_a_startup_hook_is_there_for_who_waits_later(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    async with service(DESK.replace('steps.append("started")', "app.shutdown(); await anyio.sleep(0)")).app as app:
        with anyio.fail_after(PATIENCE):
            await app.wait_for_shutdown()
    assert "nobody waits for it" not in caplog.text


@pytest.mark.anyio
async def test_shutdown_that_nobody_waits_for_is_told(service: ServiceMaker, caplog: pytest.LogCaptureFixture) -> None:
    async with service(DESK).app as app:
        app.shutdown()
        await until(lambda: "nobody waits for it: write 'await app.wait_for_shutdown()'" in caplog.text)


def test_shutdown_stops_the_background(service: ServiceMaker) -> None:
    app = service(DESK).app
    background = app.background().start()
    try:
        app.shutdown()
        anyio.run(until, lambda: not background.is_running)
        with pytest.raises(NotStartedError):
            background.call(anyio.sleep, 0)
        background.start()  # as often as one likes
        assert background.is_running
    finally:
        background.stop()


@pytest.mark.anyio
async def test_shutdown_asks_the_server_that_has_it_as_its_lifespan_to_stop(service: ServiceMaker) -> None:
    app, came = service(DESK).app, []
    async with app.lifespan(object()):
        earlier = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
        try:
            await anyio.to_thread.run_sync(app.shutdown)
            await until(lambda: came == [signal.SIGTERM])
        finally:
            signal.signal(signal.SIGTERM, earlier)


@pytest.mark.anyio
async def test_shutdown_says_what_to_do_where_no_server_listens(service: ServiceMaker) -> None:
    app = service(DESK).app
    async with app.lifespan(object()):
        with pytest.raises(ClientStateError, match="listens to no SIGTERM"):
            app.shutdown()


# --- a bean that fails -----------------------------------------------------------------------------------------------

FAILS = """
import anyio
from collections.abc import AsyncIterator, Iterator
from pydantic import BaseModel
from rocketbox import RocketBox, bean, configuration_properties

app = RocketBox("desk", scan=[__name__])

@configuration_properties("bank")
class Bank(BaseModel):
    password: str

class Radio: ...

@bean
async def radio(bank: Bank) -> AsyncIterator[Radio]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen, bank.password)
        yield Radio()

async def listen(password: str) -> None:
    await anyio.sleep(0.1)
    raise ValueError(f"cannot connect as u:{password}")
"""

CLOSING = """
class Tower: ...

@bean
def tower(radio: Radio) -> Iterator[Tower]:
    yield Tower()
    raise OSError("the door is stuck")

async def listen(password: str) -> None:
    await anyio.sleep_forever()

@app.on_startup
async def end() -> None:
    app.shutdown()
"""


def failing(folder: Path, source: str, *arguments: str) -> Service:
    (folder / "desk.py").write_text(source)
    (folder / "rocketbox.yaml").write_text("bank: {password: hunter2hunter2}\n")
    service = Service(folder, "run", "desk:app", *arguments)
    assert service.finish() == 1, service.output
    assert "hunter2" not in service.output
    return service


def line_of(source: str, text: str) -> int:
    return next(n for n, line in enumerate(source.splitlines(), 1) if text in line)


def test_a_bean_that_fails_while_it_runs_is_told_as_a_failed_start_is(tmp_path: Path) -> None:
    output = failing(tmp_path, FAILS).output
    assert "APPLICATION STOPPED BECAUSE" in output
    assert "1. bean radio failed while it ran: ValueError: cannot connect as u:******" in output
    raised, bean = line_of(FAILS, "raise ValueError"), line_of(FAILS, "@bean")
    assert f"   where: desk.py:{bean}, raised at desk.py:{raised}\n" in output
    assert "   fix:   --debug shows the traceback" in output
    assert "Traceback" not in output


def test_the_traceback_of_a_failure_is_shown_with_debug_and_without_secrets(tmp_path: Path) -> None:
    output = failing(tmp_path, FAILS, "--debug").output
    assert "Traceback" in output
    assert "ValueError: cannot connect as u:******" in output


def test_a_bean_that_fails_when_it_is_closed_is_told_too(tmp_path: Path) -> None:
    output = failing(tmp_path, FAILS + CLOSING).output
    assert "1. bean tower failed when it was closed: OSError: the door is stuck" in output
    assert "Traceback" not in output


# --- limits ----------------------------------------------------------------------------------------------------------

SLOW = """
    from rocketbox import RocketBox, rocketmq_listener

    app = RocketBox("desk", scan=[__name__])

    @rocketmq_listener(topic="departures", consumer_group="slow"%s)
    async def slow(departure: str) -> None: ...
"""
SETTINGS = """
    rocketmq:
      name-server: embedded
      consumer: {listeners: {slow: {await-termination-when-shutdown: %s}}}
    rocketbox: {shutdown: {timeout: 4s}}
"""


def test_a_group_that_may_take_longer_than_the_stop_is_refused(service: ServiceMaker) -> None:
    app = service(SLOW % "", SETTINGS % "60s").app
    with pytest.raises(ConfigurationError) as caught:
        app.check()
    (finding,) = caught.value.findings
    assert "await-termination-when-shutdown of group 'slow' is 1m, and rocketbox.shutdown.timeout is 4s" in finding.what
    assert "three quarters, 3s" in finding.what
    assert finding.where is not None
    assert ("rocketbox.yaml:3:" in finding.where, "rocketbox.yaml:4:" in finding.where) == (True, True)
    assert "set rocketbox.shutdown.timeout to 1m20s or more" in (finding.fix or "")


def test_a_group_may_take_what_the_stop_has_for_handlers(service: ServiceMaker) -> None:
    service(SLOW % "", SETTINGS % "3s").app.check()


def test_the_decorator_is_named_where_it_says_too_much(service: ServiceMaker) -> None:
    app = service(SLOW % ', await_termination_when_shutdown="1m"', "rocketmq: {name-server: embedded}\n").app
    with pytest.raises(ConfigurationError, match=r"is 1m, and rocketbox\.shutdown\.timeout is 20s.*15s") as caught:
        app.check()
    assert ".py:5" in (caught.value.findings[0].where or "")


# --- the end of Python -----------------------------------------------------------------------------------------------

ENDS = """
import atexit, sys, time
from pathlib import Path
from rocketbox import RocketBox, bean, rocketmq_listener
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers

app = RocketBox("desk", scan=[__name__])

class Radio:
    async def __aenter__(self): return self
    async def __aexit__(self, *error): print("closed", flush=True)

@bean
def radio() -> Radio:
    return Radio()

@app.on_startup
def hook() -> None: ...

@rocketmq_listener(topic="departures", consumer_group="desk")
def on_departure(departure: str) -> None: ...

if sys.argv[1] == "background":
    background = app.background().start()
    background.call(app.template.send, "departures", "UA1")
else:
    options = EmbeddedOptions(data_dir=Path("own"), port=0, name_server_port=0)
    servers = EmbeddedServers.in_thread(options).__enter__()
    atexit.register(servers.__exit__, None, None, None)
"""


@pytest.mark.parametrize("what", ["background", "servers"])
def test_the_end_of_python_stops_in_order_and_without_a_traceback(tmp_path: Path, what: str) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    (tmp_path / "rocketbox.yaml").write_text(
        "rocketmq: {name-server: embedded, producer: {group: desk}}\n"
        "rocketbox: {embedded: {port: 0, name-server-port: 0, data-dir: store}}\n"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "ends.py", what],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ("closed\n" if what == "background" else "")
    assert "Traceback" not in ran.stderr
    assert "cannot start more" not in ran.stderr
    assert not list(tmp_path.glob("*/abort")), "the store was closed"


FAILS_TO_CLOSE = """
from rocketbox import RocketBox, bean

app = RocketBox("desk", scan=[__name__])

class Radio:
    def close(self): raise OSError("the radio does not close")

@bean
def radio() -> Radio:
    return Radio()

background = app.background().start()
"""


def test_a_background_that_fails_at_the_end_of_python_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(FAILS_TO_CLOSE)
    ran = subprocess.run(
        [sys.executable, "ends.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ran.stderr.count("the background of desk has failed, and runs no more") == 1
    assert ran.stderr.count("OSError: the radio does not close") == 1


def test_a_background_that_fails_says_so(service: ServiceMaker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    app = service(FAILS, "bank: {password: hunter2hunter2}\n").app
    background = app.background().start()
    anyio.run(until, lambda: not background.is_running)
    assert "the background of desk has failed, and runs no more" in caplog.text
    with pytest.raises(ExceptionGroup):
        background.stop()
