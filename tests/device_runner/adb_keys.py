"""What a device checks of an adb client: that it holds the private key to a known public one.

The public key is adb's own structure, base64 before a blank and a name: number of 32-bit words, a Montgomery constant,
the modulus and R^2, little-endian, then the exponent. The signature is PKCS #1 v1.5 with SHA-1 (RFC 8017, 9.2), where
the 20-byte token stands for the digest itself.
"""

from __future__ import annotations

import base64
import struct

TOKEN_BYTES = 20
_MODULUS_BYTES = 256
_SHA1_PREFIX = bytes.fromhex("3021300906052b0e03021a05000414")


def parse_public_key(data: bytes) -> tuple[int, int]:
    """Modulus and exponent."""
    raw = base64.b64decode(data.rstrip(b"\0").split(b" ")[0])
    words, _ = struct.unpack_from("<II", raw)
    if words * 4 != _MODULUS_BYTES:
        raise ValueError(f"a key of {words * 32} bits")
    modulus = int.from_bytes(raw[8 : 8 + _MODULUS_BYTES], "little")
    (exponent,) = struct.unpack_from("<I", raw, 8 + 2 * _MODULUS_BYTES)
    return modulus, exponent


def signature_matches(key: tuple[int, int], token: bytes, signature: bytes) -> bool:
    """Whether `signature` is that of `token` under the public key."""
    modulus, exponent = key
    opened = pow(int.from_bytes(signature, "big"), exponent, modulus).to_bytes(_MODULUS_BYTES, "big")
    digest = _SHA1_PREFIX + token
    return opened == b"\0\1" + b"\xff" * (_MODULUS_BYTES - 3 - len(digest)) + b"\0" + digest
