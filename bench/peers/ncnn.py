"""ncnn in float32, from what pnnx makes of the model. It has no batch dimension, and ignores one of 1."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bench.conversion import call, converted
from bench.peers import Peer, openmp_variables

PEER = Peer("ncnn", "ncnn", ("ncnn", "pnnx", "numpy"), openmp_variables)
REDUCED = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage")
SHORT = {"float32": "f32", "int64": "i64", "int32": "i32", "bool": "bool"}


class Adapter:
    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import ncnn

        suffixes = (".ncnn.param", ".ncnn.bin")
        parameters, weights = converted(model, self._cache, suffixes, partial(_convert, inputs))
        self._net = ncnn.Net()
        self._net.opt.num_threads = threads
        for option in REDUCED:
            setattr(self._net.opt, option, False)
        if self._net.load_param(str(parameters)) or self._net.load_model(str(weights)):
            raise RuntimeError(f"ncnn cannot read {parameters.name}")
        self._arrays = [_without_batch(array) for array in inputs.values()]  # a Mat does not own its memory
        mats = [ncnn.Mat(array) for array in self._arrays]
        self._inputs = dict(zip(self._net.input_names(), mats, strict=True))
        self._names = list(self._net.output_names())

    def run(self) -> None:
        with self._net.create_extractor() as extractor:
            for name, mat in self._inputs.items():
                extractor.input(name, mat)
            self._results = [extractor.extract(name) for name in self._names]

    def outputs(self) -> Sequence[np.ndarray]:
        failed = [n for n, (code, _) in zip(self._names, self._results, strict=True) if code]
        if failed:
            raise RuntimeError(f"ncnn cannot compute {', '.join(failed)}")
        return [np.array(mat) for _, mat in self._results]

    def version(self) -> str:
        import ncnn

        return str(ncnn.__version__)


def _convert(inputs: Mapping[str, np.ndarray], model: Path, folder: Path) -> None:
    """pnnx writes its results beside the model that it reads."""
    shutil.copy(model, folder / "model.onnx")
    shapes = ",".join(f"[{','.join(map(str, a.shape))}]{SHORT[a.dtype.name]}" for a in inputs.values())
    tool = Path(sysconfig.get_path("purelib")) / "pnnx" / "pnnx"
    call([tool, "model.onnx", f"inputshape={shapes}", "fp16=0"], folder, folder / "model.ncnn.bin")


def _without_batch(array: np.ndarray) -> np.ndarray:
    inner = array[0] if array.ndim > 1 and array.shape[0] == 1 else array
    return np.ascontiguousarray(inner, np.int32 if inner.dtype == np.int64 else None)
