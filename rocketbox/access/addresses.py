"""Addresses as settings of access control name them: one address, a network, or ACL 1.0's own patterns.

Source: Apache RocketMQ 5.x ``IPAddressUtils``; 4.9.7 ``RemoteAddressStrategyFactory``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

__all__ = ["AddressMatch", "everybody", "host_of", "plain_match", "source_match"]

AddressMatch = Callable[[str], bool]
"""Whether a host, an IPv4 or IPv6 address as text, is among those that are meant."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LONGEST = 200  # characters of a pattern
MAPPED_BITS = 96  # before an IPv4 address in an IPv6 one (::ffff:10.0.0.1)


def everybody(host: str) -> bool:
    """What matches every address."""
    return True


def host_of(address: str) -> str:
    """The host of ``host:port`` or ``[host]:port``."""
    return address.rpartition(":")[0].strip("[]")


def source_match(text: str) -> AddressMatch:
    """Of an address or a network (``10.0.0.0/8``). Raises ValueError for what is neither."""
    network = ipaddress.ip_network(text.strip()[:LONGEST], strict=False)
    mapped = network.network_address.ipv4_mapped if network.version == 6 else None
    if mapped is not None and network.prefixlen >= MAPPED_BITS:  # who comes from there is known by his IPv4 address
        network = ipaddress.ip_network((mapped, network.prefixlen - MAPPED_BITS))

    def matches(host: str) -> bool:
        address = _address(host)
        return address is not None and address.version == network.version and address in network

    return matches


def plain_match(text: str) -> AddressMatch:
    """Of a pattern of ``plain_acl.yml``. Raises ValueError for what is none; a blank one matches nobody.

    ``*`` everybody; ``192.168.0.1``; ``192.168.0.{1,5,7}`` and ``192.168.0.1,192.168.0.5``; ``192.168.*``,
    ``192.168.*.*``, ``192.168.1-10.*`` and ``192.168.0.1-99``; of IPv6 the same between colons, in full or with ``::``.
    Behind the first range there may be nothing but ``*``: Apache's reading of others says what nobody means.
    """
    text = text.strip()
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    if not text:
        return lambda host: False
    if text in {"*", "*.*.*.*", "*:*:*:*:*:*:*:*"}:
        return everybody
    if text.endswith("}"):
        front, brace, ends = text[:-1].partition("{")
        if not brace or not front.endswith((".", ":")):
            raise ValueError("{...} stands for the last part of an address")
        return _one_of([front + end.strip() for end in ends.split(",")])
    if "," in text:
        return _one_of([part.strip() for part in text.split(",")])
    if "*" in text or "-" in text:
        return _range(text)
    return _one_of([text])


def _address(host: str) -> _Address | None:
    try:
        return _plain(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return None


def _plain(address: _Address) -> _Address:
    """An IPv4 address that is written as an IPv6 one, as what it is."""
    return getattr(address, "ipv4_mapped", None) or address


def _one_of(texts: list[str]) -> AddressMatch:
    addresses = {_plain(ipaddress.ip_address(text)) for text in texts}
    return lambda host: _address(host) in addresses


def _range(text: str) -> AddressMatch:
    wide = ":" in text
    separator, parts_of_all, base, most = (":", 8, 16, 0xFFFF) if wide else (".", 4, 10, 255)
    parts = _without_gap(text) if wide else text.split(".")
    at = next(number for number, part in enumerate(parts) if "*" in part or "-" in part)
    behind = parts[at + 1 :]
    if at == 0 or len(parts) > parts_of_all or any(part != "*" for part in behind):
        raise ValueError("a range is followed by nothing but *, and something stands before it")
    if not behind and parts[at] != "*" and len(parts) < parts_of_all:
        raise ValueError(f"an address has {parts_of_all} parts")
    head = [_number(part, base, most) for part in parts[:at]]
    if parts[at] == "*":
        first, last = 0, most
    else:
        low, _, high = parts[at].partition("-")
        first, last = _number(low, base, most), _number(high, base, most)
        if first > last:
            raise ValueError(f"{parts[at]} ends before it begins")

    def matches(host: str) -> bool:
        address = _address(host)
        if address is None or (address.version == 6) is not wide:
            return False
        numbers = [int(part, base) for part in address.exploded.split(separator)]
        return numbers[:at] == head and first <= numbers[at] <= last

    return matches


def _without_gap(text: str) -> list[str]:
    front, gap, back = text.partition("::")
    if not gap:
        return text.split(":")
    before, after = front.split(":") if front else [], back.split(":") if back else []
    missing = 8 - len(before) - len(after)
    if missing < 1 or "::" in back:
        raise ValueError(":: stands for parts that are 0, once")
    return [*before, *["0"] * missing, *after]


def _number(text: str, base: int, most: int) -> int:
    if not re.fullmatch(r"[0-9A-Fa-f]{1,4}" if base == 16 else r"[0-9]{1,3}", text) or int(text, base) > most:
        raise ValueError(f"{text!r} is no part of an address")
    return int(text, base)
