"""The options of a write by the data source ``rocketmq``, read and checked. Pure: no client, no Spark.

What each option means is told where users look for it, in ``rocketbox.spark.source``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from rocketbox.durations import parse_duration

__all__ = ["WriteOptions"]

NAMES = (
    "nameServer topic tag hashKey delayLevel jsonColumns ignoreColumns reservedProperties deadLettersOf producerGroup "
    "writeId sendTimeout maxInFlight maxInFlightBytes"
).split()
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""What Spark hands on to the sink of a stream, and is not meant for it."""
SEND_TIMEOUT = "3s"  # the producer's own
IN_FLIGHT, BYTES_IN_FLIGHT = 1000, 8 * 1024 * 1024


class WriteOptions:
    """The options of a write, checked. Raises ValueError naming the option and what would be right."""

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name.lower(): name for name in NAMES}
        values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() in SPARKS_OWN:
                continue
            if name.lower() not in known:
                near = difflib.get_close_matches(name.lower(), known, 1)
                hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(NAMES)}"
                raise ValueError(f"a write by the data source rocketmq has no option {name!r}; {hint}")
            if not value.strip():
                raise ValueError(f"option {known[name.lower()]} is blank; leave it out, or say what it is")
            values[known[name.lower()]] = value.strip()
        self._values = values
        if "nameServer" not in values:
            raise ValueError("a write by the data source rocketmq needs the option nameServer")
        self.name_server = values["nameServer"]
        self.topic = values.get("topic")
        self.tag = values.get("tag")
        self.hash_key = values.get("hashKey")
        self.delay_level = self._number("delayLevel", 0)
        self.json_columns = self._names("jsonColumns")
        self.ignore_columns = self._names("ignoreColumns") or ()
        self.drop_reserved = self._word("reservedProperties", ("fail", "drop")) == "drop"
        self.dead_letters_of = values.get("deadLettersOf")
        self.producer_group = values.get("producerGroup", "spark-writer")
        self.write_id = values.get("writeId")
        self.send_timeout = self._seconds("sendTimeout", SEND_TIMEOUT)
        self.max_in_flight = self._number("maxInFlight", IN_FLIGHT)
        self.max_in_flight_bytes = self._number("maxInFlightBytes", BYTES_IN_FLIGHT)
        if self.dead_letters_of is not None:
            given = [name for name in ("topic", "tag", "hashKey", "delayLevel", "jsonColumns") if name in values]
            if given:
                raise ValueError(
                    f"option {given[0]} does not go together with deadLettersOf: a dead letter goes to the "
                    "dead-letter topic of the group, as the message that it was"
                )

    def _number(self, name: str, default: int) -> int:
        text = self._values.get(name)
        if text is None:
            return default
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"option {name} is {text!r}; it must be a whole number above 0")
        return int(text)

    def _names(self, name: str) -> tuple[str, ...] | None:
        text = self._values.get(name)
        return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())

    def _word(self, name: str, words: tuple[str, ...]) -> str:
        text = self._values.get(name, words[0]).lower()
        if text not in words:
            raise ValueError(f"option {name} is {self._values[name]!r}; it must be {' or '.join(words)}")
        return text

    def _seconds(self, name: str, default: str) -> float:
        text = self._values.get(name, default)
        try:
            seconds = parse_duration(text).total_seconds()
        except ValueError as error:
            raise ValueError(f"option {name} is {text!r}: {error}") from None
        if seconds <= 0:
            raise ValueError(f"option {name} is {text!r}; it must be more than nothing")
        return seconds
