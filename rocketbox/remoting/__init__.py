"""Connections that speak RocketMQ's remoting protocol: many requests in flight, in both directions.

``connection`` the sans-IO core · ``asyncio_driver`` and ``stream_driver`` what moves its bytes · ``network`` where
connections come from · ``client`` one connection for each address · ``server`` accepts and dispatches.
"""

__all__: list[str] = []
