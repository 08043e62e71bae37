"""``rocketbox check | conditions module:app``: what is said about a service without a start; and how commands find it.

They find the application and hand over to it; what they print and which status they end with is told by their help.
``rocketbox run`` is in ``cli.run``.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketbox.errors import ConfigurationError, Finding

if TYPE_CHECKING:
    from rocketbox.application import RocketBox

__all__ = [
    "CONTEXT_SETTINGS",
    "Config",
    "Debug",
    "Profile",
    "Target",
    "application_of",
    "check",
    "conditions",
    "failures_told",
    "load_application",
    "module_and_name",
    "sort_out",
    "sort_out_settings",
]

CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""What the commands must be registered with: settings are options that they do not know by name."""

LIKE_AN_OPTION = 0.75  # similarity from which on an unknown name without a dot is an option that is misspelt

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the RocketBox is: flight_desk.app:app.")]
Config = Annotated[Path | None, typer.Option(help="The settings file instead of ./rocketbox.yaml.")]
Profile = Annotated[list[str] | None, typer.Option(help="A profile to activate; may be given several times.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks, and log at level debug.")]


def check(
    context: typer.Context, target: Target, config: Config = None, profile: Profile = None, debug: Debug = False
) -> None:
    """Look for everything that can be wrong, without connecting.

    Any setting may follow as --KEY=VALUE. Status: 0 nothing is wrong; 1 something is, and all of it is printed.
    """
    from rocketbox.boot.masking import mask

    target, arguments = sort_out(context, target)
    application = application_of(target, debug)
    with failures_told(debug):
        assembly = application.check(config=config, profiles=tuple(profile or ()), arguments=arguments)
    lines = [*assembly.describe_clients(), *assembly.describe_listeners()]
    lines += [assembly.describe_found()]
    lines += [each.what + (f" ({each.where})" if each.where else "") for each in assembly.off]
    lines += [f"warning: {warning}" for warning in assembly.warnings]
    for line in (*lines, f"{application.name}: nothing is wrong"):
        print(mask(line, assembly.settings.secrets))  # noqa: T201 - what the command is for


def conditions(
    context: typer.Context, target: Target, config: Config = None, profile: Profile = None, debug: Debug = False
) -> None:
    """Print which auto-configurations were taken, which were not, and why.

    Any setting may follow as --KEY=VALUE. Status: 0; 1 when modules or settings cannot be read.
    """
    from rocketbox.boot.masking import mask

    target, arguments = sort_out(context, target)
    application = application_of(target, debug)
    with failures_told(debug):
        assembly = application.look(config=config, profiles=tuple(profile or ()), arguments=arguments)
    print(mask(assembly.container.report.render(), assembly.settings.secrets))  # noqa: T201


def sort_out(context: typer.Context, target: str) -> tuple[str, tuple[str, ...]]:
    """The application and the settings among what a command was given besides its options, in whatever order.

    An option that is misspelt would be taken for a setting; prints so, and ends the command.
    """
    found, settings = sort_out_settings(context, target)
    if found is not None:
        return found, settings
    from rocketbox.application import RocketBox

    fix = f"write {context.command_path} MODULE:APP; settings are written --KEY=VALUE"
    if (key := next(_keys_with_a_value_apart([target, *settings]), None)) is not None:
        fix += f", and what stands behind {key} is taken for its value"
    RocketBox.print_failure(ConfigurationError(Finding("no application is named", "the command line", fix)))
    raise typer.Exit(1)


def sort_out_settings(context: typer.Context, target: str | None) -> tuple[str | None, tuple[str, ...]]:
    """As :func:`sort_out`, for a command that needs no application: None when there is none."""
    arguments = [*([] if target is None else [target]), *context.args]
    first = _application_in(arguments)
    if first is not None:
        arguments.remove(first)
    options = [option for each in context.command.params for option in each.opts if not getattr(each, "hidden", False)]
    findings = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        near = difflib.get_close_matches(name, options, 1, LIKE_AN_OPTION)
        if not name.startswith("--") or "." in name or (equals and not near):
            continue
        findings.append(
            Finding(
                f"{name.partition(':')[0]} is neither an option of {context.command_path} nor a setting",
                None,
                f"did you mean {near[0]}?" if near else "settings are written --KEY=VALUE; --help shows the options",
            )
        )
    if findings:
        from rocketbox.application import RocketBox

        RocketBox.print_failure(ConfigurationError(findings))
        raise typer.Exit(1)
    return first, tuple(arguments)


def _application_in(arguments: Sequence[str]) -> str | None:
    """``module:app`` if there is one, else a module; but never what stands behind --KEY, which may be a password."""
    plain = [
        each
        for before, each in itertools.pairwise(("", *arguments))
        if not each.startswith("-") and not _is_key_alone(before)
    ]
    named = [each for each in plain if ":" in each]
    return next(iter((*named, *plain)), None)


def _is_key_alone(argument: str) -> bool:
    return argument.startswith("--") and "=" not in argument


def _keys_with_a_value_apart(arguments: Sequence[str]) -> Iterator[str]:
    for argument, behind in itertools.pairwise(arguments):
        if _is_key_alone(argument) and not behind.startswith("-"):
            yield argument


@contextmanager
def failures_told(debug: bool) -> Iterator[None]:
    """Print what fails inside as a failed start is printed, and end the command with status 1."""
    from rocketbox.application import RocketBox  # here: other commands start without loading all of it

    try:
        yield
    except BrokenPipeError:  # who reads has seen enough, as head has
        raise
    except Exception as error:
        RocketBox.print_failure(error, debug=debug)
        raise typer.Exit(1) from error


def application_of(target: str, debug: bool) -> RocketBox:
    """The application at ``module:name``; prints what is wrong, and ends the command, when there is none."""
    with failures_told(debug):
        return load_application(target)


def module_and_name(target: str) -> tuple[str, str]:
    """``module:name`` in its parts, the name ``app`` when it is left out; ConfigurationError for a file's name."""
    module, _, name = target.partition(":")
    path = Path(module)
    if len(path.parts) == 1 and not module.endswith(".py"):
        return module, name or "app"
    what = f"{module} is the name of a file, and the application is named by its module"
    folder = path.parent
    if path.is_absolute() or ".." in path.parts:
        before, folder = f"start in {folder}, and ", Path()
    else:
        before = ""
    dotted = ".".join((*folder.parts, path.name.removesuffix(".py")))
    raise ConfigurationError(Finding(what, "the command line", f"{before}write {dotted}:{name or 'app'}"))


def load_application(target: str) -> RocketBox:
    """The application at ``module:name`` (name ``app`` when it is left out), with the current folder importable.

    Raises ConfigurationError when there is none.
    """
    from rocketbox.application import RocketBox
    from rocketbox.autoconfigure.scan import import_finding

    module_name, attribute = module_and_name(target)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(import_finding(module_name, error)) from error
    application = getattr(module, attribute, None)
    if not isinstance(application, RocketBox):
        known = sorted(name for name, value in vars(module).items() if isinstance(value, RocketBox))
        raise ConfigurationError(
            Finding(
                f"{module_name}:{attribute} is no RocketBox",
                module.__file__,
                f"write {module_name}:{known[0]}" if known else f'write app = RocketBox("name") in {module_name}',
            )
        )
    return application
