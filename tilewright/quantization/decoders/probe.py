"""A compiled language model whose matrices come with the call, so that any forms of them are judged without compiling.

Weights of fewer bits are decoded before the call: the products are those of kernels that dequantise, but for the
rounding of float32 sums. In float64 it is the reference: what is stored, computed without rounding that counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.api import compile as compile_model
from tilewright.frontends.decoders.load import load_decoder
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.frontends.decoders.weights import as_form, is_matrix
from tilewright.frontends.weights.expression import stored_value
from tilewright.frontends.weights.forms import WeightForm
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.graph.editing import add_input, build_after, build_before, replace_in, set_outputs
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.types import tensor
from tilewright.ops.elementwise import cast, mul
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.source import full
from tilewright.ops.traits.derive import traits_of
from tilewright.quantization.decoders.agreement import Logits
from tilewright.quantization.decoders.widened import widened
from tilewright.runtime import Model
from tilewright.runtime.errors import PerformanceWarning

_MOST_KEPT = 2 << 30
"""Bytes of floats of what is stored; of more they are decoded for each form of the model."""
_GIVEN = "weight:"
"""What names of inputs begin with that are matrices."""


class Matrices:
    """The matrices of a checkpoint as it stores them, and what they become: each form is encoded once. `importance` of
    columns weighs errors of forms that are asked for from then on."""

    def __init__(self) -> None:
        self.stored: dict[str, StoredTensor] = {}
        self.importance: Mapping[str, np.ndarray] = {}
        self._formed: dict[tuple[str, WeightForm], StoredTensor] = {}
        self._floats: dict[str, np.ndarray] = {}

    def formed(self, name: str, form: WeightForm | None) -> StoredTensor:
        """None: as it is stored."""
        if form is None:
            return self.stored[name]
        if (name, form) not in self._formed:
            self._formed[name, form] = as_form(self.stored[name], form, self.importance.get(name))
        return self._formed[name, form]

    def floats(self, name: str, form: WeightForm | None = None) -> np.ndarray:
        """f32[rows, columns]; those of what is stored are kept while all together are few."""
        found = self.formed(name, form)
        elements = found.elements()
        if elements is not None and elements.dtype == np.float32:
            return elements
        if found is not self.stored[name] or 4 * self._elements > _MOST_KEPT:
            return found.decoded()
        if name not in self._floats:
            self._floats[name] = found.decoded()
        return self._floats[name]

    @cached_property
    def _elements(self) -> int:
        return sum(tensor.size for tensor in self.stored.values())

    def bytes(self, name: str, form: WeightForm | None = None) -> int:
        return self.formed(name, form).data.nbytes


class DecoderProbe:
    """The checkpoint at a path, for sequences of up to `window` tokens. Both have the same matrices: `narrow` computes
    in float32, `wide` in float64, and each is compiled when it is first asked for."""

    def __init__(self, path: Path, window: int, **how: Any) -> None:
        """`how`: threads, session, progress and cache of `tilewright.compile`."""
        self.matrices = Matrices()
        self._how = how
        given: dict[str, Value] = {}

        def express(name: str, stored: StoredTensor) -> Value:
            if not is_matrix(stored):
                return stored_value(stored)
            self.matrices.stored[name] = stored
            given[name] = full(value=0.0, dtype=dt.f32, shape=stored.shape)
            return given[name]

        self._module = load_decoder(DecoderSource(path, capacity=window, logits="all"), express=express)
        main = self._module.main
        own = {"ids", *(variable[0] for variable in main.attrs["variables"])}
        other = [name for name in main.attrs["inputs"] if name not in own]
        if other:
            raise UnsupportedError(
                f"models that read '{other[0]}' beside tokens are not compared", where=str(path),
                hint="this is for models that continue a text",
            )  # fmt: skip
        self._given = given
        self._squares: dict[str, np.ndarray] = {}
        self._tokens = 0

    def narrow(self, forms: Mapping[str, WeightForm] | None = None) -> Logits:
        """Gives logits f32[n, vocabulary] behind n tokens, with matrices in the forms that a mapping has for them."""
        return self._with(self._narrow, forms or {})

    def wide(self) -> Logits:
        """Gives logits f64[n, vocabulary]; matrices are as they are stored. What they are multiplied by is added to
        `seen`."""
        return self._with(self._wide, {})

    @property
    def seen(self) -> dict[str, np.ndarray]:
        """f64[columns] by the names of matrices: the mean square of what each column was multiplied by in `wide`
        calls."""
        return {name: squares / self._tokens for name, squares in self._squares.items()}

    @cached_property
    def _narrow(self) -> Model:
        return self._compiled(wide=False)

    @cached_property
    def _wide(self) -> Model:
        return self._compiled(wide=True)

    def _compiled(self, wide: bool) -> Model:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)  # it takes more memory than a model for use
            return compile_model(_asking(self._module, self._given, wide=wide), **self._how)

    def _with(self, model: Model, forms: Mapping[str, WeightForm]) -> Logits:
        feeds: list[np.ndarray | None] = []
        for info in model.inputs:
            if info.name.startswith(_GIVEN):
                name = info.name.removeprefix(_GIVEN)
                feeds.append(self.matrices.floats(name, forms.get(name)))
            else:
                feeds.append(None if info.name == "ids" else np.zeros([int(dim) for dim in info.shape], info.dtype))

        def run(tokens: np.ndarray) -> np.ndarray:
            ids = np.asarray(tokens, np.int64)[None]
            logits, *squares = model(*(ids if feed is None else feed for feed in feeds))
            self._tokens += len(tokens) if squares else 0
            for info, found in zip(model.outputs[1:], squares, strict=True):
                self._squares[info.name] = self._squares.get(info.name, 0) + found
            return np.asarray(logits[0])

        return run


def _asking(module: Module, matrices: Mapping[str, Value], wide: bool = False) -> Module:
    """A copy that takes matrices f32 as inputs, and gives the logits; a wide one also sums of squares of what columns
    are multiplied by, by the names of matrices."""
    own: dict[Value, Value] = {}
    made = module.copy(own)
    places = {name: made.main.body.ops.index(own[value].op) for name, value in matrices.items()}  # type: ignore[arg-type]
    for name in ("variables", "keeps", "activations"):
        made.main.attrs.pop(name, None)
    set_outputs(made, {"logits": made.main.returns[0]})
    if wide:
        made = widened(made)
    zeros = {name: made.main.body.ops[place].result for name, place in places.items()}
    outputs = {"logits": made.main.returns[0]}
    for name, value in zeros.items():
        product = next(filter(None, (_of_columns(op, value) for op in value.users)), None) if wide else None
        if product is not None:
            outputs[name] = build_after(product[0], made, partial(_sums_of_squares, *product))
    set_outputs(made, outputs)
    for name, value in zeros.items():
        matrix = add_input(made, _GIVEN + name, tensor(dt.f32, value.tensor.shape))
        for user in dict.fromkeys(value.users):  # each for itself, so that what is wide need not be kept
            given = build_before(user, made, partial(cast, matrix, dtype=dt.f64)) if wide else matrix
            replace_in([user], value, given)
    drop_dead(made)
    return made


def _of_columns(op: Op, matrix: Value) -> tuple[Value, int] | None:
    """What the columns of a matrix are multiplied by, and the axis along which it meets them; None for other ops."""
    product = traits_of(op).product
    if product is None or op.operands[product.weights] is not matrix or product.summed != (1,):
        return None
    return op.operands[product.data], product.depth


def _sums_of_squares(data: Value, axis: int) -> Value:
    """Of what lies at each place of an axis."""
    axes = tuple(k for k in range(data.tensor.rank) if k != axis)
    return reduce_sum(mul(data, data), axes=axes, keepdims=False)
