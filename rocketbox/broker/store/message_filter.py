"""The two questions by which a consumer's selection is decided: of a queue's unit, and of the record it points to.

The first costs nothing and may be answered yes for messages that are not wanted (two tags with one hash); the second is
asked only about records whose unit passed. What is asked stands in ``rocketbox.broker.filters``.

Source: Apache RocketMQ 5.x ``MessageFilter`` (isMatchedByConsumeQueue, isMatchedByCommitLog).
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["MessageFilter"]


class MessageFilter(Protocol):
    """What a consumer selects. Both methods may be called in any thread."""

    def matches_unit(self, tags_code: int) -> bool:
        """Whether a message may be wanted, by the hash of its tag."""

    def matches_record(self, record: bytes) -> bool:
        """Whether a message is wanted, by its whole record."""
