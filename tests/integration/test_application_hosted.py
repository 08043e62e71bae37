"""An application inside of something else: an ASGI framework, code without a loop, a process that forks, a test."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.lowlevel
import pytest

from rocketbox import (
    ClientStateError,
    ConfigurationError,
    MessageConverter,
    NotStartedError,
    Qualifier,
    RocketMQTemplate,
)
from rocketbox.blocking import WorkerPool
from rocketbox.client import MQClientInstance, PushConsumer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers, ServersInThread
from rocketbox.template import JsonMessageConverter
from tests.support.framework.services import SETTINGS, ServiceMaker
from tests.support.loops import anyio_backend as anyio_backend

DESK = """
    from __future__ import annotations

    import threading

    from pydantic import BaseModel
    from rocketbox import RocketBox, RocketMQTemplate, bean, configuration_properties, rocketmq_listener

    @configuration_properties("desk")
    class DeskProperties(BaseModel):
        threshold_minutes: int = 60

    class Desk:
        def __init__(self, props: DeskProperties) -> None:
            self.props = props
            self.seen = []
            self.closed = False
            self.came = threading.Event()

        async def __aenter__(self):
            return self

        async def __aexit__(self, *error):
            self.closed = True

    @bean
    def desk(props: DeskProperties) -> Desk:
        return Desk(props)

    @rocketmq_listener(topic="departures", consumer_group="desk")
    async def on_departure(departure: str, desk: Desk) -> None:
        desk.seen.append(departure)
        desk.came.set()

    app = RocketBox("flight-desk", scan=[__name__])
"""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[ServersInThread]:
    options = EmbeddedOptions(
        data_dir=tmp_path / "servers", port=0, name_server_port=0, broker={"mapped-file-size-commit-log": "1MB"}
    )
    with EmbeddedServers.in_thread(options) as servers:
        yield servers


# --- ASGI -----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_lifespan_starts_before_and_stops_after_what_the_framework_does(service: ServiceMaker) -> None:
    module = service(DESK)
    template_of = module.app.provider(RocketMQTemplate)  # as in Depends(...): written before anything runs
    async with module.app.lifespan(object()):  # a framework calls it with its own application
        template = await template_of()
        assert template is module.app.template
        await template.send("departures", "UA1545")
        desk = module.app.get(module.Desk)
        assert await anyio.to_thread.run_sync(desk.came.wait, 10)
    assert desk.closed
    with pytest.raises(NotStartedError):
        await template_of()


# --- a thread of its own ---------------------------------------------------------------------------------------------


def test_background_runs_beside_code_without_a_loop(service: ServiceMaker) -> None:
    module = service(DESK)
    with module.app.background() as background:
        desk = module.app.get(module.Desk)
        result = background.call(module.app.template.send, "departures", "UA1545", keys="UA1545")
        assert result.queue_offset == 0
        assert desk.came.wait(10)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:  # as the threads of a WSGI server
            sent = list(pool.map(lambda n: background.call(module.app.template.send, "departures", f"{n}"), range(20)))
        assert len({each.msg_id for each in sent}) == 20
        with pytest.raises(ClientStateError, match="running already"):
            background.start()
    assert desk.closed
    with pytest.raises(NotStartedError):
        background.call(anyio.sleep, 0)
    assert not any("flight-desk" in thread.name for thread in threading.enumerate())


def test_background_raises_in_the_caller_what_the_start_raises(service: ServiceMaker) -> None:
    module = service(DESK, "rocketmq: {name-serve: embedded}\n")
    background = module.app.background()
    with pytest.raises(ConfigurationError, match="name-serve"):
        background.start()
    with pytest.raises(NotStartedError):
        background.call(anyio.sleep, 0)
    background.stop()  # nothing runs: nothing to do


def test_a_stop_of_the_background_cancels_calls_that_still_wait(service: ServiceMaker) -> None:
    module = service(DESK)
    with module.app.background() as background:
        waiting = background.submit(anyio.sleep_forever)
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(10)


def test_a_background_that_is_stopped_while_it_starts_stops(service: ServiceMaker) -> None:
    module = service(DESK.replace('@rocketmq_listener(topic="departures", consumer_group="desk")', ""), None)
    begun, go = threading.Event(), threading.Event()

    @module.app.on_startup  # type: ignore[untyped-decorator]
    def slow() -> None:
        begun.set()
        go.wait(10)

    background = module.app.background()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        starting = pool.submit(background.start)
        assert begun.wait(10)
        stopping = pool.submit(background.stop)
        go.set()
        stopping.result(10)
        starting.result(10)
    assert not any("flight-desk" in thread.name for thread in threading.enumerate())
    with pytest.raises(NotStartedError):
        _ = module.app.template


@pytest.mark.anyio
async def test_background_refuses_to_block_a_loop(service: ServiceMaker) -> None:
    background = service(DESK).app.background()
    with pytest.raises(ClientStateError, match="would block the event loop"):
        background.start()
    await anyio.to_thread.run_sync(background.start)
    try:
        with pytest.raises(ClientStateError, match="would block the event loop"):
            background.call(anyio.sleep, 0)
    finally:
        await anyio.to_thread.run_sync(background.stop)


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python text in a process of its own, in the folder where the service lies."""
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text],  # newer Pythons warn of forks with threads
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


FORK = """
import os, sys
import {module} as service

background = service.app.background().start()
background.call(service.app.template.send, "departures", "before")
sys.stdout.flush()
child = os.fork()
if child == 0:
    for use in (lambda: background.call(service.app.template.send, "departures", "x"), lambda: service.app.template):
        try:
            use()
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    with service.app.background() as own:
        print("own", own.call(service.app.template.send, "departures", "child").status.name, flush=True)
    background.start()  # the old one starts anew in the fork as well
    print("again", background.call(service.app.template.send, "departures", "child").status.name, flush=True)
    background.stop()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("parent", background.call(service.app.template.send, "departures", "after").status.name)
sys.exit(7)  # without a stop: the end of the process stops it in order
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_says_so_and_may_start_its_own(service: ServiceMaker, servers: ServersInThread, tmp_path: Path) -> None:
    yaml = f"rocketmq: {{name-server: '{servers.name_server_address}', producer: {{group: desk}}}}\n"
    module = service(DESK, yaml)
    ran = run_script(FORK.format(module=module.__name__), tmp_path)
    assert ran.returncode == 7, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 5, ran.stdout
    assert lines[0].startswith("ForkedError flight-desk was started in process ")
    assert lines[0].endswith("start it after the fork: in gunicorn's post_fork, in Celery's worker_process_init")
    assert lines[1] == lines[0]
    assert lines[2:] == ["own SEND_OK", "again SEND_OK", "parent SEND_OK"]
    assert "Traceback" not in ran.stderr, ran.stderr


ENDS = """
import {module} as service

async def closing(desk, *error):
    print("closed")

service.Desk.__aexit__ = closing
service.app.background(arguments=["--desk.threshold-minutes=5"]).start()
print(service.app.get(service.DeskProperties).threshold_minutes)
"""


def test_a_process_that_ends_stops_its_background_in_order(service: ServiceMaker, tmp_path: Path) -> None:
    module = service(DESK)
    ran = run_script(ENDS.format(module=module.__name__), tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "5\nclosed\n"), ran.stderr


# --- tests of users ---------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_test_replaces_settings_and_beans(service: ServiceMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    module = service(DESK, SETTINGS + "desk: {threshold-minutes: 45}\n")
    monkeypatch.setenv("DESK_THRESHOLD_MINUTES", "50")

    class Upper(JsonMessageConverter):
        def to_body(self, payload: object) -> bytes:
            return super().to_body(payload).upper()

    own = module.Desk(module.DeskProperties())
    async with module.app.started(
        arguments=["--desk.threshold-minutes=55"],
        settings={"desk.threshold-minutes": 5},
        beans={module.Desk: own, MessageConverter: Upper()},
    ) as app:
        assert app.get(module.DeskProperties).threshold_minutes == 5
        assert app.get(module.Desk) is own
        await app.template.send("departures", "ua1545")
        assert await anyio.to_thread.run_sync(own.came.wait, 10)
        assert own.seen == ["UA1545"]
    assert not own.closed  # whoever gave it looks after it
    async with module.app as app:  # each start is a fresh one
        assert app.get(module.DeskProperties).threshold_minutes == 50
        assert app.get(module.Desk) is not own


@pytest.mark.anyio
async def test_an_override_of_a_bean_that_is_not_there_is_refused(service: ServiceMaker) -> None:
    module = service(DESK)
    hint: Any = Annotated[module.Desk, Qualifier("night")]
    with pytest.raises(ConfigurationError, match=r"an override needs a bean of type Desk named 'night'"):
        async with module.app.started(beans={hint: object()}):
            raise AssertionError("it has started")


# --- loops that anyio did not start ----------------------------------------------------------------------------------


def test_a_service_runs_in_a_loop_that_anyio_did_not_start(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    module = service(DESK)

    async def main() -> None:
        async with module.app as app:
            desk = app.get(module.Desk)
            async with PushConsumer("audit", instance=app.get(MQClientInstance)) as other:
                await other.subscribe("departures", "*", lambda messages: anyio.lowlevel.checkpoint())
                await app.template.send("departures", "UA1545")
                assert await asyncio.to_thread(desk.came.wait, 10)

    asyncio.run(main())  # as uvicorn and most programs do
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_function_in_a_worker_thread_may_run_a_loop_of_its_own() -> None:
    async def main() -> str:
        async with WorkerPool(1, "desk") as pool:
            return await pool.run(lambda: anyio.run(told))

    async def told() -> str:
        await anyio.lowlevel.checkpoint()
        return "told"

    assert anyio.run(main) == "told"
