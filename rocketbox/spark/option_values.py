"""Options of the data source ``rocketmq`` as Spark hands them over, names and texts: looked up, and read as values.

Which options there are is declared in ``options`` (reads) and ``write_options`` (writes); the reference in the
documentation and the hints of errors are made of what is declared there. Pure: no client, no Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeVar

from rocketbox.durations import parse_duration
from rocketbox.sizes import parse_data_size

__all__ = ["OptionTable", "OptionValues", "SourceOption", "Use"]

ValueT = TypeVar("ValueT")
Use = Literal["both", "batch", "stream"]


OF_A_TABLE = "option."
"""How the options of a catalog's table begin among its properties, all of which Spark hands over."""
NO_TABLE = (
    "a topic is no table of a catalog, so there is no CREATE TABLE of it and no INSERT: in SQL it is read by CREATE "
    "TEMPORARY VIEW name USING rocketmq OPTIONS (nameServer '...', topic '...'), and it is written by save() or "
    "start() of a DataFrame's writer (saveAsTable() sends the rows as well, and leaves a name that leads to nothing)"
)


@dataclass(frozen=True)
class SourceOption:
    """One option: what it means, its default, what takes it, and what it is called in Spark's Kafka source or sink."""

    name: str
    meaning: str
    default: str = ""
    use: Use = "both"
    kafka: tuple[str, ...] = ()


@dataclass(frozen=True)
class OptionTable:
    """The options that there are for one purpose."""

    what: str
    """Who has them, as errors say it."""
    kafka: str
    """What they are compared with: Spark's ``Kafka source`` or ``Kafka sink``."""
    options: tuple[SourceOption, ...]
    needless: Mapping[str, str] = field(default_factory=dict)
    """Names, in small letters, that somebody may look for in vain, and why there is no such option."""
    sparks_own: frozenset[str] = frozenset()
    """Names, in small letters, that Spark hands over and that are not meant for the data source."""

    def find(self, name: str) -> SourceOption:
        """The option of that name, in any case. Raises ValueError that says what may be meant."""
        lower = name.lower()
        if lower.startswith(OF_A_TABLE):
            raise ValueError(NO_TABLE)
        by_name = {option.name.lower(): option for option in self.options}
        if lower in by_name:
            return by_name[lower]
        by_kafka_name = {other.lower(): option.name for option in self.options for other in option.kafka}
        if lower in self.needless:
            hint = f"leave it out: {self.needless[lower]}"
        elif lower in by_kafka_name:
            hint = f"what Spark's {self.kafka} calls so is {by_kafka_name[lower]} here"
        elif near := difflib.get_close_matches(lower, by_name, 1):
            hint = f"did you mean {by_name[near[0]].name}?"
        else:
            hint = f"there are {', '.join(option.name for option in self.options)}"
        raise ValueError(f"{self.what} has no option {name!r}; {hint}")

    def read(self, given: Mapping[str, str]) -> OptionValues:
        """What is given, by the names of the options. Raises ValueError for a name that is none, and for a blank."""
        if not given:  # Spark hands over none of those that a table of its catalog was made with
            raise ValueError(f"{self.what} needs the option nameServer; {NO_TABLE}")
        values: dict[str, str] = {}
        for name, text in given.items():
            if name.lower() in self.sparks_own:
                continue
            option = self.find(name)
            if not text.strip():
                raise ValueError(f"option {option.name} is blank; leave it out, or say what it is")
            values[option.name] = text.strip()
        return OptionValues(self.what, values)


class OptionValues:
    """The texts of options, none of them blank. What reads one raises ValueError with its name and what is right."""

    def __init__(self, what: str, texts: Mapping[str, str]) -> None:
        self._what = what
        self._texts = texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def text(self, name: str) -> str | None:
        return self._texts.get(name)

    def name_server(self) -> str:
        """The addresses of ``nameServer``, which every use of the data source needs."""
        if (text := self.text("nameServer")) is None:
            raise ValueError(f"{self._what} needs the option nameServer")
        if "@" in text:
            raise ValueError(
                "option nameServer has a user or password before a host; write host:port, and say credentialsFile for "
                "the keys"
            )
        for address in text.replace(",", ";").split(";"):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdecimal():
                shown = text.partition("?")[0]  # behind it there may be a token
                raise ValueError(f"option nameServer is {shown!r}; it must be host:port, several separated by ';'")
        return text

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"option {name} is {text!r}; it must be a whole number above 0")
        return int(text)

    def word(self, name: str, words: tuple[str, ...]) -> str | None:
        text = self.text(name)
        if text is not None and text.lower() not in words:
            raise ValueError(f"option {name} is {text!r}; it must be {' or '.join(words)}")
        return None if text is None else text.lower()

    def switch(self, name: str, default: bool) -> bool:
        word = self.word(name, ("true", "false"))
        return default if word is None else word == "true"

    def names(self, name: str) -> tuple[str, ...] | None:
        """Names that are separated by commas."""
        if (text := self.text(name)) is None:
            return None
        names = tuple(part.strip() for part in text.split(","))
        if "" in names:
            raise ValueError(f"option {name} is {text!r}; it must be a name, or several separated by ','")
        return names

    def size(self, name: str) -> int | None:
        """Bytes, more than none."""
        return self._read(name, _positive_size)

    def duration(self, name: str) -> timedelta | None:
        """A time, longer than none."""
        return self._read(name, _positive_time)

    def _read(self, name: str, read: Callable[[str], ValueT]) -> ValueT | None:
        if (text := self.text(name)) is None:
            return None
        try:
            return read(text)
        except ValueError as error:
            raise ValueError(f"option {name} is {text!r}: {error}") from None


def _positive_size(text: str) -> int:
    if (size := parse_data_size(text)) < 1:
        raise ValueError("it must be more than nothing")
    return size


def _positive_time(text: str) -> timedelta:
    if (time := parse_duration(text, bare_numbers=False)) <= timedelta(0):
        raise ValueError("it must be more than nothing")
    return time
