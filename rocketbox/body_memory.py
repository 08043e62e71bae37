"""How much memory what is read of one body may take: a body of a few megabytes may be made to take a gigabyte.

In a binary format a record, an array or a map may be one byte, and is two hundred in memory. What they take is counted
while a body is read, by whatever the format's library calls for each of them. Numbers and texts are not: they take some
ten times their bytes at most, and how many bytes a body may have is limited elsewhere.
"""

from __future__ import annotations

import sys
from typing import TypeVar

__all__ = ["BodyMemory", "BodyTooLargeError", "may_be_too_large"]

MOST_MEMORY = 256 * 1024 * 1024
"""Bytes of the lists and dicts of one body: a million records of some fields each."""
MOST_MEMORY_OF_A_BYTE = 256
"""Any list or dict takes less for each byte of it in a body."""
ContainerT = TypeVar("ContainerT")


class BodyTooLargeError(ValueError):
    """A body would take more memory than any may; the text repeats nothing of it."""

    def __init__(self) -> None:
        super().__init__(f"its records, arrays and maps would take more than {MOST_MEMORY >> 20} MiB of memory")


def may_be_too_large(body: bytes) -> bool:
    """Whether its containers could take too much, so that they have to be counted where that takes time of its own."""
    return len(body) * MOST_MEMORY_OF_A_BYTE > MOST_MEMORY


class BodyMemory:
    """What the containers of one body may still take."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MOST_MEMORY

    def counted(self, container: ContainerT) -> ContainerT:
        """The container, which has been read just now. Raises BodyTooLargeError."""
        self._left -= sys.getsizeof(container)
        if self._left < 0:
            raise BodyTooLargeError
        return container
