"""LLVM's long calls run beside each other, and say what LLVM says."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, current_thread, main_thread
from typing import Any

import llvmlite.binding as binding
import pytest
from llvmlite.binding import ffi

from tilewright.codegen.cpu import assemble, native
from tilewright.codegen.cpu.assemble import Effort, ObjectMaker, Unit, compile_ir
from tilewright.ir.diag import InternalError
from tilewright.target.named import NAMED

TEXT = "define i32 @f(i32 %x) {\n  %y = add i32 %x, 0\n  ret i32 %y\n}\n"


@pytest.fixture
def machine() -> Any:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding.Target.from_default_triple().create_target_machine()


def _builder(machine: Any) -> Any:
    return binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(2))


def test_passes_and_objects_are_those_of_llvmlite(machine: Any) -> None:
    ours, theirs = (binding.parse_assembly(TEXT, binding.create_context()) for _ in range(2))
    builder = _builder(machine)
    native.run_passes(builder.getModulePassManager(), ours, builder)
    _builder(machine).getModulePassManager().run(theirs, _builder(machine))
    assert str(ours) == str(theirs)
    assert "add i32" not in str(ours)
    assert native.emit_object(machine, ours) == machine.emit_object(theirs)


def test_the_long_calls_do_not_wait_for_the_lock_of_llvmlite(machine: Any) -> None:
    module, builder = binding.parse_assembly(TEXT, binding.create_context()), _builder(machine)
    manager = builder.getModulePassManager()
    with ThreadPoolExecutor(1) as pool, ffi.lib._lock:
        pool.submit(native.run_passes, manager, module, builder).result(timeout=60)
    assert "add i32" not in str(module)


def test_a_module_is_made_without_the_lock_of_llvmlite() -> None:
    compile_ir(TEXT, NAMED["zen3"], Effort.CALLS)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(compile_ir, TEXT, NAMED["zen3"], Effort.CALLS).result()  # makes the tools of the thread
        with ffi.lib._lock:
            found = pool.submit(compile_ir, TEXT, NAMED["zen3"], Effort.CALLS).result(timeout=60)
    assert found == compile_ir(TEXT, NAMED["zen3"], Effort.CALLS)


def test_a_module_gives_up_the_lock_of_the_interpreter_for_the_long_calls_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called, long = [], native._long

    def noted(name: str) -> Any:
        called.append(name)
        return long(name)

    monkeypatch.setattr(native, "_long", noted)
    compile_ir(TEXT, NAMED["zen3"])
    assert called == [native._PARSE, native._RUN, native._EMIT]


def test_what_llvm_says_is_in_the_error(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(machine: object, module: object, kind: int, message: Any) -> None:
        message._obj.value = b"no such register"

    def long(name: str) -> Callable[..., None]:
        return refuses

    def short(name: str) -> Callable[..., None]:
        return lambda message: None  # the text is not LLVM's

    monkeypatch.setattr(native, "_long", long)
    monkeypatch.setattr(native, "_short", short)
    with pytest.raises(InternalError, match="LLVM makes no code: no such register"):
        native.emit_object(machine, binding.parse_assembly(TEXT))


def test_the_owner_makes_what_no_thread_has_begun_with(monkeypatch: pytest.MonkeyPatch) -> None:
    others_are_made, begun = Event(), Event()

    def object_of(unit: Unit, target: object) -> bytes:
        if unit.text == "0":
            begun.set()
            assert others_are_made.wait(60)
        if unit.text == "3":
            others_are_made.set()
        return f"{unit.text} {current_thread() is main_thread()}".encode()

    monkeypatch.setattr(assemble, "_object_of", object_of)
    with ObjectMaker(NAMED["zen3"], 2) as maker:
        for k in range(4):
            maker.start(Unit(str(k)))
        assert begun.wait(60)
        assert maker.objects() == [b"0 False", b"1 True", b"2 True", b"3 True"]


@pytest.mark.parametrize("threads", [1, 3])
def test_objects_come_in_the_order_of_their_start(threads: int) -> None:
    target = NAMED["zen3"]
    texts = [TEXT.replace("@f", f"@f{k}") for k in range(5)]
    with ObjectMaker(target, threads) as maker:
        for text in texts:
            maker.start(Unit(text, Effort.CALLS))
        assert maker.objects() == [compile_ir(text, target, Effort.CALLS) for text in texts]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_text_that_llvm_refuses_is_an_error(threads: int) -> None:
    with pytest.raises(InternalError, match="LLVM refuses"), ObjectMaker(NAMED["zen3"], threads) as maker:
        maker.start(Unit("define nonsense"))
        maker.objects()
