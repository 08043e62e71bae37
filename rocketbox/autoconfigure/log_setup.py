"""Logging as ``rocketbox.logging.*`` says: levels always, a handler on stderr only where the root logger has none.

Only ``app.run()`` and the commands come here: a service that is embedded in another program keeps that one's logging.
"""

from __future__ import annotations

import json
import logging
import sys

from rocketbox.autoconfigure.properties import LoggingProperties

__all__ = ["JsonFormatter", "set_up_logging"]

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(properties: LoggingProperties, *, debug: bool = False) -> None:
    """Set the levels, and a handler if there is none; ``debug`` shows what rocketbox does in detail."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if properties.format == "json" else logging.Formatter(TEXT))
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    if debug:
        logging.getLogger("rocketbox").setLevel(logging.DEBUG)
    for name, level in properties.level.items():
        logging.getLogger("" if name == "root" else name).setLevel(level.upper())
