"""How operators are defined: `@primitive` (domain + index maps + scalar body), `@op` (a function over other
operators) and `@irregular` (type rule + own loops). Each operator is one object, called with graph Values: it
appends to the current builder. `interp.evaluate` runs it on NumPy arrays. Attributes are keyword-only
parameters; the defaults of those that a call leaves out are written to the op, so that passes find all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, TypeVar, overload

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Value, current_builder
from tilewright.ir.diag import TypeRuleError
from tilewright.ir.dtype import DType
from tilewright.ir.outside import Definitions
from tilewright.ir.scalar import identity
from tilewright.ir.sym import Sym, at_most_one, ceildiv, sym, var
from tilewright.ir.types import TensorType, require_possible_size
from tilewright.ops.define.broadcasting import OpenDims, have_both_meanings, is_stretched, note, open_dims
from tilewright.ops.define.demands import Demand, hearing, undecided
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.traits.facts import UNKNOWN, Traits

Axis = tuple[Sym, Sym]
"""An iteration axis: variable and extent; the variable runs over 0..extent."""


@dataclass(frozen=True, eq=False)
class Compute:
    """What a primitive computes: `out[axes] = combine over reduce of body`, or `= body` when `combine` is "".

    `body` has one argument for each operand (a TensorType) and ends in `yield value`; its `load` ops index
    operands by Syms over the axis variables. Sums are kept in `acc` and cast to `dtype` at the end.

    With `tiles` (a length for each axis) the body computes a whole tile of the result at once: the variable of an
    axis counts tiles along it, and the body yields the tile's elements row by row, those beyond an extent included.
    Some of the tiles may have a `replacement`.
    """

    axes: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    combine: str
    dtype: DType
    acc: DType
    body: Block
    tiles: tuple[int, ...] = ()
    replacement: Replacement | None = None

    @property
    def domain(self) -> tuple[Axis, ...]:
        """The axes that the body runs over: those of the result, counted in tiles."""
        if not self.tiles:
            return self.axes
        return tuple((v, ceildiv(extent, n)) for (v, extent), n in zip(self.axes, self.tiles, strict=True))

    @property
    def shape(self) -> tuple[Sym, ...]:
        return tuple(extent for _, extent in self.axes)

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    @property
    def neutral(self) -> float | int | bool:
        """What a reduction begins with, an element of `acc`. It is the result of one over no elements, so that an
        extreme is that of `dtype` where there may be none."""
        is_never_empty = all((extent.bounds[0] or 0) > 0 for _, extent in self.reduce)
        is_extreme = self.combine in ("min", "max") and self.dtype.is_int
        return identity(self.combine, self.dtype if is_extreme and not is_never_empty else self.acc)


@dataclass(frozen=True, eq=False)
class Replacement:
    """What is computed in place of rare tiles, with loops of its own that run for these only: `sums`, by tiles of the
    same lengths, for those where `where` (over the axes of tiles, of one element along each axis of which it does not
    depend on the position) is true."""

    where: Compute
    sums: Compute


Body = Callable[[ScalarBuilder, Sequence[Sym], Sequence[Sym]], Scalar]


def compute(
    operands: Sequence[Array],
    shape: Sequence[Sym | int],
    body: Body,
    *,
    reduce: Sequence[Sym | int] = (),
    combine: str = "",
    dtype: DType | None = None,
) -> Compute:
    """Build a Compute: `body(trace, i, r)` gives the element for result position `i`, reduction position `r`.

    `operands` are the arrays that the primitive's function was called with. With `combine` ("add", "mul",
    "min", "max", "and", "or") the elements are reduced over `reduce`; the result has `dtype`, or the body's.
    """
    trace = operands[0].trace if operands else ScalarBuilder(Builder(Block()))
    block = trace.builder.block
    i = tuple(var(f"d{k}") for k in range(len(shape)))
    r = tuple(var(f"r{k}") for k in range(len(reduce)))
    element = body(trace, i, r)
    acc = element.dtype.accumulator if combine else element.dtype
    if combine:
        element = element.cast(acc)
    result = dtype or (operands[0].dtype if combine and operands else element.dtype)
    if not combine:
        element = element.cast(result)
        acc = result
    trace.builder.emit("yield", [element.value])
    return Compute(
        tuple(zip(i, map(sym, shape), strict=True)), tuple(zip(r, map(sym, reduce), strict=True)),
        combine, result, acc, block,
    )  # fmt: skip


TileBody = Callable[[ScalarBuilder, Sequence[Sym], Sequence[Sym]], Sequence[Scalar]]


def compute_tiles(
    operands: Sequence[Array],
    shape: Sequence[Sym | int],
    tiles: Sequence[int],
    body: TileBody,
    *,
    reduce: Sequence[Sym | int] = (),
    replacement: Replacement | None = None,
) -> Compute:
    """Build a Compute by tiles: `body(trace, i, r)` gives the elements of tile `i`, row by row; with `reduce` they are
    added up over the positions `r`."""
    trace = operands[0].trace
    i = tuple(var(f"d{k}") for k in range(len(shape)))
    r = tuple(var(f"r{k}") for k in range(len(reduce)))
    elements = body(trace, i, r)
    assert len(elements) == prod(tiles), f"{len(elements)} elements for a tile of {tuple(tiles)}"
    dtype = elements[0].dtype
    trace.builder.emit("yield", [e.value for e in elements])
    axes = tuple(zip(i, map(sym, shape), strict=True))
    sums = tuple(zip(r, map(sym, reduce), strict=True))
    return Compute(
        axes, sums, "add" if reduce else "", dtype, dtype, trace.builder.block, tuple(tiles), replacement
    )


def traced_again(operands: Sequence[Array]) -> list[Array]:
    """The same operands for another body of one primitive."""
    block = Block([a.value.type for a in operands])
    trace = ScalarBuilder(Builder(block))
    return [trace.array(v) for v in block.args]


@dataclass(frozen=True, slots=True)
class OnnxBinding:
    """An ONNX operator that maps one to one: same operands in order, attributes renamed by `attrs`."""

    name: str
    since: int
    domain: str
    attrs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TorchBinding:
    """An ATen operator that maps one to one, by its name ("relu"), or name and overload ("add.Tensor"): tensors in
    order are the operands, promoted to one dtype where they differ, arguments are renamed by `attrs`."""

    name: str
    attrs: tuple[tuple[str, str], ...]


@dataclass(eq=False)
class Operator:
    """One operator. `kind` is "primitive", "composite" or "irregular"; `keep` composites stay whole until a
    pass expands them. The result of an alias lies in memory as its operand does. `rules` are those of slots."""

    name: str
    fn: Callable[..., Any]
    kind: str
    keep: bool = False
    is_alias: bool = False
    types: Callable[..., tuple[TensorType, ...]] | None = None
    lower: Callable[..., None] | None = None
    needs: Callable[..., tuple[Sym, str]] | None = None
    targets: Callable[..., Sequence[Sequence[Sym]]] | None = None
    onnx_bindings: list[OnnxBinding] = field(default_factory=list)
    torch_bindings: list[TorchBinding] = field(default_factory=list)
    declared: Traits | Callable[..., Traits] = UNKNOWN
    rules: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        keywords = [p for p in inspect.signature(self.fn).parameters.values() if p.kind is p.KEYWORD_ONLY]
        self.defaults = {p.name: p.default for p in keywords if p.default is not p.empty}

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.fn) or ""

    def onnx(self, name: str, *, since: int = 1, domain: str = "", **attrs: str) -> Operator:
        """Declare that ONNX operator `name` is this one; keywords map ONNX attribute -> our attribute."""
        self.onnx_bindings.append(OnnxBinding(name, since, domain, tuple(attrs.items())))
        DEFINITIONS.note(self)
        return self

    def torch(self, *names: str, **attrs: str) -> Operator:
        """Declare that ATen operators `names` are this one; keywords map ATen argument -> our attribute."""
        self.torch_bindings += (TorchBinding(name, tuple(attrs.items())) for name in names)
        DEFINITIONS.note(self)
        return self

    def requires(self, fn: Callable[..., tuple[Sym, str]]) -> Callable[..., tuple[Sym, str]]:
        """Declare what must hold of the dims: `fn(*types, **attrs)` gives a condition and the words for it. Where it
        depends on symbolic dims, it is checked when a model is called; the operator itself refuses the others."""
        self.needs = fn
        return fn

    def broadcasts(self, fn: Callable[..., Sequence[Sequence[Sym]]]) -> Operator:
        """Declare that operands are broadcast: `fn(*types, **attrs)` gives the shape of each one as it is read, of
        which the operand has as many dims as it has, the last ones."""
        self.targets = fn
        return self

    def declares(self, traits: Traits | Callable[..., Traits]) -> Operator:
        """Declare what its definition does not tell of it, for all operands: as a function of the attributes where they
        decide."""
        self.declared = traits
        DEFINITIONS.note(self)
        return self

    def compute(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> Compute:
        """The Compute of a primitive for operands of these types; TypeRuleError when they do not fit.

        It is shared by all who ask for the same one, and must not be changed.
        """
        return _noting(_computation, self.application(types, attrs))

    def demands(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> list[Demand]:
        """What its rule takes for granted of the dims of these types. What a composite's parts do is their own."""
        with undecided() as found:
            if self.kind == "irregular":
                assert self.types is not None
                self.types(*types, **attrs)
            else:
                block = Block(types)
                if self.kind == "primitive":
                    trace = ScalarBuilder(Builder(block))
                    self.fn(*map(trace.array, block.args), **attrs)
                else:
                    with Builder(block, Module()):
                        self.fn(*block.args, **attrs)
        return found

    @contextmanager
    def explaining(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> Iterator[None]:
        """Turn the reasons of misfits into errors that show the operands."""
        try:
            yield
        except (ValueError, *_TRAPS) as e:
            raise self._misfit(types, attrs, e) from e

    def _misfit(self, types: Sequence[TensorType], attrs: dict[str, Any], reason: Exception) -> TypeRuleError:
        listed = ", ".join(map(str, types))
        shown = ", ".join(f"{k}={_shown(v)}" for k, v in attrs.items())
        said = str(reason) if isinstance(reason, ValueError) and str(reason) else _said(reason)
        return TypeRuleError(f"{self.name}({listed}){f' with {shown}' if shown else ''}: {said}")

    def result_types(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
        """Types of the results for operands of these types."""
        return _noting(_result_types, self.application(types, attrs))

    def application(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> Application:
        """The operator on operands of these types, as a key of what is remembered of it."""
        return Application(self, tuple(types), exact_items(attrs), have_both_meanings(), attrs)

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        """Apply to Values: append to the current builder, return the result Value (a tuple for several).

        Lists among the attributes become tuples, NumPy's numbers Python's. TypeRuleError names an attribute whose
        value cannot be one, and what is missing or too many.
        """
        try:
            return self._applied(args, attrs)
        except TypeError as error:
            self._check_signature(len(args), attrs, error)
            raise

    def _check_signature(self, operands: int, attrs: dict[str, Any], error: TypeError) -> None:
        """TypeRuleError for another number of operands, or other attributes, than the operator takes."""
        signature = inspect.signature(self.types if self.kind == "irregular" and self.types else self.fn)
        try:
            signature.bind(*range(operands), **attrs)
        except TypeError as reason:
            names = [f"{p.name}=" if p.kind is p.KEYWORD_ONLY else str(p).partition(":")[0]
                     for p in signature.parameters.values()]  # fmt: skip
            raise TypeRuleError(f"{self.name}: {reason}", hint=f"it takes {', '.join(names)}") from error

    def _applied(self, args: Sequence[Any], attrs: dict[str, Any]) -> Any:
        operands = tuple(lift(a, args) for a in args)
        attrs = {name: self._attribute(name, value) for name, value in attrs.items()}
        if self.kind == "composite" and not self.keep and self.name not in _WHOLE.get():
            try:
                return self.fn(*operands, **attrs)
            except _TRAPS as e:
                raise self._misfit([v.tensor for v in operands], attrs, e) from e
        attrs = self.defaults | attrs
        if self.targets is not None:
            operands = self._stretched(operands, attrs)
        types = tuple(v.tensor for v in operands)
        if self.kind == "composite" and have_both_meanings() and self._stretches(types, attrs):
            return self.fn(*operands, **attrs)  # what is made of it later would take dims for equal
        op = current_builder().emit(self.name, operands, self.result_types(types, attrs), attrs)
        return op.results[0] if len(op.results) == 1 else op.results

    def _stretched(self, operands: tuple[Value, ...], attrs: dict[str, Any]) -> tuple[Value, ...]:
        """The operands, stretched along axes that may have one element where the result has more."""
        types = tuple(v.tensor for v in operands)
        if all(t.is_static for t in types):
            return operands
        assert self.targets is not None
        with self.explaining(types, attrs):
            shapes = self.targets(*types, **attrs)
        of = f"{self.name} of {', '.join(map(str, types))}"
        return tuple(_stretched(v, shape, of) for v, shape in zip(operands, shapes, strict=True))

    def _stretches(self, types: tuple[TensorType, ...], attrs: dict[str, Any]) -> bool:
        """Whether what the composite is made of stretches operands."""
        with open_dims() as found:
            self.result_types(types, attrs)
        return any(pair.stretched for pair in found)

    def _attribute(self, name: str, value: Any) -> Any:
        """The value as operations keep it: hashable, since types and programs are remembered by it."""
        value = _as_attribute(value)
        try:
            hash(value)
        except TypeError:
            raise TypeRuleError(
                f"{self.name}: attribute '{name}' cannot be a {type(value).__name__} ({value})",
                hint="attributes are numbers, strings, dtypes, dims, None, and tuples or lists of these",
            ) from None
        return value

    def expand(self, operands: Sequence[Value], attrs: dict[str, Any]) -> tuple[Value, ...]:
        """Write the decomposition of a composite to the current builder."""
        assert self.kind == "composite"
        results = self.fn(*operands, **attrs)
        return results if isinstance(results, tuple) else (results,)


def _stretched(x: Value, shape: Sequence[Sym], of: str) -> Value:
    """x stretched to the last dims of a shape, for an operator in words; as it is where that is not needed."""
    own = x.tensor.shape
    pairs = list(zip(own, shape[max(len(shape) - len(own), 0) :], strict=False))
    stretched = [OpenDims(d, wanted, True, stretched=True) for d, wanted in pairs if is_stretched(d, wanted)]
    if not stretched or len(pairs) != len(own):
        return x
    note(stretched)
    ends = [wanted if is_stretched(d, wanted) else d for d, wanted in pairs]
    first = [axis for axis, d in enumerate(own) if d != ends[axis] and at_most_one(d)]
    result: Value = OPERATORS["stretch"](x, shape=ends, first=first, of=of)
    return result


@dataclass(frozen=True, slots=True)
class Application:
    """An operator over operand types: what its type rule and its Compute depend on, as a key."""

    operator: Operator
    types: tuple[TensorType, ...]
    exact: tuple[Any, ...]
    both_meanings: bool
    attrs: dict[str, Any] = field(compare=False)


def _as_attribute(value: Any) -> Any:
    if isinstance(value, list) or type(value) is tuple:
        return tuple(map(_as_attribute, value))
    return value.item() if isinstance(value, np.bool_ | np.integer) else value


def exact_items(attrs: dict[str, Any]) -> tuple[Any, ...]:
    """Attributes as a key that is equal for equal ones only: 0.0, -0.0, 0 and False all differ."""
    return tuple((name, _exact(value)) for name, value in attrs.items())


def _exact(attr: Any) -> Any:
    if isinstance(attr, tuple | list):
        return tuple(map(_exact, attr))
    if isinstance(attr, float):
        return float, attr.hex()
    if isinstance(attr, np.ndarray | np.generic):
        return np.ndarray, str(attr.dtype), attr.shape, attr.tobytes()
    return type(attr), attr


# A model asks for the same few hundred again and again: each of its layers does, and each pass.
_REMEMBERED = 2048


T = TypeVar("T")
_Noted = tuple[T, tuple[OpenDims, ...]]


def _noting(rule: Callable[[Application], _Noted[T]], application: Application) -> T:
    """What a remembered rule gives; `open_dims` around are told again what it has found of dims."""
    result, found = rule(application)
    if found:
        note(found)
    return result


def _remembered(rule: Callable[[Application], T]) -> Callable[[Application], _Noted[T]]:
    @lru_cache(maxsize=_REMEMBERED)
    def remembered(application: Application) -> _Noted[T]:
        with open_dims() as found, hearing(None):
            result = rule(application)
        return result, tuple(dict.fromkeys(found))

    return remembered


@_remembered
def _computation(application: Application) -> Compute:
    operator, types, attrs = application.operator, application.types, application.attrs
    assert operator.kind == "primitive", f"{operator.name} is not a primitive"
    block = Block(types)
    trace = ScalarBuilder(Builder(block))
    with operator.explaining(types, attrs):
        computation: Compute = operator.fn(*[trace.array(a) for a in block.args], **attrs)
        return computation


@_remembered
def _result_types(application: Application) -> tuple[TensorType, ...]:
    found = _declared_types(application)
    with application.operator.explaining(application.types, application.attrs):
        for type in found:
            require_possible_size(type)
    return found


def _declared_types(application: Application) -> tuple[TensorType, ...]:
    operator, types, attrs = application.operator, application.types, application.attrs
    if operator.kind == "primitive":
        found: tuple[TensorType, ...] = (_noting(_computation, application).type,)
    else:
        with operator.explaining(types, attrs):
            found = operator.types(*types, **attrs) if operator.types else _types_of_composite(operator, types, attrs)
    with operator.explaining(types, attrs):
        for d in (d for t in found for d in t.shape):
            if (most := d.bounds[1]) is not None and most < 0:
                raise ValueError(f"a dim of the result would be {d}")
    return found


def _types_of_composite(
    operator: Operator, types: Sequence[TensorType], attrs: dict[str, Any]
) -> tuple[TensorType, ...]:
    block = Block(types)
    with Builder(block, Module()):
        results = operator.expand(block.args, attrs)
    return tuple(v.tensor for v in results)


_WHOLE: ContextVar[Container[str]] = ContextVar("whole", default=())


@contextmanager
def staying_whole(names: Container[str]) -> Iterator[None]:
    """Within, composites of these names are written as one op each, as those that are kept always are."""
    token = _WHOLE.set(names)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def _shown(attr: Any) -> str:
    return f"({', '.join(map(_shown, attr))})" if isinstance(attr, tuple) else str(attr)


_TRAPS = (AssertionError, LookupError, StopIteration, ZeroDivisionError)
"""What rules raise that take more axes for granted than there are, and so on."""


def _said(reason: Exception) -> str:
    """What an exception says; of those that say nothing to people, that operands do not fit."""
    text = str(reason)
    return f"the operands or attributes do not fit{f' ({text})' if text else ''}"


OPERATORS: dict[str, Operator] = {}
"""Every operator by name: filled by the decorators when `tilewright.ops` is imported; a user's own come after."""

DEFINITIONS = Definitions()
"""Sealed when `tilewright.ops` is imported: later ones are part of the key of the cache."""


def _register(operator: Operator) -> Operator:
    assert operator.name not in OPERATORS, f"operator {operator.name} is defined twice"
    OPERATORS[operator.name] = operator
    DEFINITIONS.note(operator)
    return operator


@overload
def primitive(fn: Callable[..., Compute]) -> Operator: ...


@overload
def primitive(*, is_alias: bool) -> Callable[[Callable[..., Compute]], Operator]: ...


def primitive(fn: Callable[..., Compute] | None = None, *, is_alias: bool = False) -> Any:
    """Define a primitive: `fn(*arrays, **attrs) -> Compute`. Raise ValueError with the reason for misfits. The elements
    of an alias follow one another in memory as those of its operand do."""
    if fn is None:
        return lambda f: _register(Operator(f.__name__.rstrip("_"), f, "primitive", is_alias=is_alias))
    return _register(Operator(fn.__name__.rstrip("_"), fn, "primitive"))


@overload
def op(fn: Callable[..., Any]) -> Operator: ...


@overload
def op(*, keep: bool) -> Callable[[Callable[..., Any]], Operator]: ...


def op(fn: Callable[..., Any] | None = None, *, keep: bool = False) -> Any:
    """Define a composite: `fn(*values, **attrs)` written with other operators. With `keep` it stays one op
    until a pass expands it."""
    if fn is None:
        return lambda f: _register(Operator(f.__name__.rstrip("_"), f, "composite", keep))
    return _register(Operator(fn.__name__.rstrip("_"), fn, "composite", keep))


def irregular(types: Callable[..., tuple[TensorType, ...]]) -> Callable[[Callable[..., None]], Operator]:
    """Define an operator that brings its own loops: `fn(trace, inputs: list[Array], outputs: list[Array],
    **attrs)` writes a loop program over buffers; `types(*types, **attrs)` is the type rule."""

    def define(fn: Callable[..., None]) -> Operator:
        return _register(Operator(fn.__name__.rstrip("_"), fn, "irregular", types=types, lower=fn))

    return define


# Values that are not computed


def constant(array: np.ndarray, name: str = "c") -> Value:
    """A constant tensor; the array is kept by the builder's module under a free variation of `name`."""
    builder = current_builder()
    assert builder.module is not None
    key = builder.module.add_constant(name, array)
    type = TensorType(dt.from_numpy(array.dtype), tuple(sym(d) for d in array.shape))
    value = builder.emit("constant", [], [type], {"name": key}).result
    value.name = key
    return value


def lift(x: Any, others: Sequence[Any] = ()) -> Value:
    """A Value as it is; a Python number as a scalar `full` of the dtype of the last Value among `others` (the
    first of a `select` is its condition)."""
    if isinstance(x, Value):
        return x
    if isinstance(x, np.ndarray | np.generic):
        return constant(np.asarray(x))
    dtype = next(v.tensor.dtype for v in reversed(others) if isinstance(v, Value))
    type = TensorType(dtype, ())
    return current_builder().emit("full", [], [type], {"value": x, "dtype": dtype, "shape": ()}).result
