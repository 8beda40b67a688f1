"""What ptxas says of the kernels of models, without a GPU: registers, spills, stack and shared memory."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tilewright
from tilewright.runtime.artifact import Artifact
from tilewright.target.gpu.cuda import Cuda

HEAD = "| model | kernels | launches | most registers | spilled | stack | most shared memory |\n" + "|---" * 7 + "|"


@dataclass(frozen=True)
class CodeOfGpu:
    """The most of what any kernel of a model takes, and how many entry points a call may launch; `spilled` bytes are
    those of all kernels."""

    kernels: int
    launches: int
    registers: int
    spilled: int
    stack: int
    shared: int

    def row(self, name: str) -> str:
        numbers = self.kernels, self.launches, self.registers, self.spilled, self.stack, self.shared
        return f"| {name} | {' | '.join(f'{n:,}' for n in numbers)} |"


def code_of(model: bytes | Path, target: str, ptxas: str, **options: object) -> CodeOfGpu:
    """Compile a model and let ptxas assemble its kernels. CalledProcessError where that refuses one."""
    made = tilewright.compile(model, target=target, cache=False, **options).artifact  # type: ignore[arg-type]
    objects = [json.loads(bytes(part.objects[-1])) for part in _on_gpu(made)]
    texts = [ptx for found in objects for ptx in found["kernels"].values()]
    architecture = next(word for word in target.split(",") if word.startswith("sm_"))
    said = "\n".join(_said(ptx, architecture, ptxas) for ptx in texts)
    calls = [call for found in objects for program in found["programs"].values() for call in program["calls"]]
    return CodeOfGpu(len(texts), sum(len(call["launches"]) for call in calls), *numbers_of(said))


def numbers_of(said: str) -> tuple[int, int, int, int]:
    """Registers, spilled bytes, stack and shared memory, from what ptxas says with -v."""

    def found(pattern: str) -> list[int]:
        return [int(n) for n in re.findall(pattern, said)] or [0]

    registers, stack, shared = (
        max(found(rf"{before}(\d+) {what}"))
        for before, what in (("Used ", "registers"), ("", "bytes stack frame"), ("", "bytes smem"))
    )
    return registers, sum(found(r"(\d+) bytes spill stores")), stack, shared


def _on_gpu(artifact: Artifact) -> Iterator[Artifact]:
    for part in artifact.parts or [artifact]:
        if part.target.kind == Cuda.kind:
            yield part


def _said(ptx: str, architecture: str, ptxas: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [ptxas, "-v", f"-arch={architecture}", str(source), "-o", str(Path(folder, "kernel.cubin"))]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr
