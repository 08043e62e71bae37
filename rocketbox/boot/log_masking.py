"""Secrets in logs: records are masked when they are made, so that no handler, of whoever it is, gets one with a secret.

A service masks what rocketbox's own loggers say, wherever it runs. What other loggers of the process say is masked for
a program that is nothing but the service, and where ``app.mask_logs()`` asks for it. Fields that are added to a record
by ``extra=`` come after that: they are masked in handlers that have a :class:`MaskingFilter`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rocketbox.boot.masking import mask
from rocketbox.safe_repr import safe_repr

__all__ = [
    "MaskingFilter",
    "forget_with_the_next",
    "mask_handlers",
    "mask_records",
    "masks_everywhere",
    "thread_failures_logged",
]

_log = logging.getLogger(__name__)

OWN = "rocketbox"


@dataclass
class _Known:
    service: str
    secrets: frozenset[str]
    everywhere: bool
    ended: bool = False


_known: dict[object, _Known] = {}  # by their owner; what is logged after its end may still quote them
_make_record: Any = None


def mask_records(
    service: str, secrets: Iterable[str], *, everywhere: bool = False, owner: object | None = None
) -> None:
    """Mask these secrets in all records of rocketbox's loggers from now on; ``everywhere``: in those of all loggers.

    They take the place of those that were named before by the same ``owner`` (the service, where none is given), and by
    owners of a service of that name which have ended: several of one name may run at the same time.
    """
    global _make_record
    _known[service if owner is None else owner] = _Known(service, frozenset(secrets), everywhere)
    for other, known in list(_known.items()):
        if known.ended and known.service == service:
            _known.pop(other, None)
    if _make_record is None:
        _make_record = logging.getLogRecordFactory()
        logging.setLogRecordFactory(_make_masked)


def masks_everywhere() -> bool:
    """Whether somebody has all loggers of this process masked."""
    return any(known.everywhere for known in tuple(_known.values()))


def forget_with_the_next(owner: object) -> None:
    """Mask an owner's secrets no longer than until the next one of its service comes."""
    if owner in _known:
        _known[owner].ended = True


def mask_handlers(secrets: Iterable[str]) -> None:
    """Mask these secrets, and all that are masked everywhere, in all that the handlers of the root logger get."""
    everywhere = [each.secrets for each in tuple(_known.values()) if each.everywhere]
    masking = MaskingFilter(frozenset(secrets).union(*everywhere))
    for handler in logging.getLogger().handlers:
        masking.install(handler)


@contextmanager
def thread_failures_logged() -> Iterator[None]:
    """What ends a thread inside is logged, so that secrets in it are masked; Python itself would write it to stderr.

    What is raised where nobody can be told (``__del__``) is written to the process's stderr, as Python does, and
    masked: the collector may raise it in the middle of anything, also of a logging handler that holds a lock.

    A ``threading.excepthook`` or ``sys.unraisablehook`` of somebody's stays.
    """
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _log_failure
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _write_unraisable
    try:
        yield
    finally:
        if threading.excepthook is _log_failure:
            threading.excepthook = threading.__excepthook__
        if sys.unraisablehook is _write_unraisable:
            sys.unraisablehook = sys.__unraisablehook__


def _log_failure(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_value is not None and not isinstance(failure.exc_value, SystemExit):  # as Python does
        name = failure.thread.name if failure.thread is not None else "that has ended"
        _log.error("thread %s failed", name, exc_info=failure.exc_value)


def _write_unraisable(failure: sys.UnraisableHookArgs) -> None:
    """Takes no lock and raises nothing: whom it interrupts may hold any lock, and Python would show what it raises."""
    with suppress(Exception):
        kind, error = failure.exc_type, failure.exc_value
        lines = [f"{failure.err_msg or 'Exception ignored in'}: {safe_repr(failure.object)}\n"]
        if error is not None:
            lines += traceback.format_exception(kind, error, failure.exc_traceback)
        else:
            lines.append(f"{kind.__qualname__}\n")
        known = frozenset[str]().union(*(each.secrets for each in tuple(_known.values())))
        if sys.__stderr__ is not None:  # else its number may be that of another file by now
            os.write(sys.__stderr__.fileno(), mask("".join(lines), known).encode(errors="backslashreplace"))


def _make_masked(*args: Any, **kwargs: Any) -> logging.LogRecord:
    record: logging.LogRecord = _make_record(*args, **kwargs)
    name = record.name or ""
    own = name == OWN or name.startswith(OWN + ".")
    for known in tuple(_known.values()):
        if (own or known.everywhere) and known.secrets:
            _scrub(record, known.secrets)
    return record


def _scrub(record: logging.LogRecord, secrets: frozenset[str]) -> None:
    message = _message_of(record)
    if message is None:  # a handler writes what it cannot make a message of
        record.msg, record.args = _masked(record.msg, secrets), _masked_arguments(record.args, secrets)
    elif (masked := mask(message, secrets)) != message:
        record.msg, record.args = masked, ()
    if record.stack_info and (masked := mask(record.stack_info, secrets)) != record.stack_info:
        record.stack_info = masked
    written = record.exc_text  # another handler may have put it into words already
    if not written and record.exc_info and record.exc_info[1] is not None:
        written = "".join(traceback.format_exception(*record.exc_info)).rstrip()
    if written and (masked := mask(written, secrets)) != written:
        record.exc_text = masked  # formatters take it; those that write one themselves have nothing to write it from
        record.exc_info = None

    for attribute in _NAMES:
        name = getattr(record, attribute, None)
        if isinstance(name, str) and (masked := _masked_name(name, secrets)) != name:
            setattr(record, attribute, masked)


_NAMES = ("name", "threadName", "processName", "taskName")  # a program may name loggers and threads after what they do


@lru_cache(maxsize=1024)  # there are few of them, and each stands in very many records
def _masked_name(name: str, secrets: frozenset[str]) -> str:
    return mask(name, secrets)


def _message_of(record: logging.LogRecord) -> str | None:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit: the handler tells of it in its own way
        return None


def _masked(value: Any, secrets: frozenset[str]) -> Any:
    """A value as it is, or as text if secrets are to be taken out of that."""
    text = value if isinstance(value, str) else safe_repr(value)
    masked = mask(text, secrets)
    return value if masked == text else masked


def _masked_arguments(arguments: Any, secrets: frozenset[str]) -> Any:
    if isinstance(arguments, Mapping):
        return {name: _masked(value, secrets) for name, value in arguments.items()}
    return tuple(_masked(value, secrets) for value in arguments or ())


class MaskingFilter(logging.Filter):
    """Takes secrets out of what a logging handler gets: message, arguments, traceback, and fields of ``extra=``.

    One handler has one of them, :meth:`install` sees to that; a record in which there is no secret stays as it is.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__()
        self.secrets = frozenset(secrets)

    def install(self, handler: logging.Handler) -> None:
        """Put it into a handler, in the place of an earlier one."""
        for earlier in [each for each in handler.filters if isinstance(each, MaskingFilter)]:
            handler.removeFilter(earlier)
        handler.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if self.secrets:
            _scrub(record, self.secrets)
            for name, value in extra_of(record).items():
                if (masked := _masked(value, self.secrets)) is not value:
                    setattr(record, name, masked)
        return True


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that ``extra=`` has added to a record."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
