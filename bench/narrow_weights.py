"""Products of few and many rows with weights of few bits, beside the bandwidth of reading these.

    python -m bench.narrow_weights [--kinds q4_0,q8_0] [--shapes 131072x768] [--rows 1,4,128] [--threads 1,2] [--peer]
        [--activations int16]

Weights are expressions of narrow constants, [outputs, inputs], as the readers of files make them. For each kind, shape
and number of rows: ms of the shortest call, GB/s of the artefact's constants, percent of the bandwidth that is read
beside (a sum of floats from memory), and with `--peer` the ms of ONNX Runtime's MatMulNBits (levels of accuracy 0 and
4) where it has the kind, and of its float32 product. A shape is `NxK`, `NxK*C` for C products of as many matrices with
rows of their own, which come from memory together. Rows are not known when compiling.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from bench.turns import shortest_ms
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.ops.view import expand, reshape
from tilewright.options import Options
from tilewright.profiling.meters import Meter, read_meter
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.module import Model
from tilewright.target.host import host_target

LARGER_THAN_CACHES = 256 << 20
RNG = np.random.default_rng(0)


def _integers(low: int, high: int, n: int, k: int, dtype: dt.DType) -> Value:
    return constant(RNG.integers(low, high, (n, k), dtype=np.int8).astype(dtype.storage), "q")


def _f32(x: Value) -> Value:
    return ew.cast(x, dtype=dt.f32)


def _spread(x: Value, n: int, k: int, groups: int) -> Value:
    """One number for each group of a row as one for each element."""
    return reshape(expand(reshape(x, shape=(n, groups, 1)), shape=(n, groups, k // groups)), shape=(n, k))


def _floats(n: int, groups: int, dtype: type = np.float16) -> Value:
    return _f32(constant((0.01 * RNG.random((n, groups), np.float32)).astype(dtype), "scale"))


def _small(n: int, groups: int, per: int, high: int, low: int = 0) -> Value:
    """Scales of groups as K-quants have them: a float for several groups, a small integer for each."""
    each = ew.cast(_integers(low, high, n, groups, dt.i8 if low < 0 else dt.u8), dtype=dt.f32)
    found = ew.mul(reshape(_floats(n, groups // per), shape=(n, groups // per, 1)),
                   reshape(each, shape=(n, groups // per, per)))  # fmt: skip
    return reshape(found, shape=(n, groups))


def _scaled(low: int, high: int, dtype: dt.DType, group: int | None, zero: float = 0.0) -> Callable[[int, int], Value]:
    def made(n: int, k: int) -> Value:
        groups = 1 if group is None else k // group
        q = _f32(_integers(low, high, n, k, dtype))
        scale = _floats(n, 1, np.float32) if group is None else _spread(_floats(n, groups), n, k, groups)
        return ew.mul(ew.sub(q, zero) if zero else q, scale)

    return made


def _with_minimum(high: int, dtype: dt.DType, group: int, small: bool) -> Callable[[int, int], Value]:
    def made(n: int, k: int) -> Value:
        groups = k // group
        scale, least = (_small(n, groups, 8, 64) if small else _floats(n, groups) for _ in range(2))
        q = _f32(_integers(0, high, n, k, dtype))
        return ew.sub(ew.mul(q, _spread(scale, n, k, groups)), _spread(least, n, k, groups))

    return made


def _with_zero(group: int) -> Callable[[int, int], Value]:
    def made(n: int, k: int) -> Value:
        groups = k // group
        zero = _spread(_f32(_integers(0, 16, n, groups, dt.u8)), n, k, groups)
        q = _f32(_integers(0, 16, n, k, dt.u4))
        return ew.mul(ew.sub(q, zero), _spread(_floats(n, groups), n, k, groups))

    return made


def _six_bits(n: int, k: int) -> Value:
    scale = _small(n, k // 16, 16, 127, -127)
    return ew.mul(_f32(_integers(-32, 32, n, k, dt.i8)), _spread(scale, n, k, k // 16))


def _codebook(n: int, k: int) -> Value:
    table = constant(np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32))
    q = ew.cast(_integers(0, 16, n, k, dt.u4), dtype=dt.i32)
    return ew.mul(gather(table, q, axis=0), _spread(_floats(n, k // 32), n, k, k // 32))


def _of_dtype(dtype: type) -> Callable[[int, int], Value]:
    return lambda n, k: _f32(constant(RNG.standard_normal((n, k), np.float32).astype(dtype), "w"))


KINDS: Mapping[str, Callable[[int, int], Value]] = {
    "f32": lambda n, k: constant(RNG.standard_normal((n, k), np.float32), "w"),
    "f16": _of_dtype(np.float16),
    "bf16": _of_dtype(ml_dtypes.bfloat16),
    "i8": _scaled(-127, 128, dt.i8, None),
    "q8_0": _scaled(-127, 128, dt.i8, 32),
    "q4_0": _scaled(0, 16, dt.u4, 32, 8.0),
    "q4_64": _scaled(0, 16, dt.u4, 64, 8.0),
    "q4_128": _scaled(0, 16, dt.u4, 128, 8.0),
    "q4_1": _with_minimum(16, dt.u4, 32, False),
    "q4_z": _with_zero(32),
    "q4_k": _with_minimum(16, dt.u4, 32, True),
    "q5_0": _scaled(0, 32, dt.u8, 32, 16.0),
    "q5_k": _with_minimum(32, dt.u8, 32, True),
    "q6_k": _six_bits,
    "iq4_nl": _codebook,
}
BITS = {"q4_0": (4, 32), "q4_64": (4, 64), "q4_128": (4, 128), "q4_z": (4, 32), "q8_0": (8, 32)}
"""Of kinds that MatMulNBits has: bits and block."""


@dataclass(frozen=True)
class Shape:
    """So many products with matrices [n, k]."""

    n: int
    k: int
    count: int

    @staticmethod
    def parse(text: str) -> Shape:
        matrix, _, count = text.partition("*")
        n, k = map(int, matrix.split("x"))
        return Shape(n, k, int(count or 1))

    def __str__(self) -> str:
        return f"{self.n}x{self.k}" + (f"*{self.count}" if self.count > 1 else "")


def products(kind: str, shape: Shape) -> Module:
    """x: f32[rows, k] for each matrix -> f32[rows, n]."""
    module = Module()
    types = [tensor(dt.f32, (var("rows", 0), shape.k))] * shape.count
    block = Block(types, [f"x{k}" for k in range(shape.count)])
    with Builder(block, module) as builder:
        results = [matmul(x, KINDS[kind](shape.n, shape.k), transpose_b=True) for x in block.args]
        builder.emit("return", tuple(results))
    module.add(Func("main", block))
    return module


def peer(kind: str, shape: Shape, level: int, threads: int) -> onnxruntime.InferenceSession:
    """ONNX Runtime's product of the same form, of other weights."""
    n, k = shape.n, shape.k
    nodes, weights, inputs, outputs = [], [], [], []
    bits, block = BITS.get(kind, (0, 0))
    for c in range(shape.count):
        inputs.append(helper.make_tensor_value_info(f"x{c}", TensorProto.FLOAT, ["rows", k]))
        outputs.append(helper.make_tensor_value_info(f"y{c}", TensorProto.FLOAT, ["rows", n]))
        if kind == "f32":
            weights.append(numpy_helper.from_array(RNG.standard_normal((k, n), np.float32), f"w{c}"))
            nodes.append(helper.make_node("MatMul", [f"x{c}", f"w{c}"], [f"y{c}"]))
            continue
        q = RNG.integers(0, 255, (n, k // block, block * bits // 8), dtype=np.uint8)
        scale = 0.01 * RNG.random((n, k // block), np.float32)
        weights += [numpy_helper.from_array(q, f"q{c}"), numpy_helper.from_array(scale, f"s{c}")]
        names = [f"x{c}", f"q{c}", f"s{c}"]
        if kind == "q4_z":
            zeros = RNG.integers(0, 255, (n, -(-k // block * bits // 8)), dtype=np.uint8)
            weights.append(numpy_helper.from_array(zeros, f"z{c}"))
            names.append(f"z{c}")
        nodes.append(helper.make_node("MatMulNBits", names, [f"y{c}"], domain="com.microsoft", K=k, N=n, bits=bits,
                                      block_size=block, accuracy_level=level))  # fmt: skip
    graph = helper.make_graph(nodes, "products", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


def peers(kind: str, shape: Shape, threads: int) -> Iterator[tuple[str, onnxruntime.InferenceSession]]:
    if kind == "f32":
        yield "MatMul", peer(kind, shape, 0, threads)
    elif kind in BITS:
        yield from ((f"level {level}", peer(kind, shape, level, threads)) for level in (0, 4))


@dataclass(frozen=True)
class Bench:
    """Products of one kind and shape, compiled; what reads memory beside them, and seconds for each measurement."""

    kind: str
    shape: Shape
    artifact: Artifact
    meter: Meter
    seconds: float
    with_peers: bool

    def run(self, rows: Sequence[int], threads: int) -> None:
        model = Model(self.artifact, threads)
        others = dict(peers(self.kind, self.shape, threads)) if self.with_peers else {}
        size = len(self.artifact.constants)
        for count in rows:
            x = [RNG.standard_normal((count, self.shape.k), np.float32) for _ in range(self.shape.count)]
            named = {f"x{c}": array for c, array in enumerate(x)}
            ms = shortest_ms(partial(model, *x), self.seconds)
            rate, read = size / ms / 1e6, max(self.meter.read() for _ in range(3))
            times = {name: shortest_ms(partial(other.run, None, named), self.seconds) for name, other in others.items()}
            told = "  ".join(f"{name} {time:.3f}" for name, time in times.items())
            first = f"{self.kind:8s} {self.shape!s:14s} {threads:7d} {count:5d}"
            print(f"{first} {ms:9.3f} {rate:6.1f} {100 * rate / read:4.0f}  {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--shapes", default="65536x768")
    parser.add_argument("--rows", default="1,2,4,8,128")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--activations", default="float32", help="float32, int16 or int8: what rows are rounded to")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--peer", action="store_true")
    options = parser.parse_args()
    target = host_target()
    meter = read_meter(target, LARGER_THAN_CACHES)
    rows, threads = ([int(n) for n in text.split(",")] for text in (options.rows, options.threads))
    print(f"{'kind':8s} {'shape':14s} {'threads':>7s} {'rows':>5s} {'ms':>9s} {'GB/s':>6s} {'%':>4s}")
    for kind in options.kinds.split(","):
        for shape in map(Shape.parse, options.shapes.split(",")):
            begin = time.perf_counter()
            artifact = compile_module(products(kind, shape), Options(activations=options.activations), target)
            bits = 8 * len(artifact.constants) / (shape.count * shape.n * shape.k)
            print(f"{kind:8s} {shape!s:14s} {bits:.2f} bits an element, {time.perf_counter() - begin:.2f} s to compile")
            for count in threads:
                Bench(kind, shape, artifact, meter, options.seconds, options.peer).run(rows, count)


if __name__ == "__main__":
    main()
