"""The cryptography of secure sums, all from the package `cryptography`: keys, masks, sealed shares, signatures.

Keys are bytes; every derived key is bound to its `purpose`.
"""

import hashlib
from typing import TYPE_CHECKING, NewType

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

Numbers = npt.NDArray[np.uint64]
"""Integers modulo 2^64, whose sums and differences wrap around."""

Key = NewType("Key", bytes)
"""32 bytes."""

_ZEROS = bytes(12)  # each key encrypts one text only, so the nonce need not differ


class Forged(Exception):
    """A sealed text is not from the expected sender, or a key is no key."""


def make_pair() -> tuple[bytes, bytes]:
    """Return a new X25519 private key, and its public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def public_of(private: bytes) -> bytes:
    """Return the public key for a private key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derive(secret: bytes, purpose: bytes) -> Key:
    """Return the key derived from a secret for a purpose (HKDF with SHA-256)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return Key(HKDF(SHA256(), 32, None, purpose).derive(secret))


def agree(private: bytes, public: bytes, purpose: bytes) -> Key:
    """Return the key that two sides share for a purpose, from one's private and the other's public key.

    Raises:
        Forged: the public key is one that gives everyone the same shared key.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise Forged("an invalid public key") from error
    return derive(shared, purpose)


def mask(key: Key, count: int) -> Numbers:
    """Return `count` numbers of ChaCha20's key stream."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def commit(secret: bytes) -> bytes:
    """Return a commitment to a random 32-byte secret."""
    return hashlib.sha256(b"atoll secure commitment" + secret).digest()


def seal(key: Key, text: bytes, context: bytes) -> bytes:
    """Return a text encrypted, and authenticated with its context; use each key only once."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(_ZEROS, text, context)


def unseal(key: Key, sealed: bytes, context: bytes) -> bytes:
    """Return the text.

    Raises:
        Forged: it was sealed with another key, or in another context.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(_ZEROS, sealed, context)
    except (InvalidTag, ValueError) as error:
        raise Forged("sealed with another key or context") from error


def sign(key: "EllipticCurvePrivateKey", text: bytes) -> bytes:
    """Return the signature of a text with a node's own key (ECDSA with SHA-384)."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    return key.sign(text, ECDSA(SHA384()))


def is_signed(key: "EllipticCurvePublicKey", signature: bytes, text: bytes) -> bool:
    """Return whether the node with this key has signed a text."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    try:
        key.verify(signature, text, ECDSA(SHA384()))
    except InvalidSignature:
        return False
    return True
