"""What people expect of a model object: names of outputs, ONNX Runtime's methods, copies, other processes."""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import multiprocessing
import pickle

import numpy as np
import pytest

from tests.runtime.native import RUN, STATIC_CONSTANTS, compile_ir, dynamic_artifact, static_artifact
from tilewright.codegen.cpu.linking.link import link
from tilewright.runtime import Artifact, Model, TensorInfo
from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError, OptionError, TilewrightError
from tilewright.runtime.values.node_arg import NodeArg

X = np.linspace(-3, 7, 6, dtype=np.float32).reshape(2, 3)
Y = 2 * X + STATIC_CONSTANTS

TWO_IR = f"""
{RUN}  %x = load ptr, ptr %in
  %y = load ptr, ptr %out
  %z.at = getelementptr ptr, ptr %out, i64 1
  %z = load ptr, ptr %z.at
  %value = load float, ptr %x
  %double = fadd float %value, %value
  store float %double, ptr %y
  store float %value, ptr %z
  ret i32 0
}}
"""


@pytest.fixture(scope="module")
def two() -> Model:
    """x[] -> double = 2 * x, same = x."""
    infos = {name: TensorInfo(name, "float32", ()) for name in ("x", "double", "same")}
    artifact = dataclasses.replace(
        static_artifact(),
        inputs=(infos["x"],),
        outputs=(infos["double"], infos["same"]),
        image=link([compile_ir(TWO_IR)]),
    )
    return Model(artifact)


@pytest.fixture(scope="module")
def static() -> Model:
    return Model(static_artifact())


FEED = {"x": np.float32(3)}


def test_run_as_onnx_runtime_has_it(two: Model) -> None:
    assert two.run(FEED) == (6, 3)
    for found in (two.run(None, FEED), two.run([], FEED), two.run(None, FEED, None), two.run(input_feed=FEED)):
        assert found == [6, 3] and isinstance(found, list)
    assert two.run(["same"], FEED) == [3]
    assert two.run(("same", "double", "same"), FEED) == [3, 6, 3]
    assert two.run(output_names=["same"], input_feed=FEED) == [3]


def test_outputs_by_name(two: Model) -> None:
    assert two.run_dict(FEED) == {"double": 6, "same": 3}
    assert list(two.run_dict(FEED)) == ["double", "same"]
    double, same = np.empty((), np.float32), np.empty((), np.float32)
    found = two.run_dict(FEED, out=(double, same))
    assert found["double"] is double and found["same"] is same and double == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), r"inputs by name must be a dict of names to arrays, not NoneType\n  hint: call run\("),
        ((None,), "must be a dict of names to arrays, not NoneType"),
        ((3,), "must be a dict of names to arrays, not int"),
        (([X],), "must be a dict of names to arrays, not list"),
        ((X,), "must be a dict of names to arrays, not ndarray"),
        ((None, [X]), "must be a dict of names to arrays, not list"),
        ((None, "x"), "must be a dict of names to arrays, not str"),
        (("same", FEED), r'output names must be a list of names.*not str\n  hint: such as \["double"\]'),
        ((FEED, FEED), "output names must be a list of names, or None for all, not dict"),
        ((3, FEED), "output names must be a list of names, or None for all, not int"),
        ((["absent"], FEED), r"there is no output 'absent'\n  hint: the model's outputs are: double: float32"),
        (([3], FEED), "there is no output 3"),
        (([["same"]], FEED), r"there is no output \['same'\]"),
        ((None, {"z": X}), "there is no input 'z'"),
        ((None, {3: X}), "there is no input 3"),
        ((None, {}), "missing inputs: x"),
        ((None, FEED, object()), "run options of ONNX Runtime have no meaning here"),
    ],
)
def test_wrong_runs(two: Model, arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        two.run(*arguments)


def test_wrong_inputs_by_name_elsewhere(two: Model) -> None:
    with pytest.raises(InputError, match="must be a dict of names to arrays, not list"):
        two.run_dict([X])
    for wrong in (0, -1, 2.5, "3", None, True):
        with pytest.raises(OptionError, match=r"runs=.* is not allowed\n  hint: give a whole number"):
            two.profile(FEED, wrong)


@pytest.mark.parametrize("out", [3, "ab", {"double": 1}, iter(()), np.empty(2, np.float32), (None,), [1, 2, 3]])
def test_wrong_kinds_of_out(two: Model, out) -> None:
    with pytest.raises(InputError, match=r"out must be a tuple of 2 arrays, not .*\n  hint: the model's outputs are"):
        two(3.0, out=out)


def test_out_of_things_that_are_no_arrays(static: Model) -> None:
    for wrong, kind in ((None, "NoneType"), ("y", "str"), (3, "int"), (np.float32(3), "float32")):
        with pytest.raises(InputError, match=rf"out for 'y' must be an array, given is {kind}"):
            static(X, out=(wrong,))


def test_signature_as_onnx_runtime_has_it() -> None:
    model = Model(dynamic_artifact())
    assert model.get_inputs() == [
        NodeArg("x", ["n", "m"], "tensor(float)"),
        NodeArg("y", ["n", "m"], "tensor(float)"),
    ]
    (output,) = model.get_outputs()
    assert (output.name, output.shape, output.type) == ("z", ["n", "m"], "tensor(float)")


@pytest.mark.parametrize(
    ("dtype", "type"),
    [
        *(("float32", "float"), ("float64", "double"), ("float16", "float16"), ("bfloat16", "bfloat16")),
        *(("bool", "bool"), ("int64", "int64"), ("uint8", "uint8"), ("int4", "int4")),
        *(("float8_e4m3fn", "float8e4m3fn"), ("float8_e5m2", "float8e5m2")),
        *(("float8_e8m0fnu", "float8e8m0"), ("float4_e2m1fn", "float4e2m1"), ("uint2", "uint2")),
    ],
)
def test_names_of_types(dtype: str, type: str) -> None:
    assert NodeArg.of(TensorInfo("x", dtype, (2, "n"))) == NodeArg("x", [2, "n"], f"tensor({type})")


def test_names_of_types_are_those_of_onnx_runtime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    for dtype, kind in (("float32", "FLOAT"), ("float64", "DOUBLE"), ("bfloat16", "BFLOAT16"), ("int8", "INT8"),
                        ("float8_e4m3fn", "FLOAT8E4M3FN"), ("bool", "BOOL"), ("uint4", "UINT4")):  # fmt: skip
        x = helper.make_tensor_value_info("x", getattr(TensorProto, kind), [2, "n"])
        y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
        graph = helper.make_graph([helper.make_node("Constant", [], ["y"], value_ints=[1])], "g", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        (theirs,) = session.get_inputs()
        ours = NodeArg.of(TensorInfo("x", dtype, (2, "n")))
        assert (theirs.name, theirs.shape, theirs.type) == (ours.name, ours.shape, ours.type)


@pytest.mark.parametrize("artifact", [None, "model.tw", b"bytes", 3])
def test_models_are_made_of_artifacts(artifact) -> None:
    with pytest.raises(ArtifactError, match=r"made of an Artifact, not of .*\n  hint: call tilewright.load"):
        Model(artifact)


@pytest.mark.parametrize("path", [None, 3, b"model.tw"])
def test_models_are_saved_to_paths(static: Model, path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot save to .*\n  hint: give a path"):
        static.save(path)


def through_pickle(model: Model) -> Model:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("again", [through_pickle, copy.copy, copy.deepcopy])
def test_copies(again) -> None:
    model = Model(static_artifact(), threads=1)
    model(X)
    other = again(model)
    assert other.threads == 1 and repr(other) == repr(model)
    np.testing.assert_array_equal(other(X)[0], Y)
    model.close()
    np.testing.assert_array_equal(other(X)[0], Y)
    third = again(other)
    other.close()
    np.testing.assert_array_equal(third(X)[0], Y)


def test_copies_share_the_weights() -> None:
    weights = np.frombuffer(bytearray(1 << 16), np.uint8)
    aligned = weights[-weights.ctypes.data % 64 :][: 1 << 15]
    model = Model(dataclasses.replace(static_artifact(), constants=aligned.data))
    assert copy.deepcopy(model)._loaded.programs[0].constants.ctypes.data == aligned.ctypes.data


def test_a_number_of_threads_that_was_left_open_is_left_open_elsewhere(monkeypatch) -> None:
    pickled = pickle.dumps(Model(static_artifact()))
    monkeypatch.setattr("tilewright.runtime.threads.available_cpus", lambda: 7)
    assert pickle.loads(pickled).threads == 7


def test_damaged_pickles_are_found() -> None:
    pickled = pickle.dumps(Model(static_artifact()))
    at = pickled.index(STATIC_CONSTANTS.tobytes())
    with pytest.raises(ArtifactError, match="wrong checksum"):
        pickle.loads(pickled[:at] + b"\1" + pickled[at + 1 :])


def test_artefacts_are_pickled_and_copied_too() -> None:
    artifact = static_artifact()
    for again in (pickle.loads(pickle.dumps(artifact)), copy.deepcopy(artifact), Artifact.load(artifact.to_bytes())):
        assert bytes(again.constants) == artifact.constants and again.inputs == artifact.inputs
        assert again.to_bytes() == artifact.to_bytes()


def test_bytes_are_those_of_the_file(tmp_path) -> None:
    artifact = static_artifact()
    artifact.save(tmp_path / "model.tw")
    assert artifact.to_bytes() == (tmp_path / "model.tw").read_bytes()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_processes(method: str) -> None:
    model = Model(dynamic_artifact(), threads=2)
    x = np.ones((64, 128), np.float32)
    model(x, x)
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        (z,) = pool.submit(model.run, {"x": x, "y": x + 1}).result(timeout=120)
        np.testing.assert_array_equal(z, 2 * x + 1)
        with pytest.raises(TilewrightError, match="missing inputs"):
            pool.submit(model.run, {"x": x}).result(timeout=120)


def test_a_closed_model_has_no_copies() -> None:
    model = Model(static_artifact())
    model.close()
    for again in (through_pickle, copy.copy, copy.deepcopy):
        with pytest.raises(ExecutionError, match="is closed"):
            again(model)
