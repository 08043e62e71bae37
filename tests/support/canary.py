"""A secret planted for the whole test run, which must show up in no output of any test.

It stands in an environment variable that sets a secret key of every application; rocketbox logs at DEBUG all the time.
Looked through is what pytest captures (stdout, stderr, logs, the words of failures), what tests read from ``capsys``
and ``capfd``, and what the processes that they start write into pipes. A test in whose outputs the secret is fails.

A plugin of pytest: ``tests/conftest.py`` takes it in for the tests here.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Generator
from typing import Any

import pytest
from typer.testing import CliRunner

__all__ = ["CANARY", "VARIABLE", "look"]

VARIABLE = "ROCKETBOX_SPARK_CONF_SPARK_ROCKETBOX_CANARY_PASSWORD"
CANARY = "canary-7f3a-sings-in-no-output"

_seen: list[str] = []  # where the running test has shown it


def look(text: object, where: str) -> None:
    """Look through an output of the running test, which fails in the end if the secret is in it."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if isinstance(text, str) and CANARY in text:
        _seen.append(where)


def pytest_configure(config: pytest.Config) -> None:
    os.environ[VARIABLE] = CANARY
    logging.getLogger("rocketbox").setLevel(logging.DEBUG)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    read_outerr = pytest.CaptureFixture.readouterr
    communicate = subprocess.Popen.communicate
    invoke = CliRunner.invoke

    def looking_readouterr(self: pytest.CaptureFixture[Any]) -> Any:
        outputs = read_outerr(self)
        for name, text in zip(("stdout", "stderr"), outputs, strict=True):
            look(text, f"{name} that the test read")
        return outputs

    def looking_communicate(self: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> Any:
        outputs = communicate(self, *args, **kwargs)
        for name, text in zip(("stdout", "stderr"), outputs, strict=True):
            look(text, f"{name} of a process")
        return outputs

    def looking_invoke(self: CliRunner, *args: Any, **kwargs: Any) -> Any:
        result = invoke(self, *args, **kwargs)
        look(result.output, "the output of a command")
        return result

    patch.setattr(CliRunner, "invoke", looking_invoke)
    patch.setattr(pytest.CaptureFixture, "readouterr", looking_readouterr)
    patch.setattr(subprocess.Popen, "communicate", looking_communicate)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "teardown":
        for name, text in report.sections:  # of all its phases
            look(text, name)
    look(report.longreprtext, "the words of its failure")
    if _seen and call.when != "setup":
        where = ", ".join(dict.fromkeys(_seen))
        _seen.clear()
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} shows a secret, the value of {VARIABLE}, in: {where}"
    return report
