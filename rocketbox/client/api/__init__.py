"""One coroutine for each request a client makes: builds the header, and turns the answer into a result or an error.

All of them take the RemotingClient and the address to ask, raise RemotingError when no answer came, and BrokerError
for an answer that says no. Which broker to ask, and whether to ask again, is decided by the callers.

Source: Apache RocketMQ 5.x ``MQClientAPIImpl``.
"""

from __future__ import annotations

__all__ = ["admin", "groups", "offsets", "pull", "routes", "send"]
