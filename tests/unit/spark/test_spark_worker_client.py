"""The clients of one of Spark's processes: one for each servers that it is told, as long as somebody needs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import pytest

pytest.importorskip("pyarrow")

from rocketbox.client import Admin
from rocketbox.spark import worker_client
from rocketbox.spark.servers import Servers
from rocketbox.spark.worker_client import ClientThread, client
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.spark

SERVERS = [Servers(f"127.0.0.{number}:1") for number in range(11, 16)]  # nobody is asked anything


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_client, "_clients", {})
    yield
    for each in worker_client._clients.values():
        each.close()


def ended(thread: ClientThread) -> bool:
    thread._thread.join(PATIENCE if thread not in worker_client._clients.values() else 0)
    return not thread.alive


def test_a_process_that_is_told_other_servers_again_and_again_keeps_no_client_of_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = threading.active_count()
    clients = [client(each) for each in SERVERS]
    assert [each.alive for each in clients] == [True] * 5, "each may be asked again soon"
    assert client(SERVERS[0]) is clients[0]
    monkeypatch.setattr(worker_client, "UNUSED", 0.0)
    last = client(SERVERS[4])
    assert last is clients[4]
    assert [ended(each) for each in clients] == [True] * 4 + [False]
    again = client(SERVERS[0])
    assert again is not clients[0]
    assert again.alive
    assert ended(last)
    assert threading.active_count() == before + 1


def test_a_client_that_is_held_or_at_work_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_client, "UNUSED", 0.0)
    asked, answer = threading.Event(), anyio.Event()

    async def ask(admin: Admin) -> str:
        asked.set()
        await answer.wait()
        return "answer"

    held, other = client(SERVERS[0]), SERVERS[1]
    with held:
        client(other)
        assert held.alive
        working = threading.Thread(target=held.call, args=[ask])
        working.start()
        assert asked.wait(PATIENCE)
    client(other)
    assert held.alive
    held._portal.call(answer.set)
    working.join(PATIENCE)
    client(other)
    assert ended(held)
