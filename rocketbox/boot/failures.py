"""The text a user sees when an application cannot start: every finding, what, where and what to do; no traceback."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rocketbox.boot.masking import mask
from rocketbox.errors import SHOW_TRACEBACK, ConfigurationError, Finding, RocketBoxError
from rocketbox.frames import raised_at
from rocketbox.safe_repr import safe_str

__all__ = ["failure_findings", "findings_of", "render_failure", "without_secrets"]


def findings_of(error: BaseException) -> list[Finding]:
    """What an error that ended a start is to a user; errors of a group one after the other."""
    if isinstance(error, ConfigurationError):
        return list(error.findings)
    if isinstance(error, BaseExceptionGroup):
        return [finding for inner in error.exceptions for finding in findings_of(inner)]
    text = safe_str(error).strip()
    if isinstance(error, RocketBoxError):
        return [Finding(text)]
    name = type(error).__name__
    return [Finding(f"{name}: {text}" if text else name, None, SHOW_TRACEBACK)]


def failure_findings(what: str, where: str | None, error: BaseException) -> list[Finding]:
    """What an error of the user's own code is to them: what failed, where that stands, and the line that raised."""
    if isinstance(error, ConfigurationError):
        return list(error.findings)
    if isinstance(error, BaseExceptionGroup):  # which code with tasks of its own raises in place of one
        return [finding for inner in error.exceptions for finding in failure_findings(what, where, inner)]
    text = safe_str(error).strip()
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    raised = raised_at(error)
    places = [where, raised and (f"raised at {raised}" if where else raised)]
    return [Finding(f"{what}: {said}", ", ".join(filter(None, places)) or None, SHOW_TRACEBACK)]


def without_secrets(findings: Iterable[Finding], secrets: Iterable[str]) -> list[Finding]:
    """The findings as they may be shown, each once: what is wrong may quote what a user's own code said."""
    known = frozenset(secrets)

    def masked(text: str | None) -> str | None:
        return text and mask(text, known)

    return list(
        dict.fromkeys(Finding(mask(each.what, known), masked(each.where), masked(each.fix)) for each in findings)
    )


def render_failure(
    error: BaseException | Sequence[Finding],
    *,
    headline: str = "APPLICATION FAILED TO START",
    report: str | None = None,
    secrets: Iterable[str] = (),
) -> str:
    """A headline with all findings; ``report`` is put behind them. Secrets are masked."""
    findings = findings_of(error) if isinstance(error, BaseException) else list(error)
    lines = ["", headline, ""]
    for number, finding in enumerate(without_secrets(findings, secrets), 1):
        margin = f"{number}. "
        lines.append(margin + finding.what.replace("\n", "\n" + " " * len(margin)))
        if finding.where:
            lines.append(f"   where: {finding.where}")
        if finding.fix:
            lines.append(f"   fix:   {finding.fix}")
        lines.append("")
    if report:
        lines += [mask(report, secrets), ""]
    return "\n".join(lines)
