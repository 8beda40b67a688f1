"""Memory-bound kernels beside the bandwidth of the level of memory that they live in.

    python -m bench.bandwidth [--kernels softmax,relu] [--levels L2,L3] [--rounds 9]

First come the machine's rates (one core, GB/s) for reading, writing, copying, and copying with stores that bypass the
caches; then, for each kernel and level, its time, the time that moving its bytes takes at those rates, and the latter
in percent of the former. Kernels and rates are read in turns; medians are compared. No other engine is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.profiling.meters import MemoryLevel, block_sizes, levels, read_meter
from tilewright.target.host import host_target
from tilewright.target.target import Target

COLUMNS = 256
MOVED = 32 << 20
"""Bytes that a reading of a rate moves, in as many passes as its level needs."""


@dataclass(frozen=True)
class Rates:
    """GB/s of a level; those of copies count what is read and what is written."""

    read: float
    write: float
    copy: float
    streamed: float

    def seconds(self, read: int, written: int) -> float:
        """The least time to read and write so many bytes, with the faster kind of stores for what is copied."""
        both = min(read, written)
        copied = 2 * both / max(self.copy, self.streamed)
        return 1e-9 * (copied + max(read - both, 0) / self.read + max(written - both, 0) / self.write)


def _node(op: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, [*inputs], ["y"], **attributes)


def _reduced(op: str, *axes: int) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Constant", [], ["axes"], value_ints=[*axes]),
        _node(op, "x", "axes", keepdims=0),
    ]


def _scale_and_shift() -> list[onnx.NodeProto]:
    """Two vectors of one element for each column."""
    made = []
    for name in ("scale", "shift"):
        value = numpy_helper.from_array(np.linspace(0.5, 1.5, COLUMNS, dtype=np.float32), name)
        made.append(helper.make_node("Constant", [], [name], value=value))
    return made


KERNELS: Mapping[str, Callable[[], list[onnx.NodeProto]]] = {
    "relu": lambda: [_node("Relu", "x")],
    "add": lambda: [_node("Add", "x", "x1")],
    "bias": lambda: [*_scale_and_shift(), _node("Add", "x", "shift")],
    "exp": lambda: [_node("Exp", "x")],
    "tanh": lambda: [_node("Tanh", "x")],
    "silu": lambda: [helper.make_node("Sigmoid", ["x"], ["s"]), _node("Mul", "x", "s")],
    "gelu": lambda: [_node("Gelu", "x")],
    "hard_swish": lambda: [_node("HardSwish", "x")],
    "to_f16": lambda: [_node("Cast", "x", to=TensorProto.FLOAT16)],
    "to_u8": lambda: [_node("Cast", "x", to=TensorProto.UINT8)],
    "softmax": lambda: [_node("Softmax", "x", axis=-1)],
    "log_softmax": lambda: [_node("LogSoftmax", "x", axis=-1)],
    "layer_norm": lambda: [*_scale_and_shift(), _node("LayerNormalization", "x", "scale", "shift")],
    "sum_last": lambda: _reduced("ReduceSum", 2),
    "sum_middle": lambda: _reduced("ReduceSum", 1),
    "sum_first": lambda: _reduced("ReduceSum", 0),
    "sum_outer_and_last": lambda: _reduced("ReduceSum", 0, 2),
    "max_all": lambda: _reduced("ReduceMax", 0, 1, 2),
    "argmax_last": lambda: [_node("ArgMax", "x", axis=2, keepdims=0)],
    "argmax_middle": lambda: [_node("ArgMax", "x", axis=1, keepdims=0)],
    "transpose": lambda: [_node("Transpose", "x", perm=[0, 2, 1])],
    "concat": lambda: [_node("Concat", "x", "x1", axis=2)],
    "running_sum": lambda: [
        helper.make_node("Constant", [], ["axis"], value_int=2),
        _node("CumSum", "x", "axis"),
    ],
}


def model(name: str, elements: int) -> bytes:
    """The kernel as a model of x (and x1): f32[4, rows, COLUMNS] of `elements` in all."""
    nodes = KERNELS[name]()
    shape = (4, max(1, elements // (4 * COLUMNS)), COLUMNS)
    names = [n for n in ("x", "x1") if any(n in node.input for node in nodes)]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in names]
    graph = helper.make_graph(nodes, name, inputs, [helper.make_empty_tensor_value_info("y")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made).SerializeToString()


def mover(target: Target, *, loads: bool, streamed: bool) -> tuple[llvm.ExecutionEngine, Callable[..., None]]:
    """Code (source, destination, elements, passes) that writes a block of whole vectors, copied where it `loads`."""
    vector = f"<{target.f32_lanes} x float>"
    note = ", !nontemporal !0" if streamed else ""
    text = f"""
        define void @move(ptr %from, ptr %to, i64 %n, i64 %passes) {{
        entry:
          br label %again
        again:
          %pass = phi i64 [ 0, %entry ], [ %more, %done ]
          br label %loop
        loop:
          %i = phi i64 [ 0, %again ], [ %next, %loop ]
          %source = getelementptr float, ptr %from, i64 %i
          %place = getelementptr float, ptr %to, i64 %i
          %found = load volatile {vector}, ptr %source, align 64
          store {vector} {"%found" if loads else "zeroinitializer"}, ptr %place, align 64{note}
          %next = add i64 %i, {target.f32_lanes}
          %on = icmp slt i64 %next, %n
          br i1 %on, label %loop, label %done
        done:
          fence seq_cst
          %more = add i64 %pass, 1
          %once = icmp slt i64 %more, %passes
          br i1 %once, label %again, label %end
        end:
          ret void
        }}
        !0 = !{{i32 1}}
        attributes #0 = {{ {target.function_attributes} }}"""
    if not loads:
        text = "\n".join(line for line in text.splitlines() if "%found = load" not in line)
    text = text.replace("i64 %passes) {", "i64 %passes) #0 {")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.feature_text, opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    kinds = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    return engine, ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address("move"))


def rates(target: Target, sizes: Mapping[str, int], rounds: int) -> dict[str, Rates]:
    """The rates of each level, of blocks of so many bytes."""
    code = [
        mover(target, loads=loads, streamed=streamed)
        for loads, streamed in ((False, False), (True, False), (True, True))
    ]
    found = {}
    for name, size in sizes.items():
        elements = size // 8 // 64 * 64
        memory = np.full(2 * elements + 1024, 0.5, np.float32)
        start = memory.ctypes.data + -memory.ctypes.data % 64
        reader = read_meter(target, size)
        passes = max(1, MOVED // (8 * elements))
        rows = []
        for _ in range(rounds):
            row = [reader.read()]
            for (_, run), moved in zip(code, (4, 8, 8), strict=True):
                run(start, start + 4 * elements, elements, 1)
                begin = time.perf_counter()
                run(start, start + 4 * elements, elements, passes)
                row.append(moved * elements * passes / (time.perf_counter() - begin) / 1e9)
            rows.append(row)
        found[name] = Rates(*(statistics.median(column) for column in zip(*rows, strict=True)))
    return found


def measure(name: str, size: int, rounds: int) -> tuple[float, int, int]:
    """Seconds of a kernel whose inputs and outputs have about `size` bytes in all, and the bytes of both."""
    elements = size // (12 if name in ("add", "concat") else 8)
    compiled = tilewright.compile(model(name, elements), threads=1, cache=False, profile=True)
    random = np.random.default_rng(0)
    inputs = {i.name: random.standard_normal(i.shape, np.float32) for i in compiled.inputs}
    results = compiled.run(inputs)
    found = [sum(t.seconds for t in compiled.profile(inputs, 8)) for _ in range(rounds)]
    return statistics.median(found), sum(a.nbytes for a in inputs.values()), sum(a.nbytes for a in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--levels", default="L1,L2,L3,DRAM")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    target = host_target()
    found: Sequence[MemoryLevel] = levels(target)
    wanted = options.levels.split(",")
    sizes = {
        level.name: size
        for level, size in zip(found, block_sizes(found), strict=True)
        if level.name in wanted
    }
    machine = rates(target, sizes, options.rounds)
    for level, rate in machine.items():
        print(
            f"{level:5s} {sizes[level] >> 10:8d} KB  read {rate.read:6.1f}  write {rate.write:6.1f}  "
            f"copy {rate.copy:6.1f}  copy, caches bypassed {rate.streamed:6.1f} GB/s"
        )
    print(f"{'kernel':20s} {'level':5s} {'us':>10s} {'bound':>10s}      %")
    for name in options.kernels.split(","):
        for level, size in sizes.items():
            seconds, read, written = measure(name, size, options.rounds)
            least = machine[level].seconds(read, written)
            print(
                f"{name:20s} {level:5s} {1e6 * seconds:10.1f} {1e6 * least:10.1f} {100 * least / seconds:6.0f}"
            )


if __name__ == "__main__":
    main()
