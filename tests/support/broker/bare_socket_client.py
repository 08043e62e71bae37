"""A client of RocketMQ's remoting protocol on a bare socket: sends messages, pulls them back, prints what came.

Run as a script: ``bare_socket_client.py HOST:PORT TOPIC COUNT json|binary``. It imports nothing but the standard
library and shares no code with rocketbox, so that both would have to be wrong in the same way.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
import zlib

SEND_MESSAGE = 10
PULL_MESSAGE = 11
GET_ROUTE = 105
SEND_MESSAGE_V2 = 310
JSON_TYPE, BINARY_TYPE = 0, 1
SUBSCRIPTION_FLAG = 4
V1_MAGIC = -626843481


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
    return data


def encode_header(kind: int, code: int, opaque: int, fields: dict[str, str]) -> bytes:
    if kind == JSON_TYPE:
        values = {"code": code, "language": "OTHER", "version": 479, "opaque": opaque, "flag": 0, "extFields": fields}
        return json.dumps(values).encode()
    entries = b""
    for name, value in fields.items():
        key, text = name.encode(), value.encode()
        entries += struct.pack(">h", len(key)) + key + struct.pack(">i", len(text)) + text
    return struct.pack(">hBhiii", code, 7, 479, opaque, 0, 0) + struct.pack(">i", len(entries)) + entries


def decode_header(kind: int, header: bytes) -> tuple[int, int, int, str | None, dict[str, str]]:
    if kind == JSON_TYPE:
        values = json.loads(header)
        return values["code"], values["opaque"], values["flag"], values.get("remark"), values.get("extFields") or {}
    code, _language, _version, opaque, flag, size = struct.unpack_from(">hBhiii", header)
    at = 17
    remark = header[at : at + size].decode() if size else None
    at += size
    (rest,) = struct.unpack_from(">i", header, at)
    at += 4
    end, fields = at + rest, {}
    while at < end:
        (size,) = struct.unpack_from(">h", header, at)
        name = header[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from(">i", header, at)
        fields[name] = header[at + 4 : at + 4 + size].decode()
        at += 4 + size
    return code, opaque, flag, remark, fields


def request(
    connection: socket.socket, kind: int, code: int, opaque: int, fields: dict[str, str], body: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    header = encode_header(kind, code, opaque, fields)
    length = 4 + len(header) + len(body)
    connection.sendall(struct.pack(">II", length, kind << 24 | len(header)) + header + body)
    (length,) = struct.unpack(">I", receive_exactly(connection, 4))
    frame = receive_exactly(connection, length)
    (tagged,) = struct.unpack_from(">I", frame)
    size = tagged & 0xFFFFFF
    answer, opaque_back, flag, remark, ext = decode_header(tagged >> 24, frame[4 : 4 + size])
    assert opaque_back == opaque, f"opaque {opaque_back} instead of {opaque}"
    assert flag & 1, "an answer has the response bit"
    if answer not in (0, 19, 20, 21):
        raise RuntimeError(f"request {code} was answered {answer}: {remark}")
    return answer, ext, frame[4 + size :]


def decode_records(data: bytes) -> list[dict[str, object]]:
    found = []
    at = 0
    while at < len(data):
        (size, magic, crc, queue_id, _flag, queue_offset, physical) = struct.unpack_from(">iiiiiqq", data, at)
        assert magic == V1_MAGIC, f"magic {magic}"
        sys_flag, born = struct.unpack_from(">iq", data, at + 36)
        assert sys_flag & 0x30 == 0, "hosts are IPv4 here"
        (store_port,) = struct.unpack_from(">i", data, at + 68)
        store_ip = data[at + 64 : at + 68]
        (body_size,) = struct.unpack_from(">i", data, at + 84)
        body = data[at + 88 : at + 88 + body_size]
        assert zlib.crc32(body) & 0x7FFFFFFF == crc, "the body's checksum"
        next_at = at + 88 + body_size
        topic_size = data[next_at]
        topic = data[next_at + 1 : next_at + 1 + topic_size].decode()
        next_at += 1 + topic_size
        (properties_size,) = struct.unpack_from(">h", data, next_at)
        text = data[next_at + 2 : next_at + 2 + properties_size].decode()
        assert next_at + 2 + properties_size == at + size, "the record's size"
        properties = dict(pair.split("\x01", 1) for pair in text.split("\x02") if pair)
        found.append(
            {
                "topic": topic,
                "queueId": queue_id,
                "queueOffset": queue_offset,
                "born": born,
                "body": body.decode(),
                "tag": properties.get("TAGS"),
                "keys": properties.get("KEYS"),
                "id": (store_ip + struct.pack(">iq", store_port, physical)).hex().upper(),
            }
        )
        at += size
    return found


def main(name_server: str, topic: str, count: int, kind: int) -> None:
    with connect(name_server) as connection:
        _, _, body = request(connection, kind, GET_ROUTE, 1, {"topic": "TBW102"})
        route = json.loads(body)
        broker = route["brokerDatas"][0]
    sent = []
    with connect(broker["brokerAddrs"]["0"]) as connection:
        for number in range(count):
            properties = f"TAGS\x01T{number % 2}\x02KEYS\x01key{number}\x02"
            common = {"topic": topic, "queue": str(number % 4), "born": str(int(time.time() * 1000))}
            if kind == JSON_TYPE:  # the long names of code 10
                code = SEND_MESSAGE
                fields = {
                    "producerGroup": "bare", "topic": common["topic"], "defaultTopic": "TBW102",
                    "defaultTopicQueueNums": "4", "queueId": common["queue"], "sysFlag": "0",
                    "bornTimestamp": common["born"], "flag": "0", "properties": properties, "reconsumeTimes": "0",
                    "unitMode": "false", "batch": "false",
                }  # fmt: skip
            else:  # the one-letter names of code 310
                code = SEND_MESSAGE_V2
                fields = {
                    "a": "bare", "b": common["topic"], "c": "TBW102", "d": "4", "e": common["queue"], "f": "0",
                    "g": common["born"], "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
                    "n": broker["brokerName"],
                }  # fmt: skip
            text = f"message {number} é"
            answer, ext, _ = request(connection, kind, code, 100 + number, fields, text.encode())
            sent.append({"code": answer, "body": text, "id": ext["msgId"], "queueOffset": int(ext["queueOffset"])})
        pulled: list[dict[str, object]] = []
        for queue in range(4):
            offset = 0
            while True:
                fields = {
                    "consumerGroup": "bare-group", "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
                    "maxMsgNums": "10", "sysFlag": str(SUBSCRIPTION_FLAG), "commitOffset": "0",
                    "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
                }  # fmt: skip
                answer, ext, body = request(connection, kind, PULL_MESSAGE, 10_000 + queue, fields)
                offset = int(ext["nextBeginOffset"])
                pulled += decode_records(body)
                if answer == 19:
                    break
    print(json.dumps({"sent": sent, "pulled": pulled}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), {"json": JSON_TYPE, "binary": BINARY_TYPE}[sys.argv[4]])
