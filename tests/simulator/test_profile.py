"""`tilewright profile` for a machine that is simulated, and what the report says of its kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import tilewright
from tilewright.cli.app import commands
from tilewright.runtime.report.records import KernelCycles
from tilewright.session import Session


def model(folder: Path, rows: int | str = 4) -> Path:
    """Two sums of the same shape, which are one kernel that is called twice, with the largest of rows behind them."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"]),
        helper.make_node("ReduceMax", ["a"], ["m"], axes=[1]),
        helper.make_node("Add", ["a", "m"], ["b"]),
        helper.make_node("ReduceMax", ["b"], ["y"], axes=[1]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, s]) for n, s in (("x", 8), ("y", 1)))
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    return folder / "model.onnx"


def ran(*arguments: object) -> Any:
    result = CliRunner().invoke(commands, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_is_that_of_the_report_and_of_the_time_line(tmp_path: Path) -> None:
    file, compiled = model(tmp_path), tmp_path / "model.tw"
    found = json.loads(ran("profile", file, "--target", "npu16", "--json", "--trace", tmp_path / "t.json"))
    made = tilewright.compile(file, target="npu16", session=Session(tmp_path, plugins=()))
    kernels = made.report().simulated
    assert [KernelCycles(**k) for k in found["kernels"]] == [*kernels]
    assert sum(k.calls for k in kernels) == made.report().kernels > len(kernels)
    total = found["total"]
    assert total["cycles"] == sum(k.cycles * k.calls for k in kernels)
    assert total["bytes"]["global -> ub"] == sum(k.bytes["global -> ub"] * k.calls for k in kernels) >= 4 * 8 * 4
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    rows = {e["tid"]: e for e in events}
    assert sum(e["dur"] for e in events if e["tid"] == 0) == pytest.approx(total["cycles"] / 1000)  # at 1 GHz
    assert len(rows) >= 4 and max(e["ts"] + e["dur"] for e in events) <= total["cycles"] / 1000 + 1e-9
    made.save(compiled)
    table = ran("profile", compiled)
    assert all(k.kernel in table for k in kernels) and f"{total['cycles']:,.0f} cycles" in table


def test_sizes_of_calls_are_given_and_what_would_run_is_refused(tmp_path: Path) -> None:
    file = model(tmp_path, "rows")
    few, many = (json.loads(ran("profile", file, "--target", "npu16", "--json", "--dim", f"rows={n}")) for n in (1, 9))
    assert few["total"]["cycles"] < many["total"]["cycles"]
    for more, message in (([], "give it with --dim"), (["--scaling"], "simulated")):
        result = CliRunner().invoke(commands, ["profile", str(file), "--target", "npu16", *more])
        assert result.exit_code != 0 and message in result.output
