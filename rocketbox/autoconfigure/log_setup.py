"""Logging as ``rocketbox.logging.*`` says: levels always, a handler on stderr only where the root logger has none.

Only ``app.run()`` and the commands come here: a service that is embedded in another program keeps that one's logging.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable

from rocketbox.autoconfigure.properties import LoggingProperties
from rocketbox.boot.log_masking import extra_of, mask_handlers, mask_records
from rocketbox.client.middleware import ConsumeContext
from rocketbox.safe_repr import LONGEST_SAID, one_line, safe_repr
from rocketbox.template.unawaited import current_call

__all__ = ["JsonFormatter", "TextFormatter", "handled_message", "set_up_logging"]

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
CONTINUED = "  "  # before each further line of a record
COLOURS = {logging.DEBUG: 2, logging.WARNING: 33, logging.ERROR: 31, logging.CRITICAL: 31}  # as terminals have them
TEXT_OF_PROCESS = "%(asctime)s %(levelname)-7s [%(processName)s] %(name)s: %(message)s"

_C1 = range(0x7F, 0xA0)  # with DEL; 0x9B alone is what "ESC [" is
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85"  # as str.splitlines has them
_ORDERS = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *_C1) if chr(code) not in f"\t{_LINE_ENDS}"}
_UNSEEN_IN_JSON = {code: f"\\u{code:04x}" for code in (*_C1, 0x2028, 0x2029)}  # json.dumps escapes those below


class TextFormatter(logging.Formatter):
    """One line of text, with the name of the process where it is not the main one, such as ``worker 2``.

    Further lines, of a traceback or of what somebody has sent, are indented: none looks like a record. What a
    terminal would obey, such as to wipe out what it shows, is escaped, whoever logs it.
    What the code of a handler logs ends with the message that it handles. ``colour``: levels have one.
    """

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__(TEXT)
        self._of_process = logging.Formatter(TEXT_OF_PROCESS)
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        first, *more = super().format(record).translate(_ORDERS).splitlines() or [""]
        if self._colour and (code := COLOURS.get(record.levelno)):
            first = first.replace(record.levelname, f"\x1b[{code}m{record.levelname}\x1b[0m", 1)
        return "\n".join((first, *(CONTINUED + line for line in more)))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = self._of_process.formatMessage(record) if _process_of(record) else super().formatMessage(record)
        handled = None if record.name.startswith("rocketbox.") else handled_message()
        if not handled:
            return line
        return f"{line} [{', '.join(f'{name} {one_line(str(value))}' for name, value in handled.items())}]"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, process if it has a name, logger, message, the traceback if there is one.

    In a handler ``group``, ``topic``, ``msg_id`` and ``keys`` say which message it handles (``messages``, of a batch).
    Fields of ``extra=`` follow, as they are where JSON can say them, else as ``repr``; one that has the name of another
    is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            **({"process": process} if (process := _process_of(record)) else {}),
            "logger": record.name,
            "message": record.getMessage(),
            **(handled_message() or {}),
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["error"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        extra = {name: value for name, value in extra_of(record).items() if name not in line}
        try:
            return _as_json({**line, **extra})
        except _NO_JSON:
            return _as_json({**line, **{name: _sayable(value) for name, value in extra.items()}})


_NO_JSON = (TypeError, ValueError, RecursionError)  # keys that are no text, NaN, a list that holds itself


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=safe_repr).translate(_UNSEEN_IN_JSON)


def _sayable(value: object) -> object:
    try:
        _as_json(value)
    except _NO_JSON:
        return safe_repr(value)
    return value


def handled_message() -> dict[str, object] | None:
    """Which message is handled by the code that runs here, a handler's; None elsewhere."""
    context = getattr(current_call.get(), "about", None)
    if not isinstance(context, ConsumeContext) or not context.messages:
        return None
    first = context.messages[0]
    handled: dict[str, object] = {"group": context.consumer_group, "topic": first.topic}
    if len(context.messages) > 1:
        return {**handled, "messages": len(context.messages)}
    handled["msg_id"] = first.msg_id[:LONGEST_SAID]
    if first.keys:
        handled["keys"] = " ".join(first.keys)[:LONGEST_SAID]
    return handled


def _process_of(record: logging.LogRecord) -> str | None:
    return None if record.processName == "MainProcess" else record.processName


def set_up_logging(properties: LoggingProperties, *, debug: bool = False, secrets: Iterable[str] = ()) -> None:
    """Set the levels, and a handler if there is none; ``debug`` shows what rocketbox does in detail.

    ``secrets`` are masked in all that is logged in this process, by whomever.
    """
    root = logging.getLogger()
    if not root.handlers:
        own = logging.StreamHandler(sys.stderr)
        colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        own.setFormatter(JsonFormatter() if properties.format == "json" else TextFormatter(colour=colour))
        root.addHandler(own)
        root.setLevel(logging.INFO)
    mask_records("", secrets, everywhere=True)
    mask_handlers(secrets)
    if debug:
        logging.getLogger("rocketbox").setLevel(logging.DEBUG)
    for name, level in properties.level.items():
        logging.getLogger("" if name == "root" else name).setLevel(level.upper())
