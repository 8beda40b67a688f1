"""Exported models on other machines: `python -m tests.exporters.library.emulated TARGET MODEL.onnx...` runs each under
an emulator (qemu-user) and compares with this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tilewright
from tilewright.exporters.library.tables import DTYPES
from tilewright.runtime.values.dtypes import numpy_dtype

RUNNER = Path(__file__).with_name("runner.c")


@dataclass(frozen=True)
class Emulator:
    """What runs programs for a target, and zig's name of that."""

    command: tuple[str, ...]
    zig: str


EMULATORS = {
    "aarch64": Emulator(("qemu-aarch64",), "aarch64-linux-musl"),
    "riscv64": Emulator(
        ("qemu-riscv64", "-cpu", "rv64,v=true,vlen=128,zba=true,zbb=true,zbs=true"), "riscv64-linux-musl"
    ),
    "s390x": Emulator(("qemu-s390x", "-cpu", "max"), "s390x-linux-musl"),
    "x86_64": Emulator((), "x86_64-linux-musl"),
}
"""By architecture."""


def has_emulator(arch: str, flags: Sequence[str] = ()) -> bool:
    """Whether programs of an architecture can be linked and run here, with these words behind the command."""
    command = [*EMULATORS[arch].command, *flags]
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return False
    return not command or shutil.which(command[0]) is not None


def run_elsewhere(
    model: object, inputs: Sequence[np.ndarray], arch: str, target: str, *, flags: Sequence[str] = (), threads: int = 1,
    limit: float = 600, **options: object,
) -> list[np.ndarray]:  # fmt: skip
    """What a model that is exported for a target gives in the emulator, which has these `flags`."""
    emulator = EMULATORS[arch]
    compiler = (sys.executable, "-m", "ziglang", "cc", "-target", emulator.zig)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tilewright.export(
            model, folder / "net.a", name="net", target=target, cc=" ".join(compiler), **options,  # type: ignore[arg-type]
        )  # fmt: skip
        build = [*compiler, "-O1", "-static", "-DMODEL=net", "-include", "net.h", str(RUNNER), "net.a", "-o", "net"]
        subprocess.run([*build, "-lm"], cwd=folder, check=True, capture_output=True)
        (folder / "inputs").write_bytes(b"".join(map(_packed, inputs)))
        command = [*emulator.command, *flags, "./net", "inputs", "outputs", str(threads)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode:
            raise RuntimeError(f"{arch}: exit code {done.returncode}: {done.stderr.strip()}")
        return _unpacked((folder / "outputs").read_bytes())


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
    """The largest difference of two results, as a part of the largest element."""
    if wanted.dtype.kind not in "fc":
        return float((found != wanted).any())
    top = np.abs(wanted).max(initial=1e-30)
    return float(np.abs(found.astype(np.float64) - wanted).max(initial=0) / top)


def main(target: str, models: Sequence[str]) -> None:
    arch = tilewright.target.named.parse_target(target).arch  # type: ignore[attr-defined]
    for path in models:
        model = tilewright.compile(path, threads=1)
        rng = np.random.default_rng(0)
        inputs = [random_input(info, rng) for info in model.inputs]
        start = time.perf_counter()
        try:
            found = run_elsewhere(Path(path), inputs, arch, target)
            worst = max(map(difference, found, model(*inputs)))
            seconds = time.perf_counter() - start
            print(f"{Path(path).name}: {worst:.1e} of the largest element, {seconds:.0f} s", flush=True)
        except Exception as error:
            print(f"{Path(path).name}: {type(error).__name__}: {str(error)[:500]}", flush=True)


def random_input(info: tilewright.TensorInfo, rng: np.random.Generator) -> np.ndarray:
    """Some elements for an input; unknown dims are 3."""
    shape = [d if isinstance(d, int) else 3 for d in info.shape]
    dtype = numpy_dtype(info.dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


if __name__ == "__main__":
    import tilewright.target.named

    main(sys.argv[1], sys.argv[2:])
