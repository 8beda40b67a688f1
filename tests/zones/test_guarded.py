"""`guarded=True`: calls of users between guard zones, looked at after each kernel, and defects of machine code."""

from __future__ import annotations

import ctypes
import functools
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tests.zones.test_plans import X, two_products_proto
from tests.zones.test_zones import refused
from tests.zones.turned_on import zones as found_so_far
from tilewright import compiler
from tilewright.cli.commands.run import command
from tilewright.codegen.cpu import assemble
from tilewright.runtime import Model
from tilewright.runtime.errors import BeyondBufferError, OptionError, PerformanceWarning
from tilewright.runtime.guarded import PAGE, calls, pages
from tilewright.runtime.guarded.calls import GuardedContext, zones
from tilewright.runtime.guarded.pages import IS_AVAILABLE, ZonedBuffer

pytestmark = [
    pytest.mark.skipif(not IS_AVAILABLE, reason="there are zones on Linux for x86-64 only"),
    pytest.mark.without_room_for_zones,  # but where the option asks for it
]


def guarded(rows: int | str = 16) -> Model:
    return tilewright.compile(two_products_proto(rows), threads=2, cache=False, guarded=True)


@pytest.mark.parametrize("rows", [16, "rows"])
def test_results_are_those_of_a_call_that_is_not_guarded(rows: int | str) -> None:
    model, plain = guarded(rows), tilewright.compile(two_products_proto(rows), threads=2, cache=False)
    for x in (X, X) if rows == 16 else (X, X[:5], X[:1], X[:0], X):
        assert np.array_equal(model(x)[0], plain(x)[0])
    assert np.array_equal(pickle.loads(pickle.dumps(model))(X)[0], plain(X)[0])
    assert type(model._contexts[-1]) is GuardedContext


def planted(text: str, access: str, distance: int) -> str:
    """A kernel's module with one more access, `distance` bytes from the start of what its pointer `%b2` (its result)
    or `%b1` (its constant) is for."""
    pointer = "%b1" if access == "load" else "%b2"
    lines = text.splitlines()
    begin = next(k for k, line in enumerate(lines) if line.startswith("define") and "%b2" in line)
    entry = next(k for k in range(begin, len(lines)) if lines[k].strip() == "entry:")
    more = [f"  %planted = getelementptr i8, ptr {pointer}, i64 {distance}"]
    if access == "load":
        more.append("  %planted.value = load volatile i32, ptr %planted, align 1")
    else:
        more.append("  store volatile i32 7, ptr %planted, align 1")
    return "\n".join([*lines[: entry + 1], *more, *lines[entry + 1 :]])


def plant(monkeypatch: pytest.MonkeyPatch, access: str, distance: int) -> None:
    """Let the first kernel have such an access."""
    compile_ir = assemble.compile_ir

    def changed(text: str, *rest: Any) -> bytes:
        is_first = "define void @k0_matmul_tanh(" in text
        return compile_ir(planted(text, access, distance) if is_first else text, *rest)

    monkeypatch.setattr(assemble, "compile_ir", changed)


@pytest.mark.parametrize(
    ("access", "distance", "found"),
    [
        ("store", 1024, r"arena 'h', 1024 bytes at \d+: a store 0 bytes after its end"),
        ("store", 5000, r"arena 'h', 1024 bytes at \d+: a store 3976 bytes after its end"),
        ("store", 5220, r"arena 'h', 1024 bytes at \d+: a store 4196 bytes after its end"),
        ("store", -4, r"arena 'h', 1024 bytes at \d+: 4 bytes changed, from 1 bytes before its start"),
        ("load", 1024, r"constants 'a\S*', 1024 bytes at \d+: a load 0 bytes after its end"),
        ("store", 1020, ""),
        ("load", 1020, ""),
    ],
)
def test_defects_of_machine_code_are_named(
    access: str, distance: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loops are right; LLVM's text of the first kernel has one access too many, the last two within."""
    plant(monkeypatch, access, distance)
    model = guarded()
    if found:
        refused(lambda: model(X), rf"the kernel k0_matmul_tanh of 'the_MatMul' goes beyond buffers: {found}")
    else:
        model(X)


def test_validation_leaves_out_what_goes_beyond_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load is seen by the zones of the whole alone."""
    plant(monkeypatch, "load", 1024)
    monkeypatch.setattr(compiler, "failures_are_errors", lambda options: False)
    with pytest.warns(PerformanceWarning, match="k0_matmul_tanh of 'the_MatMul' goes beyond buffers: constants"):
        model = tilewright.compile(two_products_proto(16), threads=2, cache=False, guarded=True, validate=True)
    here = found_so_far()
    assert here is not None
    here.found.clear()
    assert "k0_matmul" in {call.kernel for call in model.report().calls}
    model(X)


def test_a_handler_that_was_set_since_is_not_asked() -> None:
    """faulthandler and other libraries set handlers between two calls; without one the process would end here."""
    memory = zones().memory
    before = bytes(memory._old)
    touched = ZonedBuffer(memory, "touched", 24, 8, at_end=False)
    pages._set_handler(pages._SignalAction(), pages._SignalAction())
    try:
        guarded()(X)  # it listens again
        ctypes.memset(touched.address + PAGE, 7, 1)
        assert [f.text for f in memory.findings()] == ["touched (24 bytes): a store 4072 bytes after its end"]
    finally:
        touched.release()
        ctypes.memmove(ctypes.addressof(memory._old), before, len(before))


def test_calls_at_the_same_time_have_findings_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks first sees the accesses of both."""
    memory = zones().memory
    first, second = (ZonedBuffer(memory, name, 24, 8) for name in ("first", "second"))
    with memory.used({first}), memory.used({second}):
        for buffer in (first, second):
            ctypes.memset(buffer.address + 24, 7, 1)
        found = [memory.findings({buffer}) for buffer in (first, second, first)]
    assert [[f.text.split()[0] for f in of] for of in found] == [["first"], ["second"], []]
    for buffer in (first, second):
        buffer.release()
    sound = guarded()
    plant(monkeypatch, "store", 5000)
    wrong, here = guarded(), found_so_far()

    def called(_: int) -> None:
        with pytest.raises(BeyondBufferError, match="k0_matmul_tanh of 'the_MatMul' goes beyond buffers: arena 'h'"):
            wrong(X)

    with ThreadPoolExecutor(3) as pool:
        calls_of_both = [pool.submit(called, k) if k % 2 else pool.submit(sound, X) for k in range(12)]
        for call in calls_of_both:
            call.result()
    assert here is not None
    here.found.clear()


def test_accesses_of_many_threads_are_each_told_to_their_own() -> None:
    """Some threads look while others' accesses are being written down. Whoever closes a page before the access to it
    is made again has it written down twice."""
    memory = zones().memory

    def accesses(k: int) -> list[set[str]]:
        buffer, found = ZonedBuffer(memory, f"of-{k}", 24, 8), []
        for _ in range(200):
            with memory.used({buffer}):
                ctypes.memset(buffer.address + 24, 7, 1)
                found.append({f.text.split()[0] for f in memory.findings({buffer})})
        buffer.release()
        return found

    with ThreadPoolExecutor(4) as pool:
        for k, found in enumerate(pool.map(accesses, range(4))):
            assert found == [{f"of-{k}"}] * 200


def test_zones_are_made_once_whichever_threads_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make() -> object:
        time.sleep(0.01)
        made.append(object())
        return made[-1]

    monkeypatch.setattr(calls, "_made", functools.cache(make))
    with ThreadPoolExecutor(4) as pool:
        assert len({id(z) for z in pool.map(lambda _: zones(), range(4))}) == len(made) == 1


def test_buffers_of_many_sizes_take_the_addresses_of_others() -> None:
    memory = zones().memory
    chunks = memory._count.value
    for pages_of_one in range(1000, 1200):
        buffer = ZonedBuffer(memory, "of any size", pages_of_one * PAGE - 5, 1)
        buffer.release()
    assert memory._count.value <= chunks + 1


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = two_products_proto(16)

    def error_of(**options: Any) -> str:
        with pytest.raises(OptionError) as caught:
            tilewright.compile(source, cache=False, guarded=True, **options)
        return str(caught.value)

    assert "pages of Linux on x86-64" in error_of(target="apple-m1")
    assert "max_memory" in error_of(max_memory=1 << 20)
    with pytest.raises(OptionError, match="give True or False"):
        tilewright.compile(source, guarded="yes")


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    path.write_bytes(two_products_proto("rows"))
    arguments = [str(path), "--input", "random", "--guarded", "--no-cache", "--threads", "2"]
    assert CliRunner().invoke(command, arguments).exit_code == 0
