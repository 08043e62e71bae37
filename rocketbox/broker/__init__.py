"""The broker: stores messages, hands them out, and keeps what groups of consumers need to share them.

``broker`` is the whole; ``handlers`` answer requests; ``topics``, ``groups``, ``offsets``, ``clients`` and ``locks``
are its tables, ``pull_hold`` and ``delay`` what waits; ``registration`` tells the name servers, ``store`` is the disk.
"""

__all__: list[str] = []
