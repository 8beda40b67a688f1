"""Models on a GPU of NVIDIA beside PyTorch (cuBLAS, cuDNN), torch.compile and ONNX Runtime's CUDA provider.

All engines take turns in this process, with inputs and outputs in the memory of the host: copies are part of a call of
each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import tilewright
from bench.turns import shortest_ms
from tilewright.runtime.devices.cuda_driver import device
from tilewright.target.gpu.cuda import CUDA

PRODUCTS = {
    "matmul_4096_f32": ("float32", False),
    "matmul_4096_tf32": ("float32", True),
    "matmul_4096_f16": ("float16", False),
}
"""Names of products of 4096 x 4096 matrices: their dtype, and whether the others may round operands to TF32."""
_SIZE = 4096
_ONNX = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
Run = Callable[[], Sequence[np.ndarray]]


@dataclass
class GpuStanding:
    """What one engine did with a model: the shortest call in ms, and its largest difference from the first engine that
    gave an answer, as a share of the largest result."""

    engine: str
    ms: float = math.inf
    error: float = math.nan
    failure: str = ""


def target_of_device() -> str:
    """The target for the GPU of this machine. DeviceError where there is none."""
    major, minor = device().capability
    known = [a for a in CUDA if int(a.removeprefix("sm_")) <= 10 * major + minor]
    return f"cuda,{known[-1]}" if known else f"cuda,sm_{major}{minor}"


def measure(name: str, folder: Path, rounds: int) -> list[GpuStanding]:
    """Each engine on one model: a product of `PRODUCTS`, or a network of the zoo, whose files are in a folder."""
    made = _product(*PRODUCTS[name]) if name in PRODUCTS else _network(name, folder)
    standings, runs, first = [], {}, None
    for engine, begin in _engines(made).items():
        standing = GpuStanding(engine)
        standings.append(standing)
        try:
            run = begin()
            found = run()
        except Exception as error:  # whatever an engine may raise
            standing.failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
            continue
        first = found if first is None else first
        standing.error = max(_distance(a, b) for a, b in zip(found, first, strict=True))
        runs[engine] = standing, run
    for _ in range(rounds):
        for standing, run in runs.values():
            standing.ms = min(standing.ms, shortest_ms(run))
    return standings


def table(found: Mapping[str, Sequence[GpuStanding]]) -> str:
    """One row for each model and engine; the ratio is that of our time to the best of the others."""
    lines = ["| model | engine | ms | difference | ours / best |", "|---|---|---|---|---|"]
    for name, standings in found.items():
        for s in standings:
            told = s.failure or f"{s.ms:.3f} | {s.error:.1e}"
            ratio = ratio_of(standings) if s.engine == "tilewright" else None
            lines.append(f"| {name} | {s.engine} | {told} | {'' if ratio is None else f'{ratio:.2f}'} |")
    return "\n".join(lines)


def ratio_of(standings: Sequence[GpuStanding]) -> float | None:
    """Our time as a multiple of the best of the others; None where one of them is missing."""
    ours = [s.ms for s in standings if s.engine == "tilewright" and not s.failure]
    others = [s.ms for s in standings if s.engine != "tilewright" and not s.failure]
    return ours[0] / min(others) if ours and others else None


@dataclass(frozen=True)
class _Made:
    """A model as ONNX and for PyTorch, its inputs, and whether others may round operands to TF32."""

    model: bytes | Path
    module: Any
    inputs: Mapping[str, np.ndarray]
    rounds: bool = False


def _product(dtype: str, rounds: bool) -> _Made:
    rng = np.random.default_rng(0)
    data = {name: (rng.standard_normal((_SIZE, _SIZE)) / 64).astype(dtype) for name in ("a", "b")}
    infos = [helper.make_tensor_value_info(n, _ONNX[dtype], [_SIZE, _SIZE]) for n in ("a", "b", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "product", infos[:2], infos[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return _Made(model.SerializeToString(), lambda a, b: a @ b, data, rounds)


def source_of(name: str, folder: Path) -> bytes | Path:
    """The ONNX model of that name."""
    return _product(*PRODUCTS[name]).model if name in PRODUCTS else folder / f"{name}.onnx"


def _network(name: str, folder: Path) -> _Made:
    from bench.zoo.build import MODELS

    made, path = MODELS[name](), folder / f"{name}.onnx"
    names = [i.name for i in onnx.load(path, load_external_data=False).graph.input]
    arrays = [value.numpy() for value in made.inputs.values()]
    return _Made(path, made.module, dict(zip(names, arrays, strict=True)))


def _engines(made: _Made) -> dict[str, Callable[[], Run]]:
    return {
        "PyTorch": lambda: _in_torch(made, lambda module: module),
        "torch.compile": lambda: _in_torch(made, _compiled),
        "ONNX Runtime": lambda: _in_onnxruntime(made),
        "tilewright": lambda: _ours(made),
    }


def _ours(made: _Made) -> Run:
    model = tilewright.compile(made.model, target=target_of_device())
    inputs = [*made.inputs.values()]
    return lambda: model(*inputs)


def _compiled(module: Any) -> Any:
    import torch

    return torch.compile(module, mode="max-autotune")


def _in_torch(made: _Made, prepared: Callable[[Any], Any]) -> Run:
    import torch

    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = made.rounds
    module = made.module.cuda() if isinstance(made.module, torch.nn.Module) else made.module
    function, inputs = prepared(module), [torch.from_numpy(array) for array in made.inputs.values()]

    def run() -> list[np.ndarray]:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = made.rounds
        found = function(*(x.cuda() for x in inputs))
        return [x.cpu().numpy() for x in (found if isinstance(found, tuple | list) else [found])]

    return run


def _in_onnxruntime(made: _Made) -> Run:
    import onnxruntime

    options = {"use_tf32": str(int(made.rounds))}
    providers = [("CUDAExecutionProvider", options)]
    source = made.model if isinstance(made.model, bytes) else str(made.model)
    session = onnxruntime.InferenceSession(source, providers=providers)
    if "CUDAExecutionProvider" not in session.get_providers():
        raise RuntimeError("this build has no CUDA provider")
    return lambda: session.run(None, dict(made.inputs))


def _distance(found: np.ndarray, expected: np.ndarray) -> float:
    largest = np.abs(expected.astype(np.float64)).max(initial=1e-30)
    return float(np.abs(found.astype(np.float64) - expected).max(initial=0) / largest)
