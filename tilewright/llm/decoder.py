"""What generation needs of a language model: tokens in, logits of the next one out, and a past that can be cut off and
shared; and what stands for a text as a whole."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol, Self

import numpy as np

from tilewright.runtime import Model, TensorInfo
from tilewright.runtime.errors import InputError, OptionError
from tilewright.runtime.process.forks import free_in_children
from tilewright.runtime.values.dtypes import numpy_dtype

UNLIMITED = (1 << 31) - 1
"""The context of models whose states are of a fixed size."""

Tokens = Sequence[int] | np.ndarray
"""Numbers of tokens, in the order of the text."""

ENCODED = "encoded"
"""The counter of what the encoder of an encoder-decoder has read."""

Given = Callable[[np.ndarray, int], np.ndarray]
"""What an input is given for tokens behind so many others."""


class Growing(Protocol):
    """A sequence that tokens are appended to."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are: those that can be fed are 0 to `vocabulary` - 1."""

    @property
    def context(self) -> int:
        """The most positions that the sequence may have."""

    @property
    def length(self) -> int:
        """The positions that are filled."""


class Decoder(Growing, Protocol):
    """A model of token sequences with the sequence that it has been fed so far.

    One sequence at a time is fed by one thread; forks are independent of each other, and may be fed at the same time.
    """

    def feed(self, tokens: Tokens) -> np.ndarray:
        """Append tokens, at least one; the logits f32[vocabulary] of the token behind the last of them, which belong to
        the caller. InputError for tokens that do not exist or for which the context has no room: nothing has changed
        then."""

    def rewind(self, length: int) -> None:
        """Forget all positions from `length` on. InputError where it is longer than the sequence."""

    def fork(self) -> Self:
        """The same sequence, which continues by itself; weights and code are shared."""


def array_of(given: object) -> np.ndarray:
    """What was given as an array; InputError for lists of several lengths."""
    try:
        return np.asarray(given)
    except ValueError:
        raise InputError(
            "tokens are a list of integers, and not lists of several lengths", hint="feed several sequences one by one"
        ) from None


def check_tokens(decoder: Growing, tokens: Tokens) -> np.ndarray:
    """The tokens as i64[n]; InputError for those that cannot be appended to the sequence now."""
    array = array_of(tokens)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        what = "none" if array.size == 0 else f"an array {array.dtype}{list(array.shape)}"
        raise InputError(f"tokens are a list of integers, at least one, not {what}")
    wrong = array[(array < 0) | (array >= decoder.vocabulary)]
    if wrong.size:
        raise InputError(
            f"there is no token {wrong[0]}: the vocabulary has {decoder.vocabulary}",
            hint="use the tokeniser that belongs to this model",
        )
    if array.size > decoder.context - decoder.length:
        raise InputError(
            f"{array.size} tokens behind {decoder.length} are more than the context of {decoder.context} positions",
            hint="shorten the text, rewind(), or compile the model with a larger context",
        )
    return array.astype(np.int64, copy=False)


def pieces_of(before: int, count: int, piece: int) -> list[tuple[int, int]]:
    """Where `count` tokens behind `before` positions are cut into pieces of about `piece` of them.

    From 64 tokens on the cuts are at multiples of 64 positions, and no piece behind the first one has fewer than 9
    tokens: kernels for many rows sum in an order that follows from these multiples, and those for up to 8 rows in
    another one. So logits of a sequence that was empty are the same bits for all such sizes of pieces, where no layer
    has a window, whose keys are read from the first that a piece sees.
    """
    if piece < _ALIGNED:
        return [(begin, min(begin + piece, count)) for begin in range(0, count, piece)]
    step = piece // _ALIGNED * _ALIGNED
    cuts = list(range(step - before % _ALIGNED, count, step))
    if cuts and count - cuts[-1] <= _FEW_ROWS:
        cuts[-1] -= _ALIGNED
        cuts = [cut for k, cut in enumerate(cuts) if cut > (cuts[k - 1] if k else 0)]
    return list(zip([0, *cuts], [*cuts, count], strict=True))


_ALIGNED = 64
_FEW_ROWS = 8


def check_length(decoder: Growing, length: int) -> int:
    """InputError unless the sequence has at least so many positions."""
    if (
        isinstance(length, bool)
        or not isinstance(length, int | np.integer)
        or not 0 <= length <= decoder.length
    ):
        raise InputError(f"cannot rewind to {length!r:.80}: the sequence has {decoder.length} positions")
    return int(length)


class CompiledDecoder:
    """A compiled model that keeps its past in states, as a `Decoder`.

    The model takes `ids` (or `input_ids`) i64[1, s] and gives the logits of the last of them, or of all, first; its
    caches are states that grow with one counter, or states of a fixed size beside one of a single integer, as recurrent
    models have, whose context has no end. It may ask for `position_ids` of the tokens and an `attention_mask`
    over all positions, too, as exported ones do. Long inputs are fed about `piece` tokens at a time, so that memory for
    intermediate results is bounded. Logits are the same bits for any capacity and any number of threads; those of a
    sequence that is fed at once for any piece from 64 tokens on, if no layer has a window (see `pieces_of`). Other
    pieces round otherwise.
    """

    def __init__(self, model: Model, *, piece: int = 512) -> None:
        """OptionError for a model that is no decoder, which says what is missing."""
        self.model, self.piece = model, piece
        if isinstance(piece, bool) or not isinstance(piece, int) or piece < 1:
            raise OptionError(f"piece={piece!r:.80} is not allowed: give a number of tokens, from 1 on")
        self._counter = _counter_of(model)
        self._shape = model.state(self._counter).shape
        self.vocabulary = vocabulary_of(model)
        self._given = [self._what_is_given(info) for info in model.inputs]
        self.piece = _piece_of(model, piece)
        grown = [state for state in model.states if state.counter == self._counter]
        self.context = min((int(state.info.shape[state.grows]) for state in grown), default=UNLIMITED)
        kept = (state.info.name for state in model.states if not state.counter)
        self._sums = [name for name in kept if name != self._counter]
        rows = all(state in grown and state.window < 0 for state in model.states if state.info.name != self._counter)
        self._keeps_pages = bool(grown) and rows
        self._length = int(model.state(self._counter).sum())

    @property
    def length(self) -> int:
        """The positions that are filled."""
        return self._length

    def feed(self, tokens: Tokens) -> np.ndarray:
        """See `Decoder`. A call that fails half way leaves the sequence as it was before; of a model that keeps sums of
        its past, where it was given several tokens. Where layers with a window would read rows that are not kept any
        more, the sequence is empty then."""
        ids = check_tokens(self, tokens)
        before = self._length
        sums = {name: self.model.state(name) for name in self._sums} if len(ids) > 1 else {}
        if len(ids) > 1:
            self.model.expect_rows(self._counter, len(ids))
        try:
            for begin, end in pieces_of(before, len(ids), self.piece):
                part = ids[begin:end]
                (logits, *_) = self.model(*(given(part, before + begin) for given in self._given))
        except BaseException:
            if sums.keys() == set(self._sums):
                for name, value in sums.items():
                    self.model.set_state(name, value)
                self._take_back(before)
            raise
        self._length = before + len(ids)
        last: np.ndarray = logits.reshape(-1, self.vocabulary)[-1]
        return last

    def rewind(self, length: int) -> None:
        """See `Decoder`. OptionError where the model keeps more of its past than rows of positions, and InputError
        where layers with a window would read rows that are not kept any more, unless all is forgotten. Memory of caches
        of rows alone stays for what is fed next (`Model.trim` and `Model.reset` give it back): pages that the operating
        system gives anew take a twentieth of a prompt's time."""
        length = check_length(self, length)
        if not length and self._keeps_pages:
            self._set(0)
        elif not length:
            self._begin_anew()
        elif length != self._length:
            self._go_back(length)

    def _begin_anew(self) -> None:
        """Also where a call that failed has left nothing that could be read."""
        self.model.reset()
        self._length = 0

    def _go_back(self, length: int) -> None:
        if self._sums:
            raise OptionError(
                f"cannot rewind to {length} of {self._length} positions: the model keeps sums of its past",
                hint="rewind(0), and feed the tokens again; or fork() before they are fed",
            )
        self._set(length)

    def _take_back(self, length: int) -> None:
        try:
            self._set(length)
        except InputError:
            self._begin_anew()

    def _set(self, length: int) -> None:
        self.model.set_state(self._counter, np.full(self._shape, length))
        self._length = length

    def fork(self) -> Self:
        """See `Decoder`. Pages of what is filled are shared until somebody writes to them."""
        return type(self)(copy.copy(self.model), piece=self.piece)

    def _what_is_given(self, info: TensorInfo) -> Given:
        role = _ROLES.get(info.name)
        if role is None or info.dtype not in ("int64", "int32") or len(info.shape) not in (1, 2):
            raise OptionError(
                f"{self.model} is no decoder: nothing is known of its input {info}",
                hint=f"decoders take integers for one sequence, named {', '.join(_ROLES)}",
            )
        dtype, outer = np.dtype(info.dtype), (1,) * (len(info.shape) - 1)
        return lambda tokens, before: (
            (found := role(tokens, before)).astype(dtype, copy=False).reshape(*outer, len(found))
        )


def _piece_of(model: Model, piece: int) -> int:
    """How many tokens a call takes at most; OptionError for a model that takes some other fixed number than one."""
    sizes = {info.shape[-1] for info in model.inputs if _ROLES.get(info.name) is _tokens}
    fixed = {n for n in sizes if isinstance(n, int)}
    if fixed - {1}:
        raise OptionError(
            f"{model} takes {max(fixed)} tokens in each call, and texts have any number",
            hint="export it with a symbolic number of tokens (dynamic_shapes=), or for one token",
        )
    return 1 if fixed else piece


def rewound(decoder: Decoder, length: int) -> int:
    """Forget the positions from `length` on, or all where the decoder cannot forget some; how many are left."""
    try:
        decoder.rewind(length)
    except (OptionError, InputError):
        decoder.rewind(0)
    return decoder.length


def _counter_of(model: Model) -> str:
    counters = {state.counter for state in model.states if state.counter} - {ENCODED}
    if not counters and len(model.states) > 1:
        counters = {state.info.name for state in model.states if _is_count(state.info)}
    if len(counters) != 1:
        kept = ", ".join(str(state.info) for state in model.states) or "none"
        raise OptionError(
            f"{model} is no decoder: it needs states that grow with one counter, or others beside a single integer; "
            f"its states are {kept}",
            hint="compile a language model with states=True",
        )
    return counters.pop()


def _is_count(info: TensorInfo) -> bool:
    return info.dtype in ("int64", "int32") and all(n == 1 for n in info.shape)


def vocabulary_of(model: Model) -> int:
    """The tokens of which a model's first output has logits; OptionError where it has none."""
    size = model.outputs[0].shape[-1] if model.outputs and model.outputs[0].shape else None
    if not isinstance(size, int) or model.outputs[0].dtype != "float32":
        raise OptionError(
            f"{model} is no decoder: the first of its outputs is not float32[..., vocabulary]",
            hint="export it so that logits come first",
        )
    return size


def position_bytes(model: Model) -> int:
    """What the caches of one sequence hold for a position; 0 for a model that has none."""
    grown = [state for state in model.states if state.counter and state.counter.rpartition(".")[2] != ENCODED]
    own = [state for state in grown if state.counter == grown[0].counter]
    rows = ([int(n) for k, n in enumerate(state.info.shape) if k != state.grows] for state in own)
    return sum(numpy_dtype(state.info.dtype).itemsize * math.prod(row) for state, row in zip(own, rows, strict=True))


def _tokens(tokens: np.ndarray, before: int) -> np.ndarray:
    return tokens


def _positions(tokens: np.ndarray, before: int) -> np.ndarray:
    return np.arange(before, before + len(tokens))


def _ones(tokens: np.ndarray, before: int) -> np.ndarray:
    return np.ones(before + len(tokens), np.int64)


_ROLES: dict[str, Given] = {
    "ids": _tokens, "input_ids": _tokens, "tokens": _tokens,
    "position_ids": _positions, "positions": _positions, "cache_position": _positions,
    "attention_mask": _ones,
}  # fmt: skip


# Embeddings


POOLINGS = ("mean", "last", "cls")


class Embedder:
    """A model that gives `hidden` f32[1, s, width] for tokens (`DecoderSource(..., hidden=True)`). Long texts are fed
    `piece` tokens at a time. Threads wait for each other."""

    def __init__(self, model: Model, *, piece: int = 512) -> None:
        output = model.outputs[0] if model.outputs else None
        if output is None or output.name != "hidden" or len(model.inputs) != 1:
            raise OptionError(
                f"{model} gives no hidden states of tokens", hint="compile DecoderSource(path, hidden=True)"
            )
        self._model, self._piece, self._lock = model, piece, free_in_children(Lock())
        self.width = int(output.shape[-1])

    def embed(self, tokens: Sequence[int], pooling: str) -> np.ndarray:
        """f32[width] of at least one token."""
        with self._lock:
            self._model.reset()
            total, first, last = np.zeros(self.width), None, None
            for begin in range(0, len(tokens), self._piece):
                ids = np.asarray(tokens[begin : begin + self._piece], np.int64)[None]
                (hidden,) = self._model(ids)
                first = hidden[0, 0].copy() if first is None else first
                last = hidden[0, -1].copy()
                total += hidden[0].sum(axis=0, dtype=np.float64)
        assert first is not None and last is not None, "there is a token"
        return {"mean": (total / len(tokens)).astype(np.float32), "last": last, "cls": first}[pooling]


def checked_pooling(pooling: str) -> str:
    if pooling not in POOLINGS:
        raise OptionError(f"pooling={pooling!r:.80} is not allowed: one of {', '.join(POOLINGS)}")
    return pooling


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1; rows of zeros stay."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
