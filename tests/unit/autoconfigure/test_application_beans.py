"""Beans of a whole application that needs no servers: reached, overridden, started and closed in order."""

from __future__ import annotations

import pytest

from rocketbox.errors import ConfigurationError, NotStartedError
from tests.support.framework.services import ServiceMaker

SOURCE = """
from collections.abc import AsyncIterator, Iterator
from typing import Annotated
from pydantic import BaseModel
from rocketbox import Qualifier, RocketBox, bean, configuration_properties
from rocketbox.boot.conditions import on_profile

app = RocketBox("flight-desk", scan=[__name__])
events = []

@configuration_properties("desk")
class DeskProperties(BaseModel):
    threshold_minutes: int = 60

class Book:
    def __init__(self, name):
        self.name = name

class Desk:
    def __init__(self, threshold, books):
        self.threshold, self.books = threshold, books

@bean
async def day() -> AsyncIterator[Book]:
    events.append("open day")
    yield Book("day")
    events.append("close day")

@bean
def night(day: Annotated[Book, Qualifier("day")]) -> Iterator[Book]:
    events.append("open night")
    yield Book("night")
    events.append("close night")

@bean
def desk(properties: DeskProperties, books: list[Book], other: "Spare | None") -> Desk:
    assert other is None
    return Desk(properties.threshold_minutes, [book.name for book in books])

@bean(on_profile("prod"))
class Spare: ...
"""


@pytest.mark.anyio
async def test_beans_start_and_close_in_order_and_are_had_by_type_and_name(service: ServiceMaker) -> None:
    module = service(SOURCE, "desk.threshold-minutes: 45\n")
    async with module.app as app:
        desk = app.get(module.Desk)
        assert (desk.threshold, desk.books) == (45, ["day", "night"])
        assert app.get(module.Book, "night").name == "night"
        assert module.events == ["open day", "open night"]
        with pytest.raises(ConfigurationError, match=r"get\(Book\) needs one bean of type Book, and there are 2: day"):
            app.get(module.Book)
        with pytest.raises(ConfigurationError, match="Spare was not built because profile prod is not active"):
            app.get(module.Spare)
    assert module.events == ["open day", "open night", "close night", "close day"]
    with pytest.raises(NotStartedError):
        app.get(module.Desk)


@pytest.mark.anyio
async def test_the_container_of_dependency_injector_is_there_and_can_be_overridden(service: ServiceMaker) -> None:
    module = service(SOURCE, "")
    async with module.app as app:
        own = app.get(module.Desk)
        assert app.container.desk() is own
        assert app.container.night().name == "night"
        with app.container.desk.override(fake := module.Desk(1, [])):
            assert app.get(module.Desk) is fake
            assert await app.provider(module.Desk)() is fake
        assert app.get(module.Desk) is own


@pytest.mark.anyio
async def test_a_service_may_have_protocols_that_nobody_can_check(service: ServiceMaker) -> None:
    source = """
    from typing import Protocol
    from rocketbox import RocketBox, bean

    app = RocketBox("flight-desk", scan=[__name__])

    class Loud(Protocol):
        def sound(self) -> str: ...

    class Horn(Loud):
        def sound(self) -> str:
            return "honk"

    @bean
    def horn() -> Horn:
        return Horn()
    """
    module = service(source, "")
    async with module.app as app:
        assert app.get(module.Loud).sound() == "honk"


@pytest.mark.anyio
async def test_a_bean_may_be_made_by_an_object_that_can_be_called(service: ServiceMaker) -> None:
    source = """
    import functools
    from rocketbox import RocketBox, bean

    app = RocketBox("flight-desk", scan=[__name__])

    class Book: ...
    class Desk: ...

    class Maker:
        def __call__(self) -> Book:
            return Book()

    def make(kind) -> Desk:
        return kind()

    book = bean(Maker())
    desk = bean(name="desk")(functools.partial(make, Desk))
    """
    module = service(source, "")
    async with module.app as app:
        assert type(app.get(module.Book)) is module.Book
        assert type(app.get(module.Desk, "desk")) is module.Desk


@pytest.mark.anyio
async def test_a_bean_that_fails_closes_those_before_it(service: ServiceMaker) -> None:
    module = service(SOURCE.replace("assert other is None", "raise ValueError('no desk')"), "")
    with pytest.raises(ConfigurationError, match="bean desk failed to start: ValueError: no desk"):
        async with module.app:
            raise AssertionError("it started")
    assert module.events == ["open day", "open night", "close night", "close day"]


def test_primary_without_bean_is_told(service: ServiceMaker) -> None:
    module = service(SOURCE + "\nfrom rocketbox import primary\n@primary\ndef spare() -> Book: ...\n", "")
    assert [finding.what for finding in module.app.look().findings] == ["spare is marked @primary, and is no bean"]


# --- startup hooks ----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_hook_is_given_beans_and_keeps_its_defaults(service: ServiceMaker) -> None:
    hook = """
@app.on_startup
async def begin(desk: Desk, books: list[Book], spare: Spare | None, times=3, unknown: "Nobody" = None):
    events.append((type(desk).__name__, len(books), spare, times, unknown))

@app.on_startup
def second(night: Annotated[Book, Qualifier("night")] = None):
    events.append(night.name)
"""
    module = service(SOURCE + hook, "")
    async with module.app:
        assert module.events[2:] == [("Desk", 2, None, 3, None), "night"]


@pytest.mark.anyio
async def test_a_hook_may_be_whatever_can_be_called(service: ServiceMaker) -> None:
    hook = """
from functools import partial, wraps

class Begin:
    async def __call__(self, desk: Desk):
        events.append("object")

async def begin(desk: Desk, what: Annotated[Book, Qualifier("day")]):
    events.append(what)

def returns(desk: Desk):
    return begin(desk, "returned")

@wraps(begin)
def decorated(*args, **kwargs):
    return begin(*args, **{**kwargs, "what": "decorated"})

for each in (Begin(), partial(begin, what="partial"), returns, decorated):
    app.on_startup(each)
"""
    module = service(SOURCE + hook, "")
    async with module.app:
        assert module.events[2:] == ["object", "partial", "returned", "decorated"]


def test_what_a_hook_cannot_be_given_is_told(service: ServiceMaker) -> None:
    hook = """
@app.on_startup
def begin(untyped, unknown: "Nobody", book: Book, spare: Spare): ...
"""
    texts = [finding.what for finding in service(SOURCE + hook, "").app.look().findings]
    assert [text.removeprefix("parameter ").partition(" of startup hook begin ")[::2] for text in texts] == [
        ("untyped", "has no type"),
        ("unknown", "has a type that is not known at run time: name 'Nobody' is not defined"),
        ("book", texts[2].partition("begin ")[2]),
        ("spare", texts[3].partition("begin ")[2]),
    ]
    assert "needs one bean of type Book, and there are 2: day (" in texts[2]
    assert "Spare was not built because profile prod is not active" in texts[3]


# --- settings as beans ------------------------------------------------------------------------------------------------


def test_models_of_settings_with_one_base_are_told_apart_by_their_prefix(service: ServiceMaker) -> None:
    more = """
class Mail(BaseModel):
    host: str = "here"

@configuration_properties("mail.day")
class DayMail(Mail): ...

@configuration_properties("mail.night")
class NightMail(Mail): ...

class Sender: ...

@bean
def sender(mail: Annotated[Mail, Qualifier("mail.night")], both: list[Mail]) -> Sender:
    return Sender()
"""
    assert service(SOURCE + more, "").app.look().findings == []
    (finding,) = service(SOURCE + more.replace(', Qualifier("mail.night")', ", 0"), "").app.look().findings
    assert finding.what == (
        "parameter mail of bean sender needs one bean of type Mail, and there are 2: mail.day (the settings below "
        "mail.day), mail.night (the settings below mail.night)"
    )
    assert 'Annotated[Mail, Qualifier("mail.day")]' in str(finding.fix)


# --- where beans are not ----------------------------------------------------------------------------------------------


def test_a_bean_function_in_a_class_is_refused_for_it_would_be_overlooked(service: ServiceMaker) -> None:
    more = """
class Beans:
    @bean
    def spare_desk(self) -> Desk:
        return Desk(1, [])
"""
    module = service(SOURCE + more, "")
    (finding,) = module.app.look().findings
    assert finding.what == "Beans.spare_desk is marked @bean, and stands in a class"
    assert str(finding.where).startswith(f"{module.__name__}.py:")


def test_listeners_of_a_bean_that_is_left_out_are_off(service: ServiceMaker) -> None:
    more = """
from rocketbox import rocketmq_listener

@bean(on_profile("prod"))
class Night:
    @rocketmq_listener(topic="departures", consumer_group="night")
    async def on_departure(self, flight: str) -> None: ...
"""
    look = service(SOURCE + more, "").app.look()
    assert (look.findings, look.plans) == ([], [])
    (off,) = [each.what for each in look.off]
    assert "listener Night.on_departure of group night is off: it needs a bean of type Night" in off
    assert "was not built because profile prod is not active" in off
    on = service(SOURCE + more, "rocketbox.profiles.active: prod\nrocketmq.name-server: ns:9876\n").app.look()
    assert [plan.group for plan in on.plans] == ["night"]
