"""The fuzzer of broadcasting over unknown dims: for a sample of fixed seeds, and for some that are new."""

from __future__ import annotations

import pytest

from tests.fuzz.broadcasts import KINDS, grown
from tests.fuzz.registry import run_seed

FIXED = 12
FRESH = 8


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(FIXED))
def test_all_sizes_are_right_or_refused(seed: int) -> None:
    run_seed("broadcasts", seed)


@pytest.mark.fresh_seeds(FRESH)
def test_fresh_seeds(fresh_seed: int) -> None:
    run_seed("broadcasts", fresh_seed)


@pytest.mark.fresh_seeds(2)
def test_functions_of_torch(fresh_seed: int) -> None:
    pytest.importorskip("torch")
    run_seed("torch_broadcasts", fresh_seed)


def test_every_kind_of_node_is_added() -> None:
    added = {op for seed in range(300) for op, _ in grown(seed).tried}
    assert added >= {"Add", "Max", "Where", "And", "BitwiseAnd", "Pow", "PRelu", "MatMul", "Gemm", "Einsum", "Expand"}
    assert added >= {"Slice", "Transpose", "Unsqueeze", "ReduceSum", "Relu", "Gather", "If"}
    assert len(KINDS) == 19
