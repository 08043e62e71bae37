"""The parts of the documentation that are made from the code; ``python -m tests.docs.generated`` writes them anew.

They stand between ``<!-- generated: NAME -->`` and ``<!-- end -->``. What is written by hand around them stays.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from rocketbox.autoconfigure.loading import settings_models
from rocketbox.autoconfigure.option_models import default_of
from rocketbox.boot.effective import format_value
from rocketbox.boot.reference import markdown_reference, markdown_table
from rocketbox.broker.options import broker_settings
from rocketbox.cli.app import app
from rocketbox.declarations import BYTES, MILLISECONDS, Option, bounds_in_words
from rocketbox.listeners.options import FUNCTION_OPTIONS, GROUP_OPTIONS, LISTENER_OPTIONS
from rocketbox.marks import rocketmq_listener
from rocketbox.sizes import format_size
from rocketbox.spark.options import OPTIONS
from rocketbox.spark.write_options import WRITE_OPTIONS
from tests.docs.api_reference import api_reference
from tests.mutants.equivalent import EQUIVALENT

__all__ = ["generated", "parts", "pages_with_parts"]

ROOT = Path(__file__).parents[2]
PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _keys() -> str:
    return markdown_reference(settings_models([]), heading="###")


def _listener_options() -> str:
    """The options of the decorator: their names there and in YAML, their types and defaults, and whose they are."""
    rows = []
    for name, hint in typing.get_type_hints(rocketmq_listener).items():
        option = LISTENER_OPTIONS[name]
        (kind, *others) = [each for each in typing.get_args(hint) if each is not type(None)]
        if isinstance(kind, type) and issubclass(kind, Enum):
            takes = ", ".join(f"`{kind.__name__}.{member.name}`" for member in kind)
        else:
            takes = "a `timedelta`, or text with a unit" if others else f"`{kind.__name__}`"
            if kind is datetime:
                takes = "a `datetime`, or text: ISO or `yyyyMMddHHmmss`"
            elif words := bounds_in_words(option):
                takes += f", {words}"
        default = default_of(option)
        key = "" if option.key is None else f"`{option.key}`"
        whose = "group" if name in GROUP_OPTIONS else "function" if name in FUNCTION_OPTIONS else ""
        rows.append((f"`{name}`", key, takes, "" if default is None else f"`{format_value(default)}`", whose))
    return markdown_table(("In the decorator", "Key", "Takes", "Default", "Belongs to the"), rows)


def _broker_settings() -> str:
    """Apache's settings that the embedded broker has, as broker and store declare them."""
    return broker_settings_table(broker_settings())


def broker_settings_table(settings: Mapping[str, Option]) -> str:
    """A table of settings: what each takes, its default, and what it does."""
    names = {BYTES: "a size", MILLISECONDS: "a time", bool: "true or false", int: "a whole number", str: "text"}
    rows = []
    for key, option in settings.items():
        if isinstance(option.kind, type) and issubclass(option.kind, Enum):
            takes = ", ".join(f"`{member.value}`" for member in option.kind)
        else:
            takes = ", ".join(filter(None, (names[option.unit or option.kind], bounds_in_words(option))))
        default = format_size(option.default) if option.unit is BYTES else format_value(default_of(option))
        rows.append((f"`{key}`", takes, "" if option.default is None else f"`{default}`", option.words))
    return markdown_table(("Setting", "Takes", "Default", "Meaning"), rows)


def _spark_source_options() -> str:
    """The options of a read by the data source: which reads take them, and their names in Spark's Kafka source."""
    uses = {"both": "both", "batch": "`spark.read`", "stream": "`spark.readStream`"}
    rows = [
        (
            f"`{option.name}`",
            uses[option.use],
            option.default,
            option.meaning,
            ", ".join(f"`{name}`" for name in option.kafka),
        )
        for option in OPTIONS
    ]
    return markdown_table(("Option", "For", "Default", "Meaning", "In the Kafka source"), rows)


def _spark_write_options() -> str:
    """The options of a write by the data source, and their names in Spark's Kafka sink."""
    rows = [
        (f"`{option.name}`", option.default, option.meaning, ", ".join(f"`{name}`" for name in option.kafka))
        for option in WRITE_OPTIONS
    ]
    return markdown_table(("Option", "Default", "Meaning", "In the Kafka sink"), rows)


def _commands() -> str:
    """Every command with its words, arguments and options, as its help says them."""
    commands = [(each.name or "", each.callback) for each in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        commands += [(f"{group.name} {each.name}", each.callback) for each in group.typer_instance.registered_commands]
    return "\n\n".join(_command(name, function) for name, function in commands if function)


def _command(name: str, function: Callable[..., Any]) -> str:
    usage, rows = ["rocketbox", name], []
    for parameter, hint in typing.get_type_hints(function, include_extras=True).items():
        infos = [each for each in typing.get_args(hint) if isinstance(each, ArgumentInfo | OptionInfo)]
        for info in infos:
            if isinstance(info, ArgumentInfo):
                usage.append(info.metavar or parameter.upper())
            elif not info.hidden:
                default = inspect.signature(function).parameters[parameter].default
                rows.append((f"`{_option(parameter, info)}`", *_option_cells(hint, info, default)))
    return "\n\n".join(
        [
            f"## `{' '.join(usage)}`",
            _words(inspect.cleandoc(function.__doc__ or "")),
            markdown_table(("Option", "Takes", "Default", "Meaning"), rows),
        ]
    )


def _option(parameter: str, info: OptionInfo) -> str:
    names = [info.default, *(info.param_decls or ())]  # within Annotated the first name comes as the default
    said = [name for name in names if isinstance(name, str) and name.startswith("--")]
    return said[0] if said else f"--{parameter.replace('_', '-')}"


def _option_cells(hint: Any, info: OptionInfo, default: Any) -> tuple[str, str, str]:
    kind, *_ = typing.get_args(hint)
    kinds = [each for each in typing.get_args(kind) or (kind,) if each is not type(None)]
    many = typing.get_origin(kinds[0]) is list
    (kind,) = typing.get_args(kinds[0]) if many else kinds[:1]
    names = {bool: "", int: "a whole number", Path: "a path", str: "text"}
    if info.metavar is None and isinstance(kind, type) and issubclass(kind, Enum):
        takes = ", ".join(f"`{member.value}`" for member in kind)
    else:
        takes = f"`{info.metavar}`" if info.metavar else names[kind]
    if default is inspect.Parameter.empty:
        return takes, "required", _words(info.help)
    return takes, "" if default is None or kind is bool else f"`{format_value(default)}`", _words(info.help)


def _words(text: str | None) -> str:
    """A help text as Markdown: what begins with ``--`` is code."""
    return re.sub(r"(?<![\w`])(--[A-Za-z][\w.-]*(?:=[\w.:/-]*\w)?)", r"`\1`", (text or "").strip())


def _equivalent_mutants() -> str:
    rows = [
        (f"`{module.removeprefix('rocketbox/')}`", f"``{before}``", f"``{after}``", why)
        for (module, before, after), why in sorted(EQUIVALENT.items())
    ]
    return markdown_table(("Module", "Line", "Mutant", "Why"), rows)


parts: Mapping[str, Callable[[], str]] = {
    "keys": _keys,
    "listener-options": _listener_options,
    "broker-settings": _broker_settings,
    "spark-source-options": _spark_source_options,
    "spark-write-options": _spark_write_options,
    "commands": _commands,
    "equivalent-mutants": _equivalent_mutants,
    "api-rocketbox": partial(api_reference, "rocketbox"),
    "api-client": partial(api_reference, "rocketbox.client"),
    "api-embedded": partial(api_reference, "rocketbox.embedded"),
    "api-otel": partial(api_reference, "rocketbox.otel"),
}


def generated(page: str) -> str:
    """The text of a page with its generated parts made anew; KeyError for one that nobody makes."""
    return PART.sub(lambda match: f"{match[1]}\n{parts[match['name']]()}\n\n{match[3]}", page)


def pages_with_parts() -> list[Path]:
    """The pages that have generated parts."""
    return [page for page in sorted((ROOT / "docs").rglob("*.md")) if PART.search(page.read_text("utf-8"))]


if __name__ == "__main__":
    for path in pages_with_parts():
        path.write_text(generated(path.read_text("utf-8")), "utf-8")
        print(path.relative_to(ROOT))
