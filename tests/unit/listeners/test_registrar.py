"""Marks and settings to containers: who wins, what is refused, what a start line says."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from rocketbox.errors import Finding
from rocketbox.listeners.binding import Beans
from rocketbox.listeners.options import GroupOptions, OnInvalid, OptionLayer, consumer_options
from rocketbox.listeners.plans import ContainerPlan
from rocketbox.listeners.registrar import Candidate, ClusterSettings, plan_containers
from rocketbox.marks import send_to
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageModel
from rocketbox.template import JsonMessageConverter

A_TIME = datetime(2026, 1, 31, 12, tzinfo=UTC)


async def on_departure(departure: dict[str, Any]) -> None: ...


async def on_call(departure: dict[str, Any]) -> str:
    return "called"


async def on_arrival(arrival: dict[str, Any]) -> None: ...


async def audit(departures: list[dict[str, Any]]) -> None: ...


def said(**values: Any) -> OptionLayer:
    return OptionLayer(values, lambda name: f"rocketbox.yaml:{list(values).index(name) + 1}")


def marked(
    function: Callable[..., Any] = on_departure, *, replies: tuple[send_to, ...] = (), **options: Any
) -> Candidate:
    options = {"topic": "departures", "consumer_group": "desk", **options}
    return Candidate(function, OptionLayer(options, lambda name: f"app.py ({name})"), replies)


def planned(*candidates: Candidate, **settings: Any) -> tuple[list[ContainerPlan], list[Finding], list[Finding]]:
    return plan_containers(
        candidates,
        {None: ClusterSettings(**settings)},
        beans=Beans(has=lambda hint: False, provider=lambda hint: lambda: None),
        converter=JsonMessageConverter(),
    )


def plan(*candidates: Candidate, **settings: Any) -> list[ContainerPlan]:
    plans, wrong, _ = planned(*candidates, **settings)
    assert wrong == []
    return plans


def findings(*candidates: Candidate, **settings: Any) -> list[Finding]:
    return planned(*candidates, **settings)[1]


def test_an_option_is_taken_from_the_group_then_the_decorator_then_the_defaults() -> None:
    groups = {"desk": said(concurrency=64)}
    defaults = said(concurrency=5, pull_batch_size=16)
    (all_three,) = plan(marked(concurrency=32), groups=groups, defaults=defaults)
    assert (all_three.options.concurrency, all_three.options.pull_batch_size) == (64, 16)
    assert all_three.origins == {"concurrency": "rocketbox.yaml:1", "pull_batch_size": "rocketbox.yaml:2"}
    (two,) = plan(marked(concurrency=32), defaults=defaults)
    assert two.options.concurrency == 32
    (one,) = plan(marked(), defaults=defaults)
    assert one.options.concurrency == 5
    (none,) = plan(marked())
    assert none.options == GroupOptions()
    assert none.options.concurrency == 20


def test_group_and_topic_may_come_from_the_settings() -> None:
    (found,) = plan(marked(topic=None, consumer_group=None), defaults=said(group="desk", topic="departures"))
    assert (found.group, found.functions[0].topic) == ("desk", "departures")
    (moved,) = plan(marked(), groups={"desk": said(topic="arrivals")})
    assert moved.functions[0].topic == "arrivals"


def test_functions_of_one_group_share_a_container() -> None:
    (found,) = plan(marked(concurrency=8), marked(on_arrival, topic="arrivals"))
    assert [function.topic for function in found.functions] == ["departures", "arrivals"]
    assert found.options.concurrency == 8  # the other one said nothing


def test_a_batch_is_as_large_as_a_pull_unless_said_otherwise() -> None:
    (found,) = plan(marked(audit, pull_batch_size=16))
    assert found.functions[0].batch_max_size == 16
    (larger,) = plan(marked(audit, consume_message_batch_max_size=200))
    assert larger.functions[0].batch_max_size == 200
    (single,) = plan(marked())
    assert single.functions[0].batch_max_size == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"off_by": "rocketmq.consumer.enabled"},
        {"groups": {"desk": said(enabled=False)}},
        {"switches": {"desk": {"departures": False}}},
    ],
)
def test_a_listener_can_be_switched_off_by_settings(settings: dict[str, Any]) -> None:
    assert plan(marked(), **settings) == []


def test_a_listener_can_be_switched_off_by_its_decorator_and_on_by_settings() -> None:
    assert plan(marked(enabled=False)) == []
    assert len(plan(marked(enabled=False), groups={"desk": said(enabled=True)})) == 1
    assert len(plan(marked(), switches={"desk": {"departures": True}})) == 1


@pytest.mark.parametrize(
    ("candidates", "settings", "what", "where", "fix"),
    [
        ([marked(consumer_group=None)], {}, "has no consumer group", "test_registrar.py", "rocketmq.consumer.group"),
        ([marked(topic=None)], {}, "has no topic", "test_registrar.py", "rocketmq.consumer.topic"),
        ([marked(cluster="audit")], {}, "cluster 'audit'", "test_registrar.py", "rocketmq.clusters.audit.name-server"),
        (
            [marked(concurrency=8), marked(on_arrival, topic="arrivals", concurrency=9)],
            {},
            "on_departure says 8, on_arrival says 9",
            r"test_registrar.py:\d+ and .*test_registrar.py:\d+",
            "another consumer group",
        ),
        (
            [marked(), marked(on_arrival)],
            {},
            "two functions for topic 'departures'",
            r"test_registrar.py:\d+ and .*test_registrar.py:\d+",
            "another consumer group",
        ),
        (
            [marked(), marked(on_arrival, topic="arrivals")],
            {"groups": {"desk": said(on_invalid=OnInvalid.SKIP)}},
            "rocketmq.consumer.listeners.desk.on-invalid is an option of one function",
            "rocketbox.yaml:1",
            "decorator",
        ),
        (
            [marked(consume_message_batch_max_size=10)],
            {},
            "takes one message, and its batch size is 10",
            "test_registrar.py",
            "list",
        ),
        (
            [marked(consume_mode=ConsumeMode.ORDERLY, message_model=MessageModel.BROADCASTING)],
            {},
            "ORDERLY and BROADCASTING",
            "app.py",
            "CLUSTERING",
        ),
        (
            [marked(consume_mode=ConsumeMode.ORDERLY, delay_level_when_next_consume=3)],
            {},
            "has no effect",
            "app.py",
            "suspend_current_queue_time",
        ),
        (
            [marked(consume_timestamp=A_TIME)],
            {},
            "consume_timestamp of group 'desk' is set, and consume_from_where is LAST_OFFSET",
            r"app.py \(consume_timestamp\)$",
            "set consume_from_where to TIMESTAMP",
        ),
        (
            [marked()],
            {"groups": {"desk": said(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_timestamp=A_TIME)}},
            "and consume_from_where is FIRST_OFFSET",
            "rocketbox.yaml:2 and rocketbox.yaml:1",
            "leave consume_timestamp out",
        ),
        (
            [marked()],
            {"defaults": said(consume_timestamp=A_TIME)},
            "and consume_from_where is LAST_OFFSET",
            "rocketbox.yaml:1$",
            "set consume_from_where to TIMESTAMP",
        ),
        (
            [marked()],
            {"switches": {"desk": {"departurs": False}}, "where_switched": lambda name: f"rocketbox.yaml ({name})"},
            "listeners.desk.departurs is neither an option of a listener nor a topic of group 'desk'",
            "rocketbox.yaml",
            "topics of the group are: departures",
        ),
        (
            [marked(on_call, replies=(send_to(":x"),))],
            {},
            "send_to of listener on_call",
            "test_registrar.py",
            "topic:tag",
        ),
        ([marked(lambda number: None)], {}, "without a type", "test_registrar.py", "annotate"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place_and_what_to_do(
    candidates: list[Candidate], settings: dict[str, Any], what: str, where: str, fix: str
) -> None:
    (finding,) = findings(*candidates, **settings)
    assert what in finding.what
    assert re.search(where, finding.where or "")
    assert fix in (finding.fix or "")


def test_everything_wrong_is_found_together() -> None:
    assert len(findings(marked(topic=None), marked(consumer_group=None), marked(consume_timestamp=A_TIME))) == 3


def test_a_time_to_begin_at_reaches_the_consumer() -> None:
    (own,) = plan(marked(consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp=A_TIME))
    assert consumer_options(own.options).consume_timestamp == A_TIME
    (without,) = plan(marked(consume_from_where=ConsumeFromWhere.TIMESTAMP))
    assert consumer_options(without.options).consume_timestamp is None


def test_a_time_for_all_listeners_is_no_word_on_a_group_that_says_where_it_begins() -> None:
    everybody = said(consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp=A_TIME)
    (other,) = plan(marked(consume_from_where=ConsumeFromWhere.FIRST_OFFSET), defaults=everybody)
    assert (other.options.consume_from_where, other.options.consume_timestamp) == (ConsumeFromWhere.FIRST_OFFSET, None)
    (one,) = plan(marked(), defaults=everybody)
    assert one.options.consume_timestamp == A_TIME


def test_start_lines_say_topic_group_concurrency_retries_and_who_said_so() -> None:
    (concurrent,) = plan(
        marked(on_call, selector_expression="UA || AA", replies=(send_to("alerts"),)),
        groups={"desk": said(concurrency=64)},
    )
    (line,) = concurrent.describe()
    assert re.sub(r"\(.*?\d+\)", "(HERE)", line, count=1) == (
        "listener on_call (HERE): topic departures, selector UA || AA, group desk, concurrently, concurrency 64, "
        "16 retries, then %DLQ%desk, sends on to alerts [concurrency said in rocketbox.yaml:1]"
    )
    (orderly,) = plan(marked(audit, consume_mode=ConsumeMode.ORDERLY, consume_message_batch_max_size=200))
    (line,) = orderly.describe()
    assert "orderly, concurrency 20, batches of up to 200, retries without end, the queue waits" in line
    (limited,) = plan(marked(max_reconsume_times=3))
    assert "3 retries, then %DLQ%desk" in limited.describe()[0]


def test_what_is_the_clients_of_a_groups_options_reaches_it() -> None:
    options = consumer_options(
        GroupOptions(consume_timeout=120.0, pull_interval=0.005, concurrency=7, invalid_limit=3),
        given={"wait_for_servers": True},
    )
    assert (options.consume_timeout, options.pull_interval, options.concurrency) == (120.0, 0.005, 7)
    assert options.wait_for_servers
