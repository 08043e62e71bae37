"""A harness for tests that are plain functions: its service runs in a loop of a thread of its own.

Each verb returns when the asynchronous one of the same name has; what only looks is the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from rocketbox.message import SendResult
from rocketbox.testing.records import Call

if TYPE_CHECKING:
    from rocketbox.testing.harness import Failures, Harness, Time

__all__ = ["BlockingHarness"]


class BlockingHarness:
    """The verbs of a harness, for code that cannot await: ``harness.blocking.send("orders", order)``."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._stack = ExitStack()
        self._portal: BlockingPortal

    def start(self) -> None:
        """Start the loop and the service in it. Raises what the start raises."""
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(self._portal.wrap_async_context_manager(self._harness))
            stack.enter_context(self._harness.app.hosting(self._portal))
            self._stack = stack.pop_all()

    def stop(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stop both."""
        return self._stack.__exit__(kind, error, trace)

    def send(
        self,
        destination: str,
        payload: object,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        hash_key: str | None = None,
        delay: Time | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        headers: Mapping[str, object] | None = None,
        cluster: str | None = None,
    ) -> SendResult:
        """As :meth:`Harness.send`."""
        return self._portal.call(
            partial(
                self._harness.send,
                destination,
                payload,
                tag=tag,
                keys=keys,
                hash_key=hash_key,
                delay=delay,
                delay_level=delay_level,
                deliver_at=deliver_at,
                headers=headers,
                cluster=cluster,
            )
        )

    def drain(self, *, failures: Failures | None = None) -> None:
        """As :meth:`Harness.drain`."""
        self._portal.call(partial(self._harness.drain, failures=failures))

    def advance(self, time: Time, *, failures: Failures | None = None) -> None:
        """As :meth:`Harness.advance`."""
        self._portal.call(partial(self._harness.advance, time, failures=failures))

    def fresh(self) -> None:
        """As :meth:`Harness.fresh`."""
        self._portal.call(self._harness.fresh)

    def consumed(self, group: str, count: int = 1, *, within: Time = "1d", cluster: str | None = None) -> list[Call]:
        """As :meth:`Harness.consumed`."""
        return self._portal.call(partial(self._harness.consumed, group, count, within=within, cluster=cluster))

    def batch(
        self,
        listener: Callable[..., Any] | str,
        payloads: Iterable[object] | None = None,
        *,
        batch_id: int | None = None,
    ) -> Any:
        """As :meth:`Harness.batch`."""
        return self._portal.call(partial(self._harness.batch, listener, payloads, batch_id=batch_id))

    def call(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """What ``function(*arguments)`` returns, called in the loop of the harness and awaited if it can be.

        For all that has no verb here: ``harness.blocking.call(harness.broker.restart)``.
        """
        return self._portal.call(function, *arguments)
