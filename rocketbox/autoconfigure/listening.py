"""From settings and decorators to what the listeners' registrar takes: values in their types, and who said them.

Putting them together (precedence, groups, checks) is ``listeners.registrar``'s business.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any

from pydantic import ValidationError

from rocketbox.autoconfigure.option_models import Properties
from rocketbox.autoconfigure.properties import ClusterProperties, ListenerProperties, MarkProperties
from rocketbox.boot.masking import MASK
from rocketbox.boot.shapes import uniform
from rocketbox.durations import format_duration
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.hints import name_of, place_of
from rocketbox.listeners.options import LISTENER_OPTIONS, OptionLayer
from rocketbox.listeners.registrar import Candidate, ClusterSettings
from rocketbox.listeners.transaction_listeners import TRANSACTION_LISTENER_OPTIONS
from rocketbox.marks import (
    NAMES_ELSEWHERE,
    rocketmq_listener,
    rocketmq_spark_listener,
    rocketmq_transaction_listener,
    send_to,
)
from rocketbox.spark.query_options import QUERY_OPTIONS

__all__ = ["candidate_of", "cluster_settings", "said_in", "said_in_mark"]

OPTIONS = {**QUERY_OPTIONS, **TRANSACTION_LISTENER_OPTIONS, **LISTENER_OPTIONS}

AnyMark = rocketmq_listener | rocketmq_spark_listener | rocketmq_transaction_listener

Where = Callable[[str], str | None]
"""Where a key was written (``file:line:column``, an environment name, an argument); None for a default."""

ResolveText = Callable[[str, str, str], str]
"""(text, whose text, where) -> the text with its ``${...}`` replaced; ConfigurationError for one that cannot be."""


def cluster_settings(prefix: str, properties: ClusterProperties, where: Where) -> ClusterSettings:
    """What the settings below ``prefix`` say about listeners.

    Raises ConfigurationError for a key of a listener that is neither an option nor a topic switch.
    """
    consumer = properties.consumer
    listeners = f"{prefix}.consumer.listeners"

    def layer(path: str, model: Properties) -> OptionLayer:
        return OptionLayer(
            said_in(model), lambda name: where(f"{path}.{name.replace('_', '-')}") or f"default of {path}"
        )

    findings = []
    groups: dict[str, OptionLayer] = {}
    switches: dict[str, dict[str, bool]] = {}
    for group, listener in consumer.listeners.items():
        groups[group] = layer(f"{listeners}.{group}", listener)
        for name, value in (listener.model_extra or {}).items():
            if isinstance(value, bool) or value in ("true", "false"):
                switches.setdefault(group, {})[name] = value in (True, "true")
            else:
                findings.append(_unknown(f"{listeners}.{group}", name, where))
    if findings:
        raise ConfigurationError(findings)
    defaults = layer(f"{prefix}.consumer", consumer)
    if consumer.group is not None:
        defaults = OptionLayer({**defaults.values, "group": consumer.group}, defaults.where)
    return ClusterSettings(
        prefix=prefix,
        off_by=_off_by(prefix, properties),
        defaults=defaults,
        groups=groups,
        switches=switches,
        where_switched=lambda name: where(f"{listeners}.{name}") or listeners,
        option_meant=lambda name: _option_meant(name, 0.75),  # topics may be somewhat like an option
    )


def said_in(model: Properties) -> dict[str, Any]:
    """The listener options that a model was given, by name; as the client has them."""
    return {
        name: value
        for name, value in model.values().items()
        if name in OPTIONS and name in model.model_fields_set and value is not None
    }


def _off_by(prefix: str, properties: Any) -> str | None:
    if properties.is_off:
        return f"{prefix}.name-server"
    return None if properties.consumer.enabled else f"{prefix}.consumer.enabled"


_OPTION_KEYS = [field.alias or name for name, field in ListenerProperties.model_fields.items()]
_OF_A_CLUSTER = ("nameserver", "accesschannel", "tlsenable", "instancename")


def _unknown(path: str, name: str, where: Where) -> Finding:
    if uniform(name) in _OF_A_CLUSTER:
        fix = "put the cluster under rocketmq.clusters.<name> and name it in the decorator, by cluster="
    elif meant := _option_meant(name, 0.6):
        fix = f"did you mean {path}.{meant}?"
    else:
        fix = f"options are: {', '.join(sorted(_OPTION_KEYS))}"
    return Finding(f"{path}.{name} is no option of a listener", where(f"{path}.{name}"), fix)


def _option_meant(name: str, likeness: float) -> str | None:
    """The option that a key is so much like; of two letters, one may be wrong."""
    elsewhere = NAMES_ELSEWHERE.get(uniform(name), "").replace("_", "-")
    if elsewhere in _OPTION_KEYS:
        return elsewhere
    return next(iter(difflib.get_close_matches(name, _OPTION_KEYS, 1, likeness if len(name) > 2 else 0.5)), None)


def candidate_of(
    function: Callable[..., Any],
    mark: rocketmq_listener,
    replies: tuple[send_to, ...],
    *,
    resolve_text: ResolveText,
    owner: Any = None,
) -> Candidate:
    """A marked function with what its decorator says, its ``${...}`` resolved and its times read.

    Raises ConfigurationError with everything that is wrong in the decorator.
    """
    here = place_of(function)
    name = name_of(function)
    values, findings = said_in_mark(mark, MarkProperties, f"listener {name}", here, resolve_text)
    sent_on = tuple(_resolved_reply(reply, name, here, resolve_text, findings) for reply in replies)
    if findings:
        raise ConfigurationError(findings)
    return Candidate(function, OptionLayer(values, lambda option: here), sent_on, owner)


def said_in_mark(
    mark: AnyMark,
    model: type[Properties],
    label: str,
    here: str,
    resolve_text: ResolveText,
) -> tuple[dict[str, Any], list[Finding]]:
    """What a decorator says that has the options of ``model``, in their final types; and all that is wrong in it."""
    findings: list[Finding] = []
    given: dict[str, Any] = {}
    for option in model.declared:
        value = getattr(mark, option)
        if isinstance(value, str) and "${" in value:
            value = _resolved(value, f"{option} of {label}", here, resolve_text, findings)
        elif isinstance(value, Mapping):
            value = {
                key: _resolved(each, f"{option} of {label}", here, resolve_text, findings)
                if isinstance(each, str) and "${" in each
                else each
                for key, each in value.items()
            }
        if value is not None:
            given[option] = value
    if findings and isinstance(given.get("options"), dict):
        given.pop("options")  # what could not be resolved is told already
    try:
        return said_in(model.model_validate(given)), findings
    except ValidationError as error:
        wrong = [_wrong_value(problem, label, given, mark, here) for problem in error.errors(include_url=False)]
        return {}, findings + wrong


def _wrong_value(
    problem: Any,
    label: str,
    given: Mapping[str, Any],
    mark: AnyMark,
    here: str,
) -> Finding:
    option = str(problem["loc"][0]).replace("-", "_")
    written, value = getattr(mark, option, None), given.get(option)
    shown = repr(format_duration(value)) if isinstance(value, timedelta) else repr(value)
    what = f"{option} of {label} is {MASK if OPTIONS[option].secret else shown}"
    fix = "correct the decorator"
    if problem["type"] == "string_too_short":
        what = f"{option} of {label} is empty"
        fix = f"write {option}='...', or leave it out where the settings say it"
    elif problem["type"] in _PLAIN_TYPES:
        right, example = _PLAIN_TYPES[problem["type"]]
        what += f", and must be {right}"
        fix = f"write {option}={example}"
    elif problem["msg"].startswith("must "):
        what += f", and {problem['msg']}"
        right = problem["msg"].removeprefix("must be ")
        fix = f"choose a value {right}" if right.startswith("from ") else f"choose {right}"
    else:
        what += f": {problem['msg'].removeprefix('Value error, ')}"
        fix = _right_value(type(mark), option) or fix
    if written != value:
        return Finding(what, here, f"correct what {written} stands for, or the decorator")
    return Finding(what, here, fix)


def _right_value(mark: type, option: str) -> str | None:
    """What to write for an option whose value is of no use: a member of its enum, or a time."""
    hints = typing.get_args(typing.get_type_hints(mark)[option])
    for kind in hints:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return f"write {option}={' or '.join(str(member) for member in kind)}"
    return f"write {option}='30s', or timedelta(seconds=30)" if timedelta in hints else None


_PLAIN_TYPES = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), ("a whole number", "3")),
    **dict.fromkeys(("bool_parsing", "bool_type"), ("True or False", "True")),
    "string_type": ("text", "'...'"),
    "dict_type": ("a dict of names and text", "{'name': 'text'}"),
}


def _resolved_reply(
    reply: send_to, name: str, here: str, resolve_text: ResolveText, findings: list[Finding]
) -> send_to:
    texts: dict[str, Any] = {}
    for field in dataclasses.fields(reply):
        value = getattr(reply, field.name)
        if isinstance(value, str) and "${" in value:
            text = _resolved(value, f"send_to of {name}", here, resolve_text, findings)
            texts[field.name] = value if text is None else text
    return dataclasses.replace(reply, **texts)


def _resolved(text: str, what: str, here: str, resolve_text: ResolveText, findings: list[Finding]) -> str | None:
    """The text with its ``${...}`` replaced; None, and a finding, when that cannot be."""
    try:
        return resolve_text(text, what, here)
    except ConfigurationError as error:
        findings += error.findings
        return None
