"""Heads of frames that are kept, so that the next frame of the same sender need not be read anew: how many, how large.

What a head is, and which bytes or fields lead to it, is the business of ``pull_frames`` and ``send_frames``.

Source: own design.
"""

from __future__ import annotations

from typing import TypeVar

__all__ = ["MAX_KEY", "keep_head"]

MAX_HEADS = 10_000
MAX_KEY = 4_096  # bytes or characters; what a stranger may have kept of one frame

KeyT = TypeVar("KeyT", bound=tuple[bytes | str | None, ...])
HeadT = TypeVar("HeadT")


def keep_head(heads: dict[KeyT, HeadT], key: KeyT, head: HeadT) -> None:
    """Keep a head by its key, unless that is too large."""
    if sum(len(part) for part in key if part is not None) > MAX_KEY:
        return
    if len(heads) >= MAX_HEADS:  # somebody puts something of each message into its header
        heads.clear()
    heads[key] = head
