"""GroupQueryAttention with a cache: what is new is put where it belongs, and only what is filled is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright
from tilewright.runtime.errors import InputError

RNG = np.random.default_rng(12)
BATCH, HEADS, GROUPS, SIZE, CAPACITY = 2, 4, 2, 8, 12
NAMES = ("q", "k", "v", "keys", "values", "last", "total")


def source(past: str, batch: int | str = 1) -> bytes:
    graph = f"""step (float[{batch}, s, {HEADS * SIZE}] q, float[{batch}, s, {GROUPS * SIZE}] k,
            float[{batch}, s, {GROUPS * SIZE}] v, float[{batch}, {GROUPS}, {past}, {SIZE}] keys,
            float[{batch}, {GROUPS}, {past}, {SIZE}] values, int32[{batch}] last, int32[1] total)
        => (float[a, b, c] y, float[d, e, f, g] keys2, float[h, i, j, l] values2) {{
        y, keys2, values2 = com.microsoft.GroupQueryAttention <num_heads = {HEADS}, kv_num_heads = {GROUPS}>
            (q, k, v, keys, values, last, total)
    }}"""
    header = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>'
    return parser.parse_model(f"{header}\n{graph}").SerializeToString()


def compiled(model: bytes, **options: Any) -> tilewright.Model:
    return tilewright.compile(model, cache=False, threads=1, verify=True, **options)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def steps(batch: int, n: int) -> list[np.ndarray]:
    return [floats(batch, n, heads * SIZE) for heads in (HEADS, GROUPS, GROUPS)]


@pytest.mark.parametrize("batch", [1, BATCH])
def test_caches_that_are_states_grow_in_place(batch: int) -> None:
    """What they give is what a past of just the right length gives."""
    growing = compiled(source("p", batch))
    kept = compiled(source(str(CAPACITY), batch), states={"keys": "keys2", "values": "values2"})
    assert {state.way for state in kept.states} == {"in place"}
    keys, values = (np.zeros((batch, GROUPS, 0, SIZE), np.float32) for _ in range(2))
    filled = 0
    for n in (3, 1, 1, 4, 1, 2):
        new, filled = steps(batch, n), filled + n
        lengths = [np.full(batch, filled - 1, np.int32), np.array([filled], np.int32)]
        wanted, keys, values = growing(*new, keys, values, *lengths)
        (found,) = kept(*new, *lengths)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(kept.state("keys")[:, :, :filled], keys)
        np.testing.assert_array_equal(kept.state("values")[:, :, :filled], values)
    assert filled == CAPACITY
    with pytest.raises(InputError, match=r"positions do not fit|cannot put"):
        kept(*steps(batch, 1), np.full(batch, filled, np.int32), np.array([filled + 1], np.int32))


@pytest.mark.parametrize("batch", [1, BATCH])
def test_what_is_not_filled_is_not_read(batch: int) -> None:
    """A cache of NaN gives what one of zeros gives."""
    model = compiled(source(str(CAPACITY), batch))
    new, lengths = steps(batch, 2), [np.full(batch, 4, np.int32), np.array([5], np.int32)]
    past = [floats(batch, GROUPS, CAPACITY, SIZE) for _ in range(2)]
    wanted = model(*new, *past, *lengths)[0]
    for cache in past:
        cache[:, :, 5:] = np.nan
    np.testing.assert_array_equal(model(*new, *past, *lengths)[0], wanted)


@pytest.mark.parametrize("ways", ["inputs", "states"])
def test_what_is_not_filled_of_shorter_entries_is_not_read(ways: str) -> None:
    """Behind the end of an entry a cache of NaN gives what one of zeros gives, however far others are filled."""
    names = {"keys": "keys2", "values": "values2"}
    model = compiled(source(str(CAPACITY), 3), **({"states": names} if ways == "states" else {}))
    new, lengths = steps(3, 2), [np.array([8, 2, 1], np.int32), np.array([9], np.int32)]
    past = [np.zeros((3, GROUPS, CAPACITY, SIZE), np.float32) for _ in range(2)]
    for cache in past:
        for entry, end in enumerate((7, 1, 0)):
            cache[entry, :, :end] = floats(GROUPS, end, SIZE)
    results = []
    for behind in (0, np.nan, np.inf):
        for cache in past:
            for entry, end in enumerate((7, 1, 0)):
                cache[entry, :, end:] = behind
        if ways == "states":
            for name, cache in zip(names, past, strict=True):
                model.set_state(name, cache)
        results.append(model(*new, *(() if ways == "states" else past), *lengths)[0])
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


def test_a_past_of_unknown_length_is_joined_with_what_is_new() -> None:
    """Nothing is looked up: kernels copy."""
    model = compiled(source("p"))
    kinds = {entry.kernel.partition("_")[2] for entry in model.report().calls}
    assert not any("gather" in kind or "select" in kind for kind in kinds), kinds
    past = [floats(1, GROUPS, 9, SIZE) for _ in range(2)]
    new = steps(1, 2)
    _, keys, _ = model(*new, *past, np.array([6], np.int32), np.array([11], np.int32))
    np.testing.assert_array_equal(keys[:, :, :5], past[0][:, :, :5])
    np.testing.assert_array_equal(keys[0, :, 5:7], new[1].reshape(2, GROUPS, SIZE).transpose(1, 0, 2))
    assert not keys[:, :, 7:].any()
