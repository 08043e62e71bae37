"""What is found in a service and what is not: methods of beans, programs, modules beside, and what the start says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rocketbox.cli.app import app as cli
from rocketbox.errors import ConfigurationError
from tests.support.framework.services import ServiceMaker

SETTINGS = "rocketmq: {name-server: 'ns:9876', producer: {group: desk}}\n"
HEAD = """
from typing import Annotated, Any, Generic, TypeVar
from pydantic import BaseModel
from rocketbox import Qualifier, RocketBox, bean, on_profile, on_property, rocketmq_listener

app = RocketBox("desk")
T = TypeVar("T")

class Order(BaseModel):
    number: int
"""


def planned(module: object) -> list[tuple[str, str, object, bool]]:
    """Group, name, payload and whether a bean is needed, of each function that is planned."""
    return sorted(
        (plan.group, function.signature.name, function.signature.payload, function.signature.owner is not None)
        for plan in module.app.check().plans  # type: ignore[attr-defined]
        for function in plan.functions
    )


def refused(module: object) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        module.app.check()  # type: ignore[attr-defined]
    return [finding.what for finding in caught.value.findings]


@pytest.mark.parametrize("decorators", ["@{mark}\n    @{kind}", "@{kind}\n    @{mark}"])
@pytest.mark.parametrize("marked_as_bean", ["@bean", ""])
def test_static_and_class_methods_are_listeners(service: ServiceMaker, decorators: str, marked_as_bean: str) -> None:
    def method(name: str, kind: str, first: str) -> str:
        mark = f"rocketmq_listener(topic='{name}', consumer_group='{name}')"
        return f"    {decorators.format(mark=mark, kind=kind)}\n    async def {name}({first}body: Order) -> None: ...\n"

    source = (
        f"{marked_as_bean}\nclass Desk:\n" + method("one", "staticmethod", "") + method("two", "classmethod", "cls, ")
    )
    module = service(HEAD + source, SETTINGS)
    assert planned(module) == [("one", "Desk.one", module.Order, False), ("two", "Desk.two", module.Order, False)]


BASE_KIT = """
from typing import Generic, TypeVar
from rocketbox import rocketmq_listener

T = TypeVar("T")

class Base(Generic[T]):
    @rocketmq_listener(topic="orders", consumer_group="orders")
    async def on_order(self, order: T) -> None: ...

class Middle(Base[T]): ...
"""


@pytest.fixture
def base_kit(tmp_path: Path) -> Iterator[str]:
    name = "base_kit_of_nobody"
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / f"{name}.py").write_text(BASE_KIT)
    sys.path.insert(0, str(tmp_path / "site-packages"))
    yield name
    sys.path.remove(str(tmp_path / "site-packages"))
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "source",
    [
        "@bean\nclass Orders(base_kit.Base[Order]): ...\n",
        "@bean\nclass Orders(base_kit.Middle[Order]): ...\n",
        "class Between(base_kit.Middle[Order]): ...\n@bean\nclass Orders(Between): ...\n",
        "@bean\ndef orders() -> base_kit.Base[Order]:\n    return base_kit.Base()\n",
        "class Orders(base_kit.Base[Order]): ...\n@bean\nasync def orders() -> Orders:\n    return Orders()\n",
    ],
)
def test_a_listener_of_a_generic_base_of_another_package_takes_what_the_bean_binds(
    service: ServiceMaker, base_kit: str, source: str
) -> None:
    module = service(f"import {base_kit} as base_kit\n" + HEAD + source, SETTINGS)
    assert planned(module) == [("orders", "Base.on_order", module.Order, True)]


def test_a_type_variable_that_nobody_binds_is_refused(service: ServiceMaker, base_kit: str) -> None:
    module = service(f"import {base_kit} as base_kit\n" + HEAD + "@bean\nclass Orders(base_kit.Base): ...\n", SETTINGS)
    (what,) = refused(module)
    assert "parameter 'order'" in what


def test_each_bean_has_its_own_listener(service: ServiceMaker) -> None:
    source = """
class Base:
    group = "none"
    @rocketmq_listener(topic="orders", consumer_group="first")
    async def on_order(self, order: Order) -> None: ...

@bean
class First(Base): ...

@bean
class Second(Base):
    @rocketmq_listener(topic="orders", consumer_group="second")
    async def on_order(self, order: Order) -> None: ...
"""
    module = service(HEAD + source, SETTINGS)
    assert [(group, name) for group, name, *_ in planned(module)] == [
        ("first", "Base.on_order"),
        ("second", "Second.on_order"),
    ]
    owners = [plan.functions[0].signature.owner for plan in module.app.check().plans]
    assert owners == [module.First, module.Second]


def test_a_method_in_the_place_of_a_marked_one_is_a_listener_and_none_switches_it_off(service: ServiceMaker) -> None:
    source = """
class Base:
    @rocketmq_listener(topic="orders", consumer_group="orders")
    async def on_order(self, order: Order) -> None: ...
    @rocketmq_listener(topic="returns", consumer_group="returns")
    async def on_return(self, order: Order) -> None: ...

@bean
class Desk(Base):
    on_return = None
    async def on_order(self, order: Order) -> None: ...
"""
    module = service(HEAD + source, SETTINGS)
    assert [name for _, name, *_ in planned(module)] == ["Desk.on_order"]


def test_two_beans_of_one_class_are_two_listeners(service: ServiceMaker) -> None:
    source = """
class Desk:
    @rocketmq_listener(topic="orders", consumer_group="orders")
    async def on_order(self, order: Order) -> None: ...

@bean
def first() -> Desk: return Desk()
@bean
def second() -> Desk: return Desk()
"""
    (what,) = refused(service(HEAD + source, SETTINGS))
    assert "two functions for topic 'orders'" in what


def test_methods_of_a_class_that_no_bean_is_of_are_refused(service: ServiceMaker) -> None:
    source = """
class Desk:
    @rocketmq_listener(topic="orders", consumer_group="orders")
    async def on_order(self, order: Order) -> None: ...
"""
    assert refused(service(HEAD + source, SETTINGS)) == [
        "listener Desk.on_order is a method of Desk, and there is no such bean"
    ]


@pytest.mark.parametrize(("mark", "count"), [("", 0), ("    @rocketmq_listener(topic='x', consumer_group='own')\n", 1)])
def test_a_class_that_no_bean_is_of_may_be_below_that_of_one(service: ServiceMaker, mark: str, count: int) -> None:
    """A factory may make an object of it; what is marked in it is missed."""
    source = f"""
class Desk:
    @rocketmq_listener(topic="orders", consumer_group="orders")
    async def on_order(self, order: Order) -> None: ...
class Night(Desk):
{mark}    async def on_order(self, order: Order) -> None: ...
@bean
def desk() -> Desk: return Night()
"""
    module = service(HEAD + source, SETTINGS)
    if not count:
        assert [name for _, name, *_ in planned(module)] == ["Desk.on_order"]
        return
    assert refused(module) == ["listener Night.on_order is a method of Night, and there is no such bean"]


@pytest.mark.parametrize("kind", ["staticmethod", "classmethod"])
def test_functions_of_a_class_below_that_of_a_bean_are_no_listeners_beside_its_own(
    service: ServiceMaker, kind: str
) -> None:
    first = "cls, " * (kind == "classmethod")
    source = f"""
class Desk:
    @{kind}
    @rocketmq_listener(topic="orders", consumer_group="orders")
    async def on_order({first}order: Order) -> None: ...
class Night(Desk):
    @{kind}
    async def on_order({first}order: Order) -> None: ...
@bean
def desk() -> Desk: return Night()
"""
    assert [name for _, name, *_ in planned(service(HEAD + source, SETTINGS))] == ["Desk.on_order"]


def test_a_class_below_that_of_a_bean_without_the_listener_is_told_of(service: ServiceMaker) -> None:
    """The bean's class is not what has it."""
    source = """
class Desk: ...
class Mixin:
    @rocketmq_listener(topic="orders", consumer_group="orders")
    async def on_order(self, order: Order) -> None: ...
class Night(Desk, Mixin):
    async def on_order(self, order: Order) -> None: ...
@bean
def desk() -> Desk: return Night()
"""
    assert "listener Night.on_order is a method of Night, and there is no such bean" in refused(
        service(HEAD + source, SETTINGS)
    )


@pytest.mark.parametrize(
    "member", ["property(lambda self: None)", "partialmethod(other, 1)", "partialmethod(Desk.on_order)"]
)
def test_what_stands_in_the_place_of_a_listener_and_is_no_method_is_refused(service: ServiceMaker, member: str) -> None:
    source = f"""
from functools import partialmethod
class Desk:
    @rocketmq_listener(topic="orders", consumer_group="orders")
    async def on_order(self, order: Order) -> None: ...
@bean
class Night(Desk):
    async def other(self, number: int, order: Order) -> None: ...
    on_order = {member}
"""
    with pytest.raises(ConfigurationError) as refusal:
        service(HEAD + source, SETTINGS).app.check()
    (finding,) = refusal.value.findings
    kind = member.partition("(")[0]
    assert finding.what == f"Night.on_order stands in the place of a listener, and is a {kind}"


def test_methods_in_the_place_of_marked_ones_of_no_bean_are_refused(service: ServiceMaker) -> None:
    source = """
class Desk:
    @rocketmq_listener(topic="orders", consumer_group="orders")
    async def on_order(self, order: Order) -> None: ...
class Night(Desk):
    async def on_order(self, order: Order) -> None: ...
"""
    assert refused(service(HEAD + source, SETTINGS)) == [
        f"listener {name}.on_order is a method of {name}, and there is no such bean" for name in ("Desk", "Night")
    ]


def test_marked_methods_of_a_class_inside_of_another_are_refused(service: ServiceMaker) -> None:
    source = """
class Desk:
    class Night:
        @rocketmq_listener(topic="night", consumer_group="night")
        async def on_order(self, order: Order) -> None: ...
"""
    assert refused(service(HEAD + source, SETTINGS)) == [
        "listener Desk.Night.on_order is a method of Desk.Night, and there is no such bean"
    ]


def test_what_is_marked_in_a_class_and_cannot_be_called_is_refused(service: ServiceMaker) -> None:
    source = """
from functools import partialmethod
@bean
class Desk:
    async def handle(self, order: Order, times: int) -> None: ...
    on_order = rocketmq_listener(topic="orders", consumer_group="orders")(partialmethod(handle, times=2))
"""
    assert refused(service(HEAD + source, SETTINGS)) == [
        "Desk.on_order is marked as a listener, and is a partialmethod"
    ]


def test_an_object_in_a_class_is_called_as_it_is(service: ServiceMaker) -> None:
    source = """
class Handler:
    async def __call__(self, order: Order) -> None: ...
@bean
class Desk:
    on_order = rocketmq_listener(topic="orders", consumer_group="orders")(Handler())
"""
    module = service(HEAD + source, SETTINGS)
    assert planned(module) == [("orders", "Handler", module.Order, False)]


# --- what the start says -------------------------------------------------------------------------------------------

LISTENERS = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def on_order(order: Order) -> None: ...

@rocketmq_listener(topic="returns", consumer_group="returns", enabled=False)
async def on_return(order: Order) -> None: ...

@bean(on_profile("night"))
class Night:
    @rocketmq_listener(topic="night", consumer_group="night")
    async def on_order(self, order: Order) -> None: ...
"""


def test_check_says_what_was_found_and_what_is_off(service: ServiceMaker) -> None:
    module = service(HEAD + LISTENERS, SETTINGS)
    result = CliRunner().invoke(cli, ["check", f"{module.__name__}:app"])
    assert result.exit_code == 0, result.output
    assert f"found 3 listeners, 0 hooks, 1 bean in {module.__name__} (2 of them are off)" in result.output
    assert f"listener on_return of group returns is off: its decorator ({module.__name__}.py:" in result.output
    assert "listener Night.on_order of group night is off: it needs a bean of type Night, and there is" in result.output


def test_check_says_that_nothing_was_found(service: ServiceMaker) -> None:
    module = service(HEAD, SETTINGS)
    result = CliRunner().invoke(cli, ["check", f"{module.__name__}:app"])
    assert f"found 0 listeners, 0 hooks, 0 beans in {module.__name__}" in result.output


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ("rocketmq: {enabled: false}\n", "rocketmq.enabled is false: nothing of RocketMQ starts"),
        (
            "rocketmq: {name-server: 'ns:9876', consumer: {listeners: {orders: {enabled: false}}}}\n",
            "listener on_order of group orders is off: rocketmq.consumer.listeners.orders.enabled",
        ),
    ],
)
def test_what_settings_switch_off_is_told_with_its_place(service: ServiceMaker, settings: str, what: str) -> None:
    off = service(HEAD + LISTENERS, settings).app.check().off
    assert [each.where for each in off if each.what == what] == [f"rocketbox.yaml:1:{settings.index('false') + 1}"]


# --- programs and modules beside -----------------------------------------------------------------------------------


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


APP = """
from rocketbox import RocketBox, bean

app = RocketBox("shop")

from shop import handlers

class Desk: ...

@bean
def desk() -> Desk:
    return Desk()

@app.on_startup
def begin(desk: Desk) -> None: ...

if __name__ == "__main__":
    assembly = app.check()
    print(assembly.describe_found())
    for line in assembly.describe_listeners():
        print(line)
"""
HANDLERS = """
from rocketbox import rocketmq_listener
import shop.app
from shop.app import app

@rocketmq_listener(topic="orders", consumer_group="orders")
async def on_order(order: dict, desk: "shop.app.Desk") -> None: ...
"""


def test_a_module_of_a_package_that_runs_as_a_program_is_scanned_with_its_package(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "app.py").write_text(APP)
    (tmp_path / "shop" / "handlers.py").write_text(HANDLERS)
    (tmp_path / "rocketbox.yaml").write_text(SETTINGS)
    printed = run(tmp_path, "-m", "shop.app")
    assert "found 1 listener, 1 hook, 1 bean in shop" in printed
    assert "listener on_order (shop/handlers.py:" in printed


def test_a_program_that_is_imported_before_it_makes_its_application_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "handlers.py").write_text("import shop.app\n")
    (tmp_path / "shop" / "app.py").write_text(
        "from shop import handlers\nfrom rocketbox import ConfigurationError, RocketBox\napp = RocketBox('shop')\n"
        "if __name__ == '__main__':\n    try:\n        app.check()\n    except ConfigurationError as error:\n"
        "        print(error)\n"
    )
    assert "shop.app runs as a program, and another module has imported it a second time" in run(
        tmp_path, "-m", "shop.app"
    )


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"handlers_beside_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(
        "from rocketbox import rocketmq_listener\n\n"
        "@rocketmq_listener(topic='a', consumer_group='a')\nasync def on_a(body: dict) -> None: ...\n"
    )
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("line", ["import {}", "from {} import on_a", "def later():\n    import {}\n\nlater()"])
def test_marked_functions_beside_the_scan_are_a_warning_with_the_scan_that_would(
    service: ServiceMaker, beside: str, line: str
) -> None:
    module = service(HEAD + line.format(beside) + "\n", SETTINGS)
    (warning,) = module.app.check().warnings
    assert warning.what == f"{beside}.on_a ({beside}.py:3) is not scanned, and so not part of desk"
    assert warning.fix == f"write RocketBox(\"desk\", scan=[__name__, '{beside}'])"
    written = service(
        HEAD.replace('RocketBox("desk")', f'RocketBox("desk", scan=[__name__, "{beside}"])') + line.format(beside),
        SETTINGS,
    )
    assert written.app.check().warnings == []
    assert [group for group, *_ in planned(written)] == ["a"]


def test_modules_that_the_application_does_not_import_are_no_warning(service: ServiceMaker, beside: str) -> None:
    module = service(HEAD, SETTINGS)
    __import__(beside)  # as another application of the same process would
    assert module.app.check().warnings == []


def test_who_says_what_is_scanned_is_warned_only_if_no_listener_is_found(service: ServiceMaker, beside: str) -> None:
    chosen = HEAD.replace('RocketBox("desk")', 'RocketBox("desk", scan=[__name__])') + f"import {beside}\n"
    assert service(chosen + LISTENERS, SETTINGS).app.check().warnings == []
    (warning,) = service(chosen, SETTINGS).app.check().warnings
    assert "is not scanned" in warning.what
