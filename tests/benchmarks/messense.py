"""The neighbour: ``rocketmq`` 0.4.4 of PyPI (messense), Python over the C++ client, which this process measures.

``python messense.py LOAD --name-server ADDRESS --topic TOPIC --messages N --warm-up N [--cpu N]`` with the package on
the path prints one line of JSON with what the messages behind the warm-up cost. ``package()`` installs it once, in a
folder of its own: it is no dependency of ours. It has neither transactions nor requests, and for Linux on x86-64 only.

Source: the package's ``client.py``, whose calls of the library let other threads run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["MESSENSE", "VERSION", "measure_messense", "package"]

VERSION = "0.4.4"
BODY = b"x" * 1024
BATCH = 32
SECONDS = 600
TRIES = 50
FOLDER = Path(__file__).parents[2] / ".rocketbox" / f"messense-{VERSION}"


def _message(library: Any, topic: str, number: int) -> Any:
    message = library.Message(topic)
    message.set_tags("A")
    message.set_keys(f"k{number}")
    message.set_body(BODY)
    return message


def _send_sync(producer: Any, message: Any) -> None:
    """While its client reads a route anew, each 30 seconds, its other threads may see none."""
    failure = import_module("rocketmq.exceptions").ProducerException
    for tries_left in reversed(range(TRIES)):
        try:
            producer.send_sync(message)
            break
        except failure as error:
            if not tries_left or "No route info" not in str(error):
                raise
            time.sleep(0.1)


def _in_threads(threads: int, library: Any, producer: Any, topic: str, messages: int) -> None:
    numbers, lock = iter(range(messages)), threading.Lock()
    failed: list[BaseException] = []

    def next_number() -> int | None:
        with lock:
            return next(numbers, None)

    def send_all() -> None:
        try:
            while (number := next_number()) is not None:
                _send_sync(producer, _message(library, topic, number))
        except BaseException as error:
            failed.append(error)

    each = [threading.Thread(target=send_all) for _ in range(threads)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    if failed:
        raise failed[0]


def _one_way(library: Any, producer: Any, topic: str, messages: int) -> None:
    for number in range(messages):
        producer.send_oneway(_message(library, topic, number))
    producer.send_sync(_message(library, topic, messages))  # behind all of them


def _batches(library: Any, producer: Any, topic: str, messages: int) -> None:
    for first in range(0, messages, BATCH):
        producer.send_batch([_message(library, topic, first + index) for index in range(BATCH)])


Load = Callable[[Any, Any, str, int], None]

MESSENSE: dict[str, Load] = {
    "messense send, 8 threads": partial(_in_threads, 8),
    "messense send, 20 threads": partial(_in_threads, 20),
    "messense one-way": _one_way,
    "messense batch of 32": _batches,
}
"""Its sends from 8 threads are the cheapest that it has for messages on their own."""


def package() -> str | None:
    """The folder of the package, which pip installs there at the first time; None, and why is printed: it cannot."""
    if not FOLDER.exists():
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as scratch:
            target = Path(scratch, "package")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
            done = subprocess.run(
                [*command, f"--target={target}", f"rocketmq=={VERSION}"], capture_output=True, text=True, check=False
            )
            if done.returncode:
                print(f"messense is not measured: it cannot be installed:\n{done.stderr}", file=sys.stderr)
                return None
            target.rename(FOLDER)
    return str(FOLDER)


def measure_messense(
    name: str, folder: str, name_server: str, topic: str, messages: int, warm_up: int
) -> dict[str, float]:
    """What a load cost: ``seconds``, ``cpu`` and ``messages``."""
    with tempfile.TemporaryDirectory() as home:  # it writes logs there
        done = subprocess.run(
            [sys.executable, __file__, name, f"--name-server={name_server}", f"--topic={topic}"]
            + [f"--messages={messages}", f"--warm-up={warm_up}"]
            + (["--cpu=0"] if (os.cpu_count() or 1) > 1 else []),
            env={**os.environ, "PYTHONPATH": folder, "HOME": home},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("load", choices=MESSENSE)
    for name in ("name-server", "topic"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("messages", "warm-up"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--cpu", type=int)
    arguments = parser.parse_args()
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    library = import_module("rocketmq.client")
    producer = library.Producer("bench", timeout=30_000)
    producer.set_namesrv_addr(arguments.name_server)
    producer.start()
    send = MESSENSE[arguments.load]
    producer.send_sync(_message(library, arguments.topic, 0))  # makes the topic
    send(library, producer, arguments.topic, arguments.warm_up)
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    send(library, producer, arguments.topic, arguments.messages)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": seconds, "cpu": cpu, "messages": arguments.messages}), flush=True)
    os._exit(0)  # its destructors may hang


if __name__ == "__main__":
    main()
