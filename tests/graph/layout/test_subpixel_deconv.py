"""Transposed convolutions of every kind become convolutions of their phases, with the same results, in vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.graph.programs import find, ops, program, run
from tests.schedule.scheduling import scheduled
from tilewright.graph.layout.block_channels import BlockChannels
from tilewright.graph.layout.grouped_conv import GroupedConv
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.edit import enclosing_loops, extent_of, kind_of
from tilewright.ops import contract as ct
from tilewright.ops.define import constant

PASSES = (BlockChannels(), GroupedConv(), Fold(), Canonicalize())


@dataclass(frozen=True)
class Layer:
    """A transposed convolution of x [n, groups * c, *space] with `o` filters of each group. `free` sizes are dims;
    the filters are those of the call, if `given`."""

    name: str
    space: tuple[int, ...] = (5, 20)
    kernel: tuple[int, ...] = (4, 4)
    strides: tuple[int, ...] = (2, 2)
    dilations: tuple[int, ...] = ()
    groups: int = 1
    c: int = 8
    o: int = 8
    n: int = 1
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    extra: tuple[int, ...] = ()
    free: str = ""
    given: bool = False
    dtype: dt.DType = field(default=dt.f32)

    @property
    def attrs(self):
        rank = len(self.space)
        return {
            "strides": self.strides, "dilations": self.dilations or (1,) * rank, "groups": self.groups,
            "pads_begin": self.before or (0,) * rank, "pads_end": self.after or (0,) * rank,
            "output_padding": self.extra or (0,) * rank,
        }  # fmt: skip

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(len(self.name))
        x = rng.standard_normal((self.n, self.groups * self.c, *self.space))
        w = rng.standard_normal((self.groups * self.c, self.o, *self.kernel)) * 0.2
        return x.astype(self.dtype.storage), w.astype(self.dtype.storage)

    def wanted(self) -> np.ndarray:
        """Each element of the data adds its filter, moved on by its position times the stride."""
        x, w = (a.astype(np.float64) for a in self.arrays())
        a, rank = self.attrs, len(self.space)
        reach = [d * (k - 1) + 1 for d, k in zip(a["dilations"], self.kernel, strict=True)]
        whole = [
            (d - 1) * s + r + e
            for d, s, r, e in zip(self.space, self.strides, reach, a["output_padding"], strict=True)
        ]
        y = np.zeros((self.n, self.groups, self.o, *whole))
        parts = x.reshape(self.n, self.groups, self.c, *self.space)
        filters = w.reshape(self.groups, self.c, self.o, *self.kernel)
        for at in product(*map(range, self.space)):
            added = np.einsum("ngc,gco...->ngo...", parts[(..., *at)], filters)
            places = [slice(p * s, p * s + r, d) for p, s, r, d in
                      zip(at, self.strides, reach, a["dilations"], strict=True)]  # fmt: skip
            y[(..., *places)] += added
        y = y.reshape(self.n, self.groups * self.o, *whole)
        kept = [slice(b, n - e) for b, n, e in zip(a["pads_begin"], whole, a["pads_end"], strict=True)]
        assert len(kept) == rank
        return y[(..., *kept)]


LAYERS = (
    Layer("one group", before=(1, 1), after=(1, 1), c=16, o=16),
    Layer("three filters", before=(1, 1), after=(1, 1), c=20, o=3),
    Layer("groups of whole blocks", groups=2, c=16, o=16, before=(1, 0), after=(1, 1)),
    Layer("groups of a block of phases", groups=2, c=16, o=4),
    Layer("groups of 12", groups=2, c=12, o=12, kernel=(3, 3), n=2),
    Layer("groups of one filter", groups=4, c=3, o=1, kernel=(2, 2)),
    Layer("each channel on its own", groups=20, c=1, o=1, before=(1, 1), after=(1, 1)),
    Layer("each channel, stride 1", groups=16, c=1, o=1, strides=(1, 1), kernel=(3, 3), before=(1, 1)),
    Layer("each channel, a volume", (2, 3, 18), (4, 4, 4), (2, 2, 2), groups=6, c=1, o=1, before=(1, 1, 1),
          after=(1, 1, 1)),
    Layer("a volume", (2, 3, 18), (3, 3, 3), (2, 2, 2), groups=2, c=4, o=3),
    Layer("dilated", strides=(1, 1), kernel=(3, 3), dilations=(2, 3), c=16, o=16),
    Layer("dilated by the stride", kernel=(3, 3), dilations=(2, 2), c=16, o=16, extra=(1, 0)),
    Layer("dilated by twice the stride", kernel=(3, 2), dilations=(4, 2)),
    Layer("dilated beside the stride", kernel=(3, 3), dilations=(3, 3), groups=2),
    Layer("dilated beside the stride, few taps", strides=(3, 4), kernel=(2, 2), dilations=(2, 6), extra=(1, 3)),
    Layer("filters of the call", given=True, before=(1, 1), after=(1, 1), c=16, o=16),
    Layer("filters of the call, groups", given=True, groups=2, kernel=(3, 5), before=(1, 2)),
    Layer("filters of the call, dilated", given=True, kernel=(3, 2), dilations=(3, 1), groups=2),
    Layer("any size", free="nhw", before=(1, 1), after=(1, 1), c=16, o=16),
    Layer("any size, three filters", free="hw", before=(1, 1), after=(1, 1), c=16, o=3),
    Layer("any size, groups", free="nhw", groups=3, kernel=(3, 3), before=(1, 1), after=(1, 1), extra=(1, 1)),
    Layer("any size, filters of the call", free="hw", given=True, kernel=(3, 3), extra=(1, 1), before=(1, 1)),
    Layer("one position", (1, 1), (4, 5), (1, 1), c=16, o=16, n=3),
    Layer("one position, dilated", (1, 1), (3, 3), (2, 2), (2, 3), groups=2),
    Layer("one line", (1, 20), (7, 4), (3, 2), before=(2, 0)),
    Layer("a line", (40,), (16,), (8,), c=16, o=16, before=(4,), after=(4,)),
    Layer("a line, groups", (40,), (4,), (2,), groups=4, before=(1,), after=(1,)),
    Layer("stride beyond the filter", kernel=(2, 3), strides=(4, 5), extra=(2, 1), before=(1, 2)),
    Layer("stride 1", kernel=(3, 5), strides=(1, 1), before=(1, 2), after=(1, 2), c=16, o=16),
    Layer("padding beyond the filter", kernel=(2, 2), before=(3, 5), after=(4, 6)),
    Layer("small under large", (4, 4), (13, 13), (1, 1), c=16, o=16),
    Layer("small under large, strides", (3, 4), (9, 11), (2, 3), before=(2, 3), after=(1, 4), extra=(1, 2), n=3),
    Layer("small under large, any batch", (3, 3), (9, 9), (1, 1), c=16, o=3, free="n", before=(1, 2)),
    Layer("small under large, groups", (3, 3), (9, 9), (1, 1), groups=3, c=16, n=2),
    Layer("small under large, filters of the call", (3, 3), (9, 9), (1, 1), c=16, given=True),
    Layer("small under large, a volume", (2, 2, 3), (5, 5, 5), (1, 1, 2), c=16),
    Layer("small under large, a line", (5,), (31,), (1,), c=16, o=16),
    Layer("doubles", dtype=dt.f64, groups=2, before=(1, 1)),
)  # fmt: skip
IDS = [layer.name for layer in LAYERS]


def graph(layer: Layer):
    x, w = layer.arrays()
    names = ("n", "", *"dhw"[-len(layer.space) :])
    shape = [
        var(name, 1) if name and name in layer.free else extent for name, extent in zip(names, x.shape, strict=True)
    ]
    types = [tensor(layer.dtype, shape)] + ([tensor(layer.dtype, w.shape)] if layer.given else [])
    return program(lambda x, *ws: ct.conv_transpose(x, ws[0] if ws else constant(w, "w"), **layer.attrs), *types)


@pytest.mark.sweep(7)
@pytest.mark.parametrize("layer", LAYERS, ids=IDS)
def test_every_kind_becomes_convolutions(layer: Layer) -> None:
    module = graph(layer)
    run(module, *PASSES, tolerance=1e-4)
    found = ops(module)
    assert "conv_transpose" not in found
    several = layer.dilations and any(
        d % s and s % d for s, d in zip(layer.strides, layer.dilations, strict=True) if s != 1
    )
    several = several and min(layer.space) > 1
    assert sum(name.startswith(("conv", "matmul")) for name in found if name != "concat") == 1 or several


LONG = [layer for layer in LAYERS if layer.space[-1] >= 18 and "by" not in layer.name.split()]
"""Lines of vectors in which there is no second element that no tap meets."""


@pytest.mark.sweep(6)
@pytest.mark.parametrize("layer", LONG, ids=[layer.name for layer in LONG])
def test_products_and_results_are_vectors(layer: Layer) -> None:
    """Also where each phase has every second element of a line."""
    module = graph(layer)
    run(module, *PASSES, tolerance=1e-4)
    scheduled(module)
    for func in (f for f in module.funcs.values() if f.level == "loops"):
        if "reverse" in func.name:  # filters of the call, which are few
            continue
        products = [op for op in func.body.walk() if op.name in ("mul", "fma") and op.result.type.dtype.is_float]
        stores = [op for op in func.body.walk() if op.name == "store" and op.operands[1].type.space == "global"]
        assert all(in_vectors(op, layer) for op in products), func.name
        assert any(in_vectors(op, layer) for op in stores), func.name  # others store what is left of a line


def in_vectors(op: Op, layer: Layer) -> bool:
    lanes = [extent_of(o) for o in enclosing_loops(op) if kind_of(o) == "vector"]
    return any(not n.is_const or n.value >= 16 // layer.dtype.bytes for n in lanes)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layer", LAYERS, ids=IDS)
def test_native_code_computes_the_transposed_convolution(layer: Layer, threads: int) -> None:
    x, w = layer.arrays()
    kind = {dt.f32: TensorProto.FLOAT, dt.f64: TensorProto.DOUBLE}[layer.dtype]
    names = ("n", "", *"dhw"[-len(layer.space) :])
    shape = [name if name and name in layer.free else d for name, d in zip(names, x.shape, strict=True)]
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], strides=layer.strides, dilations=layer.attrs["dilations"],
        pads=[*layer.attrs["pads_begin"], *layer.attrs["pads_end"]], group=layer.groups,
        output_padding=layer.attrs["output_padding"],
    )  # fmt: skip
    given = [helper.make_tensor_value_info("x", kind, shape)]
    given += [helper.make_tensor_value_info("w", kind, w.shape)] if layer.given else []
    known = [] if layer.given else [numpy_helper.from_array(w, "w")]
    made = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", kind, None)], known)
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    model = tilewright.compile(proto, threads=threads, cache=False)
    (y,) = model(x, w) if layer.given else model(x)
    wanted = layer.wanted()
    assert y.shape == wanted.shape
    tolerance = 1e-12 if layer.dtype == dt.f64 else 2e-5
    np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max(initial=1))


def test_phases_are_filters_of_one_convolution() -> None:
    layer = next(layer for layer in LAYERS if layer.name == "groups of one filter")
    module = graph(layer)
    run(module, BlockChannels(), tolerance=1e-4)
    conv = find(module, "conv")
    assert [d.value for d in conv.operands[1].type.shape] == [4 * 4, 3, 1, 1]
    assert conv.attrs["groups"] == 4


@pytest.mark.sweep(7)
@pytest.mark.parametrize("layer", LAYERS, ids=IDS)
def test_small_images_under_large_filters_give_blocks_that_overlap(layer: Layer) -> None:
    module = graph(layer)
    run(module, *PASSES, tolerance=1e-4, target="zen3")
    assert ("overlapped" in ops(module)) == layer.name.startswith("small under large")


def test_filters_of_unknown_extent_stay() -> None:
    module = program(lambda x, w: ct.conv_transpose(x, w), (1, 2, 5, 5), (2, 3, var("k", 1), 2))
    run(module, *PASSES)
    assert ops(module) == ["conv_transpose"]
