"""Which bodies are compressed before they are sent, and when that is done.

A body is compressed where its message says so (``Message.compression``), or from ``compress_message_body_threshold``
bytes on, by ``compress_type`` at ``compress_level``. What does not become smaller goes as it is. Bodies of batches stay
as they are, as in Java. A small body is compressed where it is sent from, a larger one in a thread, for the event loop
cannot wait for it: a megabyte takes ZLIB about 20 ms.

Source: Apache RocketMQ 5.x ``DefaultMQProducerImpl.tryToCompressMessage``.
"""

from __future__ import annotations

from rocketbox.blocking import run_briefly
from rocketbox.client.options import ProducerOptions
from rocketbox.errors import InvalidMessageError
from rocketbox.message import Compression, Message
from rocketbox.protocol.compression import MISSING_EXTRA, compress, is_available, level_problem, sys_flag_of
from rocketbox.protocol.prepared_sends import PLAIN_NUMBERS, SendRequest, encode_send_numbers

__all__ = ["TO_BE_PACKED", "Packing"]

IN_LOOP_BYTES = 64 * 1024  # take ZLIB about 1.3 ms
TO_BE_PACKED = bytes(bytearray(b"to be packed"))  # an object of its own: it is looked for by `is`
"""The numbers of a request whose body is compressed in a thread before it goes."""


class Packing:
    """Compresses for one producer."""

    def __init__(self, options: ProducerOptions) -> None:
        self._compression = options.compress_type
        self._level = options.compress_level
        self._from = options.compress_message_body_threshold
        never = options.compress_type is Compression.NONE
        self.plain_below = options.max_message_size + 1 if never else min(self._from, options.max_message_size + 1)
        """Bodies of fewer bytes go as they are, unless their message says otherwise."""

    def of(self, message: Message) -> Compression:
        """How a message's body is to be compressed. Raises InvalidMessageError when it asks for what cannot be done."""
        said = message.compression
        if said is None:
            return self._compression if len(message.body) >= self.plain_below else Compression.NONE
        if not isinstance(said, Compression):
            raise InvalidMessageError(
                f"compression is {said!r}, of type {type(said).__name__}; it must be a Compression or None"
            )
        if not is_available(said):
            raise InvalidMessageError(
                f"the message to {message.topic!r} is to be compressed with {said.name}, which this process cannot: "
                f"{MISSING_EXTRA[said]}"
            )
        return said

    def request(
        self, topic: str, message: Message, properties: bytes, msg_id: str, born_ms: int, flag: int
    ) -> SendRequest:
        """The request that sends a checked message; one with numbers ``TO_BE_PACKED`` goes through :meth:`pack`."""
        body, compression = message.body, self.of(message)
        request = SendRequest(topic, body, properties, msg_id, born_ms)
        request.packing = compression
        request.flag = flag
        request.sys_flag = 0
        if len(body) > IN_LOOP_BYTES and compression is not Compression.NONE:
            request.numbers = TO_BE_PACKED
        else:
            self._take(request, compress(body, compression, self._level_of(compression)))
        return request

    async def pack(self, request: SendRequest) -> None:
        """Compress the body of a request in a thread."""
        compression = request.packing
        self._take(request, await run_briefly(compress, request.body, compression, self._level_of(compression)))

    def _level_of(self, compression: Compression) -> int:
        """The level of the settings, as far as this way to compress has it."""
        return self._level if level_problem(compression, self._level) is None else 9

    def _take(self, request: SendRequest, packed: bytes) -> None:
        smaller = len(packed) < len(request.body)
        sys_flag = request.sys_flag | (sys_flag_of(request.packing) if smaller else 0)
        if smaller:
            request.body = packed
        plain = not (sys_flag or request.flag)
        request.numbers = PLAIN_NUMBERS if plain else encode_send_numbers(flag=request.flag, sys_flag=sys_flag)
