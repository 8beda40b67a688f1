"""Calibrates the cost model of contractions on this machine, which should be idle.

python -m bench.calibrate compile OBJECTS --target cascadelake     kernels under every decision; can be interrupted
python -m bench.calibrate measure OBJECTS --target cascadelake     their times; again adds passes and keeps the least
python -m bench.calibrate fit cascadelake cascadelake-avx2         shares by least squares, the mean of the machines
python -m bench.calibrate stored cascadelake --layers third        regret and rank correlation on kept measurements
python -m bench.calibrate report                                   regret of every kind of decision, on this machine

Layers are those that the shares are `fitted` to, or those of two draws that only judge the model. `report` draws
networks of its own (`bench/calibration/kinds`), compiles each with every answer that the model could have given, times
the programs in turns, and goes on where it stopped when it is run again; `--prepare` only compiles.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import pickle
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

import numpy as np
from llvmlite import binding

from bench.calibration import regret
from bench.calibration.shapes import DRAWS, Conv, Layer, Matmul, TransposedMatmul, layers_of
from tilewright.codegen.cpu.assemble import compile_ir
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.cost.gemm.cache_blocking import Blocks
from tilewright.cost.gemm.cost_model import Counts, Decision, candidates, choose, count, cycles
from tilewright.cost.gemm.register_tile import GemmShape, Tile
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.types import product, tensor
from tilewright.loops.kernel_info import constants_of, kernel_info
from tilewright.loops.lower import lower_region
from tilewright.loops.stages import Lowered
from tilewright.ops import blocked, contract
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.passes import PassContext
from tilewright.schedule.gemm.contraction import schedule_contraction
from tilewright.schedule.gemm.gemm_axes import assign_axes, transposed_axes
from tilewright.schedule.gemm.gemm_shape import gemm_shape, transposed_shape
from tilewright.schedule.gemm.reduction_nest import one_reduction
from tilewright.schedule.strategies import STRATEGIES
from tilewright.schedule.trace import Schedule
from tilewright.target.calibration import Exposed
from tilewright.target.named import parse_target
from tilewright.target.target import Target

FOLDER = Path(__file__).parent / "calibration"
TARGETS = {"cascadelake": "cascadelake,l3=37748736", "cascadelake-avx2": "x86-64-v3,l2=1048576,l3=37748736"}
FAR_BYTES = 80 << 20  # of weights that are read in turns, so that they come from memory as in a large model
BUFFER_BYTES = 48 << 20
GOOD = 1.3  # times the best: decisions up to this weigh double in the fit


# Kernels


def kernel_of(layer: Layer) -> Lowered:
    """The kernel of a layer before any decision."""
    module = Module()
    space = 1 if isinstance(layer, Conv) and layer.kernel == layer.stride == 1 else 2
    match layer:
        case Matmul():
            shape: tuple[int, ...] = (layer.rows, layer.depth)
        case TransposedMatmul():
            shape = (layer.depth, layer.columns)
        case Conv():
            shape = _blocked_shape(layer, space)
    block = Block([tensor(dt.f32, shape)], ["x"])
    with Builder(block, module) as builder:
        x = block.args[0]
        match layer:
            case Matmul():
                made = _matmul(x, layer)
            case TransposedMatmul():
                made = _transposed(x, layer)
            case Conv():
                made = _conv(x, layer, space)
        builder.emit("return", (made,))
    module.add(Func("main", block))
    Fuse(STRATEGIES).run(module, PassContext(parse_target("x86-64-v3")))
    (region,) = (op for op in module.main.body.ops if op.name == "fused")
    known = (v.op is not None and v.op.name == "constant" for v in region.operands)
    return lower_region(region, "k", [k for k, is_constant in enumerate(known) if is_constant])


def _blocked_shape(layer: Conv, space: int) -> tuple[int, ...]:
    pixels = (layer.size,) * 2 if space == 2 else (layer.size**2,)
    return (layer.images, -(-layer.inputs // 16), *pixels, 16)


def _zeros(name: str, *shape: int) -> Value:
    return constant(np.zeros(shape, np.float32), name)


def _matmul(x: Value, layer: Matmul) -> Value:
    product_ = contract.matmul(x, _zeros("w", layer.depth, layer.columns))
    return ew.add(product_, _zeros("b", layer.columns))


def _transposed(x: Value, layer: TransposedMatmul) -> Value:
    product_ = contract.matmul(_zeros("w", layer.rows, layer.depth), x)
    return ew.add(product_, _zeros("b", layer.rows, 1))


def _conv(x: Value, layer: Conv, space: int) -> Value:
    y = blocked.conv_blocked(
        x,
        _zeros("w", layer.outputs, layer.inputs, *(layer.kernel,) * space),
        strides=(layer.stride,) * space,
    )
    return ew.max_(ew.add(y, _zeros("b", -(-layer.outputs // 16), *(1,) * space, 16)), 0.0)


def shape_of(lowered: Lowered, transposed: bool) -> GemmShape:
    """What the model sees of a kernel, with vectors along its rows if `transposed`."""
    copy = lowered.clone()
    s = Schedule(copy.func)
    constants = constants_of(copy.func)
    axes = assign_axes(one_reduction(s, copy))
    if not transposed:
        return gemm_shape(axes, constants)
    across = transposed_axes(axes, constants)
    assert across is not None
    return transposed_shape(across, constants)


@dataclass(frozen=True)
class Compiled:
    """A kernel's object file, the bytes of its buffers and of its scratch memory, the number of its largest constant,
    and the iterations of its parallel loop."""

    blob: bytes
    sizes: tuple[int, ...]
    scratch: int
    weights: int
    iterations: int


def compile_kernel(lowered: Lowered, decision: Decision, target: Target, transposed: bool) -> Compiled | None:
    """The kernel under a decision; None where that is not possible."""
    copy = lowered.clone()
    try:
        schedule_contraction(Schedule(copy.func), copy, target, decision, transposed=transposed)
    except ScheduleError:
        return None
    text = kernel_ir(copy.func, target)
    sizes = tuple(4 * int(product(arg.type.shape).value) for arg in copy.func.args)  # type: ignore[union-attr]
    weights = max(kernel_info(copy.func).constants, key=lambda k: sizes[k])
    iterations = 1 if text.parallel is None else int(text.parallel.value)
    return Compiled(compile_ir(text.text, target), sizes, int(text.scratch.value), weights, iterations)


def compile_all(layers: Sequence[Layer], folder: Path, target: Target) -> None:
    """Write a file of kernels for each layer, or add the decisions that it lacks to it."""
    folder.mkdir(parents=True, exist_ok=True)
    for layer in layers:
        path = file_of(layer, folder)
        lowered = kernel_of(layer)
        transposed = isinstance(layer, TransposedMatmul)
        shape = shape_of(lowered, transposed)
        found: dict[str, Compiled | None] = pickle.loads(path.read_bytes())[1] if path.exists() else {}
        decisions = candidates(shape, target)
        if not decisions:
            continue
        lacking = {text_of(d): d for d in (*decisions, choose(shape, target).decision)}
        lacking = {text: d for text, d in lacking.items() if text not in found}
        if lacking:
            found |= {text: compile_kernel(lowered, d, target, transposed) for text, d in lacking.items()}
            path.write_bytes(pickle.dumps((asdict(shape), found)))
            print(layer, f"{len(lacking)} of {len(found)} are new", flush=True)


def file_of(layer: Layer, folder: Path) -> Path:
    """Where the kernels of a layer lie."""
    return folder / f"{layer}.pickle".replace(">", "")


def text_of(decision: Decision) -> str:
    """`rows,columns,o` or `i` (column tiles outside or inside of lines); `rows,columns,` and the blocks' extents."""
    tile, b = decision.tile, decision.blocks
    rest = ("o" if decision.columns_outside else "i") if b is None else f"{b.rows},{b.columns},{b.depth}"
    return f"{tile.rows},{tile.columns},{rest}"


def decision_of(text: str, lanes: int) -> Decision:
    """The decision that `text_of` wrote."""
    rows, columns, *rest = text.split(",")
    tile = Tile(int(rows), int(columns), lanes)
    return Decision(tile, None, rest == ["o"]) if len(rest) == 1 else Decision(tile, Blocks(*map(int, rest)))


# Times


class Memory:
    """Buffers that all kernels share; weights are given in turns."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []
        self._turn = 0
        self._weights = self._make(FAR_BYTES + BUFFER_BYTES)
        self.state, self.scratch = self._make(1 << 16), self._make(BUFFER_BYTES)
        self.buffers = [self._make(BUFFER_BYTES) for _ in range(4)]

    def weights(self, size: int) -> int:
        """An address that no kernel has read for a long time."""
        step = -(-size // 4096) * 4096
        self._turn = 0 if self._turn + 2 * step > FAR_BYTES else self._turn + step
        return self._weights + self._turn

    def _make(self, size: int) -> int:
        raw = np.zeros(size + 4096, np.uint8)
        raw[:] = 0  # pages of its own, not the one of zeros
        self._kept.append(raw)
        return int(raw.ctypes.data + -raw.ctypes.data % 4096)


class Kernel:
    """A compiled kernel that can be called."""

    def __init__(self, made: Compiled, memory: Memory) -> None:
        target = binding.Target.from_default_triple()
        machine = target.create_target_machine(reloc="pic", codemodel="small", opt=2)
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
        self._engine.add_object_file(binding.ObjectFileRef.from_data(made.blob))
        self._engine.finalize_object()
        pointers = [ctypes.c_void_p] * (len(made.sizes) + 2)
        kind = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64, ctypes.c_int64)
        self._call = kind(self._engine.get_function_address("k"))
        self._made, self._memory = made, memory

    def seconds(self) -> float:
        """The time of one call."""
        made, memory = self._made, self._memory
        at = list(memory.buffers[: len(made.sizes)])
        at[made.weights] = memory.weights(made.sizes[made.weights])
        start = time.perf_counter()
        self._call(memory.state, *at, memory.scratch, 0, made.iterations)
        return time.perf_counter() - start


def measure_all(layers: Sequence[Layer], folder: Path, out: Path, seconds: float, passes: int) -> None:
    """Time layers for so many seconds, those with the fewest passes first. A layer with a decision that has no time
    yet begins anew: only times of the same passes are compared."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    end = time.monotonic() + seconds
    entries = {e["name"]: e for e in (json.loads(out.read_text()) if out.exists() else [])}
    memory = Memory()
    for layer in sorted(layers, key=lambda n: entries.get(str(n), {}).get("passes", 0)):
        if not file_of(layer, folder).exists():
            continue
        shape, made = pickle.loads(file_of(layer, folder).read_bytes())
        kernels = {text: kernel for text, kernel in made.items() if kernel is not None}
        before = entries.get(str(layer), {"passes": 0, "microseconds": {}})
        if not kernels.keys() <= before["microseconds"].keys():
            before = {"passes": 0, "microseconds": {}}
        if before["passes"] >= passes:
            continue
        least = _least({text: Kernel(kernel, memory) for text, kernel in kernels.items()}, end)
        if least is None:
            break
        times = {t: min(us, before["microseconds"].get(t, us)) for t, us in least.items()}
        entries[str(layer)] = dict(
            name=str(layer), contraction=shape, passes=before["passes"] + 1, microseconds=times
        )
    lines = (json.dumps(entries[name]) for name in sorted(entries))
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    fewest = min((e["passes"] for e in entries.values()), default=0)
    print(f"{len(entries)} of {len(layers)} layers, each {fewest} times or more")


def _least(kernels: dict[str, Kernel], end: float) -> dict[str, float] | None:
    """The least time of each kernel in microseconds, called in turns of any order, as what one leaves in the caches
    helps some of the others; None where time is too short."""
    for kernel in kernels.values():
        kernel.seconds()
    one = sum(kernel.seconds() for kernel in kernels.values())
    start, iterations = time.monotonic(), 0
    if start + 3 * one > end:
        return None
    least = dict.fromkeys(kernels, 1.0)
    turn, rng = list(kernels), np.random.default_rng(0)
    while iterations < 3 or (iterations < 40 and time.monotonic() - start < 0.35):
        rng.shuffle(turn)
        for text in turn:
            least[text] = min(least[text], kernels[text].seconds())
        iterations += 1
    return {text: round(1e6 * seconds, 1) for text, seconds in least.items()}


# Fit and report


@dataclass(frozen=True)
class Measured:
    """A layer, its target, and the measured decisions with their times in microseconds."""

    name: str
    shape: GemmShape
    target: Target
    decisions: tuple[Decision, ...]
    times: np.ndarray

    @property
    def costs(self) -> np.ndarray:
        """What the model says of the decisions, in cycles."""
        return np.array([cycles(self.shape, d, self.target) for d in self.decisions])


def load(machine: str, layers: str) -> list[Measured]:
    """What was measured of a set of layers on a machine."""
    found = []
    for e in json.loads(file_of_times(machine, layers).read_text()):
        shape, times = GemmShape(**e["contraction"]), e["microseconds"]
        decisions = tuple(decision_of(text, shape.lanes) for text in times)
        measured = np.array(list(times.values()))
        found.append(Measured(e["name"], shape, parse_target(TARGETS[machine]), decisions, measured))
    return found


def file_of_times(machine: str, layers: str) -> Path:
    """Where the times of a set of layers on a machine are kept."""
    return FOLDER / f"{machine}{'' if layers == 'fitted' else '-' + layers}.json"


def fit(machine: str) -> np.ndarray:
    """Shares, none below zero, with the least squares of relative errors; multiplications are the unit."""
    rows, times = [], []
    for layer in load(machine, "fitted"):
        slower = layer.times / layer.times.min()
        weight = np.where(slower < GOOD, 2, 1) / slower / layer.times
        counts = [astuple(count(layer.shape, d, layer.target)) for d in layer.decisions]
        rows.append(np.array(counts) * weight[:, None])
        times.append(layer.times * weight)
    shares = least_squares(np.concatenate(rows), np.concatenate(times))
    return shares / shares[0]


def least_squares(a: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x >= 0 with the least |a x - y|, one coordinate after the other."""
    scale = np.linalg.norm(a, axis=0)
    a = a / scale
    gram, right = a.T @ a, a.T @ y
    x = np.zeros(len(right))
    for _ in range(20_000):
        before = x.copy()
        for k in range(len(x)):
            x[k] = max(0.0, x[k] + (right[k] - gram[k] @ x) / gram[k, k])
        if np.abs(x - before).max() < 1e-9 * (1 + np.abs(x).max()):
            break
    return x / scale


def report_stored(machine: str, layers: str) -> None:
    """Print how good the model's order of decisions and its choices are."""
    regrets, ranks, milliseconds, unknown = [], [], [], 0
    for layer in load(machine, layers):
        start = time.perf_counter()
        taken = choose.__wrapped__(layer.shape, layer.target).decision
        milliseconds.append(1e3 * (time.perf_counter() - start))
        costs = layer.costs
        unknown += taken not in layer.decisions
        chosen = layer.decisions.index(taken) if taken in layer.decisions else int(costs.argmin())
        best = int(layer.times.argmin())
        regrets.append((layer.times[chosen] / layer.times[best] - 1, layer, chosen, best))
        if len(costs) > 2:
            ranks.append(np.corrcoef(costs.argsort().argsort(), layer.times.argsort().argsort())[0, 1])
    only = [r for r, *_ in regrets]
    print(
        f"{machine}, {layers}: {len(only)} layers; regret median {np.median(only):.1%}, mean {np.mean(only):.1%}, "
        f"worst {max(only):.1%}; choices not measured: {unknown}"
    )
    print(f"rank correlation median {np.median(ranks):.2f}, lower decile {np.quantile(ranks, 0.1):.2f}")
    print(f"milliseconds of a choice: median {np.median(milliseconds):.2f}, worst {max(milliseconds):.2f}")
    for r, layer, chosen, best in sorted(regrets, key=lambda item: -item[0])[:8]:
        print(f"  {r:6.1%}  {layer.name}: {layer.decisions[chosen]}; best {layer.decisions[best]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("compile", "measure"):
        command = commands.add_parser(name)
        command.add_argument("objects", type=Path)
        command.add_argument("--target", choices=list(TARGETS), required=True)
    command.add_argument("--seconds", type=float, default=25)
    command.add_argument("--passes", type=int, default=4)
    for name in ("fit", "stored"):
        command = commands.add_parser(name)
        command.add_argument("machines", nargs="+", choices=list(TARGETS))
    for name in ("compile", "measure", "stored"):
        commands.choices[name].add_argument("--layers", choices=("fitted", *DRAWS), default="fitted")
    regrets = commands.add_parser("report")
    regrets.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "tilewright-regret")
    regrets.add_argument("--kinds", nargs="+", help="only those whose names begin so")
    regrets.add_argument("--networks", type=int, default=12, help="of each kind")
    regrets.add_argument("--seed", type=int, default=20261122)
    regrets.add_argument("--minutes", type=float, default=10, help="of measuring")
    regrets.add_argument("--target", default="host")
    regrets.add_argument("--prepare", action="store_true", help="compile, and measure nothing")
    regrets.add_argument("--verbose", action="store_true", help="every network")
    options = parser.parse_args()
    if options.command == "report":
        regret.report(options)
        return
    if options.command == "fit":
        fitted = np.mean([fit(machine) for machine in options.machines], axis=0)
        for field, share in zip(fields(Counts), fitted, strict=True):
            print(f"{field.name:10s} {share:.3f}   in use {getattr(Exposed(), field.name, 1):.3f}")
    elif options.command == "stored":
        for machine in options.machines:
            report_stored(machine, options.layers)
    else:
        layers = layers_of(options.layers)
        folder = options.objects / options.target
        if options.command == "compile":
            compile_all(layers, folder, parse_target(TARGETS[options.target]))
        else:
            out = file_of_times(options.target, options.layers)
            measure_all(layers, folder, out, options.seconds, options.passes)


if __name__ == "__main__":
    main()
