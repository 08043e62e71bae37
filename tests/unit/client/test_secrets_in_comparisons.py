"""Options with secrets that a test compares: pytest tells what differs, and no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketbox.client import Credentials, TlsOptions


def keys(secret_key: str) -> Credentials:
    return Credentials(access_key="board-of-departures", secret_key=secret_key)


def tls(key_password: str) -> TlsOptions:
    return TlsOptions(cert_file=Path("client.pem"), key_password=key_password)


@pytest.mark.parametrize("make", [keys, tls])
def test_what_pytest_tells_of_unequal_ones_shows_no_secret(make: Any) -> None:
    one, other = make("hunter2-of-one"), make("hunter2-of-other")
    with pytest.raises(AssertionError) as caught:
        assert one == other
    assert "hunter2" not in str(caught.value)
    assert repr(one) in str(caught.value)
    assert one == make("hunter2-of-one")
    assert hash(one) == hash(make("hunter2-of-one"))
    assert one != "hunter2-of-one"
