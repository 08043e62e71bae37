"""Benchmarks: messages per second and CPU per message, each beside a bare peer in the same run (``make bench``)."""

__all__: list[str] = []
