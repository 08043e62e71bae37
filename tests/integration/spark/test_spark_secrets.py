"""Nothing that Spark shows or logs holds a secret: its event log, the pages of its UI, what all its processes write."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
SECRETS = {
    "access control": "canary-of-the-key-4711",
    "token": "canary-of-the-token-4712",
    "refused": "canary-of-a-wrong-key-4713",
    "a setting of Spark": "canary-of-a-setting-4714",
}


def test_no_secret_is_in_what_spark_shows_or_logs_of_reads_writes_and_listeners(tmp_path: Path) -> None:
    secrets, folder = tmp_path / "secrets.json", tmp_path / "shown"
    secrets.write_text(json.dumps(SECRETS))
    folder.mkdir()
    program = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.shown_by_spark", str(folder), str(secrets)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=4 * PATIENCE,
    )  # fmt: skip
    log = program.stdout + program.stderr
    assert program.returncode == 0, log[-5_000:]
    shown = {"the log": log}
    for file in [*folder.glob("events/**/*"), *folder.glob("pages/*"), *folder.glob("[sl]*/**/*")]:
        if file.is_file() and "store" not in file.parts:
            shown[str(file.relative_to(folder))] = file.read_text("utf-8", "replace")
    own_key = (folder / "client-key.pem").read_text()
    lines_of_a_key = [line for line in own_key.splitlines() if not line.startswith("-")]
    for kind, secret in {**SECRETS, "TLS": lines_of_a_key[0]}.items():
        assert [name for name, text in shown.items() if secret in text] == [], kind
    assert_that_it_was_looked_for_in_the_right_places(shown)


def assert_that_it_was_looked_for_in_the_right_places(shown: dict[str, str]) -> None:
    pages = {text.partition("\n")[0]: text for name, text in shown.items() if name.startswith("pages/")}
    assert "rocketmq" in "".join(pages.values())
    (environment,) = (text for path, text in pages.items() if path.startswith("api/") and path.endswith("environment"))
    assert "spark.hadoop.fs.s3a.secret.key" in environment
    assert any(path.startswith("SQL/execution/?id=") for path in pages)
    events = "".join(text for name, text in shown.items() if name.startswith("events/"))
    assert '"SparkListenerSQLExecutionStart"' in events.replace("org.apache.spark.sql.execution.ui.", "")
    assert "StreamingQuery" in events
    assert len(re.findall("^refused: ", shown["the log"], re.MULTILINE)) == 3
    assert re.search(r"the keys of user adm\S* are not taken", shown["the log"])
