"""Rules that move transposes, reshapes and expands below the operators that read them, where they meet and cancel.

Exporters of channels-last frameworks put a transpose before and after each convolution; below the elementwise
operators between two convolutions the two are neighbours. What is expanded before it is computed with (positions and
learned queries, for each image of a batch) is computed once, and when compiling where it is known.
"""

from __future__ import annotations

from tilewright.cost.roofline import is_worth_vectors
from tilewright.graph.match import (
    dtype_of,
    is_constant,
    live_dims,
    shape_of,
    type_of,
    uniform_number,
)
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.rewrite import Replacement, RewriteContext, defining, has_one_use, rule
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.contract import matmul
from tilewright.ops.define import OPERATORS
from tilewright.ops.source import full
from tilewright.ops.traits.derive import is_alias, is_view
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.ops.view import concat, expand, reshape, transpose

Perm = tuple[int, ...]


@rule()
def transpose_below_elementwise(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """f(transpose(x), transpose(y)) -> transpose(f(x, y)); constants are transposed the other way."""
    perm = _common_perm(op.operands, ctx)
    if perm is None or not is_elementwise(op):
        return None
    if type_of(op.result).rank != len(perm) or _widens_what_others_read(op):
        return None
    operands = [_transposed_back(v, perm, ctx) for v in op.operands]
    return transpose(OPERATORS[op.name](*operands, **op.attrs), perm=perm)


def _widens_what_others_read(op: Op) -> bool:
    """Whether it makes elements wider that are needed moved and narrow anyway, so that it had better read these."""
    x, *others = op.operands
    return not others and dtype_of(op.result).bits > dtype_of(x).bits and len(x.users) > 1


@rule("pad", "slice")
def transpose_below_window(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """pad and slice of a transpose, but not of one that a concat reads as well: it would be made twice."""
    inner = defining(op.operands[0], "transpose")
    if inner is None or any(reader.name == "concat" for reader in inner.result.users):
        return None
    perm: Perm = tuple(inner.attrs["perm"])

    def permuted(value: object) -> object:
        by_axis = isinstance(value, tuple | list) and len(value) == len(perm)
        return tuple(value[perm.index(k)] for k in range(len(perm))) if by_axis else value  # type: ignore[index]

    moved = OPERATORS[op.name](inner.operands[0], **{name: permuted(value) for name, value in op.attrs.items()})
    return transpose(moved, perm=perm)


@rule("matmul")
def transpose_below_product(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A product over an axis that is taken to the end for it alone, and back afterwards, over that axis where it is:
    transpose(x) W -> transpose(W' x), rows of x being all that lies behind the axis."""
    x, weights = op.operands
    if type_of(weights).rank != 2 or type_of(x).rank < 2:
        return None
    merged = defining(x, "reshape")
    if merged is not None and not op.attrs["transpose_a"] and shape_of(merged.operands[0])[-1:] == shape_of(x)[-1:]:
        x = merged.operands[0]
    moved = defining(x, "transpose")
    source, perm = (x, list(range(type_of(x).rank))) if moved is None else (moved.operands[0], [*moved.attrs["perm"]])
    if op.attrs["transpose_a"]:
        perm[-2:] = perm[:-3:-1]
    axis, filters = perm[-1], shape_of(op.result)[-1]
    if axis == len(perm) - 1 or perm[:-1] != sorted(perm[:-1]):
        return None
    shape = shape_of(source)
    lead, behind = shape[:axis], shape[axis + 1 :]
    if not _is_moved_back(op.result, tuple(perm), (*lead, *behind, filters)):
        return None
    rows = reshape(source, shape=(*lead, shape[axis], product(behind)))
    sums = matmul(weights, rows, transpose_a=not op.attrs["transpose_b"])
    found = transpose(reshape(sums, shape=(*lead, filters, *behind)), perm=tuple(perm))
    return found if shape_of(found) == shape_of(op.result) else reshape(found, shape=shape_of(op.result))


def _is_moved_back(value: Value, perm: Perm, shape: tuple[Sym, ...]) -> bool:
    """Whether all that is made of a value, seen in this shape, is transposed such that `perm` is undone, after
    elementwise work with constants at most."""
    while len(value.users) == 1:
        (user,) = value.users
        if user.name == "transpose":
            back = tuple(user.attrs["perm"])
            return shape_of(value) == shape and tuple(perm[k] for k in back) == tuple(range(len(perm)))
        others = [v for v in user.operands if v is not value]
        if not (is_alias(user) or is_elementwise(user)) or not all(map(is_constant, others)):
            return False
        value = user.result
    return False


@rule("concat")
def transpose_below_concat(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """concat of transposes alike."""
    perm = _common_perm(op.operands, ctx)
    if perm is None or not all(defining(v, "transpose") for v in op.operands):
        return None
    operands = [_transposed_back(v, perm, ctx) for v in op.operands]
    return transpose(concat(*operands, axis=perm[op.attrs["axis"] % len(perm)]), perm=perm)


@rule("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
def transpose_below_reduction(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A reduction of a transpose reduces the axes where they were; what is left is transposed.

    Not where rows of the transpose are reduced that others read as well, which then are contiguous in memory, nor where
    too few results would be beside each other for vectors.
    """
    inner = defining(op.operands[0], "transpose")
    if inner is None:
        return None
    perm: Perm = tuple(inner.attrs["perm"])
    axes = tuple(sorted(perm[a % len(perm)] for a in op.attrs["axes"]))
    reduces_rows = any(a % len(perm) == len(perm) - 1 for a in op.attrs["axes"])
    beside = shape_of(inner.operands[0])[-1]
    is_taken = has_one_use(op.operands[0]) and is_worth_vectors(beside.value if beside.is_const else None)
    if reduces_rows and axes[-1] != len(perm) - 1 and not is_taken:
        return None
    reduced = OPERATORS[op.name](inner.operands[0], axes=axes, keepdims=op.attrs["keepdims"])
    if op.attrs["keepdims"]:
        return transpose(reduced, perm=perm)
    left = [k for k in range(len(perm)) if k not in axes]
    return transpose(reduced, perm=tuple(left.index(k) for k in perm if k not in axes))


@rule("reduce_max", "reduce_min")
def move_below_whole_reduction(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """The greatest of all elements does not depend on where they are. (Sums would be of another order.)"""
    x = op.operands[0]
    if x.op is None or not is_view(x.op) or type_of(op.result).size != 1:
        return None
    source = x.op.operands[0]
    if type_of(source).size != type_of(x).size:
        return None
    axes = tuple(range(type_of(source).rank))
    found = OPERATORS[op.name](source, axes=axes, keepdims=False)
    return reshape(found, shape=shape_of(op.result)) if shape_of(op.result) else found


@rule()
def reshape_below_elementwise(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """f(reshape(x), c) -> reshape(f(x, c)) for constants that have all of the axes that are split or merged together,
    or one element along them, and so for several operands reshaped alike."""
    views = [t for v in op.operands if (t := _view(v, "reshape")) is not None]
    if not views or not is_elementwise(op):
        return None
    shape = shape_of(op.result)
    reshaped = [t for t in views if shape_of(t.result) == shape]
    sources = {shape_of(t.operands[0]) for t in reshaped}
    if len(sources) != 1 or _widens_what_others_read(op):
        return None
    (old,) = sources
    operands: list[Value] = []
    for operand in op.operands:
        inner = _view(operand, "reshape")
        if inner in reshaped:
            assert inner is not None
            operands.append(inner.operands[0])
        elif not shape_of(operand) and uniform_number(operand, ctx.module) is not None:
            operands.append(operand)
        elif operand.op is not None and operand.op.name == "constant":
            own = (*[sym(1)] * (len(shape) - len(shape_of(operand))), *shape_of(operand))
            permuted = _before_reshape(own, old, shape)
            if permuted is None:
                return None
            operands.append(reshape(operand, shape=permuted))
        else:
            return None
    found = OPERATORS[op.name](*operands, **op.attrs)
    return reshape(found, shape=shape) if shape_of(found) == old else None


@rule("softmax", "log_softmax")
def reshape_below_softmax(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """softmax(reshape(x)) -> reshape(softmax(x)) for rows that the reshape leaves whole."""
    inner = defining(op.operands[0], "reshape")
    if inner is None:
        return None
    old, shape = shape_of(inner.operands[0]), shape_of(op.result)
    if not old or old[-1] != shape[-1] or op.attrs["axis"] % len(shape) != len(shape) - 1:
        return None
    return reshape(OPERATORS[op.name](inner.operands[0], axis=len(old) - 1), shape=shape)


@rule("transpose")
def reshape_below_transpose(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """transpose(reshape(x)) -> reshape(transpose(x)) where the reshape leaves the axes alone that are moved,
    or only adds or drops axes of one element."""
    inner = defining(op.operands[0], "reshape")
    if inner is None or any("transpose_b" in u.attrs for u in op.result.users):
        return None  # products take transposes into their flags
    old, middle = shape_of(inner.operands[0]), shape_of(inner.result)
    perm: Perm = tuple(op.attrs["perm"])
    same = _common_suffix(old, middle)
    lead = len(middle) - same
    if 1 < same < len(middle) and perm[:lead] == tuple(range(lead)):
        shift = len(old) - len(middle)
        within = (*range(len(old) - same), *(k + shift for k in perm[lead:]))
        return reshape(transpose(inner.operands[0], perm=within), shape=shape_of(op.result))
    if live_dims(old) != live_dims(middle) or len(old) == len(middle) == len(live_dims(old)):
        return None
    axes_of = dict(
        zip(
            [k for k, d in enumerate(middle) if d != 1], [k for k, d in enumerate(old) if d != 1], strict=True
        )
    )
    moved = [axes_of[k] for k in op.attrs["perm"] if k in axes_of]
    units = [k for k, d in enumerate(old) if d == 1]
    if moved == sorted(moved):
        return None
    return reshape(transpose(inner.operands[0], perm=(*units, *moved)), shape=shape_of(op.result))


@rule()
def expand_below_elementwise(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """f(expand(x), y) -> expand(f(x, y)) where no operand has the expanded axes."""
    if not any(defining(v, "expand") for v in op.operands) or not is_elementwise(op) or len(op.results) != 1:
        return None
    return _expanded_afterwards(op, [_before_expand(v) for v in op.operands])


@rule("matmul")
def expand_below_product(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Rows and batches that are expanded are multiplied once, also where a reshape makes one axis of them."""
    x, w = op.operands
    merged = defining(x, "reshape")
    if merged is not None and type_of(w).rank == 2 and not op.attrs["transpose_a"]:
        wide = merged.operands[0]
        source = _before_expand(wide, but=-1)
        if source is wide or type_of(wide).rank < 2 or shape_of(wide)[-1] != shape_of(x)[-1]:
            return None
        sums = matmul(source, w, transpose_b=op.attrs["transpose_b"])
        rows = expand(sums, shape=(*shape_of(wide)[:-1], shape_of(sums)[-1]))
        return reshape(rows, shape=shape_of(op.result))
    operands = [_before_expand(x, but=_depth_axis(op, 0)), _before_expand(w, but=_depth_axis(op, 1))]
    return _expanded_afterwards(op, operands)


def _depth_axis(product: Op, k: int) -> int:
    """The axis along which operand k of a product is summed, from the end."""
    return -2 if product.attrs[("transpose_a", "transpose_b")[k]] == (k == 0) else -1


@rule("transpose")
def expand_below_transpose(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    inner = defining(op.operands[0], "expand")
    if inner is None:
        return None
    x, rank = inner.operands[0], type_of(op.result).rank
    x = reshape(x, shape=(*[sym(1)] * (rank - type_of(x).rank), *shape_of(x)))
    return expand(transpose(x, perm=op.attrs["perm"]), shape=shape_of(op.result))


@rule("reshape")
def expand_below_reshape(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """reshape(expand(x)) -> expand(reshape(x)) where axes are split or merged that are expanded alike."""
    inner = defining(op.operands[0], "expand")
    if inner is None:
        return None
    x, wide = inner.operands[0], shape_of(inner.result)
    own = (*[sym(1)] * (len(wide) - type_of(x).rank), *shape_of(x))
    shape = _before_reshape(own, shape_of(op.result), wide)
    return None if shape is None else expand(reshape(x, shape=shape), shape=shape_of(op.result))


def _before_expand(value: Value, but: int | None = None) -> Value:
    """What broadcasts to `value`, of as many axes, but for one axis (from the end) of which all elements are needed."""
    inner = defining(value, "expand")
    if inner is None:
        return value
    x, shape = inner.operands[0], shape_of(value)
    own = (*[sym(1)] * (len(shape) - type_of(x).rank), *shape_of(x))
    wide = [a for a, (d, after) in enumerate(zip(own, shape, strict=True)) if d != after]
    if any(own[a] != 1 for a in wide) or (but is not None and len(shape) + but in wide):
        return value
    return x if own == shape_of(x) else reshape(x, shape=own)


def _expanded_afterwards(op: Op, operands: list[Value]) -> Replacement:
    """An op over operands with fewer elements, expanded where it has fewer as well."""
    if operands == list(op.operands):
        return None
    found = OPERATORS[op.name](*operands, **op.attrs)
    shape = shape_of(op.result)
    if len(live_dims(shape_of(found))) >= len(live_dims(shape)):
        return None
    return expand(found, shape=shape)


def _common_suffix(a: tuple[Sym, ...], b: tuple[Sym, ...]) -> int:
    """How many trailing dims two shapes share."""
    same = 0
    while same < min(len(a), len(b)) and a[-1 - same] == b[-1 - same]:
        same += 1
    return same


def _before_reshape(
    own: tuple[Sym, ...], old: tuple[Sym, ...], new: tuple[Sym, ...]
) -> tuple[Sym, ...] | None:
    """The shape in which what broadcasts from `own` to `new` broadcasts to `old`, of which `new` is a reshape; None
    where it has some of the axes that are split or merged together, but not all."""
    found: list[Sym] = []
    for before, after in _runs(old, new):
        mine, own = own[: len(after)], own[len(after) :]
        if live_dims(mine) and (mine != after or product(before) != product(after)):
            return None
        found += before if live_dims(mine) else [sym(1)] * len(before)
    return tuple(found)


def _runs(old: tuple[Sym, ...], new: tuple[Sym, ...]) -> list[tuple[tuple[Sym, ...], tuple[Sym, ...]]]:
    """The axes of two shapes of equal size in the shortest runs that have equal sizes. What is left is one run where
    sizes are not seen to be equal, or are 0 together only."""
    found = []
    while old or new:
        ends = ((i, j) for i in range(len(old) + 1) for j in range(len(new) + 1) if i + j > 0)
        equal = ((i, j) for i, j in ends if product(old[:i]) == product(new[:j]))
        i, j = next(equal, (len(old), len(new)))
        found.append((old[:i], new[:j]))
        old, new = old[i:], new[j:]
    return found


def _view(value: Value, name: str) -> Op | None:
    """The op of that name that gives `value`, unless it is a view of a constant. That is computed when compiling; if
    it were moved below an operator of two constants, each would become a view where the other was one, without end."""
    view = defining(value, name)
    return None if view is None or is_constant(view.operands[0]) else view


def _common_perm(operands: tuple[Value, ...], ctx: RewriteContext) -> Perm | None:
    """The permutation of all operands that are transposes, when every other one can be transposed back for free."""
    found = {tuple(t.attrs["perm"]) for v in operands if (t := _view(v, "transpose")) is not None}
    if len(found) != 1:
        return None
    (perm,) = found
    return perm if all(_is_transposable(v, perm, ctx) for v in operands) else None


def _is_transposable(value: Value, perm: Perm, ctx: RewriteContext) -> bool:
    if _view(value, "transpose") is not None:
        return len(shape_of(value)) == len(perm)
    if not shape_of(value):
        return True
    return is_constant(value) and type_of(value).rank <= len(perm)


def _transposed_back(value: Value, perm: Perm, ctx: RewriteContext) -> Value:
    """The operand whose transpose by `perm` broadcasts as `value` does."""
    inner = _view(value, "transpose")
    if inner is not None:
        return inner.operands[0]
    if not shape_of(value):
        return value
    number = uniform_number(value, ctx.module)
    type: TensorType = type_of(value)
    if number is not None and type.size == 1:
        return full(value=number, dtype=dtype_of(value), shape=())
    wide = reshape(value, shape=(*[sym(1)] * (len(perm) - type.rank), *type.shape))
    return transpose(wide, perm=tuple(perm.index(k) for k in range(len(perm))))


SINK_RULES = (
    transpose_below_elementwise, transpose_below_window, transpose_below_product, transpose_below_concat,
    move_below_whole_reduction,
    transpose_below_reduction,
    reshape_below_elementwise, reshape_below_softmax, reshape_below_transpose,
    expand_below_elementwise, expand_below_product, expand_below_transpose, expand_below_reshape,
)  # fmt: skip
