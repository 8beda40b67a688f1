"""Signatures of artefacts: Ed25519 (RFC 8032), by the package `cryptography`.

What is signed is the digest of header and metadata, and with it the digests of all sections, that of the weights
included. The signature stands at the end of the file:

    0   "TWSIGNED"              40  signature, 64 bytes
    8   public key, 32 bytes    104 blake2b-192 of 0..104
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import ArtifactError, OptionError

Trust = str | Path | bytes | Sequence[str | Path | bytes]
"""Public keys: paths of PEM files, their bytes, or the 32 bytes of keys."""

TRAILER_BYTES = 128
_TRAILER = struct.Struct("<8s32s64s24s")
_MAGIC = b"TWSIGNED"
_PURPOSE = b"a compiled model of tilewright\0"
"""Stands before what is signed, so that a signature made for something else is none of an artefact."""
_KEY_BYTES = 32
_LARGEST_FILE = 1 << 16


@dataclass(frozen=True)
class Signature:
    """Who signed an artefact, by the public key, and the signature of its digest."""

    key: bytes
    signature: bytes

    @property
    def fingerprint(self) -> str:
        """The public key as people see it."""
        return self.key.hex()

    def trailer(self) -> bytes:
        """What stands at the end of the file."""
        told = _MAGIC + self.key + self.signature
        return told + hashlib.blake2b(told, digest_size=24).digest()

    @classmethod
    def of_trailer(cls, name: str, trailer: bytes) -> Signature:
        """What a file has at its end; ArtifactError where that is damaged."""
        magic, key, signature, digest = _TRAILER.unpack(trailer)
        if magic != _MAGIC or hashlib.blake2b(trailer[:-24], digest_size=24).digest() != digest:
            raise ArtifactError(f"{name} is damaged: its signature is none", hint="copy the file again")
        return cls(key, signature)


def signer_of(key: str | Path | bytes) -> Callable[[bytes], Signature]:
    """What signs digests with a private key: the path of a PEM file without a password, or its bytes. OptionError."""
    serialization, ed25519, _ = _library()
    data = _bytes_of(key, "key")
    try:
        private = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise OptionError(f"the key cannot be read: {error}", hint=_MAKE) from error
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise OptionError(f"the key is a {type(private).__name__}, and no Ed25519 key", hint=_MAKE)
    public = private.public_key().public_bytes_raw()
    return lambda digest: Signature(public, private.sign(_PURPOSE + digest))


_MAKE = "make one with `openssl genpkey -algorithm ed25519 -out key.pem`, the public one with `openssl pkey -pubout`"


def trusted_keys(trust: Trust) -> frozenset[bytes]:
    """The public keys that a caller trusts; OptionError where there is none, or what is given is none."""
    if isinstance(trust, str | os.PathLike | bytes):
        return frozenset([_public_key(trust)])
    if not isinstance(trust, Sequence) or not trust:
        what = "empty" if isinstance(trust, Sequence) else f"of the type {type(trust).__name__}"
        raise OptionError(f"trust= is {what}: give the path of a public key, or several")
    given: Sequence[Any] = trust
    return frozenset(map(_public_key, given))


def check_signature(name: str, digest: bytes, signature: Signature | None, trusted: frozenset[bytes]) -> None:
    """ArtifactError unless the digest of an artefact is signed with a key that is trusted."""
    if signature is None:
        raise ArtifactError(
            f"{name} is not signed, and only signed models are to be loaded",
            hint="sign it with `tilewright sign`, or load it without trust=",
        )
    if signature.key not in trusted:
        raise ArtifactError(
            f"{name} is signed with the key {signature.fingerprint}, which is not trusted",
            hint="do you have the file from where you think? if so, give trust= this key, too",
        )
    _, ed25519, invalid = _library()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(signature.key).verify(signature.signature, _PURPOSE + digest)
    except (invalid, ValueError) as error:
        raise ArtifactError(
            f"{name} was changed since it was signed: the signature is that of another file",
            hint="get the file again from where it came, and do not run this one",
        ) from error


def _public_key(given: str | Path | bytes) -> bytes:
    data = _bytes_of(given, "trust")
    if len(data) == _KEY_BYTES:
        return data
    serialization, ed25519, _ = _library()
    try:
        public = serialization.load_pem_public_key(data)
    except (ValueError, TypeError) as error:
        raise OptionError(f"trust= has a key that cannot be read: {error}", hint=_MAKE) from error
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise OptionError(f"trust= has a {type(public).__name__}, and no Ed25519 key", hint=_MAKE)
    return bytes(public.public_bytes_raw())


def _bytes_of(given: Any, what: str) -> bytes:
    if isinstance(given, bytes):
        return given
    if not isinstance(given, str | os.PathLike):  # what is given is not shown, as it may be a secret
        raise OptionError(f"{what}= is of the type {type(given).__name__}: give the path of a key, or its bytes")
    if "-----BEGIN" in str(given):
        raise OptionError(f"{what}= is the text of a key, and no path", hint="give its bytes: text.encode()")
    try:
        with open(given, "rb") as file:
            return file.read(_LARGEST_FILE)
    except (OSError, ValueError) as error:
        raise OptionError(f"the key {given} cannot be read: {error}", hint=_MAKE) from error


def _library() -> tuple[Any, Any, type[Exception]]:
    """Of `cryptography` what reads keys, the kind of keys, and the error for a wrong signature; OptionError."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise OptionError(
            "signatures need the package cryptography", hint="pip install cryptography"
        ) from error
    return serialization, ed25519, InvalidSignature

