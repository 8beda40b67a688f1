"""The stand-in answers as ONNX Runtime does: each question is put to both, and answers and errors are compared."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
import tilewright.onnxruntime as ours
from tests.architecture.test_house import modules_after

real: Any = pytest.importorskip("onnxruntime")

FLOAT = TensorProto.FLOAT
X = np.linspace(-2, 3, 6, dtype=np.float32).reshape(2, 1, 3)


def proto(nodes: list[Any], inputs: list[Any], outputs: list[Any], presets: dict[str, Any] | None = None) -> Any:
    infos = [[helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in part]
             for part in (inputs, outputs)]  # fmt: skip
    tensors = [numpy_helper.from_array(array, name) for name, array in (presets or {}).items()]
    graph = helper.make_graph(nodes, "a graph", *infos, tensors, doc_string="of a graph")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


SUM = proto(
    [helper.make_node("Add", ["x", "b"], ["y"]), helper.make_node("Neg", ["y"], ["z"])],
    [("x", FLOAT, ["n", None, 3]), ("b", FLOAT, [3])],
    [("y", FLOAT, ["n", None, 3]), ("z", FLOAT, None)],
    {"b": np.ones(3, np.float32)},
)
SUM.producer_name, SUM.domain, SUM.doc_string, SUM.model_version = "somebody", "com.example", "a text", 7
helper.set_model_props(SUM, {"author": "somebody else", "names": "{0: 'cat'}"})
MODEL: bytes = SUM.SerializeToString()
RESHAPE: bytes = proto(
    [helper.make_node("Reshape", ["x", "shape"], ["y"])],
    [("x", FLOAT, ["n"]), ("shape", TensorProto.INT64, [2])],
    [("y", FLOAT, None)],
).SerializeToString()


def session(ort: Any, model: Any = MODEL, **arguments: Any) -> Any:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"], **arguments)


def described(args: list[Any]) -> list[tuple[str, list[Any], str]]:
    return [(arg.name, arg.shape, arg.type) for arg in args]


def metadata(ort: Any) -> dict[str, Any]:
    found = session(ort).get_modelmeta()
    names = ("producer_name", "graph_name", "domain", "description", "graph_description", "version")
    return {name: getattr(found, name) for name in (*names, "custom_metadata_map")}


def with_dims(ort: Any, **sizes: int) -> Any:
    options = ort.SessionOptions()
    for name, size in sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    return session(ort, sess_options=options)


def terminated(ort: Any) -> Any:
    options = ort.RunOptions()
    options.terminate = True
    return session(ort).run(None, {"x": X}, options)


def set_option(ort: Any, name: str, value: Any) -> Any:
    options = ort.SessionOptions()
    setattr(options, name, value)
    return getattr(options, name)


def config_entry(ort: Any) -> tuple[str, str]:
    options, run = ort.SessionOptions(), ort.RunOptions()
    options.add_session_config_entry("session.a", "1")
    run.add_run_config_entry("run.a", "2")
    return options.get_session_config_entry("session.a"), run.get_run_config_entry("run.a")


def asynchronous(ort: Any) -> Any:
    done, told = threading.Event(), []

    def callback(results: Any, data: Any, error: str) -> None:
        told.append((list(results), data, error))
        done.set()

    session(ort).run_async(["z"], {"x": X}, callback, "data")
    assert done.wait(60)
    return told


def bound(ort: Any) -> list[Any]:
    """Inputs and outputs by array, by address and by value."""
    opened, x, y = session(ort), X.copy(), np.empty_like(X)
    first, second, third = (opened.io_binding() for _ in range(3))
    first.bind_cpu_input("x", x)
    first.bind_output("z")
    first.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    second.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    second.bind_output("z", "cpu")
    value = ort.OrtValue.ortvalue_from_shape_and_type([2, 1, 3], np.float32)
    third.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    third.bind_ortvalue_output("z", value)
    for binding in (first, second, third):
        binding.synchronize_inputs()
        opened.run_with_iobinding(binding)
        binding.synchronize_outputs()
    found = [*first.copy_outputs_to_cpu(), y, second.get_outputs()[0].numpy(), value.numpy()]
    first.clear_binding_inputs()
    first.clear_binding_outputs()
    return found


def wrongly_bound(ort: Any, x: Any = X, shape: tuple[int, ...] | None = None, name: str = "z") -> None:
    opened = session(ort)
    binding = opened.io_binding()
    binding.bind_cpu_input("x", x)
    if shape is not None:
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32))
    opened.run_with_iobinding(binding)


def value(ort: Any) -> tuple[Any, ...]:
    array = X.copy()
    made = ort.OrtValue.ortvalue_from_numpy(array)
    made.update_inplace(X + 1)
    facts = (made.shape(), made.data_type(), made.element_type(), made.device_name(), made.has_value())
    kinds = (made.is_tensor(), made.is_sparse_tensor(), made.is_tensor_sequence())
    halves = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ones(3, np.uint16), TensorProto.BFLOAT16)
    empty = ort.OrtValue.ortvalue_from_shape_and_type([2], TensorProto.INT64)
    turned = ort.OrtValue.ortvalue_from_numpy(np.asfortranarray(X[:, 0])).numpy()
    others = (array, made.data_ptr() == array.ctypes.data, halves.data_type(), empty.data_type(), turned)
    return (*facts, *kinds, *others, np.from_dlpack(made), made.tensor_size_in_bytes())


def with_values(ort: Any) -> list[Any]:
    feed = {"x": ort.OrtValue.ortvalue_from_numpy(X)}
    return [found.numpy() for found in session(ort).run_with_ort_values(None, feed)]


B = np.full(3, 5, np.float32)
QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "all outputs": lambda ort: session(ort).run(None, {"x": X}),
    "all outputs by an empty list": lambda ort: session(ort).run([], {"x": X}),
    "named outputs": lambda ort: session(ort).run(["z", "y", "z"], {"x": X}),
    "a tuple of names": lambda ort: session(ort).run(("z",), {"x": X}),
    "an overridden initializer": lambda ort: session(ort).run(None, {"x": X, "b": B}),
    "run options": lambda ort: session(ort).run(None, {"x": X}, ort.RunOptions()),
    "an input that is not contiguous": lambda ort: session(ort).run(None, {"x": X[::-1, :, ::-1]}),
    "an input in the order of Fortran": lambda ort: session(ort).run(None, {"x": np.asfortranarray(X)}),
    "an input as lists": lambda ort: session(ort).run(None, {"x": X.tolist()}),
    "a value as an input": lambda ort: session(ort).run(None, {"x": ort.OrtValue.ortvalue_from_numpy(X)}),
    "values": with_values,
    "asynchronously": asynchronous,
    "another output": lambda ort: session(ort).run(["q"], {"x": X}),
    "no inputs": lambda ort: session(ort).run(None, {}),
    "another input": lambda ort: session(ort).run(None, {"q": X}),
    "one input more": lambda ort: session(ort).run(None, {"x": X, "q": X}),
    "another dtype": lambda ort: session(ort).run(None, {"x": X.astype(np.float64)}),
    "another rank": lambda ort: session(ort).run(None, {"x": X[0]}),
    "another size": lambda ort: session(ort).run(None, {"x": X[..., :2]}),
    "another size of an overridden initializer": lambda ort: session(ort).run(None, {"x": X, "b": B[:2]}),
    "run options of another type": lambda ort: session(ort).run(None, {"x": X}, 3),
    "a terminated run": terminated,
    "inputs": lambda ort: described(session(ort).get_inputs()),
    "outputs": lambda ort: described(session(ort).get_outputs()),
    "overridable initializers": lambda ort: described(session(ort).get_overridable_initializers()),
    "metadata": metadata,
    "provider options": lambda ort: session(ort).get_provider_options()["CPUExecutionProvider"],
    "the name of a profile": lambda ort: session(ort).end_profiling(),
    "the shape with a fixed dim": lambda ort: described(with_dims(ort, n=2).get_inputs()),
    "a fixed dim": lambda ort: with_dims(ort, n=2).run(None, {"x": X}),
    "another size than the fixed one": lambda ort: with_dims(ort, n=5).run(None, {"x": X}),
    "a shape from a feed": lambda ort: session(ort, RESHAPE).run(
        None, {"x": X.ravel(), "shape": np.array([3, -1], np.int64)}
    ),
    "no such file": lambda ort: session(ort, "there/is/none.onnx"),
    "a path that is a folder": lambda ort: session(ort, str(Path(__file__).parent)),
    "bytes that are no model": lambda ort: session(ort, b"abc"),
    "no bytes": lambda ort: session(ort, b""),
    "no source": lambda ort: session(ort, 3),
    "shapes that contradict each other": lambda ort: session(
        ort,
        proto(
            [helper.make_node("MatMul", ["x", "x"], ["y"])], [("x", FLOAT, [3, 4])], [("y", FLOAT, None)]
        ).SerializeToString(),
    ),
    "an option": lambda ort: set_option(ort, "intra_op_num_threads", 2),
    "an unknown option": lambda ort: set_option(ort, "threads", 2),
    "an option of another type": lambda ort: set_option(ort, "intra_op_num_threads", "2"),
    "a number as a level": lambda ort: set_option(ort, "graph_optimization_level", 3),
    "a number as a mode": lambda ort: set_option(ort, "execution_mode", 1),
    "config entries": config_entry,
    "an unknown config entry": lambda ort: ort.SessionOptions().get_session_config_entry("a"),
    "a severity": lambda ort: ort.set_default_logger_severity(3),
    "an unknown severity": lambda ort: ort.set_default_logger_severity(9),
    "the device": lambda ort: ort.get_device(),
    "bound inputs and outputs": bound,
    "an input that cannot be bound": lambda ort: session(ort).io_binding().bind_cpu_input("q", X),
    "a bound input of another dtype": lambda ort: wrongly_bound(ort, X.astype(np.float64), (2, 1, 3)),
    "a bound output of another shape": lambda ort: wrongly_bound(ort, X, (1, 1, 3)),
    "no bound output": wrongly_bound,
    "a value": value,
    "a value elsewhere": lambda ort: ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0),
}


def outcome(question: Callable[[Any], Any], ort: Any) -> Any:
    try:
        return question(ort)
    except Exception as error:  # what is compared is which one
        return type(error).__name__


@pytest.mark.parametrize("name", QUESTIONS)
def test_it_answers_as_onnx_runtime(name: str) -> None:
    answers = [outcome(QUESTIONS[name], ort) for ort in (ours, real)]
    assert same(*answers), answers


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, np.ndarray):
        return found.dtype == wanted.dtype and found.shape == wanted.shape and np.allclose(found, wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)


def test_levels_and_modes_have_the_same_names_and_values() -> None:
    for name in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"):
        members = getattr(real, name).__members__
        wanted = {(n, m.value) for n, m in members.items()}  # an older one may have fewer
        assert wanted <= {(n, m.value) for n, m in getattr(ours, name).__members__.items()}


def test_options_have_the_same_names_and_defaults() -> None:
    for name in ("SessionOptions", "RunOptions"):
        options, others = getattr(real, name)(), getattr(ours, name)()
        public = [n for n in dir(options) if not n.startswith("_") and not callable(getattr(options, n))]
        for attribute in public:
            wanted, found = getattr(options, attribute), getattr(others, attribute)
            assert getattr(found, "value", found) == getattr(wanted, "value", wanted), attribute


def test_all_exceptions_are_there() -> None:
    state = real.capi.onnxruntime_pybind11_state
    names = {n for n, v in vars(state).items() if isinstance(v, type) and issubclass(v, Exception)}
    here = vars(ours.onnxruntime_pybind11_state)
    assert all(issubclass(here[name], Exception) for name in names - {"DeviceReset"})


def test_messages_are_ours_in_the_form_of_onnx_runtime() -> None:
    with pytest.raises(ours.onnxruntime_pybind11_state.InvalidArgument) as caught:
        session(ours).run(None, {"x": X[0]})
    text = str(caught.value)
    assert text.startswith("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : input 'x' must have 3 dims")
    assert "hint: expected is x: float32[n" in text


def test_an_operator_that_is_missing_is_not_implemented() -> None:
    node = helper.make_node("Nope", ["x"], ["y"])
    model = proto([node], [("x", FLOAT, [3])], [("y", FLOAT, [3])]).SerializeToString()
    with pytest.raises(ours.onnxruntime_pybind11_state.NotImplemented, match="Nope: the operator is unknown"):
        session(ours, model)


def test_a_broken_graph_is_invalid() -> None:
    node = helper.make_node("Neg", ["w"], ["y"])
    model = proto([node], [("x", FLOAT, [3])], [("y", FLOAT, [3])]).SerializeToString()
    with pytest.raises(ours.onnxruntime_pybind11_state.InvalidGraph, match="the value 'w' is read"):
        session(ours, model)


def test_initializers_of_old_files_are_constants() -> None:
    old = onnx.ModelProto.FromString(MODEL)
    old.ir_version = 3
    for ort in (ours, real):
        opened = session(ort, old.SerializeToString())
        assert opened.get_overridable_initializers() == []
        assert [arg.name for arg in opened.get_inputs()] == ["x"]


def test_initializers_in_other_files_cannot_be_overridden(tmp_path: Path) -> None:
    model = onnx.ModelProto.FromString(MODEL)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="data", size_threshold=0)
    opened = session(ours, tmp_path / "m.onnx")
    np.testing.assert_allclose(opened.run(["y"], {"x": X})[0], X + 1)
    with pytest.raises(ours.onnxruntime_pybind11_state.NotImplemented, match=r"cannot be overridden.*: b"):
        opened.run(["y"], {"x": X, "b": B})


def test_values_that_the_compiler_needs_come_from_the_feeds() -> None:
    opened = session(ours, RESHAPE)
    for shape in ((6, 1), (2, 3), (6, 1)):
        (y,) = opened.run(None, {"x": X.ravel(), "shape": np.array(shape, np.int64)})
        assert y.shape == shape


def test_other_providers_are_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not in available provider names"):
        opened = ours.InferenceSession(MODEL, providers=[("CUDAExecutionProvider", {"a": 1}), "CPUExecutionProvider"])
    assert opened.get_providers() == ours.get_available_providers() == ["CPUExecutionProvider"]
    assert ours.InferenceSession(MODEL, providers="CPUExecutionProvider").get_providers() == ["CPUExecutionProvider"]
    for wrong in (3, [3]):
        with pytest.raises(ValueError, match="provider"):
            ours.InferenceSession(MODEL, providers=wrong)


def test_threads_and_the_level_take_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    compile_model = tilewright.compile
    monkeypatch.setattr("tilewright.api.compile", lambda model, **how: asked.append(how) or compile_model(model, **how))
    options = ours.SessionOptions()
    options.intra_op_num_threads = 2
    options.graph_optimization_level = ours.GraphOptimizationLevel.ORT_DISABLE_ALL
    opened = ours.InferenceSession(MODEL, options)
    assert opened.get_session_options() is options
    ours.InferenceSession(MODEL)
    assert [(how["threads"], how["numerics"]) for how in asked] == [(2, "strict"), (None, "default")]


def test_what_would_write_files_of_onnx_runtime_is_refused() -> None:
    not_implemented = ours.onnxruntime_pybind11_state.NotImplemented
    options = ours.SessionOptions()
    options.optimized_model_filepath = "m.onnx"
    with pytest.raises(not_implemented, match=r"optimized_model_filepath.*\n.*hint: "):
        ours.InferenceSession(MODEL, options)
    with pytest.raises(not_implemented, match=r"operators .* cannot be used here: libops\.so"):
        ours.SessionOptions().register_custom_ops_library("libops.so")
    with pytest.raises(not_implemented, match="weights of a model come from its file"):
        ours.SessionOptions().add_initializer("w", None)
    with pytest.raises(not_implemented, match="weights of a model come from its file"):
        ours.SessionOptions().add_external_initializers(["w"], [None])


def test_options_of_other_modules_are_refused() -> None:
    with pytest.raises(TypeError, match="sess_options must be SessionOptions of this module"):
        ours.InferenceSession(MODEL, real.SessionOptions())


def test_names_that_are_not_there_are_named() -> None:
    with pytest.raises(AttributeError, match=r"no 'LoraAdapter'; docs/onnxruntime\.md"):
        _ = ours.LoraAdapter


def test_a_cached_model_needs_neither_compiler_nor_onnx(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(MODEL)
    code = (
        "import numpy as np, tilewright.onnxruntime as ort\n"
        f"ort.InferenceSession({str(path)!r}).run(None, {{'x': np.zeros((2, 1, 3), np.float32)}})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    loaded = modules_after(code)
    assert loaded.isdisjoint({"onnx", "tilewright.compiler", "tilewright.graph", "onnxruntime"})
