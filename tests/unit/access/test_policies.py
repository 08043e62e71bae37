"""Which entry of a user's policies counts, as Apache's AclAuthorizationHandler decides it."""

from __future__ import annotations

import pytest

from rocketbox.access.policies import CUSTOM, DEFAULT, Policies, PolicyEntry, PolicyRights, read_resource
from rocketbox.access.resources import Action, Kind, Need, group_need, topic_need

P, S, G = Action.PUB, Action.SUB, Action.GET


def entry(resource: str, allow: bool = True, *actions: Action, ips: tuple[str, ...] = ()) -> PolicyEntry:
    return PolicyEntry(read_resource(resource), frozenset(actions) if actions else None, allow, ips)


def may(policies: Policies, need: Need, host: str = "10.0.0.1") -> bool:
    return PolicyRights("u", policies).refusal(need, host) is None


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([], False),
        ([("*", True)], True),
        ([("*", True), ("Topic:*", False)], False),
        ([("Topic:*", False), ("Topic:o*", True)], True),
        ([("Topic:o*", True), ("Topic:ord*", False)], False),
        ([("Topic:orders*", False), ("Topic:orders", True)], True),
        ([("Topic:orders", False), ("*", True)], False),
        ([("Topic:order", True)], False),
        ([("Group:orders", True)], False),
        ([("Cluster:*", True)], False),
    ],
)
def test_the_most_specific_entry_counts(entries: list[tuple[str, bool]], allowed: bool) -> None:
    for ordered in (entries, entries[::-1]):
        policies = Policies(custom=tuple(entry(resource, allow) for resource, allow in ordered))
        assert may(policies, topic_need("orders", P)) is allowed


def test_entries_of_other_actions_and_addresses_do_not_count() -> None:
    policies = Policies(custom=(entry("Topic:orders", False, S), entry("Topic:*", True, P)))
    assert may(policies, topic_need("orders", P))
    assert not may(policies, topic_need("orders", S))
    assert not may(policies, topic_need("orders", P, S, G)), "one of the actions is enough to match, the nearest counts"
    near = Policies(custom=(entry("Topic:orders", True, P, ips=("10.0.0.0/8", "::1")),))
    assert may(near, topic_need("orders", P), "10.9.9.9")
    assert may(near, topic_need("orders", P), "::1")
    assert not may(near, topic_need("orders", P), "11.0.0.1")
    assert not may(near, topic_need("orders", P), "unknown")


def test_the_default_policy_is_asked_when_the_custom_one_says_nothing() -> None:
    policies = Policies(custom=(entry("Topic:*", False, P),), default=(entry("Topic:orders", True),))
    assert not may(policies, topic_need("orders", P))
    assert may(policies, topic_need("orders", S))


def test_a_retry_topic_is_its_group_and_a_dead_letter_topic_unless_said_otherwise() -> None:
    board = Policies(custom=(entry("Group:board", True, S),))
    assert may(board, topic_need("%RETRY%board", S))
    assert not may(board, topic_need("%RETRY%board2", S))
    assert not may(Policies(custom=(entry("Topic:*", True),)), topic_need("%RETRY%board", S))
    assert may(board, topic_need("%DLQ%board", S))
    assert may(board, topic_need("%DLQ%board", P)), "what was given up is written there by who consumes"
    assert not may(board, topic_need("%DLQ%another", S))
    for action in (Action.CREATE, Action.UPDATE, Action.DELETE):
        assert not may(board, topic_need("%DLQ%board", action)), "to consume is not to delete what others would look at"
    said = board.with_entries(CUSTOM, [entry("Topic:%DLQ%board", False)])
    assert not may(said, topic_need("%DLQ%board", S))
    assert may(board, group_need("%RETRY%board", S))


def test_dead_letters_are_read_by_a_right_to_their_group_or_to_their_topic_by_name_and_not_to_every_topic() -> None:
    """They may be of a topic that this user is denied."""
    curious = Policies(custom=(entry("Topic:*", True), entry("Topic:secret", False), entry("Group:mine", True, S)))
    dead = topic_need("%DLQ%board", S)
    assert not may(curious, dead)
    assert not may(curious, topic_need("%DLQ%board", S, G)), "looking at one is reading it"
    assert not may(Policies(custom=(entry("Topic:*", True),), default=(entry("Group:board", False),)), dead)
    assert may(curious, topic_need("%DLQ%mine", S))
    for named in ("Group:board", "Topic:%DLQ%board", "Topic:%DLQ%*", "Topic:%DLQ*", "Group:*", "*"):
        assert may(curious.with_entries(CUSTOM, [entry(named, True, S)]), dead), named
    assert may(curious, topic_need("%DLQ%board", P, S, G)), "its route"
    assert not may(Policies(custom=(entry("Topic:*", False), entry("Group:board", True, S))), dead)


def test_refusals_say_who_what_and_from_where() -> None:
    rights = PolicyRights("desk", Policies(custom=(entry("Topic:a", False),)))
    start = "User:desk has no permission to access"
    assert rights.refusal(topic_need("a", P), "10.0.0.1") == f"{start} Topic:a from 10.0.0.1, the decision is deny."
    need = Need(Kind.CLUSTER, "c", (G,))
    assert rights.refusal(need, "10.0.0.1") == f"{start} Cluster:c from 10.0.0.1, no matched policies."


def test_entries_are_replaced_and_taken_away_by_resource() -> None:
    policies = Policies().with_entries(CUSTOM, [entry("Topic:a"), entry("Topic:a*")])
    policies = policies.with_entries(CUSTOM, [entry("Topic:a", False)]).with_entries(DEFAULT, [entry("*")])
    assert (len(policies), [each.allow for each in policies.custom]) == (3, [False, True])
    assert len(policies.without(CUSTOM, read_resource("Topic:a"))) == 2
    assert len(policies.without(CUSTOM, read_resource("Topic:b"))) == 3


@pytest.mark.parametrize("text", ["*", "Topic:*", "Topic:orders", "Group:b*", "Cluster:DefaultCluster"])
def test_resources_are_written_as_they_are_read(text: str) -> None:
    assert str(read_resource(text)) == text
    assert read_resource(text.replace("Topic", "topic")) == read_resource(text)
