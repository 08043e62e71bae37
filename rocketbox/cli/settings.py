"""``rocketbox config [module:app]``: what settings hold in the end.

Without an application it knows the keys of rocketbox alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketbox.cli.service import Config, Debug, Profile, load_application

if TYPE_CHECKING:
    from rocketbox.boot.settings import Settings

__all__ = ["config"]

Target = Annotated[
    str | None, typer.Argument(metavar="[MODULE:APP]", help="Where the RocketBox is, if keys of yours count.")
]


def config(
    context: typer.Context,
    target: Target = None,
    config: Config = None,
    profile: Profile = None,
    explain: Annotated[str | None, typer.Option(metavar="KEY", help="Explain one key, or all of a group.")] = None,
    debug: Debug = False,
) -> None:
    """Print the settings that hold, with the place of each and the places that were overruled; secrets are masked.

    Any setting may follow as --KEY=VALUE. Status 1 when the settings cannot be read or KEY is none, else 0.
    """
    from rocketbox.application import RocketBox  # here: other commands start without loading all of it
    from rocketbox.boot import effective

    arguments = list(context.args)
    if target is not None and target.startswith("--"):  # without an application the first setting takes its place
        arguments.insert(0, target)
        target = None
    try:
        settings = _settings(target, config, tuple(profile or ()), tuple(arguments))
        print(effective.explain(settings, explain) if explain else effective.render_tree(settings))  # noqa: T201
    except Exception as error:
        RocketBox.print_failure(error, debug=debug)
        raise typer.Exit(1) from error


def _settings(
    target: str | None, config: Path | None, profiles: tuple[str, ...], arguments: tuple[str, ...]
) -> Settings:
    from rocketbox.autoconfigure.assembly import Launch
    from rocketbox.autoconfigure.properties import RocketBoxProperties, RocketMQProperties
    from rocketbox.boot.settings import find_settings_file, load_settings

    if target is not None:
        return load_application(target)._look(Launch(config, profiles, arguments)).settings
    dotenv = Path(".env")
    return load_settings(
        {"rocketmq": RocketMQProperties, "rocketbox": RocketBoxProperties},
        file=find_settings_file(config),
        profiles=profiles,
        env_file=dotenv if dotenv.is_file() else None,
        arguments=arguments,
    )
