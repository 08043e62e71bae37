"""The settings as they hold in the end, as text: each key with its value, who said it, and who was overruled.

Secrets are masked, also inside of other values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from pydantic import SecretBytes, SecretStr

from rocketbox.boot.masking import MASK, mask
from rocketbox.boot.origins import Group, Listing, Raw, Ready, file_label, split_key
from rocketbox.boot.secrets import is_secret, reveals
from rocketbox.boot.settings import Settings, SourceValue
from rocketbox.boot.shapes import MISSING, Field, Leaf, Section, Shape, Table, has_keys, item_of, key_text, unwrapped
from rocketbox.boot.wording import expected, unknown_key
from rocketbox.durations import format_duration
from rocketbox.errors import ConfigurationError
from rocketbox.sizes import format_size

__all__ = ["Effective", "effective", "explain", "format_value", "render_tree"]

DEFAULT = "default"

_PLAIN = re.compile(r"-?[\w./$~^=+(][^\n#\"',\[\]{}]*")


@dataclass(frozen=True)
class Effective:
    """A key and its value as a user would write it; ``said`` are those who wrote it, the winner first."""

    path: tuple[str, ...]
    text: str
    said: tuple[SourceValue, ...] = ()

    @property
    def key(self) -> str:
        return key_text(self.path)

    @property
    def origin(self) -> str:
        return str(self.said[0].origin) if self.said else DEFAULT


def effective(settings: Settings) -> list[Effective]:
    """Every key that has a value: as the models declare them, then what is written and no model knows."""
    secrets = settings.secrets
    rows: dict[tuple[str, ...], Effective] = {}
    for prefix, model in settings.models.items():
        parts = tuple(split_key(prefix))
        for path, shape, value in _leaves(model, settings.schema.sections[prefix], parts):
            if path not in settings.winners and value is not None:
                text = MASK if is_secret(path, shape, value=value) and value else format_value(value, shape)
                rows[path] = Effective(path, mask(text, secrets))
            elif path in settings.winners:
                rows[path] = _written(settings, path, secrets)
    for path in settings.winners:
        if path not in rows:
            rows[path] = _written(settings, path, secrets)
    return list(rows.values())


def _written(settings: Settings, path: tuple[str, ...], secrets: frozenset[str]) -> Effective:
    entry = settings.winners[path]
    text = _raw_text(settings, entry.path, entry.shape, entry.raw)
    return Effective(path, mask(text, secrets), tuple(settings.explain(entry.key)))


def _raw_text(settings: Settings, path: tuple[str, ...], shape: Shape | None, raw: Raw) -> str:
    if isinstance(raw, Listing):
        inner = item_of(shape)
        return f"[{', '.join(_raw_text(settings, path, inner, item) for item in raw.items)}]"
    if isinstance(raw, Group):
        texts = []
        for name, _, value in raw.entries:
            known = shape.by_key(name) if isinstance(shape, Section) else None
            inner = known.shape if known is not None else shape.value if isinstance(shape, Table) else None
            texts.append(f"{name}: {_raw_text(settings, (*path, name), inner, value)}")
        return f"{{{', '.join(texts)}}}"
    if is_secret(path, shape, raw):
        return MASK
    if isinstance(raw, Ready):
        return format_value(raw.value, shape)
    text = settings.texts.of_scalar(raw, key_text(path))
    if text is None:
        return "null"
    needs_quotes = not raw.plain and shape is not None and not isinstance(shape, Leaf)
    return json.dumps(text, ensure_ascii=False) if needs_quotes else _plain(text)


def _leaves(value: Any, shape: Shape, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Shape, Any]]:
    """The values below a model; those that only lead to a deeper prefix come with that one's model."""
    value = unwrapped(value)
    if isinstance(shape, Section) and has_keys(value):
        section = shape.of(value)
        for known in section.own:
            if known.feed is not None and (inner := section.get(value, known)) is not MISSING:
                yield from _leaves(inner, known.shape, (*path, known.key))
    elif isinstance(shape, Table) and isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, shape.value, (*path, str(name)))
    elif value not in ([], (), set(), frozenset()) and not (value is None and isinstance(shape, Section | Table)):
        yield path, shape, value


def format_value(value: Any, shape: Shape | None = None) -> str:
    """A value as one writes it in YAML."""
    if isinstance(value, SecretStr | SecretBytes):
        return MASK
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, int) and isinstance(shape, Leaf) and shape.description.startswith("a size"):
        return format_size(value)
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name
    if isinstance(value, list | tuple | set | frozenset):
        inner = item_of(shape)
        return f"[{', '.join(format_value(item, inner) for item in value)}]"
    value = unwrapped(value)
    if has_keys(value):
        pairs = value.items() if isinstance(value, Mapping) else vars(value).items()
        inner_values = {str(name): format_value(each) for name, each in pairs}
        return f"{{{', '.join(f'{name}: {text}' for name, text in inner_values.items())}}}"
    return _plain(str(value))


def _plain(text: str) -> str:
    """Text in quotes where YAML would read something else without them."""
    is_plain = _PLAIN.fullmatch(text) and ": " not in text and not text.endswith((":", " "))
    return text if is_plain else json.dumps(text, ensure_ascii=False)


# --- as a tree -----------------------------------------------------------------------------------------------------


@dataclass
class _Node:
    row: Effective | None = None
    below: dict[str, _Node] = field(default_factory=dict)


def render_tree(settings: Settings) -> str:
    """All keys as YAML; behind each value who said it, and the places that were overruled."""
    root = _Node()
    for row in effective(settings):
        node = root
        for part in row.path:
            node = node.below.setdefault(part, _Node())
        node.row = row
    files = ", ".join(file_label(file) for file in settings.files) or "none"
    head = [f"# files: {files}", f"# profiles: {', '.join(settings.profiles)}"]
    lines = list(_lines(root, 0))
    width = min(60, max((len(text) for text, row in lines if row is not None), default=0))
    return "\n".join(head + [text if row is None else f"{text:{width}}  # {_who(row)}" for text, row in lines])


def _lines(node: _Node, depth: int) -> Iterator[tuple[str, Effective | None]]:
    for name, inner in node.below.items():
        margin = "  " * depth + _plain(name)
        yield (f"{margin}:" if inner.row is None else f"{margin}: {inner.row.text}"), inner.row
        yield from _lines(inner, depth + 1)


def _who(row: Effective) -> str:
    over = "; ".join(str(said.origin) for said in row.said[1:])
    return f"{row.origin}, over {over}" if over else row.origin


# --- one key -------------------------------------------------------------------------------------------------------


def explain(settings: Settings, key: str) -> str:
    """A key, or all keys of a group: what it takes, its value, who said it, who was overruled, the default.

    Raises ConfigurationError for a key that nobody knows.
    """
    located = settings.schema.locate(split_key(key))
    if located.unknown is not None:
        assert located.within is not None
        raise ConfigurationError(unknown_key(split_key(key), located.path, located.within, "--explain"))
    path = (*located.path, *located.rest)
    rows = [row for row in effective(settings) if row.path[: len(path)] == path]
    if not rows:
        rows = [Effective(path, "not set")]
    return "\n\n".join(_explanation(settings, row) for row in rows)


def _explanation(settings: Settings, row: Effective) -> str:
    lines = [f"{row.key}: {row.text}"]
    _, known = settings.schema.shape_at(row.path)
    if known is not None:
        if known.description:
            lines.append(f"  {known.description}")
        if isinstance(known.shape, Leaf) and known.feed is not None:
            lines.append(f"  takes {known.shape.description or expected(known.shape)}")
    said = list(row.said)
    if said:
        lines.append(f"  from {said[0].origin}")
    lines += [f"  over {each.text or 'nothing'} from {each.origin}" for each in said[1:]]
    default = _default(known)
    if default is not None:
        lines.append(f"  {'over ' if said else ''}{default} by default")
    return "\n".join(lines)


def _default(known: Field | None) -> str | None:
    if known is None or known.default is None or known.default is MISSING:
        return None
    hidden = known.default and reveals([known.key], known.shape, known.default)
    return MASK if hidden else format_value(known.default, known.shape)
