"""Kernels that differ in numbers share code, which takes these as parameters."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import model_of
from tilewright.codegen.cpu.families import MOST_PARAMETERS, Families, Shared
from tilewright.runtime.storage.image import Image


def nest(outer: int, step: int, inner: int = 16, inner_step: int = 3) -> str:
    """The lines of a loop in another one."""
    return f"""  br label %loop.i.1
loop.i.1:
  %v2 = phi i64 [ 0, %entry ], [ %v3, %done8 ]
  br label %loop.k.4
loop.k.4:
  %v5 = phi i64 [ 0, %loop.i.1 ], [ %v6, %loop.k.4 ]
  %v7 = mul nsw i64 %v2, {step}
  %v8 = mul nsw i64 %v5, {inner_step}
  %v6 = add nuw nsw i64 %v5, 1
  %v9 = icmp slt i64 %v6, {inner}
  br i1 %v9, label %loop.k.4, label %done8
done8:
  %v3 = add nuw nsw i64 %v2, 1
  %v10 = icmp slt i64 %v3, {outer}
  br i1 %v10, label %loop.i.1, label %done11
done11:
  ret void"""


def test_the_first_has_its_numbers_and_the_second_what_others_can_use() -> None:
    families = Families()
    assert families.shared(nest(8, 100), "") == Shared(nest(8, 100))
    second = families.shared(nest(9, 200), "")
    assert second.numbers == (200, 9)
    assert "mul nsw i64 %v2, %number0" in second.body
    assert "icmp slt i64 %v3, %number1" in second.body
    assert families.shared(nest(17, 40), "") == Shared(second.body, (40, 17))
    assert families.shared(nest(8, 100), "") == Shared(nest(8, 100))


def test_numbers_that_are_equal_are_one_parameter() -> None:
    families = Families()
    families.shared(nest(8, 8), "")
    second = families.shared(nest(9, 9), "")
    assert second.numbers == (9,)
    other = families.shared(nest(9, 10), "")
    assert other.numbers == (10, 9)
    assert other.body != second.body


@pytest.mark.parametrize(("inner", "inner_step"), [(17, 3), (16, 4)])
def test_numbers_of_innermost_loops_stay(inner: int, inner_step: int) -> None:
    families = Families()
    families.shared(nest(8, 100), "")
    body = nest(9, 100, inner, inner_step)
    assert families.shared(body, "") == Shared(body)


def test_lengths_for_which_a_loop_may_be_written_out_stay() -> None:
    families = Families()
    families.shared(nest(2, 100), "")
    assert families.shared(nest(3, 100), "") == Shared(nest(3, 100))


def test_modules_that_differ_in_more_than_lines_share_nothing() -> None:
    families = Families()
    families.shared(nest(8, 100), "i64 %d0")
    assert families.shared(nest(9, 100), "") == Shared(nest(9, 100))


def test_there_are_few_parameters() -> None:
    def many(first: int) -> str:
        return "\n".join(f"  %v{k} = mul nsw i64 %w, {first + k * k}" for k in range(MOST_PARAMETERS + 1))

    families = Families()
    families.shared(many(1).replace("%w", "%v99"), "")
    body = many(2).replace("%w", "%v99")
    assert families.shared(body, "") == Shared(body)


CHANNELS = (64, 96, 128, 160, 192, 224)


def dense_block() -> onnx.ModelProto:
    """Convolutions of 1x1, each of which reads the results of all before."""
    rng = np.random.default_rng(0)
    weights = {f"w{c}": (rng.standard_normal((32, c, 1, 1)) / c**0.5).astype(np.float32) for c in CHANNELS}
    nodes, known = [], "x"
    for c, following in itertools.pairwise((*CHANNELS, 0)):
        nodes += [h.make_node("Conv", [known, f"w{c}"], [f"c{c}"]), h.make_node("Relu", [f"c{c}"], [f"r{c}"])]
        if following:
            nodes.append(h.make_node("Concat", [known, f"r{c}"], [f"x{following}"], axis=1))
            known = f"x{following}"
    nodes.append(h.make_node("Concat", [known, f"r{CHANNELS[-1]}"], ["z"], axis=1))
    return model_of(nodes, [("x", T.FLOAT, [1, 64, 14, 14])], ["z"], weights)


def image_of(model: tilewright.Model) -> Image:
    assert model.artifact.image is not None
    return model.artifact.image


def test_layers_of_a_network_share_code() -> None:
    model = tilewright.compile(dense_block(), threads=1, cache=False, verify=True, target="zen4")
    kernels = model.report().distinct_kernels
    assert kernels >= 2 * len(CHANNELS)
    made = [name for name in image_of(model).layout.symbols if name.endswith(".task")]
    assert len(made) <= kernels - (len(CHANNELS) - 2)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_shared_code_computes_what_each_layer_is(threads: int, numerics: str) -> None:
    source = dense_block()
    x = np.random.default_rng(1).standard_normal((1, 64, 14, 14)).astype(np.float32)
    (wanted,) = ort.InferenceSession(source.SerializeToString()).run(None, {"x": x})
    (found,) = tilewright.compile(source, threads=threads, cache=False, numerics=numerics)(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_code_does_not_depend_on_the_order_of_threads() -> None:
    first, *others = [image_of(tilewright.compile(dense_block(), cache=False, compile_threads=n)) for n in (1, 2, 2)]
    assert all(other == first for other in others)
