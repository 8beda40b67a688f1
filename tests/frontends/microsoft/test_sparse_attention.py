"""Attention to the blocks of keys that a layout lists, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import tilewright
from tests.frontends.microsoft.against import RNG, Case, agree, f32

LAYOUTS, BLOCKS, BLOCK = 2, 4, 16


def listed() -> tuple[np.ndarray, np.ndarray]:
    """Random layouts as sparse rows: the ends of rows, and columns, with -1 behind the last."""
    mask = np.tril(RNG.random((LAYOUTS, BLOCKS, BLOCKS)) < 0.6) | np.eye(BLOCKS, dtype=bool)
    ends = np.concatenate([np.zeros((LAYOUTS, 1)), mask.sum(2).cumsum(1)], 1).astype(np.int32)
    columns = np.full((LAYOUTS, ends.max()), -1, np.int32)
    for k, layout in enumerate(mask):
        columns[k, : ends[k, -1]] = np.nonzero(layout)[1]
    return ends, columns


def sparse(steps: int, filled: list[int], *, packed: bool = False, dtype: Any = np.float32, **attrs: Any) -> Case:
    heads, groups, size, batch = 4, 2, 16, len(filled)
    widths = [(heads + 2 * groups) * size] if packed else [heads * size, groups * size, groups * size]
    new = [f32(batch, steps, w).astype(dtype) for w in widths] + [None] * (2 if packed else 0)
    past = [f32(batch, groups, BLOCKS * BLOCK, size).astype(dtype) for _ in range(2)]
    tables = [f32(80, size // 2).astype(dtype) for _ in range(2)] if attrs.get("do_rotary") else []
    lengths = [np.array([max(filled)], np.int32), np.array(filled, np.int32)]
    attrs = {"num_heads": heads, "kv_num_heads": groups, "sparse_block_size": BLOCK, **attrs}
    return Case("SparseAttention", [*new, *past, *listed(), *lengths, *tables], attrs, (), (True, True, True), 5e-6)


def by_onnxruntime(case: Case) -> list[np.ndarray]:
    """What ONNX Runtime gives, which wants one buffer for past and present; each entry of a batch alone, as it takes
    no entries of different lengths."""
    parts = []
    for entry in range(case.arrays[8].shape[0]):
        own = [None if a is None else a[entry : entry + 1] for a in case.arrays[:5]]
        length = case.arrays[8][entry : entry + 1]
        one = replace(case, arrays=[*own, *case.arrays[5:7], length, length, *case.arrays[9:]])
        session = onnxruntime.InferenceSession(one.model().SerializeToString(), providers=["CPUExecutionProvider"])
        binding, arrays = session.io_binding(), [a.copy() for a in one.given]
        names = [i.name for i in session.get_inputs()]
        values = dict(zip(names, map(onnxruntime.OrtValue.ortvalue_from_numpy, arrays), strict=True))
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("y0")
        binding.bind_ortvalue_output("y1", values["x3"])
        binding.bind_ortvalue_output("y2", values["x4"])
        session.run_with_iobinding(binding)
        parts.append([v.numpy().copy() for v in binding.get_outputs()])
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


@pytest.mark.sweep
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize(
    "case",
    [
        sparse(40, [40, 40]),
        sparse(1, [40, 25]),
        sparse(3, [64]),
        sparse(1, [33, 64, 16], packed=True, do_rotary=1),
        sparse(20, [20, 20], do_rotary=1, rotary_interleaved=1, scale=0.3),
    ],
    ids=lambda case: f"{case.arrays[0].shape[1]}",
)
@pytest.mark.parametrize("known", [(), (5, 6)], ids=["given", "known"])
def test_it_means_what_onnxruntime_does(case: Case, symbolic: bool, known: tuple[int, ...]) -> None:
    wanted = by_onnxruntime(case)
    agree(replace(case, known=known), symbolic, reference=lambda *_: wanted)


def test_what_is_not_filled_is_not_read() -> None:
    """Behind the end of an entry a cache of NaN gives what one of zeros gives."""
    case = sparse(2, [33, 9])
    results = []
    for behind in (0, np.nan):
        for cache in case.arrays[3:5]:
            assert cache is not None
            for entry, end in enumerate((33, 9)):
                cache[entry, :, end:] = behind
        results.append(tilewright.compile(case.model(), cache=False)(*case.given)[0])
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[1], results[0])


def test_layouts_must_fit_the_cache() -> None:
    case = sparse(1, [20])
    with pytest.raises(tilewright.TilewrightError, match="4 blocks of 32 keys for a cache"):
        tilewright.compile(replace(case, attrs={**case.attrs, "sparse_block_size": 32}).model().SerializeToString())
