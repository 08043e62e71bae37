"""The properties of many messages at once: property texts to names and values in Arrow, no Python object per message.

A text holds pairs, ``name 0x01 value`` each, with 0x02 between them (``rocketbox.message.decode_properties``, which
this equals: the last 0x02 may be missing, pairs without a name or a value do not count, of several with one name the
last does, and bytes that are no UTF-8 become U+FFFD). The separators of all texts are found in one pass over their
common buffer; names and values are then copied by their places.

Source: Apache RocketMQ 5.x ``MessageDecoder.string2messageProperties``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Properties", "slices"]

NAME_VALUE_SEPARATOR = 1
PROPERTY_SEPARATOR = 2
LAST_BLANK = 0x20  # a byte above it and below FIRST_NOT_ASCII is part of a key
FIRST_NOT_ASCII = 0x80
MOST_COUNTED = 1 << 22

Places = npt.NDArray[np.int64]


def slices(kind: Any, data: Any, bounds: Places, length: int) -> Any:
    """The pieces of ``data`` between ``bounds[0]`` and ``[1]``, ``[2]`` and ``[3]`` ..., as an array of ``kind``.

    ``length`` is how many there are. The bounds ascend: what lies between two pieces is an element that is left out, so
    that all are copied in one call. The pieces of a string must be UTF-8.
    """
    if not length:
        return pa.array([], kind)
    ends = pa.py_buffer(bounds.astype(np.int32))
    with_gaps = pa.Array.from_buffers(kind, 2 * length - 1, [None, ends, data])
    return with_gaps.take(pa.array(np.arange(0, 2 * length - 1, 2, dtype=np.int32)))


class Properties:
    """The properties of messages; ``texts`` is a binary array, a text for each message."""

    def __init__(self, texts: Any) -> None:
        self._messages = len(texts)
        try:
            texts.cast(pa.string())
        except pa.ArrowInvalid:
            texts = pa.array([text.decode("utf-8", "replace").encode() for text in texts.to_pylist()], pa.binary())
        self._split(texts)

    def _split(self, texts: Any) -> None:
        """Find names and values: their places, and which message each pair belongs to."""
        _, ends, data = texts.buffers()
        row_ends = np.frombuffer(ends, np.int32)[1 : len(texts) + 1].astype(np.int64)
        size = int(row_ends[-1]) if len(texts) else 0
        text = np.frombuffer(data, np.uint8)[:size] if size else _NO_BYTES
        pair_ends = np.flatnonzero(text == PROPERTY_SEPARATOR)
        ended = (row_ends == 0) | (text[row_ends - 1] == PROPERTY_SEPARATOR) if size else row_ends == 0
        if ended.all():
            pair_starts = np.concatenate(([0], pair_ends[:-1] + 1)) if len(pair_ends) else pair_ends
        else:  # such an end comes before a separator at the same place, with which the next text begins
            open_ends = np.unique(row_ends[~ended])
            after = np.concatenate((open_ends, pair_ends + 1))
            pair_ends = np.concatenate((open_ends, pair_ends))
            order = np.argsort(pair_ends, kind="stable")
            pair_ends, after = pair_ends[order], after[order]
            pair_starts = np.concatenate(([0], after[:-1]))
        separators = np.flatnonzero(text == NAME_VALUE_SEPARATOR)
        if not len(separators):
            pair_starts = pair_ends = separators
        elif not (
            len(separators) == len(pair_ends)
            and (pair_starts < separators).all()
            and (separators + 1 < pair_ends).all()
        ):  # pairs without a value, or values that hold a separator
            index = np.searchsorted(separators, pair_starts)
            separators = separators[np.minimum(index, len(separators) - 1)]
            whole = (pair_starts < separators) & (separators + 1 < pair_ends)
            pair_starts, separators, pair_ends = pair_starts[whole], separators[whole], pair_ends[whole]
        self._data = data
        self._rows = np.searchsorted(row_ends, pair_starts, side="right")
        self._value_starts, self._value_ends = separators + 1, pair_ends
        encoded = slices(pa.string(), data, _pairs(pair_starts, separators), len(separators)).dictionary_encode()
        self._names = encoded.dictionary
        self._codes = encoded.indices.to_numpy()

    def named(self, name: str) -> Any:
        """The value of a property in each message; null where it is not there."""
        code = self._names.index(name).as_py()
        if code < 0:
            return pa.nulls(self._messages, pa.string())
        (pairs,) = np.nonzero(self._codes == code)
        values = slices(pa.string(), self._data, _pairs(self._value_starts[pairs], self._value_ends[pairs]), len(pairs))
        rows = self._rows[pairs]
        if len(rows) == self._messages and (rows[:-1] < rows[1:]).all():
            return values
        places = np.full(self._messages, -1, np.int32)
        places[rows] = np.arange(len(pairs), dtype=np.int32)  # of several pairs the last is kept
        return values.take(pa.array(places, mask=places < 0))

    def keys(self, name: str) -> Any:
        """The words of a property, as a list for each message; an empty list where it is not there."""
        values = self.named(name)
        found = values.drop_null() if values.null_count else values
        _, ends, data = found.buffers()
        there = values.is_valid().to_numpy(zero_copy_only=False)
        if len(found):
            bounds = np.frombuffer(ends, np.int32)[: len(found) + 1]
            text = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
            if ((text <= LAST_BLANK) | (text >= FIRST_NOT_ASCII)).any():  # blanks, or what may be one
                words = [value.split() if value is not None else () for value in values.to_pylist()]
                return pa.array(words, pa.list_(pa.string()))
        lengths = np.concatenate(([0], np.cumsum(there))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(lengths), found)

    def maps(self) -> Any:
        """All properties of each message, in the order in which their names came first."""
        rows, codes = self._rows, self._codes
        values = slices(pa.string(), self._data, _pairs(self._value_starts, self._value_ends), len(codes))
        identity = rows * max(1, len(self._names)) + codes
        if _repeats(identity):
            unique, first, inverse = np.unique(identity, return_index=True, return_inverse=True)
            last = np.empty(len(unique), np.int64)
            last[inverse] = np.arange(len(identity))  # of several the last is kept
            order = np.argsort(first)
            rows, codes = rows[first[order]], codes[first[order]]
            values = values.take(pa.array(last[order]))
        ends = np.zeros(self._messages + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=self._messages), out=ends[1:])
        return pa.MapArray.from_arrays(pa.array(ends), self._names.take(pa.array(codes)), values)


_NO_BYTES = np.empty(0, np.uint8)


def _repeats(numbers: Places) -> bool:
    """Whether one of the numbers, which are 0 or more, comes twice."""
    if not len(numbers):
        return False
    if numbers.max() < MOST_COUNTED:  # a tenth of the time
        return bool(np.bincount(numbers).max() > 1)
    return len(np.unique(numbers)) < len(numbers)


def _pairs(starts: Places, ends: Places) -> Places:
    """start, end, start, end ..."""
    both = np.empty(2 * len(starts), np.int64)
    both[0::2], both[1::2] = starts, ends
    return both
