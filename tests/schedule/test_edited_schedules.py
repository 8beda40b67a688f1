"""Schedules that a user edits: they compile and are right, or say which line is wrong, and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tests import models
from tests.schedule.replays import lowered_graph, replays
from tilewright.cli.app import commands
from tilewright.ir.core import Func
from tilewright.ir.diag import ScheduleError, TextError
from tilewright.options import Options
from tilewright.runtime.errors import OptionError, TilewrightError
from tilewright.session import Session
from tilewright.stages import programs

TARGET = "x86-64-v3"
ROWS = {"x": [8, models.FEATURES]}
X = np.random.default_rng(5).standard_normal((8, models.FEATURES)).astype(np.float32)


def mlp() -> bytes:
    return models.mlp().SerializeToString()


def printed(shapes: dict[str, Any] | None = ROWS, target: str = TARGET, **fields: Any) -> str:
    """The schedules of a model as `tilewright show` prints them."""
    options = Options(target=target, **fields)
    return "\n".join(programs(mlp(), "schedule", options=options, shapes=shapes).values())


def result(schedule: str, shapes: dict[str, Any] | None = ROWS, x: np.ndarray = X) -> np.ndarray:
    model = tilewright.compile(
        mlp(), shapes=shapes, target=TARGET, cache=False, threads=1, schedule=schedule.encode()
    )
    (y,) = model(x)
    return y


def refused(schedule: str | bytes, **fields: Any) -> TilewrightError:
    given = schedule.encode() if isinstance(schedule, str) else schedule
    with pytest.raises(TilewrightError) as error:
        tilewright.compile(mlp(), shapes=ROWS, target=TARGET, cache=False, schedule=given, **fields)
    return error.value


def place_of(text: str, piece: str) -> str:
    """Where an error at the line of `piece` says that it is."""
    line = text.count("\n", 0, text.index(piece)) + 1
    start = text.rindex("\n", 0, text.index(piece)) + 1
    indent = len(text[start:]) - len(text[start:].lstrip())
    return f"schedule:{line}:{indent + 1}"


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


# What is edited compiles and is right


@pytest.mark.parametrize("rows", [2, 3, 4, 7])
def test_another_tile(rows: int) -> None:
    text, tiles = re.subn(r"split\(i3, factor=\d+", f"split(i3, factor={rows}", printed())
    assert tiles == 1
    np.testing.assert_allclose(result(text), models.mlp_expected(X), rtol=1e-5)


def test_another_tile_for_large_dims() -> None:
    """A kernel that serves any number of rows, in two parts."""
    text, tiles = re.subn(
        r"specialize\(n0, least=\d+\)\n  split\(i3, factor=\d+",
        "specialize(n0, least=5)\n  split(i3, factor=5",
        printed(None),
        count=1,
    )
    assert tiles == 1
    for count in (2, 5, 8):
        np.testing.assert_allclose(result(text, None, X[:count]), models.mlp_expected(X[:count]), rtol=1e-5)


def test_no_steps_at_all() -> None:
    """Naive loops: the weights are read as the model has them."""
    text = re.sub(r"\{.*?\n\}", "{\n}", printed(), flags=re.DOTALL)
    np.testing.assert_allclose(result(text), models.mlp_expected(X), rtol=1e-5)


def test_kernels_that_are_not_named_keep_their_schedule() -> None:
    first, second = printed().split("\nkernel ")
    edited = re.sub(r"split\(i3, factor=\d+", "split(i3, factor=4", first)
    options = Options(target=TARGET, schedule=edited.encode())
    found = programs(mlp(), "schedule", options=options, shapes=ROWS)
    assert "".join(found.values()) == f"{edited}kernel {second}"


def test_a_printed_schedule_changes_nothing() -> None:
    options = Options(target=TARGET)
    for level in ("schedule", "loops", "llvm"):
        again = Options(target=TARGET, schedule=printed().encode())
        assert programs(mlp(), level, options=again, shapes=ROWS) == programs(
            mlp(), level, options=options, shapes=ROWS
        )


def test_the_digest_may_be_left_out() -> None:
    text = re.sub(r' digest="\w+"', "", printed())
    np.testing.assert_allclose(result(text), models.mlp_expected(X), rtol=1e-5)


def test_the_report_names_the_file() -> None:
    model = tilewright.compile(mlp(), shapes=ROWS, target=TARGET, cache=False, schedule=printed().encode())
    remarks = [str(remark) for remark in model.report().remarks]
    assert any(r.startswith("[schedule] k0_") and r.endswith("the steps of schedule") for r in remarks)


def test_each_schedule_has_an_artefact_of_its_own(tmp_path: Path) -> None:
    session = Session(tmp_path / "cache")
    file = tmp_path / "edited.txt"
    for text in (None, printed(), printed().replace("unroll(i3i)", "serial(i3i)")):
        if text is not None:
            file.write_text(text)
        given = {} if text is None else {"schedule": file}
        for _ in range(2):
            tilewright.compile(mlp(), shapes=ROWS, target=TARGET, session=session, **given)
    assert len(session.entries()) == 3


# What is refused


# what is changed, and to what; why that is refused, at which line, with which hint
REFUSED = [
    ("reorder(", "reordr(", "there is no step 'reordr'", "reordr", "did you mean reorder"),
    ("split(i3,", "split(i33,", "there is no loop 'i33'", "split(i33", "did you mean i3?"),
    ("split(i3,", "unroll(i3)\n  split(i3,", "it is a unroll loop already", "split(i3", None),
    ("argument(w", "argument(x", "it is no constant", "pack_argument(x", "use pack"),
    ('tail="overlap"', 'tail="over"', "tail 'over' is none of", "split(i3", None),
    ("split(i3,", "specialize(8, least=4)\n  split(i3,", "does not depend on dims", "specialize", None),
    ('digest="', 'digest="0', "is another one than", "kernel @k0", "of the same model"),
    ("@k1_reduce_max", "@k1_reduce", "has no kernel @k1_reduce_sub", "kernel @k1", "did you mean k1"),
    ("# edited", "func @main {}", "expected 'kernel'", "func", "a kernel is written as"),
]


@pytest.mark.parametrize(("old", "new", "reason", "piece", "hint"), REFUSED, ids=[r[2] for r in REFUSED])
def test_what_is_refused_says_where_and_why(
    old: str, new: str, reason: str, piece: str, hint: str | None
) -> None:
    text = changed("\n# edited\n" + printed(), old, new)
    error = refused(text)
    assert isinstance(error, ScheduleError | TextError)
    assert reason in error.what
    assert error.where == place_of(text, piece)
    assert hint is None or hint in (error.hint or "")
    assert "^" in error.what


def test_a_kernel_that_no_code_can_be_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a schedule of the compiler's own would be replaced by a plain one."""

    def refusing(kernel: Func, *rest: object, **options: object) -> None:
        raise AssertionError("no such code")

    monkeypatch.setattr("tilewright.back_end.kernel_ir", refusing)
    error = refused(printed())
    assert error.what.startswith("no code can be made of this kernel: AssertionError: no such code")
    assert error.where == "schedule:1:1"


def test_the_file_of_another_model() -> None:
    other = changed(printed(), "@k0_matmul_add_max", "@k7_conv").split("\nkernel ")[0]
    digest = re.search(r'digest="(\w+)"', other)
    assert digest is not None
    error = refused(other)
    assert error.what.startswith("the model has no kernel @k7_conv")
    assert error.hint == "did you mean k0_matmul_add_max? That kernel has this digest"
    error = refused(other.replace(digest[0], 'digest="00"'))
    assert "is the file one of another model? its kernels are: k0_matmul_add_max, k1_" in (error.hint or "")


def test_a_schedule_for_other_shapes_is_stale() -> None:
    assert "is another one than the schedule was made for" in refused(printed(None)).what


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("nowhere.txt", "cannot read the schedules of nowhere.txt: No such file"),
        (b"kernel \xff", "cannot read the schedules of schedule: 'utf-8' codec"),
        (7, "schedule=7 is not allowed: give the path of a file, or the bytes of one"),
    ],
)
def test_what_is_no_file(schedule: object, reason: str) -> None:
    with pytest.raises(OptionError) as error:
        tilewright.compile(mlp(), schedule=schedule)
    assert error.value.what.startswith(reason)


# Commands


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    models.written(models.mlp(), tmp_path, "model")
    options = ["--shape", f"x=8,{models.FEATURES}"]

    def said(*arguments: str, code: int = 0) -> str:
        found = CliRunner().invoke(commands, list(arguments))
        assert found.exit_code == code, found.output
        return found.output

    text = said("show", "model.onnx", "--level", "schedule", *options)
    assert text.count("kernel @") == 2
    only = said("show", "model.onnx", "--level", "schedule", "--kernel", "k1", *options)
    assert only.startswith("kernel @k1_")
    Path("own.txt").write_text(changed(text, "kernel @k0_matmul", "kernel @k0_mtmul"))
    Path("good.txt").write_text(text)
    given = [*options, "--schedule", "good.txt"]
    assert "2 kernels" in said("compile", "model.onnx", *given)
    said("run", "model.onnx", "--input", "random", *given)
    assert "the steps of good.txt" in said("explain", "model.onnx", "--all", *given)
    assert "where: own.txt:1:1" in said("compile", "model.onnx", *options, "--schedule", "own.txt", code=1)
    assert "is compiled already" in said("run", "model.tw", "--schedule", "good.txt", code=2)
    assert "cannot read the schedules" in said("compile", "model.onnx", "--schedule", "none.txt", code=2)


def test_the_sweep_tells_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(replays(lowered_graph(mlp()), TARGET))
    assert [reason for _, reason in found] == [None, None]
    monkeypatch.setattr("tests.schedule.replays.replay", lambda naive, trace: naive.clone())
    monkeypatch.setattr("tests.schedule.replays.print_func", lambda func: str(id(func)))
    assert {reason for _, reason in replays(lowered_graph(mlp()), TARGET)} == {"it gives another kernel"}
