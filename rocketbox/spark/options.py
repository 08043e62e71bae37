"""The options of the data source ``rocketmq``, read and checked. Pure: no client, no Spark.

What each option means is told where users look for it, in ``rocketbox.spark.source``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from rocketbox.spark.offsets import parse_starting_offsets

__all__ = ["SourceOptions"]

NAMES = (
    "nameServer topic tags group startingOffsets endingOffsets maxOffsetsPerTrigger commitOffsets metadataPath "
    "failOnDataLoss rowsPerPartition maxPartitions"
).split()
WORDS = ("earliest", "latest", "group")
ROWS_PER_PARTITION = 20_000


class SourceOptions:
    """The options of a read, checked. Raises ValueError naming the option and what would be right."""

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name.lower(): name for name in NAMES}
        values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in known:
                near = difflib.get_close_matches(name.lower(), known, 1)
                hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(NAMES)}"
                raise ValueError(f"the data source rocketmq has no option {name!r}; {hint}")
            values[known[name.lower()]] = value
        self._values = values
        self.name_server = self._needed("nameServer")
        for address in self.name_server.replace(",", ";").split(";"):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdecimal():
                raise ValueError(
                    f"option nameServer is {self.name_server!r}; it must be host:port, several separated by ';'"
                )
        self.topic = self._needed("topic")
        self.tags = values.get("tags", "").strip() or "*"
        self.group = values.get("group", "").strip() or None
        self.starting_offsets = self._offsets("startingOffsets", WORDS)
        self.ending_offsets = self._offsets("endingOffsets", ("latest",)) or "latest"
        self.max_offsets_per_trigger = self._number("maxOffsetsPerTrigger")
        self.commit_offsets = self._switch("commitOffsets", self.group is not None)
        self.metadata_path = Path(values["metadataPath"]) if values.get("metadataPath") else None
        self.fail_on_data_loss = self._switch("failOnDataLoss", True)
        self.rows_per_partition = self._number("rowsPerPartition") or ROWS_PER_PARTITION
        self.max_partitions = self._number("maxPartitions") or 2 * (os.cpu_count() or 1)
        if self.group is None and self.commit_offsets:
            raise ValueError("option commitOffsets is true; then the option group must say whose offsets they are")
        if self.group is None and self.starting_offsets == "group":
            raise ValueError("option startingOffsets is 'group'; then the option group must say which one")

    def check_batch(self) -> None:
        """Raises ValueError for an option that only means something in a streaming read."""
        self._refuse(("maxOffsetsPerTrigger", "metadataPath"), "streaming reads (spark.readStream)")

    def check_stream(self) -> None:
        """Raises ValueError for an option that a streaming read cannot take, or needs."""
        self._refuse(("endingOffsets",), "batch reads (spark.read)")
        starting = self.stream_start
        if self.metadata_path is not None:
            return
        if starting == "latest" or (starting not in WORDS and -1 in parse_starting_offsets(starting).values()):
            raise ValueError(
                f"startingOffsets={starting} needs the option metadataPath (a folder, such as one in the checkpoint): "
                "Spark asks for the first offsets again when it repeats the first batch, and without a note of them "
                "messages in between would be skipped"
            )
        if starting == "group" and not self.commit_offsets:
            raise ValueError(
                "startingOffsets=group with commitOffsets=false needs the option metadataPath (a folder, such as one "
                "in the checkpoint): what the group has committed may change until Spark asks for it again"
            )

    @property
    def stream_start(self) -> str:
        """Where a streaming read begins: as said, else at the group's offsets, else at the beginning."""
        return self.starting_offsets or ("group" if self.group else "earliest")

    def _refuse(self, names: tuple[str, ...], where: str) -> None:
        for name in names:
            if name in self._values:
                raise ValueError(f"option {name} is for {where} only; leave it out")

    def _needed(self, name: str) -> str:
        if not (value := self._values.get(name, "").strip()):
            raise ValueError(f"the data source rocketmq needs the option {name}")
        return value

    def _offsets(self, name: str, words: tuple[str, ...]) -> str | None:
        text = self._values.get(name, "").strip()
        if text.lower() in words:
            return text.lower()
        if not text:
            return None
        for queue, offset in parse_starting_offsets(text, name, words).items():
            if offset < -2:
                raise ValueError(f"option {name} has offset {offset} for {queue}; -2 is the beginning, -1 the end")
            if queue.topic != self.topic:
                raise ValueError(f"option {name} names topic {queue.topic!r}, and option topic is {self.topic!r}")
        return text

    def _number(self, name: str) -> int | None:
        text = self._values.get(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"option {name} is {text!r}; it must be a whole number above 0")
        return int(text)

    def _switch(self, name: str, default: bool) -> bool:
        text = self._values.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise ValueError(f"option {name} is {self._values[name]!r}; it must be true or false")
        return text == "true"
