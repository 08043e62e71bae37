"""``rocketbox run module:app``: the service in this process, or under ``--reload`` or ``--workers`` in others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketbox.cli.service import (
    Config,
    Debug,
    Profile,
    Target,
    application_of,
    failures_told,
    module_and_name,
    sort_out,
)
from rocketbox.errors import ConfigurationError, Finding

if TYPE_CHECKING:
    from rocketbox.application import RocketBox
    from rocketbox.boot.settings import Settings
    from rocketbox.cli.children import Parent

__all__ = ["run"]


def run(
    context: typer.Context,
    target: Target,
    config: Config = None,
    profile: Profile = None,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when code or settings files change.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Run N processes that share the consumer groups.")
    ] = None,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="What is logged at least: as rocketbox.logging.level.root.")
    ] = None,
    debug: Debug = False,
    child: Annotated[str | None, typer.Option(hidden=True, help="Set by --reload and --workers.")] = None,
) -> None:
    """Run a service until SIGTERM, SIGINT, or its own wish to end.

    Any setting may follow as --KEY=VALUE, such as --rocketmq.name-server=127.0.0.1:9876.

    --reload keeps watching a service that does not start, until a change mends it. --workers starts those again that
    die, after a pause which grows; with name-server embedded they share one broker. Both may be given.

    Status: 0 stopped in order; 1 not started, or failed; 3 the stop took longer than rocketbox.shutdown.timeout;
    128 + number of the signal when a second one ended it at once.
    """
    from rocketbox.cli.children import Parent

    parent = Parent(child) if child else None
    target, arguments = sort_out(context, target)
    if log_level is not None:
        arguments = (*arguments, f"--rocketbox.logging.level.root={log_level.value}")
    told = _Command(target, config, tuple(profile or ()), arguments, debug)
    if reload:
        with failures_told(debug):
            module_and_name(target)
        raise typer.Exit(_run_reloading(told, workers))
    application = application_of(target, debug)
    if workers is not None:
        raise typer.Exit(_run_workers(application, told, workers, parent))
    application.run(
        config=config,
        profiles=told.profiles,
        arguments=arguments,
        debug=debug,
        on_ready=None if parent is None else partial(_tell_ready, parent),
        patient=parent is not None,
    )


def _tell_ready(parent: Parent, settings: Settings) -> None:
    parent.tell_ready(settings.files, settings.get("rocketbox").shutdown.timeout.total_seconds())


class LogLevel(Enum):
    """Of ``--log-level``."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class _Command:
    """What ``run`` was told, to say it again to a child."""

    target: str
    config: Path | None
    profiles: tuple[str, ...]
    arguments: tuple[str, ...]
    debug: bool

    def command(self, *more: str) -> list[str]:
        """The command line of a child, behind ``rocketbox``."""
        options = [f"--config={self.config}"] if self.config is not None else []
        options += [f"--profile={name}" for name in self.profiles]
        options += ["--debug"] if self.debug else []
        return ["run", self.target, *options, *self.arguments, *more]


def _run_reloading(told: _Command, workers: int | None) -> int:
    try:
        from rocketbox.cli.reloading import Reloading
    except ImportError as error:
        if error.name != "watchfiles":
            raise
        from rocketbox.application import RocketBox

        finding = Finding("--reload needs watchfiles, which is not installed", None, 'pip install "rocketbox[reload]"')
        RocketBox.print_failure(ConfigurationError(finding), debug=told.debug)
        return 1
    return Reloading(
        told.target,
        told.command(*([] if workers is None else [f"--workers={workers}"])),
        config=told.config,
        profiles=told.profiles,
        arguments=told.arguments,
        debug=told.debug,
    ).run()


def _run_workers(application: RocketBox, told: _Command, count: int, parent: Parent | None) -> int:
    from rocketbox.autoconfigure.log_setup import set_up_logging
    from rocketbox.cli.workers import Workers, check_workers

    try:
        assembly = application.look(config=told.config, profiles=told.profiles, arguments=told.arguments)
        assembly.check()
        check_workers(assembly, count)
    except Exception as error:
        application.print_failure(error, debug=told.debug)
        return 1
    set_up_logging(assembly.rocketbox.logging, debug=told.debug, secrets=assembly.settings.secrets)

    def failed(error: Exception) -> None:
        application.print_failure(error, debug=told.debug, secrets=assembly.settings.secrets)

    def ready(stop_timeout: float) -> None:
        if parent is not None:
            parent.tell_ready(assembly.settings.files, stop_timeout)

    return Workers(
        assembly,
        count,
        command=lambda settings: told.command(*settings),
        failed=failed,
        ready=ready,
        patient=parent is not None,
    ).run()
