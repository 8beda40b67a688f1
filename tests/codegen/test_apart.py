"""LLVM for machines of other architectures: what ends its process is an error, and nothing more."""

from __future__ import annotations

import os
import platform
import signal
import subprocess

import pytest

from tilewright.codegen.cpu import apart
from tilewright.codegen.cpu.assemble import Effort, ObjectMaker, Unit, assembly
from tilewright.codegen.cpu.generator import Generator, assembly_of, object_of
from tilewright.ir.diag import InternalError
from tilewright.target.named import NAMED
from tilewright.target.target import arch_of

TEXT = "define i64 @f(i64 %x) {\n  %y = add i64 %x, 1\n  ret i64 %y\n}\n"
NO_CODE = """
declare <4 x i32> @llvm.wasm.dot(<8 x i16>, <8 x i16>)
define <4 x i32> @f(<8 x i16> %x) {
  %y = call <4 x i32> @llvm.wasm.dot(<8 x i16> %x, <8 x i16> %x)
  ret <4 x i32> %y
}
"""
HERE = arch_of(platform.machine().lower())
OTHER = NAMED["zen3" if HERE == "s390x" else "z15"]
OWN = next(target for target in NAMED.values() if target.arch == HERE)


def generator() -> Generator:
    return Generator.of(OTHER, Effort.KERNEL.value)


def test_a_text_without_code_is_an_error_that_names_its_kernel() -> None:
    with ObjectMaker(OTHER, 2) as maker:
        maker.start(Unit(TEXT, kernel="k0_add"))
        assert maker.objects() == [object_of(TEXT, generator())]
    said = r"Cannot select: .*\(SIGABRT\)"
    with pytest.raises(InternalError, match=said) as caught, ObjectMaker(OTHER, 2) as maker:
        maker.start(Unit(NO_CODE, kernel="k1_dot"))
        maker.objects()
    assert caught.value.where == "kernel 'k1_dot'"
    assert assembly(TEXT, OTHER, comments=True) == assembly_of(TEXT, generator(), comments=True)


def test_a_text_that_llvm_refuses_is_the_error_that_it_is_here() -> None:
    with pytest.raises(InternalError, match="LLVM refuses generated code"):
        apart.object_of("define nonsense", generator())


def test_one_process_makes_one_text_after_the_other_and_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    apart._end_all()
    monkeypatch.setattr(apart, "LONGEST_WAIT", 0.01)
    first = apart.object_of(TEXT, generator())
    (ended,) = apart._IDLE
    assert ended.process.wait(60) == 0
    monkeypatch.setattr(apart, "LONGEST_WAIT", 600)
    assert apart.object_of(TEXT, generator()) == first
    (worker,) = apart._IDLE
    assert (apart.object_of(TEXT, generator()), *apart._IDLE) == (first, worker)
    os.kill(worker.process.pid, signal.SIGKILL)
    with pytest.raises(MemoryError):
        apart.object_of(TEXT, generator())
    assert apart._IDLE == []


def test_where_no_process_can_begin_code_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    apart._end_all()
    monkeypatch.setattr(apart, "_CHILD", "raise SystemExit(3)")
    assert apart.object_of(TEXT, generator()) == object_of(TEXT, generator())
    monkeypatch.setattr(apart.sys, "executable", "/nowhere")
    assert apart.object_of(TEXT, generator()) == object_of(TEXT, generator())


def test_code_for_this_machine_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    with ObjectMaker(OWN, 2) as maker:
        maker.start(Unit(TEXT.replace("1", "7")))
        maker.objects()
        assert assembly(TEXT, OWN)
