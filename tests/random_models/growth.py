"""Random ONNX models that grow node by node, each node evaluated as soon as it is added.

Three things are known of every tensor: its elements as ONNX Runtime computes them one node after the other, the same
in float64 by the onnx package's reference, and whether they are exact, so that a comparison, a rounding or a maximum's
position does not hang on the last bit. Nodes whose results are undefined, huge or doubtful are taken back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.fuzz.files.limits import LimitError, limited
from tests.random_models.isolated import onnxruntime_process
from tests.random_models.standard import Refused, check_node

FLOATS = ("float32", "float64", "float16")
INTS = ("int64", "int32", "int8", "uint8")
MOST_ELEMENTS = {"small": 3000, "large": 30_000}
SMALL_DIMS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 7, 8, 9, 12, 16, 17, 20)
LARGE_DIMS = (1, 2, 8, 16, 24, 31, 32, 33, 48, 64, 65, 130, 400)
OPSETS = (18, 20, 21, 22, 23, 24, 26, 28)
DOMAINS = {"ai.onnx.ml": 4, "com.microsoft": 1}
"""Further sets of operators, and their versions."""
LARGEST = 1e3
"""Of the numbers in a model: rounding errors of larger ones grow with what is computed from them."""
RECENT = 6
"""Values among which the next operand is mostly chosen, so that programs are deep."""

PRODUCTS = ("ReduceProd", "CumProd")

UNWINDOWED = ("ConvTranspose", "MaxUnpool")
"""Operators whose kernel is put on what they make, not on what they take."""

EPSILON = {"float64": 1e-9, "float32": 1e-5, "float16": 1e-2}
"""Of the largest number: an error that several operations may have."""


@dataclass(frozen=True, eq=False)
class Grown:
    """A tensor of the model: its elements, these in float64 (None where no reference knows), whether they are exact,
    whether they are known when compiling, the coarsest rounding of what they come from (an entry of EPSILON), and how
    far off integers may be, which no node reads then."""

    name: str
    array: np.ndarray
    wide: np.ndarray | None
    exact: bool
    known: bool = False
    origin: float = 0.0
    slack: int = 0

    @property
    def epsilon(self) -> float:
        """The rounding of the dtype, or a coarser one of what it was cast from."""
        return max(self.origin, EPSILON.get(self.dtype, 0.0))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def tolerance(self) -> float:
        """The error that a right result may have: some times that of ONNX Runtime, and of a few roundings."""
        if not self.is_float or not self.array.size:
            return 0.0
        largest = float(np.abs(self.array.astype(np.float64)).max())
        usual = self.epsilon * max(1.0, largest)
        return usual + 50 * error_of(self) if self.wide is not None else 50 * usual

    @property
    def tolerance_share(self) -> float:
        """The same as a share of the largest number, or of 1."""
        largest = float(np.abs(self.array.astype(np.float64)).max()) if self.is_float and self.array.size else 0.0
        return self.tolerance / max(1.0, largest)


def error_of(value: Grown) -> float:
    """The greatest distance of what ONNX Runtime gives from the reference."""
    assert value.wide is not None
    return float(np.abs(value.array.astype(np.float64) - value.wide).max()) if value.array.size else 0.0


Operand = Grown | np.ndarray | None


class Growth:
    """A model that grows. Each step is a function of it that adds nodes, or raises Refused."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.opset = self.random.choice(OPSETS)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.dims: dict[str, list[int | str]] = {}
        self.scales: set[str] = set()  # inputs that others of their type cannot stand for
        self.initializers: dict[str, np.ndarray] = {}
        self.values: list[Grown] = []
        self.applied: Counter[str] = Counter()  # operators by templates
        self.is_continuous = True  # no node decides anything by its operands' values
        self.least_size = 0  # of the symbolic dims that the model means something for
        self._names = 0
        self.symbolic = self.random.random() < 0.4
        self.size = "large" if self.random.random() < 0.2 else "small"
        for _ in range(self.random.randint(1, 3)):
            self.input()

    # Choices

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def dim(self) -> int:
        if self.size == "large":
            return self.random.choice(LARGE_DIMS)
        return 0 if self.chance(0.01) else self.random.choice(SMALL_DIMS)

    def shape(self) -> tuple[int, ...]:
        rank = self.random.choice((0, 1, 2, 2, 3, 3, 4, 4, 5))
        while True:
            shape = tuple(self.dim() for _ in range(rank))
            if np.prod(shape, dtype=int) <= MOST_ELEMENTS[self.size]:
                return shape

    def elements(self, shape: Sequence[int], dtype: str = "float32", *, exact: bool = True) -> np.ndarray:
        """Random elements: quarters where they are to be exact."""
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        if np.dtype(dtype).kind in "OU":
            return np.asarray(self.rng.choice(["", "a", "b", "ab"], shape), object)
        if dtype in FLOATS:
            if exact:
                return np.asarray(self.rng.integers(-12, 13, shape) / 4, dtype)
            return np.asarray(self.rng.standard_normal(shape), dtype)
        return np.asarray(self.rng.integers(0 if dtype[0] == "u" else -6, 7, shape), dtype)

    def pick(self, fits: Callable[[Grown], bool] = lambda v: True) -> Grown:
        found = [v for v in self.values if not v.slack and fits(v)]
        if not found:
            raise Refused
        return self.random.choice(found[-RECENT:] if self.chance(0.8) else found)

    def float(self, least: int = 0, most: int = 6) -> Grown:
        """A tensor of floats of such a rank."""
        return self.pick(lambda v: v.is_float and least <= v.rank <= most)

    def axis(self, x: Grown) -> int:
        """An axis, counted from either end."""
        if not x.rank:
            raise Refused
        return self.random.randrange(-x.rank, x.rank)

    def like(self, x: Grown, shape: Sequence[int] | None = None, *, most: float = 0.6) -> Operand:
        """An operand of the dtype of `x` that broadcasts with `shape`: a tensor of the model, or a constant."""
        shape = x.shape if shape is None else tuple(shape)
        found = [v for v in self.values if v.dtype == x.dtype and _broadcasts(v.shape, shape)]
        if found and self.chance(most):
            return self.random.choice(found)
        return self.elements(self.part_of(shape), x.dtype, exact=self.chance(0.6))

    def part_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`."""
        kept = tuple(d if self.chance(0.6) else 1 for d in shape)
        return kept[self.random.randint(0, len(kept)) if self.chance(0.4) else 0 :]

    # Growing

    def fresh(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def input(self) -> None:
        kinds = ("float32",) * 8 + ("float64", "int64", "int32", "bool", "uint8", "int8", "float16")
        dtype, exact = self.random.choice(kinds), self.chance(0.6)
        self.values.append(self.fed(self.elements(self.shape(), dtype, exact=exact)))

    def fed(self, array: np.ndarray, *, is_scale: bool = False) -> Grown:
        """An input of the model, with names for some of its dims; `input` makes one that nodes choose among."""
        name = self.fresh("x")
        if is_scale:
            self.scales.add(name)
        self.inputs[name] = array
        self.dims[name] = [self._dim_name(d) for d in array.shape]
        return Grown(name, array, _wide(array), _is_exact(array))

    def fed_again(self, name: str, shape: Sequence[int]) -> np.ndarray:
        """Other elements for an input, at other sizes of its symbolic dims; those of a scale, which must not be 0, are
        repeated."""
        array = self.inputs[name]
        if name not in self.scales:
            return self.elements(shape, str(array.dtype))
        return np.resize(array, shape) if array.size else np.ones(shape, array.dtype)

    def _dim_name(self, dim: int) -> int | str:
        if not self.symbolic or self.chance(0.4):
            return dim
        return f"d{dim}" if self.chance(0.7) else self.fresh("n")

    def constant(self, array: np.ndarray) -> Grown:
        """A constant: an initializer, or a node."""
        name = self.fresh("c")
        if self.chance(0.8):
            self.initializers[name] = array
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        return Grown(name, array, _wide(array), _is_exact(array), known=True)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Take back the nodes, constants, inputs and values that are added, where that ends by Refused."""
        nodes, values = len(self.nodes), len(self.values)
        initializers, inputs = dict(self.initializers), dict(self.inputs)
        try:
            yield
        except Refused:
            self.nodes, self.values = self.nodes[:nodes], self.values[:values]
            self.initializers, self.inputs = initializers, inputs
            raise

    def emit(
        self,
        op: str,
        *operands: Operand,
        outputs: int = 1,
        exact: bool = False,
        decides: bool = False,
        **attrs: Any,
    ) -> list[Grown]:
        """Add a node. `exact`: what it gives is as exact as its operands. `decides`: it needs exact operands, as it
        decides by them."""
        with self.attempt():
            values = [self.constant(o) if isinstance(o, np.ndarray) else o for o in operands]
            given = [v for v in values if v is not None]
            if decides and not all(v.exact for v in given):
                raise Refused
            names = [self.fresh("t") for _ in range(outputs)]
            node = helper.make_node(
                op, [v.name if v else "" for v in values], names, self.fresh("node"), **attrs
            )
            results = self.evaluated(node, given, exact or decides)
        self.is_continuous = self.is_continuous and not decides
        self.nodes.append(node)
        self.values += results
        return results

    def chain(
        self, nodes: Sequence[onnx.NodeProto], given: Sequence[Grown], outputs: Sequence[str], *, decides: bool = False
    ) -> None:
        """Add nodes all at once: what lies between them may be anything, but `outputs` are tensors of numbers."""
        if decides and not all(v.exact for v in given):
            raise Refused
        self.values += self.evaluated(nodes, given, True, outputs=outputs)
        self.is_continuous = self.is_continuous and not decides
        self.nodes += nodes

    def evaluated(
        self,
        node: onnx.NodeProto | Sequence[onnx.NodeProto],
        given: Sequence[Grown],
        exact: bool,
        slack: int = 0,
        outputs: Sequence[str] = (),
    ) -> list[Grown]:
        """What a node gives, or the `outputs` of several."""
        nodes = [node] if isinstance(node, onnx.NodeProto) else list(node)
        outputs = outputs or [n for n in nodes[0].output if n]
        arrays = evaluate(nodes, {v.name: v.array for v in given}, self.opset, outputs)
        wide: Sequence[np.ndarray | None] = [None] * len(arrays)
        if all(v.wide is not None for v in given):
            known_wide = {v.name: v.wide for v in given if v.wide is not None}
            wide = _in_float64(nodes, known_wide, self.opset, outputs) or wide
        is_exact = exact and all(v.exact for v in given)
        known = all(v.known for v in given)
        origin = max((v.epsilon for v in given), default=0.0)
        results = [
            Grown(n, a, w, is_exact and _equal(a, w), known, origin, slack if a.dtype.kind in "iu" else 0)
            for n, a, w in zip(outputs, arrays, wide, strict=True)
        ]
        if not all(v.array.size <= MOST_ELEMENTS[self.size] and _is_good(v) for v in results):
            raise Refused
        self._check_window(nodes[0], given)
        for n in nodes:
            check_node(n, {v.name: v.array for v in given})
        if nodes[0].op_type in PRODUCTS:
            self._check_product(nodes[0], given)
        if "Normalization" in nodes[0].op_type and given[0].is_float:
            self._check_spread(nodes[0], given, results)
        return results

    def _check_product(self, node: onnx.NodeProto, given: Sequence[Grown]) -> None:
        """Refuse products of many numbers that overflow or underflow in one order and not in another: those of all
        that are above 1, and of all between 0 and 1, are as far as any order gets. Other sizes may make them so."""
        self.is_continuous = False
        x, *others = given
        if not x.is_float:
            return
        size, least = np.abs(x.array), float(np.finfo(x.dtype).tiny)
        for part in (np.maximum(size, 1), np.where((size > 0) & (size < 1), size, 1)):
            arrays = {x.name: part.astype(x.dtype), **{v.name: v.array for v in others}}
            (found,) = evaluate([node], arrays, self.opset, node.output[:1])
            if not (np.isfinite(found) & (found >= least)).all():
                raise Refused

    def _check_spread(self, node: onnx.NodeProto, given: Sequence[Grown], results: Sequence[Grown]) -> None:
        """Refuse to normalise numbers that are nearly equal, as their last bits make the result. Other sizes may make
        them so."""
        x, *others = given
        moved = x.array * (1 + EPSILON[x.dtype] / 10 * self.rng.choice((-1, 1), x.shape))
        arrays = {x.name: moved.astype(x.dtype), **{v.name: v.array for v in others}}
        names = [v.name for v in results]
        for result, found in zip(results, evaluate([node], arrays, self.opset, names), strict=True):
            if result.is_float and result.array.size:
                distance = np.abs(found.astype(np.float64) - result.array.astype(np.float64)).max()
                if not distance <= result.tolerance / 3:
                    raise Refused

    def _check_window(self, node: onnx.NodeProto, given: Sequence[Grown]) -> None:
        """Refuse a window that does not lie within the image, of which ONNX Runtime counts some, and ask for sizes that
        it fits in."""
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if "kernel_shape" not in attrs or node.op_type in UNWINDOWED:
            return
        dilations = attrs.get("dilations", [1] * len(attrs["kernel_shape"]))
        if "Pool" in node.op_type and attrs.get("auto_pad", b"").startswith(b"SAME") and set(dilations) != {1}:
            raise Refused  # ONNX Runtime pads for windows without dilations
        reach = [d * (k - 1) + 1 for k, d in zip(attrs["kernel_shape"], dilations, strict=True)]
        if all(v.array.size for v in given) and not _fits(node, attrs, reach, given[0].shape):
            raise Refused
        self.least_size = max(self.least_size, *reach)

    # The model

    def results(self) -> list[Grown]:
        """What the model gives: tensors that no node reads, and a few others."""
        read = {name for node in self.nodes for name in node.input}
        made = [v for v in self.values if v.name not in self.inputs]
        ends = [v for v in made if v.name not in read]
        others = [v for v in made if v.name in read and self.chance(0.15)]
        return [*ends, *others][-8:]

    def model(self, results: Sequence[Grown]) -> onnx.ModelProto:
        inputs = [_info(n, a.dtype, self.dims[n]) for n, a in self.inputs.items()]
        outputs = [_info(v.name, v.array.dtype, None) for v in results]
        weights = [numpy_helper.from_array(a, n) for n, a in self.initializers.items()]
        graph = helper.make_graph(self.nodes, "random", inputs, outputs, weights)
        return helper.make_model(graph, opset_imports=_imports(self.opset), ir_version=10)


def _imports(opset: int) -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in DOMAINS.items())]


def _is_exact(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.array_equal(np.round(array * 4), array * 4))


def _fits(node: onnx.NodeProto, attrs: Mapping[str, Any], reach: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a window lies within the padded image."""
    count = len(reach)
    first = 1 if attrs.get("channels_last") or "Nhwc" in node.op_type else len(shape) - count
    pads = attrs.get("pads", [0] * 2 * count)
    return attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or all(
        r <= n + pads[i] + pads[i + count]
        for i, (n, r) in enumerate(zip(shape[first : first + count], reach, strict=True))
    )


def _checked(model: onnx.ModelProto) -> None:
    """Refuse what the standard does not allow: the reference is lenient."""
    try:
        onnx.checker.check_model(onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True))
    except Exception as e:
        raise Refused from e


def evaluate(
    nodes: Sequence[onnx.NodeProto], arrays: Mapping[str, np.ndarray], opset: int, outputs: Sequence[str]
) -> list[np.ndarray]:
    """What ONNX Runtime computes of nodes, or the reference where that has not built it for the element type."""
    model = _alone(nodes, arrays, opset, outputs)
    try:
        found = run_onnxruntime(model, arrays)
    except Exception as e:
        if "NOT_IMPLEMENTED" not in str(e):
            raise Refused from e
        _checked(model)
        found = _reference(model, arrays)
    return [np.asarray(a) for a in found]


def run_onnxruntime(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime_process().run(model.SerializeToString(), arrays)


def _reference(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    try:
        with np.errstate(all="ignore"), limited(10, 1 << 30):
            found = ReferenceEvaluator(model).run(None, dict(arrays))
    except (Exception, LimitError) as e:
        raise Refused from e
    if any(isinstance(a, list) for a in found):  # it has lists for optionals
        raise Refused
    return [np.asarray(a) for a in found]


def _in_float64(
    nodes: Sequence[onnx.NodeProto], wide: Mapping[str, np.ndarray], opset: int, outputs: Sequence[str]
) -> list[np.ndarray] | None:
    try:
        found = _reference(_alone(nodes, wide, opset, outputs), wide)
    except Refused:
        return None
    return [a.astype(np.float64) if a.dtype.kind == "f" else a for a in found]


def _alone(
    nodes: Sequence[onnx.NodeProto], arrays: Mapping[str, np.ndarray], opset: int, outputs: Sequence[str]
) -> onnx.ModelProto:
    inputs = [_info(n, a.dtype, a.shape) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "alone", inputs, [onnx.ValueInfoProto(name=n) for n in outputs])
    return helper.make_model(graph, opset_imports=_imports(opset), ir_version=10)


def _info(name: str, dtype: np.dtype, shape: Sequence[int | str] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _equal(array: np.ndarray, wide: np.ndarray | None) -> bool:
    return wide is not None and np.array_equal(array, wide)


def _is_good(value: Grown) -> bool:
    """Whether the result is small, finite, and what the reference says, too."""
    array, wide = value.array, value.wide
    if array.ndim > 6 or (array.dtype.kind not in "iub" and value.dtype not in FLOATS):
        return False
    if wide is not None and wide.shape != array.shape:
        return False
    if not value.is_float:
        small = array.dtype.kind == "b" or bool((np.abs(array.astype(np.float64)) <= 1e5).all())
        return small and (wide is None or bool(value.slack) or np.array_equal(array, wide))
    if not np.isfinite(array).all() or (array.size and np.abs(array).max() > LARGEST):
        return False
    largest = float(np.abs(array).max()) if array.size else 0.0
    return wide is None or error_of(value) <= 10 * EPSILON[value.dtype] * max(1.0, largest)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(shape, to)
    except ValueError:
        return False
    return True
