"""The signature of a request: HMAC-SHA1 over the values of its fields, by the order of their names, and its body.

Holds the digest and what is signed; who signs is ``acl``'s part, who checks the ``access`` package's. There are neither
separators between the values nor a time among them: what was signed once can be sent again, by anybody who saw it.

Source: Apache RocketMQ 5.x ``AclUtils``, ``AclSigner``.
"""

from __future__ import annotations

import hashlib
from binascii import b2a_base64
from collections.abc import Collection, Mapping
from typing import Final

__all__ = ["ACCESS_KEY", "SECURITY_TOKEN", "SIGNATURE", "SIGNATURE_CHARACTERS", "SigningKey", "signed_values"]

ACCESS_KEY, SECURITY_TOKEN, SIGNATURE = "AccessKey", "SecurityToken", "Signature"
SIGNATURE_CHARACTERS: Final = 28  # base64 of 20 bytes

_BLOCK_BYTES = 64  # of SHA-1
_INNER, _OUTER = bytes(each ^ 0x36 for each in range(256)), bytes(each ^ 0x5C for each in range(256))


class SigningKey:
    """A secret key, as the digests that HMAC begins with: copying them costs a tenth of a fresh HMAC.

    It has no ``repr`` of its own, and the key itself is not kept.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode("utf-8", "replace")
        if len(key) > _BLOCK_BYTES:
            key = hashlib.sha1(key, usedforsecurity=False).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha1(key.translate(_INNER), usedforsecurity=False)
        self._outer = hashlib.sha1(key.translate(_OUTER), usedforsecurity=False)

    def begin(self) -> hashlib._Hash:
        """A digest to be given what is signed, then to be handed to :meth:`finish`."""
        return self._inner.copy()

    def finish(self, digest: hashlib._Hash) -> bytes:
        """The signature, in base64."""
        outer = self._outer.copy()
        outer.update(digest.digest())
        return b2a_base64(outer.digest(), newline=False)

    def signature(self, fields: Mapping[str, str], body: bytes, leave_out: Collection[str] = (SIGNATURE,)) -> bytes:
        """That of a request with these fields and this body."""
        digest = self._inner.copy()
        digest.update(signed_values(fields, leave_out))
        digest.update(body)
        return self.finish(digest)


def signed_values(fields: Mapping[str, str], leave_out: Collection[str] = (SIGNATURE,)) -> bytes:
    """The values by the order of their names, as Java sorts them (by UTF-16), in UTF-8 as Java writes it."""
    names = [name for name in fields if name not in leave_out]
    if "".join(names).isascii():
        names.sort()
    else:
        names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return "".join([fields[name] for name in names]).encode("utf-8", "replace")
