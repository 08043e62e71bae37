"""Reading pulls by their bytes and writing answers from a template give what the ordinary ways give."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.protocol.codes import SerializeType
from rocketbox.protocol.command import RemotingCommand, decode_command, encode_command, encode_response
from rocketbox.protocol.headers import HeaderError, PullMessageResponseHeader
from rocketbox.protocol.pull_frames import PullHead, PullReader, PullReplyTemplate
from tests.support.remoting.json_requests import almost, json_request, read_json

FIELDS = {
    "consumerGroup": "CG", "topic": "T", "queueId": "3", "queueOffset": "64", "maxMsgNums": "32", "sysFlag": "3",
    "commitOffset": "32", "suspendTimeoutMillis": "15000", "subscription": "A || B", "subVersion": "1795315415435",
    "expressionType": "TAG", "maxMsgBytes": "2147483647", "bname": "broker-a",
}  # fmt: skip
HEAD = PullHead("CG", "T", 3, 32, 3, 15_000, "A || B", 1_795_315_415_435, "TAG")

JAVA_5_5 = (
    rb'{"code":11,"extFields":{"queueId":"3","maxMsgNums":"32","sysFlag":"2","suspendTimeoutMillis":"15000",'
    rb'"commitOffset":"32","topic":"T","maxMsgBytes":"2147483647","queueOffset":"64","expressionType":"TAG",'
    rb'"subVersion":"1795315415435","bname":"broker-a","consumerGroup":"CG"},"flag":0,"language":"JAVA","opaque":51,'
    rb'"serializeTypeCurrentRPC":"JSON","version":513}'
)
JAVA_HEAD = PullHead("CG", "T", 3, 32, 2, 15_000, None, 1_795_315_415_435, "TAG")


def received(fields: dict[str, str], serialization: SerializeType) -> RemotingCommand:
    return decode_command(encode_command(RemotingCommand.request(11, fields), 5, serialization=serialization)[4:])


@pytest.mark.parametrize("serialization", SerializeType)
def test_a_pull_is_read_from_either_header(serialization: SerializeType) -> None:
    reader = PullReader()
    for offset in (64, 64, 96):  # the second time it is looked up
        request = received({**FIELDS, "queueOffset": str(offset)}, serialization)
        assert reader.read(request) == (HEAD, offset, 32)
    assert reader.remembered == 1


def test_a_java_clients_json_is_read_without_a_mapping() -> None:
    reader = PullReader()
    for number in range(4):
        header = JAVA_5_5.replace(b'"opaque":51', b'"opaque":5%d' % number).replace(b'"64"', b'"%d"' % (64 + number))
        request = json_request(header.replace(b'"32","topic', b'"%d","topic' % (32 * number)))
        assert reader.read(request) == (JAVA_HEAD, 64 + number, 32 * number)
        assert request.raw_header is not None
    assert reader.remembered == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"T"', rb'"T\u0001"'),
        (b'"T"', b'"T\xff"'),
        (b'"T"', "é".encode().join([b'"', b'"'])),
        (b'"T"', b'{"queueOffset":"1"}'),
        (b'"T"', b'{"queueOffset":"64"}'),
        (b'"T"', b'"T","queueOffset":"65"'),
        (b'"T"', rb'"T","\u0071ueueOffset":"65"'),
        (b'"T"', b'"T","commitOffset":7'),
        (b'"T"', b'"T","commitOffset":"7"'),
        (b'"commitOffset":"32"', b'"commitOffset":"32","commitOffset":"33"'),
        (b'"commitOffset":"32"', b'"commitOffset":"33","commitOffset":"32"'),
        (b'"T"', b'"T'),
        (b'"64"', b'"6x"'),
        (b'"64"', b'"-1"'),
        (b'"64"', b'"+64"'),
        (b'"64"', b'""'),
        (b'"64"', b"64"),
        (b'"64"', '"٤"'.encode()),
        (b'"64"', b'"9223372036854775807"'),
        (b'"64"', b'"9223372036854775808"'),
        (b'"queueOffset":"64",', b""),
        (b'"commitOffset":"32",', b""),
        (b'"commitOffset":"32",', b'"commitOffset":null,'),
        (b'"topic":"T",', b""),
        (b'"3"', b'"many"'),
        (b'"opaque":51', rb'"opaque":51,"remark":"\q"'),
        (b'"opaque":51', rb'"opaque":51,"remark":"\"queueOffset\":\"7\""'),
        (b'"extFields":{', b'"queueOffset":"64","commitOffset":"32","extFields":{"x":"y",'),
        (b'"flag":0', b'"queueOffset":"64","flag":0'),
    ],
)
def test_odd_json_is_read_as_by_names_after_the_usual_one_too(old: bytes, new: bytes) -> None:
    header = JAVA_5_5.replace(old, new, 1)
    assert header != JAVA_5_5
    reader = PullReader()
    reader.read(json_request(JAVA_5_5))
    expected = read_json(PullReader(), header, plain=True)
    for _ in range(2):
        assert read_json(reader, header, plain=False) == expected
    assert read_json(PullReader(), header, plain=False) == expected
    assert reader.read(json_request(JAVA_5_5)) == (JAVA_HEAD, 64, 32)


@pytest.mark.parametrize(("name", "number"), [(b"queueOffset", b"64"), (b"commitOffset", b"32")])
def test_a_name_that_comes_twice_with_one_value_is_not_taken_for_that_of_the_next_request(
    name: bytes, number: bytes
) -> None:
    field = b'"' + name + b'":"' + number + b'"'
    assert field in JAVA_5_5
    reader = PullReader()
    for first in (number, b"7", number, b"8"):
        header = JAVA_5_5.replace(field, field.replace(number, first) + b"," + field, 1)
        assert read_json(reader, header, plain=False) == read_json(PullReader(), header, plain=True)


def test_json_that_is_almost_as_the_one_before_is_read_as_by_names() -> None:
    pieces = [
        b'"opaque":', b',"flag":', b'"queueOffset":"', b'"commitOffset":"', b'":"', b'"extFields":{', b"7", b"0", b" ",
        b",", b":", b'"', b"\\", b"\\u0001", b"}", b"\x01", b"\xc3\xa9", b'"remark":"a"',
    ]  # fmt: skip
    reader, read = PullReader(), 0
    for header in almost(JAVA_5_5, pieces, count=4_000):
        assert reader.read(json_request(JAVA_5_5))[0] == JAVA_HEAD
        found = read_json(reader, header, plain=False)
        assert found == read_json(PullReader(), header, plain=True), header
        read += isinstance(found, tuple)
    assert read > 400


TRICKY = ["1", "T", "64", "", "-1", '"queueOffset":"7', '","commitOffset":"8', "é", "a\\", "{", ',"flag":0,']
entry = st.tuples(st.sampled_from([*FIELDS, "x"]), st.sampled_from(TRICKY))


@given(st.lists(entry, max_size=4), st.permutations(list(FIELDS.items())), st.integers(0, 13))
def test_any_fields_in_any_order_are_read_as_by_names(
    entries: list[tuple[str, str]], usual: list[tuple[str, str]], place: int
) -> None:
    items = [*usual[:place], *entries, *usual[place:]]
    fields = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in items)
    header = f'{{"code":11,"extFields":{{{fields}}},"flag":0,"language":"JAVA","opaque":1,"version":1}}'.encode()
    reader, expected = PullReader(), read_json(PullReader(), header, plain=True)
    for _ in range(2):
        assert read_json(reader, header, plain=False) == expected
    binary = PullReader()
    for _ in range(2):
        try:
            found: object = binary.read(received(dict(items), SerializeType.ROCKETMQ))
        except HeaderError:
            found = HeaderError
        if all(value for _, value in items):  # an empty one is left out of a binary header
            assert found == expected


@pytest.mark.parametrize("serialization", SerializeType)
@pytest.mark.parametrize("name", ["queueId", "maxMsgNums", "sysFlag", "subVersion", "queueOffset", "maxMsgBytes"])
def test_a_number_that_is_none_is_named_each_time(name: str, serialization: SerializeType) -> None:
    reader = PullReader()
    reader.read(received(FIELDS, serialization))
    for _ in range(2):
        with pytest.raises(HeaderError, match=f"field {name} is 'many'"):
            reader.read(received({**FIELDS, name: "many"}, serialization))


@pytest.mark.parametrize("serialization", SerializeType)
def test_a_pull_with_a_giant_header_is_read_but_not_remembered(serialization: SerializeType) -> None:
    reader = PullReader()
    for _ in range(2):
        head, offset, _ = reader.read(received({**FIELDS, "subscription": "A" * 5_000}, serialization))
        assert (head.subscription, offset) == ("A" * 5_000, 64)
    assert reader.remembered == 0


@pytest.mark.parametrize("serialization", SerializeType)
@pytest.mark.parametrize("records", [[b"one"], [b"one", b"two" * 1_000]])
def test_the_answer_is_what_the_ordinary_way_writes(serialization: SerializeType, records: list[bytes]) -> None:
    request = received(FIELDS, serialization)
    size = sum(map(len, records))
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=66, min_offset=0, max_offset=12_345_678, topic_sys_flag=0,
        group_sys_flag=0,
    )  # fmt: skip
    for remark in ("FOUND", '100% "found"'):
        frame = PullReplyTemplate(remark).encode(request, 66, 0, 12_345_678, records, size)
        answer = RemotingCommand.response(0, remark, header.encode(), b"".join(records))
        assert frame == encode_response(request, answer)
