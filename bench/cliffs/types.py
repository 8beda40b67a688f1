"""Single operators on elements of every type: arithmetic, comparisons, bits, reductions, casts and quantisation."""

from __future__ import annotations

import numpy as np
from onnx import helper

from bench.cliffs.draft import Draft, Value
from bench.cliffs.sizes import between, width
from bench.cliffs.tensors import axis_of, image, tensor

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int32", "int64", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
POSITIVE = ("Sqrt", "Log", "Reciprocal", "Acosh")
FRACTIONS = ("Acos", "Asin", "Atanh")
ANY = ("Abs", "Asinh", "Celu", "Tan", "ThresholdedRelu", "Shrink", "Tanh", "Exp", "Sigmoid", "Erf", "Sin", "Floor")


def number(value: float, dtype: np.dtype[np.generic]) -> np.ndarray:
    return np.asarray(value).astype(dtype)


def function(d: Draft) -> Value:
    """Of floats of any size, within the domain of the function."""
    op = d.rng.choice(POSITIVE + FRACTIONS + ANY)
    x = tensor(d, dtype="float32" if op == "Celu" else d.rng.choice(FLOATS))
    if op in POSITIVE:
        x = d.node("Add", d.node("Abs", x), d.constant(number(1, x.dtype)))
    elif op in FRACTIONS:
        x = d.node("Div", x, d.constant(number(8, x.dtype)))
    return d.node(op, x)


def bounded(d: Draft) -> Value:
    """Clip, or PRelu with a slope for each channel."""
    x = tensor(d, 2, dtype=d.rng.choice((*FLOATS, "int32", "int64", "int8", "uint8")))
    if x.dtype.kind == "f" and d.rng.random() < 0.4:
        return d.node("PRelu", x, d.weight(x.shape[1], *[1] * (len(x.shape) - 2), dtype=x.dtype.name))
    return d.node("Clip", x, *(d.constant(number(v, x.dtype)) for v in (2, 90)))


def integer_arithmetic(d: Draft) -> Value:
    """Of two tensors, one of them stretched at times, or of a tensor and a number."""
    dtype = d.rng.choice(INTEGERS)
    op = d.rng.choice(("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "BitwiseAnd", "BitwiseXor"))
    x = tensor(d, dtype=dtype)
    kind = d.rng.choice(("same", "last", "first", "one", "constant"))
    shape = {"same": x.shape, "last": x.shape[-1:], "first": (x.shape[0], *[1] * (len(x.shape) - 1))}
    if kind == "constant":
        return d.node(op, x, d.constant(number(d.rng.choice((2, 3, 7, 10, 100)), x.dtype)))
    return d.node(op, x, d.input(*shape.get(kind, (1,)), dtype=dtype, below=100))


def float_arithmetic(d: Draft) -> Value:
    """Of two tensors of wide or narrow floats, or of several."""
    x = tensor(d, dtype=d.rng.choice(("float64", "float16")))
    dtype = x.dtype.name
    if d.rng.random() < 0.3:
        others = [d.input(*x.shape, dtype=dtype) for _ in range(d.rng.randint(1, 3))]
        return d.node(d.rng.choice(("Sum", "Mean", "Max", "Min")), x, *others)
    other = x.shape if d.rng.random() < 0.5 else x.shape[d.rng.randrange(len(x.shape)) :]
    return d.node(d.rng.choice(("Add", "Sub", "Mul", "Div", "Max", "Min")), x, d.input(*other, dtype=dtype))


def several(d: Draft) -> Value:
    """Three or four tensors at once, some of them stretched."""
    x = tensor(d, 2)
    others = [d.input(*d.rng.choice((x.shape, x.shape[-1:], (1,)))) for _ in range(d.rng.randint(2, 3))]
    return d.node(d.rng.choice(("Sum", "Mean", "Max", "Min")), x, *others)


def comparison(d: Draft) -> Value:
    """Whose booleans are the result, or are joined with others."""
    dtype = d.rng.choice(("float32", "float32", "int32", "int64", "float64", "uint8"))
    x = tensor(d, dtype=dtype)

    def compared() -> Value:
        op = d.rng.choice(("Less", "Greater", "Equal", "GreaterOrEqual", "LessOrEqual"))
        other = d.rng.choice((x.shape, x.shape[-1:], (1,)))
        return d.node(op, x, d.input(*other, dtype=dtype))

    y = compared()
    kind = d.rng.choice(("plain", "joined", "not", "chosen"))
    if kind == "joined":
        return d.node(d.rng.choice(("And", "Or", "Xor")), y, compared())
    if kind == "chosen":
        return d.node("Where", y, x, d.input(*x.shape[-1:], dtype=dtype))
    return d.node("Not", y) if kind == "not" else y


def special(d: Draft) -> Value:
    return d.node(d.rng.choice(("IsNaN", "IsInf")), tensor(d, dtype=d.rng.choice(("float32", "float64"))))


def shifted_bits(d: Draft) -> Value:
    x = tensor(d, dtype=d.rng.choice(("uint8", "uint32", "uint64")))
    other = d.constant(number(d.rng.randint(1, 7), x.dtype))
    return d.node("BitShift", x, other, direction=d.rng.choice(("LEFT", "RIGHT")))


def typed_reduction(d: Draft) -> Value:
    op = d.rng.choice(("Sum", "Mean", "Max", "Min", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"))
    bytes_of = ("uint8", "int8") if op in ("Max", "Min") else ()
    x = tensor(d, 2, dtype=d.rng.choice(("float32", "float64", "float16", "int32", "int64", *bytes_of)))
    if op == "LogSum":
        x = d.node("Abs", x)
    axes = sorted(d.rng.sample(range(len(x.shape)), d.rng.randint(1, min(2, len(x.shape)))))
    return d.node(f"Reduce{op}", x, d.integers(*axes), keepdims=d.rng.randint(0, 1))


def typed_softmax(d: Draft) -> Value:
    x = tensor(d, 2, dtype=d.rng.choice(("float64", "float16")))
    return d.node(d.rng.choice(("Softmax", "LogSoftmax", "Hardmax")), x, axis=axis_of(d, x))


def typed_extreme(d: Draft) -> Value:
    """The place of an extreme, of integers and wide floats, the last of equal ones at times."""
    x = tensor(d, 2, dtype=d.rng.choice(("int32", "int64", "uint8", "int8", "float64")))
    return d.node(d.rng.choice(("ArgMax", "ArgMin")), x, axis=axis_of(d, x), keepdims=d.rng.randint(0, 1),
                  select_last_index=d.rng.randint(0, 1))  # fmt: skip


def typed_sum(d: Draft) -> Value:
    """Running, of other types than float32, without an element itself at times."""
    x = tensor(d, 1, dtype=d.rng.choice(("int32", "int64", "float64")))
    axis = d.constant(np.array(axis_of(d, x)))
    return d.node("CumSum", x, axis, reverse=d.rng.randint(0, 1), exclusive=d.rng.randint(0, 1))


def converted(d: Draft) -> Value:
    """From any type to any, with arithmetic before or after."""
    kinds = (*FLOATS, *INTEGERS, "bool")
    x = tensor(d, dtype=d.rng.choice(kinds[:-1]))
    to = d.rng.choice([k for k in kinds if k != x.dtype.name])
    if x.dtype.kind == "f" and to.startswith("uint"):
        x = d.node("Abs", x)  # what becomes of negative numbers is not defined
    y = d.node("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    return d.node("Mul", y, d.constant(number(3, y.dtype))) if to in FLOATS and d.rng.random() < 0.3 else y


def quantized(d: Draft) -> Value:
    """To bytes, from bytes, or both; of the whole tensor, or of channels."""
    x, bytes_of = tensor(d, 2), d.rng.choice(("int8", "uint8"))
    axis = axis_of(d, x) if d.rng.random() < 0.4 else None
    shape = () if axis is None else (x.shape[axis],)
    scale = d.constant(d.numbers.uniform(0.01, 0.05, shape).astype(np.float32))
    zero = d.constant(d.numbers.integers(0, 9, shape).astype(bytes_of))
    options = {} if axis is None else {"axis": axis}
    kind = d.rng.choice(("to", "from", "both", "dynamic"))
    if kind == "dynamic":
        return d.node_of_several("DynamicQuantizeLinear", [x], 3)[0]
    if kind == "from":
        narrow = d.input(*x.shape, dtype=bytes_of, below=120)
        return d.node("Add", d.node("DequantizeLinear", narrow, scale, zero, **options), x)
    y = d.node("QuantizeLinear", x, scale, zero, **options)
    return y if kind == "to" else d.node("DequantizeLinear", y, scale, zero, **options)


def product_of_bytes(d: Draft) -> Value:
    rows, inner, columns = d.rng.choice((1, 4, 16, between(d.rng, 8, 512))), width(d.rng), between(d.rng, 4, 1024)
    x = d.input(rows, inner, dtype="uint8", below=200)
    w = d.constant(d.numbers.integers(-100, 100, (inner, columns)).astype(d.rng.choice(("int8", "uint8"))))
    zero = d.constant(np.uint8(d.rng.choice((0, 7))))
    if d.rng.random() < 0.5:
        y = d.node("Cast", d.node("MatMulInteger", x, w, zero), to=1)
        return d.node("Mul", y, d.constant(np.float32(0.02).reshape(())))
    scale = d.constant(np.float32(0.02).reshape(()))
    far = d.constant(np.float32(0.5).reshape(()))
    none = d.constant(np.zeros((), w.dtype))
    return d.node("QLinearMatMul", x, scale, zero, w, scale, none, far, d.constant(np.uint8(128)))


def convolution_of_bytes(d: Draft) -> Value:
    shape = image(d, 2, 64).shape
    d.inputs.clear()
    x = d.input(*shape, dtype="uint8", below=250)
    k, group = d.rng.choice((1, 3, 3, 5)), d.rng.choice((1, 1, shape[1]))
    filters = shape[1] if group > 1 else width(d.rng, 8, 128)
    w = d.constant(d.numbers.integers(-100, 100, (filters, shape[1] // group, k, k)).astype(np.int8))
    scales = [d.constant(np.float32(v).reshape(())) for v in (0.02, 0.01, 0.3)]
    zeros = [d.constant(np.uint8(128)), d.constant(np.int8(0)), d.constant(np.uint8(120))]
    bias = d.constant(d.numbers.integers(-500, 500, filters).astype(np.int32))
    return d.node("QLinearConv", x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2], bias,
                  pads=[k // 2] * 4, strides=[d.rng.choice((1, 1, 2))] * 2, group=group)  # fmt: skip


TYPED = (
    function, function, bounded, integer_arithmetic, integer_arithmetic, float_arithmetic, several, comparison,
    comparison, special, shifted_bits, typed_reduction, typed_reduction, typed_softmax, typed_extreme, typed_sum,
    converted, converted, quantized, quantized, product_of_bytes, convolution_of_bytes,
)  # fmt: skip
