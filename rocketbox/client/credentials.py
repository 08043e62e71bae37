"""Keys that change while a client runs: who gives them, and the task that has new ones before the old ones end.

A client has one of three: ``Credentials``, which stay; a :class:`CredentialsFile`, which is read again and again; or a
:class:`CredentialsProvider` of the user's, which is asked. Nobody who sends or consumes waits for them: what signs
requests (``remoting.acl``) has the keys of the moment, and :class:`KeyKeeper` puts newer ones in their place.

    new keys are asked for               | and when that fails
    a file: every second                 | the old keys stay; each reason is logged once, and what ends it
    keys with an end: after three        | asked again after 1, 2, 4 ... 30 s
    quarters of the time that is left    |
    keys without an end: every minute    |
    a server does not take the keys: now | not before that
    who needs them could not be told     | the new keys are in use, and he is told with the next that are asked for

Source: own design; the key file is that of Apache RocketMQ 4.x ``SessionCredentials`` (``~/key``), the YAML that of its
``tools.yml``.
"""

from __future__ import annotations

import inspect
import logging
import os
import stat
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import anyio

from rocketbox.blocking import run_briefly
from rocketbox.clock import Clock
from rocketbox.errors import ConfigurationError, CredentialsError, Finding
from rocketbox.own_failures import as_failure
from rocketbox.remoting.acl import Credentials, RequestSigner
from rocketbox.safe_repr import also_when_unmade

__all__ = ["CredentialsFile", "CredentialsProvider", "KeyKeeper", "check_provider"]

_log = logging.getLogger(__name__)

FILE_INTERVAL = 1.0  # seconds between two looks at a file
PROVIDER_INTERVAL = 60.0  # seconds after which keys without an end are asked for again
OF_THE_TIME_LEFT = 0.75
SHORTEST_WAIT = 1.0  # seconds between two questions, whoever wants one
LONGEST_WAIT = 30.0  # seconds between two questions that fail
ANSWER_WITHIN = 10.0  # seconds that a provider has
RECENT = 5.0  # seconds for which keys count as new: servers may have been told of them a little later
SETTLED_AFTER = 0.1  # seconds between two looks at a file that has changed, which must be alike
LOOKS = 20  # of these, until it is left alone for an interval
MOST_BYTES = 64 * 1024

_NAMES: Final[Mapping[str, str]] = {
    "accesskey": "access_key", "secretkey": "secret_key", "securitytoken": "security_token",
}  # fmt: skip


@runtime_checkable
class CredentialsProvider(Protocol):
    """Gives a client its keys: one that asks a vault, or a cloud's service for keys that are lent for a time."""

    async def credentials(self) -> Credentials:
        """The keys to sign with from now on, with ``expires_at`` where they end.

        Called at the start of a client, which waits for it, and then in a task of its own: each minute, or before the
        keys end, and when a server does not take them. It has 10 s, and is cancelled then, as at the client's stop:
        that must come through (no bare ``except`` in a loop), or the stop waits for it as long as a stop may take. What
        it raises is logged by its type and line only, since its words may quote a key; the client goes on with the keys
        that it has.
        """


class CredentialsFile:
    """The keys of one user in a file, which may be written anew, or be replaced, at any time.

    Either YAML with ``accessKey``, ``secretKey`` and, if need be, ``securityToken`` (``access-key`` and the like are
    the same), or Apache's key file with lines such as ``AccessKey=...``. What counts is what is in it, so a symbolic
    link that is turned to another file, as Kubernetes does it, is a change like any other. It is read every
    ``interval`` seconds; a change counts when two looks, a tenth of a second apart, have found the same.
    """

    def __init__(self, path: Path | str, *, interval: float = FILE_INTERVAL) -> None:
        self.path = Path(path)
        self.interval = interval
        self.settles = False
        """Whether it was another one than the last time, so that it may still be written."""
        self._given: Credentials | None = None
        self._content = b""  # of the keys that were given last
        self._seen = b""  # the last time

    @also_when_unmade
    def __repr__(self) -> str:
        return f"CredentialsFile({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CredentialsFile) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    async def credentials(self) -> Credentials:
        """The keys in it, or those before while it ``settles``: what was begun to be written may look complete.

        Raises CredentialsError, which shows nothing of it, for what is no pair of keys.
        """
        content = await run_briefly(self._read)
        if self._given is not None and content == self._content:
            self.settles = False
            return self._given
        self.settles = self._given is not None and content != self._seen
        self._seen = content
        if self._given is not None and self.settles:
            return self._given
        found = _parse(content)
        if isinstance(found, str):
            del content  # what shows the variables of a failure shows none of it
            raise CredentialsError(f"{self.path} {found}")
        self._given, self._content = found, content
        return found

    def check(self) -> None:
        """Look at it now, which blocks. Raises CredentialsError for what is no pair of keys."""
        found = _parse(self._read())
        if isinstance(found, str):
            raise CredentialsError(f"{self.path} {found}")

    def _read(self) -> bytes:
        try:
            # A pipe would be waited for until somebody writes to it, by a thread that nobody can end.
            with open(self.path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise CredentialsError(f"{self.path} is no plain file")
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise CredentialsError(f"the keys cannot be read: {error.strerror or error}: {self.path}") from None
        if len(content) > MOST_BYTES:
            del content
            raise CredentialsError(f"{self.path} has more than {MOST_BYTES} bytes: it is no file of keys")
        return content


def _parse(content: bytes) -> Credentials | str:
    """The keys, or what is wrong, in words that show nothing of it. It raises nothing: its variables are secrets."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "is not text in UTF-8"
    written: list[tuple[Any, Any]] | str = _lines(text) or _yaml(text)
    if isinstance(written, str):
        return written
    values: dict[str, str] = {}
    for name, value in written:
        # Any other name is not written out: a few hundred bytes of anchors in YAML would take years.
        known = _NAMES.get(name.strip().lower().replace("-", "").replace("_", "")) if isinstance(name, str) else None
        if known is None or known in values or not isinstance(value, str):
            return "is to have accessKey, secretKey and maybe securityToken, each once as text"
        if value.strip():
            values[known] = value.strip()
    missing = [name for name in ("accessKey", "secretKey") if _NAMES[name.lower()] not in values]
    if missing:
        return f"has no {' and no '.join(missing)}"
    try:
        return Credentials(**values)  # type: ignore[arg-type]  # no time among them
    except ConfigurationError as error:
        return f"is no good: {error.findings[0].what}"


def _lines(text: str) -> list[tuple[str, str]] | None:
    """The lines of Apache's key file; None for what is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    parts = [line.partition("=") for line in lines]
    if not lines or not all(equals and name.strip().isalpha() for name, equals, _ in parts):
        return None
    return [(name, value) for name, _, value in parts]


def _yaml(text: str) -> list[tuple[Any, Any]] | str:
    import yaml  # only who has such a file needs it

    try:
        found = yaml.compose(text, Loader=yaml.BaseLoader)  # not made into a dict, where the last of two names counts
    except (yaml.YAMLError, RecursionError):
        return "is neither YAML nor a key file"
    if not isinstance(found, yaml.MappingNode):
        return "is empty" if found is None or not found.value else "is neither YAML nor a key file"
    return [(name.value, value.value) for name, value in found.value]


def check_provider(provider: object) -> Finding | None:
    """What is wrong with somebody's provider, before it is asked."""
    method = getattr(provider, "credentials", None)
    if inspect.iscoroutinefunction(method):
        return None
    name = type(provider).__qualname__
    what = f"{name}.credentials is no coroutine function" if method is not None else f"{name} has no credentials()"
    fix = "write 'async def credentials(self) -> Credentials'; what blocks goes into anyio.to_thread.run_sync"
    return Finding(f"{what}, so it is no CredentialsProvider", fix=fix)


class KeyKeeper:
    """Keeps the keys of a client's signer new."""

    def __init__(self, provider: CredentialsProvider, signer: RequestSigner, clock: Clock) -> None:
        self.problem: str | None = None
        """Why there are no new keys; None: there are, or none were due. It shows no key."""
        self.on_renewed: list[Callable[[Credentials], None]] = []
        """Told of new keys before anything is signed with them. Who fails is told again, and keeps nobody from signing
        with them.
        """
        self._untold: list[Callable[[Credentials], None]] = []  # of the keys that were given last
        self._provider = provider
        self._signer = signer
        self._clock = clock
        self._wanted = anyio.Event()
        self._answered = anyio.Event()
        self._asked_at = float("-inf")
        self._renewed_at = float("-inf")
        self._due = float("inf")
        self._failures = 0

    @property
    def name(self) -> str:
        """What gives the keys, as logs call it."""
        provider = self._provider
        if isinstance(provider, CredentialsFile):
            return f"credentials file {provider.path}"
        return f"{type(provider).__qualname__}.credentials"

    @property
    def current(self) -> Credentials:
        """The keys that requests are signed with. Raises CredentialsError before there are any."""
        if self._signer.credentials is None:
            raise CredentialsError(f"{self.name} has given no keys yet")
        return self._signer.credentials

    @property
    def expired(self) -> bool:
        """Whether the keys that requests are signed with have come to their end."""
        return (left := self._time_left()) is not None and left <= 0

    async def begin(self) -> None:
        """Have the first keys. Raises CredentialsError."""
        self._take(await self._ask())

    async def keep(self) -> None:
        """Have new ones in time, for ever."""
        while True:
            with self._clock.move_on_after(max(0.0, self._due - self._clock.monotonic())):
                await self._wanted.wait()
                await self._clock.sleep(max(0.0, self._next_look() - self._clock.monotonic()))
            self._wanted = anyio.Event()
            try:
                self._take(await self._settled())
            except CredentialsError as error:
                self._failed(str(error))
            answered, self._answered = self._answered, anyio.Event()
            answered.set()

    def look(self) -> None:
        """A server does not take the keys: ask for new ones now, and not in a minute."""
        self._wanted.set()

    async def found_new(self, patience: float) -> bool:
        """Look, for at most ``patience`` seconds; whether the keys are newer than what a server may know of them.

        At once, where they are looked at later only, since that has failed.
        """
        if not self._is_recent() and self._next_look() - self._clock.monotonic() <= patience:
            answered = self._answered
            self.look()
            with self._clock.move_on_after(patience):
                await answered.wait()
        return self._is_recent()

    def _next_look(self) -> float:
        """When new keys are asked for, if a server does not take those that there are."""
        if self._failures and not isinstance(self._provider, CredentialsFile):
            return self._due  # a vault that is down is not asked more often by those who wait for it
        return self._asked_at + SHORTEST_WAIT

    def _is_recent(self) -> bool:
        return self._clock.monotonic() - self._renewed_at < RECENT

    async def _settled(self) -> Credentials:
        found = await self._ask()
        for _ in range(LOOKS):
            if not (isinstance(self._provider, CredentialsFile) and self._provider.settles):
                break
            await self._clock.sleep(SETTLED_AFTER)
            found = await self._ask()
        return found

    async def _ask(self) -> Credentials:
        self._asked_at = self._clock.monotonic()
        found: Any = None
        late = True
        with self._clock.move_on_after(ANSWER_WITHIN):
            try:
                found = await self._provider.credentials()
            except CredentialsError:
                raise
            except BaseException as error:  # one that it has cancelled itself must not end the client
                if not isinstance(as_failure(error), Exception):
                    raise
                raise CredentialsError(f"{self.name} failed with {_described(error)}") from None
            late = False
        if late:
            raise CredentialsError(f"{self.name} gave no keys within {ANSWER_WITHIN:g} s")
        if not isinstance(found, Credentials):
            kind = type(found).__name__
            found = None  # it may be a key, and what shows the variables of a failure shows none
            raise CredentialsError(f"{self.name} returned {kind}, and not Credentials")
        if found.expires_at is not None and self._seconds_to(found.expires_at) <= 0:
            raise CredentialsError(f"{self.name} gave keys that ended at {found.expires_at:%Y-%m-%d %H:%M:%S %Z}")
        return found

    def _take(self, found: Credentials) -> None:
        before = self._signer.credentials
        if found != before:
            self._untold = list(self.on_renewed)
        failure = self._tell(found)
        if found != before:
            self._signer.renew(found)
        if before is not None and found.secrets != before.secrets:
            self._renewed_at = self._clock.monotonic()
            until = f" until {found.expires_at:%Y-%m-%d %H:%M:%S %Z}" if found.expires_at is not None else ""
            _log.info("%s has new keys: requests are signed as %s%s", self.name, found.who, until)
        elif self.problem is not None and failure is None:
            _log.info("%s gives keys again", self.name)
        if failure is not None:
            raise CredentialsError(f"{self.name} has given keys, and not everybody who needs them has them: {failure}")
        self.problem, self._failures = None, 0
        interval = self._provider.interval if isinstance(self._provider, CredentialsFile) else PROVIDER_INTERVAL
        if (left := self._time_left()) is not None:
            interval = max(SHORTEST_WAIT, left * OF_THE_TIME_LEFT)
        self._due = self._clock.monotonic() + interval

    def _tell(self, found: Credentials) -> str | None:
        """Tell those who do not know these keys yet; with what the last one failed who did."""
        failure = None
        untold, self._untold = self._untold, []
        for tell in untold:
            if tell not in self.on_renewed:  # it needs none any more
                continue
            try:
                tell(found)
            except Exception as error:
                failure = str(error) if isinstance(error, CredentialsError) else _described(error)
                self._untold.append(tell)
        return failure

    def _failed(self, problem: str) -> None:
        if problem != self.problem:
            keys = "have ended" if self.expired else "stay in use"
            _log.warning("%s; the keys that there are %s, and new ones are asked for again", problem, keys)
        self.problem = problem
        self._failures += 1
        wait = min(SHORTEST_WAIT * 2 ** min(self._failures - 1, 10), LONGEST_WAIT)
        if isinstance(self._provider, CredentialsFile):
            wait = self._provider.interval
        self._due = self._clock.monotonic() + wait

    def _time_left(self) -> float | None:
        """The seconds until the keys in use end; None: they do not."""
        now = self._signer.credentials
        return None if now is None or now.expires_at is None else self._seconds_to(now.expires_at)

    def _seconds_to(self, time: datetime) -> float:
        return time.astimezone(UTC).timestamp() - self._clock.time_ms() / 1000


def _described(error: BaseException) -> str:
    """The type of an error and the line that raised it; not its words, which may quote a key."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace is not None else ""
    return f"{type(error).__name__}{where}"
