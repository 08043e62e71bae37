"""Where a message was born: the address its sender connected from, as records hold it.

Source: Apache RocketMQ 5.x ``SendMessageProcessor`` (``setBornHost``), ``RemotingHelper.parseChannelRemoteAddr``.
"""

from __future__ import annotations

import ipaddress

from rocketbox.remoting.connection import Connection

__all__ = ["born_host", "parse_address"]

_BORN_HOST = "broker.born_host"  # attribute of a connection


def parse_address(address: str) -> tuple[bytes, int]:
    """IP (4 or 16 bytes) and port of ``ip:port`` or ``[ip]:port``; an address that is no IP is 0.0.0.0."""
    host, _, port = address.rpartition(":")
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).packed, int(port)
    except ValueError:
        return bytes(4), 0


def born_host(connection: Connection) -> tuple[bytes, int]:
    """IP (4 or 16 bytes) and port of the connection's peer."""
    host = connection.attributes.get(_BORN_HOST)
    if host is None:
        host = connection.attributes[_BORN_HOST] = parse_address(connection.remote_address)
    found: tuple[bytes, int] = host
    return found
