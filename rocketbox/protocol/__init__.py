"""RocketMQ's remoting protocol as values and bytes: no I/O, no clock, no logging.

``codes`` numbers and names · ``command`` and ``framing`` frames · ``headers`` and ``bodies`` what frames carry ·
``stored_message`` the record of a message · ``ids``, ``tags`` message ids, tag hashes, subscriptions, name checks.
"""

__all__: list[str] = []
