"""``rocketbox config | schema [module:app]``: what settings hold in the end, and which there are.

Without an application they know the keys of rocketbox alone.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketbox.cli.service import Config, Debug, Profile, failures_told, load_application, sort_out_settings
from rocketbox.errors import ConfigurationError, Finding

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rocketbox.boot.settings import Settings

__all__ = ["config", "schema"]

Target = Annotated[
    str | None, typer.Argument(metavar="[MODULE:APP]", help="Where the RocketBox is, if keys of yours count.")
]


class Format(Enum):
    """What ``rocketbox schema`` writes."""

    JSON = "json"
    MARKDOWN = "markdown"


def config(
    context: typer.Context,
    target: Target = None,
    config: Config = None,
    profile: Profile = None,
    explain: Annotated[str | None, typer.Option(metavar="KEY", help="Explain one key, or all of a group.")] = None,
    debug: Debug = False,
) -> None:
    """Print the settings that hold, with the place of each and the places that were overruled; secrets are masked.

    Any setting may follow as --KEY=VALUE. Status 1 when the settings cannot be read, or KEY is an unknown one below
    rocketmq or rocketbox; else 0. Any other key that nobody has set is told to be not set.
    """
    from rocketbox.boot import effective  # here: other commands start without loading all of it

    target, arguments = sort_out_settings(context, target)
    with failures_told(debug):
        settings = _settings(target, config, tuple(profile or ()), arguments)
        print(effective.explain(settings, explain) if explain else effective.render_tree(settings))  # noqa: T201


def schema(
    target: Target = None,
    output: Annotated[Path | None, typer.Option(help="The file to write instead of stdout.")] = None,
    form: Annotated[Format, typer.Option("--format", help="A schema, or tables for people.")] = Format.JSON,
    debug: Debug = False,
) -> None:
    """Write a JSON Schema of the settings, by which editors of YAML complete keys and mark what is wrong.

    With --format=markdown the same keys as tables, for the documentation of a service.
    Status 1 when the application's modules cannot be read or FILE cannot be written, else 0.
    """
    from rocketbox.boot.json_schema import json_schema
    from rocketbox.boot.reference import markdown_reference

    with failures_told(debug):
        models = _models(target)
        if form is Format.MARKDOWN:
            text = markdown_reference(models)
        else:
            text = json.dumps(json_schema(models), indent=2, ensure_ascii=False)
        if output is None:
            print(text)  # noqa: T201
        else:
            _write(output, text + "\n")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(
            Finding(f"{file} cannot be written: {error.strerror}", "--output", "name a file in a folder that exists")
        ) from error


def _models(target: str | None) -> dict[str, type[BaseModel]]:
    from rocketbox.autoconfigure.loading import settings_models

    return settings_models([]) if target is None else load_application(target).settings_models()


def _settings(
    target: str | None, config: Path | None, profiles: tuple[str, ...], arguments: tuple[str, ...]
) -> Settings:
    from rocketbox.autoconfigure.loading import Launch, load

    if target is not None:
        return load_application(target).look(config=config, profiles=profiles, arguments=arguments).settings
    return load(_models(None), [], "", Launch(config, profiles, arguments), None)
