"""Apache RocketMQ 5.5.0 as Maven ships it: fetched once, started in seconds, stopped with its test.

One name server and one broker run on 127.0.0.1; a broker takes three ports (its own, two below, one above).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ApacheServers", "apache_servers", "class_path", "java", "missing"]

VERSION = "5.5.0"
ROOT = Path(__file__).parents[2]
JARS = ROOT / ".rocketbox" / "apache" / VERSION
JAVA_17 = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]
START_SECONDS = 120


def java() -> str:
    """The java program: of JAVA_HOME, else of the PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def missing() -> str | None:
    """What this machine lacks to run Apache RocketMQ, or None."""
    for program, arguments, what in (
        (java(), ["-version"], "Java 17 or newer (a JDK or JRE on the PATH or in JAVA_HOME)"),
        ("mvn", ["--version"], "Maven (mvn on the PATH)"),
    ):
        try:
            if subprocess.run([program, *arguments], capture_output=True, timeout=60, check=False).returncode == 0:
                continue
        except (OSError, subprocess.TimeoutExpired):
            pass
        return what
    return None


def class_path() -> str:
    """The jars of Apache's servers, tools and examples; Maven fetches them the first time."""
    if not (JARS / "complete").exists():
        shutil.rmtree(JARS, ignore_errors=True)
        JARS.mkdir(parents=True)
        print(f"fetching Apache RocketMQ {VERSION} through Maven into {JARS}", flush=True)
        done = subprocess.run(
            [
                "mvn",
                "-B",
                "-q",
                "-f",
                str(Path(__file__).with_name("pom.xml")),
                f"-Drocketmq.version={VERSION}",
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                f"-DoutputDirectory={JARS}",
            ],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"Maven could not fetch Apache RocketMQ {VERSION}:\n{done.stdout}{done.stderr}")
        (JARS / "complete").touch()
    return str(JARS / "*")


@dataclass(frozen=True)
class ApacheServers:
    """A running name server and broker, and where they keep their files."""

    name_server: str
    broker: str
    folder: Path

    def admin(self, *arguments: str) -> str:
        """What mqadmin prints for a command (its exit status says nothing)."""
        done = subprocess.run(
            [
                java(),
                f"-Duser.home={self.folder}",
                "-cp",
                class_path(),
                "org.apache.rocketmq.tools.command.MQAdminStartup",
                *arguments,
                "-n",
                self.name_server,
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "ROCKETMQ_HOME": str(self.folder)},
        )
        lines = (done.stdout + done.stderr).splitlines()
        return "\n".join(line for line in lines if "|-" not in line)  # without the logging library's own start


def _free_port_block() -> int:
    """A port whose neighbours two below and one above are free as well."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port > 65_000:
            continue
        try:
            for neighbour in (port - 2, port, port + 1):
                with socket.socket() as other:
                    other.bind(("127.0.0.1", neighbour))
        except OSError:
            continue
        return port


@contextmanager
def _server(folder: Path, name: str, main: str, settings: dict[str, object], heap: list[str]) -> Iterator[None]:
    configuration = folder / f"{name}.conf"
    configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [java(), *JAVA_17, *heap, f"-Duser.home={folder}", "-cp", class_path(), main, "-c", str(configuration)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ROCKETMQ_HOME": str(folder)},
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while b"boot success" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Apache's {name} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)  # another process' log offers no event to wait for
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def apache_servers(folder: Path, **broker_settings: object) -> Iterator[ApacheServers]:
    """Apache's name server and broker, with small heaps and their files below ``folder``."""
    name_server_port, broker_port = _free_port_block(), _free_port_block()
    name_server = f"127.0.0.1:{name_server_port}"
    with (
        _server(
            folder,
            "name server",
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            {
                "listenPort": name_server_port,
                "bindAddress": "127.0.0.1",
                "kvConfigPath": folder / "kv.json",
                "configStorePath": folder / "namesrv.properties",
            },
            ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC"],
        ),
        _server(
            folder,
            "broker",
            "org.apache.rocketmq.broker.BrokerStartup",
            {
                "brokerClusterName": "DefaultCluster",
                "brokerName": "broker-a",
                "brokerId": 0,
                "namesrvAddr": name_server,
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "listenPort": broker_port,
                "storePathRootDir": folder / "store",
                "storePathCommitLog": folder / "store" / "commitlog",
                "autoCreateTopicEnable": "true",
                "autoCreateSubscriptionGroup": "true",
                "enablePropertyFilter": "true",
                "diskMaxUsedSpaceRatio": 95,
                **broker_settings,
            },
            ["-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m"],
        ),
    ):
        servers = ApacheServers(name_server, f"127.0.0.1:{broker_port}", folder)
        deadline = time.monotonic() + START_SECONDS
        while "TBW102" not in servers.admin("topicList"):  # the route is known a moment after the start
            if time.monotonic() > deadline:
                raise RuntimeError(f"Apache's broker did not register:\n{servers.admin('clusterList')}")
        yield servers
