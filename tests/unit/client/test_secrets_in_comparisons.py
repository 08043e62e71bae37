"""Options with secrets that a test compares: pytest tells what differs, and no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketbox.broker.options import BrokerOptions
from rocketbox.client import Credentials, TlsOptions
from rocketbox.embedded import EmbeddedOptions


def keys(secret_key: str) -> Credentials:
    return Credentials(access_key="board-of-departures", secret_key=secret_key)


def tls(key_password: str) -> TlsOptions:
    return TlsOptions(cert_file=Path("client.pem"), key_password=key_password)


def embedded(password: str) -> EmbeddedOptions:
    return EmbeddedOptions(data_dir=Path("store"), broker={"tls-server-key-password": password})


def broker(password: str) -> BrokerOptions:
    user = f'{{"username":"desk","password":"{password}"}}'
    return BrokerOptions(store_path_root_dir=Path("store"), init_authentication_user=user)


@pytest.mark.parametrize("make", [keys, tls, embedded])
def test_what_pytest_tells_of_unequal_ones_shows_no_secret(make: Any) -> None:
    one, other = make("hunter2-of-one"), make("hunter2-of-other")
    with pytest.raises(AssertionError) as caught:
        assert one == other
    assert "hunter2" not in str(caught.value)
    assert repr(one) in str(caught.value)
    assert one == make("hunter2-of-one")
    assert one != "hunter2-of-one"


def test_what_pytest_tells_of_unequal_options_of_a_broker_shows_no_secret() -> None:
    one, other = broker("hunter2-of-one"), broker("hunter2-of-other")
    with pytest.raises(AssertionError) as caught:
        assert one == other
    assert "hunter2" not in str(caught.value)
    assert "BrokerOptions(store_path_root_dir=" in str(caught.value)
    assert one == broker("hunter2-of-one")


@pytest.mark.parametrize("make", [keys, tls, broker])
def test_equal_ones_have_one_hash(make: Any) -> None:
    assert hash(make("hunter2-of-one")) == hash(make("hunter2-of-one"))
