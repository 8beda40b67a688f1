"""Whether a process that compiles, loads and calls for a long time grows: its memory by the number of steps.

    python bench/leaks.py compile                     # small models, each with sizes and weights of its own
    python bench/leaks.py compile MODEL.onnx          # one model, again and again
    python bench/leaks.py load [MODEL.onnx]           # a saved artefact, loaded and called
    python bench/leaks.py call                        # one model with a symbolic batch, batches of random sizes

Prints a Markdown table with a line for every tenth of `--count` steps: "resident" is the memory of the process,
"allocated" what C code holds of it (glibc only), "blocks" the memory blocks of Python objects. The first lines grow
until the bounded tables of the compiler are full; after that the columns stay as they are. llvmlite itself keeps
1.5 kB for each kernel that LLVM has optimised.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright

COUNTS = {"compile": 1000, "load": 1000, "call": 10_000}
MIB = 1 << 20
LINES = 10
LARGEST_BATCH = 512


class _Mallinfo(ctypes.Structure):
    """What glibc's `mallinfo2` returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    ]  # fmt: skip


def allocated() -> int | None:
    """Bytes that `malloc` has given out and not got back; None where the C library does not tell."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def resident() -> int:
    """Bytes that this process holds in memory (Linux only)."""
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(row[1]) * 1024 for row in rows if row[0] == "VmRSS:")


def perceptron(seed: int) -> onnx.ModelProto:
    """softmax(relu(x @ w + b)) with a symbolic batch; sizes, names and weights follow from the seed."""
    rng = np.random.default_rng(seed)
    features, classes = (int(size) for size in rng.integers(8, 200, 2))
    weights = {
        "w": rng.standard_normal((features, classes), np.float32),
        "b": rng.standard_normal(classes, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["hidden"]),
        helper.make_node("Softmax", ["hidden"], ["y"], axis=-1),
    ]
    batch = f"batch{seed}"
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, classes])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def compile_step(path: str | None) -> Callable[[int], None]:
    """Compiles a model: that of `path`, or a small one of step's own."""

    def step(index: int) -> None:
        tilewright.compile(path or perceptron(index), cache=False)

    return step


def load_step(path: str | None) -> Callable[[int], None]:
    """Loads one artefact, and calls it where its shapes are known."""
    folder = tempfile.TemporaryDirectory()
    artefact = Path(folder.name) / "model.tw"
    tilewright.compile(path or perceptron(0), cache=False).save(artefact)

    def step(index: int) -> None:
        assert folder.name  # which lives as long as this function
        model = tilewright.load(artefact)
        shapes = [[size if isinstance(size, int) else 1 for size in info.shape] for info in model.inputs]
        model(*(np.zeros(shape, info.dtype) for shape, info in zip(shapes, model.inputs, strict=True)))

    return step


def call_step(path: str | None) -> Callable[[int], None]:
    """Calls one model with batches of random sizes, which need memory of other sizes each time."""
    if path is not None:
        raise SystemExit("call has a model of its own; leave out MODEL")
    model = tilewright.compile(perceptron(0), cache=False)
    rng = np.random.default_rng(0)
    features = model.inputs[0].shape[1]

    def step(index: int) -> None:
        model(np.zeros((rng.integers(1, LARGEST_BATCH), features), np.float32))

    return step


STEPS = {"compile": compile_step, "load": load_step, "call": call_step}


def measure(step: Callable[[int], None], count: int) -> None:
    """Print the table while the steps run."""
    print("| steps | resident MiB | allocated MiB | blocks |", flush=True)
    print("|---:|---:|---:|---:|", flush=True)
    for index in range(count):
        step(index)
        if (index + 1) % max(1, count // LINES) == 0:
            gc.collect()
            known = allocated()
            native = "-" if known is None else f"{known / MIB:.1f}"
            print(
                f"| {index + 1} | {resident() / MIB:.1f} | {native} | {sys.getallocatedblocks()} |",
                flush=True,
            )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, help="steps to take")
    parser.add_argument("case", choices=tuple(STEPS))
    parser.add_argument("model", nargs="?", help="an ONNX model instead of a small one")
    chosen = parser.parse_args(arguments)
    measure(STEPS[chosen.case](chosen.model), chosen.count or COUNTS[chosen.case])


if __name__ == "__main__":
    main(sys.argv[1:])
