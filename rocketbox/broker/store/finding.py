"""What a check of a store finds: a place, what is wrong there, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["FindingKind", "StoreFinding"]


class FindingKind(Enum):
    """Which part of a store a finding is about."""

    LOG = "log"
    QUEUE = "queue"
    INDEX = "index"
    TABLE = "table"
    DIRECTORY = "directory"
    """A file that does not belong where it is."""


@dataclass(frozen=True)
class StoreFinding:
    """One thing that is not as it should be."""

    kind: FindingKind
    path: str
    position: int
    """The byte in the file."""
    what: str
    remedy: str
    correct: bytes | None = None
    """The bytes that should stand at ``position``, where that is known: derived data can be written anew."""
    end: int = 0
    """Where the wrong bytes of the log end, as an offset of the log."""
    home: str | None = None
    """Of a file that does not belong where it is: where it does, if that is known."""
    is_lost_tail: bool = False
    """The log ends there, though it was synced further."""
    harmless: bool = False
    """The next start deals with it by itself; nothing that was acknowledged is missing."""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.path}:{self.position}: {self.what}; {self.remedy}"
