"""Which values of settings are secret, and the texts that must never be shown.

Secret is what comes from a directory of secrets, what a model declares as ``SecretStr`` (``SecretBytes``, ``Secret``),
a key whose name says so (``password``, ``token``, ``access-key``), a variable of such a name that ``${...}`` refers to,
and the password in a URL or connection text. How they are replaced in text is the business of ``boot.masking``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from rocketbox.boot.masking import MIN_INSIDE
from rocketbox.boot.origins import Group, Listing, Raw, Ready, Scalar
from rocketbox.boot.shapes import Leaf, Section, Shape, Table, item_of

__all__ = [
    "credentials_in",
    "has_secret_name",
    "is_guessable",
    "is_secret",
    "secret_values",
    "secrets_in",
]

_SECRET_NAME = re.compile(
    r"secret|passw(or)?d|passphrase|pwd\b|token(?![a-z])|credential|(access|private|api|signing|encryption)[-_.]?key",
    re.IGNORECASE,
)
_KEY_IN_PARTS = re.compile(r"(access|secret|private|api|signing|encryption)\.key", re.IGNORECASE)
_IN_URL = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
_IN_PARAMETERS = re.compile(r"(?:password|passwd|pwd|secret|token)=([^&;,\s'\"]+)", re.IGNORECASE)
_DEFAULT = re.compile(r"\$\{([^:{}]+):([^${}]+)\}")
_FOLDERS = ("PWD", "OLDPWD")  # the shell's
_PLAIN_WORDS = frozenset("true false null none yes no on off".split())


def has_secret_name(name: str) -> bool:
    """Whether the name of a key or variable says that its value is secret."""
    return name not in _FOLDERS and bool(_SECRET_NAME.search(name))


def is_secret(path: Sequence[str], shape: Shape | None, raw: Raw | None = None) -> bool:
    """Whether a value must never be shown: by its source, its type, or the name of its key."""
    if isinstance(raw, Scalar) and raw.secret:
        return True
    if isinstance(raw, Ready) and isinstance(raw.value, SecretStr | SecretBytes | Secret):
        return True
    alternatives = [shape, item_of(shape), None if isinstance(shape, Leaf | None) else shape.scalar]
    if any(isinstance(each, Leaf) and each.is_secret for each in alternatives):
        return True
    return bool(path) and (has_secret_name(path[-1]) or bool(_KEY_IN_PARTS.fullmatch(".".join(path[-2:]))))


def secrets_in(path: Sequence[str], shape: Shape | None, raw: Raw) -> Iterator[Scalar | Ready]:
    """The values in a raw value that must never be shown; it is one itself, or has some in its lists and groups."""
    if isinstance(raw, Listing):
        for item in raw.items:
            yield from secrets_in(path, item_of(shape), item)
    elif isinstance(raw, Group):
        for name, _, inner in raw.entries:
            known = shape.by_key(name) if isinstance(shape, Section) else None
            value = shape.value if isinstance(shape, Table) else None
            yield from secrets_in((*path, name), value if known is None else known.shape, inner)
    elif is_secret(path, shape, raw) or (isinstance(raw, Ready) and any(secret_values(raw.value))):
        yield raw


def secret_values(value: Any, name: str = "") -> Iterator[str]:
    """The secret texts in a Python value: what is declared as a secret, or stands under a name that says so."""
    if isinstance(value, SecretStr | SecretBytes | Secret):
        inner = value.get_secret_value()
        yield inner.decode(errors="replace") if isinstance(inner, bytes) else str(inner)
    elif isinstance(value, BaseModel):
        for field in (*type(value).model_fields, *(value.model_extra or ())):
            yield from secret_values(getattr(value, field), field)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from secret_values(getattr(value, each.name, None), each.name)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from secret_values(inner, str(key))
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from secret_values(inner, name)
    elif isinstance(value, str) and has_secret_name(name):
        yield value


def credentials_in(text: str) -> Iterator[str]:
    """The passwords in a URL (``db://user:password@host``), in parameters (``password=...``), and as the default of a
    placeholder (``${PASSWORD:...}``)."""
    for pattern in (_IN_URL, _IN_PARAMETERS):
        yield from (found for found in pattern.findall(text) if "${" not in found)
    yield from (default for name, default in _DEFAULT.findall(text) if has_secret_name(name))


def is_guessable(secret: str, public: Iterable[str]) -> bool:
    """Whether a secret is a short or plain word that also stands in public, as a key or as the value of one.

    To replace it there would hide nothing, and say which word it is.
    """
    if len(secret) >= MIN_INSIDE and not secret.isalpha():
        return False
    return secret.lower() in _PLAIN_WORDS or secret in public
