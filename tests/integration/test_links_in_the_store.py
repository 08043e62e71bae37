"""Symbolic links where a file of a store belongs: nothing outside of the store is read or written through them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rocketbox.client import Producer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import BrokerError, ConfigurationError, StoreError
from rocketbox.message import Message
from tests.support.broker.wire import small_options

pytestmark = pytest.mark.anyio

LINK = "a symbolic link stands in place of the file"
MESSAGES = 3
ACL_2 = {
    "authentication_enabled": True,
    "init_authentication_user": '{"username": "administrator", "password": "secret-of-the-administrator"}',
}
FILES = [
    "commitlog/*", "consumequeue/*/*/*", "index/*", "config/topics.json", "config/authUsers.json", "lock", "checkpoint",
]  # fmt: skip


async def send(options: EmbeddedOptions) -> None:
    async with (
        EmbeddedServers(options) as servers,
        Producer("p", name_server=servers.name_server_address) as producer,
    ):
        for number in range(MESSAGES):
            await producer.send(Message("T", b"%d" % number, keys=("k",)))


def put_link(store: Path, pattern: str, outside: Path) -> tuple[Path, bytes]:
    """Where the first such file is now, in whose place there is a link to it; and what it holds."""
    path = min(each for each in store.glob(pattern) if each.is_file())
    shutil.move(path, outside)
    path.symlink_to(outside)
    return outside, outside.read_bytes()


async def start(options: EmbeddedOptions, *messages: Message) -> str:
    """What the start is refused with; nothing, if it is not, and messages can be sent."""
    try:
        async with (
            EmbeddedServers(options) as servers,
            Producer("p", name_server=servers.name_server_address) as producer,
        ):
            for message in messages:
                await producer.send(message)
            return ""
    except (StoreError, ConfigurationError, BrokerError) as error:
        return str(error)


@pytest.mark.parametrize("pattern", FILES)
async def test_a_start_is_refused_and_what_the_link_leads_to_is_untouched(pattern: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    options = small_options(store, **ACL_2) if "authUsers" in pattern else small_options(store)
    if "authUsers" in pattern:
        assert await start(options) == ""
    else:
        await send(options)
    outside, before = put_link(store, pattern, tmp_path / "outside")
    told = await start(options)
    assert LINK in told
    assert str(store) in told
    assert outside.read_bytes() == before


@pytest.mark.parametrize("name", ["abort", "config/topics.json.tmp", "config/topics.json.crc"])
async def test_nothing_is_made_where_a_link_leads_to(name: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    options = small_options(store)
    await send(options)
    (store / name).unlink(missing_ok=True)
    (store / name).symlink_to(tmp_path / "outside")
    told = await start(options, Message("U", b"a new topic"))
    assert LINK in told
    assert not (tmp_path / "outside").exists()


async def test_a_directory_may_be_a_link(tmp_path: Path) -> None:
    """A log on another disk."""
    store = tmp_path / "store"
    options = small_options(store)
    await send(options)
    shutil.move(store / "commitlog", tmp_path / "another-disk")
    (store / "commitlog").symlink_to(tmp_path / "another-disk")
    assert await start(options) == ""
