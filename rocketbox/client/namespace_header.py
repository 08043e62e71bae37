"""The hook that says a namespace V2 in each request of a client.

Sends have it from their templates (``lanes``): entries of each request would cost the signing its fast path
(benchmark "signed send, 256 in flight").

Source: Apache RocketMQ 5.x ``NamespaceRpcHook``, which is the first hook as well.
"""

from __future__ import annotations

from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.namespaces import header_fields
from rocketbox.protocol.prepared_sends import SendRequest

__all__ = ["NamespaceHeader"]


class NamespaceHeader:
    """Adds the two fields. It stands before the hook that signs: what it adds is signed."""

    def __init__(self, namespace_v2: str) -> None:
        self._fields = header_fields(namespace_v2)

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """Add the fields to a command."""
        command.ext_fields = {**command.ext_fields, **self._fields}

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        """Nothing: the template of a send has the fields."""
        return b""

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        """An answer has no namespace."""
