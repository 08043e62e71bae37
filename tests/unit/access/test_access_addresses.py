"""Which addresses a pattern of ``plain_acl.yml`` or a source of a policy means."""

from __future__ import annotations

import pytest

from rocketbox.access.addresses import host_of, plain_match, source_match


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", ["10.0.0.1", "::1"], []),
        ("*.*.*.*", ["10.0.0.1"], []),
        ("", [], ["10.0.0.1", "::1"]),
        ("192.168.0.1", ["192.168.0.1", "::ffff:192.168.0.1"], ["192.168.0.10", "192.168.0.2", "unknown"]),
        ("192.168.0.{1,5}", ["192.168.0.1", "192.168.0.5"], ["192.168.0.2", "192.168.0.15"]),
        ("192.168.0.1,10.0.0.5", ["192.168.0.1", "10.0.0.5"], ["192.168.0.5"]),
        ("192.168.*", ["192.168.0.1", "192.168.255.255"], ["192.169.0.1", "192.16.8.1"]),
        ("192.168.*.*", ["192.168.7.1"], ["192.167.7.1"]),
        ("192.168.1-10.*", ["192.168.1.9", "192.168.10.0"], ["192.168.11.1", "192.168.0.1", "192.168.100.1"]),
        ("192.168.0.10-20", ["192.168.0.10", "192.168.0.20"], ["192.168.0.9", "192.168.0.21", "192.168.0.100"]),
        ("1.2.*", ["1.2.3.4"], ["1.20.3.4", "11.2.3.4"]),
        ("5::7:6:1-200:*", ["5::7:6:1:1", "5:0:0:0:7:6:200:ffff"], ["5::7:6:201:1", "5::7:7:1:1", "5.7.6.1"]),
        ("2001:db8::1", ["2001:DB8:0:0::1", "2001:db8::1%eth0"], ["2001:db8::2", "10.0.0.1"]),
        ("fe80::{1,2}", ["fe80::1"], ["fe80::3"]),
        ("::ffff:10.0.0.1", ["10.0.0.1", "::ffff:10.0.0.1"], ["10.0.0.2"]),
    ],
)
def test_patterns_of_accounts(pattern: str, inside: list[str], outside: list[str]) -> None:
    match = plain_match(pattern)
    assert [host for host in inside if not match(host)] == []
    assert [host for host in outside if match(host)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "10.0.0", "10.0.0.256", "10.0.0.1.*", "*.10.0.1", "10.*.0.1", "10.0.0.20-10", "10.0.0.-5", "10.0.0.{300}",
        "10.0.{1,2}.1", "{1,2}", "10.0.0.1-2-3", "host", "10.0.0.1;10.0.0.2", "1.2.3-5", "::1-2::",
        "٣.0.0.*", "1" * 500,
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises((ValueError, StopIteration)):
        plain_match(pattern)


def test_sources_of_policies_are_addresses_and_networks() -> None:
    assert source_match("10.1.0.0/16")("10.1.255.255")
    assert not source_match("10.1.0.0/16")("10.2.0.0")
    assert source_match("10.1.2.3/16")("10.1.0.1"), "Java masks the address too"
    assert source_match("2001:db8::/32")("2001:db8::1")
    assert not source_match("0.0.0.0/0")("2001:db8::1")
    assert not source_match("10.0.0.1")("no address")
    for mapped in ("::ffff:10.1.0.0/112", "::ffff:10.1.2.3"):
        assert source_match(mapped)("10.1.2.3"), "a denial for it would be none"
        assert not source_match(mapped)("10.2.2.3")
    for wrong in ("10.0.0.0/33", "host", "", "10.0.0.1-2"):
        with pytest.raises(ValueError, match=r"\w"):
            source_match(wrong)


def test_hosts_of_addresses() -> None:
    assert [host_of(each) for each in ("10.0.0.1:9876", "[::1]:9876", "unknown:0")] == ["10.0.0.1", "::1", "unknown"]
