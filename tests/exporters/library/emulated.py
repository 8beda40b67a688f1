"""Exported models on machines that are emulated here: qemu-user, and engines of WebAssembly (node, wasmtime).

`python -m tests.exporters.library.emulated MODEL.onnx ...` (or .tflite, or folders of such with inputs in
`test_data_set_0`, as the onnx package has them) runs each model on all of them, and writes how far the answers are from
this machine's to the file that docs/emulated.py makes the page of. `--machine NAME` takes some machines only.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import tilewright
from docs import emulated as docs
from tests.exporters.library.wasmtime_engine import run_in_wasmtime
from tilewright.exporters.library.tables import DTYPES
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.target.named import NAMED

HERE = Path(__file__).parent
_RISCV = "rv64,v=true,zba=true,zbb=true,zbs=true,vlen="


@dataclass(frozen=True)
class Machine:
    """A target, the command that runs programs for it ("" first: wasmtime, in this process), and zig's name of it."""

    target: str
    command: tuple[str, ...]
    zig: str

    @property
    def missing(self) -> str:
        """What is not installed here that it needs; "" where all is."""
        if importlib.util.find_spec("ziglang") is None:
            return "ziglang"
        if self.command[:1] == ("",):
            return "" if importlib.util.find_spec("wasmtime") else "wasmtime"
        return "" if not self.command or shutil.which(self.command[0]) else self.command[0]


def _qemu(arch: str, target: str, cpu: str) -> Machine:
    return Machine(target, (f"qemu-{arch}", "-cpu", cpu), f"{arch}-linux-musl")


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "AArch64 NEON": _qemu("aarch64", "aarch64-neon", "cortex-a53"),
        "AArch64 dot product": _qemu("aarch64", "neoverse-n1", "neoverse-n1"),
        "AArch64 SVE, 256 bits": _qemu("aarch64", "neoverse-v1-sve", "max,sve256=on"),
        "AArch64 SVE, 512 bits": _qemu("aarch64", "a64fx", "a64fx"),
        "RISC-V, 128 bits": _qemu("riscv64", "riscv64-v", f"{_RISCV}128"),
        "RISC-V, 256 bits": _qemu("riscv64", "riscv64-v256", f"{_RISCV}256"),
        "IBM z14": _qemu("s390x", "z14", "max"),
        "IBM z15": _qemu("s390x", "z15", "max"),
        "WebAssembly SIMD128 in node": Machine("wasm-simd128", ("node", "runner.mjs"), "wasm32-freestanding"),
        "WebAssembly relaxed SIMD in wasmtime": Machine("wasm-relaxed", ("",), "wasm32-freestanding"),
        "x86-64 without AVX": _qemu("x86_64", "x86-64", "qemu64"),
        "x86-64 with AVX2": _qemu("x86_64", "x86-64-v3", "Haswell"),
        "x86-64": Machine("x86-64-v3", (), "x86_64-linux-musl"),
    }
)
"""By the names of the page. The last one has no emulator: it tells what the way through a library changes."""


def run_elsewhere(
    model: object, inputs: Sequence[np.ndarray], machine: Machine, *, threads: int = 1, limit: float = 600,
    **options: object,
) -> list[np.ndarray]:  # fmt: skip
    """What a model that is exported for a machine gives there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "inputs").write_bytes(b"".join(map(_packed, inputs)))
        if NAMED[machine.target].arch == "wasm32":
            tilewright.export(model, folder / "net.wasm", target=machine.target, **options)  # type: ignore[arg-type]
            if not machine.command[0]:
                return run_in_wasmtime(folder / "net.wasm", inputs)
            command = [machine.command[0], str(HERE / machine.command[1]), "net.mjs", "inputs", "outputs"]
        else:
            _build(model, folder, machine, options)
            command = [*machine.command, "./net", "inputs", "outputs", str(threads)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode:
            raise RuntimeError(f"{machine.target}: exit code {done.returncode}: {done.stderr.strip()}")
        return _unpacked((folder / "outputs").read_bytes())


def _build(model: object, folder: Path, machine: Machine, options: Mapping[str, object]) -> None:
    """A program in the folder that runs the model."""
    compiler = (sys.executable, "-m", "ziglang", "cc", "-target", machine.zig)
    tilewright.export(
        model, folder / "net.a", name="net", target=machine.target, cc=" ".join(compiler), **options,  # type: ignore[arg-type]
    )  # fmt: skip
    source = str(HERE / "runner.c")
    build = [*compiler, "-O1", "-static", "-DMODEL=net", "-include", "net.h", source, "net.a", "-o", "net", "-lm"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)


def _packed(array: np.ndarray) -> bytes:
    numbers = np.array([DTYPES.index(array.dtype.name) + 1, array.ndim, *array.shape], "<i8")
    return numbers.tobytes() + np.ascontiguousarray(array).tobytes()


def _unpacked(data: bytes) -> list[np.ndarray]:
    arrays, at = [], 0
    while at < len(data):
        dtype, rank = np.frombuffer(data, "<i8", 2, at)
        shape = np.frombuffer(data, "<i8", rank, at + 16)
        kind, count = numpy_dtype(DTYPES[dtype - 1]), int(np.prod(shape))
        at += 16 + 8 * int(rank)
        arrays.append(np.frombuffer(data, kind, count, at).reshape(shape))
        at += count * kind.itemsize
    return arrays


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference of two results, as a part of the largest element; of integers, 1 where any differs."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if wanted.dtype.kind in "iub":
        return float((found != wanted).any())
    kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
    a, b = found.astype(kind), wanted.astype(kind)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    return float(np.abs(a - b)[~same].max() / max(np.abs(b[np.isfinite(b)]).max(initial=0), 1e-30))


# The table


def find_models(paths: Sequence[Path]) -> dict[str, Path]:
    """Models by name: the files, and those in folders."""
    files: list[Path] = []
    for path in paths:
        found = [f for end in ("onnx", "tflite") for f in path.rglob(f"*.{end}")] if path.is_dir() else [path]
        files += sorted(found)
    return {(f.parent.name if f.stem == "model" else f.stem): f for f in files}


def inputs_for(path: Path, infos: Sequence[tilewright.TensorInfo]) -> list[np.ndarray]:
    """Those of the first set beside the model, or some that are drawn."""
    stored = path.parent / "test_data_set_0"
    if (stored / "input_0.pb").exists():
        protos = [onnx.TensorProto.FromString((stored / f"input_{k}.pb").read_bytes()) for k in range(len(infos))]
        return [numpy_helper.to_array(proto) for proto in protos]
    rng = np.random.default_rng(0)
    return [random_input(info, rng) for info in infos]


def random_input(info: tilewright.TensorInfo, rng: np.random.Generator) -> np.ndarray:
    """Some elements for an input; unknown dims are 3."""
    shape = [d if isinstance(d, int) else 3 for d in info.shape]
    dtype = numpy_dtype(info.dtype)
    if dtype.kind in "iub":
        low, high = (-128, 128) if dtype == np.int8 else (0, 2)
        return rng.integers(low, high, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def compared(path: Path, machine: Machine) -> docs.Cell:
    """How far the answers of a machine are from this one's."""
    model = tilewright.compile(path, threads=1)
    inputs = inputs_for(path, model.inputs)
    wanted, start = model(*inputs), time.perf_counter()
    found = run_elsewhere(path, inputs, machine)
    whole = all(w.dtype.kind in "iub" for w in wanted)
    worst = max(map(difference, found, wanted), default=0.0)
    return docs.Cell(worst, whole, round(time.perf_counter() - start, 1))


def _cell(path: Path, machine: Machine, answer: Any) -> None:
    try:
        answer.send(compared(path, machine))
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else ""
        answer.send(docs.Cell(float("inf"), False, 0, f"{type(error).__name__}: {text}"[:160]))


def in_a_process_of_its_own(path: Path, machine: Machine) -> docs.Cell:
    """As `compared`: LLVM ends the process where it cannot select an instruction."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_cell, args=(path, machine, theirs))
    process.start()
    theirs.close()
    try:
        found: docs.Cell = ours.recv()
    except EOFError:
        process.join()
        found = docs.Cell(float("inf"), False, 0, f"the process ended with {process.exitcode}")
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--machine", action="append", choices=list(MACHINES), help="one of these alone (repeatable)")
    parser.add_argument("--missing", action="store_true", help="only what the file does not have yet")
    given = parser.parse_args()
    results = docs.load()
    for name, path in find_models(given.models).items():
        for machine in given.machine or MACHINES:
            if (lacks := MACHINES[machine].missing) or (given.missing and results.get(machine, {}).get(name)):
                print(f"{machine}: {name}: " + (f"{lacks} is not installed" if lacks else "is there"))
                continue
            cell = in_a_process_of_its_own(path, MACHINES[machine])
            results.setdefault(machine, {})[name] = cell
            docs.RESULTS.write_text(docs.as_json(results))
            print(f"{machine}: {name}: {docs.shown(cell)} {cell.why}, {cell.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
