"""The root of the ``rocketbox`` command."""

from __future__ import annotations

from typing import Annotated

import typer

from rocketbox.cli import service, settings
from rocketbox.cli.broker import CONTEXT_SETTINGS, broker
from rocketbox.cli.doctor import doctor
from rocketbox.cli.new import new
from rocketbox.cli.run import run
from rocketbox.cli.secure import secure
from rocketbox.cli.spark import spark
from rocketbox.cli.store import store
from rocketbox.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="rocketbox",
    help="Declarative Python services over Apache RocketMQ.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rocketbox {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[  # typer calls what prints it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Declarative Python services over Apache RocketMQ."""


for command in (run, service.check, service.conditions, settings.config):
    app.command(command.__name__, context_settings=service.CONTEXT_SETTINGS)(command)
app.command("broker", context_settings=CONTEXT_SETTINGS)(broker)
app.command("schema")(settings.schema)  # takes no settings: any other option is a mistake
app.command("new")(new)
app.command("doctor")(doctor)
app.add_typer(secure, name="secure")
app.add_typer(store, name="store")
app.add_typer(spark, name="spark")


def main() -> None:
    """Run the command."""
    app()
