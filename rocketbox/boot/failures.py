"""The text a user sees when an application cannot start: every finding, what, where and what to do; no traceback."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rocketbox.errors import ConfigurationError, Finding, RocketBoxError

__all__ = ["MASK", "findings_of", "mask", "render_failure"]

MASK = "******"


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret in it replaced; longer ones first, so that no rest of one stays."""
    for secret in sorted({secret for secret in secrets if secret.strip()}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def findings_of(error: BaseException) -> list[Finding]:
    """What an error that ended a start is to a user; errors of a group one after the other."""
    if isinstance(error, ConfigurationError):
        return list(error.findings)
    if isinstance(error, BaseExceptionGroup):
        return [finding for inner in error.exceptions for finding in findings_of(inner)]
    text = str(error).strip()
    if isinstance(error, RocketBoxError):
        return [Finding(text)]
    name = type(error).__name__
    return [Finding(f"{name}: {text}" if text else name, None, "--debug shows the traceback")]


def render_failure(
    error: BaseException | Sequence[Finding], *, report: str | None = None, secrets: Iterable[str] = ()
) -> str:
    """``APPLICATION FAILED TO START`` with all findings; ``report`` is put behind them."""
    findings = findings_of(error) if isinstance(error, BaseException) else list(error)
    lines = ["", "APPLICATION FAILED TO START", ""]
    for number, finding in enumerate(findings, 1):
        margin = f"{number}. "
        lines.append(margin + finding.what.replace("\n", "\n" + " " * len(margin)))
        if finding.where:
            lines.append(f"   where: {finding.where}")
        if finding.fix:
            lines.append(f"   fix:   {finding.fix}")
        lines.append("")
    if report:
        lines += [report, ""]
    return mask("\n".join(lines), secrets)
