"""The tables of a broker on disk: ``config/*.json``, each with the version before it beside it as ``.bak``.

Holds reading and replacing the texts; what they mean is left to the tables that own them.

Source: Apache RocketMQ 5.x ``ConfigManager``, ``MixAll.string2File``.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from rocketbox.broker.store.storage import Storage
from rocketbox.errors import StoreError
from rocketbox.protocol.bodies import loads_loose

__all__ = ["ConfigFile"]

_log = logging.getLogger(__name__)


class ConfigFile:
    """One such file. Any thread may persist; one at a time does."""

    def __init__(self, path: Path, storage: Storage) -> None:
        self.path = path
        self._storage = storage
        self._guard = threading.Lock()

    def load(self) -> str | None:
        """The text, which is JSON as Apache writes it; that of ``.bak`` if the file is missing or damaged.

        None when there is neither. Raises StoreError when what there is cannot be read: no table is emptied silently.
        """
        wrong: list[str] = []
        for path in (str(self.path), f"{self.path}.bak"):
            if not self._storage.exists(path):
                continue
            file = self._storage.open(path)
            data = file.read(0, file.size())
            file.close()
            try:
                text = data.decode()
                if not isinstance(loads_loose(text), dict):
                    raise ValueError("it is not a JSON object")
            except (ValueError, RecursionError) as error:
                wrong.append(f"{path} ({error})")
            else:
                if wrong:
                    _log.warning("%s is damaged; what it held one version before is used: %s", self.path, path)
                return text
        if wrong:
            raise StoreError(
                f"cannot read {' nor '.join(wrong)}; restore the file from a copy, or remove it to "
                "begin without what it held"
            )
        return None

    def persist(self, text: str) -> None:
        """Replace the text; after a crash either the old or the new one is there."""
        path, backup, fresh = str(self.path), f"{self.path}.bak", f"{self.path}.tmp"
        directory = str(self.path.parent)
        with self._guard:
            self._storage.make_directories(directory)
            file = self._storage.open(fresh, create=True)
            file.truncate(0)
            file.write(0, [text.encode()])
            file.sync()
            file.close()
            if self._storage.exists(path):
                self._storage.rename(path, backup)
            self._storage.rename(fresh, path)
            self._storage.sync_directory(directory)
