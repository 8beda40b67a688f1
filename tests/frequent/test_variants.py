"""Calls run the variant for their sizes, and the general program otherwise."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.frequent.models import W, assert_close, data, of_products, of_staged, products, ran, staged
from tests.staging.models import model_of
from tilewright import Options, stages
from tilewright.api import compile_artifact
from tilewright.ir.diag import TilewrightError
from tilewright.runtime import Artifact

pytestmark = pytest.mark.without_room_for_zones  # programs are compared by what they lay out

FREQUENT = [{"batch": 8}, {"length": 5, "batch": 1}, {"length": 16}]
CALLS = [
    ((1, 5), "length=5, batch=1"),
    ((8, 3), "batch=8"),
    ((2, 2), ""),
    ((2, 16), "length=16"),
    ((8, 16), "batch=8"),
    ((8, 5), "batch=8"),
    ((1, 5), "length=5, batch=1"),
    ((0, 5), ""),
    ((2, 5), ""),
    ((1, 4), ""),
]


@pytest.fixture(scope="module")
def compiled() -> tilewright.Model:
    return tilewright.compile(products(), frequent=FREQUENT, threads=2, verify=True)


def test_each_call_runs_its_program(compiled: tilewright.Model) -> None:
    for _ in range(2):
        for shape, sizes in CALLS:
            x = data(*shape, 64)
            assert_close(compiled(x)[0], of_products(x))
            assert ran(compiled) == sizes


def test_a_variant_is_the_static_program(compiled: tilewright.Model) -> None:
    static = tilewright.compile(products(), shapes={"x": [1, 5, 64]}, threads=2)
    variant = compiled.artifact.variants[0].artifact
    assert variant.static_plan == static.artifact.static_plan
    assert [call.results for call in variant.report.calls] == [
        call.results for call in static.report().calls
    ]
    x = data(1, 5, 64)
    np.testing.assert_array_equal(compiled(x)[0], static(x)[0])


def test_programs_share_weights(compiled: tilewright.Model) -> None:
    """Where they pack them alike, as for this machine; others may have tiles of other widths for few rows."""
    made = compile_artifact(products(), options=Options(frequent=FREQUENT, threads=2, target="x86-64-v4"))
    assert memoryview(made.constants).nbytes == W.nbytes
    added = [variant.constant_bytes for variant in compiled.report().variants]
    assert memoryview(compiled.artifact.constants).nbytes == W.nbytes + sum(added)
    assert all(variant.code_bytes > 0 for variant in compiled.report().variants)


def test_programs_share_memory(compiled: tilewright.Model) -> None:
    model = copy.copy(compiled)
    for shape, _ in CALLS:
        model(data(*shape, 64))
    (context,) = model._contexts
    assert context.arena.nbytes == 8 * 16 * 64 * 4, "as the largest call needs, not the sum"


def test_the_order_of_threads_does_not_matter(compiled: tilewright.Model) -> None:
    inputs = [data(*shape, 64) for shape, _ in CALLS]
    wanted = [of_products(x) for x in inputs]
    failed: list[BaseException] = []

    def run(first: int) -> None:
        try:
            for k in range(60):
                assert_close(compiled(inputs[(first + k) % len(inputs)])[0], wanted[(first + k) % len(inputs)])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(3 * k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_saved_loaded_and_copied(compiled: tilewright.Model, tmp_path: Path) -> None:
    compiled.save(tmp_path / "m.tw")
    for model in (
        tilewright.load(tmp_path / "m.tw", threads=1),
        tilewright.load(tmp_path / "m.tw", mmap=True),
        pickle.loads(pickle.dumps(compiled)),
        copy.deepcopy(compiled),
    ):
        for shape, sizes in CALLS[:5]:
            x = data(*shape, 64)
            assert_close(model(x)[0], of_products(x))
            assert ran(model) == sizes
        model.close()
        with pytest.raises(tilewright.ExecutionError, match="closed"):
            model(data(1, 5, 64))


def test_given_outputs_and_wrong_inputs(compiled: tilewright.Model) -> None:
    x, out = data(1, 5, 64), np.empty((1, 5, 64), np.float32)
    assert compiled(x, out=[out])[0] is out
    assert_close(out, of_products(x))
    with pytest.raises(tilewright.InputError):
        compiled(x, out=[np.empty((8, 5, 64), np.float32)])
    with pytest.raises(tilewright.InputError, match=r"dim 2 must be 64.*\n.*expected is x: float32\[batch, l"):
        compiled(data(1, 5, 63))
    with pytest.raises(tilewright.InputError, match="must have 3 dims"):
        compiled(data(1, 5))
    assert_close(compiled(x)[0], of_products(x))


def test_dims_of_several_inputs() -> None:
    nodes = [h.make_node("Add", ["x", "y"], ["s"]), h.make_node("MatMul", ["s", "w"], ["z"])]
    inputs = [("x", T.FLOAT, ["the batch", 64]), ("y", T.FLOAT, ["the batch", "d1"])]
    model = tilewright.compile(model_of(nodes, inputs, ["z"], {"w": W}), frequent=[{"the_batch": 3}], threads=1)
    for n, sizes in ((3, "the_batch=3"), (4, "")):
        x, y = data(n, 64), data(n, 1, 64)[:, 0]
        assert_close(model(x, y)[0], (x + y) @ W)
        assert ran(model) == sizes
    with pytest.raises(tilewright.InputError, match=r"dim 0 must be 3 \(the_batch = 3 by input 'x'\)"):
        model(data(3, 64), data(4, 64))


def test_shapes_that_follow_from_data() -> None:
    """A size that is read from an input at each call, beside one of an axis."""
    nodes = [h.make_node("Relu", ["x"], ["a"]), h.make_node("Expand", ["a", "shape"], ["y"])]
    made = model_of(nodes, [("x", T.FLOAT, ["n", 1]), ("shape", T.INT64, [2])], ["y"], {})
    model = tilewright.compile(made, frequent=[{"n": 4}], threads=1)
    for n in (4, 3, 4):
        for m in (1, 6):
            x = data(n, 1)
            (y,) = model(x, np.array([1, m]))
            np.testing.assert_array_equal(y, np.broadcast_to(np.maximum(x, 0), (n, m)))


def test_staged_programs() -> None:
    model = tilewright.compile(staged(), frequent=[{"batch": 8}], threads=2, verify=True)
    assert model.artifact.program is not None
    for again in (model, tilewright.load(model.artifact.to_bytes())):
        for batch in (8, 5, 8):
            x = data(batch, 64)
            assert_close(again(x)[0], of_staged(x))
        loaded = again._loaded
        assert len(loaded.runs) == 2 and list(map(len, loaded.parts)) == [2, 2]
        assert [again._guard((shape,)) for shape in ((8, 64), (5, 64))] == [1, 0]
        assert len({id(part.linked.code._code) for own in loaded.parts for part in own}) == 1
        assert len({id(part.linked.pool) for own in loaded.parts for part in own}) == 1


def test_staged_programs_share_weights() -> None:
    options = Options(frequent=[{"batch": 8}], threads=2, target="x86-64-v4")
    made = compile_artifact(staged(), options=options)
    assert made.program is not None
    assert memoryview(made.constants).nbytes < 2 * W.nbytes


def test_a_staged_program_may_have_a_variant_that_is_not() -> None:
    """With the batch known the number of rows is, too, and no host is needed."""
    nodes = [
        h.make_node("Shape", ["x"], ["shape"]),
        h.make_node("ReduceSum", ["shape"], ["n"], keepdims=0),
        h.make_node("Loop", ["n", "", "x"], ["y"], body=_doubled()),
    ]
    made = model_of(nodes, [("x", T.FLOAT, ["batch"])], ["y"], {})
    model = tilewright.compile(made, frequent=[{"batch": 3}], threads=1)
    assert model.artifact.program is not None and model.artifact.variants[0].artifact.program is None
    for again in (model, tilewright.load(model.artifact.to_bytes())):
        for batch in (3, 5, 3):
            x = data(batch)
            np.testing.assert_array_equal(again(x)[0], x * 2**batch)
    with pytest.raises(tilewright.InputError, match="must have 1 dims"):
        model(data(3, 3))


def _doubled() -> object:
    """The body of a loop that doubles its state."""
    body = [h.make_node("Identity", ["going"], ["goes_on"]), h.make_node("Add", ["state", "state"], ["next"])]
    ins = [("trip", T.INT64, []), ("going", T.BOOL, []), ("state", T.FLOAT, ["batch"])]
    outs = [("goes_on", T.BOOL, []), ("next", T.FLOAT, ["batch"])]
    infos = [[h.make_tensor_value_info(*i) for i in each] for each in (ins, outs)]
    return h.make_graph(body, "body", *infos)


def test_each_program_is_shown() -> None:
    options = Options(frequent=[{"batch": 8}])
    assert list(stages.programs(products(), "graph", options=options)) == ["main", "batch=8: main"]
    names = list(stages.programs(products(), "loops", options=options))
    numbers = [name.removeprefix("batch=8: ").partition("_")[0] for name in names]
    assert numbers == [f"k{k}" for k in range(len(names))]
    variant = tilewright.compile(products(), options=options).artifact.variants[0].artifact
    assert {f"batch=8: {call.kernel}" for call in variant.report.calls} <= set(names)


def test_a_profile_names_the_variant() -> None:
    model = tilewright.compile(products(), frequent=[{"batch": 8}], profile=True, threads=1)
    for shape, sizes in (((8, 4, 64), "batch=8"), ((2, 4, 64), "")):
        times = model.profile({"x": data(*shape)}, runs=2)
        artifact = model.artifact.variants[0].artifact if sizes else model.artifact
        assert [time.kernel for time in times] == [call.kernel for call in artifact.report.calls]
        assert {time.sizes for time in times} == {sizes}


def test_the_report_lists_variants() -> None:
    model = tilewright.compile(products(), frequent=FREQUENT)
    variants = model.report().variants
    assert [v.sizes for v in variants] == [{"length": 5, "batch": 1}, {"batch": 8}, {"length": 16}]
    assert variants[0].arena_bytes == 5 * 64 * 4 and variants[1].arena_bytes is None
    assert all(v.kernels == 2 for v in variants)
    assert "length=5, batch=1" in str(model.report())
    subjects = {remark.subject for remark in model.report().remarks}
    assert {call.kernel for v in model.artifact.variants for call in v.artifact.report.calls} <= subjects
    assert tilewright.compile(products()).report().variants == ()


def test_frequent_sizes_belong_to_the_key_of_the_cache(tmp_path: Path) -> None:
    session = tilewright.Session(tmp_path)
    for frequent in ([], [{"batch": 1}], [{"batch": 2}], [{"batch": 1}]):
        model = tilewright.compile(products(), frequent=frequent, session=session)
        assert [dict(v.sizes) for v in model.artifact.variants] == frequent
    assert len(session.entries()) == 3


def test_steps_are_told_for_each_program() -> None:
    told: list[str] = []
    tilewright.compile(products(), frequent=[{"batch": 1}], cache=False, progress=lambda p: told.append(p.stage))
    stages = [stage for stage, before in zip(told, ["", *told], strict=False) if stage != before]
    assert stages == ["import", "graph", "kernels", "import", "graph", "kernels", "code", "link"]


def test_machines_that_need_fixed_shapes_have_no_variants() -> None:
    from tests.machines.toy import PLUGIN

    nodes = [h.make_node("Add", ["x", "x"], ["y"])]
    made = model_of(nodes, [("x", T.FLOAT, [16, 16])], ["y"], {})
    session = tilewright.Session(plugins=(PLUGIN,))
    with pytest.raises(TilewrightError, match="all its dims are fixed"):
        tilewright.compile(made, target="toy", frequent=[{"n": 16}], session=session)


def test_an_artefact_of_another_format_version_is_refused(compiled: tilewright.Model) -> None:
    raw = bytearray(compiled.artifact.to_bytes())
    raw[8] = 3
    with pytest.raises(tilewright.ArtifactError, match="format 3"):
        Artifact.load(bytes(raw))
