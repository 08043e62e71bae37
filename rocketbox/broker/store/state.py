"""Whether a store takes messages, and why not: failed for good, or refusing them until something is mended.

Why that is, is decided by ``log_writer``; what is retried meanwhile stands in ``troubles``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from rocketbox.broker.store.troubles import Trouble
from rocketbox.errors import StoreError, StoreFailedError, StoreFullError

__all__ = ["StoreHealth", "StoreState"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreHealth:
    """How a store is. Offsets are physical."""

    failure: str | None
    """Why nothing is written any more until the store is opened again; None while all is well."""
    refusal: str | None
    """Why messages are refused now."""
    troubles: list[Trouble]
    waiting_bytes: int
    """Bytes of messages that wait for the disk."""
    durable_offset: int
    """All before is safe."""
    dispatched_offset: int
    """All before can be read by consumers."""
    refused_busy: int
    """How many puts were refused because too many bytes waited, since the store was opened."""
    refused_full: int
    """How many puts were refused, or taken back, because the disk had no room."""


class StoreState:
    """``failure`` is final, ``refusal`` also what passes by. :attr:`on_change` is called in the loop when one changes.

    All methods are called in the loop.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self.refuses = False
        """Whether puts are refused now."""
        self.on_change: list[Callable[[], None]] = []
        self._full: StoreFullError | None = None
        self._above_mark: StoreFullError | None = None

    @property
    def refusal(self) -> str | None:
        if self.failure is not None:
            return self.failure
        full = self._full or self._above_mark
        return None if full is None else str(full)

    @property
    def is_full(self) -> bool:
        """Whether puts are refused until there is room."""
        return self._full is not None and self.failure is None

    def error(self) -> StoreError | None:
        """A new error for a put that is refused now; None while puts are taken."""
        if self.failure is not None:
            return StoreFailedError(self.failure)
        full = self._full or self._above_mark
        return None if full is None else StoreFullError(full.what, full.reason, full.free_bytes)

    def fail(self, reason: str, error: BaseException) -> bool:
        """Nothing is written any more. Logged once, the unforeseen with its traceback; False if it was known."""
        if self.failure is not None:
            return False
        self.failure = reason
        self.refuses = True
        _log.error("%s", reason, exc_info=None if isinstance(error, OSError) else error)
        self._changed()
        return True

    def refuse(self, error: StoreFullError) -> None:
        """Take no puts until :meth:`accept`. Logged when it begins."""
        begins = self._full is None
        self._full = error
        self.refuses = True
        if begins:
            _log.error("%s", error)
            self._changed()

    def accept(self) -> None:
        """Take puts again."""
        if self._full is not None:
            self._full = None
            self._taking_again()

    def refuse_above_mark(self, error: StoreFullError) -> None:
        """Take no puts until :meth:`accept_below_mark`, though they might have room. Logged when it begins."""
        begins = self._above_mark is None
        self._above_mark = error
        self.refuses = True
        if begins:
            _log.error("%s", error)
            self._changed()

    def accept_below_mark(self) -> None:
        """The disk is not too full."""
        if self._above_mark is not None:
            self._above_mark = None
            self._taking_again()

    def _taking_again(self) -> None:
        self.refuses = self.failure is not None or self._full is not None or self._above_mark is not None
        if not self.refuses:
            _log.warning("there is room again: the store takes messages")
        self._changed()

    def begin(self) -> None:
        """The store is opened anew: nothing is known against it."""
        self.failure = None
        self._full = self._above_mark = None
        self.refuses = False

    def _changed(self) -> None:
        for listener in list(self.on_change):
            try:
                listener()
            except Exception:
                _log.exception("telling of a change of the store's state failed")
