"""One-node models of ONNX Runtime's operators, as machine code, by the interpreter of graphs, and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import tilewright
from tests.frontends.helpers import info, model_of, run
from tests.saturating import unsaturated
from tilewright.frontends.onnx.load import load_onnx

onnxruntime.set_default_logger_severity(4)
RNG = np.random.default_rng(17)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def f16(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float16)


def ints(low: int, high: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def u8(*shape: int) -> np.ndarray:
    return ints(0, 256, *shape, dtype=np.uint8)


def i8(*shape: int) -> np.ndarray:
    return unsaturated(ints(-128, 128, *shape, dtype=np.int8))


SINGLE = 1e-5
"""Of the greatest: how far results of the interpreter may be off, which adds up single numbers one after another."""


@dataclass(frozen=True)
class Case:
    """A node: its operands (None for those left out), which of them are known, and how far results may be off, as a
    share of the greatest."""

    op: str
    arrays: Sequence[np.ndarray | np.generic | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    known: Sequence[int] = ()
    outputs: Sequence[bool] = (True,)
    error: float = 2e-6
    domain: str = "com.microsoft"

    def __str__(self) -> str:
        return "-".join([self.op, *(f"{k}={v}" for k, v in self.attrs.items())])

    def model(self, symbolic: bool = False) -> onnx.ModelProto:
        """Where it is `symbolic`, small dims of inputs, as batches and lengths are, have names: one for each size."""
        names = [f"x{k}" if a is not None else "" for k, a in enumerate(self.arrays)]
        inputs, constants = [], {}
        for k, (name, given) in enumerate(zip(names, self.arrays, strict=True)):
            if given is None:
                continue
            array = np.asarray(given)
            if k in self.known:
                constants[name] = array
                continue
            shape = [f"n{d}" if 1 < d < 8 and symbolic else d for d in array.shape]
            inputs.append(info(name, shape, helper.np_dtype_to_tensor_dtype(array.dtype)))
        results = [f"y{k}" if wanted else "" for k, wanted in enumerate(self.outputs)]
        node = helper.make_node(self.op, names, results, domain=self.domain, **self.attrs)
        declared = [helper.make_value_info(r, onnx.TypeProto()) for r in results if r]
        return model_of([node], inputs, declared, constants, opset=17, domains=sorted({"com.microsoft", self.domain}))

    def redrawn(self, seed: int) -> Case:
        """The case with other floats of the same sizes, and other elements of tensors of bytes; other integers, which
        are positions, lengths and axes, stay."""
        rng = np.random.default_rng([seed, crc32(str(self).encode())])

        def other(given: np.ndarray | np.generic | None) -> np.ndarray | np.generic | None:
            if given is None or given.size < 2:
                return given
            array = np.asarray(given)
            if array.dtype.kind == "f":
                mixed = rng.permuted(array.reshape(-1)).reshape(array.shape)
                return np.asarray(mixed * rng.uniform(0.8, 1), array.dtype)
            if array.itemsize == 1 and array.size >= 16:
                return rng.integers(array.min(), int(array.max()) + 1, array.shape, array.dtype)
            return array

        return replace(self, arrays=[other(a) for a in self.arrays])

    @property
    def given(self) -> list[np.ndarray]:
        """The operands that are inputs."""
        return [np.asarray(a) for k, a in enumerate(self.arrays) if a is not None and k not in self.known]


def by_onnxruntime(model: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime's CPU gives, without optimisations of the graph."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    results: list[np.ndarray] = session.run(
        None, {f"{i.name}": a for i, a in zip(session.get_inputs(), arrays, strict=True)}
    )
    return results


def compiled(model: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return list(tilewright.compile(model.SerializeToString(), threads=1, cache=False)(*arrays))


def agree(
    case: Case,
    symbolic: bool = False,
    reference: Callable[..., Sequence[np.ndarray]] | None = None,
    *,
    native: bool = True,
) -> None:
    """The compiled node (else: the graph that it is) gives what ONNX Runtime gives, or `reference` of the operands,
    where that has no code."""
    model = case.model(symbolic)
    wanted = by_onnxruntime(model, case.given) if reference is None else reference(*case.arrays)
    got = compiled(model, case.given) if native else run(load_onnx(model), *case.given)
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if ours.dtype.kind in "iub":
            off = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
            assert off.size == 0 or off.max() <= (1 if case.error > 0 else 0), f"off by {off.max()}"
            assert np.count_nonzero(off) <= 1 + off.size // 50  # halves that rounding takes the other way
            continue
        scale = np.abs(theirs[np.isfinite(theirs)]).max(initial=1e-30).astype(np.float64)
        error = max(case.error, 1e-3 if ours.dtype == np.float16 else 0, 0 if native else SINGLE)
        np.testing.assert_allclose(
            ours.astype(np.float64), theirs.astype(np.float64), rtol=0, atol=error * scale
        )
