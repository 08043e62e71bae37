"""fastjson's dialect of JSON, which RocketMQ's servers write: a tolerant reader, and a writer of object keys.

fastjson writes map keys that are no strings as they are: ``{0:"10.0.0.1:10911"}``, and objects as keys:
``{{"brokerName":"b","queueId":1,"topic":"T"}:5}``. The reader takes these, names without quotes, single quotes and
trailing commas; an object that is a key becomes its text, to be read by itself.

A text is read by Python's own reader where it is ordinary JSON, which is fifty times as fast. A large one can be read
in steps (:func:`loads_in_steps`), so that a loop that reads it has time for others: stretches of it by Python's own
reader, and value by value what that does not take. The work is in proportion to the text, whatever is in it.

Source: Apache RocketMQ 5.x ``RemotingSerializable``; fastjson 1.2 and fastjson2 2.0 as its servers use them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

__all__ = [
    "LARGE",
    "MAX_CONTAINERS",
    "Steps",
    "dumps_with_raw_keys",
    "each_in_steps",
    "finish",
    "loads_in_steps",
    "loads_loose",
]

ResultT = TypeVar("ResultT")

Steps = Generator[None, None, ResultT]
"""Work in steps of about a millisecond; the result is what the generator returns."""

MAX_DEPTH = 100
LARGE = 64 << 10  # characters of a text that is read in steps; Python's own reader takes two milliseconds for less
WINDOW = 8 << 10  # characters that Python's own reader is given at once
WORK_OF_A_STEP = 500  # values read one by one, of 1.5 us
BYTES_OF_WORK = 80  # that Python's own reader reads in the time of one such value
MAX_CONTAINERS = 100_000  # objects and lists of a large text: the collector of garbage looks at all of them at once
LONGEST_STRING = 64 << 10  # characters of a string or number of a large text
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\s,:{}\[\]'\"]+")
# Runs of plain characters are taken at once: an alternative for each character costs memory for each of them.
_SINGLE_QUOTED = re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
_DOUBLE_QUOTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SHOWN = 40  # characters of what is wrong that an error repeats
_QUOTES = re.compile(r"\\.|\"", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}
_MISSING = object()
_scan = json.JSONDecoder().raw_decode


def each_in_steps(values: list[Any], read: Callable[[Any], ResultT], at_once: int) -> Steps[tuple[ResultT, ...]]:
    """What ``read`` makes of each value, so many in a step."""
    found: list[ResultT] = []
    for start in range(0, len(values), at_once):
        found += map(read, values[start : start + at_once])
        if start + at_once < len(values):
            yield
    return tuple(found)


def finish(steps: Steps[ResultT]) -> ResultT:
    """Do all steps now."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: ResultT = done.value
            return result


def loads_loose(data: str | bytes) -> Any:
    """The value in JSON or fastjson's dialect; keys are always str. Raises ValueError saying where it is neither."""
    text = _text(data)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except ValueError:
        return finish(_Reader(text, windows=False).document())


def loads_in_steps(data: str | bytes, most: int = MAX_CONTAINERS) -> Steps[Any]:
    """As :func:`loads_loose`, but in steps; ordinary JSON of up to :data:`LARGE` characters in one.

    A large text may hold ``most`` objects and lists, strings of :data:`LONGEST_STRING` characters, and
    be nested a hundred deep.
    """
    text = _text(data)
    if len(text) <= LARGE:
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("JSON is nested too deeply") from None
        except ValueError:
            return (yield from _Reader(text, windows=False).document())
    return (yield from _Reader(text, windows=True, most=most).document())


def _text(data: str | bytes) -> str:
    return data.decode("utf-8") if isinstance(data, bytes | bytearray | memoryview) else data


class _Reader:
    def __init__(self, text: str, *, windows: bool, most: int = MAX_CONTAINERS) -> None:
        self._text = text
        self._at = 0
        self._windows = windows  # whether Python's own reader is tried: the text may be ordinary JSON
        self._limited = windows
        self._window = ""
        self._window_start = 0
        self._work = 0
        self._containers = 0
        self._most = most

    def document(self) -> Steps[Any]:
        value = yield from self._value(0)
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

    def _value(self, depth: int) -> Steps[Any]:
        first = self._peek()
        if first in ("{", "["):
            return (yield from self._container(first, depth))
        return self._plain(first)

    def _plain(self, first: str) -> Any:
        """A value that is neither object nor list."""
        self._work += 1
        return self._string() if first in ('"', "'") else self._word()

    def _container(self, first: str, depth: int) -> Steps[Any]:
        if depth > MAX_DEPTH:
            raise self._wrong("nested too deeply")
        if self._windows:
            value = self._ordinary()
            if value is not _MISSING:
                return value
        self._count(1)
        self._work += 1
        if first == "{":
            return (yield from self._object(depth))
        return (yield from self._array(depth))

    def _count(self, containers: int) -> None:
        self._containers += containers
        if self._limited and self._containers > self._most:
            raise self._wrong(f"more than {self._most} objects and lists")

    def _ordinary(self) -> Any:
        """What Python's own reader makes of an object or list, if it ends in the window; missing if not."""
        while True:
            start = self._at - self._window_start
            if not self._window or start >= len(self._window) // 2:
                self._window_start, start = self._at, 0
                self._window = self._text[self._at : self._at + WINDOW]
            try:
                value, end = _scan(self._window, start)
            except RecursionError:
                raise self._wrong("nested too deeply") from None
            except json.JSONDecodeError as error:
                wrong_at = error.pos
            except ValueError:  # a number of thousands of digits
                wrong_at = 0
            else:
                self._count(self._window.count("{", start, end) + self._window.count("[", start, end))
                self._work += 1 + (end - start) // BYTES_OF_WORK
                self._at += end - start
                return value
            self._work += 2 + (len(self._window) - start) // BYTES_OF_WORK
            if start == 0:
                if wrong_at < len(self._window) // 2:  # not for want of its end: from here on it is not ordinary JSON
                    self._windows = False
                return _MISSING
            self._window = ""  # again, with a whole window

    def _object(self, depth: int) -> Steps[dict[str, Any]]:
        self._at += 1
        values: dict[str, Any] = {}
        while (first := self._peek()) != "}":
            start = self._at
            self._work += 1
            if first == "{":
                yield from self._container_of_key(depth)
                key = self._text[start : self._at]
            elif first in ('"', "'"):
                key = self._string()
            else:
                key = self._bare()
            if self._peek() != ":":
                raise self._wrong(f"a colon is missing behind {key[:_SHOWN]!r}")
            self._at += 1
            first = self._peek()
            if first in ("{", "["):
                values[key] = yield from self._container(first, depth + 1)
            else:
                values[key] = self._plain(first)
            self._separator("}")
            if self._work >= WORK_OF_A_STEP:
                self._work = 0
                yield
        self._at += 1
        return values

    def _container_of_key(self, depth: int) -> Steps[None]:
        if depth >= MAX_DEPTH:
            raise self._wrong("nested too deeply")
        self._count(1)
        yield from self._object(depth + 1)

    def _array(self, depth: int) -> Steps[list[Any]]:
        self._at += 1
        values = []
        while (first := self._peek()) != "]":
            if first in ("{", "["):
                values.append((yield from self._container(first, depth + 1)))
            else:
                values.append(self._plain(first))
            self._separator("]")
            if self._work >= WORK_OF_A_STEP:
                self._work = 0
                yield
        self._at += 1
        return values

    def _separator(self, closing: str) -> None:
        following = self._peek()
        if following == ",":
            self._at += 1
        elif following != closing:
            raise self._wrong(f"expected ',' or {closing!r}")

    def _string(self) -> str:
        end = self._end()
        quoted = _DOUBLE_QUOTED.match(self._text, self._at, end)
        if quoted is not None:
            literal = quoted[0]
        else:
            quoted = _SINGLE_QUOTED.match(self._text, self._at, end)
            if quoted is None:
                raise self._wrong("a quote is not closed" + self._within(end))
            literal = '"' + _QUOTES.sub(_double_quoted, quoted[1]) + '"'
        try:
            value = json.loads(literal, strict=False)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        self._work += len(literal) // BYTES_OF_WORK
        self._at = quoted.end()
        return str(value)

    def _end(self) -> int:
        """Where a string or word that begins here ends at the latest."""
        return self._at + LONGEST_STRING if self._limited else len(self._text)

    def _within(self, end: int) -> str:
        return f" within {LONGEST_STRING} characters" if end < len(self._text) else ""

    def _bare(self) -> str:
        end = self._end()
        match = _WORD.match(self._text, self._at, end)
        if match is None:
            raise self._wrong("a value or name is missing")
        if match.end() == end < len(self._text):
            raise self._wrong("a value or name does not end" + self._within(end))
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


def _double_quoted(match: re.Match[str]) -> str:
    """What stands in a single-quoted string, as it stands in a double-quoted one."""
    return {"\\'": "'", '"': '\\"'}.get(match[0], match[0])


def dumps_with_raw_keys(name: str, table: Iterable[tuple[Any, Any]]) -> str:
    """``{"name":{{...}:value,...}}``: the keys are written as objects, as Java's brokers want them."""

    def dump(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"), sort_keys=True)

    entries = ",".join(f"{dump(key)}:{dump(value)}" for key, value in table)
    return f"{{{dump(name)}:{{{entries}}}}}"
