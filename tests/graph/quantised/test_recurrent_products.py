"""States of quantised LSTMs and their weights get the dtypes that a machine multiplies in groups; results stay."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import program
from tilewright.graph.pipeline import default_passes
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Op
from tilewright.ir.types import tensor
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.recurrent import lstm_quantized
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.target.named import parse_target

BATCH = 2


def network(weights: np.ndarray) -> Module:
    """One step with constant weights [4, hidden, hidden] in i16, as front ends write it."""
    hidden = weights.shape[2]
    totals = weights.sum(axis=2, dtype=np.int32).reshape(-1)
    scale = np.full(4 * hidden, 1 / 2000, np.float32)
    known = (weights.astype(np.int16), scale, totals, np.zeros(3 * hidden, np.float32))
    shapes = [(1, BATCH, 4 * hidden), (BATCH, hidden), (BATCH, hidden)]
    return program(
        lambda gates, h, c: lstm_quantized(gates, *map(constant, known), h, c)[0],
        *[tensor(dt.f32, shape) for shape in shapes],
    )


def lowered(weights: np.ndarray, machine: str, seed: int) -> tuple[Op, PassContext]:
    """The operator after the passes for a machine; its results are those before them."""
    module = network(weights)
    rng = np.random.default_rng(seed)
    arrays = [
        rng.standard_normal([d.value for d in v.tensor.shape]).astype(np.float32) for v in module.main.args
    ]
    (wanted,) = evaluate_func(module.main, module, arrays)
    target = parse_target(machine)
    ctx = PassContext(target, Options())
    run_passes(module, default_passes(Options()), ctx)
    (found,) = evaluate_func(module.main, module, arrays)
    np.testing.assert_array_equal(found, wanted)
    (op,) = [o for o in module.main.body.walk() if o.name == "lstm_quantized"]
    return op, ctx


def integers(low: int, high: int, hidden: int, seed: int) -> np.ndarray:
    """Weights between both limits, which occur."""
    found = np.random.default_rng(seed).integers(low, high + 1, (4, hidden, hidden))
    found.reshape(-1)[:2] = low, high
    return found


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize(
    ("machine", "state"),
    [
        ("zen3", dt.i16),
        ("x86-64-v4", dt.i16),
        ("cascadelake", dt.u8),
        ("neoverse-n1", dt.i8),
        ("aarch64-neon", dt.i16),
    ],
)
def test_weights_of_a_byte_stay_bytes(machine, state, fresh_seed):
    op, _ = lowered(integers(-128, 127, 16, fresh_seed), machine, fresh_seed)
    assert op.attrs["state"] is state
    assert op.operands[1].tensor.dtype is (dt.i16 if machine == "aarch64-neon" else dt.i8)


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("limits", [(-255, 0), (0, 255), (-131, 124)], ids=str)
@pytest.mark.parametrize("machine", ["zen3", "cascadelake", "neoverse-n1"])
def test_weights_of_nine_bits_take_two_bytes(machine, limits, fresh_seed):
    op, ctx = lowered(integers(*limits, 16, fresh_seed), machine, fresh_seed)
    assert op.operands[1].tensor.dtype is dt.i16 and op.attrs["state"] is dt.i16
    refused = any("multiplies no groups of such integers" in str(r) for r in ctx.remarks)
    assert refused == (machine == "neoverse-n1")


def test_why_states_are_not_multiplied_in_groups_is_said():
    _, ctx = lowered(integers(-128, 127, 9, 0), "zen3", 0)
    assert any("9 units are no multiple of the groups of 2" in str(r) for r in ctx.remarks)
