"""``rocketbox store``: looking into, mending and reading out the directory of an embedded broker.

Holds arguments, progress and what is printed; what is done stands in ``rocketbox.broker.store``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TextIO

import anyio
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rocketbox.broker.options import read_broker_options
from rocketbox.broker.store.export import Export, ExportFilter
from rocketbox.broker.store.finding import FindingKind, StoreFinding
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.store_check import StoreFiles, check_store, check_tables, find_files
from rocketbox.broker.store.store_repair import plan_repair
from rocketbox.cli.broker import CONTEXT_SETTINGS, read_arguments
from rocketbox.clock import RealClock
from rocketbox.errors import ConfigurationError, Finding, RocketBoxError, StoreError, StoreLockedError
from rocketbox.storage.file_system import LockHandle, RealStorage, SharedLock

__all__ = ["store"]

ROUNDS = 5  # of a repair: what was hidden by damage is seen when that is mended
SHOWN = 10  # findings about one file; of the others only the number is told

store = typer.Typer(no_args_is_help=True, help="Check, mend, or read out the directory of an embedded broker.")

DataDir = Annotated[Path, typer.Option(help="The directory of the store.")]
ReadOnly = Annotated[
    bool, typer.Option("--read-only", help="Look at a directory that a broker uses: what it has synced is read.")
]


@store.command("check", context_settings=CONTEXT_SETTINGS)
def check(context: typer.Context, data_dir: DataDir, read_only: ReadOnly = False) -> None:
    """Compare queues, index and tables of a store with its commit log, every record of which is checked.

    Nothing is changed. Files are taken with the sizes that they have. A broker that is run with a message-delay-level
    of its own is checked with the same: --message-delay-level="1s 5s"

    Status: 0 sound; 1 something is wrong, and all of it is printed; or it cannot be checked.
    """
    with _failures_told("rocketbox store check"):
        options = _options(context, data_dir)
        storage, root = RealStorage(read_only=True), str(data_dir.absolute())
        with _kept_from_brokers(storage, data_dir, read_only=read_only) as (running, locked):
            files, all_findings = _findings(storage, root, options, running=running, locked=locked)
        findings: dict[str, list[StoreFinding]] = {}
        for finding in all_findings:
            if not finding.harmless:
                findings.setdefault(finding.path, []).append(finding)
        notes = [finding for finding in all_findings if finding.harmless]
        _say(_summary(files))
        for note in notes:
            _say(f"note: {note.path}:{note.position}: {note.what}; the next start deals with it")
        for path, found in findings.items():
            for finding in found[:SHOWN]:
                _say(str(finding))
            if len(found) > SHOWN:
                _say(f"{found[0].kind.value}: {path}: {len(found) - SHOWN} more")
        if findings:
            count = sum(map(len, findings.values()))
            _say(f"{count} {'thing is' if count == 1 else 'things are'} wrong")
            raise typer.Exit(1)
        _say("sound")


@store.command("repair", context_settings=CONTEXT_SETTINGS)
def repair(
    context: typer.Context,
    data_dir: DataDir,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this the steps are only printed.")] = False,
) -> None:
    """Print what would make a damaged store sound again, step by step; with --yes it is done.

    Damaged bytes of the log are replaced by what stands for nothing, so that all other messages can be read; a log that
    lost its end is cut; queues get the right entries; index files and tables that cannot be used are set aside. Of all
    that is changed or removed there is a copy in the directory torn. The broker's settings may follow as --KEY=VALUE.

    Status: 0 the store is sound, or was made so; 1 it is not.
    """
    with _failures_told("rocketbox store repair"):
        options = _options(context, data_dir)
        root = str(data_dir.absolute())
        refused: StoreError | None = None
        for attempt in range(ROUNDS):
            storage = RealStorage(read_only=True)
            with _kept_from_brokers(storage, data_dir, read_only=False, alone=yes) as (running, locked):
                files, findings = _findings(storage, root, options, running=running, locked=locked)
                wrong = [finding for finding in findings if not finding.harmless]
                if not wrong and refused is not None:
                    raise StoreError(f"nothing else is wrong in {data_dir}, and yet it cannot be opened: {refused}")
                if not wrong:
                    _say("sound: there is nothing to do" if attempt == 0 else "sound")
                    return
                files = find_files(RealStorage(), root, options, locked)  # the same, to be written
                time = datetime.fromtimestamp(RealClock().time_ms() / 1000, UTC)
                steps = plan_repair(files, wrong, f"{time:%Y%m%dT%H%M%S.%f}Z")
                for number, step in enumerate(steps, 1):
                    _say(f"{number}. {step.what}")
                opens = all(finding.kind is not FindingKind.DIRECTORY for finding in wrong)
                last = "open the store once, which completes queues and index; tables are left to the next start"
                _say(f"{len(steps) + 1}. {last if opens else 'check again: what is missing is seen only then'}")
                if not yes:
                    _say("nothing was changed; rocketbox store repair --yes does all of this")
                    raise typer.Exit(1)
                for step in steps:
                    step.do()
            refused = _open_once(root, options) if opens else None
        raise StoreError(
            f"{data_dir} is still not sound after {ROUNDS} attempts: {refused or wrong[0]}. rocketbox store export "
            "reads out what it holds, and what was replaced is in its directory torn"
        )


@store.command("export", context_settings=CONTEXT_SETTINGS)
def export(
    context: typer.Context,
    data_dir: DataDir,
    to: Annotated[Path, typer.Option(metavar="FILE", help="The file to write; - is stdout.")],
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic; may be given several times.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Stored then or later: 2026-05-01T12:00, or ms.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Stored before that time.")] = None,
    offset: Annotated[
        str | None, typer.Option(metavar="FIRST:END", help="Offsets in their queues; either may be left out.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    read_only: ReadOnly = False,
) -> None:
    """Write the messages of a store as JSON, one a line.

    A body is text where it is UTF-8, else base64; body_encoding says which. A damaged store is read too: every intact
    record is written, and what is left out is told.

    Status: 0 all was written; 1 something was left out, or nothing could be written.
    """
    with _failures_told("rocketbox store export"):
        options = _options(context, data_dir)
        wanted = ExportFilter(frozenset(topic or ()), _time("--from", from_), _time("--until", until), *_range(offset))
        if not force and str(to) != "-" and to.exists():
            raise ConfigurationError(Finding(f"{to} is there already", fix="give another file, or --force"))
        storage = RealStorage(read_only=True)
        with _kept_from_brokers(storage, data_dir, read_only=read_only) as (running, locked):
            files = find_files(storage, str(data_dir.absolute()), options, locked)
            done = Export(files.log, wanted, files.checkpoint.synced_offset if running else None)
            with (
                _written(to) as file,
                _progress("exporting", files.log.start, files.expected_end) as advance,
            ):
                for step in done.lines():
                    if isinstance(step, int):
                        advance(step)
                    else:
                        file.write(f"{step}\n")
        print(f"{done.messages} messages written to {to}", file=sys.stderr)  # noqa: T201
        for each in done.left_out:
            print(f"left out: {each}", file=sys.stderr)  # noqa: T201
        if done.left_out:
            raise typer.Exit(1)


def _options(context: typer.Context, data_dir: Path) -> StoreOptions:
    settings = read_arguments(context.args)
    return read_broker_options(settings, prefix="--", store_path_root_dir=data_dir).store


def _findings(
    storage: RealStorage, root: str, options: StoreOptions, *, running: bool, locked: bytes | None
) -> tuple[StoreFiles, list[StoreFinding]]:
    files = find_files(storage, root, options, locked)
    findings: list[StoreFinding] = []
    with _progress("checking", files.log.start, files.expected_end) as advance:
        for step in check_store(files, options, running=running):
            if isinstance(step, int):
                advance(step)
            else:
                findings.append(step)
    return files, [*findings, *check_tables(storage, root)]


def _open_once(root: str, options: StoreOptions) -> StoreError | None:
    """Open and stop it; why that was refused, if it was: there may be more to repair.

    The next start of a broker still takes it for one that was not stopped in order: what the broker's tables say of a
    log that lost its end, and a transaction whose end is cut off, is its to put right.
    """

    async def open_and_stop() -> None:
        async with MessageStore(root, options, says_clean=False):
            pass

    try:
        anyio.run(open_and_stop)
    except StoreError as error:
        return error
    return None


@contextmanager
def _kept_from_brokers(
    storage: RealStorage, data_dir: Path, *, read_only: bool, alone: bool = False
) -> Iterator[tuple[bool, bytes | None]]:
    """No broker can start in the directory meanwhile; with ``alone``, for who writes, no other command looks at it.

    Yields whether a broker runs there, which ``read_only`` allows, and else what the file ``lock`` holds.
    """
    if not (data_dir / "commitlog").is_dir():
        raise StoreError(f"{data_dir} holds no store: there is no directory commitlog in it")
    lock: LockHandle | SharedLock | None = None
    path = str(data_dir.absolute() / "lock")
    try:
        lock = RealStorage().lock(path) if alone else storage.lock_shared(path)
    except StoreLockedError as error:
        if not read_only:
            raise StoreError(
                f"{data_dir} is in use by a broker; stop it, or give --read-only to look at what it has synced"
            ) from error
        yield True, None
        return
    try:
        yield False, lock.read() if lock is not None else b""
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def _failures_told(command: str) -> Iterator[None]:
    try:
        yield
    except (RocketBoxError, OSError) as error:
        print(f"{command}: {error}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(1) from error


@contextmanager
def _progress(what: str, start: int, end: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while offsets of the log go from start to end; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=max(1, end - start))
        yield lambda offset: progress.update(task, completed=offset - start)


@contextmanager
def _written(to: Path) -> Iterator[TextIO]:
    """The file to write; it takes its name when all is written. ``-`` is stdout."""
    if str(to) == "-":
        yield sys.stdout
        return
    part = to.with_name(f"{to.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


def _time(option: str, text: str | None) -> int | None:
    """Epoch milliseconds of what was written: those, or an ISO time, which is local without a zone."""
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise ConfigurationError(
            Finding(f"{option} is {text!r}, which is no time", fix="write 2026-05-01T12:00, or epoch milliseconds")
        ) from None


def _range(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    found = re.fullmatch(r"(\d*):(\d*)", text)
    if found is None:
        raise ConfigurationError(Finding(f"--offset is {text!r}", fix="write FIRST:END, such as 100:200 or 100:"))
    first, end = (int(each) if each else None for each in found.groups())
    return first, end


def _summary(files: StoreFiles) -> str:
    log = files.log
    state = "stopped in order" if files.clean else "not stopped in order: the next start completes queues and index"
    return (
        f"{files.root}: {len(log.starts)} files of the log from offset {log.start} on, {len(files.queues)} queues, "
        f"{len(files.index)} index files; {state}"
    )


def _say(text: str) -> None:
    print(text)  # noqa: T201
