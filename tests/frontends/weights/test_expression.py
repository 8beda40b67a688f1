"""Stored weights in a graph: what the expression means is what the decoder gives, and kernels compute it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.frontends.weights.oracle import bits, random_tensor
from tests.graph.programs import program
from tilewright.compiler import compile_module
from tilewright.frontends.weights.expression import stored_value
from tilewright.frontends.weights.kinds import KINDS
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module
from tilewright.ops.contract import matmul
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target


def evaluated(tensor: StoredTensor) -> np.ndarray:
    module = program(lambda: stored_value(tensor))
    with np.errstate(all="ignore"):
        return evaluate_func(module.main, module, [])[0]


def constants(module: Module) -> set[str]:
    return {dt.from_numpy(array.dtype).name for array in module.constants.values()}


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("name", KINDS)
def test_the_expression_gives_what_the_decoder_gives_bit_by_bit(name: str, fresh_seed: int) -> None:
    tensor = random_tensor(KINDS[name], fresh_seed, rows=6)
    if name == "BOOL":
        tensor = StoredTensor("t", tensor.shape, tensor.kind, tensor.data & 1)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(bits(evaluated(tensor)), bits(tensor.decoded()))


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [("F32", {"f32"}), ("BF16", {"bf16"}), ("Q4_0", {"i4", "f16"}), ("Q4_1", {"u4", "f16"}), ("Q5_0", {"i8", "f16"}),
     ("Q5_1", {"u8", "f16"}), ("Q8_0", {"i8", "f16"}), ("Q2_K", {"u4", "f16"}), ("Q3_K", {"i4", "f16", "i8"}),
     ("Q4_K", {"u4", "f16", "u8"}), ("Q5_K", {"u8", "f16"}), ("Q6_K", {"i8", "f16"}),
     ("IQ4_NL", {"i8", "f16"}), ("IQ4_XS", {"i8", "f16"}), ("MXFP4", {"i8", "bf16"})],
)  # fmt: skip
def test_constants_are_narrow(name: str, dtypes: set[str]) -> None:
    assert constants(program(lambda: stored_value(random_tensor(KINDS[name], 1)))) == dtypes


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (0, 3), (3, 0)])
def test_any_rank(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape).astype(ml_dtypes.bfloat16)
    tensor = StoredTensor("t", shape, KINDS["BF16"], np.frombuffer(values.tobytes(), np.uint8))
    np.testing.assert_array_equal(evaluated(tensor), values.astype(np.float32))
    blocks = StoredTensor("t", (*shape, 64), KINDS["Q8_0"], np.zeros(int(np.prod(shape)) * 2 * 34, np.uint8))
    assert evaluated(blocks).shape == blocks.decoded().shape == (*shape, 64)


def tame(tensor: StoredTensor, rng: np.random.Generator) -> StoredTensor:
    """The same codes with scales as weights have them."""
    blocks = tensor.data.reshape(-1, tensor.kind.bytes).copy()
    layout = tensor.kind.layout
    for number in (layout.scale, layout.minimum):  # type: ignore[union-attr]
        if number is not None and number.dtype is dt.f8e8m0:
            blocks[:, number.at] = rng.integers(118, 124, len(blocks))
        elif number is not None:
            number.write(rng.uniform(-0.01, 0.01, (len(blocks), 1)).astype(np.float32), blocks)
    return StoredTensor(tensor.name, tensor.shape, tensor.kind, blocks.reshape(-1))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.elements > 1])
def test_a_product_with_stored_weights(name: str, rows: int) -> None:
    rng = np.random.default_rng(11)
    tensor = tame(random_tensor(KINDS[name], 11, rows=96, blocks=2 if KINDS[name].elements > 32 else 8), rng)
    weights = tensor.decoded()
    module = program(lambda x: matmul(x, stored_value(tensor), transpose_b=True), (rows, tensor.columns))
    x = rng.standard_normal((rows, tensor.columns)).astype(np.float32)
    with Model(compile_module(module, Options(threads=1), parse_target("host"))) as model:
        (y,) = model(x)
    exact = x.astype(np.float64) @ weights.T.astype(np.float64)
    scale = np.abs(x) @ np.abs(weights.T)
    assert (np.abs(y - exact) <= 1e-5 * scale + 1e-6).all()
