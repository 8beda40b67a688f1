"""The stages of a compilation: where it stops, what it tells, and how it goes on from a text."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests import models
from tests.frontends.helpers import info, model_of
from tilewright.back_end import CPU
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.compilation import STAGES, Compilation, Output, Setting
from tilewright.compiler import compile_module
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.core import Module
from tilewright.ir.diag import TextError, VerifyError
from tilewright.link import Weights
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.program.interp import run_program
from tilewright.program.memory.places import is_planned
from tilewright.runtime import Model
from tilewright.runtime.errors import InputError, OptionError
from tilewright.stages import programs
from tilewright.target.host import host_target

SETTING = Setting.of(Options(), host_target())


def compilation() -> Compilation:
    """Of a setting of its own, in which kernels have numbers from 0 on."""
    return Compilation(load_onnx(models.mlp()), Setting.of(Options(), host_target()))


def codes(of: Compilation) -> list[str]:
    """The code of its kernels, in which buffers have numbers: texts name them as the values that they hold."""
    funcs = of.run("scheduled").module.funcs.values()
    return [kernel_ir(f, host_target()).text for f in funcs if f.level == "loops"]


def test_it_stops_at_each_stage() -> None:
    ran = compilation()
    seen = []
    for stage in STAGES[:-1]:
        assert ran.run(stage).stage == stage
        levels = {f.level for f in ran.module.funcs.values()}
        main = ran.module.main
        seen.append((sorted(levels), any(op.name == "fused" for op in main.body.ops), is_planned(main)))
    graph, kernels = ["graph"], ["loops", "program"]
    assert seen == [
        (graph, False, False), (graph, False, False), (graph, False, False), (graph, True, False),
        (kernels, False, False), (kernels, False, True),
    ]  # fmt: skip
    assert ran.run("fused").stage == "planned"  # what is done stays done


def test_the_last_stage_has_the_program() -> None:
    with CPU.code(host_target(), Options()) as code:
        done = Compilation(load_onnx(models.mlp()), SETTING, Output(code, Weights())).run("program")
        assert done.artifact is not None
        assert done.artifact.report.kernels == code.submitted - 2  # the program and the thread pool


def test_the_stages_up_to_the_plan_are_as_short_as_the_tour_says() -> None:
    stages = (Compilation._lower, Compilation._fuse, Compilation._schedule, Compilation._plan)
    assert 25 <= sum(len(inspect.getsource(stage).splitlines()) for stage in stages) <= 50


def test_all_passes_and_stages_are_observed() -> None:
    told: list[tuple[str, str]] = []

    def observe(name: str, module: Module) -> None:
        told.append((name, module.main.level))

    setting = Setting.of(Options(), host_target(), observe=observe)
    Compilation(load_onnx(models.mlp()), setting).run("scheduled")
    passes = [step.name for step in CPU.passes(host_target(), Options())]
    stages = ["graph", "fuse", "place-views", "fused", "scheduled"]
    assert [name for name, _ in told] == ["parts", *passes, *stages]


@pytest.mark.parametrize("stage", ["import", "graph", "fused"])
def test_the_text_of_a_stage_goes_on_to_the_same_kernels(stage: str) -> None:
    ran = compilation().run(stage)
    arrays = dict(ran.module.constants.items())
    again = Compilation.resumed(ran.text(locs=True), Setting.of(Options(), host_target()), arrays)
    assert codes(again) == codes(ran)


def test_what_is_resumed_is_what_is_compiled() -> None:
    """With the conditions that calls must fulfil."""
    made = model_of(
        [helper.make_node("Add", ["x", "y"], ["s"]), helper.make_node("Relu", ["s"], ["z"])],
        [info("x", ["a"]), info("y", ["b"])], [info("z", ["c"], TensorProto.FLOAT)],
    )  # fmt: skip
    ran = Compilation(load_onnx(made.SerializeToString()), SETTING).run("fused")
    assert ran.assumed
    again = Compilation.resumed(ran.text().replace("max(", "min("), SETTING)
    model = Model(compile_module(again.module, Options(), host_target()), 1)
    x = np.linspace(-1, 1, 9, dtype=np.float32)
    (found,) = model(x, x)
    np.testing.assert_array_equal(found, np.minimum(x + x, 0))
    with pytest.raises(InputError, match="a == b"):
        model(x, x[:5])


def test_constants_of_a_text_are_zeros_unless_they_are_given() -> None:
    ran = compilation().run("import")
    again = Compilation.resumed(ran.text(), SETTING)
    largest = max(again.module.constants, key=lambda name: again.module.constants[name].size)
    assert ran.module.constants[largest].any() and not again.module.constants[largest].any()


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda text: text.replace("matmul(", "matmull("), VerifyError, "matmull"),
        (lambda text: text[: len(text) // 2], TextError, "<text>"),
        (lambda text: text.replace("add(", "add(", 1).replace("return ", "return q"), TextError, "q"),
    ],
    ids=["operator", "cut", "name"],
)
def test_wrong_texts_are_errors(change, error: type[Exception], message: str) -> None:
    text = compilation().text()
    assert change(text) != text
    with pytest.raises(error, match=message):
        Compilation.resumed(change(text), SETTING)


@pytest.mark.parametrize("stage", ["scheduled", "planned"])
def test_a_program_goes_on_from_its_text(stage: str) -> None:
    """Kernels and places with it: the artefact computes what the graph does."""
    ran = compilation().run(stage)
    arrays = {name: np.array(ran.module.constants[name]) for name in ran.module.constants}
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    expected = evaluate_func(load_onnx(models.mlp()).main, load_onnx(models.mlp()), [x])
    with CPU.code(host_target(), Options()) as code:
        weights = Weights()
        again = Compilation.resumed(ran.text(), SETTING, arrays, output=Output(code, weights))
        assert again.stage == stage and again.text() == ran.text()
        np.testing.assert_allclose(run_program(again.module, [x]), expected, rtol=1e-5)
        artifact = again.run("program").artifact
        assert artifact is not None
        artifact = artifact.sharing(code.image(code.objects()), (), *weights.blocks())
    np.testing.assert_allclose(Model(artifact, 1)(x), expected, rtol=1e-5)


@pytest.mark.without_room_for_zones
def test_a_plan_that_overwrites_what_is_needed_is_refused() -> None:
    shapes = {"x": (4, 64)}
    ran = Compilation(load_onnx(models.mlp(), shapes=shapes), Setting.of(Options(), host_target())).run("planned")
    text = ran.text()
    wrong = text.replace('Place{base="output"}', 'Place{base="arena", offset=`64`}', 1)
    assert wrong != text
    with pytest.raises(VerifyError, match="writes 'y' over 'hidden', which is still needed"):
        Compilation.resumed(wrong, SETTING)


def test_a_program_of_parts_goes_on_part_by_part() -> None:
    text = """
    program @main(x: f32[2]) -> (f32[2]) { y = call(x) {part="part0", sizes=()} : f32[2]
      return y }
    func @part0(x: f32[2]) -> (f32[2]) { y = exp(x) : f32[2]
      return y }"""
    read = Compilation.resumed(text, SETTING)
    assert read.stage == "parts" and read.parts is not None
    assert [part.run("planned").stage for part in read.parts] == ["planned"]
    x = np.array([0.5, -1], np.float32)
    np.testing.assert_allclose(run_program(read.whole(), [x]), [np.exp(x)], rtol=1e-6)


def test_unknown_stages_are_errors() -> None:
    with pytest.raises(OptionError, match="there is no stage 'lowered'"):
        compilation().run("lowered")


def test_show_prints_the_text_of_a_stage() -> None:
    assert programs(models.mlp(), "graph")["main"] == compilation().run("fused").text()
