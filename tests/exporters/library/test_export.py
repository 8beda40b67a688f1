"""Models as libraries: what their C interface gives is what the model gives in Python, to the bit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as h

import tilewright
from tests.exporters.library import c_library as c
from tests.exporters.library.c_library import CError, CModel
from tests.models import gather, mlp
from tests.staging.models import model_of

rng = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def same(found: list[np.ndarray], wanted: tuple[np.ndarray, ...]) -> bool:
    return all(f.shape == w.shape and f.dtype == w.dtype and f.tobytes() == w.tobytes()
               for f, w in zip(found, wanted, strict=True))  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(scope="module")
def exported(folder: Path) -> Callable[..., Path]:
    """A library of a model, made once for each name."""
    made: dict[str, Path] = {}

    def export(name: str, model: onnx.ModelProto, **options: Any) -> Path:
        if name not in made:
            made[name] = folder / f"lib{name}.so"
            tilewright.export(model, made[name], threads=1, **options)
        return made[name]

    return export


@pytest.fixture
def network(exported: Callable[..., Path]) -> CModel:
    return CModel(exported("mlp", mlp()), "mlp")


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_may_change_from_run_to_run(exported: Callable[..., Path], threads: int) -> None:
    model = tilewright.compile(mlp(), threads=1)
    library = CModel(exported("mlp", mlp()), "mlp", threads=threads)
    for batch in (3, 1, 0, 200, 3):
        x = floats(batch, 64)
        assert same(library.run(x), model(x))
    library.close()


def test_it_says_what_it_is(network: CModel) -> None:
    info = network.info
    assert (info.abi, info.name, info.input_count, info.output_count, info.state_count) == (1, b"mlp", 1, 1, 0)
    x = info.inputs[0]
    assert (x.name, c.DTYPES[x.dtype - 1], x.rank, x.shape[0], x.shape[1]) == (b"x", "float32", 2, -1, 64)
    assert [x.dims[k] for k in range(2)] == [b"batch", b"64"]
    assert info.weight_bytes >= 4 * 65 * 32


def test_it_needs_the_c_library_alone(exported: Callable[..., Path]) -> None:
    path = exported("mlp", mlp())
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    libraries = {line.split("[")[1].rstrip("]") for line in needed.splitlines() if "NEEDED" in line}
    assert libraries <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}
    shown = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in shown.splitlines()}
    functions = ("info", "plan", "create", "run", "cancel", "state", "reset", "error", "destroy")
    assert names == {f"mlp_{name}" for name in functions}
    assert path.stat().st_size < 200_000


def test_memory_of_the_caller_is_enough_when_it_is_what_the_plan_says(exported: Callable[..., Path]) -> None:
    path, x = exported("mlp", mlp()), floats(7, 64)
    needs, shapes = CModel(path, "mlp", create=False).plan(x)
    assert shapes == [(7, 32)]
    (wanted,) = tilewright.compile(mlp(), threads=1)(x)
    guarded = np.full(needs.total + 128, 0xA5, np.uint8)
    inner = guarded[64 : 64 + needs.total]
    library = CModel(path, "mlp", memory=inner.ctypes.data, memory_bytes=inner.size)
    assert same(library.run(x), (wanted,))
    with pytest.raises(CError, match=r"needs \d+ bytes of memory besides the model's own") as raised:
        library.run(floats(5000, 64))
    assert raised.value.status == c.NO_MEMORY
    assert same(library.run(x), (wanted,))
    library.close()
    assert (guarded[:64] == 0xA5).all() and (guarded[-64:] == 0xA5).all()
    with pytest.raises(CError, match="the memory is too small: the model alone needs"):
        CModel(path, "mlp", memory=inner.ctypes.data, memory_bytes=200)


def test_outputs_of_the_caller_are_written_and_nothing_behind_them(network: CModel) -> None:
    x, room = floats(3, 64), np.full((5, 32), 7, np.float32)
    (y,) = network.run(x, out=[room[:3]])
    assert same([y], tilewright.compile(mlp(), threads=1)(x)) and (room[3:] == 7).all() and (room[:3] == y).all()
    with pytest.raises(CError, match="output 'y' has less memory than its shape needs"):
        network.run(x, out=[room[:2]])


@pytest.mark.parametrize(
    ("x", "status", "text"),
    [
        (np.zeros((2, 64), np.float64), c.BAD_INPUT, "input 'x' has another dtype"),
        (np.zeros(64, np.float32), c.BAD_INPUT, "input 'x' has another number of axes"),
        (np.zeros((2, 65), np.float32), c.BAD_INPUT, r"has the shape \[2, 65\], and the model takes \[-1, 64\]"),
    ],
)
def test_inputs_that_do_not_fit(network: CModel, x: np.ndarray, status: int, text: str) -> None:
    with pytest.raises(CError, match=text) as raised:
        network.run(x)
    assert raised.value.status == status
    assert network.run(floats(1, 64))[0].shape == (1, 32)


def _changed(**fields: Any) -> c.Tensor:
    tensor = c.Tensor.of(floats(2, 64))
    for name, value in fields.items():
        setattr(tensor, name, value)
    return tensor


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (_changed(bytes=8), "has less memory than its shape needs"),
        (_changed(data=None), "has null data"),
        (_changed(data=4097), "is not aligned to an element"),
        (_changed(shape=(ctypes.c_int64 * 16)(-1, 64)), r"has the shape \[-1, 64\]"),
        (_changed(shape=(ctypes.c_int64 * 16)(1 << 60, 64)), "is larger than the address space"),
        (_changed(rank=1000), "another number of axes"),
        (_changed(dtype=-5), "another dtype"),
    ],
)
def test_tensors_that_cannot_be(network: CModel, tensor: c.Tensor, text: str) -> None:
    run, one = network._function("run"), ctypes.c_size_t(1)
    status = run(network.made, ctypes.byref(tensor), one, network.outputs, one)
    assert status == c.BAD_INPUT
    with pytest.raises(CError, match=text):
        network.check(status)


def test_null_pointers_and_wrong_counts(network: CModel) -> None:
    run, one = network._function("run"), ctypes.c_size_t(1)
    tensor, out = c.Tensor.of(floats(1, 64)), network.outputs
    assert run(None, ctypes.byref(tensor), one, out, one) == c.BAD_ARGUMENT
    assert run(network.made, None, one, out, one) == c.BAD_ARGUMENT
    assert run(network.made, ctypes.byref(tensor), ctypes.c_size_t(2), out, one) == c.BAD_ARGUMENT
    assert run(network.made, ctypes.byref(tensor), one, out, ctypes.c_size_t(0)) == c.BAD_ARGUMENT
    assert run(network.made, ctypes.byref(tensor), one, None, one) == c.BAD_ARGUMENT
    assert network._function("state")(network.made, one, ctypes.byref(tensor)) == c.BAD_ARGUMENT
    assert network._function("create")(None, None) == c.BAD_ARGUMENT
    network._function("destroy")(None)
    with pytest.raises(CError, match="of another version"):
        CModel(Path(network.library._name), "mlp", size=3)
    with pytest.raises(CError, match="threads are from 1 to 1024"):
        CModel(Path(network.library._name), "mlp", threads=5000)


def test_what_fails_in_a_run_is_said_with_the_place(exported: Callable[..., Path]) -> None:
    library = CModel(exported("rows", gather()), "rows")
    with pytest.raises(CError, match=r"out of range.*look_up") as raised:
        library.run(np.array([1, 9], np.int64))
    assert raised.value.status in (c.FAILED, c.BAD_INPUT)
    assert library.run(np.array([4], np.int64))[0].tolist() == [[8, 9]]


def loop(trips: int | None = None) -> onnx.ModelProto:
    """Doubles x while the sum is below 100, or `trips` times, and gives how often it did."""
    body = h.make_graph(
        [
            h.make_node("Add", ["v", "v"], ["w"]),
            h.make_node("ReduceSum", ["w"], ["sum"], keepdims=0),
            h.make_node("Less", ["sum", "limit"], ["on"]),
            h.make_node("Add", ["n", "one"], ["m"]),
        ],
        "body",
        [h.make_tensor_value_info("i", TensorProto.INT64, []), h.make_tensor_value_info("c", TensorProto.BOOL, []),
         h.make_tensor_value_info("v", TensorProto.FLOAT, ["k"]), h.make_tensor_value_info("n", TensorProto.INT64, [])],
        [h.make_tensor_value_info("on", TensorProto.BOOL, []), h.make_tensor_value_info("w", TensorProto.FLOAT, ["k"]),
         h.make_tensor_value_info("m", TensorProto.INT64, []), h.make_tensor_value_info("w", TensorProto.FLOAT, ["k"])],
    )  # fmt: skip
    constants = {"most": np.array(trips or 1000), "yes": np.array(True), "limit": np.array(100, np.float32),
                 "zero": np.array(0), "one": np.array(1)}  # fmt: skip
    nodes = [h.make_node("Loop", ["most", "yes", "x", "zero"], ["y", "count", "rows"], body=body)]
    return model_of(nodes, [("x", TensorProto.FLOAT, ["k"])], ["y", "count", "rows"], constants)


def test_loops_that_data_end(exported: Callable[..., Path]) -> None:
    model, library = tilewright.compile(loop(), threads=1), CModel(exported("loop", loop()), "loop")
    for x in (np.array([1, 2], np.float32), np.array([0.001], np.float32), np.array([500, 1, 1], np.float32)):
        assert same(library.run(x), model(x))
    room = [np.zeros(1, np.float32), np.zeros((), np.int64), np.zeros((40, 1), np.float32)]
    x = np.array([0.001], np.float32)
    assert same(library.run(x, out=room), model(x))
    with pytest.raises(CError, match="known after a run") as raised:
        library.plan(x)
    assert raised.value.status == c.UNKNOWN_SIZE
    library.close()


def test_a_loop_is_ended_by_its_caller(exported: Callable[..., Path]) -> None:
    asked: list[int] = []

    def proceed(_: int | None) -> int:
        asked.append(1)
        return int(len(asked) < 3)

    endless = onnx.ModelProto()
    endless.CopyFrom(loop())
    limits = {"most": np.array(2**62), "limit": np.array(np.inf, np.float32)}
    for tensor in endless.graph.initializer:
        if tensor.name in limits:
            tensor.CopyFrom(onnx.numpy_helper.from_array(limits[tensor.name], tensor.name))
    endless.graph.node[0].output[2] = ""
    del endless.graph.output[2]
    library = CModel(exported("endless", endless), "endless", proceed=c.PROCEED(proceed))
    with pytest.raises(CError, match="ended by the function proceed") as raised:
        library.run(np.zeros(2, np.float32))
    assert raised.value.status == c.STOPPED and len(asked) == 3
    library.close()


def counter(way: str) -> onnx.ModelProto:
    """A state to which x is added; with "swapped" the sum is over what was there in reverse."""
    nodes = [h.make_node("Add", ["s", "x"], ["t"]), h.make_node("Mul", ["t", "two"], ["y"])]
    if way == "swapped":
        at = np.array([3, 2, 1, 0])
        nodes = [h.make_node("Gather", ["s", "at"], ["r"]), h.make_node("Add", ["r", "x"], ["t"]), nodes[1]]
    inputs = [("x", TensorProto.FLOAT, [4]), ("s", TensorProto.FLOAT, [4])]
    constants = {"two": np.array(2, np.float32), **({"at": at} if way == "swapped" else {})}
    return model_of(nodes, inputs, ["y", "t"], constants)


@pytest.mark.parametrize("way", ["in place", "swapped"])
def test_states_are_kept_reset_and_looked_at(exported: Callable[..., Path], way: str) -> None:
    states = {"s": "t"}
    model = tilewright.compile(counter(way), threads=1, states=states)
    assert model.states[0].way == way
    name = f"counts_{way[:2]}"
    library = CModel(exported(name, counter(way), states=states), name)
    other = CModel(exported(name, counter(way), states=states), name)
    for _ in range(3):
        x = floats(4)
        assert same(library.run(x), model(x))
    assert library.state(0).tobytes() == model.state("s").tobytes()
    assert not other.state(0).any()
    library.reset(), model.reset()
    assert same(library.run(x), model(x))


def test_frequent_sizes_have_programs_of_their_own(exported: Callable[..., Path]) -> None:
    frequent = [{"batch": 1}, {"batch": 8}]
    model = tilewright.compile(mlp(), threads=1, frequent=frequent)
    library = CModel(exported("often", mlp(), frequent=frequent), "often")
    for batch in (1, 5, 8, 1):
        x = floats(batch, 64)
        assert same(library.run(x), model(x))


def test_weights_in_a_file_beside(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "libapart.so"
    files = tilewright.export(mlp(), path, weights="beside", threads=1)
    assert [f.name for f in files] == ["libapart.so", "apart.h", "libapart.weights"]
    x = floats(2, 64)
    assert same(CModel(path, "apart").run(x), tilewright.compile(mlp(), threads=1)(x))
    sound = files[2].read_bytes()
    copy = tmp_path / "copy.weights"

    def fails(data: bytes, text: str, **options: Any) -> None:
        copy.write_bytes(data)
        with pytest.raises(CError, match=text) as raised:
            CModel(path, "apart", weights=bytes(copy), **options)
        assert raised.value.status == c.BAD_WEIGHTS

    damaged = sound[:-1] + bytes([sound[-1] ^ 1])
    fails(sound[:-1], "cut off")
    fails(b"X" + sound[1:], "another model")
    fails(damaged, "is damaged", check_weights=1)
    copy.write_bytes(sound)
    assert CModel(path, "apart", weights=bytes(copy), check_weights=1).run(x)[0].shape == (2, 32)
    with pytest.raises(CError, match="cannot be opened"):
        CModel(path, "apart", weights=b"/nowhere/at all")


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for folder in ("one", "another/deeper"):
        path = tmp_path / folder / "libsame.so"
        path.parent.mkdir(parents=True)
        files = tilewright.export(mlp(), path, threads=1, compile_threads=len(made) + 1)
        made.append([f.read_bytes() for f in files])
    assert made[0] == made[1]


def test_another_thread_finds_it_busy_and_a_fork_goes_on(exported: Callable[..., Path]) -> None:
    library, x = CModel(exported("mlp", mlp()), "mlp", threads=2), floats(300, 64)
    wanted, found = tilewright.compile(mlp(), threads=1)(x), []

    def call() -> None:
        for _ in range(50):
            try:
                own = [np.empty_like(wanted[0])]  # the model's memory is the next run's, whichever thread makes it
                found.append(same(library.run(x, out=own), wanted))
            except CError as error:
                assert error.status == c.BUSY

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found and all(found)
    child = os.fork()
    if not child:
        os._exit(0 if same(library.run(x), wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same(library.run(x), wanted)
    library.close()


def test_another_thread_ends_a_run(exported: Callable[..., Path]) -> None:
    library, x = CModel(exported("mlp", mlp()), "mlp", threads=1), floats(3000, 64)
    library._function("cancel")(None)
    wanted, ends = library.run(x[:5]), threading.Event()

    def cancel() -> None:
        while not ends.is_set():
            library._function("cancel")(library.made)

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(CError, match="the run was cancelled") as stopped:
            for _ in range(1000):
                library.run(x)
    finally:
        ends.set()
        thread.join()
    assert stopped.value.status == c.STOPPED
    assert same(library.run(x[:5]), wanted)
    library.close()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("beside", [False, True], ids=["its own memory", "memory of the caller"])
def test_a_child_may_use_what_a_thread_of_its_parent_was_running(
    exported: Callable[..., Path], beside: bool
) -> None:
    """The thread is gone, and with it whoever would end the run."""
    path, x = exported("mlp", mlp()), floats(300, 64)
    wanted = tilewright.compile(mlp(), threads=1)(x)
    memory = np.empty(CModel(path, "mlp", create=False).plan(x, threads=2)[0].total, np.uint8)
    own = {"memory": memory.ctypes.data, "memory_bytes": memory.nbytes} if beside else {}
    library, ends = CModel(path, "mlp", threads=2, **own), threading.Event()

    def call() -> None:
        while not ends.is_set():
            library.run(x)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        for _ in range(8):
            child = os.fork()
            if not child:
                signal.alarm(20)
                alike = False
                with contextlib.suppress(CError):
                    alike = same(library.run(x), wanted) and same(library.run(x[:5]), [wanted[0][:5]])
                library.close()
                os._exit(0 if alike else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        ends.set()
        thread.join()
    assert same(library.run(x), wanted)
    library.close()
