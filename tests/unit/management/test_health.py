"""Health as data: what several parts are together, and what keeps an application from being ready."""

from __future__ import annotations

import json

import pytest

from rocketbox import Health, HealthIndicator, HealthStatus
from rocketbox.management.health import ApplicationHealth


class Part(HealthIndicator):
    def __init__(self, name: str, health: Health | None = None, *, counts: bool = True) -> None:
        self.name = name
        self.counts = counts
        self._health = health or Health.up()

    def health(self) -> Health:
        return self._health


class Raises(HealthIndicator):
    name = "raises"

    def health(self) -> Health:
        raise ValueError("no idea")


class Waits(HealthIndicator):
    name = "waits"

    async def health(self) -> Health:  # type: ignore[override]  # what a user may write by mistake
        return Health.up()


PAUSED = Health(HealthStatus.OUT_OF_SERVICE, ("it is paused",))


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ({}, HealthStatus.UP),
        ({"a": Health.up(), "b": Health(HealthStatus.UNKNOWN)}, HealthStatus.UNKNOWN),
        ({"a": PAUSED, "b": Health(HealthStatus.UNKNOWN)}, HealthStatus.OUT_OF_SERVICE),
        ({"a": PAUSED, "b": Health.down("no disk"), "c": Health.up()}, HealthStatus.DOWN),
    ],
)
def test_several_parts_are_as_the_worst_of_them(parts: dict[str, Health], status: HealthStatus) -> None:
    assert Health.of(parts).status is status


def test_an_application_is_ready_when_all_parts_that_count_are_well() -> None:
    parts = [Part("a"), Part("b", Health(HealthStatus.UNKNOWN)), Part("c", Health.down("no disk"), counts=False)]
    health = ApplicationHealth.of(parts)
    assert (health.ready, health.reasons) == (True, ())
    assert health.components["c"].reasons == ("no disk",)


def test_what_keeps_an_application_from_being_ready_is_said() -> None:
    parts = [
        Part("a", Health.of({"x": PAUSED, "y": Health.down("no disk", "no net", free=0)})),
        Part("b", Health(HealthStatus.DOWN)),
    ]
    health = ApplicationHealth.of(parts)
    assert (health.ready, health.reasons) == (False, ("it is paused", "no disk", "no net", "b is DOWN"))
    assert json.loads(json.dumps(health.as_dict())) == {
        "ready": False,
        "reasons": ["it is paused", "no disk", "no net", "b is DOWN"],
        "components": {
            "a": {
                "status": "DOWN",
                "reasons": ["it is paused", "no disk", "no net"],
                "components": {
                    "x": {"status": "OUT_OF_SERVICE", "reasons": ["it is paused"]},
                    "y": {"status": "DOWN", "reasons": ["no disk", "no net"], "details": {"free": 0}},
                },
            },
            "b": {"status": "DOWN"},
        },
    }


def test_indicators_of_one_name_are_all_shown() -> None:
    health = ApplicationHealth.of([Part("store"), Part("store", Health.down("no disk")), Part("store")])
    assert list(health.components) == ["store", "store-2", "store-3"]
    assert health.reasons == ("no disk",)


def test_an_indicator_whose_tables_change_while_another_thread_reads_them_is_asked_again() -> None:
    table = dict.fromkeys(range(3))

    class Reads(HealthIndicator):
        name = "reads"

        def health(self) -> Health:
            for each in table:
                if len(table) < 5:
                    table[each + 10] = None
            return Health.up(size=len(table))

    health = ApplicationHealth.of([Reads()])
    assert health.components["reads"].details == {"size": 5}


def test_an_indicator_that_cannot_tell_is_down() -> None:
    health = ApplicationHealth.of([Raises(), Waits()])
    assert health.reasons == (
        "raises: its health cannot be told: ValueError('no idea')",
        "waits: its health() returned coroutine, and must return a Health without waiting",
    )


def test_a_health_of_texts_is_refused_with_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"status takes a HealthStatus, not 'DOWN': write Health.down\(\.\.\.\)"):
        Health("DOWN")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"reasons takes a tuple of sentences, and was given one text: write \(text,\)"):
        Health(HealthStatus.DOWN, "no disk")  # type: ignore[arg-type]
