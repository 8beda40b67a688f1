"""Shape rules that several families share: axes, broadcasting, sizes of sliding windows."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, eq, ge, logical_or, sym, truth
from tilewright.ir.types import TensorType
from tilewright.ops.define.broadcasting import common_dim as common_dim
from tilewright.ops.define.broadcasting import surely_different as surely_different
from tilewright.ops.define.demands import require as require
from tilewright.ops.define.demands import require_equal_dim as require_equal_dim
from tilewright.ops.define.scalar_builder import Array

Dim = Sym | int


class UndecidedDimsError(UnsupportedError):
    """The form of a result depends on what symbolic dims are; fixing the inputs' sizes is the way out."""

    def __init__(self, what: str, dims: Sequence[Sym]) -> None:
        super().__init__(what, hint="fix the sizes of the inputs with shapes=")
        self.dims = tuple(dims)


def checked_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front; ValueError when a tensor of `rank` axes does not have it."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} does not exist: the tensor has {rank} axes")
    return axis + rank if axis < 0 else axis


def checked_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Distinct axes counted from the front, ascending."""
    found = sorted(checked_axis(a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise ValueError(f"axes {tuple(axes)} name an axis twice")
    return tuple(found)


def dims(shape: Sequence[Dim]) -> tuple[Sym, ...]:
    return tuple(sym(d) for d in shape)


def broadcast(*shapes: Sequence[Sym]) -> tuple[Sym, ...]:
    """The common shape of NumPy broadcasting; ValueError when there is none."""
    rank = max((len(s) for s in shapes), default=0)
    result = [sym(1)] * rank
    for shape in shapes:
        for k, d in enumerate(shape, start=rank - len(shape)):
            result[k] = common_dim(result[k], d)
    return tuple(result)


def require_rank(x: Array | TensorType, rank: int, what: str) -> None:
    if x.rank != rank:
        raise ValueError(f"{what} must have {rank} axes, not {x.rank}")


def require_space(x: Array, trailing: int = 0) -> tuple[Sym, ...]:
    """The dims behind those of batch and channels, of which there must be one, but for `trailing` last ones."""
    space = x.shape[2 : x.rank - trailing]
    if not space:
        raise ValueError(
            f"the data must have a batch, a channel and a spatial axis at least, not {x.rank} axes"
        )
    return space


def require_same_dtype(*arrays: Array) -> DType:
    """The dtype that all operands share; ValueError when they do not."""
    first = arrays[0].dtype
    for a in arrays[1:]:
        if a.dtype != first:
            raise ValueError(f"operands must have one dtype, not {first} and {a.dtype}")
    return first


def require_unstretched(whole: Sequence[Sym], other: Sequence[Sym], what: str) -> None:
    """ValueError where an operand does not broadcast to the shape of a whole one, which is not stretched itself."""
    wrong = f"{what} [{', '.join(map(str, other))}] cannot be broadcast to [{', '.join(map(str, whole))}]"
    require(truth(len(other) <= len(whole)), wrong)
    for own, d in zip(reversed(other), reversed(whole), strict=False):
        require(logical_or(eq(own, 1), eq(own, d)), wrong)


def require_length(values: Sequence[object], length: int, what: str) -> None:
    if len(values) != length:
        raise ValueError(f"{what} must have {length} values, not {len(values)}")


def window_count(size: Dim, kernel: Dim, stride: int, before: Dim, after: Dim, dilation: int) -> Sym:
    """How many positions a window has: floor((padded - reach) / stride) + 1, ValueError if it never fits. That of one
    element has none where there are no elements."""
    reach = dilation * (sym(kernel) - 1) + 1
    room = sym(size) + before + after - reach
    least = -1 if reach == 1 else 0  # a single element is visited as often as there are any
    require(ge(room, least), f"a window of {reach} does not fit into {size} elements padded by {before} and {after}")
    return room // stride + 1
