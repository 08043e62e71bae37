"""A name server and a broker, the embedded ones or Apache's of a version, for tests that run on all of them.

Most modules share one of each kind (the fixture ``name_server``), for Apache's take seconds to start. So these are set
up for all that is tried on them: messages may be recalled, and producers are soon asked about their transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from tests.conformance.apache import apache_servers

__all__ = ["APACHES", "EMBEDDED", "OURS", "running_name_server"]

EMBEDDED = "embedded"
OURS: dict[str, object] = {"transaction-time-out": 2000, "transaction-check-interval": 1000}
# Apache's 5.x writes every 3 s which transactions have ended, and asks meanwhile about those that have; each answer is
# delivered once more. Here it writes that much more often than it asks.
APACHES: dict[str, Any] = {
    "transactionTimeOut": 4000,
    "transactionCheckInterval": 3000,
    "transactionOpBatchInterval": 100,
    "recallMessageEnable": "true",
}


@contextmanager
def running_name_server(kind: str, folder: Path) -> Iterator[str]:
    """The address of a name server: of the embedded servers (``EMBEDDED``), or of Apache's of the version ``kind``."""
    if kind != EMBEDDED:
        with apache_servers(folder, kind, keeps_store=False, **APACHES) as servers:
            yield servers.name_server
    else:
        options = EmbeddedOptions(data_dir=folder, port=0, name_server_port=0, broker=dict(OURS))
        with EmbeddedServers.in_thread(options) as embedded:
            yield embedded.name_server_address
