"""Small questions that rules of this room ask about ops and values."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from tilewright.ir.core import Module, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import constant_array
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.traits.derive import is_view, product_of, traits_of
from tilewright.ops.traits.facts import Product
from tilewright.ops.traits.pairing import is_elementwise

SMALL_ELEMENTS = 1 << 16
"""Constants of up to this many elements are looked at element by element."""


def type_of(value: Value) -> TensorType:
    """The type of a tensor value."""
    return value.tensor


def shape_of(value: Value) -> tuple[Sym, ...]:
    return type_of(value).shape


def dtype_of(value: Value) -> DType:
    return type_of(value).dtype


def is_constant(value: Value) -> bool:
    """Whether the elements are known when compiling."""
    return value.op is not None and value.op.name in ("constant", "full")


def hands_on_elements(op: Op) -> bool:
    """Whether the elements of its only result are elements of operands, moved or chosen among several by their order,
    or fills."""
    own = traits_of(op)
    return len(op.results) == 1 and bool(own.moves or (own.chooses and not is_elementwise(op)))


def matrix_product(op: Op) -> Product | None:
    """The axes of a product of matrices as they are, in whose own form it still is."""
    product = product_of(op)
    if product is None or not product.of_matrices or not product.is_plain or op.attrs.get("sums") is not None:
        return None
    return product


def multiplies_known(op: Op, weights: Value) -> bool:
    """Whether it is a product of matrices of the call with these."""
    product = matrix_product(op)
    if product is None or op.operands[product.weights] is not weights:
        return False
    return not is_known(op.operands[product.data])


def keeps_each_element(op: Op) -> bool:
    """Whether it computes of each element one by itself, or exchanges axes."""
    return is_elementwise(op) or op.name == "transpose"


def picks_by_data(op: Op) -> bool:
    """Whether it hands on elements of its first operand whose places other operands say."""
    return traits_of(op).moves_one and not is_view(op)


def picks_matrices(op: Op) -> bool:
    """Whether it picks matrices, each as a whole, of a stack of them."""
    if not picks_by_data(op) or type_of(op.operands[0]).rank < 3 or type_of(op.result).rank < 3:
        return False
    compute = OPERATORS[op.name].compute([type_of(v) for v in op.operands], op.attrs)
    loads = [o for o in compute.body.ops if o.name == "load" and o.operands[0] is compute.body.args[0]]
    kept = tuple(v for v, _ in compute.axes[-2:])
    whole = shape_of(op.operands[0])[-2:] == shape_of(op.result)[-2:]
    return whole and all(o.attrs["idx"][-2:] == kept and kept_apart(o.attrs["idx"][:-2], kept) for o in loads)


def kept_apart(indices: Iterable[Sym], others: Iterable[Sym]) -> bool:
    """Whether these indices do not depend on the others."""
    return all(i.vars.isdisjoint(others) for i in indices)


def is_known(value: Value) -> bool:
    """Whether all elements follow from constants by elementwise operators and views."""
    return _follows_from_constants(value, picked=False)


def is_picked_of_known(value: Value) -> bool:
    """Whether all elements follow from constants so, or from matrices that data pick of them."""
    return _follows_from_constants(value, picked=True)


def _follows_from_constants(value: Value, *, picked: bool) -> bool:
    pending, seen = deque([value]), {value}
    while pending:  # breadth first: what is not known is mostly near
        current = pending.popleft()
        if is_constant(current):
            continue
        op = current.op
        if keeps_known(op):
            assert op is not None
            sources: tuple[Value, ...] = tuple(op.operands)
        elif picked and op is not None and picks_matrices(op):
            sources = (op.operands[0],)
        else:
            return False
        pending += [v for v in sources if v not in seen]
        seen.update(sources)
    return True


def keeps_known(op: Op | None) -> bool:
    """Whether all elements of the results are known where those of the operands are."""
    return op is not None and (is_elementwise(op) or is_view(op))


def filled_with(value: Value) -> int | float | bool | None:
    """The number that every element of a `full` is; None of all others."""
    op = value.op
    number: int | float | bool | None = op.attrs["value"] if op is not None and op.name == "full" else None
    return number


def uniform_number(value: Value, module: Module) -> int | float | bool | None:
    """The number that every element of a small constant is; None where they differ or are not known."""
    number = filled_with(value)
    if number is not None:
        return number
    array = constant_array(value, module)
    if array is None or not 0 < array.size <= SMALL_ELEMENTS or array.dtype.kind not in "biuf":
        return None
    flat = array.reshape(-1)
    first = flat[0]
    if flat[-1] != first or not np.all(flat == first):  # most constants have other ends
        return None
    found: int | float | bool = first.item()
    return found


def sole_user(value: Value) -> Op | None:
    """The only op that reads the value (in one slot), else None."""
    return value.users[0] if len(value.users) == 1 else None


def live_dims(shape: tuple[Sym, ...]) -> list[Sym]:
    """The dims other than 1."""
    return [d for d in shape if d != 1]
