"""The forms that mask_index of ONNX Runtime's Attention has, beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import info, model_of

RNG = np.random.default_rng(4)
BATCH, STEPS, WIDTH, HEADS = 2, 4, 8, 2


def raw(*shape: int) -> np.ndarray:
    mask = (RNG.random(shape) > 0.3).astype(np.int32)
    mask[..., 0] = 1
    return mask


MASKS = {
    "ends": lambda total: np.array([3, total]),
    "no keys": lambda total: np.array([0, 2]),
    "ends and starts": lambda total: np.array([3, total, 1, 0]),
    "a packed batch": lambda total: np.array([3, 4, 0, 3, 7, 0, 3, 7]),
    "keys": lambda total: raw(BATCH, total),
    "one number": lambda total: np.array([[1]]),
    "one number for each entry": lambda total: np.array([[1], [0]]),
    "keys of queries": lambda total: raw(BATCH, STEPS, total),
}


def attention(mask: np.ndarray, dims: list[int | str], past: int, symbolic: bool):  # type: ignore[no-untyped-def]
    weights = {name: RNG.standard_normal(size).astype("f") for name, size in (("w", (WIDTH, 24)), ("b", 24))}
    names, batch = ["x", "w", "b", "m"], "b" if symbolic else BATCH
    inputs = [
        info("x", [batch, "s" if symbolic else STEPS, WIDTH]), info("m", dims, TensorProto.INT32),
    ]  # fmt: skip
    if past:
        names = [*names, "p"]
        inputs.append(info("p", [2, batch, HEADS, past, WIDTH // HEADS]))
    node = helper.make_node(
        "Attention", names, ["y", "z"] if past else ["y"], domain="com.microsoft", num_heads=HEADS
    )
    return model_of([node], inputs, [info("y", [None, None, WIDTH])], weights, domains=["com.microsoft"], opset=14)


@pytest.mark.sweep
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_forms_of_masks(kind: str, symbolic: bool, past: int) -> None:
    mask = MASKS[kind](STEPS + past).astype(np.int32)
    dims: list[int | str] = list(mask.shape)
    if symbolic and mask.ndim == 1:
        dims = ["k"]
    model = attention(mask, dims, past, symbolic)
    feeds = {"x": RNG.standard_normal((BATCH, STEPS, WIDTH)).astype("f"), "m": mask}
    if past:
        feeds["p"] = RNG.standard_normal((2, BATCH, HEADS, past, WIDTH // HEADS)).astype("f")
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (found,) = tilewright.compile(model, cache=False, threads=1)(**feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_list_of_another_length() -> None:
    model = attention(np.zeros(5, np.int32), ["k"], 0, True)
    compiled = tilewright.compile(model, cache=False, threads=1)
    with pytest.raises(tilewright.InputError, match=r"is a list of B, 2\*B or 3\*B \+ 2 numbers"):
        compiled(np.ones((BATCH, STEPS, WIDTH), "f"), np.ones(5, np.int32))
