"""What was easily meant otherwise is refused, with what to write instead, and never does nothing without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from dependency_injector import providers

from rocketbox.boot.conditions import on_property
from rocketbox.boot.marks import Qualifier, bean
from rocketbox.errors import ClientStateError, ConfigurationError
from tests.support.framework.services import ServiceMaker

HEAD = """
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated
from pydantic import BaseModel
from rocketbox import Qualifier, RocketBox, bean, configuration_properties, rocketmq_listener
from rocketbox.boot.conditions import Condition, Verdict

app = RocketBox("desk", scan=[__name__])
events = []

class Desk: ...

@bean
def day() -> Desk:
    return Desk()

@bean
def night() -> Desk:
    return Desk()
"""
SERVERS = "rocketmq: {name-server: 'ns:9876', producer: {group: desk}}\n"


def refused(module: Any, **options: Any) -> list[tuple[str, str | None]]:
    with pytest.raises(ConfigurationError) as caught:
        module.app.check(**options)
    return [(finding.what, finding.fix) for finding in caught.value.findings]


# --- overrides --------------------------------------------------------------------------------------------------------


def test_a_provider_that_is_assigned_to_the_container_is_refused(service: ServiceMaker) -> None:
    app = service(HEAD, "").app
    for name in ("day", "other"):
        with pytest.raises(ClientStateError, match=rf"write app\.container\.{name}\.override\(\.\.\.\)"):
            setattr(app.container, name, providers.Object(3))
    with pytest.raises(ClientStateError, match=r"write app\.container\.day\.override"):
        app.container.set_providers(day=providers.Object(3))
    with app.container.override_providers(day=providers.Object(3)):
        assert app.container.day() == 3


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("hint", "shown"), [(3, "3"), (object, "object"), (None, "None"), (Any, "Any"), (int | str, "int | str")]
)
async def test_an_override_for_what_is_no_type_of_a_bean_is_refused(
    service: ServiceMaker, hint: Any, shown: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with service(HEAD, "").app.started(beans={hint: 3}):
            pass
    (finding,) = caught.value.findings
    assert (finding.what, finding.fix) == (
        f"an override is for {shown}, and beans are found by their types",
        "write the type that a parameter would have: beans={Desk: FakeDesk()}",
    )


@pytest.mark.anyio
@pytest.mark.parametrize("factory", [False, True])
async def test_an_override_that_asks_for_a_bean_which_only_a_run_starts_is_refused(
    service: ServiceMaker, factory: bool
) -> None:
    module = service(HEAD, "")
    container = module.app.container
    with container.day.override(providers.Factory(list, container.night) if factory else container.night):
        ((what, fix),) = refused(module)
        assert what == "the override of bean day asks app.container for bean night, which a run starts"
        assert fix == "override it by an object, or by providers that ask for no bean"
    with container.night.override("a night"), container.day.override(container.night):
        async with module.app as app:
            assert app.get(module.Desk, "day") == "a night"


PROPERTIES = """
from pydantic import BaseModel
from rocketbox import RocketBox, bean, configuration_properties

app = RocketBox("desk", scan=[__name__])

@configuration_properties("desk")
class Props(BaseModel):
    key: str
    limit: int = 3

class Desk:
    def __init__(self, key):
        self.key = key

@bean
def desk(properties: Props) -> Desk:
    return Desk(properties.key)
"""


@pytest.mark.anyio
@pytest.mark.parametrize("written", ["", "desk.limit: 7\n"])
async def test_settings_whose_model_is_overridden_are_not_required(service: ServiceMaker, written: str) -> None:
    module = service(PROPERTIES, written)
    assert refused(module)[0][0] == "desk.key is required and not set"
    async with module.app.started(beans={module.Props: (given := module.Props(key="given"))}) as app:
        assert app.get(module.Desk).key == "given"
        assert app.get(module.Props) is given


@pytest.mark.anyio
async def test_settings_whose_model_is_overridden_in_the_container_are_not_required(service: ServiceMaker) -> None:
    module = service(PROPERTIES.replace('"desk")\nclass', '"counter")\nclass'), "")
    module.app.container.counter.override(module.Props(key="given"))
    async with module.app as app:
        assert app.get(module.Desk).key == "given"


NIGHT = """
from typing import Annotated
from rocketbox import Qualifier

class Night:
    def __init__(self, properties, others):
        self.keys = [properties.key, others.key]

@bean
def late() -> Props:
    return Props(key="late")

@bean
def night(properties: Annotated[Props, Qualifier("late")], others: Annotated[Props, Qualifier("desk")]) -> Night:
    return Night(properties, others)
"""


@pytest.mark.anyio
@pytest.mark.parametrize("by", ["hint", "container"])
async def test_settings_are_required_where_another_bean_of_their_type_is_overridden(
    service: ServiceMaker, by: str
) -> None:
    source = PROPERTIES.partition("class Desk:")[0] + NIGHT
    module = service(source, "")
    beans = {}
    if by == "hint":
        beans[Annotated[module.Props, Qualifier("late")]] = module.Props(key="given")
    else:
        module.app.container.late.override(module.Props(key="given"))
    with pytest.raises(ConfigurationError, match=r"desk\.key is required and not set"):
        async with module.app.started(beans=beans):
            pass
    async with module.app.started(beans=beans, settings={"desk.key": "written"}) as app:
        assert app.get(module.Night).keys == ["given", "written"]


@pytest.mark.anyio
async def test_settings_are_required_where_the_override_is_for_a_primary_bean(service: ServiceMaker) -> None:
    source = PROPERTIES + "\nfrom rocketbox import primary\n@primary\n@bean\ndef late() -> Props: ...\n"
    module = service(source, "")
    with pytest.raises(ConfigurationError, match=r"desk\.key is required and not set"):
        async with module.app.started(beans={module.Props: module.Props(key="given")}):
            pass
    async with module.app.started(beans={module.Props: (given := module.Props(key="g"))}, settings={"desk.key": "k"}):
        assert module.app.get(module.Props) is given
        assert module.app.get(module.Props, "desk").key == "k"


@pytest.mark.anyio
async def test_settings_whose_model_is_overridden_by_a_base_class_are_not_required(service: ServiceMaker) -> None:
    source = PROPERTIES.replace(
        "class Props(BaseModel)", "class Keys: ...\n\n@configuration_properties('desk')\nclass Props(BaseModel, Keys)"
    )
    source = source.replace('@configuration_properties("desk")\nclass Keys', "class Keys")
    module = service(source, "")
    async with module.app.started(beans={module.Keys: module.Props(key="given")}) as app:
        assert app.get(module.Desk).key == "given"


# --- marks ------------------------------------------------------------------------------------------------------------


def on_tuesday() -> Any: ...


on_tuesday.__annotations__["return"] = "Condition"


@pytest.mark.parametrize("condition", [on_property, on_tuesday])
def test_a_condition_without_its_call_is_refused(condition: Any) -> None:
    with pytest.raises(TypeError, match=rf"@bean\({condition.__name__}\) has no condition: call {condition.__name__}"):
        bean(condition)


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize("source", ["from asyncio import Condition", "class Condition: ..."])
def test_a_bean_of_another_class_that_is_called_condition_is_a_bean(
    service: ServiceMaker, source: str, future: str
) -> None:
    text = f"{future}{HEAD}{source}\n@bean\ndef weather() -> Condition:\n    return Condition()\n"
    service(text, SERVERS).app.check()


PLACES = {
    "bean": "@bean\ndef book({parameter}) -> list: ...\n",
    "hook": "@app.on_startup\ndef begin({parameter}) -> None: ...\n",
    "listener": "@rocketmq_listener(topic='t', consumer_group='g')\nasync def on(text: str, {parameter}): ...\n",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("parameter", "what", "fix"),
    [
        ("desk: Desk = Qualifier('night')", "a Qualifier as its default", 'Annotated[Desk, Qualifier("night")]'),
        ("desk: Desk | None = Qualifier('night')", "a Qualifier as its default", 'Annotated[Desk, Qualifier("night")]'),
        ("desk: Annotated[Desk, Qualifier]", "a Qualifier without a name", 'Annotated[Desk, Qualifier("name")]'),
        ("desk: Desk = Qualifier", "a Qualifier without a name", 'Annotated[Desk, Qualifier("name")]'),
    ],
)
def test_a_qualifier_where_none_is_looked_for_is_refused(
    service: ServiceMaker, place: str, parameter: str, what: str, fix: str
) -> None:
    source = PLACES[place].format(parameter=parameter).replace("-> list", "-> dict")
    ((told, mend),) = refused(service(HEAD + source, SERVERS))
    assert f"has {what}" in told
    assert "desk" in told
    assert mend == f"write desk: {fix}"


def test_a_qualifier_as_the_default_of_a_hook_parameter_without_a_type_is_refused(service: ServiceMaker) -> None:
    source = "@app.on_startup\ndef begin(desk=Qualifier('night')): ...\n"
    ((what, fix),) = refused(service(HEAD + source, ""))
    assert what == "parameter desk of startup hook begin has a Qualifier as its default"
    assert fix == 'write desk: Annotated[TheType, Qualifier("night")]'


@pytest.mark.parametrize("kind", ["property", "cached_property"])
def test_a_marked_property_is_refused(service: ServiceMaker, kind: str) -> None:
    source = (
        "@bean\nclass Counter:\n"
        f"    @{kind}\n    @rocketmq_listener(topic='t', consumer_group='g')\n    def on_text(self) -> None: ...\n"
    )
    ((what, fix),) = refused(service(HEAD + source, SERVERS))
    assert what == f"Counter.on_text is marked as a listener, and is a {kind}"
    assert fix == "write the mark above a def of the class, which may call it"


@pytest.mark.parametrize("other", ["partialmethod(on, flag=1)", "property(on)", "cached_property(on)"])
def test_another_way_to_a_marked_method_is_no_listener_of_its_own(service: ServiceMaker, other: str) -> None:
    source = f"""
from functools import partialmethod

@bean
class Counter:
    @rocketmq_listener(topic="t", consumer_group="g")
    async def on(self, text: str, flag=0) -> None: ...

    other = {other}
"""
    assert service(HEAD + source, SERVERS).app.check().inventory.listeners == 1


def test_a_bean_that_is_a_property_is_refused(service: ServiceMaker) -> None:
    source = "class Counter:\n    @property\n    @bean\n    def desk(self) -> Desk: ...\n"
    ((what, _),) = refused(service(HEAD + source, ""))
    assert what == "Counter.desk is marked @bean, and stands in a class"


@pytest.mark.parametrize("decorator", ["", "@contextmanager\n"])
def test_a_bean_that_yields_and_is_not_to_be_closed_is_refused(service: ServiceMaker, decorator: str) -> None:
    source = f"@bean(close=False)\n{decorator}def book() -> Iterator[dict]:\n    yield {{}}\n"
    assert refused(service(HEAD + source, "")) == [
        (
            "bean book says close=False, and it yields: what stands behind its yield closes it",
            "leave out close=False, or return the bean instead of yielding it",
        )
    ]


CONDITIONS = """
class Full:
    def evaluate(self, context):
        raise ValueError("no moon")

class Yes:
    def evaluate(self, context):
        return True

@bean(Full())
def book() -> dict:
    return {}

@bean(Yes())
def shelf() -> list:
    return []
"""


def test_a_condition_of_a_bean_that_fails_is_told_with_its_place(service: ServiceMaker) -> None:
    with pytest.raises(ConfigurationError) as caught:
        service(HEAD + CONDITIONS.replace("-> list", "-> set"), "").app.check()
    first, second = caught.value.findings
    assert first.what == "the condition of bean book failed: ValueError: no moon"
    assert first.where is not None
    assert "raised at" in first.where
    assert second.what == (
        "the condition of bean shelf failed: TypeError: its evaluate() returned bool, and must return a Verdict"
    )


# --- at the import ----------------------------------------------------------------------------------------------------


def test_the_container_is_refused_while_a_module_is_being_imported(service: ServiceMaker) -> None:
    with pytest.raises(ClientStateError, match=r"while the module service_\d+ is being imported, before all"):
        service(HEAD + "app.container.day.override(3)\n@bean\ndef late() -> dict: ...\n", "")


def test_a_module_of_the_application_that_ends_the_process_is_a_finding(service: ServiceMaker, tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text("import sys\nsys.exit(7)\n")
    module = service("from rocketbox import RocketBox\napp = RocketBox('desk', scan=['ending'])\n", "")
    ((what, _),) = refused(module)
    assert what == "module ending cannot be imported: SystemExit: 7"


# --- settings ---------------------------------------------------------------------------------------------------------

GROUPS = """
from pydantic import BaseModel
from rocketbox import RocketBox, configuration_properties

app = RocketBox("desk", scan=[__name__])

class Sub(BaseModel):
    a: int = 1
    b: int = 2

@configuration_properties("desk")
class Props(BaseModel):
    sub: Sub = Sub()
    table: dict[str, Sub] = {}
    free: dict[str, int] = {}
    subs: list[Sub] = []
"""


@pytest.mark.parametrize(
    ("name", "text", "key", "variable"),
    [
        ("DESK_SUB", '{"a": 5, "b": 6}', "desk.sub", "DESK_SUB_A=... and DESK_SUB_B=..."),
        ("DESK", '{"sub": {"a": 5}}', "desk", "DESK_SUB_A=..."),
        ("DESK_TABLE_ONE", ' {"a": 5}', "desk.table.one", "DESK_TABLE_ONE_A=..."),
        ("DESK_TABLE", '{"one": {"a": 5}}', "desk.table", "DESK_TABLE_ONE_A=..."),
        ("DESK_SUBS_0", '{"a": 5}', "desk.subs.0", "DESK_SUBS_0_A=..."),
        ("DESK", '{"subs": [{"a": 5}, {"a": 6}]}', "desk", "DESK_SUBS_0_A=... and DESK_SUBS_1_A=..."),
        ("DESK", '{"table": {"one": {"a": 5}}, "free": {"two": [1]}}', "desk",
         "DESK_TABLE_ONE_A=... and DESK_FREE_TWO=..."),
        ("ROCKETMQ_PRODUCER", '{"send-message-timeout": 5}', "rocketmq.producer",
         "ROCKETMQ_PRODUCER_SEND_MESSAGE_TIMEOUT=..."),
    ],
)  # fmt: skip
def test_json_for_a_group_of_keys_from_the_environment_is_refused(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch, name: str, text: str, key: str, variable: str
) -> None:
    monkeypatch.setenv(name, text)
    assert refused(service(GROUPS, "")) == [
        (f"the variable {name} has JSON for the group of keys {key}, and a variable says one key", f"set {variable}")
    ]


@pytest.mark.parametrize("text", ["plain", "{no json", "{}", ""])
def test_other_text_in_a_variable_that_has_the_name_of_a_group_is_somebody_elses(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("DESK", text)
    if text == "{}":
        assert refused(service(GROUPS, ""))[0][1] == "unset DESK, which says nothing"
    else:
        service(GROUPS, "").app.check()
