"""Where clients reach the broker, and the IP that goes into message ids.

Source: Apache RocketMQ 5.x ``BrokerConfig.brokerIP1``.
"""

from __future__ import annotations

import ipaddress
import socket

from rocketbox.broker.options import BrokerOptions
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.remoting.host_names import addresses_of

__all__ = ["check_address", "resolve_ip"]


def check_address(options: BrokerOptions) -> None:
    """Raises ConfigurationError when clients would be told an address that nobody can connect to."""
    if options.broker_ip1 is None and options.bind_address.strip("[]") in {"", "0.0.0.0", "::"}:  # noqa: S104 - asks
        raise ConfigurationError(
            Finding(
                f"the broker listens on {options.bind_address or 'all addresses'}, which no client can connect to",
                fix="set broker-ip1 (brokerIP1) to the address clients reach this machine by",
            )
        )


async def resolve_ip(options: BrokerOptions) -> bytes:
    """The IP that goes into message ids. Raises ConfigurationError when the host's name is not known."""
    host = (options.broker_ip1 or options.bind_address).strip("[]")
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        try:
            found = await addresses_of(host)
        except (OSError, UnicodeError) as error:
            raise ConfigurationError(
                Finding(
                    f"the address of {host}, where clients are to reach the broker, is not known: {error}",
                    fix="set broker-ip1 (brokerIP1) to the IP address clients reach this machine by",
                )
            ) from error
        return ipaddress.ip_address(min(found, key=lambda address: address[0] != socket.AF_INET)[1][0]).packed
