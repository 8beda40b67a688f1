"""Steps of random models that vary applications of operators that others have written down: the cases of the onnx
package for each operator of the standard, and those of our tests of ONNX Runtime's own operators.

Operands become values of the model, inputs or constants, sizes and element types change, and attributes are those of
another case: what ONNX Runtime refuses is left out, so that nothing here has to know the operators.
"""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import AttributeProto, helper

from tests.onnx_cases import cases_of_nodes
from tests.random_models.growth import OPSETS, Grown, Growth, Refused
from tests.saturating import saturates, unsaturated
from tilewright.frontends.onnx.registry import find_adapter

MICROSOFT = ("arrays", "attention", "norm", "products", "quant")
LEFT_OUT = {
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    "If", "Loop", "Scan", "ImageDecoder", "Constant",
}  # fmt: skip
"""They have no results of their own, or steps."""

DECIDING = {
    "Ceil", "DynamicQuantizeLinear", "Floor", "Hardmax", "MaxPool", "Mod", "NonMaxSuppression", "QuantizeLinear",
    "Resize", "Upsample", "RoiAlign", "Round", "Shrink", "Sign", "ThresholdedRelu", "TopK", "Unique", "NhwcMaxPool",
    "Binarizer", "TreeEnsemble", "GridSample", "CropAndResize",
}  # fmt: skip
"""What they give jumps somewhere, so that it depends on the last bit of operands."""

COARSE = {
    ("", "HardSwish"): 1e-5, ("", "Erf"): 1e-5, ("", "Gelu"): 1e-5, ("com.microsoft", "CDist"): 1e-5,
    ("", "GroupNormalization"): 1e-5, ("", "LayerNormalization"): 1e-5, ("", "RMSNormalization"): 1e-5,
    ("", "InstanceNormalization"): 1e-5, ("", "BatchNormalization"): 1e-4, ("", "MeanVarianceNormalization"): 1e-5,
    ("", "Attention"): 1e-5, ("", "RotaryEmbedding"): 1e-5,
    ("", "Resize"): 1e-5, ("", "Upsample"): 1e-5,  # positions are float32
    ("com.microsoft", "DynamicQuantizeMatMul"): 1e-3, ("com.microsoft", "DynamicQuantizeLSTM"): 1e-3,
    ("com.microsoft", "FastGelu"): 1e-7, ("com.microsoft", "QAttention"): 1e-3, ("com.microsoft", "MatMulNBits"): 1e-4,
}  # fmt: skip
"""Errors of ONNX Runtime and the reference, which compute float64 in float32, or steps of quantised operands, which
rounding takes the other way."""

QUANTISED = ("Quant", "QLinear", "QGemm", "QAttention", "QMoE", "Integer")
"""Parts of the names of operators that multiply bytes, among others."""

KEPT = (*QUANTISED, "RoiAlign", "CropAndResize")
"""Parts of the names of operators whose floats stay as they are: scales, which must not be 0, and the corners of
regions, of which one at the border of the image is in or out by the last bit."""

MOST = 4000  # elements of an operand

FLOAT_TYPES = ("float32", "float32", "float32", "float64", "float16")


@dataclass(frozen=True, eq=False)
class Template:
    """A node, and operands that it takes (None: left out). Its integer results may be off by `slack`."""

    node: onnx.NodeProto
    arrays: Sequence[np.ndarray | None]
    slack: int = 0

    @property
    def attributes(self) -> dict[str, AttributeProto]:
        return {a.name: a for a in self.node.attribute}


@functools.cache
def templates() -> Mapping[tuple[str, str], Sequence[Template]]:
    """By domain and operator; only of those that the package translates."""
    found: defaultdict[tuple[str, str], list[Template]] = defaultdict(list)
    for template in (*_of_the_standard(), *_of_microsoft()):
        node = template.node
        version = OPSETS[-1] if not node.domain else 10
        if node.op_type not in LEFT_OUT and find_adapter(node.domain, node.op_type, version) is not None:
            found[node.domain, node.op_type].append(template)
    return found


def _of_the_standard() -> Iterator[Template]:
    for case in cases_of_nodes():
        if case.model is None or len(case.model.graph.node) != 1 or not case.data_sets:
            continue
        (node,) = case.model.graph.node
        given = dict(zip((i.name for i in case.model.graph.input), case.data_sets[0][0], strict=True))
        arrays = [given.get(name) for name in node.input]
        if all(a is None or (isinstance(a, np.ndarray) and a.size <= MOST) for a in arrays):
            yield Template(node, arrays, int("Quantize" in node.op_type or "QLinear" in node.op_type))


def _of_microsoft() -> Iterator[Template]:
    against = importlib.import_module("tests.frontends.microsoft.against")
    for name in MICROSOFT:
        module = importlib.import_module(f"tests.frontends.microsoft.test_{name}")
        for cases in [v for v in vars(module).values() if isinstance(v, list)]:
            for case in cases:
                if isinstance(case, against.Case) and case.domain == "com.microsoft":
                    (node,) = case.model().graph.node
                    arrays = [None if a is None else np.asarray(a) for a in case.arrays]
                    yield Template(node, arrays, int(case.error > 0))


def applied(g: Growth) -> None:
    """An operator as one of its templates has it, varied."""
    key = g.random.choice(sorted(templates()))
    of_operator = templates()[key]
    template = g.random.choice(of_operator)
    attributes = template.attributes
    if g.chance(0.3):
        other = g.random.choice(of_operator).attributes
        attributes |= {name: a for name, a in other.items() if g.chance(0.5)}
    if attributes and g.chance(0.1):
        del attributes[g.random.choice(sorted(attributes))]
    is_exact = g.chance(0.6)
    keeps = any(part in key[1] for part in KEPT)
    arrays = _varied(g, template.arrays)
    if is_quantised(key[1]):
        arrays = [None if a is None else unsaturated(a) for a in arrays]
    if is_exact and not keeps:
        arrays = [None if a is None else _rounded(a) if a.ndim else a for a in arrays]
    with g.attempt():
        operands = [None if a is None else _operand(g, a, is_exact, keeps) for a in arrays]
        _add(g, template, operands, list(attributes.values()))


def _varied(g: Growth, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """The same with another size instead of one of theirs, and another type instead of float32."""
    found = list(arrays)
    sizes = sorted({d for a in arrays if a is not None for d in a.shape})
    for _ in range(g.random.choice((0, 0, 1, 1, 2)) if sizes else 0):
        old, new = g.random.choice(sizes), g.dim()
        for k, a in enumerate(found):
            if a is not None and old in a.shape and a.size:
                shape = tuple(new if d == old else d for d in a.shape)
                if np.prod(shape, dtype=int) > MOST:
                    raise Refused
                found[k] = np.resize(a, shape)
    dtype = g.random.choice(FLOAT_TYPES)
    if any(a is not None and a.dtype == np.float32 for a in found) and dtype != "float32":
        found = [a.astype(dtype) if a is not None and a.dtype == np.float32 else a for a in found]
    return found


def _rounded(array: np.ndarray) -> np.ndarray:
    """Floats as quarters, which are exact."""
    return np.asarray(np.round(array * 4) / 4, array.dtype) if array.dtype.kind == "f" else array


def _operand(g: Growth, array: np.ndarray, is_exact: bool, keeps: bool) -> Grown:
    """An operand of the type and shape of the array; that one itself, where it is of floats and `keeps` them."""
    if keeps and array.dtype.kind == "f":
        return g.fed(array, is_scale=True) if g.chance(0.5) else g.constant(array)
    if array.dtype.kind in "fiub" and array.size and g.chance(0.3):
        fits = [v for v in g.values if v.dtype == str(array.dtype) and v.array.size and not v.slack]
        fits = [v for v in fits if v.exact] if is_exact else fits
        if fits:
            return shaped(g, g.random.choice(fits), array.shape)
    if array.dtype.kind == "f" and g.chance(0.5):
        array = g.elements(array.shape, str(array.dtype), exact=is_exact)
    elif array.dtype.kind in "iu" and array.size and g.chance(0.3):
        array = g.rng.integers(array.min(), int(array.max()) + 1, array.shape, dtype=array.dtype)
    return g.fed(array) if g.chance(0.5) else g.constant(array)


def is_quantised(op: str) -> bool:
    return any(part in op for part in QUANTISED)


def shaped(g: Growth, x: Grown, shape: tuple[int, ...]) -> Grown:
    """The elements of x, as often as they are needed, in another shape."""
    if x.shape == shape:
        return x
    size = int(np.prod(shape, dtype=int))
    (flat,) = g.emit("Reshape", x, np.array([-1], np.int64), exact=True)
    if size > x.array.size:
        (flat,) = g.emit("Tile", flat, np.array([-(-size // x.array.size)], np.int64), exact=True)
    if flat.array.size > size:
        (flat,) = g.emit("Slice", flat, *(np.array([n], np.int64) for n in (0, size)), exact=True)
    return g.emit("Reshape", flat, np.array(shape, np.int64), exact=True)[0]


def _add(g: Growth, template: Template, operands: Sequence[Grown | None], attributes: Sequence[AttributeProto]) -> None:
    given = [v for v in operands if v is not None]
    is_exact = all(v.exact for v in given)
    op = template.node.op_type
    if op in DECIDING and not is_exact:
        raise Refused
    if is_quantised(op):
        g.least_size = max(g.least_size, 1)  # of no terms ONNX Runtime makes up sums, and of empty parts elements
        if any(saturates(v.array) or not v.array.size for v in given):
            raise Refused
    names = [v.name if v else "" for v in operands]
    results = [g.fresh("t") if o else "" for o in template.node.output]
    node = helper.make_node(op, names, results, g.fresh("node"), domain=template.node.domain)
    node.attribute.extend(attributes)
    origin = COARSE.get((node.domain, op), 0.0)
    found = [replace(v, origin=max(v.origin, origin)) for v in g.evaluated(node, given, False, template.slack)]
    if not is_exact and any(not v.is_float and not v.slack for v in found):
        raise Refused  # a count, a position or a comparison
    is_causal = any(a.name == "unidirectional" and a.i for a in attributes)  # the same lengths of queries and keys
    g.is_continuous = g.is_continuous and op not in DECIDING and not is_causal
    if op == "GroupQueryAttention":
        found = _with_a_buffer(g, operands, found)
    g.nodes.append(node)
    g.values += found
    g.applied[f"{node.domain}:{op}"] += 1


def _with_a_buffer(g: Growth, operands: Sequence[Grown | None], found: list[Grown]) -> list[Grown]:
    """What GroupQueryAttention gives that means something. Refused are more positions than a past of a fixed length has
    that are known to a call alone: the compiler takes such a past as a buffer for past and present, and refuses calls
    that do not fit into it."""
    past, lengths, total = operands[3], operands[5], operands[6]
    if past is not None and total is not None and not total.known and past.shape[2] < found[1].shape[2]:
        raise Refused
    g.is_continuous = False  # other lengths would contradict the sizes
    is_full = lengths is None or bool((lengths.array + 1 == found[1].shape[2]).all())
    return found if is_full else found[:1]  # ONNX Runtime leaves anything in rows that no position has


TEMPLATES: dict[str, tuple[Callable[[Growth], object], float]] = {"applied": (applied, 14)}
