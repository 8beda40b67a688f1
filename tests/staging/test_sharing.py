"""What the parts of a staged program share: code, weights, and the numbers of their kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import model_of
from tilewright.runtime import Artifact
from tilewright.stages import programs

W = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((9, 64)).astype(np.float32)


def model() -> object:
    """Two products with W, between which the host finds the rows that are kept."""
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["a"]),
        h.make_node("ReduceMax", ["a", "axes"], ["most"], keepdims=0),
        h.make_node("Greater", ["most", "limit"], ["keep"]),
        h.make_node("Compress", ["a", "keep"], ["kept"], axis=0),
        h.make_node("MatMul", ["kept", "w"], ["y"]),
    ]
    weights = {"w": W, "limit": np.array(20, np.float32), "axes": np.array([1])}
    return model_of(nodes, [("x", T.FLOAT, ["n", 64])], ["y"], weights)


def expected() -> np.ndarray:
    a = X @ W
    return a[a.max(axis=1) > 20] @ W


def test_parts_share_weights_and_code(tmp_path: Path) -> None:
    compiled = tilewright.compile(model())
    compiled.save(tmp_path / "m.tw")
    for found in (compiled, tilewright.load(tmp_path / "m.tw")):
        np.testing.assert_allclose(found(X)[0], expected(), rtol=1e-4, atol=1e-3)
        whole = found.artifact
        assert len(whole.parts) == 2
        assert W.nbytes <= memoryview(whole.constants).nbytes < 2 * W.nbytes
        assert all(part.image is whole.image and part.constants is whole.constants for part in whole.parts)
        assert len({part.run_symbol for part in whole.parts}) == 2
        assert len({id(part.linked.code._code) for own in found._loaded.parts for part in own}) == 1


def test_a_copy_is_whole() -> None:
    artifact = tilewright.compile(model()).artifact
    again = Artifact.load(artifact.to_bytes())
    assert again.image == artifact.image is not None
    assert again.constants == artifact.constants


def test_kernels_have_numbers_of_their_own(tmp_path: Path) -> None:
    texts = programs(model(), "schedule")
    assert len({name.partition(".")[2] for name in texts}) == len(texts) > 1
    assert {call.kernel for call in tilewright.compile(model()).report().calls} == {
        name.partition(".")[2] for name in texts
    }
    edited = tmp_path / "edited.txt"
    edited.write_text("".join(texts.values()))
    np.testing.assert_allclose(tilewright.compile(model(), schedule=edited)(X)[0], expected(), rtol=1e-4, atol=1e-3)


def test_kernels_with_the_same_code_are_compiled_once() -> None:
    def of_calls(calls: int) -> int:
        nodes = [h.make_node("Relu", ["x"], ["y0"])]
        for k in range(calls):
            nodes.append(h.make_node("NonZero", [f"y{k}"], [f"places{k}"]))
            nodes.append(h.make_node("Cast", [f"places{k}"], [f"z{k}"], to=T.FLOAT))
            nodes.append(h.make_node("Relu", [f"z{k}"], [f"y{k + 1}"]))
        made = tilewright.compile(model_of(nodes, [("x", T.FLOAT, ["n", "m"])], [f"y{calls}"], {}))
        assert len(made.artifact.parts) == calls + 1
        assert made.artifact.image is not None
        names = made.artifact.image.layout.symbols
        return sum(not name.startswith("tw_") and not name.endswith(".task") for name in names)

    assert of_calls(3) < of_calls(2) + 2
