"""What models keep between calls, and what trim and close give back."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.runtime.native import STATIC_CONSTANTS, dynamic_artifact, range_artifact, static_artifact
from tests.runtime.native_threads import end_soon, native_threads, own_pools
from tilewright.runtime import Model, load
from tilewright.runtime.arena import LEAST_SHRUNK, PATIENCE, Arena
from tilewright.runtime.errors import ExecutionError

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
fork_only = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

X = np.ones((2, 3), np.float32)
Y = 2 * X + STATIC_CONSTANTS
CLOSED = r"this model is closed\n  hint: load or compile it again"


def call(model: Model, n: int, m: int = 256) -> None:
    x = np.ones((n, m), np.float32)
    np.testing.assert_array_equal(model(x, x)[0], x + x)


def arenas(model: Model) -> list[int]:
    """Bytes of the arenas that are kept; the model's need is 1 KiB for each row, and 1 KiB of scratch memory for each
    thread, which does not count here."""
    return [context.arena.nbytes - 1024 * model.threads for context in model._contexts]


def test_calls_one_after_the_other_keep_one_arena_of_the_largest_need() -> None:
    model = Model(dynamic_artifact(), threads=2)
    for n in (10, 3000, 1, 500):
        call(model, n)
    assert arenas(model) == [3000 * 1024]


def test_trim_gives_back_what_idle_calls_left() -> None:
    model = Model(dynamic_artifact(), threads=2)
    call(model, 3000)
    context = weakref.ref(model._contexts[0])
    model.trim()
    assert arenas(model) == [] and context() is None
    call(model, 10)
    assert arenas(model) == [10 * 1024]


def test_results_outlive_trim_and_close() -> None:
    model = Model(dynamic_artifact(), threads=1)
    x = np.arange(64 * 256, dtype=np.float32).reshape(64, 256)
    (before,) = model(x, x)
    model.trim()
    (after,) = model(x, x + 1)
    model.close()
    np.testing.assert_array_equal(before, x + x)
    np.testing.assert_array_equal(after, x + x + 1)


class Waiting:
    """An input that stops a call until it may go on: the call has its context by then."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.reached, self.go = array, threading.Event(), threading.Event()

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        self.reached.set()
        assert self.go.wait(60)
        return self.array


def running_calls(model: Model, count: int, x: np.ndarray) -> tuple[list[Waiting], list[threading.Thread], list]:
    """Calls in threads of their own, all of which have begun."""
    inputs, results = [Waiting(x) for _ in range(count)], []
    threads = [threading.Thread(target=lambda w=w: results.append(model(w, x)[0])) for w in inputs]
    for thread, waiting in zip(threads, inputs, strict=True):
        thread.start()
        assert waiting.reached.wait(60)
    return inputs, threads, results


def finish(inputs: list[Waiting], threads: list[threading.Thread]) -> None:
    for waiting in inputs:
        waiting.go.set()
    for thread in threads:
        thread.join()


def test_as_many_arenas_are_kept_as_calls_ran_at_once() -> None:
    model = Model(dynamic_artifact(), threads=1)
    x = np.ones((50, 256), np.float32)
    finish(*running_calls(model, 3, x)[:2])
    assert arenas(model) == [50 * 1024] * 3
    for _ in range(5):
        call(model, 60)
    assert sorted(arenas(model)) == [50 * 1024, 50 * 1024, 60 * 1024]


def test_trim_while_calls_run_takes_their_memory_when_they_end() -> None:
    model = Model(dynamic_artifact(), threads=2)
    x = np.ones((50, 256), np.float32)
    inputs, threads, results = running_calls(model, 3, x)
    model.trim()
    finish(inputs, threads)
    assert arenas(model) == []
    for result in results:
        np.testing.assert_array_equal(result, x + x)


@pytest.mark.usefixtures("own_garbage")
def test_close_while_calls_run(monkeypatch: pytest.MonkeyPatch) -> None:
    own_pools(monkeypatch)
    model = Model(dynamic_artifact(), threads=5)
    code, pool = weakref.ref(model._loaded.programs[0].code), weakref.ref(model._loaded.programs[0].pool)
    x = np.ones((50, 256), np.float32)
    inputs, threads, results = running_calls(model, 3, x)
    model.close()
    with pytest.raises(ExecutionError, match=CLOSED):
        model(x, x)
    assert code() is not None and pool() is not None
    finish(inputs, threads)
    assert len(results) == 3
    for result in results:
        np.testing.assert_array_equal(result, x + x)
    threads.clear()
    gc.collect()
    assert code() is None and pool() is None
    with pytest.raises(ExecutionError, match=CLOSED):
        model(x, x)


def test_a_call_that_fails_after_close() -> None:
    model = Model(dynamic_artifact(), threads=1)
    x = np.full((2, 2), -1, np.float32)
    waiting, errors = Waiting(x), []

    def work() -> None:
        with pytest.raises(ExecutionError, match=r"x\[0, 0\] is -1"):
            model(waiting, x)
        errors.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    assert waiting.reached.wait(60)
    model.close()
    finish([waiting], [thread])
    assert errors == [True]


def test_close_at_any_time() -> None:
    for n in range(20):
        model = Model(dynamic_artifact(), threads=2)
        x = np.ones((5, 256), np.float32)
        wrong: list[object] = []
        begun = threading.Barrier(4)

        def work(model=model, x=x, wrong=wrong, begun=begun) -> None:
            begun.wait()
            try:
                while True:
                    (z,) = model(x, x)
                    if not np.array_equal(z, x + x):
                        wrong.append(z)
            except ExecutionError as error:
                if "is closed" not in str(error):
                    wrong.append(error)
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait()
        for _ in range(n):
            model.trim()
        model.close()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_closed_model() -> None:
    model = Model(static_artifact())
    model(X)
    model.close()
    model.close()
    model.trim()
    for use in (
        lambda: model(X),
        lambda: model.run({"x": X}),
        lambda: model.run(None, {"x": X}),
        lambda: model.run_dict({"x": X}),
        lambda: model.profile({"x": X}),
        lambda: model.save("model.tw"),
        lambda: model.report(),
        lambda: model.artifact,
        lambda: model.__enter__(),
        lambda: model.__reduce__(),
        lambda: model.__copy__(),
    ):
        with pytest.raises(ExecutionError, match=CLOSED):
            use()
    assert "closed" in repr(model) and model.get_inputs()[0].name == "x"


@pytest.mark.usefixtures("own_garbage")
def test_close_lets_go_of_code_and_weights() -> None:
    model = load(static_artifact().to_bytes())
    image, constants = model.artifact.image, model.artifact.constants
    assert image is not None and isinstance(constants, memoryview)
    kept = [weakref.ref(image), weakref.ref(constants.obj)]
    del image, constants
    model.close()
    gc.collect()
    assert [one() for one in kept] == [None, None]


def test_the_end_of_with_closes() -> None:
    with Model(static_artifact()) as model:
        np.testing.assert_array_equal(model(X)[0], Y)
    with pytest.raises(ExecutionError, match=CLOSED):
        model(X)
    with pytest.raises(ZeroDivisionError), Model(static_artifact()) as model:
        1 / 0  # noqa: B018
    with pytest.raises(ExecutionError, match=CLOSED):
        model(X)


@linux_only
def test_close_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    own_pools(monkeypatch)
    before = native_threads()
    model = Model(dynamic_artifact(), threads=4)
    call(model, 8)
    begun = native_threads() - before
    assert len(begun) == 3
    model.close()
    assert end_soon(begun)


@fork_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("early", [False, True])
def test_close_and_trim_on_both_sides_of_a_fork(early: bool) -> None:
    model = Model(dynamic_artifact(), threads=3)
    call(model, 64)
    if early:
        model.close()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            if not early:
                call(model, 64)
                model.trim()
                call(model, 64)
                model.close()
            with pytest.raises(ExecutionError, match=CLOSED):
                call(model, 64)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    if not early:
        call(model, 64)


def test_an_arena_shrinks_after_many_small_requests() -> None:
    arena = Arena("test")
    large = 8 * LEAST_SHRUNK
    arena.reserve(large)
    for size in range(2 * PATIENCE):
        arena.reserve(1000 + size)
    assert arena.nbytes <= 1000 + 2 * PATIENCE and arena.address % 64 == 0
    arena.reserve(large)
    assert arena.nbytes == large


def test_an_arena_stays_where_half_of_it_is_needed_now_and_then() -> None:
    arena = Arena("test")
    large = 8 * LEAST_SHRUNK
    arena.reserve(large)
    for step in range(6 * PATIENCE):
        arena.reserve(large // 2 if step % PATIENCE == 0 else 1000)
    assert arena.nbytes == large


def test_small_arenas_stay() -> None:
    arena = Arena("test")
    arena.reserve(LEAST_SHRUNK)
    for _ in range(3 * PATIENCE):
        arena.reserve(0)
    assert arena.nbytes == LEAST_SHRUNK


def test_a_model_that_is_called_with_many_small_shapes_gives_its_arena_back_by_itself() -> None:
    model = Model(dynamic_artifact(), threads=1)
    call(model, 5000)
    for step in range(2 * PATIENCE):
        call(model, 10 + step % 7)
    assert arenas(model)[0] <= 16 * 1024


def test_shapes_that_depend_on_values_can_be_closed_and_trimmed() -> None:
    with Model(range_artifact()) as model:
        for count in (5, 3):
            np.testing.assert_array_equal(model(count, [1.0])[0], np.arange(count) + 1)
            model.trim()


RSS = """
import gc, sys
import numpy as np
from tilewright.runtime import load

def megabytes():
    gc.collect()
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) / 1024

{body}
"""


def rss(body: str, *arguments: str) -> list[float]:
    program = RSS.format(body=body)
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return [float(word) for word in done.stdout.split()]


@linux_only
@pytest.mark.parametrize("rows", [40_000, 15_000], ids=["40 MB", "15 MB"])
def test_trim_gives_memory_back_to_the_operating_system(tmp_path: Path, rows: int) -> None:
    dynamic_artifact().save(tmp_path / "model.tw")
    body = f"""
model = load(sys.argv[1], threads=1)
def call(n):
    x = np.ones((n, 256), np.float32)
    model(x, x)
call(10)
before = megabytes()
call({rows})
held = megabytes()
model.trim()
print(before, held, megabytes())
"""
    before, held, after = rss(body, str(tmp_path / "model.tw"))
    size = rows / 1024  # of the arena, and of the memory of the last result
    assert held - before > 1.8 * size
    assert after - before < 0.2 * size


@linux_only
def test_close_gives_weights_back_to_the_operating_system(tmp_path: Path) -> None:
    weights = STATIC_CONSTANTS.tobytes().ljust(64 << 20, b"w")
    dataclasses.replace(static_artifact(), constants=weights).save(tmp_path / "model.tw")
    body = """
load(sys.argv[1]).close()
before = megabytes()
with load(sys.argv[1]) as model:
    model(np.ones((2, 3), np.float32))
    held = megabytes()
print(before, held, megabytes())
"""
    before, held, after = rss(body, str(tmp_path / "model.tw"))
    assert 60 < held - before < 80  # once, and not twice
    assert after - before < 10


@linux_only
def test_many_loads_leave_nothing_behind(tmp_path: Path) -> None:
    dynamic_artifact().save(tmp_path / "model.tw")
    body = """
def loads(count):
    for _ in range(count):
        with load(sys.argv[1], threads=2) as model:
            x = np.ones((10, 256), np.float32)
            model(x, x)
    return megabytes()
loads(20)
print(loads(20), loads(100))
"""
    before, after = rss(body, str(tmp_path / "model.tw"))
    assert after - before < 4


def test_loading_a_closed_models_file_again(tmp_path: Path) -> None:
    static_artifact().save(tmp_path / "model.tw")
    for mmap in (False, True):
        with load(tmp_path / "model.tw", mmap=mmap) as model:
            np.testing.assert_array_equal(model(X)[0], Y)


HOLES = """
import ctypes, sys
import numpy as np
from tilewright.runtime import load

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PAGE, SIZE = 4096, 6 << 30


def reserved(size):
    return libc.mmap(None, size, 0, 0x4022, -1, 0)  # private, anonymous, without reserve


def holes():
    area = reserved(SIZE)
    for piece in (1 << 26, 1 << 20, 1 << 16, PAGE):  # what is free above it
        while reserved(piece) > area:
            pass
    for n in range(1, 1000):
        assert libc.munmap(area + SIZE - 2 * n * PAGE, PAGE) == 0


holes()
x = np.full((64, 64), 0.5, np.float32)
assert abs(load(sys.argv[1])(x)[0] - 32 * np.sin(np.exp(1 / 64))).max() < 1e-3
print("done")
"""


@linux_only
def test_code_is_within_its_own_reach_wherever_free_memory_is(tmp_path: Path) -> None:
    """Single free pages lie gigabytes away from larger pieces, as between large caches."""
    nodes = [helper.make_node("Softmax", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["b"])]
    nodes += [helper.make_node("Sin", ["b"], ["c"]), helper.make_node("MatMul", ["c", "x"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in "xy")
    graph = helper.make_graph(nodes, "holes", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    tilewright.compile(proto, cache=False).save(tmp_path / "model.tw")
    command = [sys.executable, "-c", HOLES, str(tmp_path / "model.tw")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
