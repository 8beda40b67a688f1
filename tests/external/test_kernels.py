"""Kernels of plugins for whole operators: the one of docs/external.md, and those that do not do what they promise."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.machines.board import board
from tests.machines.test_webgpu import model
from tilewright import Session
from tilewright.codegen.devices.program import DeviceKernel, Launch
from tilewright.codegen.program import KernelText
from tilewright.compilation import Compilation, Setting
from tilewright.external.c_function import c_function
from tilewright.external.kernel import ExternalKernel, WholeOperator
from tilewright.frontends.onnx.load import load_onnx
from tilewright.options import Options
from tilewright.plugins import Plugin, given_plugins, identity
from tilewright.runtime.errors import Remark
from tilewright.target.machine import Machine

PAGE = Path(__file__).parents[2] / "docs" / "external.md"
CONV = """g (float[n,3,8,8] x, float[4,3,1,1] w, float[4] b, float[2,4,3,3] v) => (float[n,2,8,8] y)
    { a = Exp(x) c = Conv(a, w, b) r = Relu(c) y = Conv<pads=[1,1,1,1]>(r, v) }"""
RNG = np.random.default_rng(7)
WEIGHTS = {
    name: RNG.standard_normal(shape).astype(np.float32)
    for name, shape in (("w", (4, 3, 1, 1)), ("b", (4,)), ("v", (2, 4, 3, 3)))
}


def examples() -> list[str]:
    """The programs of the page, in order."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@cache
def module_of_page(number: int, name: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(examples()[number], f"{name}.py", "exec"), module.__dict__)
    return module


def pointwise() -> ModuleType:
    if shutil.which("cc") is None or sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("the kernel is compiled by cc, to ELF for x86-64")
    return module_of_page(0, "pointwise")


def session_with(folder: Path, *kernels: ExternalKernel) -> Session:
    return Session(folder=folder, plugins=(Plugin("mine", kernels=kernels), board().PLUGIN))


def told(made: tilewright.Model, stage: str) -> list[Remark]:
    return [remark for remark in made.report().remarks if remark.stage == stage]


@pytest.mark.sweep
def test_the_page_has_a_whole_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pointwise()
    monkeypatch.chdir(tmp_path)
    text = "g (float[n,3,8,8] x, float[4,3,1,1] w) => (float[n,4,8,8] y) { y = Conv(x, w) }"
    Path("model.onnx").write_bytes(model(text.replace(", float[4,3,1,1] w", "").replace(
        "{ y", "{ o = Constant<value=float[1]{1.0}>() s = Constant<value=int64[4]{4,3,1,1}>() w = Expand(o, s) y"
    )))  # fmt: skip
    found: dict[str, Any] = {}
    exec(examples()[1], found)
    assert "pointwise" in {call.external for call in found["model"].report().calls}
    np.testing.assert_allclose(found["y"], 3.0)


def test_a_function_of_c_is_a_kernel_among_ours(tmp_path: Path) -> None:
    """For unknown sizes, in the artefact, which then needs no plugin; what is around it is fused; and its version is
    part of what the cache goes by."""
    session = session_with(tmp_path, pointwise().Pointwise())
    made = tilewright.compile(model(CONV), constants=WEIGHTS, session=session)
    ours = tilewright.compile(model(CONV), constants=WEIGHTS)
    made.save(tmp_path / "m.tw")
    loaded = tilewright.load(tmp_path / "m.tw", threads=1)
    for n in (3, 1, 0):
        x = RNG.standard_normal((n, 3, 8, 8)).astype(np.float32)
        np.testing.assert_allclose(made(x)[0], ours(x)[0], rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(loaded(x)[0], made(x)[0])
    calls = made.report().calls
    assert [call.external for call in calls] == [None, "pointwise", None, None]
    assert "k2_add_max" in calls[2].kernel
    (outside, own), (form, _) = made.report().layers, made.report().products
    assert outside.why == "the kernel 'pointwise' of a plugin computes it" and outside.kernels == (calls[1].kernel,)
    assert own.why == "the model has floats" and not form.form.instruction
    used, refused = told(made, "external-kernels")
    assert used.kind == "applied" and "version 1.0: it accepts the operator" in used.message
    assert refused.kind == "missed" and "the window is not 1 x 1" in refused.message
    keys = {identity(given_plugins([Plugin("p", kernels=(Versioned(v),))])) for v in ("1.0", "1.1")}
    assert len(keys) == 2 and None not in keys


class Versioned(ExternalKernel):
    """Refuses all."""

    name, operators = "versioned", ()

    def __init__(self, version: str) -> None:
        self.version = version

    def code(self, op: WholeOperator, symbol: str, machine: Machine) -> KernelText:
        raise NotImplementedError


@pytest.mark.sweep
def test_a_text_goes_on_where_the_plugin_is(tmp_path: Path) -> None:
    session = session_with(tmp_path, pointwise().Pointwise())
    text = "g (float[1,3,8,8] x, float[4,3,1,1] w) => (float[1,4,8,8] y) { y = Conv(x, w) }"
    made = Compilation(load_onnx(model(text)), Setting.chosen(Options(), session)).run("planned")
    again = Compilation.resumed(made.text(), Setting.chosen(Options(), session))
    assert again.text() == made.text() and "external=(" in made.text()
    with pytest.raises(tilewright.UnsupportedError, match="a kernel 'pointwise', which no plugin here brings"):
        tilewright.compiler.compile_text(made.text(), Options(), Session(folder=tmp_path, plugins=()))
    assert tilewright.compiler.compile_text(made.text(), Options(), session).image is not None


class Doubled(ExternalKernel):
    """Exp on the board, by other loops than ours: of operands of float64 as well, which its compiler refuses here."""

    name, kind, operators = "doubled", "board", ("exp",)

    def code(self, op: WholeOperator, symbol: str, machine: Machine) -> KernelText:
        dims = [*map(str, op.operands[0].shape)]
        numbers = ", ".join(str(d) for d in op.dims)
        loops = "".join(f"{'  ' * k}for i{k} in 0..{n} {{\n" for k, n in enumerate(dims, 1))
        place = ", ".join(f"i{k}" for k in range(1, len(dims) + 1))
        type = f"&{op.operands[0].dtype}[{', '.join(dims)}]"
        text = f"kernel @{symbol}(x: {type}, y: {type}) dims({numbers}) with {{outputs=1}} {{\n{loops}" \
            f"y[{place}] = exp(x[{place}])\n{'}' * len(dims)}\nreturn\n}}"  # fmt: skip
        return DeviceKernel(symbol, text, launches=(Launch(symbol),))


def test_a_kernel_for_a_device_works_on_its_memory(tmp_path: Path) -> None:
    session = session_with(tmp_path, Doubled())
    text = "g (float[n,5] x) => (float[n,5] y) { a = Neg(x) e = Exp(a) y = Add(e, x) }"
    made = tilewright.compile(model(text), target="board", session=session)
    for n in (4, 0):
        x = RNG.standard_normal((n, 5)).astype(np.float32)
        np.testing.assert_allclose(made(x)[0], np.exp(-x.astype(np.float64)) + x, rtol=1e-5)
    assert [call.external for call in made.report().calls] == [None, "doubled", None]
    assert all(call.external is None for call in tilewright.compile(model(text), session=session).report().calls)


class Bad(ExternalKernel):
    """Fails in some way."""

    name, operators = "bad", ("exp", "softmax")

    def __init__(self, way: str) -> None:
        self.way = way

    def refuses(self, op: WholeOperator) -> str:
        if self.way == "raises":
            raise RuntimeError("it is broken")
        return 3 if self.way == "no text" else ""  # type: ignore[return-value]

    def seconds(self, op: WholeOperator) -> float | None:
        return 1.0 if self.way == "slow" else None

    def code(self, op: WholeOperator, symbol: str, machine: Machine) -> Any:
        if self.way == "foreign":
            return c_function(op, symbol, machine, "bad", b"\x7fELF of nothing")
        if self.way == "no function":
            return c_function(op, symbol, machine, "bad", pointwise().compiled("int good(void) { return 0; }"))
        if self.way == "code raises":
            raise KeyError("nothing")
        return "text" if self.way == "no kernel" else KernelText("other", "")


@pytest.mark.parametrize(("way", "kind", "says"), [
    ("raises", "failed", "RuntimeError: it is broken; the kernel is not asked any more"),
    ("no text", "failed", "its 'refuses' gave a int"),
    ("slow", "missed", "that are expected of our own"),
    ("foreign", "missed", "the external function 'bad' cannot be linked"),
    ("no function", "missed", "the object has no function 'bad'"),
    ("code raises", "failed", "KeyError"),
    ("no kernel", "failed", "its 'code' gave a str, and no KernelText"),
    ("other name", "failed", "its 'code' gave the kernel 'other' in place of"),
])  # fmt: skip
def test_what_a_kernel_does_not_do_right_costs_that_kernel_alone(
    way: str, kind: str, says: str, tmp_path: Path
) -> None:
    session = session_with(tmp_path, Bad(way))
    setting = Setting.chosen(Options(), session)
    made = Compilation(load_onnx(model("g (float[2,5] x) => (float[2,5] y) { y = Exp(x) }")), setting).run("graph")
    assert [op.name for op in made.module.main.body.ops] == ["exp", "return"]
    (remark,) = [r for r in made.remarks if r.stage in ("external-kernels", "plugins")]
    assert remark.kind == kind and says in remark.message


RESULTS = """#include <stdint.h>
int32_t fails(const float *x, float *y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = 0; return n > 2; }
int32_t same(const float *x, float *y, int64_t n) { return 0; }"""


class Fails(ExternalKernel):
    """Gives a function that fails for more than two elements."""

    name, operators = "fails", ("exp",)

    def code(self, op: WholeOperator, symbol: str, machine: Machine) -> KernelText:
        return c_function(op, symbol, machine, "fails", pointwise().compiled(RESULTS), op.operands[0].shape)


@pytest.mark.sweep
@pytest.mark.unvalidated
def test_a_function_that_fails_is_an_error_of_the_call_and_names_of_functions_are_free(tmp_path: Path) -> None:
    pointwise()
    text = model("g (float[n] x) => (float[n] y, float[n] z) { y = Exp(x) z = Neg(x) }")
    made = tilewright.compile(text, session=session_with(tmp_path, Fails()))
    with pytest.raises(tilewright.ExecutionError, match="the external function 'fails' failed"):
        made(np.ones(3, np.float32))
    np.testing.assert_array_equal(made(np.ones(2, np.float32))[0], [0, 0])
    other = type("Other", (Fails,), {"name": "others", "operators": ("neg",)})
    source = RESULTS.replace("n > 2", "0")
    code = lambda self, op, symbol, machine: c_function(  # noqa: E731
        op, symbol, machine, "fails", pointwise().compiled(source), op.operands[0].shape
    )
    other.code = code  # type: ignore[attr-defined]
    with pytest.raises(tilewright.UnsupportedError, match="two kernels from outside have a function 'fails'"):
        tilewright.compile(text, session=session_with(tmp_path, Fails(), other()))


def test_parts_of_other_types_are_left_out(tmp_path: Path) -> None:
    class Stranger:
        name = "stranger"

    plugins: Sequence[Any] = (Plugin("strange", kernels=(Stranger(),)),)
    session = Session(folder=tmp_path, plugins=plugins)
    with pytest.warns(tilewright.PerformanceWarning, match="the plugin is left out"):
        made = tilewright.compile(model("g (float[n] x) => (float[n] y) { y = Exp(x) }"), session=session)
    (remark,) = told(made, "plugins")
    assert "its kernel 'stranger' is no tilewright.external.kernel.ExternalKernel" in remark.message
