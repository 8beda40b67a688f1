"""A saved program in a fresh process: `python -m tilewright.validation.rerun FOLDER`. Exit code 1 where the compiled
program still gives other results than the interpreter, 0 where not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tilewright.compiler import compile_module
from tilewright.ir.core import Module
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.plugins import use_file
from tilewright.runtime.errors import BeyondBufferError, ExecutionError
from tilewright.session import Session
from tilewright.validation.closeness import deviation, nudged, rounded_otherwise, steps
from tilewright.validation.guarded import HAS_ZONES, between_zones, fault_of
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


def compiled(program: SavedProgram, threads: int = 2, *, guarded: bool = False) -> Sequence[np.ndarray]:
    """Its results as native code, with the options that are so by default. BeyondBufferError where code goes beyond the
    arena, an input or a result, and `guarded` code beyond any of its buffers."""
    options = Options(threads=threads, guarded=guarded)
    artifact = compile_module(program.module.copy(), options, Session().machine(options))
    found = between_zones(artifact, threads)(*program.arrays)
    return found if isinstance(found, tuple | list) else (found,)


class Expected:
    """What a program should give, and by how much that moves where its inputs do by their last bits."""

    def __init__(self, program: SavedProgram) -> None:
        self.program = program
        self.arrays = interpreted(program)
        self._moved: list[np.ndarray] = []

    def _moves(self, number: int) -> np.ndarray:
        if not self._moved:
            arrays = tuple(nudged(a, k) for k, a in enumerate(self.program.arrays))
            self._moved += map(steps, self.arrays, interpreted(SavedProgram(self.program.module, arrays)))
        return self._moved[number]

    def _is_of_one_op(self) -> bool:
        """Whether nothing is rounded between operators, which kernels may keep as it is."""
        return sum(op.name != "constant" for op in self.program.module.main.body.ops[:-1]) == 1

    def why_not(self, found: Sequence[np.ndarray]) -> str:
        """How results differ; "" where they do not."""
        for number, (x, y) in enumerate(zip(self.arrays, found, strict=True)):
            wrong = deviation(x, y, moved=partial(self._moves, number), of_floats=True)
            if wrong is None and self._is_of_one_op():
                wrong = rounded_otherwise(x, y)
            if wrong is not None:
                return f"result {number}: {wrong}"
        return ""


def is_wrong(program: SavedProgram) -> str:
    """How the compiled program differs, or goes beyond its buffers, which code between guard zones tells where there
    are any; "" where it does neither. Code between zones shares no memory among tensors, so that both are tried."""
    expected = Expected(program)
    for guarded in (True, False) if HAS_ZONES else (False,):
        try:
            if wrong := expected.why_not(compiled(program, guarded=guarded)):
                return wrong
        except BeyondBufferError as error:
            return error.what
        except ExecutionError as error:
            if wrong := fault_of(error):
                return wrong
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
