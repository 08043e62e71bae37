"""What takes a bean's place: in one start, or in the application's container for all starts; no servers are needed."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from dependency_injector import providers

from rocketbox import ClientStateError, ConfigurationError, NotStartedError, RocketMQTemplate
from rocketbox.autoconfigure.assembly import AssemblyError
from rocketbox.client import MQClientInstance, Producer
from tests.support.framework.services import ServiceMaker

SOURCE = """
from pydantic import BaseModel
from rocketbox import RocketBox, RocketMQTemplate, bean, configuration_properties, rocketmq_listener, send_to
from rocketbox.boot.conditions import on_bean, on_missing_bean

app = RocketBox("flight-desk", scan=[__name__])
events = []

@configuration_properties("desk")
class DeskProperties(BaseModel):
    key: str

class Pager: ...

class Desk:
    def __init__(self, pager, template):
        self.pager, self.template = pager, template

@bean
async def pager(properties: DeskProperties) -> Pager:
    events.append("opens the pager")
    return Pager()

@bean
def desk(pager: Pager, template: RocketMQTemplate) -> Desk:
    return Desk(pager, template)

@app.on_startup
def begin(desk: Desk, template: RocketMQTemplate) -> None:
    events.append((desk, template))

@rocketmq_listener(topic="departures", consumer_group="desk")
@send_to("alerts")
async def on_departure(text: str, desk: Desk) -> str: ...
"""

OFF = {"rocketmq.enabled": False, "desk.key": "k"}

pytestmark = pytest.mark.anyio


@pytest.fixture
def module(service: ServiceMaker) -> Any:
    return service(SOURCE, "")


class FakeTemplate:
    """Of which nobody asks anything here."""


# --- in one start -----------------------------------------------------------------------------------------------------


async def test_a_template_is_replaced_where_nothing_of_rocketmq_runs(module: Any) -> None:
    fake: Any = FakeTemplate()
    async with module.app.started(settings=OFF, beans={RocketMQTemplate: fake}) as app:
        assert app.template is fake
        desk = app.get(module.Desk)
        assert desk.template is fake
        assert module.events == ["opens the pager", (desk, fake)]
        assert "an object was given in its place" in app.conditions().render()


async def test_a_template_is_replaced_without_a_name_server(service: ServiceMaker) -> None:
    module = service(SOURCE.partition("@rocketmq_listener")[0], "desk.key: k")
    async with module.app.started(beans={RocketMQTemplate: (fake := FakeTemplate())}) as app:
        assert app.get(module.Desk).template is fake


async def test_a_type_that_nobody_provides_is_a_bean_by_its_override(service: ServiceMaker) -> None:
    module = service(SOURCE + "\nclass Book: ...\n@app.on_startup\ndef look(book: Book) -> None: ...\n", "")
    settings = {**OFF, "rocketmq.producer.group": "desk"}
    beans = {RocketMQTemplate: FakeTemplate(), module.Book: (book := module.Book())}
    async with module.app.started(settings=settings, beans=beans) as app:
        assert app.get(module.Book) is book


async def test_a_client_and_a_producer_are_replaced_where_nothing_of_rocketmq_runs(module: Any) -> None:
    producer, instance = object(), object()
    async with module.app.started(settings=OFF, beans={Producer: producer, MQClientInstance: instance}) as app:
        assert app.get(MQClientInstance) is instance
        assert app.template.producer is producer  # the real template, around it


async def test_an_override_by_a_text_is_refused(module: Any) -> None:
    with pytest.raises(AssemblyError, match="an override is for the text 'pager', and beans are found by their types"):
        async with module.app.started(settings=OFF, beans={"pager": object(), RocketMQTemplate: FakeTemplate()}):
            raise AssertionError("it has started")


# --- in the application's container ----------------------------------------------------------------------------------


async def test_an_override_in_the_container_reaches_whoever_asks_in_all_later_starts(module: Any) -> None:
    app, fake, template = module.app, object(), FakeTemplate()
    with app.container.pager.override(fake), app.container.rocketmq_template.override(template):
        for _ in range(2):
            async with app.started(settings=OFF):
                assert app.get(module.Pager) is fake
                assert (app.get(module.Desk).pager, app.get(module.Desk).template) == (fake, template)
                assert module.events.pop() == (app.get(module.Desk), template)
                assert app.container.pager() is fake
    assert module.events == [], "the pager that was replaced is not opened"
    async with app.started(settings=OFF, beans={RocketMQTemplate: template}):
        assert type(app.get(module.Pager)) is module.Pager
    with pytest.raises(AssemblyError, match=r"needs? a bean of type RocketMQTemplate"):
        async with app.started(settings=OFF):
            raise AssertionError("it has started")


async def test_an_override_may_be_any_provider(module: Any) -> None:
    app = module.app
    app.container.pager.override(providers.Factory(module.Pager))
    async with app.started(settings=OFF, beans={RocketMQTemplate: FakeTemplate()}):
        assert app.get(module.Pager) is not app.get(module.Pager)


async def test_what_a_start_is_told_wins_over_the_container(module: Any) -> None:
    app, ours = module.app, object()
    app.container.pager.override(object())
    async with app.started(settings=OFF, beans={module.Pager: ours, RocketMQTemplate: FakeTemplate()}):
        assert app.get(module.Pager) is ours


async def test_the_container_is_that_of_the_run_while_there_is_one(module: Any) -> None:
    app = module.app
    own = app.container
    assert app.container is own
    async with app.started(settings=OFF, beans={RocketMQTemplate: FakeTemplate()}):
        assert app.container is not own
        real = app.container.pager()
        with app.container.pager.override(fake := object()):
            assert app.get(module.Pager) is fake
            assert await app.provider(module.Pager)() is fake
        assert app.get(module.Pager) is real
    assert app.container is own
    with pytest.raises(NotStartedError, match="bean pager"):
        own.pager()


async def test_an_override_counts_for_checks_as_well(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_KEY", "k")
    monkeypatch.setenv("ROCKETMQ_ENABLED", "false")
    with pytest.raises(ConfigurationError, match=r"needs? a bean of type RocketMQTemplate"):
        module.app.check()
    with module.app.container.rocketmq_template.override(FakeTemplate()):
        module.app.check()


# --- in every way of starting -----------------------------------------------------------------------------------------


async def test_a_lifespan_takes_settings_and_beans_and_may_be_entered_again(module: Any) -> None:
    lifespan = module.app.lifespan(settings=OFF, beans={RocketMQTemplate: (fake := FakeTemplate())})
    for _ in range(2):
        async with lifespan(object()):  # a framework calls it with its own application
            assert module.app.get(module.Desk).template is fake
    async with lifespan:
        assert module.app.is_ready
    assert not module.app.is_ready


def test_a_background_takes_settings_and_beans(module: Any) -> None:
    fake = FakeTemplate()
    with module.app.background(settings=OFF, beans={RocketMQTemplate: fake}):
        assert module.app.get(module.Desk).template is fake


async def test_run_in_a_thread_says_what_to_use_there(module: Any) -> None:
    failures: list[str] = []

    def run() -> None:
        try:
            module.app.run()
        except ClientStateError as error:
            failures.append(f"{threading.current_thread().name}: {error}")

    await anyio.to_thread.run_sync(run)
    assert "only the main thread can; in a thread use 'with app.background():'" in failures[0]
