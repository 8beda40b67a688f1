"""How vocabularies spell the bytes of a token: in an alphabet for bytes, as SentencePiece or WordPiece does, or as
words of their own."""

from __future__ import annotations

import re
from typing import Literal

Spelling = Literal["bytes", "sentencepiece", "wordpiece", "words"]

SPACE = "\u2581"
"""What SentencePiece writes for a space."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_CONTINUED = "##"


def _alphabet() -> dict[str, int]:
    """The character for each byte in vocabularies of GPT-2's form: its own where that is visible in Latin-1, and one
    from 256 on for the others, in order (https://github.com/openai/gpt-2, src/encoder.py)."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(others)}


ALPHABET = _alphabet()
_OF_BYTES = {byte: character for character, byte in ALPHABET.items()}


def spelled(text: str) -> str:
    """A text in the alphabet for bytes."""
    return "".join(_OF_BYTES[byte] for byte in text.encode("utf-8", "surrogatepass"))


def bytes_of(name: str, spelling: Spelling) -> bytes:
    """The bytes of an ordinary token that the vocabulary spells so."""
    if spelling == "bytes":
        found = [ALPHABET.get(character) for character in name]
        return (
            bytes(b for b in found if b is not None) if None not in found else name.encode("utf-8", "replace")
        )
    if spelling == "sentencepiece":
        byte = _BYTE.fullmatch(name)
        return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode("utf-8", "replace")
    if spelling == "words":
        return (" " + name).encode("utf-8", "replace")
    return (name[len(_CONTINUED) :] if name.startswith(_CONTINUED) else " " + name).encode("utf-8", "replace")
