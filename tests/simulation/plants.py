"""Faults that are planted in the product, to see that the simulation finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rocketbox.client.process_queue import ProcessQueue
from rocketbox.message import MessageExt

__all__ = ["PLANTS"]


def _commit_ahead() -> None:
    """What is held in memory counts as consumed."""
    ProcessQueue.commit_offset = property(lambda self: self.pulled_to)  # type: ignore[method-assign, assignment]


def _skipped_message() -> None:
    """Of what a pull brings every tenth message is passed over."""
    put = ProcessQueue.put

    def put_some(self: ProcessQueue, messages: Iterable[MessageExt], next_offset: int) -> int:
        return put(self, [message for message in messages if message.fields[5] % 10 != 9], next_offset)

    ProcessQueue.put = put_some  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], Any]] = {"commit ahead": _commit_ahead, "skipped message": _skipped_message}
