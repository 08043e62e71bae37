"""fastjson's dialect of JSON, which RocketMQ's servers write: a tolerant reader, and a writer of object keys.

fastjson writes map keys that are no strings as they are: ``{0:"10.0.0.1:10911"}``, and objects as keys:
``{{"brokerName":"b","queueId":1,"topic":"T"}:5}``. The reader takes these, names without quotes, single quotes and
trailing commas; an object that is a key becomes its text, to be read by itself.

Source: Apache RocketMQ 5.x ``RemotingSerializable``; fastjson 1.2 and fastjson2 2.0 as its servers use them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

__all__ = ["dumps_with_raw_keys", "loads_loose"]

MAX_DEPTH = 100
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\s,:{}\[\]'\"]+")
# Runs of plain characters are taken at once: an alternative for each character costs memory for each of them.
_SINGLE_QUOTED = re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
_DOUBLE_QUOTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SHOWN = 40  # characters of what is wrong that an error repeats
_WORDS = {"true": True, "false": False, "null": None}


def loads_loose(data: str | bytes) -> Any:
    """The value in JSON or fastjson's dialect; keys are always str. Raises ValueError saying where it is neither."""
    text = data.decode("utf-8") if isinstance(data, bytes | bytearray | memoryview) else data
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except ValueError:
        reader = _Reader(text)
        return reader.document()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> Any:
        value = self._value(0)
        self._skip()
        if self._at != len(self._text):
            raise self._wrong("there is more behind the value")
        return value

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"JSON at character {self._at}: {what}")

    def _skip(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _peek(self) -> str:
        self._skip()
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self._wrong("nested too deeply")
        match self._peek():
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"' | "'":
                return self._string()
        return self._word()

    def _object(self, depth: int) -> dict[str, Any]:
        self._at += 1
        values: dict[str, Any] = {}
        while (first := self._peek()) != "}":
            start = self._at
            if first == "{":
                self._object(depth + 1)
                key = self._text[start : self._at]
            elif first in ('"', "'"):
                key = self._string()
            else:
                key = self._bare()
            if self._peek() != ":":
                raise self._wrong(f"a colon is missing behind {key[:_SHOWN]!r}")
            self._at += 1
            values[key] = self._value(depth + 1)
            self._separator("}")
        self._at += 1
        return values

    def _array(self, depth: int) -> list[Any]:
        self._at += 1
        values = []
        while self._peek() != "]":
            values.append(self._value(depth + 1))
            self._separator("]")
        self._at += 1
        return values

    def _separator(self, closing: str) -> None:
        following = self._peek()
        if following == ",":
            self._at += 1
        elif following != closing:
            raise self._wrong(f"expected ',' or {closing!r}")

    def _string(self) -> str:
        quoted = _DOUBLE_QUOTED.match(self._text, self._at)
        if quoted is not None:
            literal = quoted[0]
        else:
            quoted = _SINGLE_QUOTED.match(self._text, self._at)
            if quoted is None:
                raise self._wrong("a quote is not closed")
            literal = '"' + quoted[1].replace("\\'", "'").replace('"', '\\"') + '"'
        try:
            value = json.loads(literal, strict=False)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        self._at = quoted.end()
        return str(value)

    def _bare(self) -> str:
        match = _WORD.match(self._text, self._at)
        if match is None:
            raise self._wrong("a value or name is missing")
        self._at = match.end()
        return match[0]

    def _word(self) -> Any:
        word = self._bare()
        if word in _WORDS:
            return _WORDS[word]
        try:
            return int(word)
        except ValueError:
            pass
        try:
            return float(word)
        except ValueError:
            raise self._wrong(f"{word[:_SHOWN]!r} is no value") from None


def dumps_with_raw_keys(name: str, table: Iterable[tuple[Any, Any]]) -> str:
    """``{"name":{{...}:value,...}}``: the keys are written as objects, as Java's brokers want them."""

    def dump(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"), sort_keys=True)

    entries = ",".join(f"{dump(key)}:{dump(value)}" for key, value in table)
    return f"{{{dump(name)}:{{{entries}}}}}"
