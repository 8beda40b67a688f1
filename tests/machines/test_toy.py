"""A kind of machine that a plugin brings: models compile for it and run, and what its programs lack is told."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.codegen.native import run_kernel as run_native
from tests.loops.interleave import run_interleaved
from tests.machines.toy import MMA, PLUGIN, TOY, Products, ToyBackEnd
from tilewright.cli.app import commands
from tilewright.ir.core import Func
from tilewright.ir.diag import VerifyError
from tilewright.loops.kernel_info import parse_kernel
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.options import Options
from tilewright.plugins import Plugin
from tilewright.runtime import Model
from tilewright.runtime.errors import ArtifactError
from tilewright.session import Session
from tilewright.stages import programs
from tilewright.target.machine import TargetError

RNG = np.random.default_rng(3)
X, W, B = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((32, 16), (16, 12), (12,)))
EXPECTED = {
    "matmul": X @ W,
    "relu": np.maximum(X @ W + B, 0),
    "double": X * 2,
    "affine": X * 2 + 1,
    "rows": (X - X.max(axis=1, keepdims=True)).astype(np.float32),
}


def model(name: str, rows: int | str = 32) -> bytes:
    nodes = {
        "matmul": [("MatMul", ["x", "w"], "y")],
        "relu": [("MatMul", ["x", "w"], "p"), ("Add", ["p", "b"], "s"), ("Relu", ["s"], "y")],
        "double": [("Mul", ["x", "two"], "y")],
        "affine": [("Mul", ["x", "two"], "p"), ("Add", ["p", "one"], "y")],
        "rows": [("ReduceMax", ["x"], "m"), ("Sub", ["x", "m"], "y")],
    }[name]
    attrs = {"ReduceMax": {"axes": [1], "keepdims": 1}}
    constants = {"w": W, "b": B, "two": np.float32(2), "one": np.float32(1)}
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [out], name=op, **attrs.get(op, {})) for op, inputs, out in nodes],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if any(n in i for _, i, _ in nodes)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made).SerializeToString()


def session(tmp_path: Path, products: Products | None = None) -> Session:
    plugin = PLUGIN if products is None else dataclasses.replace(PLUGIN, back_ends=(ToyBackEnd(products),))
    return Session(folder=tmp_path, plugins=(plugin,))


def compiled(name: str, tmp_path: Path, products: Products | None = None, **options: object) -> Model:
    return tilewright.compile(model(name), target="toy", session=session(tmp_path, products), **options)


@pytest.mark.parametrize("name", EXPECTED)
def test_models_run_on_the_toy(name: str, tmp_path: Path) -> None:
    (y,) = compiled(name, tmp_path, verify=True)(X)
    assert np.array_equal(y, EXPECTED[name])


def kernels(name: str, tmp_path: Path) -> list[Func]:
    texts = programs(model(name), "loops", options=Options(target="toy"), session=session(tmp_path))
    return [parse_kernel(text) for text in texts.values()]


def arguments(name: str) -> list[np.ndarray]:
    return {"matmul": [X, W], "relu": [X, W, B], "double": [X]}[name]


def in_some_order(func: Func, arrays: Sequence[np.ndarray]) -> None:
    run_interleaved(func, arrays, {}, random.Random(7))


@pytest.mark.sweep
@pytest.mark.parametrize("run", [run_kernel, in_some_order, run_native], ids=["interpreter", "random order", "CPU"])
@pytest.mark.parametrize("name", ["matmul", "relu", "double"])
def test_its_kernels_mean_the_same_everywhere(name: str, run: object, tmp_path: Path) -> None:
    """As loops of ours, in a random order of threads and queues, and as code for this CPU."""
    (func,) = kernels(name, tmp_path)
    y = np.zeros_like(EXPECTED[name])
    run(func, [*arguments(name), y])  # type: ignore[operator]
    assert np.array_equal(y, EXPECTED[name])


def test_the_intrinsic_is_found_in_the_product(tmp_path: Path) -> None:
    (func,) = kernels("relu", tmp_path)
    runs = [op.attrs["intrinsic"] for op in func.body.walk() if op.name == "run"]
    assert runs.count(MMA.name) == 2, "once in the loop, and once after it"
    assert runs.count("copy") == 2 + 2 + 1, "two operands before and in the loop, and the result"


REFUSED = {
    "a copy that is not waited for": (
        Products(without="wait"),
        "the run on queue 'load' that writes buffer",
        "wait for its token before",
    ),
    "a missing barrier": (
        Products(without="barrier"),
        "threads of level 'thread' may meet in buffer",
        "with no barrier between them; put `barrier thread` between",
    ),
    "an overflow": (
        Products(depth=16),
        "memory 'pad' has 2048 bytes, and 2560 are needed here: 'x",
        "use smaller tiles",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_verifier_refuses(what: str, tmp_path: Path) -> None:
    products, *messages = REFUSED[what]
    if what == "an overflow":  # no defect: there is a slower kernel, and a warning
        made = compiled("relu", tmp_path, products, verify=True)
        assert [r for r in made.report().remarks if r.kind == "warning" and messages[0] in r.message]
        return
    with pytest.raises(VerifyError) as error:
        compiled("relu", tmp_path, products, verify=True)
    assert all(message in str(error.value) for message in messages), error.value




@pytest.mark.parametrize("what", REFUSED)
def test_users_get_a_slower_kernel_and_the_reason(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.compiler.failures_are_errors", lambda options: options.verify or options.strict)
    products, message, _ = REFUSED[what]
    made = compiled("relu", tmp_path, products)
    assert np.array_equal(made(X)[0], EXPECTED["relu"])
    (told, *_) = [remark for remark in made.report().remarks if message in str(remark)]
    is_defect = what != "an overflow"  # of the machine there is no more
    assert told.kind == ("failed" if is_defect else "warning")
    assert ("please report this" in told.message) is is_defect


def test_the_artefact_records_the_kind_and_is_run_by_what_is_given(tmp_path: Path) -> None:
    made = compiled("relu", tmp_path)
    made.save(tmp_path / "toy.tw")
    assert made.artifact.target.kind == "toy" and made.artifact.target.cpu == "toy"
    loaded = tilewright.load(tmp_path / "toy.tw", executor=ToyBackEnd().executor)
    assert np.array_equal(loaded(X)[0], EXPECTED["relu"])
    with pytest.raises(ArtifactError, match=r"a machine of the kind 'toy', which nothing here runs\n  hint: install"):
        tilewright.load(tmp_path / "toy.tw")


def test_the_cache_keeps_models_of_the_toy(tmp_path: Path) -> None:
    first = compiled("relu", tmp_path)
    again = compiled("relu", tmp_path)
    assert [e.target for e in session(tmp_path).entries()] == ["toy"]
    assert first.report().compile_ms and not again.report().compile_ms  # found, and not compiled


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin as an installer leaves it."""
    folder = tmp_path / "site" / "toy_machine-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-machine\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[tilewright.plugins]\ntoy = tests.machines.toy:PLUGIN\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder.parent)])
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


def command(*arguments: str) -> str:
    result = CliRunner().invoke(commands, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_know_the_toy(installed: None, tmp_path: Path) -> None:
    path, out = tmp_path / "relu.onnx", tmp_path / "relu.tw"
    path.write_bytes(model("relu"))
    assert "of a plugin, a machine of the kind 'toy'" in command("info")
    assert "run mma on tensor" in command("show", str(path), "--level", "loops", "--target", "toy")
    assert '"barrier"' in command("show", str(path), "--level", "asm", "--target", "toy")
    command("compile", str(path), "-o", str(out), "--target", "toy")
    assert np.array_equal(tilewright.load(out)(X)[0], EXPECTED["relu"])


def test_symbolic_dims_are_refused(tmp_path: Path) -> None:
    with pytest.raises(tilewright.UnsupportedError, match="the toy runs programs of fixed shapes"):
        tilewright.compile(model("affine", "rows"), target="toy", session=session(tmp_path))


def test_levels_that_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(tilewright.OptionError, match="machine 'toy' has no LLVM IR"):
        programs(model("affine"), "llvm", options=Options(target="toy"), session=session(tmp_path))


def test_a_machine_without_a_back_end(tmp_path: Path) -> None:
    alone = Session(folder=tmp_path, plugins=(Plugin("half", machines=(TOY,)),))
    with pytest.raises(TargetError, match="there is no back end for machine 'toy', which is of the kind 'toy'"):
        tilewright.compile(model("affine"), target="toy", session=alone)


def test_a_machine_that_contradicts_itself(tmp_path: Path) -> None:
    wrong = dataclasses.replace(PLUGIN, machines=(dataclasses.replace(TOY, levels=()),))
    with pytest.raises(TargetError, match="memory 'pad' belongs to the level 'core', which it does not have"):
        tilewright.compile(model("affine"), target="toy", session=Session(folder=tmp_path, plugins=(wrong,)))


def test_an_unknown_machine_lists_those_of_plugins(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="unknown target 'toys'\n  hint: did you mean 'toy'"):
        tilewright.compile(model("affine"), target="toys", session=session(tmp_path))


def test_a_machine_whose_facts_contradict_each_other_is_refused(tmp_path: Path) -> None:
    wrong = dataclasses.replace(TOY, name="wrong", routes=(dataclasses.replace(TOY.routes[0], target="attic"),))
    own = Session(folder=tmp_path, plugins=(dataclasses.replace(PLUGIN, machines=(wrong,)),))
    with pytest.raises(TargetError, match=r"machine 'wrong'.*'attic'"):
        tilewright.compile(model("matmul"), target="wrong", session=own)
