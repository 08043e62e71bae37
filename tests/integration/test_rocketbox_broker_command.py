"""``rocketbox broker`` as scripts use it: the ready line, a clean stop, and errors that say what to do."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import anyio
import pytest

from rocketbox.clock import RealClock
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from tests.support.framework.services import send_until_it_ends
from tests.support.waiting import PATIENCE

READY = re.compile(r"ready name-server=(127\.0\.0\.1:\d+) broker=(127\.0\.0\.1:\d+)\n")
SMALL = ["--mapped-file-size-commit-log=1048576", "--max-message-size=100KB", "--max-index-num=1000",
         "--max-hash-slot-num", "500", "--allocate-ahead=0"]  # fmt: skip


def command(directory: Path, *arguments: str) -> list[str]:
    return [
        sys.executable, "-c", "from rocketbox.cli.app import main; main()", "broker", "--data-dir", str(directory),
        *arguments,
    ]  # fmt: skip


async def ask(name_server: str, broker: str) -> tuple[RemotingCommand, RemotingCommand]:
    """The answers to a route request and a send."""
    async with RemotingClient(clock=RealClock()) as client:
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        route = await client.request(name_server, request, timeout=PATIENCE)
        send = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {"b": "TBW102", "e": "0"}, b"x")
        return route, await client.request(broker, send, timeout=PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_that_it_is_ready_and_stops_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    arguments = ["--port", "0", "--name-server-port", "0", "--broker-name=mine", *SMALL]
    with subprocess.Popen(
        command(tmp_path, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready = READY.fullmatch(line)
            assert ready is not None, line
            route, sent = anyio.run(ask, ready[1], ready[2])
            assert route.code == 0
            assert ready[2].encode() in route.body
            assert b'"mine"' in route.body
            assert sent.code == 0
            process.send_signal(number)
            rest, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert rest == ""
    assert "rocketbox broker stops" in errors
    assert f"rocketbox broker runs on {'uvloop' if find_spec('uvloop') else 'asyncio'}" in errors
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "commitlog" / f"{0:020}").stat().st_size == 1048576


def failure(directory: Path, *arguments: str) -> str:
    done = subprocess.run(command(directory, *arguments), check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = failure(tmp_path, "--port", str(port), "--name-server-port", "0", *SMALL)
    assert f"--port: cannot listen on 127.0.0.1:{port}" in text
    assert "0 takes a free one" in text


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    text = failure(tmp_path, "--flush-disk-typ=ASYNC_FLUSH", "--max-message-size=huge", "--host=10.0.0.1")
    assert "there is no setting --flush-disk-typ" in text
    assert "did you mean --flush-disk-type?" in text
    assert "--max-message-size is 'huge'" in text
    assert "--host is 10.0.0.1" in text
    assert not (tmp_path / "commitlog").exists()


HANGING = """
import sys, threading
from rocketbox.storage import file_system
def hang(file):
    print("the disk hangs", file=sys.stderr, flush=True)
    threading.Event().wait()
from rocketbox.cli.app import main
{when}
main()
"""
AT_THE_START = "file_system._RealFile.sync = hang"
WHEN_IT_STOPS = """
import rocketbox.cli.broker as command
class Servers(command.EmbeddedServers):
    async def __aexit__(self, *error):
        file_system._RealFile.sync = hang
        return await super().__aexit__(*error)
command.EmbeddedServers = Servers
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("when", [AT_THE_START, WHEN_IT_STOPS])
def test_a_second_signal_ends_a_broker_whose_disk_hangs(tmp_path: Path, when: str, number: signal.Signals) -> None:
    arguments = [*command(tmp_path, "--port", "0", "--name-server-port", "0", *SMALL)]
    arguments[2] = HANGING.format(when=when)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        killer = threading.Timer(PATIENCE, process.kill)
        killer.start()
        try:
            if when == WHEN_IT_STOPS:
                assert process.stdout.readline().startswith("ready ")
                process.send_signal(number)
            while "the disk hangs" not in (line := process.stderr.readline()):
                assert line, "it ended before its disk hung"
            if when == AT_THE_START:
                process.send_signal(number)
                while "once more ends it at once" not in (line := process.stderr.readline()):
                    assert line, "it ended at the first signal"
            assert process.poll() is None
            send_until_it_ends(process, number)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            killer.cancel()
            process.kill()
    assert process.returncode == 128 + number
    assert f"{number.name} again" in errors
    assert "Traceback" not in errors


def test_a_start_that_nobody_can_hear_of_says_so(tmp_path: Path) -> None:
    arguments = command(tmp_path, "--port", "0", "--name-server-port", "0", *SMALL)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            arguments, check=False, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=PATIENCE
        )
    finally:
        os.close(writer)
    assert done.returncode == 1
    assert "the line with its addresses cannot be written to standard output" in done.stderr
    assert "Broken pipe" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "abort").exists()
