"""Keys for Spark's processes on this machine: in a file of their own, and in nothing that Spark shows.

Options of a read or write stand in plans, in Spark's UI, in its event log. So a key is no option, only the file that
has it (``credentialsFile``). Where the service has its keys from its settings or from a bean, it writes them into a
file that nobody else may read, writes it anew when they change, and removes it at its end. Its folder is locked as long
as the process lives: what a process has left that was killed is removed by the next one. Pure: no Spark.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rocketbox.client import Credentials, CredentialsFile, MQClientInstance
from rocketbox.errors import CredentialsError

__all__ = ["handed_keys"]

_log = logging.getLogger(__name__)

PREFIX = "rocketbox-spark-keys-"  # of folders that are locked by their owners from the beginning


@contextmanager
def handed_keys(instance: MQClientInstance) -> Iterator[str | None]:
    """The file from which Spark's processes of this machine read what ``instance`` signs with; None: it does not.

    Raises OSError when it cannot be written.
    """
    _remove_what_is_left()
    given = instance.options.credentials
    if given is None or isinstance(given, CredentialsFile):
        yield None if given is None else str(given.path.absolute())
        return
    with _own_folder() as folder:
        file = folder / "keys.json"

        def write(keys: Credentials) -> None:
            new = folder / "new.json"
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as written:
                written.write(_as_json(keys))  # in no variable: what shows those of a failure shows no key
            new.replace(file)

        def write_anew(keys: Credentials) -> None:
            try:
                write(keys)
            except OSError as error:  # the client goes on with them, and tries this again
                reason = error.strerror or type(error).__name__
                raise CredentialsError(f"the keys for Spark's processes cannot be written: {reason}: {file}") from None

        try:
            now = instance.remoting.credentials
            if now is not None:
                write(now)
            if instance.keys is not None:
                instance.keys.on_renewed.append(write_anew)
            yield str(file)
        finally:
            if instance.keys is not None and write_anew in instance.keys.on_renewed:
                instance.keys.on_renewed.remove(write_anew)


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder for its owner alone, locked by this process until it is removed."""
    folder = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks: nobody takes it for left behind there
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = folder.rename(folder.with_name(folder.name.removeprefix(".")))  # where others look, locked by now
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_what_is_left() -> None:
    """Remove the folders of this user's processes that have ended without removing theirs."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # another user's, or removed just now
            continue
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
            _log.info("removed %s: keys for Spark that a process has left, which was killed", folder)
        except OSError as error:
            if not isinstance(error, BlockingIOError):  # its owner lives
                _log.warning("%s, where a process that was killed has left keys, is not removed: %s", folder, error)
        finally:
            os.close(descriptor)


def _as_json(keys: Credentials) -> bytes:
    names = {"accessKey": keys.access_key, "secretKey": keys.secret_key, "securityToken": keys.security_token}
    said = {name: value for name, value in names.items() if value is not None}
    return json.dumps(said, ensure_ascii=False).encode()
