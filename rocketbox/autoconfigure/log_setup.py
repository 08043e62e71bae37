"""Logging as ``rocketbox.logging.*`` says: levels always, a handler on stderr only where the root logger has none.

Only ``app.run()`` and the commands come here: a service that is embedded in another program keeps that one's logging.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable

from rocketbox.autoconfigure.properties import LoggingProperties
from rocketbox.boot.log_masking import extra_of, mask_handlers, mask_records

__all__ = ["JsonFormatter", "TextFormatter", "set_up_logging"]

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
TEXT_OF_PROCESS = "%(asctime)s %(levelname)-7s [%(processName)s] %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """One line of text, with the name of the process where it is not the main one, such as ``worker 2``."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        self._of_process = logging.Formatter(TEXT_OF_PROCESS)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return self._of_process.formatMessage(record) if _process_of(record) else super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, process if it has a name, logger, message, the traceback if there is one.

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
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["error"] = record.exc_text
        extra = {name: value for name, value in extra_of(record).items() if name not in line}
        return json.dumps({**line, **extra}, ensure_ascii=False, default=repr)


def _process_of(record: logging.LogRecord) -> str | None:
    return None if record.processName == "MainProcess" else record.processName


def set_up_logging(properties: LoggingProperties, *, debug: bool = False, secrets: Iterable[str] = ()) -> None:
    """Set the levels, and a handler if there is none; ``debug`` shows what rocketbox does in detail.

    ``secrets`` are masked in all that is logged in this process, by whomever.
    """
    root = logging.getLogger()
    if not root.handlers:
        own = logging.StreamHandler(sys.stderr)
        own.setFormatter(JsonFormatter() if properties.format == "json" else TextFormatter())
        root.addHandler(own)
        root.setLevel(logging.INFO)
    mask_records("", secrets, everywhere=True)
    mask_handlers(secrets)
    if debug:
        logging.getLogger("rocketbox").setLevel(logging.DEBUG)
    for name, level in properties.level.items():
        logging.getLogger("" if name == "root" else name).setLevel(level.upper())
