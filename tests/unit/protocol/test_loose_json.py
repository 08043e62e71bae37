"""JSON and fastjson's dialect of it: the same value in one go and in steps, and hostile texts in bounded steps."""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageQueue
from rocketbox.protocol import admin_bodies, bodies
from rocketbox.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    ProducerData,
    decode_heartbeat,
    encode_heartbeat,
    encode_lock_batch_request,
    encode_lock_batch_response,
    heartbeat_in_steps,
    lock_request_in_steps,
    lock_response_in_steps,
)
from rocketbox.protocol.loose_json import LARGE, Steps, finish, loads_in_steps, loads_loose
from rocketbox.protocol.tags import SubscriptionData

MEGABYTE = 1 << 20
LONGEST_STEP = 0.2  # seconds of this thread's CPU on a slow machine with much to do; a few milliseconds are usual


def run(steps: Steps[Any]) -> tuple[Any, int]:
    """The result, and how many steps it took; none of them took long."""
    gc.disable()  # a full collection of what other tests have left is not the steps' own work
    try:
        return _run(steps)
    finally:
        gc.enable()


def _run(steps: Steps[Any]) -> tuple[Any, int]:
    count = 0
    while True:
        before = time.thread_time()
        count += 1
        try:
            next(steps)
        except StopIteration as done:
            assert time.thread_time() - before < LONGEST_STEP
            return done.value, count
        except (ValueError, RemoteProtocolError) as error:
            assert time.thread_time() - before < LONGEST_STEP
            return error, count
        assert time.thread_time() - before < LONGEST_STEP


def random_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9 if depth < 4 else 6)
    if kind < 6:
        plain = [chance.randrange(-(10**9), 10**9), chance.random(), None, True, "x" * 30, 'q"\\\n\u4e2d']
        return plain[kind]
    if kind < 8:
        return {f"k{number}": random_value(chance, depth + 1) for number in range(chance.randrange(30))}
    return [random_value(chance, depth + 1) for _ in range(chance.randrange(30))]


def test_a_large_text_in_steps_is_what_it_is_in_one_go() -> None:
    chance = random.Random(1)
    for _ in range(3):
        value = [random_value(chance)]
        while len(text := json.dumps(value)) <= 4 * LARGE:
            value.append(random_value(chance))
        for layout in (text, json.dumps(value, indent=1), json.dumps(value, separators=(",", ":"))):
            found, steps = run(loads_in_steps(layout))
            assert found == value
            assert steps > 1


def test_a_large_text_in_fastjsons_dialect_in_steps_is_what_it_is_in_one_go() -> None:
    entries = ",".join(
        f'{{"brokerName":\'b\',queueId:{number},topic:"T",}}:{{offset:{number},0:\'it\\\'s "{number}"\',list:[1,2,],}}'
        for number in range(2000)
    )
    text = f"{{offsetTable:{{{entries}}},tail:[[],{{}},null]}}"
    found, steps = run(loads_in_steps(text))
    assert found == loads_loose(text)
    assert steps > 1
    assert found["offsetTable"]['{"brokerName":\'b\',queueId:7,topic:"T",}'] == {
        "offset": 7,
        "0": 'it\'s "7"',
        "list": [1, 2],
    }


def test_a_small_text_takes_one_step() -> None:
    assert run(loads_in_steps(b'{"a":[1,{"b":2}]}')) == ({"a": [1, {"b": 2}]}, 1)
    assert run(loads_in_steps("{a:1}")) == ({"a": 1}, 1)


@pytest.mark.parametrize("entry", ["{}:{{}}", "{}:[]", "{{{}:1}}:[]", "a{}:{{}}", "'{}':{{}}"])
@pytest.mark.parametrize("count", [4_000, 12_000])
def test_a_text_of_many_empty_values_takes_as_many_steps_as_one_of_others(count: int, entry: str) -> None:
    text = "{" + ",".join([entry.format(number) for number in range(count)]) + "}"
    assert (len(text) > LARGE) == (count == 12_000)
    found, steps = run(loads_in_steps(text))
    assert found == loads_loose(text)
    assert steps >= count // 500


def test_quotes_in_single_quotes_are_read() -> None:
    assert loads_loose("""{'a"b\\'c\\"d\\\\':1}""") == {'a"b\'c"d\\': 1}


HOSTILE = {
    "lists in lists": "[" * MEGABYTE,
    "objects in objects": '{"a":' * (MEGABYTE // 5),
    "objects as keys of objects": "{" * MEGABYTE,
    "many empty lists": "[" + "[]," * (MEGABYTE // 3) + "0]",
    "many empty objects": "[" + "{}," * (MEGABYTE // 3) + "0]",
    "many loose objects": "[" + "{a:1}," * (MEGABYTE // 6) + "0]",
    "a long number": "[" + "9" * MEGABYTE + "]",
    "a long exponent": "[1e" + "9" * MEGABYTE + "]",
    "a long string": '["' + "x" * MEGABYTE + '"]',
    "a string without an end": '["' + '\\"' * (MEGABYTE // 2),
    "a single-quoted string without an end": "['" + "\\'" * (MEGABYTE // 2),
    "a long word": "[" + "x" * MEGABYTE + "]",
    "an error at the end": "[" + '{"a":1},' * 50_000 + "?]",
    "words without values": "{" + "word," * (MEGABYTE // 5) + "}",
    "quotes": "'\"" * (MEGABYTE // 2),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_refused_in_bounded_steps(name: str) -> None:
    found, _ = run(loads_in_steps(HOSTILE[name]))
    assert isinstance(found, ValueError)
    assert len(str(found)) < 200


LONG = {
    "numbers": "[" + "1," * (MEGABYTE // 2) + "1]",
    "numbers of thousands of digits": "[" + ("9" * 5000 + ",") * 200 + "1]",
    "keys without quotes": "{" + ",".join(f"k{number}:{number}" for number in range(80_000)) + "}",
    "keys that are objects": "{" + ",".join(f'{{"a":{number}}}:{number}' for number in range(60_000)) + "}",
    "blanks": "[" + " " * MEGABYTE + "1]",
    "elements that no window holds": "[" + ",".join('["' + "x" * 9000 + '"]' for _ in range(110)) + "]",
    "loose elements in half a window": "[" + ",".join('{"a":"' + "x" * 3000 + '",b:1}' for _ in range(300)) + "]",
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_text_is_read_in_bounded_steps(name: str) -> None:
    found, _ = run(loads_in_steps(LONG[name]))
    assert not isinstance(found, Exception), found


# --- bodies ---

COUNT = 6_000
BROKER = "{brokerName:'b',brokerAddrs:{0:'10.0.0.1:10911'}},"
MEMBERS = "'c'," * COUNT
NAMES = "'t'," * COUNT * 2
LOCKED = "{brokerName:'b',queueId:1,topic:'t'}," * (COUNT // 3)
QUEUES = "{brokerName:'b',readQueueNums:1,writeQueueNums:1,perm:6}," * (COUNT // 6)
BROKERS = BROKER * (COUNT // 6)
NAMED_BROKERS = "".join(f"b{number}:{BROKER}" for number in range(COUNT // 3))
TOPICS = "".join(f"t{number}:{{perm:6,attributes:{{}}}}," for number in range(COUNT // 2))
GROUPS = "".join(f"g{number}:{{retryMaxTimes:6}}," for number in range(COUNT // 2))
ANSWERS: dict[str, tuple[Callable[[bytes], Steps[Any]], Callable[[bytes], Any], str]] = {
    "members": (bodies.consumer_list_in_steps, bodies.decode_consumer_list, f"{{consumerIdList:[{MEMBERS}]}}"),
    "locks": (bodies.locked_queues_in_steps, bodies.decode_lock_batch_response, f"{{lockOKMQSet:[{LOCKED}]}}"),
    "a route": (
        bodies.topic_route_in_steps,
        bodies.decode_topic_route,
        f"{{queueDatas:[{QUEUES}],brokerDatas:[{BROKERS}]}}",
    ),
    "a cluster": (
        admin_bodies.cluster_info_in_steps,
        admin_bodies.decode_cluster_info,
        f"{{brokerAddrTable:{{{NAMED_BROKERS}}},clusterAddrTable:{{c:['b']}}}}",
    ),
    "names": (admin_bodies.topic_names_in_steps, admin_bodies.decode_topic_list, f"{{topicList:[{NAMES}]}}"),
    "topics": (
        admin_bodies.topic_configs_in_steps,
        admin_bodies.decode_topic_configs,
        f"{{topicConfigTable:{{{TOPICS}}}}}",
    ),
    "groups": (
        admin_bodies.group_configs_in_steps,
        admin_bodies.decode_group_configs,
        f"{{subscriptionGroupTable:{{{GROUPS}}}}}",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_large_answer_in_fastjsons_dialect_is_decoded_in_steps(name: str) -> None:
    in_steps, decode, text = ANSWERS[name]
    found, steps = run(in_steps(text.encode()))
    assert found == decode(text.encode())
    assert steps > 10


@pytest.mark.parametrize(
    ("name", "most"), [("members", 4 << 20), ("locks", 12 << 20), ("a route", 2 << 20), ("a cluster", 4 << 20)]
)
def test_an_answer_that_is_larger_than_any_cluster_makes_it_is_not_read(name: str, most: int) -> None:
    """In Java's kind of JSON a megabyte takes a second, and members are asked for again and again."""
    found, steps = run(ANSWERS[name][0](b"{x:[" + b"1," * (most // 2) + b"]}"))
    assert isinstance(found, RemoteProtocolError)
    assert f"and {most} is the most" in str(found)
    assert steps == 1


@pytest.mark.parametrize("name", ["topics", "groups"])
def test_an_old_brokers_table_of_very_many_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers before 5.5 give all at once, each with its attributes: more objects than other texts may hold."""
    monkeypatch.setattr(admin_bodies, "MAX_CONTAINERS", 100)
    key = {"topics": "topicConfigTable", "groups": "subscriptionGroupTable"}[name]
    values = {"attributes": {}, "brokerId": 0, "consumeEnable": True, "perm": 6, "retryMaxTimes": 16, "whichBroker": 1}
    table = {f"name-{number}": values for number in range(700)}
    found, _ = run(ANSWERS[name][0](json.dumps({key: table}).encode()))
    assert len(found if name == "groups" else found.topic_config_table) == len(table)


def test_a_large_heartbeat_is_decoded_in_steps() -> None:
    beat = HeartbeatData(
        "client",
        tuple(ProducerData(f"p{number}") for number in range(500)),
        tuple(
            ConsumerData(
                f"g{number}",
                subscription_data_set=tuple(
                    SubscriptionData(f"t{topic}", "A || B", ("A", "B"), (65, 66)) for topic in range(5)
                ),
            )
            for number in range(500)
        ),
    )
    body = encode_heartbeat(beat)
    assert run(heartbeat_in_steps(body))[0] == beat == decode_heartbeat(body)
    assert run(heartbeat_in_steps(body))[1] > 10


@pytest.mark.parametrize(
    "body",
    [
        b'{"clientID":"c","producerDataSet":[' + b'{"groupName":"g"},' * 50_000 + b'{"groupName":"g"}]}',
        b'{clientID:"c",producerDataSet:[' + b'{groupName:"g"},' * 50_000 + b'{groupName:"g"}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":['
        + b'{"topic":"t"},' * 70_000 + b'{"topic":"t"}]}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","tagsSet":['
        + b'"t",' * 250_000 + b'"t"]}]}]}',
    ],
)  # fmt: skip
def test_a_hostile_heartbeat_is_decoded_in_bounded_steps(body: bytes) -> None:
    found, steps = run(heartbeat_in_steps(body))
    assert isinstance(found, HeartbeatData)
    assert steps > 50


def test_a_large_lock_request_and_its_answer_go_in_steps() -> None:
    queues = tuple(MessageQueue("t", "b", number) for number in range(10_000))
    request = LockBatchRequestBody("g", "c", queues)
    assert run(lock_request_in_steps(encode_lock_batch_request(request)))[0] == request
    answer, steps = run(lock_response_in_steps(queues))
    assert answer == encode_lock_batch_response(queues)
    assert len(json.loads(answer)["lockOKMQSet"]) == 10_000
    assert steps > 10
    assert finish(lock_response_in_steps([])) == b'{"lockOKMQSet":[]}'
