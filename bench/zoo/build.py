"""Writes models of the zoo: NAME.onnx, NAME.pt2 (for PyTorch) and NAME.npz (inputs, and outputs in float64).

    PYTHON -m bench.zoo.build FOLDER [--symbolic] NAME...

Runs in PyTorch's environment, started by `python -m bench zoo`. Weights and inputs are random, of a seed that is the
name's.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from bench.cases import names_of_axes, write_arrays
from bench.zoo import language, operators, vision
from bench.zoo.blueprint import Blueprint

OPSET = 17
SYMBOLIC = "--symbolic"
MODELS: dict[str, Callable[[], Blueprint]] = {**vision.MODELS, **language.MODELS, **operators.MODELS}


def build(name: str, folder: Path, symbolic: bool = False) -> None:
    """Write one model's files; the last of them is the one with the references. With `symbolic` sizes the ONNX file has
    names for the dims of its inputs that are no channels."""
    torch.manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        made = MODELS[name]()
        inputs = tuple(made.inputs.values())
        program = torch.export.export(made.module, inputs, strict=False)
        torch.export.save(program, folder / f"{name}.pt2")
        torch.onnx.export(
            made.module,
            inputs,
            str(folder / f"{name}.onnx"),
            input_names=list(made.inputs),
            output_names=list(made.outputs),
            opset_version=OPSET,
            dynamo=False,
            dynamic_axes={k: names_of_axes(v.numpy()) for k, v in made.inputs.items()} if symbolic else None,
        )
        references = exact(made, inputs)
    write_arrays(folder / f"{name}.npz", {k: v.numpy() for k, v in made.inputs.items()}, references)


def exact(made: Blueprint, inputs: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """The outputs computed in float64; the module is float64 afterwards."""
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    results = made.module.double()(*wide)
    several = results if isinstance(results, tuple | list) else [results]
    return [result.numpy() for result in several]


def main(arguments: Sequence[str]) -> int:
    symbolic = SYMBOLIC in arguments
    folder, *names = (text for text in arguments if text != SYMBOLIC)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        print(f"building {name}", flush=True)
        build(name, Path(folder), symbolic)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
