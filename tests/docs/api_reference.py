"""A reference page of what a package offers, from its ``__all__``: signatures and docstrings, as Markdown.

Docstrings are the source; what the page says wrongly is mended there.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from rocketbox.loops import is_coroutine_function

__all__ = ["api_reference"]

ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):`~?([^`]+)`")
CODE = re.compile(r"``(.+?)``", re.DOTALL)
LONG = 88  # characters of a signature in one line


def api_reference(package: str) -> str:
    """The public names of a package, in the order of the alphabet, each with its docstring and its public members."""
    module = importlib.import_module(package)
    parts = [
        part for name in sorted(module.__all__, key=str.casefold) for part in _entry(name, getattr(module, name), "###")
    ]
    return "\n\n".join(parts)


def _entry(name: str, value: Any, heading: str) -> Iterator[str]:
    if isinstance(value, type):
        yield f"{heading} `{name}`"
        yield from _text(value)
        if issubclass(value, Enum):
            yield ", ".join(f"`{member.name}`" for member in value)
        elif signature := _signature(name, value):
            yield _code(signature)
        yield from _members(value, f"{heading}#")
    elif callable(value) and (text := inspect.getdoc(value)):
        yield f"{heading} `{name}`"
        yield markdown(text)
        if not isinstance(value, type(Any)):
            yield _code(_signature(name, value))


def _text(value: Any) -> Iterator[str]:
    text = inspect.cleandoc(value.__doc__ or "")
    if text and not text.startswith(f"{value.__name__}("):  # what a dataclass without one gets
        yield markdown(text)


def _members(value: type, heading: str) -> Iterator[str]:
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            text = inspect.getdoc(member)
            yield f"{heading} `{value.__name__}.{name}`"
            if text:
                yield markdown(text)
            continue
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(plain) and (text := inspect.getdoc(plain)):
            yield f"{heading} `{value.__name__}.{name}`"
            yield markdown(text)
            yield _code(_signature(name, plain))


def _signature(name: str, value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # an exception whose __init__ is Python's own
        return ""
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    signature = signature.replace(parameters=parameters)
    prefix = "await " if is_coroutine_function(value) else ""
    returns = "" if isinstance(value, type) or signature.return_annotation is signature.empty else _returned(signature)
    line = f"{prefix}{name}({', '.join(_parameters(signature))}){returns}"
    if len(line) <= LONG:
        return line
    inside = "".join(f"    {parameter},\n" for parameter in _parameters(signature))
    return f"{prefix}{name}(\n{inside}){returns}"


def _parameters(signature: inspect.Signature) -> list[str]:
    text: list[str] = []
    starred = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            text.append("*")
            starred = True
        text.append(_parameter(parameter))
    return text


def _parameter(parameter: inspect.Parameter) -> str:
    star = (
        "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    )
    text = f"{star}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_hint(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {_default(parameter.default)}"
    return text


def _hint(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(default: Any) -> str:
    """As somebody would write it; ``...`` for what is made anew each time, or has no text of its own."""
    if isinstance(default, Enum):
        return f"{type(default).__name__}.{default.name}"
    if (
        type(default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS"
        or inspect.isfunction(default)
        or (dataclasses.is_dataclass(default) and not isinstance(default, type))
    ):
        return "..."
    return repr(default)


def _returned(signature: inspect.Signature) -> str:
    return f" -> {_hint(signature.return_annotation)}"


def _code(text: str) -> str:
    return f"```text\n{text}\n```"


def markdown(text: str) -> str:
    """A docstring as Markdown."""
    text = ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", text)
    return CODE.sub(lambda match: f"`{match[1]}`", text)
