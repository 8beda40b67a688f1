"""Sequences that a compiled model computes together: rows of all of them go through its products, so that weights are
read once for all, and each attends to its own past."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.decoders.source import IDS, LAST, MOST_LANES, PAST, lane_prefix
from tilewright.ir.diag import UnsupportedError
from tilewright.llm.decoder import Tokens, check_length, vocabulary_of
from tilewright.llm.sequences.open import Handle, OpenSequences, Part, errors_of
from tilewright.runtime import Model
from tilewright.runtime.errors import InputError, OptionError
from tilewright.runtime.kept.state_memory import StateMemory

FEW = MOST_LANES
"""The most rows that products have kernels of their own for. These sum in another order than those of many rows, and in
the same one for each number: so rows of a sequence go through either, whoever else is in the call."""


@dataclass(eq=False)
class _Open:
    """A sequence: its memory, how much of it is filled, and the lane whose states are there now, or none."""

    context: int
    vocabulary: int
    memory: StateMemory
    length: int = 0
    lane: int | None = None


@dataclass(frozen=True)
class _Piece:
    """Tokens of a sequence that one call of the model is about, of so many that are `left` of its part."""

    of: _Open
    tokens: np.ndarray
    left: int
    number: int

    @property
    def ends(self) -> bool:
        """Whether they are the last of the part."""
        return len(self.tokens) == self.left


class CompiledSequences(OpenSequences[_Open]):
    """Sequences in the lanes of a model that was compiled for several, `DecoderSource(path, sequences=...)`.

    A call of the model is about at most as many sequences as it has lanes, and any number may be open: each has memory
    of its own, to which a lane is pointed, and nothing is copied. The model that is given stays as it is; code and
    weights are shared with it. What is fed goes through the model in pieces of `piece` tokens of each sequence, as many
    of these together as fit into that number of rows. Pieces of up to `FEW` tokens go with others of these, up to that
    number of rows: the bits of a sequence are those that it has alone. A call that fails half way leaves sequences as
    they were; those in which layers with a window would read rows that are not kept any more are empty then.
    """

    def __init__(self, model: Model, slots: int = 64, *, piece: int = 512) -> None:
        """OptionError for a model that is not for several sequences, UnsupportedError for one that keeps sums of its
        past."""
        super().__init__(slots)
        if isinstance(piece, bool) or not isinstance(piece, int) or piece < 1:
            raise OptionError(f"piece={piece!r:.80} is not allowed: give a number of tokens, from 1 on")
        self._lanes = [*_lanes_of(model)]
        self.model, self.piece = copy.copy(model), piece
        self.vocabulary = vocabulary_of(model)
        self.context = _context_of(model, self._lanes[0])
        self._in_lane: list[_Open | None] = [None] * self.lanes
        self._none = np.zeros((1, 0), np.int64)

    @property
    def lanes(self) -> int:
        """See `Sequences`."""
        return len(self._lanes)

    def open(self, like: Handle | None = None) -> Handle:
        """See `Sequences`. Pages of a shared prefix are shared until somebody writes to them."""
        before = None if like is None else self._of(like)

        def made() -> _Open:
            memory = self.model.new_state_memory(self._lanes[0])
            if before is not None:
                memory.copy_from(before.memory)
            return _Open(self.context, self.vocabulary, memory, 0 if before is None else before.length)

        return self._added(made)

    def close(self, handle: Handle) -> None:
        """See `Sequences`."""
        found = self._of(handle)
        if found.lane is not None:
            self._leave(found)
        del self._open[handle]

    def rewind(self, handle: Handle, length: int) -> None:
        """See `Sequences`."""
        found = self._of(handle)
        with errors_of(handle):
            self._set(found, check_length(found, length))

    def feed(self, parts: Sequence[Part]) -> list[np.ndarray]:
        """See `Sequences`."""
        checked = self._checked(parts)
        before = [found.length for found, _ in checked]
        results: list[np.ndarray] = [self._none[0]] * len(parts)
        try:
            for pieces in _together(checked, self.lanes, self.piece):
                logits = self._call(pieces)
                for row, number in enumerate(piece.number for piece in pieces if piece.ends):
                    results[number] = logits[row]
        except BaseException:
            self._take_back([found for found, _ in checked], before)
            raise
        return results

    def feed_rows(self, handle: Handle, tokens: Tokens) -> np.ndarray:
        """As `feed` of one sequence, with at most `FEW` tokens; the logits f32[n, vocabulary] behind each of them."""
        ((found, ids),) = self._checked([(handle, tokens)])
        if len(ids) > FEW:
            raise InputError(f"{len(ids)} tokens were given, of which each is to have logits", hint=f"at most {FEW}")
        before = found.length
        try:
            return self._call([_Piece(found, ids, len(ids), 0)], every=True)
        except BaseException:
            self._take_back([found], [before])
            raise

    def _take_back(self, failed: Sequence[_Open], lengths: Sequence[int]) -> None:
        """What a call was about is as long as it was, or empty where layers with a window would read rows that are not
        kept any more."""
        for found, length in zip(failed, lengths, strict=True):
            try:
                self._set(found, length)
            except InputError:
                self._set(found, 0)
        for names, of in zip(self._lanes, self._in_lane, strict=True):  # all of them count as lost
            self.model.set_state(names[0], of.length if of is not None else 0)

    def trim(self) -> None:
        """Give memory that calls have left behind, and that of positions that were forgotten, back to the operating
        system."""
        self.model.trim()
        for found in self._open.values():
            found.memory.forget_behind()

    def _call(self, pieces: Sequence[_Piece], *, every: bool = False) -> np.ndarray:
        """The logits behind those of some pieces that end their parts, or behind every token."""
        self._give_lanes(pieces)
        ids = [self._none] * self.lanes
        for piece in pieces:
            assert piece.of.lane is not None
            ids[piece.of.lane] = piece.tokens[None]
            if piece.left > 1:
                self.model.expect_rows(self._lanes[piece.of.lane][0], piece.left)
        ends = np.cumsum([x.shape[1] for x in ids]) - 1
        last = np.array([ends[piece.of.lane] for piece in pieces if piece.ends], np.int64)
        last = np.arange(ends[-1] + 1) if every else last
        (logits,) = self.model(*ids, last)
        for piece in pieces:
            piece.of.length += len(piece.tokens)
        return logits

    # Lanes

    def _give_lanes(self, pieces: Sequence[_Piece]) -> None:
        """Point a lane to each sequence of a call. Those that have one keep it."""
        wanted = {piece.of for piece in pieces}
        free = [k for k, found in enumerate(self._in_lane) if found not in wanted]
        free.sort(key=lambda k: self._in_lane[k] is not None)
        for piece in pieces:
            if piece.of.lane is None:
                lane = free.pop(0)
                if (other := self._in_lane[lane]) is not None:
                    other.lane = None
                self.model.use_state_memory(self._lanes[lane], piece.of.memory)
                self._in_lane[lane], piece.of.lane = piece.of, lane

    def _leave(self, found: _Open) -> None:
        assert found.lane is not None
        self.model.use_state_memory(self._lanes[found.lane], None)
        self._in_lane[found.lane], found.lane = None, None

    def _set(self, found: _Open, length: int) -> None:
        """A sequence has so many positions from now on."""
        found.memory.set(0, length)
        found.length = length


def _together(parts: Sequence[tuple[_Open, np.ndarray]], lanes: int, size: int) -> Iterator[list[_Piece]]:
    """The pieces that go through a model together, call after call.

    Where a part is cut depends on it alone, and so does whether it goes with few rows or with many.
    """
    left = [(found, tokens, 0, number) for number, (found, tokens) in enumerate(parts)]
    while left:
        call: list[_Piece] = []
        later: list[tuple[_Open, np.ndarray, int, int]] = []
        for found, tokens, begin, number in left:
            end = min(begin + size, len(tokens))
            piece = _Piece(found, tokens[begin:end], len(tokens) - begin, number)
            if call and not _fits(piece, call, lanes, size):
                later.append((found, tokens, begin, number))
                continue
            call.append(piece)
            if not piece.ends:
                later.append((found, tokens, end, number))
        yield call
        left = later


def _fits(piece: _Piece, call: Sequence[_Piece], lanes: int, size: int) -> bool:
    """Whether a piece can go with others: with the same kernels as alone."""
    of_few = len(piece.tokens) <= FEW
    rows = sum(len(other.tokens) for other in call) + len(piece.tokens)
    if len(call) == lanes or of_few != (len(call[0].tokens) <= FEW):
        return False
    return rows <= (FEW if of_few else size)


def _lanes_of(model: Model) -> Iterator[tuple[str, ...]]:
    """For each lane the names of its states, the counter first. OptionError for a model that has none, and
    UnsupportedError where states are not all caches."""
    names = [info.name for info in model.inputs]
    lanes = [lane_prefix(k) for k in range(len(names) - 1)]
    states = [state.info.name for state in model.states]
    kinds = None
    if not lanes or names != [*(f"{lane}{IDS}" for lane in lanes), LAST]:
        raise _no_lanes(model, f"its inputs are {', '.join(names) or 'none'}")
    for lane in lanes:
        own = [name for name in states if name.startswith(lane) and name != f"{lane}{PAST}"]
        found = [f"{lane}{PAST}", *own]
        grown = [state for state in model.states if state.info.name in own]
        if any(state.counter != found[0] for state in grown) or not own:
            raise UnsupportedError(
                f"{model} keeps more of a sequence than rows of positions, which could not be taken back",
                hint="load the model without sequences=; forks of one decoder are fed one after the other",
            )
        shapes = [(state.info.name[len(lane) :], state.info.dtype, state.info.shape) for state in grown]
        if kinds not in (None, shapes):
            raise _no_lanes(model, "its sequences differ")
        kinds = shapes
        yield tuple(found)


def is_for_several(model: Model) -> bool:
    """Whether a model was compiled for several sequences."""
    return any(info.name == f"{lane_prefix(0)}{IDS}" for info in model.inputs)


def _no_lanes(model: Model, why: str) -> OptionError:
    return OptionError(
        f"{model} is not for several sequences: {why}",
        hint="compile tilewright.frontends.decoders.source.DecoderSource(path, sequences=8)",
    )


def _context_of(model: Model, names: Sequence[str]) -> int:
    grown = [state for state in model.states if state.info.name in names and state.counter]
    return min(int(state.info.shape[state.grows]) for state in grown)
