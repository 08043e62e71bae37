"""``rocketbox run | check | conditions module:app``: the commands about a service.

They find the application and hand over to it; what they print and which status they end with is told by their help.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketbox.errors import ConfigurationError, Finding

if TYPE_CHECKING:
    from rocketbox.application import RocketBox

__all__ = ["CONTEXT_SETTINGS", "check", "conditions", "load_application", "run"]

CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""What the commands must be registered with: settings are options that they do not know by name."""

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the RocketBox is: flight_desk.app:app.")]
Config = Annotated[Path | None, typer.Option(help="The settings file instead of ./rocketbox.yaml.")]
Profile = Annotated[list[str] | None, typer.Option(help="A profile to activate; may be given several times.")]
Debug = Annotated[bool, typer.Option(help="Show tracebacks, and log at level debug.")]


def run(
    context: typer.Context, target: Target, config: Config = None, profile: Profile = None, debug: Debug = False
) -> None:
    """Run a service until SIGTERM, SIGINT, or its own wish to end.

    Any setting may follow as --KEY=VALUE, such as --rocketmq.name-server=127.0.0.1:9876.

    Status: 0 stopped in order; 1 not started, or failed; 3 the stop took longer than rocketbox.shutdown.timeout;
    128 + number of the signal when a second one ended it at once.
    """
    _application(target, debug).run(
        config=config, profiles=tuple(profile or ()), arguments=tuple(context.args), debug=debug
    )


def check(
    context: typer.Context, target: Target, config: Config = None, profile: Profile = None, debug: Debug = False
) -> None:
    """Look for everything that can be wrong, without connecting. Status 0 if there is nothing, else 1."""
    application = _application(target, debug)
    raise typer.Exit(
        application.check(config=config, profiles=tuple(profile or ()), arguments=tuple(context.args), debug=debug)
    )


def conditions(
    context: typer.Context, target: Target, config: Config = None, profile: Profile = None, debug: Debug = False
) -> None:
    """Print which auto-configurations were taken, which were not, and why."""
    application = _application(target, debug)
    raise typer.Exit(
        application.print_conditions(
            config=config, profiles=tuple(profile or ()), arguments=tuple(context.args), debug=debug
        )
    )


def _application(target: str, debug: bool) -> RocketBox:
    from rocketbox.application import RocketBox  # here: other commands start without loading all of it

    try:
        return load_application(target)
    except ConfigurationError as error:
        RocketBox.print_failure(error, debug=debug)
        raise typer.Exit(1) from error


def load_application(target: str) -> RocketBox:
    """The application at ``module:name`` (name ``app`` when it is left out), with the current folder importable.

    Raises ConfigurationError when there is none.
    """
    from rocketbox.application import RocketBox
    from rocketbox.autoconfigure.scan import import_finding

    module_name, _, attribute = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(import_finding(module_name, error)) from error
    application = getattr(module, attribute or "app", None)
    if not isinstance(application, RocketBox):
        known = sorted(name for name, value in vars(module).items() if isinstance(value, RocketBox))
        raise ConfigurationError(
            Finding(
                f"{module_name}:{attribute or 'app'} is no RocketBox",
                module.__file__,
                f"write {module_name}:{known[0]}" if known else f'write app = RocketBox("name") in {module_name}',
            )
        )
    return application
