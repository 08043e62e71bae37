"""Bodies that are compressed: ZLIB (RFC 1950), LZ4 (frames of independent blocks) and ZSTD (RFC 8878), there and back.

ZLIB is Python's own, and the only one that all of Apache's versions read. The others are extras, ``rocketbox[lz4]`` and
``rocketbox[zstd]``: without theirs a body is refused before it is sent, and one that has come is a
:class:`CodecMissingError`. A few bytes may claim to be gigabytes, so nothing is unpacked beyond a bound.

Source: Apache RocketMQ 5.x ``CompressionType``, ``Compressor``, ``ZlibCompressor``, ``Lz4Compressor``,
``ZstdCompressor``. Java's LZ4 reads no frames whose blocks depend on each other. Unlike there: a bound.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from rocketbox.errors import CodecMissingError, RemoteProtocolError
from rocketbox.message import Compression
from rocketbox.protocol.codes import MessageSysFlag

__all__ = ["MAX_BODY_BYTES", "MISSING_EXTRA", "compress", "is_available", "level_problem", "sys_flag_of", "unpack"]

MAX_BODY_BYTES = 16 * 4 * 1024 * 1024
"""Of a body when it is unpacked, where nobody says otherwise: sixteen times what a message may have by default."""

_COMPRESSED = int(MessageSysFlag.COMPRESSED)
_MASK = int(MessageSysFlag.COMPRESSION_MASK)
_SYS_FLAGS: Final = {
    Compression.NONE: 0,
    Compression.ZLIB: _COMPRESSED | int(MessageSysFlag.COMPRESSION_ZLIB),
    Compression.LZ4: _COMPRESSED | int(MessageSysFlag.COMPRESSION_LZ4),
    Compression.ZSTD: _COMPRESSED | int(MessageSysFlag.COMPRESSION_ZSTD),
}
_KINDS: Final = {
    0: Compression.ZLIB,  # as clients before 5.0 send it
    int(MessageSysFlag.COMPRESSION_ZLIB): Compression.ZLIB,
    int(MessageSysFlag.COMPRESSION_LZ4): Compression.LZ4,
    int(MessageSysFlag.COMPRESSION_ZSTD): Compression.ZSTD,
}
_HIGHEST_LEVELS: Final = {Compression.ZLIB: 9, Compression.ZSTD: 22}
MISSING_EXTRA: Final[Mapping[Compression, str]] = {
    Compression.LZ4: "install rocketbox[lz4]",
    Compression.ZSTD: "install rocketbox[zstd]",
}
"""What to do where a way to compress is not available."""


def sys_flag_of(compression: Compression) -> int:
    """The bits of a message's sysFlag that say how its body is compressed."""
    return _SYS_FLAGS[compression]


def level_problem(compression: Compression, level: int) -> str | None:
    """Why a level is none of a way to compress; None: it is one. LZ4 has no levels, as in Java."""
    highest = _HIGHEST_LEVELS.get(compression)
    if highest is None or 1 <= level <= highest:
        return None
    return f"{compression.name} has the levels 1 to {highest}"


def is_available(compression: Compression) -> bool:
    """Whether this process can compress so."""
    return compression in (Compression.NONE, Compression.ZLIB) or _library(compression) is not None


def compress(body: bytes, compression: Compression, level: int) -> bytes:
    """The body, compressed; ``level`` is from 1 (quick) to 9 (ZLIB) or 22 (ZSTD).

    Raises CodecMissingError where the extra of it is not installed.
    """
    if compression is Compression.NONE:
        return body
    if compression is Compression.ZLIB:
        return zlib.compress(body, level)
    library = _library(compression)
    if library is None:
        raise CodecMissingError(compression.name, MISSING_EXTRA[compression])
    if compression is Compression.LZ4:
        packed: bytes = library.compress(body, block_linked=False)
    else:
        packed = library.compress(body, level)
    return packed


def unpack(body: bytes, sys_flag: int, most: int) -> bytes:
    """The body of a message whose sysFlag says that it is compressed.

    Raises RemoteProtocolError when it is garbled, cut off, or larger than ``most`` bytes, of which little more than
    ``most`` bytes are held; CodecMissingError when it cannot be read here.
    """
    kind = sys_flag & _MASK
    compression = _KINDS.get(kind)
    if compression is None:
        raise CodecMissingError(f"type {kind >> 8}", "nobody knows it")
    unpacker, errors = _unpacker(compression)
    try:
        data: bytes = unpacker.decompress(body, most + 1)
    except errors as error:
        raise RemoteProtocolError(f"a body compressed with {compression.name} cannot be read: {error}") from None
    if len(data) > most or not unpacker.eof:
        raise RemoteProtocolError(
            f"a body compressed with {compression.name} is cut off, or larger than {most} bytes when it is unpacked"
        )
    return data


def _unpacker(compression: Compression) -> tuple[Any, tuple[type[Exception], ...]]:
    """An object with ``decompress(data, most)`` and ``eof``, and what it raises for garbage."""
    if compression is Compression.ZLIB:
        return zlib.decompressobj(), (zlib.error,)
    library = _library(compression)
    if library is None:
        raise CodecMissingError(compression.name, MISSING_EXTRA[compression])
    if compression is Compression.LZ4:
        return library.LZ4FrameDecompressor(), (RuntimeError, EOFError)
    return library.ZstdDecompressor(), (library.ZstdError,)


def _library(compression: Compression) -> Any | None:
    """The module that compresses so; None: it is not installed."""
    return _LIBRARIES[compression]()


@cache
def _lz4() -> Any | None:
    try:
        import lz4.frame  # only who meets LZ4 loads it
    except ImportError:
        return None
    return lz4.frame


@cache
def _zstd() -> Any | None:
    try:
        from compression import zstd  # Python 3.14
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            return None
    return zstd


_LIBRARIES: Final[Mapping[Compression, Callable[[], Any | None]]] = {Compression.LZ4: _lz4, Compression.ZSTD: _zstd}
