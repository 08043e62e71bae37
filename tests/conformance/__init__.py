"""The same service on Apache RocketMQ, and Apache's programs on ours (``make conformance``)."""

__all__: list[str] = []
