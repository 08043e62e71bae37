"""The health of whole applications: what each part of them says, and that readiness follows."""

from __future__ import annotations

import anyio
import pytest

from rocketbox import HealthStatus, RocketBox
from rocketbox.autoconfigure.loading import Launch
from rocketbox.autoconfigure.machine import Machine
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SOURCE = """
import anyio
from rocketbox import Health, HealthIndicator, RocketBox, bean, rocketmq_listener

app = RocketBox("flight-desk", scan=[__name__])
"""


async def test_an_application_that_does_not_run_is_not_ready(service: ServiceMaker) -> None:
    source = """
seen = []

@app.on_startup
async def starting() -> None:
    seen.append(app.health().reasons)

@app.on_shutdown
async def stopping() -> None:
    seen.append(app.health().reasons)
"""
    module = service(SOURCE + source, "")
    assert module.app.health().as_dict() == {"ready": False, "reasons": ["it does not run"], "components": {}}
    async with module.app:
        assert module.app.health().ready
    assert module.seen == [("it has not started yet",), ("it is stopping",)]
    assert module.app.not_ready_because == ["it does not run"]


async def test_the_users_indicators_are_beans_like_any_other(service: ServiceMaker) -> None:
    source = """
class Desk:
    seats = 2

@bean
def desk() -> Desk:
    return Desk()

@bean
class Seats(HealthIndicator):
    name = "seats"

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def health(self) -> Health:
        free = self.desk.seats
        return Health.up(free=free) if free else Health.down("no seat is free", free=free)
"""
    module = service(SOURCE + source, "")
    async with module.app as app:
        assert app.health().components["seats"].details == {"free": 2}
        assert app.is_ready
        app.get(module.Desk).seats = 0
        assert app.not_ready_because == ["no seat is free"]
        assert not app.is_ready


async def test_background_work_is_shown_and_counts_while_it_fails(service: ServiceMaker) -> None:
    source = """
fails = anyio.Event()

@app.background_task
async def poll() -> None:
    await fails.wait()
    raise ValueError("no answer")

@app.every("1h")
def refresh() -> None: ...
"""
    module = service(SOURCE + source, "")
    async with module.app as app:
        health = app.health()
        place = f"{module.__name__}.py"
        assert health.ready
        assert health.components["background-work"].as_dict() == {
            "status": "UP",
            "details": {
                "tasks": {
                    f"background task poll ({place}:8)": {"state": "running", "restarts": 0, "last_error": None}
                },
                "scheduled": {
                    f"scheduled function refresh ({place}:13)": {
                        "every": 3600.0, "runs": 0, "failures": 0, "skipped": 0, "running_for": None,
                        "last_error": None,
                    },
                },
            },
        }  # fmt: skip
        module.fails.set()
        await until(lambda: not app.is_ready)
        assert app.not_ready_because == [
            f"background task poll ({place}:8) failed and waits to start again: ValueError('no answer')"
        ]


async def test_an_indicator_of_ours_can_be_left_out(service: ServiceMaker) -> None:
    module = service(SOURCE.replace("scan=[__name__]", "scan=[__name__], exclude=['event_loop_health']"), "")
    async with module.app as app:
        assert set(app.health().components) == {"listeners", "background-work"}


async def test_a_client_without_any_broker_is_not_ready_until_one_is_back(service: ServiceMaker) -> None:
    clock = VirtualClock(settle=anyio.wait_all_tasks_blocked)
    broker = ScriptedBroker(clock)
    broker.topics = {"departures": 1, "%RETRY%desk": 1}
    broker.committed["departures", 0] = 0
    source = """
@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(text: str) -> None: ...
"""
    app: RocketBox = service(SOURCE + source, "").app
    settings = {"rocketmq.name-server": broker.address, "rocketmq.producer.group": "desk"}
    machine = Machine(clock=clock, network=broker.network, storage=MemoryStorage())
    seen = []

    async def use() -> None:
        async with app.launched(Launch(settings=settings, machine=machine)):
            await clock.sleep(1)
            seen.append(app.health())
            broker.silent = True
            broker.drop_connections()
            await clock.sleep(60)
            seen.append(app.health())
            broker.silent = False
            await clock.sleep(60)
            seen.append(app.health())

    async with broker:
        await clock.run(use)
    well, lost, back = seen
    assert well.ready, well.reasons
    assert well.components["clients"].components["main"].details["brokers"] == {broker.address: "connected"}
    listeners = well.components["listeners"].components["desk"]
    assert listeners.details["status"] == "running"
    assert (listeners.details["lag"], listeners.details["held"], listeners.details["queues"]) == (0, 0, 1)
    assert not lost.ready
    assert lost.components["clients"].status is HealthStatus.DOWN
    (reason,) = lost.reasons
    assert reason.startswith(f"the client has no connection to any broker ({broker.address}: ")
    assert back.ready, back.reasons


async def test_the_health_of_an_application_shows_no_secret(service: ServiceMaker) -> None:
    source = """
from pydantic import BaseModel, SecretStr
from rocketbox import configuration_properties

@configuration_properties("desk")
class DeskProperties(BaseModel):
    password: SecretStr

    def refused(self):
        return ValueError(f"no access with {self.password.get_secret_value()}")

class Database(HealthIndicator):
    name = "database"

    def __init__(self, props):
        self.props = props

    def health(self):
        error = self.props.refused()
        return Health.down(str(error), last=error, tries=[{"said": str(error)}, ("twice", 2)], seats=2)

class Cache(Database):
    name = "cache"

    def health(self):
        raise self.props.refused()

@bean
def database(props: DeskProperties) -> Database:
    return Database(props)

@bean
def cache(props: DeskProperties) -> Cache:
    return Cache(props)

@app.background_task
async def refresh(props: DeskProperties) -> None:
    raise props.refused()
"""
    module = service(SOURCE + source, "desk: {password: hunter2-hunter2}")
    async with module.app:
        await until(lambda: any("refresh" in reason for reason in module.app.not_ready_because))
        health = module.app.health()
    assert "hunter2" not in repr(health.as_dict())
    assert "no access with ******" in health.reasons
    details = health.components["database"].details
    assert details["last"] == "ValueError('no access with ******')"
    assert details["tries"] == [{"said": "no access with ******"}, ("twice", 2)]
    assert details["seats"] == 2
