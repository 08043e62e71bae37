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
from datetime import timedelta
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from rocketbox.boot.masking import MIN_INSIDE
from rocketbox.boot.origins import Group, Listing, Raw, Ready, Scalar
from rocketbox.boot.shapes import UNDECLARED, Leaf, Section, Shape, Table, item_of

__all__ = [
    "behind_a_question_mark",
    "credentials_in",
    "credentials_within",
    "has_secret_name",
    "holds_a_secret",
    "is_guessable",
    "is_secret",
    "names_a_user",
    "reveals",
    "secret_values",
    "secrets_in",
    "secrets_of",
]

_KEY = r"(?:access|secret|private|api|signing|encryption|account|shared[-_.]?access)[-_.]?key"
_SECRET_NAME = re.compile(
    rf"secret|passw(or)?d|passphrase|pwd\b|token(?![a-z])|credential|init[-_.]?authentication[-_.]?user|{_KEY}"
    r"|(?<![a-z])(auth|authorization|jwts?|pems?)$",  # as a word, and the last one: auth-method is none
    re.IGNORECASE,
)
_LAST_WORD = re.compile(r"[a-z0-9](Auth|Authorization|Jwts?|Pems?)$")
# Names of secrets, and of numbers and switches as well: context-tokens, band-pass, retry-pass.
_TOKENS = re.compile(r"tokens(?![a-z])", re.IGNORECASE)
_PASS = re.compile(r"(?:(?<![A-Za-z])(?i:pass)|[a-z0-9]Pass)$")
_RUN_TOGETHER = re.compile(r"(?:auth|jwts?|pems?|(?P<may_count>pass))$")  # of keys that no type tells the words of
_COUNTING = (  # words before the tokens that a text is cut into for a language model
    "max", "min", "num", "number", "count", "total", "per", "of", "new", "prompt", "completion", "context", "reasoning",
    "input", "output", "budget", "limit", "stop",
)  # fmt: skip
_COUNTED_TOKENS = re.compile(
    rf"(?:(?<![A-Za-z])(?i:{'|'.join(_COUNTING)})|(?<=[A-Za-z0-9])(?:{'|'.join(map(str.title, _COUNTING))}))[-_.]?"
    r"(?i:tokens)|(?i:tokens[-_.]?(?:per|limit|count|budget|max|used))"
)
_COUNT = re.compile(r"[-+]?\.?\d[\d_.]*(?:e[-+]?\d+)?|true|false", re.IGNORECASE)
_AROUND_A_COUNT = "()[]{}.:!?'\""  # of what stands in a sentence
_COUNTS = (bool, int, float, Decimal, timedelta)
_KEY_IN_PARTS = re.compile(r"(access|secret|private|api|signing|encryption)\.keys?", re.IGNORECASE)

# Of texts which may end in more than one place, each pattern finds the longest and the shortest: both are masked.
_IN_URL = tuple(re.compile(rf"://[^/\s:]*:([^/\s]+{lazy})@") for lazy in ("", "?"))
_WITHOUT_SCHEME = re.compile(r"(?!(?:mailto|sips?|xmpp|tel):)[\w.+-]+:([^\s/][^\s]*)@[\w.-]+(?::\d+)?(?:[/?].*)?")
_ORACLE = re.compile(r"jdbc:oracle:\w+:[^/\s]+/([^\s]+?)@", re.IGNORECASE)
_NAMES = (
    r"(?:passwords?|passwd|passphrase|pwd|secrets?|token|(?P<may_count>tokens|(?<![a-z])pass)|signature|(?<![a-z])sig"
    rf"|{_KEY}s?)"
)
_IN_PARAMETERS = tuple(
    re.compile(rf"{_NAMES}{value}", re.IGNORECASE)
    for value in (
        r"\s*=\s*(?P<value>[^&;,\s'\"][^&;,\s'\"]*)",
        r"\s*=\s*(?P<value>[^&;,\s'\"][^&;,\s]*)",
        r"[\"']?\s*[:=]\s*\"(?P<value>(?:[^\"\\]|\\.)+)\"",
        r"[\"']?\s*[:=]\s*'(?P<value>(?:[^'\\]|\\.|'')+)'",
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
# Whether servers ask for a certificate, as Apache and Java call it: no secret, and its values are plain words.
_ASKS_CLIENTS = re.compile(r"(?:need|want)[-_.]?client[-_.]?auth$", re.IGNORECASE)
_NAMES_A_FILE = re.compile(r"[-_.](?:file|FILE|path|PATH)$|[a-z](?:File|Path)$")
_LONGEST_COUNTING = max(map(len, _COUNTING)) + 2  # with what stands beside it
_FOLDERS = ("PWD", "OLDPWD")  # the shell's
_PLAIN_WORDS = frozenset("true false null none yes no on off".split())


@functools.lru_cache(maxsize=4096)  # the same keys and variables are asked for over and over
def has_secret_name(name: str) -> bool:
    """Whether the name of a key or variable says that its value is secret, and not where a file with it is."""
    if name in _FOLDERS or _NAMES_A_FILE.search(name) or _ASKS_CLIENTS.search(name):
        return False
    return _always_names_a_secret(name) or _may_name_a_count(name)


def holds_a_secret(name: str, text: str) -> bool:
    """Whether the text that stands under a name, of which no type is known, is secret: as :func:`has_secret_name`, but
    no plain number, true or false under one that may as well count or switch (``CONTEXT_TOKENS``, ``retry-pass``).
    """
    return has_secret_name(name) and (_always_names_a_secret(name) or not _is_a_count(text))


def _always_names_a_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _LAST_WORD.search(name))


def _may_name_a_count(name: str) -> bool:
    return bool(_PASS.search(name) or (_TOKENS.search(name) and not _COUNTED_TOKENS.search(name)))


def _is_a_count(text: str) -> bool:
    return _COUNT.fullmatch(text.strip()) is not None


def names_a_user(path: Sequence[str]) -> bool:
    """Whether a key is one of a pair that says whose the other one, the secret one, is: ``access-key``."""
    return bool(path) and bool(_USER_NAME.fullmatch(path[-1]))


def behind_a_question_mark(path: Sequence[str], text: str) -> str:
    """What stands behind the ``?`` of the URL of an address server, whatever its parameters are called: it may be a
    token. Empty for another key than those of name servers.
    """
    return text.partition("?")[2] if path and _NAME_SERVERS.fullmatch(path[-1]) else ""


def is_secret(path: Sequence[str], shape: Shape | None, raw: Raw | None = None, *, value: object = None) -> bool:
    """Whether a value must never be shown: by its source, its type, or the name of its key.

    ``raw`` is the value as it is written, or ``value`` the one that the code has, as far as one of them is known.
    """
    if isinstance(raw, Scalar | Ready):
        value = raw.text if isinstance(raw, Scalar) else raw.value
    if isinstance(raw, Scalar) and raw.secret:
        return True
    if isinstance(raw, Ready) and isinstance(raw.value, SecretStr | SecretBytes | Secret):
        return True
    alternatives = [shape, item_of(shape), None if isinstance(shape, Leaf | None) else shape.scalar]
    if any(isinstance(each, Leaf) and each.is_secret for each in alternatives):
        return True
    if not path:
        return False
    if _KEY_IN_PARTS.fullmatch(".".join(path[-2:])):
        return True
    if _ASKS_CLIENTS.search(path[-1]):
        return False
    if (shape is None or shape is UNDECLARED) and (found := _RUN_TOGETHER.search(path[-1])):
        return not (found["may_count"] and _counts(alternatives, value))
    return has_secret_name(path[-1]) and (_always_names_a_secret(path[-1]) or not _counts(alternatives, value))


def _counts(alternatives: Sequence[Shape | None], value: object) -> bool:
    """Whether a value is declared as a number, a switch or a time; where it may be anything else, whether it is one."""
    kinds = [kind for each in alternatives if isinstance(each, Leaf) for kind in each.kinds]
    counts = [isinstance(kind, type) and issubclass(kind, _COUNTS) for kind in kinds]
    if kinds and (all(counts) or not any(counts)):
        return all(counts)
    return isinstance(value, _COUNTS) or (isinstance(value, str) and _is_a_count(value))


def reveals(path: Sequence[str], shape: Shape | None, value: Any) -> bool:
    """Whether a value that the code has, such as a default, must not be shown: as :func:`is_secret`, or by its look."""
    if is_secret(path, shape, value=value) or any(secret_values(value)) or any(credentials_within(value)):
        return True
    return isinstance(value, str) and bool(behind_a_question_mark(path, value))


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
            if not isinstance(inner, str) or holds_a_secret(str(key), inner):
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
    found = [each for pattern in (*_IN_URL, _ORACLE, *_ON_ITS_OWN) for each in pattern.findall(text)]
    found += (each["value"] for pattern in _IN_PARAMETERS for each in pattern.finditer(text) if not _is_counted(each))
    if (whole := _WITHOUT_SCHEME.fullmatch(text)) is not None:
        found.append(whole[1])
    yield from (each for each in dict.fromkeys(found) if "${" not in each)
    yield from (default for name, default in _DEFAULT.findall(text) if holds_a_secret(name, default))


def _is_counted(parameter: re.Match[str]) -> bool:
    """Whether a parameter of a text is a number of tokens, or a number or switch under a name that may be one."""
    if parameter["may_count"] is None:
        return False
    if _is_a_count(parameter["value"].strip(_AROUND_A_COUNT)):
        return True
    name = parameter.string[max(0, parameter.start() - _LONGEST_COUNTING) : parameter.end("may_count")]
    return _COUNTED_TOKENS.search(name) is not None


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
        value for name, value in environment.items() if holds_a_secret(name, value) and not is_guessable(value, ())
    )


def is_guessable(secret: str, public: Iterable[str]) -> bool:
    """Whether a secret is a short or plain word that also stands in public, as a key or as the value of one.

    To replace it there would hide nothing, and say which word it is.
    """
    if len(secret) >= MIN_INSIDE and not secret.isalpha():
        return False
    return secret.lower() in _PLAIN_WORDS or secret in public
