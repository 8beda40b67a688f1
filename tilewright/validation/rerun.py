"""A saved program in a fresh process: `python -m tilewright.validation.rerun FOLDER`. Exit code 1 where the compiled
program still gives other results than the interpreter, 0 where not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.compiler import compile_module
from tilewright.ir.core import Module
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.plugins import use_file
from tilewright.runtime import Model
from tilewright.session import Session
from tilewright.validation.closeness import deviation, nudged, steps
from tilewright.validation.reproducers import module_of, unpacked


@dataclass(frozen=True)
class SavedProgram:
    """A graph and its inputs."""

    module: Module
    arrays: tuple[np.ndarray, ...]


def read(folder: Path) -> SavedProgram:
    """What a reproducer's folder holds."""
    arrays = unpacked(folder / "inputs.npz")
    module = module_of((folder / "before.txt").read_text(), arrays)
    return SavedProgram(module, tuple(arrays[f"input:{name}"] for name in module.main.attrs["inputs"]))


def interpreted(program: SavedProgram) -> list[np.ndarray]:
    """Its results by the interpreter."""
    return evaluate_func(program.module.main, program.module, program.arrays)


def compiled(program: SavedProgram, threads: int = 2) -> Sequence[np.ndarray]:
    """Its results as native code, with the options that are so by default."""
    options = Options(threads=threads)
    artifact = compile_module(program.module.copy(), options, Session().machine(options))
    return Model(artifact, threads)(*program.arrays)


def is_wrong(program: SavedProgram) -> str:
    """How the compiled program differs; "" where it does not."""
    wanted = interpreted(program)
    moved: list[np.ndarray] = []

    def moves(number: int) -> np.ndarray:
        if not moved:
            arrays = tuple(nudged(a, k) for k, a in enumerate(program.arrays))
            again = interpreted(SavedProgram(program.module, arrays))
            moved.extend(map(steps, wanted, again))
        return moved[number]

    for number, (x, y) in enumerate(zip(wanted, compiled(program), strict=True)):
        wrong = deviation(x, y, moved=lambda number=number: moves(number), of_floats=True)  # type: ignore[misc]
        if wrong is not None:
            return f"result {number}: {wrong}"
    return ""


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    folder, *plugins = map(Path, arguments)
    for plugin in plugins:
        use_file(plugin)
    wrong = is_wrong(read(folder))
    print(wrong or "the compiled program computes what the interpreter computes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
