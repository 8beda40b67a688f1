"""The zones catch what they are for: code written by hand that goes beyond each kind of buffer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.codegen.native import run_kernel
from tests.runtime.native import HOST, RUN, compile_ir
from tests.zones.turned_on import arrays_between_zones, zones
from tilewright.codegen.cpu.linking.link import link
from tilewright.loops.kernel_info import parse_kernel
from tilewright.runtime.artifact import Artifact, StateInfo, StaticPlan, TensorInfo
from tilewright.runtime.errors import BeyondBufferError
from tilewright.runtime.guarded.pages import IS_AVAILABLE
from tilewright.runtime.module import Model
from tilewright.runtime.states import States

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="there are zones on Linux for x86-64 only")

BYTES = 24


def model(statements: str, **more: object) -> Model:
    """x: u8[24] -> y: u8[24] by statements that have %x, %y, %constants (24 bytes), %arena and %scratch (128 each)."""
    text = f"{RUN}  %x = load ptr, ptr %in\n  %y = load ptr, ptr %out\n{statements}\n  ret i32 0\n}}\n"
    return Model(
        Artifact(
            target=HOST,
            inputs=(TensorInfo("x", "uint8", (BYTES,)),),
            outputs=(TensorInfo("y", "uint8", (BYTES,)),),
            image=link([compile_ir(text)]),
            constants=bytes(BYTES),
            static_plan=StaticPlan(arena=128, scratch=128),
            **more,
        ),
        threads=2,
    )


def access(kind: str, base: str, at: int, dtype: str = "i8") -> str:
    """A load or a store of an element at byte `at` of a buffer."""
    place = f"  %at = getelementptr i8, ptr %{base}, i64 {at}\n"
    if kind == "load":
        return f"{place}  %loaded = load volatile {dtype}, ptr %at, align 1"
    return f"{place}  store volatile {dtype} 7, ptr %at, align 1"


X = np.arange(BYTES, dtype=np.uint8)
SIZES = {"x": 24, "y": 24, "constants": 24, "arena": 128 + 2 * 128}  # scratch memory of two threads is behind the arena
NAMES = {"x": "input 'x'", "y": "output 'y'"}


def refused(run: Callable[[], object], match: str) -> None:
    """A run that goes beyond a buffer is an error, and kept for the end of the test, where it is not one any more."""
    with pytest.raises(BeyondBufferError, match=match):
        run()
    here = zones()
    assert here is not None and here.found
    here.found.clear()


@pytest.mark.parametrize("kind", ["load", "store"])
@pytest.mark.parametrize("base", ["x", "y", "constants", "arena"])
def test_an_access_after_the_end(kind: str, base: str) -> None:
    end = SIZES[base] if base != "constants" else 64  # all of the last cache line may be loaded
    run = model(access(kind, base, end))
    refused(
        lambda: run(X),
        rf"{NAMES.get(base, base)} \({SIZES[base]} bytes\): a {kind} {end - SIZES[base]} bytes after",
    )


@pytest.mark.parametrize("base", ["x", "y", "constants", "arena"])
def test_an_access_within_is_none(base: str) -> None:
    for kind in ("load", "store") if base not in ("x", "constants") else ("load",):
        run = model(access(kind, base, SIZES[base] - 4, "i32"))
        for _ in range(3):
            run(X)


def test_a_store_that_begins_within() -> None:
    run = model(access("store", "y", BYTES - 1, "i32"))
    refused(lambda: run(X), r"output 'y' \(24 bytes\): a store 0 bytes after its end")
    refused(lambda: run(X), r"output 'y' \(24 bytes\): 3 bytes changed, from 0 bytes after its end on")


@pytest.mark.parametrize("base", ["x", "y"])
def test_an_access_before_the_start_is_seen_by_the_second_call(base: str) -> None:
    load = model(access("load", base, -1))
    load(X)
    refused(lambda: load(X), rf"'{base}' \(24 bytes\): a load 1 bytes before its start")
    store = model(access("store", base, -1))
    refused(lambda: store(X), rf"'{base}' \(24 bytes\): 1 bytes changed, from 1 bytes before its start on")


def test_stores_to_inputs_and_constants() -> None:
    run = model(access("store", "x", 3))
    refused(lambda: run(X), r"input 'x' \(24 bytes\): a store at byte 3, which may only be read")
    run = model(access("store", "constants", 3))
    refused(lambda: run(X), r"constants \(24 bytes\): a store at byte 3, which may only be read")


def test_results_are_written_to_arrays_of_the_caller() -> None:
    y = np.zeros(BYTES, np.uint8)
    (made,) = model(access("store", "y", 3))(X, out=[y])
    assert made is y and y[3] == 7


def test_a_finding_that_is_handled_still_fails_the_test() -> None:
    run = model(access("store", "y", BYTES))
    with pytest.raises(BeyondBufferError):
        run(X)
    here = zones()
    assert here is not None and "output 'y'" in here.found[0]
    here.found.clear()


@pytest.mark.without_zones
def test_without_zones_the_same_code_is_not_looked_at() -> None:
    model(access("load", "x", BYTES))(X)


def test_kernels_of_tests() -> None:
    func = parse_kernel(
        "kernel @k(x: &f32[5], y: &f32[4]) dims() with {outputs=1} {\n"
        "  for i in 0..4 {\n    y[i] = x[i + 1]\n  }\n  return\n}\n"
    )
    x, y = np.arange(5, dtype=np.float32), np.zeros(4, np.float32)
    run_kernel(func, [x, y])
    assert list(y) == [1, 2, 3, 4]
    refused(lambda: run_kernel(func, [x[:4].copy(), y]), r"\(16 bytes\): a load 0 bytes after its end")
    refused(lambda: run_kernel(func, [x, y[:3].copy()]), r"\(12 bytes\): a store 0 bytes after its end")


def test_arrays_that_share_memory_share_it_between_zones() -> None:
    x = np.arange(4, dtype=np.int32)
    with arrays_between_zones("here", [x, x[:2]], ["x", "its half"]) as ((first, second), _):
        assert first == second


def test_results_are_where_they_belong_before_states_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done with the states of a model after a call, such as to look at counters, finds what that computed."""
    states = (StateInfo(TensorInfo("h", "uint8", (BYTES,)), "next", "swapped"),)
    counting = "  %h.at = getelementptr ptr, ptr %out, i64 1\n  %h = load ptr, ptr %h.at\n  store i8 7, ptr %h"
    own = model(counting, states=states)
    seen: list[int] = []
    going_on = States._note_moves

    def noted(self: States, numbers: object) -> None:
        seen.append(int(self.current[0][0]))
        going_on(self, numbers)  # type: ignore[arg-type]

    monkeypatch.setattr(States, "_note_moves", noted)
    own(X)
    own(X)
    assert seen == [7, 7]
