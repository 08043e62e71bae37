"""Who a client is to name servers and brokers: its address and its id.

Source: Apache RocketMQ 5.x ``ClientConfig.buildMQClientId``, ``ClientConfig.changeInstanceNameToPID``,
``NetworkUtil``. The pid form ends in a random number where Java has its nano time.
"""

from __future__ import annotations

import os
import socket

from rocketbox.client.options import DEFAULT_INSTANCE_NAME, ClientOptions
from rocketbox.clock import Clock

__all__ = ["client_id", "ip_bytes", "local_ip"]

# Addresses kept for documentation (RFC 5737, RFC 3849): connecting a datagram socket to one sends nothing, but tells
# which of the machine's own addresses leads outside.
_OUTSIDE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def local_ip() -> str:
    """The machine's address toward the outside; 127.0.0.1 when it has no network."""
    for family, address in _OUTSIDE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def ip_bytes(ip: str) -> bytes:
    """The 4 or 16 bytes of an address, as message ids begin with them."""
    return socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)


def client_id(ip: str, options: ClientOptions, clock: Clock) -> str:
    """``ip@instance`` and, with a unit, ``@unit``; an IPv6 address is bracketed."""
    instance = options.instance_name
    if instance == DEFAULT_INSTANCE_NAME:
        instance = f"{os.getpid()}#{clock.random.getrandbits(48)}"
    host = f"[{ip}]" if ":" in ip else ip
    return f"{host}@{instance}" + (f"@{options.unit_name}" if options.unit_name else "")
