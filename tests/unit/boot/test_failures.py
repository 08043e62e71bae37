"""The text of a start that failed."""

from __future__ import annotations

from rocketbox.boot.failures import render_failure
from rocketbox.errors import ConfigurationError, ConnectError, Finding


def test_all_findings_are_numbered_with_place_and_fix() -> None:
    error = ConfigurationError(
        [
            Finding("unknown key desk.grup", "rocketbox.yaml:3:5", "did you mean desk.group?"),
            Finding("no space left"),
        ]
    )
    assert render_failure(error, report="CONDITIONS REPORT") == (
        "\n"
        "APPLICATION FAILED TO START\n"
        "\n"
        "1. unknown key desk.grup\n"
        "   where: rocketbox.yaml:3:5\n"
        "   fix:   did you mean desk.group?\n"
        "\n"
        "2. no space left\n"
        "\n"
        "CONDITIONS REPORT\n"
    )


def test_secrets_are_masked_wherever_they_stand() -> None:
    finding = Finding("cannot log in with hunter2 and hunter22", "env of hunter2", "change hunter2")
    text = render_failure([finding], secrets=["hunter2", "hunter22", " "])
    assert "hunter" not in text
    assert "cannot log in with ****** and ******" in text


def test_other_errors_are_findings_too() -> None:
    group = ExceptionGroup("start", [ConnectError("ns:9876", "refused"), ValueError("odd"), KeyError()])
    text = render_failure(group)
    assert "1. cannot connect to ns:9876: refused\n" in text
    assert "2. ValueError: odd\n   fix:   --debug shows the traceback\n" in text
    assert "3. KeyError\n" in text
    assert "Traceback" not in text
