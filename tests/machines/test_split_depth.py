"""Products of few results and a large depth, in parts of the depth that threads of a GPU sum apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser

import tilewright
from tests.machines.fake_cuda import FakeCuda
from tests.machines.test_cuda import TARGET, driver, fake
from tests.machines.test_webgpu import gpu
from tilewright import Session
from tilewright.cost.machine.split_depth import parts_of_depth
from tilewright.options import Options
from tilewright.stages import programs
from tilewright.target.gpu.cuda import CUDA
from tilewright.target.gpu.webgpu import WEBGPU

__all__ = ["driver", "fake", "gpu"]

CASES = {"remainders": (3, 992, 33, "MatMul(x, w)"), "transposed": (1, 1024, 10, "Gemm<transB=1>(x, w)")}


def source(case: str) -> bytes:
    m, k, n, product = CASES[case]
    shape = (n, k) if "trans" in product else (k, n)
    made = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g (float[{m},{k}] x, float[{n}] b) => (float[{m},{n}] y) '
        f"<float[{shape[0]},{shape[1]}] w> {{ p = {product} q = Add(p, b) y = Relu(q) }}"
    )
    weights = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    del made.graph.initializer[:]
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return made.SerializeToString()


def check(case: str, target: str, folder: Path) -> None:
    m, k, n, _ = CASES[case]
    session, rng = Session(folder=folder), np.random.default_rng(7)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (n,))]
    (found,) = tilewright.compile(source(case), target=target, session=session)(*given)
    (expected,) = tilewright.compile(source(case), session=session)(*given)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def sums(case: str, target: str, folder: Path, **options: str) -> list[str]:
    made = programs(source(case), "loops", options=Options(target=target, **options), session=Session(folder=folder))
    assert not any("barrier layer" in text for text in made.values()), "the work on a sum is in its grid"
    return [name for name in made if "reduce_sum" in name]


@pytest.mark.parametrize("case", ["remainders", pytest.param("transposed", marks=pytest.mark.sweep)])
def test_parts_are_summed_on_cuda(case: str, fake: FakeCuda, tmp_path: Path) -> None:
    options = Options(target=TARGET)
    fake.kernels(programs(source(case), "llvm", options=options, session=Session(folder=tmp_path)))
    check(case, TARGET, tmp_path)
    assert fake.fault == "" and sums(case, TARGET, tmp_path) and not sums(case, TARGET, tmp_path, numerics="strict")


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
def test_parts_are_summed_on_webgpu(case: str, gpu: None, tmp_path: Path) -> None:
    assert sums(case, "webgpu", tmp_path)
    check(case, "webgpu", tmp_path)


def test_a_product_is_cut_where_that_is_faster() -> None:
    for machine in (WEBGPU, CUDA["sm_90"]):
        assert machine.link is not None
        for rows, depth, columns in ((1, 64, 1000), (4096, 4096, 4096), (512, 1024, 1024), (1, 1023, 10), (1, 1, 1)):
            read = 4 * depth * (rows + columns)
            assert parts_of_depth(rows * columns, depth, read, machine.link) == 1
        parts = parts_of_depth(10, 4096, 4 * 4096 * 11, machine.link)
        assert parts > 1 and 4096 % parts == 0
