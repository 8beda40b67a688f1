"""Packings that say the same of memory in as few pieces as possible."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.sym import sym
from tilewright.loops.storage.packing import Packing, apply_packing

PANELS = Packing(((), (96,)), (1, 0, 2))
CASES = {
    "groups of the depth": (Packing(((32,), (6, 16)), (2, 0, 1, 3, 4)), (64, 200), PANELS),
    "a panel in parts": (Packing(((), (2, 3, 16)), (1, 0, 2, 3, 4)), (64, 200), PANELS),
    "as it is": (Packing(((4, 8), (16,)), (0, 1, 2, 3, 4)), (64, 32), Packing(((), ()), (0, 1))),
    "a padded axis": (Packing(((), (16,)), (0, 1, 2)), (64, 40), Packing(((), (16,)), (0, 1, 2))),
    "pairs": (
        Packing(((16, 2), (6, 16)), (3, 0, 1, 4, 5, 2), fields=4), (64, 200),
        Packing(((2,), (96,)), (2, 0, 3, 1), fields=4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_merged_pieces_leave_elements_where_they_are(name: str) -> None:
    packing, shape, wanted = CASES[name]
    merged = packing.merged([sym(n) for n in shape])
    assert merged == wanted
    array = np.random.default_rng(2).integers(0, 16, shape).astype(np.uint8)
    before, after = (apply_packing(array, p).reshape(-1) for p in (packing, merged))
    np.testing.assert_array_equal(before, after)
