"""Writing scalar programs in plain Python: handles whose operators append ops to a builder's block.

Used for the bodies of primitives (`define.compute`) and for the few operators that bring their own loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Value
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import BufferType, ScalarType, TensorType, buffer

Index = Sym | int
Number = int | float | bool


def _operator(name: str, swapped: bool = False) -> Callable[[Scalar, Scalar | Number], Scalar]:
    """Scalar operation `name` of an element and another operand, which comes first if `swapped`."""

    def apply(x: Scalar, o: Scalar | Number) -> Scalar:
        return x.trace.apply(name, o, x) if swapped else x.trace.apply(name, x, o)

    return apply


class Scalar:
    """One element while a body is traced. Arithmetic with Python numbers takes this element's dtype."""

    __slots__ = ("trace", "value")

    def __init__(self, trace: ScalarBuilder, value: Value) -> None:
        self.trace = trace
        self.value = value

    @property
    def dtype(self) -> DType:
        return self.value.scalar.dtype

    def cast(self, dtype: DType) -> Scalar:
        return self.trace.cast(self, dtype)

    __add__ = _operator("add")
    __radd__ = _operator("add", swapped=True)
    __sub__ = _operator("sub")
    __rsub__ = _operator("sub", swapped=True)
    __mul__ = _operator("mul")
    __rmul__ = _operator("mul", swapped=True)
    __truediv__ = _operator("div")
    __rtruediv__ = _operator("div", swapped=True)
    __lt__ = _operator("lt")
    __le__ = _operator("le")
    __gt__ = _operator("gt")
    __ge__ = _operator("ge")
    __and__ = _operator("and")
    __or__ = _operator("or")
    eq = _operator("eq")
    ne = _operator("ne")

    def __neg__(self) -> Scalar:
        return self.trace.apply("neg", self)


class Array:
    """An operand tensor or a buffer while a body is traced; indexing gives a Scalar."""

    __slots__ = ("trace", "value")

    def __init__(self, trace: ScalarBuilder, value: Value) -> None:
        self.trace = trace
        self.value = value

    @property
    def type(self) -> TensorType | BufferType:
        assert isinstance(self.value.type, TensorType | BufferType)
        return self.value.type

    @property
    def shape(self) -> tuple[Sym, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __getitem__(self, idx: Index | tuple[Index, ...]) -> Scalar:
        return self.load(idx if isinstance(idx, tuple) else (idx,))

    def load(self, idx: Sequence[Index], guard: Sequence[Sym] = (), other: Number = 0) -> Scalar:
        """The element at `idx`, or `other` where a condition of `guard` is 0 (then memory is not touched)."""
        assert len(idx) == self.rank, f"{len(idx)} indices for rank {self.rank}"
        attrs: dict[str, Any] = {"idx": tuple(sym(i) for i in idx)}
        if guard:
            attrs |= {"guard": tuple(guard), "other": other}
        op = self.trace.builder.emit("load", [self.value], [ScalarType(self.dtype)], attrs)
        return Scalar(self.trace, op.result)

    def at(self, out_index: Sequence[Index]) -> Scalar:
        """The element that NumPy broadcasting pairs with position `out_index` of the result."""
        own = out_index[len(out_index) - self.rank :]
        return self.load([0 if d == 1 else i for d, i in zip(self.shape, own, strict=True)])

    def store(self, idx: Sequence[Index], value: Scalar | Number, guard: Sequence[Sym] = ()) -> None:
        """Write one element of a buffer (loop programs only)."""
        assert len(idx) == self.rank, f"{len(idx)} indices for rank {self.rank}"
        attrs: dict[str, Any] = {"idx": tuple(sym(i) for i in idx)}
        if guard:
            attrs["guard"] = tuple(guard)
        scalar = self.trace.lift(value, self.dtype)
        assert scalar.dtype == self.dtype, f"store of {scalar.dtype} into {self.dtype}"
        self.trace.builder.emit("store", [scalar.value, self.value], [], attrs)


class ScalarBuilder:
    """Emits scalar ops and loops through a builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._names = 0

    def array(self, value: Value) -> Array:
        return Array(self, value)

    def const(self, value: Number, dtype: DType) -> Scalar:
        return Scalar(self, self.builder.emit("const", [], [ScalarType(dtype)], {"value": value}).result)

    def index(self, expr: Index, dtype: DType = dt.i64) -> Scalar:
        """The value of an integer expression as an element."""
        return Scalar(self, self.builder.emit("index", [], [ScalarType(dtype)], {"expr": sym(expr)}).result)

    def lift(self, x: Scalar | Number, dtype: DType) -> Scalar:
        return x if isinstance(x, Scalar) else self.const(x, dtype)

    def cast(self, x: Scalar, dtype: DType) -> Scalar:
        """Conversion: floats to integers truncate, anything to bool is `!= 0`, integers wrap."""
        if x.dtype == dtype:
            return x
        return Scalar(self, self.builder.emit("cast", [x.value], [ScalarType(dtype)]).result)

    def bitcast(self, x: Scalar, dtype: DType) -> Scalar:
        """The element of `dtype` that has the bits of x, which are as many."""
        return Scalar(self, self.builder.emit("bitcast", [x.value], [ScalarType(dtype)]).result)

    def level(self, code: Scalar, levels: Sequence[Number], dtype: DType) -> Scalar:
        """The number that a code of 4 bits stands for."""
        found = self.builder.emit("level", [code.value], [ScalarType(dtype)], {"levels": tuple(levels)})
        return Scalar(self, found.result)

    def apply(self, name: str, *args: Scalar | Number) -> Scalar:
        """Scalar operation `name`; Python numbers take the dtype of the other (non-condition) operands."""
        spec = SCALAR_OPS[name]
        assert len(args) == spec.arity, f"{name} takes {spec.arity} operands"
        typed = args[1:] if name == "select" else args
        dtype = next(a.dtype for a in typed if isinstance(a, Scalar))
        lifted = [self.lift(a, dtype) for a in args]
        dtypes = tuple(a.dtype for a in lifted)
        op = self.builder.emit(name, [a.value for a in lifted], [ScalarType(spec.result_dtype(dtypes))])
        return Scalar(self, op.result)

    def select(self, cond: Scalar, a: Scalar | Number, b: Scalar | Number) -> Scalar:
        return self.apply("select", cond, a, b)

    def bind(self, value: Scalar, name: str, lo: int | None = 0, hi: int | None = None) -> Sym:
        """An index variable whose value is computed data (for gathers); its range must have been ensured."""
        v = self.fresh(name, lo, hi)
        self.builder.emit("bind", [value.value], [], {"var": v})
        return v

    def check(self, cond: Scalar, kind: str, message: str) -> None:
        """Report a run-time error (`kind`, `message`) where `cond` is false; execution goes on safely."""
        self.builder.emit("check", [cond.value], [], {"kind": kind, "message": message})

    def fresh(self, name: str, lo: int | None = 0, hi: int | None = None) -> Sym:
        """A new variable with a name that this trace has not used; dims of kernels are called n0, n1, ..."""
        self._names += 1
        return var(f"{'n_' if name == 'n' else name}{self._names}", lo, hi)

    # Loop programs

    @contextmanager
    def loop(
        self, extent: Index, name: str = "i", kind: str = "serial", *, overlap: bool = False
    ) -> Iterator[Sym]:
        """`for name in 0..extent`; everything emitted inside belongs to the loop. With `overlap`, several iterations
        may write one element, each of them the same."""
        v = self.fresh(name)
        block = Block()
        attrs = {"var": v, "extent": sym(extent), "kind": kind, **({"overlap": True} if overlap else {})}
        self.builder.emit("for", attrs=attrs, blocks=[block])
        with self.builder.inside(block):
            yield v

    @contextmanager
    def when(self, *conds: Sym | Scalar) -> Iterator[None]:
        """`if` all conditions hold (index conditions and computed bools may be mixed)."""
        block = Block()
        guard = tuple(c for c in conds if isinstance(c, Sym))
        values = [c.value for c in conds if isinstance(c, Scalar)]
        self.builder.emit("if", values, [], {"guard": guard}, [block])
        with self.builder.inside(block):
            yield

    def alloc(self, dtype: DType, shape: Sequence[Index], space: str = "scratch") -> Array:
        """Memory of this kernel: "scratch" (per thread) or "reg"."""
        return Array(self, self.builder.emit("alloc", [], [buffer(dtype, shape, space)]).result)
