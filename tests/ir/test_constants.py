"""Arrays of a module that are made when they are read."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.constants import ConstantArrays, Deferred
from tilewright.ir.core import Module


class Counted(Deferred):
    """Counts how often it is made."""

    def __init__(self) -> None:
        self.made = 0

    def make(self) -> np.ndarray:
        self.made += 1
        return np.arange(3)


def test_a_deferred_array_is_made_once_when_it_is_read() -> None:
    counted = Counted()
    module = Module()
    name = module.add_constant("w", counted)
    assert name in module.constants and len(module.constants) == 1 and list(module.constants) == ["w"]
    assert counted.made == 0
    for _ in range(2):
        np.testing.assert_array_equal(module.constants[name], [0, 1, 2])
    assert counted.made == 1


def test_who_takes_it_gets_it_unmade() -> None:
    counted = Counted()
    constants = ConstantArrays({"a": np.zeros(2)})
    constants["w"] = counted
    assert constants.take("w") is counted and counted.made == 0
    assert "w" not in constants and isinstance(constants.take("a"), np.ndarray)
    with pytest.raises(KeyError):
        constants.take("w")
