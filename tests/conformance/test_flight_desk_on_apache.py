"""The flight desk on Apache RocketMQ: nothing is changed but settings, such as the name server's address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
import yaml

from rocketbox.client import Credentials
from tests.conformance.acl import acl_servers
from tests.conformance.apache import NEWEST, ROOT, VERSIONS, apache_servers
from tests.conformance.secured import TlsFiles
from tests.support.broker.rights import May
from tests.support.framework.flight_desk_counts import FIRST_2000, IN_THE_LAKE

pytestmark = pytest.mark.apache

DESK = Credentials(access_key="flight-desk", secret_key="secret-of-the-flight-desk")
ITS_RIGHTS = May(
    policies={
        **{f"Topic:team%{topic}": ("Pub", "Sub", "Get") for topic in ("departures", "alerts")},
        **{f"Group:team%{group}": ("Sub",) for group in ("desk", "audit", "lake", "SPARK_LEASE_lake")},
        "Topic:%DLQ%team%desk": ("Sub", "Get"),  # the job counts what was rejected, and reads without a group
        "Group:TOOLS_CONSUMER": ("Sub",),
    }
)
EXPECTED = {
    "sent": 27_004,
    "audit: distinct rows": 27_004,
    "desk: distinct rows": 11_121,
    "desk: alerts": 639,
    "desk: rejected, in the dead-letter queue": 120,
    "lost": 0,
    "lake: rows": 27_004,
    "lake: rows with a delay": 26_483,
    "lake: messages left out": 0,
    "lake: messages kept twice": 0,
}


# The secured one below is the smoke test.
@pytest.mark.parametrize("version", VERSIONS)
def test_the_flight_desk_counts_the_same_on_apache(version: str, tmp_path: Path) -> None:
    with apache_servers(tmp_path, version, keeps_store=False) as servers:
        counts = run(tmp_path, {"NAMESRV": servers.name_server})
    assert counts == EXPECTED


@pytest.mark.smoke
def test_tls_keys_and_a_namespace_are_a_matter_of_settings(tmp_path: Path) -> None:
    tls = TlsFiles(tmp_path)
    (tmp_path / "keys.yml").write_text(f"accessKey: {DESK.access_key}\nsecretKey: {DESK.secret_key}\n")
    settings = yaml.safe_load((ROOT / "starter_examples" / "flight_desk" / "rocketbox.yaml").read_text())
    settings["rocketmq"] |= {
        "namespace": "team",
        "credentials-file": str(tmp_path / "keys.yml"),
        "tls": {
            "enable": True,
            "ca-file": str(tmp_path / "ca.pem"),
            "cert-file": str(tmp_path / "client.pem"),
            "key-file": str(tmp_path / "client-key.pem"),
        },
    }
    (tmp_path / "secured.yaml").write_text(yaml.safe_dump(settings))
    with acl_servers(tmp_path, NEWEST, tls=tls) as servers:
        anyio.run(servers.let, DESK, ITS_RIGHTS)
        environment = {"NAMESRV": servers.name_server, "ROCKETBOX_CONFIG": str(tmp_path / "secured.yaml")}
        counts = run(tmp_path, environment, "--rows=2000")
    assert counts == {**FIRST_2000, **IN_THE_LAKE}


def run(folder: Path, environment: dict[str, str], *arguments: str) -> dict[str, int]:
    """What the flight desk counts, without the redelivered, of which there is one at least."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "starter_examples.flight_desk",
            "--rocketmq.producer.send-message-timeout=12s",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, **environment, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^│ (.+?) +│ +([\d,]+) │$", done.stdout, re.MULTILINE)
    counts = {name: int(count.replace(",", "")) for name, count in rows}
    assert counts.pop("redelivered (desk and audit)") >= 1
    return counts
