"""A child of fork that has its parent's open store: it refuses, and the parent's files stay as they are."""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.errors import StoreError, StoreFailedError, StoreLockedError
from tests.support.store.store_tools import SMALL, message, numbers, put_all

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of forks with threads


def in_child(do: Callable[[], None]) -> None:
    """Run it in a child of this process; raises what failed there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                do()
            except BaseException:
                os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    assert said == b"", said.decode()


def digest(root: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*") if path.is_file()}


async def test_a_child_of_fork_can_neither_put_nor_read_nor_stop_the_parents_store(tmp_path: Path) -> None:
    async with MessageStore(tmp_path, SMALL) as store:
        places = await put_all(store, *[message(number) for number in range(30)])
        await anyio.lowlevel.checkpoint()
        before = digest(tmp_path)

        def child() -> None:
            with pytest.raises(StoreFailedError, match=f"opened by process {os.getppid()}"):
                store.put(message(30))
            for call in (lambda: store.get("orders", 0, 0), lambda: store.read(places[1])):
                with pytest.raises(StoreError, match="open another one in the child"):
                    call()
            told: list[BaseException | None] = []
            store.when_durable(places[-1] + 1, told.append)
            assert isinstance(told[0], StoreFailedError)
            with pytest.raises(StopIteration):
                store.__aexit__(None, None, None).send(None)
            with pytest.raises(StoreLockedError):
                store.__aenter__().send(None)
            held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd_is_open(fd)]
            assert [path for path in held if path.startswith(str(tmp_path))] == []

        in_child(child)
        assert digest(tmp_path) == before
        assert (tmp_path / "abort").exists()
        await put_all(store, message(30))
        assert numbers(store) == list(range(31))
    assert not (tmp_path / "abort").exists()
    async with MessageStore(tmp_path, SMALL) as store:
        assert numbers(store) == list(range(31))


def fd_is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


async def test_the_parent_keeps_its_lock_and_a_child_may_open_another_store(tmp_path: Path) -> None:
    async with MessageStore(tmp_path / "parents", SMALL) as store:
        await put_all(store, message(0))

        async def open_both() -> None:
            with pytest.raises(StoreLockedError):
                async with MessageStore(tmp_path / "parents", SMALL):
                    pass
            async with MessageStore(tmp_path / "childs", SMALL) as own:
                await put_all(own, message(1))
                assert numbers(own) == [1]

        def child() -> None:
            import asyncio
            import threading

            asyncio._set_running_loop(None)
            failed: list[BaseException] = []

            def run() -> None:
                try:
                    anyio.run(open_both)
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            thread.join(20)
            assert not thread.is_alive()
            assert failed == [], failed

        in_child(child)
        assert numbers(store) == [0]
