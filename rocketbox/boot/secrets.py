"""Which values of settings are secret, and the texts that must never be shown.

Secret is what comes from a directory of secrets, what a model declares as ``SecretStr`` (``SecretBytes``, ``Secret``),
a key whose name says so (``password``, ``token``, ``access-key``), a variable of such a name that ``${...}`` refers to,
and what looks like it: the password in a URL or connection text, a JWT, a private key; of a name server's URL all that
stands behind the ``?``. How they are replaced in text is the business of ``boot.masking``.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from rocketbox.boot.masking import MIN_INSIDE
from rocketbox.boot.origins import Group, Listing, Raw, Ready, Scalar
from rocketbox.boot.shapes import Leaf, Section, Shape, Table, item_of

__all__ = [
    "behind_a_question_mark",
    "credentials_in",
    "credentials_within",
    "has_secret_name",
    "is_guessable",
    "is_secret",
    "names_a_user",
    "secret_values",
    "secrets_in",
    "secrets_of",
]

_KEY = r"(?:access|secret|private|api|signing|encryption|account|shared[-_.]?access)[-_.]?key"
_SECRET_NAME = re.compile(
    rf"secret|passw(or)?d|passphrase|pwd\b|token(?![a-z])|credential|init[-_.]?authentication[-_.]?user|{_KEY}"
    r"|(?<![a-z])(auth|authorization|jwt|pem)$",  # as a word, and the last one: auth-method is none
    re.IGNORECASE,
)
_LAST_WORD = re.compile(r"[a-z0-9](Auth|Authorization|Jwt|Pem)$")
_KEY_IN_PARTS = re.compile(r"(access|secret|private|api|signing|encryption)\.key", re.IGNORECASE)

# Of texts which may end in more than one place, each pattern finds the longest and the shortest: both are masked.
_IN_URL = tuple(re.compile(rf"://[^/\s:]*:([^/\s]+{lazy})@") for lazy in ("", "?"))
_WITHOUT_SCHEME = re.compile(r"(?!(?:mailto|sips?|xmpp|tel):)[\w.+-]+:([^\s/][^\s]*)@[\w.-]+(?::\d+)?(?:[/?].*)?")
_ORACLE = re.compile(r"jdbc:oracle:\w+:[^/\s]+/([^\s]+?)@", re.IGNORECASE)
_NAMES = rf"(?:password|passwd|passphrase|pwd|secret|token|signature|(?<![a-z])(?:sig|pass)|{_KEY})"
_IN_PARAMETERS = tuple(
    re.compile(rf"{_NAMES}{value}", re.IGNORECASE)
    for value in (
        r"\s*=\s*([^&;,\s'\"][^&;,\s'\"]*)",
        r"\s*=\s*([^&;,\s'\"][^&;,\s]*)",
        r"[\"']?\s*[:=]\s*\"((?:[^\"\\]|\\.)+)\"",
        r"[\"']?\s*[:=]\s*'((?:[^'\\]|\\.|'')+)'",
    )
)
_ON_ITS_OWN = (
    re.compile(r"\b(?:bearer|basic)\s+([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE),
    re.compile(r"\b(eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*)"),  # a JWT
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))", re.DOTALL),
)
_NAME_SERVERS = re.compile(r"name[-_.]?servers?|namesrv[-_.]?addr", re.IGNORECASE)
_USER_NAME = re.compile(r"access[-_.]?key([-_.]?id)?", re.IGNORECASE)
_DEFAULT = re.compile(r"\$\{([^:{}]+):([^${}]+)\}")
_NAMES_A_FILE = re.compile(r"[-_.](?:file|FILE|path|PATH)$|[a-z](?:File|Path)$")
_FOLDERS = ("PWD", "OLDPWD")  # the shell's
_PLAIN_WORDS = frozenset("true false null none yes no on off".split())


@functools.lru_cache(maxsize=4096)  # the same keys and variables are asked for over and over
def has_secret_name(name: str) -> bool:
    """Whether the name of a key or variable says that its value is secret, and not where a file with it is."""
    if name in _FOLDERS or _NAMES_A_FILE.search(name):
        return False
    return bool(_SECRET_NAME.search(name) or _LAST_WORD.search(name))


def names_a_user(path: Sequence[str]) -> bool:
    """Whether a key is one of a pair that says whose the other one, the secret one, is: ``access-key``."""
    return bool(path) and bool(_USER_NAME.fullmatch(path[-1]))


def behind_a_question_mark(path: Sequence[str], text: str) -> str:
    """What stands behind the ``?`` of the URL of an address server, whatever its parameters are called: it may be a
    token. Empty for another key than those of name servers.
    """
    return text.partition("?")[2] if path and _NAME_SERVERS.fullmatch(path[-1]) else ""


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
    if value is None or isinstance(value, int | float):  # as most are; the rest is slower
        return
    if isinstance(value, str):
        if has_secret_name(name):
            yield value
    elif isinstance(value, SecretStr | SecretBytes | Secret):
        inner = value.get_secret_value()
        yield inner.decode(errors="surrogateescape") if isinstance(inner, bytes) else str(inner)
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


def credentials_in(text: str) -> Iterator[str]:
    """What is secret in a text by the look of it.

    The password in a URL (``db://user:password@host``, also without ``db://``) and in parameters (``password=...``,
    ``AccountKey=...``, in quotes or not), the default of a placeholder (``${PASSWORD:...}``), what follows ``Bearer``,
    a JWT, a private key in PEM.
    """
    found = [each for pattern in (*_IN_URL, _ORACLE, *_IN_PARAMETERS, *_ON_ITS_OWN) for each in pattern.findall(text)]
    if (whole := _WITHOUT_SCHEME.fullmatch(text)) is not None:
        found.append(whole[1])
    yield from (each for each in dict.fromkeys(found) if "${" not in each)
    yield from (default for name, default in _DEFAULT.findall(text) if has_secret_name(name))


def credentials_within(value: Any) -> Iterator[str]:
    """As :func:`credentials_in`, of all texts in a Python value."""
    if value is None or isinstance(value, int | float):
        return
    if isinstance(value, str):
        yield from credentials_in(value)
    elif isinstance(value, BaseModel):
        yield from (found for each in (*vars(value).values(), value.model_extra) for found in credentials_within(each))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from credentials_within(getattr(value, each.name, None))
    elif isinstance(value, Mapping):
        yield from (found for each in value.values() for found in credentials_within(each))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (found for each in value for found in credentials_within(each))


def secrets_of(environment: Mapping[str, str]) -> frozenset[str]:
    """Those of variables whose names say that they are secret: what is known before any settings are read."""
    return frozenset(
        value for name, value in environment.items() if has_secret_name(name) and not is_guessable(value, ())
    )


def is_guessable(secret: str, public: Iterable[str]) -> bool:
    """Whether a secret is a short or plain word that also stands in public, as a key or as the value of one.

    To replace it there would hide nothing, and say which word it is.
    """
    if len(secret) >= MIN_INSIDE and not secret.isalpha():
        return False
    return secret.lower() in _PLAIN_WORDS or secret in public
