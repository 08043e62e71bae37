"""The chain around every request that a peer sends: who looks at it before its handler, and at its answer afterwards.

A hook sees a request before its handler does and may answer it itself, and it hears once how the request ended. Access
rights, quotas, statistics and trace context stand on it. What a request means is the handlers' part; when requests are
read and answered, ``connection``'s.

Source: Apache RocketMQ 5.x ``RPCHook`` (doBeforeRequest, doAfterResponse; here also the order back, and lost answers).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from rocketbox.protocol.command import RemotingCommand

if TYPE_CHECKING:
    from rocketbox.remoting.connection import Connection
    from rocketbox.remoting.role import Role

__all__ = ["NO_ANSWER", "HookedRequests", "RequestHook"]

NO_ANSWER: Final = -1  # the code that ``after`` is told when the connection was lost before the answer


class RequestHook(Protocol):
    """What is called around the handlers of a server; in the loop, so it must not block."""

    def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """An answer ends it here: later hooks and the handler are not called. None lets the request through.

        What it raises is answered 1 and logged.
        """

    def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None:
        """The request whose ``before`` has returned is over; called once for each.

        ``code`` and ``frame_bytes`` are those of the answer, however late it was given. A one-way request is over when
        its handler has ended (no bytes; code is what would have been answered). When the connection was lost first:
        NO_ANSWER and no bytes. What it raises changes nothing; it is counted, and logged now and then.
        """


class HookedRequests:
    """The requests of one connection that are on their way through its server's hooks."""

    def __init__(self, role: Role) -> None:
        self._hooks: Sequence[RequestHook] = role.hooks
        self._role = role
        self._entered: dict[RemotingCommand, int] = {}  # how many hooks have let a request through, or answered it

    def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """What a hook answers instead of the handler; None lets the request through. Raises what a hook raises."""
        answer = None
        entered = 0
        try:
            for hook in self._hooks:
                answer = hook.before(connection, request)
                entered += 1
                if answer is not None or connection.closed:
                    break
        finally:
            self._entered[request] = entered
            if connection.closed:  # by a hook: what was lost then did not include this request
                self.after(connection, request, NO_ANSWER, 0)
        return answer

    def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None:
        """Tell the hooks how a request ended, the innermost first; a request that they heard of is not told again."""
        for hook in reversed(self._hooks[: self._entered.pop(request, 0)]):
            try:
                hook.after(connection, request, code, frame_bytes)
            except Exception as error:
                self._role.counters.failed_hooks += 1
                self._role.log.tell(
                    logging.ERROR, self._role.clock.monotonic(), ("hook", type(hook), type(error)),
                    "a hook, %s, failed behind request %d of %s",
                    type(hook).__name__, request.code, connection.remote_address, error=error,
                )  # fmt: skip

    def lost(self, connection: Connection) -> None:
        """The connection is closed: nobody will read the answers. One-way requests end with their handlers."""
        for request in [request for request in self._entered if not request.is_oneway]:
            self.after(connection, request, NO_ANSWER, 0)
