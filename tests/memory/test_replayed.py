"""Plans of whole models, replayed: at many sizes every call finds its operands where they are said to lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.memory.replayed import UnfitSizesError, replay
from tests.runtime.test_needed import network
from tilewright.compilation import Compilation, Setting
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.core import Module
from tilewright.ir.sym import sym
from tilewright.options import Options
from tilewright.program.memory.places import is_planned
from tilewright.target.host import host_target

pytestmark = pytest.mark.without_room_for_zones

SIZES = (0, 1, 2, 3, 8, 13, 64, 513)


def planned(model: object) -> list[Module]:
    whole = Compilation(load_onnx(model), Setting.of(Options(), host_target())).run("planned")
    return [piece.module for piece in whole.pieces if is_planned(piece.module.main)]


def replay_at_all_sizes(module: Module) -> int:
    names = {v.name for a in module.main.args for dim in a.tensor.shape for v in dim.vars}
    done = 0
    for size in SIZES:
        try:
            replay(module, {name: size + 3 * k for k, name in enumerate(sorted(names))})
            done += 1
        except UnfitSizesError:
            continue
    return done


def test_a_network_of_symbolic_dims() -> None:
    (module,) = planned(network())
    assert replay_at_all_sizes(module) == len(SIZES)
    for op in module.main.body.ops:
        if op.name == "call":
            op.attrs["at"] = tuple(replace(p, offset=sym(0)) for p in op.attrs["at"])
    with pytest.raises(AssertionError, match=r"writes over an operand|is not at"):
        replay_at_all_sizes(module)
