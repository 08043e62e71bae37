"""What the topic of message trace holds."""

from __future__ import annotations

from rocketbox.client import Admin, ClientOptions
from rocketbox.protocol.trace_records import TraceRecord, decode_trace_records

__all__ = ["TRACE_TOPIC", "trace_records"]

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


async def trace_records(
    name_server: str, *, topic: str = TRACE_TOPIC, options: ClientOptions | None = None
) -> list[TraceRecord]:
    """All records in a topic of trace, in the order of its queues."""
    found: list[TraceRecord] = []
    async with Admin(name_server=name_server, client_options=options) as admin:
        for queue in await admin.queues(topic):
            end = await admin.max_offset(queue)
            offset = await admin.min_offset(queue)
            while offset < end:
                pulled = await admin.pull(queue, offset)
                found += [record for message in pulled.messages for record in decode_trace_records(message.body)]
                offset = pulled.next_begin_offset
    return found
