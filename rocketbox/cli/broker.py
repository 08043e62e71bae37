"""``rocketbox broker``: name server and broker in a process of their own, until SIGTERM or SIGINT.

Prints one line on stdout, ``ready name-server=HOST:PORT broker=HOST:PORT``, when both answer; logs go to stderr.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer

from rocketbox.cli.full_collections import tables_out_of_collections
from rocketbox.clock import RealClock
from rocketbox.embedded import PREFIX, EmbeddedOptions, EmbeddedServers
from rocketbox.errors import ConfigurationError, Finding, RocketBoxError
from rocketbox.loops import loop_name, loop_options
from rocketbox.stop_guard import StopGuard
from rocketbox.tasks import Supervisor

__all__ = ["CONTEXT_SETTINGS", "broker", "read_arguments", "read_secrets"]

_log = logging.getLogger(__name__)

MOST_SECRET_BYTES = 64 << 10

CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""What the command must be registered with: Apache's settings are options it does not know by name."""


def broker(
    context: typer.Context,
    data_dir: Annotated[Path, typer.Option(help="The directory of the store; made if it is missing.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = EmbeddedOptions.host,
    name_server_port: Annotated[
        int, typer.Option(help="0 takes a free one.", min=0, max=65_535)
    ] = EmbeddedOptions.name_server_port,
    port: Annotated[
        int, typer.Option(help="The broker's port; 0 takes a free one.", min=0, max=65_535)
    ] = EmbeddedOptions.port,
    insecure: Annotated[bool, typer.Option(help="Allow an address that other machines can reach.")] = False,
    secrets_directory: Annotated[
        Path | None,
        typer.Option(help="A directory with a file for each secret setting, named after it: arguments can be seen."),
    ] = None,
    exit_on_failure: Annotated[
        bool, typer.Option("--exit-on-failure", help="End when the store has failed, instead of serving reads.")
    ] = False,
) -> None:
    """Run a name server and a broker in this process.

    Any setting of Apache's broker that is built may follow as --KEY=VALUE, in kebab case:
    --flush-disk-type=ASYNC_FLUSH --mapped-file-size-commit-log=64MB
    What others of this machine should not see among the arguments stands in files: --secrets-directory

    Prints "ready name-server=HOST:PORT broker=HOST:PORT" when both answer, and stops by SIGTERM or SIGINT.
    Status: 0 stopped in order; 1 not started, or the store has failed: a write or sync of its log, after which it takes
    no more messages and serves reads until it is stopped (--exit-on-failure: it stops at once); 128 + number of the
    signal when a second one ended it at once.
    """
    _log_to_stderr()
    try:
        options = EmbeddedOptions(
            data_dir=data_dir,
            host=host,
            port=port,
            name_server_port=name_server_port,
            insecure=insecure,
            broker=_joined(read_arguments(context.args), secrets_directory),
            prefix="--",
        )
        with StopGuard("rocketbox broker") as guard:
            failure = anyio.run(_serve, options, exit_on_failure, guard, backend_options=loop_options())
    except RocketBoxError as error:
        print(f"rocketbox broker cannot start:\n{error}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(1) from error
    if failure is not None:
        print(f"rocketbox broker ended after a failure of its store:\n{failure}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(1)


def read_arguments(arguments: list[str]) -> dict[str, object]:
    """``--key=value`` and ``--key value`` as a mapping. Raises ConfigurationError, which tells no value: a word in a
    place where no setting begins may be a password, the value of one that another has taken for its own.
    """
    settings: dict[str, object] = {}
    rest = iter(arguments)
    before = "the command"
    for argument in rest:
        if not argument.startswith("--"):
            what = f"the argument behind {before} is not a setting"
            raise ConfigurationError(Finding(what, "the command line", fix="write --KEY=VALUE"))
        name, equals, value = argument[2:].partition("=")
        key = re.split(r"[:\s]", name, maxsplit=1)[0]
        before = f"--{key}"
        if key != name:
            what = f"{before} is followed by a colon or a space, not by ="
            raise ConfigurationError(Finding(what, "the command line", f"write {before}=VALUE"))
        if not equals:
            value = next(rest, "")
            if value.startswith("--"):
                what = f"{before} has no value, another setting follows it"
                raise ConfigurationError(Finding(what, "the command line", fix=f"write {before}=VALUE"))
        settings[name] = value
    return settings


def _joined(settings: dict[str, object], secrets_directory: Path | None) -> dict[str, object]:
    secrets = read_secrets(secrets_directory) if secrets_directory is not None else {}
    if twice := sorted(settings.keys() & secrets.keys()):
        what = f"--{twice[0]} is an argument and a file of --secrets-directory"
        raise ConfigurationError(Finding(what, fix="leave one of them out"))
    return settings | secrets


def read_secrets(directory: Path) -> dict[str, object]:
    """The files of a directory as settings: a name with or without ``rocketbox.embedded.``, the text without its last
    line end. Those whose names begin with a dot are left out, as in mounted secrets. Raises ConfigurationError.
    """
    settings: dict[str, object] = {}
    where = str(directory)
    try:
        for file in sorted(directory.iterdir()):
            if file.name.startswith("."):
                continue
            where = str(file)
            if not file.is_file() or file.stat().st_size > MOST_SECRET_BYTES:
                what = f"{file} is no file with a secret in it"
                raise ConfigurationError(Finding(what, where, f"let it be a text of up to {MOST_SECRET_BYTES} bytes"))
            settings[file.name.removeprefix(PREFIX)] = file.read_bytes().decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        what = f"--secrets-directory: {where} cannot be read: {error.strerror or type(error).__name__}"
        raise ConfigurationError(Finding(what, where, "name a directory that this user may read")) from None
    except UnicodeDecodeError:
        raise ConfigurationError(Finding(f"{where} is not UTF-8", where, "save it as UTF-8")) from None
    return settings


async def _serve(options: EmbeddedOptions, exit_on_failure: bool, guard: StopGuard) -> str | None:
    """Serve until a signal comes, or with ``exit_on_failure`` the store fails; why the store failed, if it has."""
    with anyio.CancelScope() as starting:
        scopes = [starting]
        guard.attach(lambda: scopes[-1].cancel())
        _log.info("rocketbox broker runs on %s", loop_name())
        async with EmbeddedServers(options) as servers:
            broker, clock = servers.broker, RealClock()
            with tables_out_of_collections(lambda: broker.table_entries, clock) as tables:
                async with Supervisor("process", clock) as tasks:
                    tasks.start("keep tables out of collections", tables.run)
                    _say_ready(servers)
                    with anyio.CancelScope() as scope:
                        scopes.append(scope)
                        if not exit_on_failure:
                            await anyio.Event().wait()  # until the scope is cancelled
                        await servers.failed()
                        _log.error("the store has failed: stopping")
            return servers.health.failure
    return None


def _say_ready(servers: EmbeddedServers) -> None:
    line = f"ready name-server={servers.name_server_address} broker={servers.broker_address}"
    try:
        print(line, flush=True)  # noqa: T201
    except OSError as error:
        # What stands in its buffer would be tried again at the end of the process, and be its last word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        what = f"the line with its addresses cannot be written to standard output: {error.strerror or error}"
        raise ConfigurationError(
            Finding(what, fix="keep standard output open until the line has come, or send it to a file or /dev/null")
        ) from error


def _log_to_stderr() -> None:
    if not logging.getLogger().handlers:
        logging.basicConfig(
            stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
        )
