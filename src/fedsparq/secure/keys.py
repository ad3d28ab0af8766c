"""Keys, each derived for one purpose in one round, from the `cryptography` library."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsparq.errors import SecureSumError

KEY = 32
SIGNATURE = 64
TAG = 16
"""What encryption adds to a text."""
_NONCE = bytes(12)
"""Each key encrypts one text."""


def statement(*parts: bytes) -> bytes:
    """Join parts to one text; what differs in any part is another text."""
    return b"fedsparq secure sum 2" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def derive(secret: bytes, *purpose: bytes) -> bytes:
    """32 bytes for one purpose; two purposes that differ anywhere give unrelated keys."""
    return HKDF(hashes.SHA256(), KEY, salt=None, info=statement(*purpose)).derive(secret)


def digest(data: bytes) -> bytes:
    hashed = hashes.Hash(hashes.SHA256())
    hashed.update(data)
    return hashed.finalize()


def encrypt(key: bytes, text: bytes) -> bytes:
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, None)


def decrypt(key: bytes, text: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, text, None)
    except InvalidTag:
        raise SecureSumError("an encrypted share was changed on its way, or is of another round") from None


@dataclass(frozen=True)
class Agreement:
    """One side of a key agreement (X25519)."""

    private: bytes

    @cached_property
    def public(self) -> bytes:
        return X25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()

    def with_public(self, other: bytes) -> bytes:
        """What both sides come to, each from its private and the other's public key."""
        try:
            return X25519PrivateKey.from_private_bytes(self.private).exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError:
            raise SecureSumError("a public key of a secure sum is not one") from None


@dataclass(frozen=True)
class NodeKey:
    """A node's own key (Ed25519), by which the others know it over all rounds."""

    private: bytes

    @cached_property
    def public(self) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.private).sign(data)


def check_signature(public: bytes, signature: bytes, data: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        raise SecureSumError("a signature is not of the node that it is said to be of") from None
