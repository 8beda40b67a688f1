"""Byte-pair encoding as SentencePiece does it: neighbours are merged while the vocabulary has what they become, the one
with the best score first.

A file of 262,144 tokens has no list of merges; to derive one takes a second, and says for pairs of equal score
something else than the scores do. What is searched here is the vocabulary itself, so nothing is prepared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from tilewright.llm.tokens.spelling import SPACE


class ScoredPairs:
    """`tokens` are those that text may become; `scores` are by token; `byte_tokens` stand for what has no token, and
    `unknown` for what has not even these."""

    def __init__(
        self,
        tokens: Mapping[str, int],
        scores: Sequence[float],
        byte_tokens: Mapping[int, int],
        unknown: int | None,
    ) -> None:
        self._tokens = tokens
        self._scores = scores
        self._bytes = byte_tokens
        self._unknown = unknown

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, of which spaces may be written as SentencePiece does."""
        return [token for piece in self._merged(text.replace(" ", SPACE)) for token in self._of_piece(piece)]

    def _of_piece(self, piece: str) -> list[int]:
        token = self._tokens.get(piece)
        if token is not None:
            return [token]
        found = [self._bytes.get(byte) for byte in piece.encode("utf-8", "surrogatepass")]
        if None not in found:
            return [t for t in found if t is not None]
        return [] if self._unknown is None else [self._unknown]

    def _merged(self, text: str) -> list[str]:
        """The pieces that are left when no two neighbours can be merged. `pieces[i]` is "" where it was merged into
        its left neighbour; pairs that changed meanwhile are told by the length that they had."""
        pieces = list(text)
        before = list(range(-1, len(pieces) - 1))
        after = list(range(1, len(pieces) + 1))
        queue = [pair for i in range(len(pieces) - 1) if (pair := self._pair(pieces, i, i + 1))]
        heapify(queue)
        while queue:
            _, left, right, length = heappop(queue)
            if not pieces[left] or not pieces[right] or len(pieces[left]) + len(pieces[right]) != length:
                continue
            pieces[left] += pieces[right]
            pieces[right] = ""
            after[left] = following = after[right]
            if following < len(pieces):
                before[following] = left
                if pair := self._pair(pieces, left, following):
                    heappush(queue, pair)
            if before[left] >= 0 and (pair := self._pair(pieces, before[left], left)):
                heappush(queue, pair)
        return [piece for piece in pieces if piece]

    def _pair(self, pieces: list[str], left: int, right: int) -> tuple[float, int, int, int] | None:
        both = pieces[left] + pieces[right]
        token = self._tokens.get(both)
        return None if token is None else (-self._scores[token], left, right, len(both))
