"""States in memory apart from the model: one model serves several streams, and copies nothing."""

from __future__ import annotations

import copy
import gc
from typing import Any

import numpy as np
import pytest

from tests.runtime.test_states import CASES, SUMS, SWAPPED, compiled, source
from tilewright.runtime.errors import OptionError


@pytest.mark.parametrize("graph, states, inputs, way", CASES.values(), ids=CASES.keys())
def test_streams_take_turns_in_one_model(graph: str, states: dict[str, str], inputs: Any, way: str) -> None:
    """Each finds what it left, in whatever way states are kept."""
    model = compiled(source(graph), states=states)
    alone = [copy.copy(model) for _ in range(3)]
    names = list(states)
    memories = [None, model.new_state_memory(names), model.new_state_memory(names)]
    for k in range(1, 9):
        stream = (k * k) % 3
        model.use_state_memory(names, memories[stream])
        given = inputs(k)
        for found, wanted in zip(model(*given), alone[stream](*given), strict=True):
            np.testing.assert_array_equal(found, wanted)
        for name in names:
            np.testing.assert_array_equal(model.state(name), alone[stream].state(name))
        if (memory := memories[stream]) is not None:
            for number, name in enumerate(names):
                np.testing.assert_array_equal(memory.arrays[number], alone[stream].state(name))


def test_it_holds_at_first_what_states_hold_before_the_first_call() -> None:
    model = compiled(source(SUMS), states={"h": "hn"})
    model.set_state("h", np.ones((1, 8), np.float32))
    memory = model.new_state_memory(["h"])
    assert not memory.arrays[0].any()
    model.use_state_memory(["h"], memory)
    assert not model.state("h").any()
    model.set_state("h", np.full((1, 8), 2, np.float32))
    model.use_state_memory(["h"], None)
    assert (model.state("h") == 1).all() and (memory.arrays[0] == 2).all()


def test_a_copy_holds_what_was_used_and_goes_its_own_way() -> None:
    model = compiled(source(SWAPPED), states={"h": "hn"})
    memory = model.new_state_memory(["h"])
    model.use_state_memory(["h"], memory)
    model.set_state("h", np.ones((1, 40), np.float32))
    other = copy.copy(model)
    other(np.ones((1, 40), np.float32))
    assert (memory.arrays[0] == 1).all() and (model.state("h") == 1).all()
    assert (other.state("h") == 2).all()


def test_memory_of_other_states_is_refused() -> None:
    model, other = compiled(source(SUMS), states={"h": "hn"}), compiled(source(SWAPPED), states={"h": "hn"})
    with pytest.raises(OptionError, match=r"the memory is for h: float32\[1, 40\].*, and not for h: float32\[1, 8\]"):
        model.use_state_memory(["h"], other.new_state_memory(["h"]))
    with pytest.raises(OptionError, match="the model keeps no state 'x'"):
        model.new_state_memory(["x"])
    with pytest.raises(OptionError, match="the model keeps no state 'x'"):
        model.use_state_memory(["x"], None)


@pytest.mark.usefixtures("own_garbage")
def test_memory_is_in_one_place_at_a_time() -> None:
    """Calls of two models, or states of one, would write to the same places."""
    model = compiled(source(SUMS), states={"h": "hn"})
    other = copy.copy(model)
    one, two = (model.new_state_memory(["h"]) for _ in range(2))
    model.use_state_memory(["h"], one)
    model.use_state_memory(["h"], one)
    with pytest.raises(OptionError, match=r"the memory for h is in use already(.*\n)*.*None\) there first"):
        other.use_state_memory(["h"], one)
    assert not other.state("h").any()
    other.use_state_memory(["h"], two)
    model.use_state_memory(["h"], None)
    other.use_state_memory(["h"], one)  # two is free again
    model.use_state_memory(["h"], two)
    del other
    gc.collect()
    model.use_state_memory(["h"], one)  # whoever had it is gone
