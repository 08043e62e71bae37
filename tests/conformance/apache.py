"""Apache RocketMQ as Maven ships it, in several versions: fetched once, started in seconds, stopped with its test.

One name server and one broker run on 127.0.0.1; a broker takes three ports (its own, two below, one above). Each
version runs with the jars of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = [
    "EACH_BUT_NEWEST_BETWEEN",
    "EACH_BUT_OLDEST_BETWEEN",
    "EACH_VERSION",
    "NEWEST",
    "QUICK_START",
    "SMALL_HEAP",
    "VERSIONS",
    "ApacheServers",
    "apache_broker",
    "apache_servers",
    "class_path",
    "home",
    "java",
    "maven",
    "missing",
    "mqadmin",
]

NEWEST = "5.5.0"
VERSIONS = (NEWEST, "5.3.3", "4.9.7")
EACH_VERSION = [
    pytest.param(version, marks=[] if version in (VERSIONS[0], VERSIONS[-1]) else pytest.mark.between)
    for version in VERSIONS
]
"""Parameters of tests and fixtures; ``make conformance`` leaves out the versions between newest and oldest."""
EACH_BUT_NEWEST_BETWEEN = [pytest.param(NEWEST), *(pytest.param(v, marks=pytest.mark.between) for v in VERSIONS[1:])]
"""The same where ``make conformance`` runs the newest alone: what another module tries with the oldest."""
EACH_BUT_OLDEST_BETWEEN = [
    *(pytest.param(version, marks=pytest.mark.between) for version in VERSIONS[:-1]),
    pytest.param(VERSIONS[-1]),
]
"""The oldest alone, likewise."""
WITH_EXAMPLES = (NEWEST,)  # the others' example artefacts were never published
ROOT = Path(__file__).parents[2]
JARS = ROOT / ".rocketbox" / "apache"
JAVA_17 = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # nothing runs long enough to be optimised
SMALL_HEAP = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", *QUICK_START)
START_SECONDS = 120


def java() -> str:
    """The java program: of JAVA_HOME, else of the PATH."""
    java_home = os.environ.get("JAVA_HOME")
    return str(Path(java_home) / "bin" / "java") if java_home else "java"


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


def maven(*arguments: str) -> None:
    """Run Maven; raises RuntimeError with what it printed when it fails."""
    done = subprocess.run(["mvn", "-B", "-q", *arguments], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"mvn {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def class_path(version: str = NEWEST) -> str:
    """The jars of Apache's servers and tools (and examples, where they exist); Maven fetches them the first time."""
    jars = JARS / version
    if not jars.exists():
        print(f"fetching Apache RocketMQ {version} through Maven into {jars}", flush=True)
        JARS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=JARS, prefix=f"{version}-") as folder:
            maven(
                "-f",
                str(Path(__file__).with_name("pom.xml")),
                f"-Drocketmq.version={version}",
                *(["-Pexamples"] if version in WITH_EXAMPLES else []),
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                f"-DoutputDirectory={folder}/jars",
            )
            # Moved when it is whole: what an interrupted run has fetched is never taken for complete.
            try:
                Path(folder, "jars").rename(jars)
            except OSError:
                if not jars.exists():  # else another run was quicker
                    raise
    return str(jars / "*")


def home(folder: Path) -> dict[str, str]:
    """The environment with ``folder`` as ROCKETMQ_HOME; 4.9.7 starts only if it finds its logging settings there."""
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    for program in ("namesrv", "broker", "tools"):
        (folder / "conf" / f"logback_{program}.xml").write_text("<configuration/>\n")
    return {**os.environ, "ROCKETMQ_HOME": str(folder)}


@dataclass(frozen=True)
class ApacheServers:
    """A running name server and broker, and where they keep their files."""

    name_server: str
    broker: str
    folder: Path
    version: str
    broker_process: subprocess.Popen[bytes]
    java_options: Sequence[str] = ()

    def kill_broker(self) -> None:
        """kill -9, and wait until the process is gone."""
        self.broker_process.kill()
        self.broker_process.wait()

    def admin(self, *arguments: str) -> str:
        """What mqadmin of the same version prints for a command."""
        return mqadmin(self.folder, self.version, self.name_server, *arguments, java_options=self.java_options)


def mqadmin(folder: Path, version: str, name_server: str, *arguments: str, java_options: Sequence[str] = ()) -> str:
    """What mqadmin of a version prints for a command (its exit status says nothing)."""
    done = subprocess.run(
        [
            *(java(), *QUICK_START, *java_options, f"-Duser.home={folder}", "-cp", class_path(version)),
            *("org.apache.rocketmq.tools.command.MQAdminStartup", *arguments, "-n", name_server),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=home(folder),
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
def _server(
    folder: Path,
    name: str,
    version: str,
    main: str,
    settings: dict[str, object],
    heap: Sequence[str],
    prefix: Sequence[str] = (),
    *,
    stop: signal.Signals,
) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / f"{name}.conf"
    configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(*prefix, java(), *JAVA_17, *heap, f"-Duser.home={folder}"),
                *("-cp", class_path(version), main, "-c", str(configuration)),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=home(folder),
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while b"boot success" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Apache's {name} {version} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)  # another process' log offers no event to wait for
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def apache_servers(
    folder: Path,
    version: str = NEWEST,
    *,
    heap: Sequence[str] = SMALL_HEAP,
    prefix: Sequence[str] = (),
    java_options: Sequence[str] = (),
    keeps_store: bool = True,
    host: str = "127.0.0.1",
    **broker_settings: object,
) -> Iterator[ApacheServers]:
    """Apache's name server and broker of a version, with their files below ``folder`` (the store in ``store``).

    ``heap`` are Java options of the broker, ``java_options`` those of both servers and of mqadmin, ``prefix`` words
    before the broker's command (``taskset -c 0``). Without ``keeps_store`` nobody opens the store afterwards: servers
    are killed, for a broker takes ten seconds and more to stop.
    """
    stop = signal.SIGTERM if keeps_store else signal.SIGKILL
    name_server_port = _free_port_block()
    name_server = f"{_in_address(host)}:{name_server_port}"
    with (
        _server(
            folder,
            "name server",
            version,
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            {
                "listenPort": name_server_port,
                "bindAddress": host,
                "kvConfigPath": folder / "kv.json",
                "configStorePath": folder / "namesrv.properties",
            },
            ["-Xms64m", "-Xmx256m", *QUICK_START, *java_options],
            stop=stop,
        ),
        apache_broker(
            folder, name_server, version, heap=heap, prefix=prefix, java_options=java_options, keeps_store=keeps_store,
            host=host, **broker_settings,
        ) as servers,
    ):  # fmt: skip
        yield servers


@contextmanager
def apache_broker(
    folder: Path,
    name_server: str,
    version: str = NEWEST,
    *,
    heap: Sequence[str] = SMALL_HEAP,
    prefix: Sequence[str] = (),
    java_options: Sequence[str] = (),
    keeps_store: bool = True,
    host: str = "127.0.0.1",
    **broker_settings: object,
) -> Iterator[ApacheServers]:
    """A broker that registers with a name server that runs: a further one needs a folder and a ``brokerName``."""
    broker_port = _free_port_block()
    with _server(
        folder,
        "broker",
        version,
        "org.apache.rocketmq.broker.BrokerStartup",
        {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "namesrvAddr": name_server,
            "brokerIP1": _in_address(host),
            "brokerIP2": _in_address(host),
            "bindAddress": host,
            "listenPort": broker_port,
            "storePathRootDir": folder / "store",
            "storePathCommitLog": folder / "store" / "commitlog",
            "autoCreateTopicEnable": "true",
            "autoCreateSubscriptionGroup": "true",
            "enablePropertyFilter": "true",
            "diskMaxUsedSpaceRatio": 95,
            **broker_settings,
        },
        [*heap, *java_options],
        prefix,
        stop=signal.SIGTERM if keeps_store else signal.SIGKILL,
    ) as process:
        address = f"{_in_address(host)}:{broker_port}"
        servers = ApacheServers(name_server, address, folder, version, process, java_options)
        deadline = time.monotonic() + START_SECONDS
        while not _is_routed(servers):  # a moment after the start
            if time.monotonic() > deadline:
                raise RuntimeError(f"Apache's broker did not register:\n{servers.admin('clusterList')}")
        yield servers


def _in_address(host: str) -> str:
    """The host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def _is_routed(servers: ApacheServers) -> bool:
    """Whether the name server knows the broker. Asked by our client, for each start of mqadmin takes seconds."""
    if servers.java_options:  # they say how its connections are encrypted
        return "TBW102" in servers.admin("topicList")
    # Not above: what is loaded before pytest begins it cannot rewrite, and says so of its plugin anyio.
    import anyio
    from anyio.from_thread import start_blocking_portal

    from rocketbox.client import Admin
    from rocketbox.errors import RocketBoxError

    async def ask() -> bool:
        async with Admin(name_server=servers.name_server) as admin:
            try:
                return bool(await admin.queues("TBW102"))
            except RocketBoxError:
                await anyio.sleep(0.1)  # another process offers no event to wait for
                return False

    with start_blocking_portal() as portal:
        return portal.call(ask)
