"""Name server and broker of this process, as those see them who use them: where they are, and how they are.

They are run by ``embedded``, in a thread and loop of their own or in the loop that runs here; an application does not
know which, and does not load them before it is to start them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

__all__ = ["LocalServers", "ServersHealth"]


@dataclass(frozen=True)
class ServersHealth:
    """How the servers are; texts say what is wrong, None that all is well."""

    failure: str | None = None
    """Why no message is taken until they are started again."""
    refusal: str | None = None
    """Why no message is taken now: the failure, or a full disk."""


class LocalServers(Protocol):
    """Servers that run from ``async with`` to its end: entering returns when both answer."""

    @property
    def name_server_address(self) -> str:
        """What a client is told as its name server."""

    @property
    def broker_address(self) -> str: ...

    @property
    def health(self) -> ServersHealth:
        """How they are now."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...
