"""How names are written for servers: as Apache's ``NamespaceUtil`` does it."""

from __future__ import annotations

import pytest

from rocketbox.protocol.namespaces import (
    NO_NAMESPACE,
    Namespace,
    namespace_of_address,
    wrong_namespace,
    wrong_namespace_v2,
)

TEAM = Namespace("team")


@pytest.mark.parametrize(
    ("plain", "wrapped"),
    [
        ("alerts", "team%alerts"),
        ("%RETRY%desk", "%RETRY%team%desk"),
        ("%DLQ%desk", "%DLQ%team%desk"),
        ("other%alerts", "team%other%alerts"),
        ("team", "team%team"),
        ("teams%alerts", "team%teams%alerts"),
    ],
)
def test_a_name_is_wrapped_once_and_comes_back(plain: str, wrapped: str) -> None:
    assert TEAM.wrap(plain) == wrapped
    assert TEAM.wrap(wrapped) == wrapped
    assert TEAM.unwrap(wrapped) == plain
    assert TEAM.unwrap(plain) == plain
    assert TEAM.has(wrapped)
    assert not TEAM.has(plain)


@pytest.mark.parametrize(
    "name",
    [
        "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_cn-hangzhou", "BenchmarkTest",
        "CID_RMQ_SYS_TRANS", "CLIENT_INNER_PRODUCER", "TOOLS_CONSUMER",
    ],
)  # fmt: skip
def test_what_is_rocketmqs_own_is_in_every_namespace(name: str) -> None:
    assert TEAM.wrap(name) == name
    assert TEAM.unwrap(name) == name
    assert TEAM.has(name)


@pytest.mark.parametrize("group", ["desk", "%RETRY%desk", "%DLQ%%RETRY%desk", "%desk", "TOOLS_CONSUMER", "TBW102"])
@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_the_topics_of_a_group_are_those_that_brokers_make_for_its_wrapped_name(prefix: str, group: str) -> None:
    made = prefix + TEAM.wrap(group)
    assert TEAM.wrap(prefix + group) == TEAM.wrap(made) == made
    assert TEAM.unwrap(made) == prefix + group


def test_without_a_namespace_all_names_stay() -> None:
    for name in ("alerts", "team%alerts", "%RETRY%desk", ""):
        assert NO_NAMESPACE.wrap(name) == NO_NAMESPACE.unwrap(name) == name
        assert NO_NAMESPACE.has(name)
    assert not NO_NAMESPACE


def test_a_namespace_alone_is_no_name() -> None:
    assert TEAM.wrap("") == ""
    assert TEAM.unwrap("team%") == "team%"


@pytest.mark.parametrize(
    ("address", "namespace"),
    [
        ("http://MQ_INST_1234567890_BabcD.mq.example:80", "MQ_INST_1234567890_BabcD"),
        ("MQ_INST_1_2.mq.example:80", "MQ_INST_1_2"),
        ("MQ_INST_1_2:80", None),
        ("MQ_INST_1.mq.example:80", None),
        ("http://mq.example:80", None),
        ("127.0.0.1:9876", None),
    ],
)
def test_the_namespace_that_javas_client_takes_from_an_address(address: str, namespace: str | None) -> None:
    assert namespace_of_address(address) == namespace


def test_what_can_be_no_namespace() -> None:
    assert [name for name in ("team", "a-b_c|d", " ", "a%b", "a b", "ä") if wrong_namespace(name)] == [
        " ", "a%b", "a b", "ä",
    ]  # fmt: skip
    assert [name for name in ("team", "a.b/c%d", " ", "a\x01", "ä") if wrong_namespace_v2(name)] == [" ", "a\x01", "ä"]
