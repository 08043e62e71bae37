"""Keys for Spark's processes on this machine: in a file of their own, and in nothing that Spark shows.

Options of a read or write stand in plans, in Spark's UI, in its event log. So a key is no option, only the file that
has it (``credentialsFile``). Where the service has its keys from its settings or from a bean, it writes them into a
file that nobody else may read, writes it anew when they change, and removes it at its end. Pure: no Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketbox.client import Credentials, CredentialsFile, MQClientInstance

__all__ = ["handed_keys"]


@contextmanager
def handed_keys(instance: MQClientInstance) -> Iterator[str | None]:
    """The file from which Spark's processes of this machine read what ``instance`` signs with; None: it does not."""
    given = instance.options.credentials
    if given is None or isinstance(given, CredentialsFile):
        yield None if given is None else str(given.path.absolute())
        return
    folder = Path(tempfile.mkdtemp(prefix="rocketbox-keys-"))  # for its owner alone
    file = folder / "keys.json"

    def write(keys: Credentials) -> None:
        new = folder / "new.json"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as written:
            written.write(_as_json(keys))  # in no variable: what shows those of a failure shows no key
        new.replace(file)

    try:
        now = instance.remoting.credentials
        if now is not None:
            write(now)
        if instance.keys is not None:
            instance.keys.on_renewed.append(write)
        yield str(file)
    finally:
        if instance.keys is not None and write in instance.keys.on_renewed:
            instance.keys.on_renewed.remove(write)
        shutil.rmtree(folder, ignore_errors=True)


def _as_json(keys: Credentials) -> bytes:
    names = {"accessKey": keys.access_key, "secretKey": keys.secret_key, "securityToken": keys.security_token}
    said = {name: value for name, value in names.items() if value is not None}
    return json.dumps(said, ensure_ascii=False).encode()
