"""Weights are in memory once: a constant goes when it is packed, and into the artefact without a second copy."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.compilation import Setting
from tilewright.compiler import compile_module
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.types import tensor
from tilewright.link import Weights
from tilewright.loops.storage.packing import PackedArray, Packing, apply_packing
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.runtime import Artifact, Model
from tilewright.runtime.arena import ALIGNMENT, address_of, aligned_bytes
from tilewright.runtime.errors import ArtifactError
from tilewright.session import Session
from tilewright.target.named import parse_target

RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((40, 48), np.float32), RNG.standard_normal((48, 48), np.float32)


def module_of_products(*, beside: bool) -> Module:
    """Two products with the matrix W; with `beside` W is also added, so that it is needed unpacked too."""
    block = Block([tensor(dt.f32, X.shape)], ["x"])
    module = Module()
    with Builder(block, module) as b:
        w = constant(W, "w")
        results: list[Value] = [matmul(matmul(block.args[0], w), w)]
        if beside:
            results.append(ew.tanh(w))
            results.append(ew.add(results[0], constant(np.full((40, 1), 2, np.float32), "two")))
        b.emit("return", results)
    module.add(Func("main", block, "graph"))
    return module


def compiled(module: Module) -> Model:
    return Model(compile_module(module, Options(), parse_target("host")), 1)


def assert_right(model: Model, *, beside: bool) -> None:
    wanted = X.astype(np.float64) @ W @ W
    found = model(X)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-3)
    if beside:
        np.testing.assert_allclose(found[1], np.tanh(W.astype(np.float64)), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[2], wanted + 2, rtol=1e-4, atol=1e-3)


def test_packed_copies_supersede_a_constant() -> None:
    model = compiled(module_of_products(beside=False))
    assert [int(np.prod(c.shape)) for c in model.artifact.constant_table] == [W.size]
    assert_right(model, beside=False)


def test_a_constant_that_is_read_unpacked_too_stays() -> None:
    model = compiled(module_of_products(beside=True))
    assert_right(model, beside=True)


def test_weights_move_into_the_artefact() -> None:
    module = module_of_products(beside=True)
    model = compiled(module)
    assert module.constants == {}
    weights = np.frombuffer(model.artifact.constants, np.uint8)
    assert address_of(weights) % ALIGNMENT == 0
    assert address_of(model._loaded.programs[0].constants) == address_of(weights)


@pytest.mark.parametrize("mmap", [False, True])
def test_a_loaded_model_uses_its_weights_in_place(tmp_path: Path, mmap: bool) -> None:
    compiled(module_of_products(beside=True)).save(tmp_path / "m.tw")
    again = tilewright.load(tmp_path / "m.tw", threads=1, mmap=mmap)
    weights = np.frombuffer(again.artifact.constants, np.uint8)
    assert address_of(again._loaded.programs[0].constants) == address_of(weights)
    assert_right(again, beside=True)


def test_bytes_between_constants_are_zero() -> None:
    artifact = compiled(module_of_products(beside=True)).artifact
    weights = np.frombuffer(artifact.constants, np.uint8).copy()
    for c in artifact.constant_table:
        size = int(np.prod(c.shape)) * np.dtype(c.dtype).itemsize
        weights[c.offset : c.offset + size] = 0
    assert not weights.any()


def test_folding_takes_the_place_of_its_operands() -> None:
    """Of weights that are all folded, one at a time is there twice; an operand of two ops stays until the second."""
    tracemalloc.start()
    block, module = Block([], []), Module()
    with Builder(block, module) as b:
        results: list[Value] = [ew.neg(constant(np.full((512, 512), k, np.float32), f"w{k}")) for k in range(8)]
        shared = constant(np.full(4, 3, np.float32), "shared")
        b.emit("return", [*results, ew.neg(shared), ew.add(shared, shared)])
    module.add(Func("main", block, "graph"))
    context = Setting.of(Options(), parse_target("host")).context()
    before = tracemalloc.get_traced_memory()[0]
    Fold().run(module, context)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert before > 8 << 20 and peak - before < 6 << 20  # the interpreter takes four times an operand
    assert sorted(float(a.flat[0]) for a in module.constants.values()) == [*range(-7, -2), -3, -2, -1, 0, 6]


PEAK = """
import sys
import numpy as np
from tilewright.link import Weights
from tilewright.loops.storage.packing import PackedArray, Packing

def megabytes(field):
    with open("/proc/self/status") as status:
        return int(dict(line.split(":", 1) for line in status)[field].split()[0]) / 1024

np.empty(20 << 20, np.uint8).fill(1)  # arrays of this size come from the heap from now on
before, weights = megabytes("VmRSS"), Weights()
halves = Packing(((8 << 20,),), (0, 1))
for k in range(16):
    array = np.full(16 << 20, k, np.uint8)
    weights.place(PackedArray(array, halves) if k % 2 else array)
del array
block, _ = weights.blocks()
assert bytes(block[:: 16 << 20]) == bytes(range(16))
print(megabytes("VmHWM") - before, megabytes("VmRSS") - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
def test_constants_leave_memory_as_they_move_into_the_artefact() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    peak, after = map(float, done.stdout.split())
    assert peak < 256 + 120 and after < 256 + 40


PANELS = Packing(((), (32,)), (1, 0, 2))


@pytest.mark.parametrize("threads", [1, 3])
def test_packed_arrays_are_laid_out_in_the_block(threads: int) -> None:
    weights = Weights(threads=threads)
    arrays = [RNG.standard_normal((k, 50), np.float32) for k in (3, 7, 7)]
    plain = RNG.integers(0, 9, 5).astype(np.uint8)
    places = [weights.place(PackedArray(array, PANELS))[0] for array in arrays]
    places.append(weights.place(plain)[0])
    block = np.frombuffer(weights.blocks()[0], np.uint8)
    for offset, wanted in zip(places, [*(apply_packing(a, PANELS) for a in arrays), plain], strict=True):
        found = block[offset : offset + wanted.nbytes].view(wanted.dtype).reshape(wanted.shape)
        np.testing.assert_array_equal(found, wanted)
    covered = np.zeros(block.size, bool)
    for offset, nbytes in zip(places, [2 * 3 * 128, 2 * 7 * 128, 2 * 7 * 128, 5], strict=True):
        covered[offset : offset + nbytes] = True
    assert not block[~covered].any()


def test_arrays_that_are_packed_alike_are_in_memory_once() -> None:
    array, weights = RNG.standard_normal((4, 64), np.float32), Weights()
    first = weights.place(PackedArray(array, PANELS))
    assert weights.place(PackedArray(array.copy(), PANELS)) == first
    others = [
        PackedArray(array + 1, PANELS),
        PackedArray(array, Packing(((), (16,)), (1, 0, 2))),
        PackedArray(array.reshape(2, 128)[:, :64].copy(), PANELS),
        array,
    ]
    assert len({weights.place(other)[0] for other in others} | {first[0]}) == 5


def test_the_same_bytes_in_another_shape_are_packed_otherwise() -> None:
    """Both fill the same packed shape with zeros behind them."""
    packing, array = Packing(((8,), (8,)), (0, 2, 1, 3)), RNG.standard_normal((4, 8), np.float32)
    weights = Weights()
    offsets = [weights.place(PackedArray(a, packing))[0] for a in (array, array.reshape(8, 4))]
    assert offsets[0] != offsets[1]


def test_what_is_packed_is_one_with_an_array_of_the_same_bytes() -> None:
    """The table of a decoder's words, and the matrix of its last product, which is packed by transposing it."""
    table, weights = RNG.standard_normal((50, 48), np.float32), Weights()
    transposed = PackedArray(table.T, Packing(((), ()), (1, 0)))
    assert weights.place(table) == weights.place(transposed)
    assert weights.place(PackedArray(table, Packing(((), ()), (1, 0)))) != weights.place(transposed)


PACKINGS = [
    Packing(((), (32,)), (1, 0, 2)),
    Packing(((4, 3), (5,)), (1, 0, 3, 4, 2)),
    Packing(((7,), ()), (2, 0, 1)),
    Packing(((), (2,)), (1, 0, 2), fields=4),
]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("shape", [(30, 40), (1, 1), (0, 4)])
def test_first_elements_are_those_of_the_whole(packing: Packing, shape: tuple[int, ...]) -> None:
    packed = PackedArray(RNG.integers(0, 16, shape).astype(np.uint8), packing)
    whole = packed.make().reshape(-1)
    for count in (1, 17, 100_000):
        np.testing.assert_array_equal(packed.first(count), whole[:count])


def sharing_model(weights: list[np.ndarray], *, x: tuple[int, ...] = (1, 512)) -> tuple[Model, list[np.ndarray]]:
    """A model that adds up the products of x with matrices, and rows of the first one; and the results to expect."""
    block, module = Block([tensor(dt.f32, x)], ["x"]), Module()
    with Builder(block, module) as b:
        known = [constant(w, f"w{k}") for k, w in enumerate(weights)]
        results: list[Value] = [matmul(block.args[0], w, transpose_b=True) for w in known]
        b.emit("return", [*results, ew.add(known[0], block.args[0])])
    module.add(Func("main", block, "graph"))
    model = Model(compile_module(module, Options(share_weights=True), parse_target("host,l2=16384")), 1)
    given = np.linspace(-1, 1, int(np.prod(x)), dtype=np.float32).reshape(x)
    return model, [given, *(given.astype(np.float64) @ w.T for w in weights), weights[0] + given]


def aligned(array: np.ndarray) -> np.ndarray:
    block = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    block[...] = array
    return block


def assert_gives(model: Model, wanted: list[np.ndarray]) -> None:
    for found, expected in zip(model(wanted[0]), wanted[1:], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_weights_that_are_read_as_they_are_stay_where_they_are(tmp_path: Path) -> None:
    matrices = [aligned(RNG.standard_normal((n, 512), np.float32)) for n in (96, 130)]
    unaligned = np.empty(96 * 512 + 1, np.float32)[1:].reshape(96, 512)
    unaligned[...] = RNG.standard_normal((96, 512))
    model, wanted = sharing_model([*matrices, unaligned])
    lent = model.artifact.lent
    assert [address_of(a.data) for a in lent] == [address_of(m) for m in matrices]
    assert memoryview(model.artifact.constants).nbytes == unaligned.nbytes + len(lent) * ALIGNMENT
    assert model.artifact.weight_bytes >= sum(m.nbytes for m in matrices) + unaligned.nbytes
    assert_gives(model, wanted)
    assert_gives(copy.copy(model), wanted)
    model.save(tmp_path / "m.tw")
    for again in (
        tilewright.load(tmp_path / "m.tw", threads=1),
        tilewright.load(tmp_path / "m.tw", threads=1, mmap=True),
        tilewright.load(model.artifact.to_bytes(), threads=1),
        pickle.loads(pickle.dumps(model)),
    ):
        assert not again.artifact.lent
        assert_gives(again, wanted)


def test_what_is_shared_is_not_saved_after_it_was_written_to(tmp_path: Path) -> None:
    matrix = aligned(RNG.standard_normal((96, 512), np.float32))
    model, _ = sharing_model([matrix])
    matrix[3, 4] += 1
    with pytest.raises(ArtifactError, match="were written to since it was compiled"):
        model.save(tmp_path / "m.tw")
    assert not list(tmp_path.iterdir())
    matrix[3, 4] -= 1


def test_nothing_is_shared_without_being_asked_for() -> None:
    module = module_of_products(beside=True)
    assert not compiled(module).artifact.lent


def test_what_one_model_lends_is_not_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an artefact is written others find it, but not where its weights are the memory of the first model."""
    monkeypatch.setattr("tilewright.session._LARGE", 0)
    session, save = Session(tmp_path), Artifact.save

    def save_later(artifact: Artifact, path: Path) -> None:
        time.sleep(0.3)
        save(artifact, path)

    monkeypatch.setattr(Artifact, "save", save_later)
    model, wanted = sharing_model([aligned(RNG.standard_normal((96, 512), np.float32))])
    session.keep("key", model.artifact)
    found = session.find("key")
    assert found is not None and model.artifact.lent and not found.lent
    assert_gives(Model(found, 1), wanted)


@pytest.mark.parametrize(("target", "lent"), [("host", 1), ("z15", 0)])
def test_nothing_is_lent_to_a_machine_of_the_other_byte_order(target: str, lent: int) -> None:
    """The distances to what is lent are numbers in the order of this process."""
    if sys.byteorder == "big":
        pytest.skip("z15 has the byte order of this machine")
    table = aligned(RNG.integers(0, 256, (96, 1024)).astype(np.uint8))
    block, module = Block([tensor(dt.u8, (1, 1024))], ["x"]), Module()
    with Builder(block, module) as b:
        b.emit("return", [ew.add(constant(table, "table"), block.args[0])])
    module.add(Func("main", block, "graph"))
    artifact = compile_module(module, Options(share_weights=True), parse_target(target))
    assert len(artifact.lent) == lent
    assert table.tobytes() in b"".join(artifact.saved_weights())
