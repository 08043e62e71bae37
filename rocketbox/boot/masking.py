"""Secrets in text: what is replaced by ``******`` before a text is shown, in failures, commands and logs.

Which values are secret is known in ``boot.secrets``. A secret is found as it is, as ``repr`` of text and of bytes and
JSON write it (also one inside of the other), percent-encoded as in a URL, each long line of one that has several lines
(keys in PEM), and the ends of one that was cut to ``abcd...wxyz``, as pydantic cuts values. Other parts of it, base64,
hashes and other encodings are not found: looking for them would cost too much, and hide what is no secret.

A short secret would hide text that has nothing to do with it. So below ``MIN_INSIDE`` letters it is found as a whole
word only, a word of letters alone only where values stand (behind a quote, ``=``, ``:``), and below ``MIN_SEARCHED``
not at all: there only the value of its own key is masked.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote, quote_plus

__all__ = ["MASK", "mask", "masked_traceback"]

MASK = "******"
MIN_SEARCHED = 4
MIN_INSIDE = 8
MIN_LINE = 16  # of a line of a secret that has several
MIN_CUT = 6  # letters beside the dots of a text that was cut

_PLAIN = re.compile(r"[A-Za-z0-9]+")
_DOTS = re.compile(r"\.\.\.|\u2026")
_BEFORE_VALUES = r"(?:^|(?<=['\"=:/@(\[,])|(?<=[:=] ))"


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret in it replaced."""
    known = frozenset(secrets)
    present = frozenset(secret for core, secret in _cores(known) if core in text)  # of hundreds, hardly ever one
    if present and (pattern := _pattern(present)) is not None:
        text = pattern.sub(MASK, text)
    return _mask_ends(text, known)


@lru_cache(maxsize=16)
def _cores(secrets: frozenset[str]) -> list[tuple[str, str]]:
    """Each secret behind a part of it that stands in all of its forms: its longest letters and digits in a row.

    One of several lines comes once for each line that may stand alone.
    """
    lines = [(line, secret) for secret in secrets for line in _lines(secret) or [secret]]
    return [(max(_PLAIN.findall(line), key=len, default=""), secret) for line, secret in lines]


@lru_cache(maxsize=64)
def _pattern(secrets: frozenset[str]) -> re.Pattern[str] | None:
    forms = {form for secret in secrets for form in _forms(secret)}
    longest_first = sorted(forms, key=lambda form: (-len(form), form))  # so that no rest of one stays
    return re.compile("|".join(map(_found_as, longest_first)), re.MULTILINE) if forms else None


def _lines(secret: str) -> list[str]:
    lines = secret.splitlines()
    return [line.strip() for line in lines if len(line.strip()) >= MIN_LINE] if len(lines) > 1 else []


def _forms(secret: str) -> Iterator[str]:
    text = secret.encode(errors="replace").decode()  # a variable may hold bytes that are no UTF-8
    in_urls = (quote(text), quote(text, safe=""), quote_plus(text))
    written = (secret, secret.strip(), *in_urls)
    yield from (form for form in written if len(form) >= MIN_SEARCHED and form.strip())
    yield from _lines(secret)


def _found_as(form: str) -> str:
    pattern = "".join(map(_letter, form))
    if len(form) >= MIN_INSIDE:
        return pattern
    before = _BEFORE_VALUES if form.isalpha() else r"(?<![A-Za-z0-9])" if form[0].isalnum() else ""
    return before + pattern + (r"(?![A-Za-z0-9])" if form[-1].isalnum() else "")


def _letter(letter: str) -> str:
    """A letter, or how it is written inside of quotes, and of quotes inside of quotes."""
    if letter in "'\"":
        return rf"\\*{letter}"
    if letter == "\\":
        return r"\\+"
    if letter.isascii() and letter.isprintable():
        return re.escape(letter)
    code = f"{ord(letter):02x}", f"{ord(letter):04x}", f"{ord(letter):08x}"
    short = {"\n": "|n", "\t": "|t", "\r": "|r"}.get(letter, "")
    pair = letter.encode("utf-16-be", "surrogatepass").hex()  # JSON writes what is above 16 bits as two
    wide = rf"|\\+u{pair[:4]}\\+u{pair[4:]}" if len(pair) == 8 else ""
    return rf"(?:{re.escape(letter)}|\\+(?:x{code[0]}|u{code[1]}|U{code[2]}{short}){wide}|{_in_bytes(letter)})"


def _in_bytes(letter: str) -> str:
    """A letter as ``repr`` of bytes writes it; one that stands for a byte which is no text also as what replaces it."""
    if 0xDC80 <= ord(letter) <= 0xDCFF:
        return rf"\\+x{ord(letter) - 0xDC00:02x}|\ufffd"
    return "".join(rf"\\+x{byte:02x}" for byte in letter.encode("utf-8", "surrogatepass"))


def _mask_ends(text: str, secrets: frozenset[str]) -> str:
    """Replace the beginning of a secret before dots, and the end of one behind them."""
    done: list[str] = []
    position = 0
    heads = tails = None
    for dots in _DOTS.finditer(text):
        if heads is None or tails is None:  # of hundreds of secrets, hardly ever one
            heads = [secret for secret in secrets if secret[:MIN_CUT] in text]
            tails = [secret for secret in secrets if secret[-MIN_CUT:] in text]
            if not heads and not tails:
                return text
        start, end = dots.span()
        head = max((_ends_with_start_of(text, position, start, secret) for secret in heads), default=0)
        tail = max((_starts_with_end_of(text, end, secret) for secret in tails), default=0)
        done += [text[position : start - head], MASK if head else "", dots.group(), MASK if tail else ""]
        position = end + tail
    return "".join((*done, text[position:])) if done else text


def _ends_with_start_of(text: str, begin: int, end: int, secret: str) -> int:
    longest = min(len(secret), end - begin)
    if text.find(secret[:MIN_CUT], end - longest, end) < 0:
        return 0
    return next((size for size in range(longest, MIN_CUT - 1, -1) if text.endswith(secret[:size], begin, end)), 0)


def _starts_with_end_of(text: str, begin: int, secret: str) -> int:
    longest = min(len(secret), len(text) - begin)
    if text.find(secret[-MIN_CUT:], begin, begin + longest) < 0:
        return 0
    return next((size for size in range(longest, MIN_CUT - 1, -1) if text.startswith(secret[-size:], begin)), 0)


def masked_traceback(error: BaseException, secrets: Iterable[str]) -> str:
    """The traceback of an error, with those of its causes, and without secrets."""
    return mask("".join(traceback.format_exception(error)).rstrip(), secrets)
