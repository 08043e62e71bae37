"""Marks and conditions: plain values, light to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocketbox.boot.conditions import any_of, not_, on_module, on_profile, on_property, profiles_named
from rocketbox.boot.marks import BeanMark, bean, bean_mark, configuration_properties, properties_prefix


def test_importing_marks_and_conditions_is_light() -> None:
    script = "import sys, rocketbox.boot.marks, rocketbox.boot.conditions; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    heavy = {"pydantic", "pydantic_settings", "dependency_injector", "yaml", "anyio", "asyncio"}
    assert {name.split(".")[0] for name in loaded}.isdisjoint(heavy)


def test_a_marked_function_stays_what_it_was() -> None:
    def desk() -> int:
        return 1

    assert bean(desk) is desk
    assert desk() == 1
    assert bean_mark(desk) == BeanMark()


def test_a_mark_carries_what_was_said() -> None:
    condition = on_property("desk.enabled")

    @bean(condition, name="front", after=["other"], per_cluster=True)
    def desk() -> int:
        return 1

    assert bean_mark(desk) == BeanMark((condition,), "front", ("other",), (), True)


def test_a_subclass_is_not_marked_by_its_base() -> None:
    @bean
    @configuration_properties("desk")
    class Base:
        pass

    class Derived(Base):
        pass

    assert properties_prefix(Base) == "desk"
    assert bean_mark(Derived) is None
    assert properties_prefix(Derived) is None


def test_a_prefix_cannot_be_empty() -> None:
    with pytest.raises(ValueError, match=r"not 'desk\.\.x'"):
        configuration_properties("desk..x")


class Context:
    """What conditions ask, with given answers."""

    def __init__(self, texts: dict[str, str], profiles: tuple[str, ...] = ()) -> None:
        self.texts = texts
        self.active = profiles

    def key(self, key: str) -> str:
        return key

    def text(self, key: str) -> str | None:
        return self.texts.get(key)

    def profiles(self) -> tuple[str, ...]:
        return self.active

    def bean_names(self, kind: object) -> list[str]:
        return []

    def why_missing(self, kind: object) -> None:
        return None


@pytest.mark.parametrize(
    ("condition", "texts", "matched", "reason", "key"),
    [
        (on_property("a"), {}, False, "a is not set", "a"),
        (on_property("a"), {"a": "x"}, True, "a is set", "a"),
        (on_property("a"), {"a": " False "}, False, "a is false", "a"),
        (on_property("a", having="on"), {"a": "ON"}, True, "a is on", "a"),
        (on_property("a", having="on"), {"a": "off"}, False, "a is not on", "a"),
        (on_property("a", missing=True), {}, True, "a is not set", None),
        (on_property("a", having="true", missing=True), {"a": "false"}, False, "a is not true", "a"),
        (on_module("json"), {}, True, "module json is installed", None),
        (on_module("no_such.thing"), {}, False, "module no_such.thing is not installed", None),
        (any_of(on_property("a"), on_property("b")), {"b": "1"}, True, "b is set", "b"),
        (any_of(on_property("a"), on_property("b")), {}, False, "a is not set and b is not set", "a"),
        (not_(on_property("a")), {"a": "1"}, False, "a is set", "a"),
        (not_(on_property("a")), {}, True, "a is not set", None),
        (on_profile("dev"), {}, True, "profile dev (active: dev)", None),
        (on_profile("dev & !prod"), {}, True, "profile dev & !prod (active: dev)", None),
        (on_profile("! prod"), {}, True, "profile ! prod (active: dev)", None),
        (
            on_profile("!dev & x"),
            {},
            False,
            "profile !dev & x is not active (active: dev)",
            "rocketbox.profiles.active",
        ),
        (on_profile("!dev"), {}, False, "profile !dev is not active (active: dev)", "rocketbox.profiles.active"),
    ],
)
def test_a_condition_says_whether_it_holds_why_and_what_would_mend_it(
    condition: object, texts: dict[str, str], matched: bool, reason: str, key: str | None
) -> None:
    verdict = condition.evaluate(Context(texts, ("dev",)))  # type: ignore[attr-defined]  # a condition of any kind
    assert (verdict.matched, verdict.reason, verdict.key) == (matched, reason, key)


@pytest.mark.parametrize("wrong", ["prod | eu", "prod,eu", "(prod)", "prod &", "not prod", ""])
def test_a_profile_that_is_no_expression_is_refused_where_it_is_written(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"^on_profile\(.*\): .*; write a profile, '!prod', or 'prod & eu' for both"):
        on_profile("dev", wrong)


def test_a_condition_names_each_profile_of_its_expressions() -> None:
    assert [*profiles_named(any_of(on_profile("a & !b"), not_(on_profile("c"))))] == ["a", "b", "c"]


def test_either_of_two_mends_any_of() -> None:
    verdict = any_of(on_property("a"), on_property("b", having="x")).evaluate(Context({}))
    assert verdict.fix == "set a, or set b to x"


@pytest.mark.parametrize("wrong", ["desk", on_property, int])
def test_what_is_no_condition_is_refused_where_it_is_written(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"@bean takes conditions such as on_property"):
        bean(on_property("a"), wrong)  # type: ignore[call-overload]


def test_a_class_has_the_keys_of_one_prefix() -> None:
    class Mail:
        pass

    configuration_properties("mail")(Mail)
    with pytest.raises(ValueError, match="Mail has the keys of 'mail'; write a subclass for those of 'night'"):
        configuration_properties("night")(Mail)

    class Night(Mail):
        pass

    assert properties_prefix(configuration_properties("night")(Night)) == "night"
