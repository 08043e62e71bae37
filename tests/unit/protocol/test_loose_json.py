"""JSON and fastjson's dialect of it: the same value in one go and in steps, and hostile texts in bounded steps."""

from __future__ import annotations

import gc
import json
import random
import time
from typing import Any

import pytest

from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageQueue
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
