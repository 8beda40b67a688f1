"""A device of the four layers that docs/devices.md has, and models in parts on a device and the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright
from tests.machines.board import board, examples
from tests.machines.test_webgpu import UNKNOWN, X, model
from tests.runtime.test_states import CASES, source
from tilewright import Session
from tilewright.codegen.wgsl.program import GpuCode
from tilewright.compilation import Compilation, Setting
from tilewright.cost.machine.placement import Held, Moved, bytes_held, cheapest_sides, cheapest_within
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.core import Func
from tilewright.options import Options
from tilewright.runtime import Artifact, Model
from tilewright.runtime.artifact import ConstantInfo
from tilewright.runtime.devices.executor import device_bytes, runs_of
from tilewright.target.gpu.webgpu import SHARED, WEBGPU


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(folder=tmp_path, plugins=(board().PLUGIN,))


def test_the_page_of_devices_has_a_whole_device(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(examples()[0].splitlines()) < 84
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(model("g (float[n,4] x) => (float[n,4] y) { y = Exp(x) }"))
    exec(examples()[1], {})


def test_a_device_computes_what_the_cpu_does(session: Session) -> None:
    text = """g (float[3,8] x) => (float[3,8] s, int64[3,1] i, float[3,2] t, bool[3,8] b)
    { s = Softmax(x) i = ArgMax<axis=1>(x) k = Constant<value=int64[1]{2}>() t, j = TopK(x, k) b = Less(s, x) }"""
    ours, host = (tilewright.compile(model(text), target=t, session=session) for t in ("board", "host"))
    x = X[:, :8].copy()
    for found, expected in zip(ours(x), host(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_sizes_states_and_errors_are_the_executors_matter(session: Session) -> None:
    made = tilewright.compile(model(UNKNOWN["product"]), target="board", session=session)
    for n in (1, 0, 4):
        x, w = np.resize(X, (n, 5)), np.resize(X, (5, 3))
        np.testing.assert_allclose(made(x, w)[0], np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)
    graph, states, inputs, _ = CASES["swapped"]
    ours, host = (
        tilewright.compile(source(graph), target=t, states=states, session=session) for t in ("board", "host")
    )
    for given in (inputs(1), inputs(2)):
        for found, expected in zip(ours(*given), host(*given), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    divided = tilewright.compile(
        model("g (int32[n] a, int32[n] b) => (int32[n] y) { y = Div(a, b) }"), target="board", session=session
    )
    a = np.arange(9, dtype=np.int32)
    with pytest.raises(tilewright.ExecutionError, match="division by zero"):
        divided(a, a)
    np.testing.assert_array_equal(divided(a, a + 1)[0], 0)


CUT = {
    "lacks float64": """g (float[n,6] x) => (float[n,6] y)
        { e = Exp(x) d = Cast<to=11>(e) s = Sin(d) f = Cast<to=1>(s) y = Relu(f) }""",
    "branches": """g (float[n,6] x, bool c) => (float[n,6] y) { z = Exp(x)
        y = If(c) <then_branch = t () => (float[n,6] a) { a = Relu(z) },
            else_branch = e () => (float[n,6] b) { b = Neg(z) }> }""",
    "sizes from data": "g (float[n,6] x) => (int64[2,k] y, float[n,6] r) { z = Neg(x) y = NonZero(z) r = Relu(x) }",
    "a detector": """g (float[1,9,4] b, float[1,2,9] s) => (int64[k,3] y) { c = Relu(b) p = Sigmoid(s)
        m = Constant<value=int64{5}>() i = Constant<value=float{0.4}>() y = NonMaxSuppression(c, p, m, i) }""",
}


class Picky(GpuCode):
    """Refuses what WebGPU has not, and makes kernels for the board."""

    def kernel(self, func: Func) -> Any:
        made = super().kernel(func)
        return replace(board().BoardCode().kernel(func), doubt=made.doubt)


@pytest.fixture
def picky(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    class Code(board().BoardCode):  # type: ignore[name-defined,misc]
        def kernel(self, func: Func) -> Any:
            return Picky(WEBGPU).kernel(func)

    monkeypatch.setattr(board().BoardBackEnd, "code", lambda self, machine, options: Code())
    return session


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", CUT)
def test_what_a_device_lacks_runs_on_the_cpu_beside_it(name: str, picky: Session, tmp_path: Path) -> None:
    data = model(CUT[name])
    made = tilewright.compile(data, target="board", placement="device", session=picky)
    host = tilewright.compile(data, session=picky)
    made.save(tmp_path / "model.tw")
    loaded = Model(Artifact.load(tmp_path / "model.tw"), executor=picky.executor("board"))
    rng = np.random.default_rng(3)
    for n in (3, 1, 0):
        shapes = [[n if isinstance(d, str) else d for d in info.shape] for info in host.inputs]
        given = [
            np.array(n == 3) if info.dtype == "bool" else rng.standard_normal(shape).astype(np.float32)
            for info, shape in zip(host.inputs, shapes, strict=True)
        ]
        for found, again, expected in zip(made(*given), loaded(*given), host(*given), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(found, again)
    placed = made.report().placed
    assert "board" in {part.machine for part in placed}
    if name in ("lacks float64", "a detector"):
        lacking = [part for part in placed if part.machine == "host" and "lacks it" in part.why]
        assert lacking and all(part.kernels for part in lacking)
    if name == "lacks float64":
        assert [part.machine for part in placed] == ["board", "host", "board"]
        assert [(part.takes, part.gives) for part in placed] == [("24*n", "24*n")] * 3
        assert "no f64" in str(made.report())


RESIZED = parser.parse_model("""<ir_version: 9, opset_import: ["" : 19]>
    g (float[1,1,4,4] x, float[4] s) => (float[a,b,c,d] y)
    { y = Resize<antialias=1, mode="cubic">(x, , s) }""").SerializeToString()


COUNTED = """g (float[n,6] x) => (float[n,6] y, float[n,6] w) { e = Exp(x) z = NonZero(x) k = Shape(z)
    c = Cast<to=1>(k) i = Constant<value=int64[1]{1}>() m = Gather(c, i) y = Div(e, m)
    d = Cast<to=11>(e) s = Sin(d) f = Cast<to=1>(s) w = Add(f, m) }"""


def test_parts_read_no_sizes_that_are_not_known_yet(picky: Session) -> None:
    """What asks about sizes, and reads nothing else, is in no part before that in which they are measured."""
    made = tilewright.compile(model(COUNTED), target="board", placement="device", session=picky)
    host = tilewright.compile(model(COUNTED), session=picky)
    for n in (3, 1):
        x = X[:n, :6].copy()
        for found, expected in zip(made(x), host(x), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert {part.machine for part in made.report().placed} == {"host", "board"}


def test_versions_for_other_sizes_are_shared_by_levels_or_are_none(session: Session) -> None:
    tilewright.compile(RESIZED, target="cuda,sm_90", session=session, strict=True)


def test_nodes_without_names_are_told_apart(picky: Session) -> None:
    """That one conversion is lacking says nothing about another one."""
    data = model("""g (float[n] x) => (double[n] d, float16[n] h, int8[n] i)
        { d = Cast<to=11>(x) h = Cast<to=10>(x) i = Cast<to=3>(x) }""")
    made = tilewright.compile(data, target="board", placement="device", session=picky)
    assert [part.machine for part in made.report().placed] == ["host", "board"]
    x = np.array([1.5, -2.25, 100], np.float32)
    for found, dtype in zip(made(x), ("float64", "float16", "int8"), strict=True):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, x.astype(dtype))


def test_operators_of_a_node_are_told_apart(picky: Session) -> None:
    """Where a Resize by scales of the call reads is computed in float64, and not what it makes of that."""
    data = parser.parse_model("""<ir_version: 9, opset_import: ["" : 19]>
        g (float[1,2,4,4] x, float[4] s) => (float[a,b,c,d] y) { y = Resize<mode="linear">(x, , s) }""")
    made, host = (
        tilewright.compile(data.SerializeToString(), target=t, placement="device", session=picky)
        for t in ("board", "host")
    )
    last = made.report().placed[-1]
    assert last.machine == "board" and last.kernels
    x, scales = X.ravel()[:32].reshape(1, 2, 4, 4), np.array([1, 1, 2, 1.5], np.float32)
    np.testing.assert_allclose(made(x, scales)[0], host(x, scales)[0], rtol=1e-5, atol=1e-6)


def test_the_cpu_computes_all_where_nothing_pays(picky: Session) -> None:
    """Copies of a small model take longer than all of it; one that the device takes whole runs there."""
    data = model(CUT["lacks float64"])
    with pytest.warns(tilewright.PerformanceWarning, match="the CPU computes all of it: no part of it would take less"):
        made = tilewright.compile(data, target="board", session=picky)
    assert made.artifact.target.kind == "cpu" and not made.artifact.parts and not made.artifact.objects
    x = X[:2, :6].copy()
    np.testing.assert_array_equal(made(x)[0], tilewright.compile(data, session=picky)(x)[0])
    whole = tilewright.compile(model("g (float[n] x) => (float[n] y) { y = Exp(x) }"), target="board", session=picky)
    assert whole.artifact.target.kind == "board" and whole.report().placed == ()
    with pytest.raises(tilewright.UnsupportedError, match="WebGPU has no f64"):  # nothing is left for the device
        tilewright.compile(model("g (double[n] x) => (double[n] y) { y = Exp(x) }"), target="board", session=picky)
    with pytest.raises(tilewright.OptionError, match="one of cost, device"):
        tilewright.compile(data, target="board", placement="gpu", session=picky)


def test_the_cheapest_sides_are_those_of_all_assignments() -> None:
    """Beside trying all of them."""
    rng = np.random.default_rng(5)
    for _ in range(30):
        count = 6
        here, there = rng.integers(0, 9, (2, count)).tolist()
        there[int(rng.integers(count))] = None
        moved = [
            (Moved(int(rng.integers(-1, k)), (k, int(rng.integers(-1, count))), 0), float(rng.integers(0, 6)))
            for k in range(count)
        ]

        def cost(sides: Sequence[bool], here: Any = here, there: Any = there, moved: Any = moved) -> float:
            own = sum(t if on else h for on, h, t in zip(sides, here, there, strict=True))
            at = [*sides, False]  # the last one is -1
            return own + sum(s * (len({at[r] for r in (*v.readers, v.maker)}) > 1) for v, s in moved)

        possible = [s for s in product((False, True), repeat=count) if not any(
            on and t is None for on, t in zip(s, there, strict=True)
        )]  # fmt: skip
        found = cheapest_sides(here, there, moved)
        assert tuple(found) in possible
        assert cost(found) == min(map(cost, possible))


def test_what_a_device_holds_is_what_saves_most() -> None:
    """Beside trying all assignments that fit: never worse than the CPU alone, and nearly always the best."""
    rng = np.random.default_rng(8)
    best = 0
    for _ in range(30):
        here, there = rng.integers(1, 20, 6).tolist(), rng.integers(1, 6, 6).tolist()
        moved = [(Moved(k - 1, (k,), 0), float(rng.integers(0, 3))) for k in range(6)]
        held = [Held((k, (k + 1) % 6) if k == 2 else (k,), int(rng.integers(1, 9))) for k in range(6)]
        capacity = int(rng.integers(4, 20))

        def cost(sides: Sequence[bool], here: Any = here, there: Any = there, moved: Any = moved) -> float:
            own = sum(t if on else h for on, h, t in zip(sides, here, there, strict=True))
            return own + sum(s for v, s in moved if len({[*sides, False][k] for k in (*v.readers, v.maker)}) > 1)

        found = cheapest_within(here, there, moved, held, capacity)
        fitting = [s for s in product((False, True), repeat=6) if bytes_held(s, held) <= capacity]
        assert tuple(found) in fitting and cost(found) <= sum(here)
        best += cost(found) == min(map(cost, fitting))
    assert best >= 20


MANY = """g (float[n,64] x, float[64,64] a, float[64,64] b, float[64,64] c) => (float[n,64] y)
    { p = MatMul(x, a) q = Tanh(p) r = MatMul(q, b) s = Tanh(r) t = MatMul(s, c) y = Relu(t) }"""


@pytest.mark.sweep
@pytest.mark.without_zones
@pytest.mark.without_room_for_zones
def test_a_model_larger_than_a_device_runs_in_parts(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device never holds more than it can, and the CPU computes what is left."""
    held: list[int] = []
    allocate = board().BoardMemory.allocate
    monkeypatch.setattr(
        board().BoardMemory, "allocate", lambda self, sizes: held.append(sizes.constants) or allocate(self, sizes)
    )
    rng = np.random.default_rng(2)
    weights = {name: rng.standard_normal((64, 64)).astype(np.float32) / 8 for name in "abc"}

    def compiled(capacity: int) -> Model:
        target = f"board,memory={capacity}"
        made = tilewright.compile(
            model(MANY), constants=weights, target=target, placement="device", session=session
        )
        held.clear()
        x = rng.standard_normal((3, 64)).astype(np.float32)
        expected = np.tanh(np.tanh(x @ weights["a"]) @ weights["b"]) @ weights["c"]
        np.testing.assert_allclose(made(x)[0], np.maximum(expected, 0), rtol=1e-4, atol=1e-5)
        return made

    assert compiled(49_152).report().placed == () and sum(held) == 49_152
    placed = compiled(40_000).report().placed
    assert sum(held) == 32_768
    why = "board holds 40000 bytes of weights, and the model has 49152"
    assert why in {part.why for part in placed if part.machine != "board"}
    with pytest.warns(tilewright.PerformanceWarning, match="board holds 100 bytes of weights, and the model has 49152"):
        compiled(100)
    assert not held


def test_a_device_has_no_weights_of_others() -> None:
    """Weights between those that a program reads are left out; what is read is found at its place."""
    table = [ConstantInfo("c", "float32", (3, 5), 70_000), ConstantInfo("a", "float32", (100,), 512),
             ConstantInfo("e", "float32", (0, 4), 64), ConstantInfo("b", "int8", (7,), 960)]  # fmt: skip
    runs = runs_of(table)
    assert [(run.begin, run.end, run.place) for run in runs] == [
        (0, 64, 0), (512, 967, 256), (69_888, 70_060, 768)
    ]  # fmt: skip
    assert runs[1].place_of(960) == 704 and device_bytes(table) == 768 + 172 and device_bytes([]) == 0


def test_what_a_machine_is_called(session: Session) -> None:
    for name in ("machine", "device"):
        with pytest.raises(tilewright.OptionError, match=f"unknown option '{name}': what a model is compiled for") as e:
            tilewright.compile(model(MANY), session=session, **{name: "npu16"})
        assert "target='npu16'" in str(e.value)
    for target, says in (("zen3,memory=1", "is for devices beside a CPU"), ("board,memory=-1", "positive whole"),
                         ("board,memory=", "positive whole number")):  # fmt: skip
        with pytest.raises(tilewright.TargetError, match=says):
            tilewright.compile(model(MANY), target=target, session=session)


def test_a_kernel_without_room_has_a_simpler_schedule_also_where_failures_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a strategy that has not looked at the room: a whole compilation falls back; so do its stages by themselves."""
    monkeypatch.setattr("tilewright.schedule.gpu.product.slots_of", lambda *_: {})
    memories = tuple(replace(m, bytes=64) if m.name == SHARED else m for m in WEBGPU.memories)
    setting = Setting.of(Options(), replace(WEBGPU, memories=memories))
    graph = load_onnx(model("g (float[64,64] x, float[64,64] w) => (float[64,64] y) { y = MatMul(x, w) }"))
    made = Compilation(graph, setting).run("scheduled")
    told = [r.message for r in made.remarks if r.kind == "warning"]
    assert told and all("memory 'shared' has 64 bytes" in m and "simpler schedule" in m for m in told)


def test_what_a_device_raises_is_named_and_the_next_call_begins_anew(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tilewright.compile(model("g (float[4] x) => (float[4] y) { y = Exp(x) }"), target="board", session=session)
    x = X[0, :4]
    (expected,) = made(x)
    with monkeypatch.context() as patch, pytest.raises(tilewright.DeviceError, match="the board failed: it is off"):

        def launch(self: object) -> None:
            raise OSError("it is off")

        patch.setattr(board().BoardMemory, "launch", launch)
        made(x)
    np.testing.assert_array_equal(made(x)[0], expected)
