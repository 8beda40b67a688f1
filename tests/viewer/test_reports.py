"""`tilewright report` and `write_report`: what a page holds, and what is refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tilewright
from tests.models import gather, mlp, unsupported, written
from tilewright.api import compile_artifact
from tilewright.cli.app import commands
from tilewright.options import Options
from tilewright.profiling.records import MachineRates, PeakRate, ReadRate
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.target.host import host_target
from tilewright.viewer.codes import unpacked
from tilewright.viewer.page import escaped_json
from tilewright.viewer.records import ModelView
from tilewright.viewer.write import Subject, with_names


def report(*arguments: object) -> Result:
    return CliRunner().invoke(commands, ["report", *map(str, arguments)])


def data_of(page: Path) -> dict[str, Any]:
    (found,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL
    )
    loaded: dict[str, Any] = json.loads(found)
    return loaded


RATES = MachineRates(
    {"cpu": "test"}, 2, (PeakRate("f32", "", 50, 90),),
    (ReadRate("L2", 1 << 20, 60, 120), ReadRate("DRAM", None, 9, 9)), "",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_meters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring a machine takes seconds."""
    monkeypatch.setattr("tilewright.profiling.run.machine_rates", lambda session: RATES)
    monkeypatch.setattr("tilewright.profiling.run.rates_again", lambda session, known: known)


@pytest.mark.without_room_for_zones
def test_what_a_page_says_of_a_model(tmp_path: Path) -> None:
    model, page = written(mlp(), tmp_path, "mlp"), tmp_path / "page.html"
    done = report(model, "--dim", "batch=3", "--threads", 1, "--runs", 1, "--no-cache", "-o", page)
    assert done.exit_code == 0, done.output
    (view,) = data_of(page)["models"]
    nodes = {node["name"]: node for node in view["nodes"]}
    assert [*nodes] == ["x", "dense", "bias", "activation", "probabilities", "y"]
    assert [view["nodes"][k]["name"] for k in nodes["bias"]["reads"]] == ["dense"]
    assert nodes["dense"]["constants"] == ["w: f32[64, 32]"] and "matmul(x, w)" in nodes["dense"]["text"]
    dense, softmax = view["calls"]
    assert [view["nodes"][k]["name"] for k in dense["nodes"]] == ["dense", "bias", "activation"]
    assert softmax["reads"] == [0] and [view["nodes"][k]["name"] for k in softmax["ends"]] == ["y"]
    assert dense["flops"] == 3 * 32 * (2 * 64 + 2)  # multiply-adds, the sum, and the maximum
    assert dense["seconds"] > 0 and dense["cycles"] > 0 and dense["percent"] > 0
    assert "Copyright (c) 2022 Leon Sorokin" in page.read_text()  # of the library that stands in it
    texts = {level: unpacked(text) for level, text in view["codes"][dense["code"]]["texts"].items()}
    begins = {"loops": "kernel @", "schedule": "kernel @", "llvm": "define ", "asm": "fm"}
    assert all(begin in texts[level] for level, begin in begins.items() if level != "asm" or host_target().has_fma)
    (memory,) = view["memory"]
    # The result of the first kernel, and scratch memory of one thread.
    assert 3 * 32 * 4 <= max(memory["alive"]) <= memory["total"]
    assert Counter(t["stage"] for t in view["compiling"]).keys() >= {"import", "graph", "schedule", "memory", "LLVM"}
    roofs = {"f32": 50e9}, {"L2": 60e9, "DRAM": 9e9}  # of one thread
    assert view["roofline"]["measured"] and (view["roofline"]["flops"], view["roofline"]["bandwidth"]) == roofs


def test_two_models_and_their_errors(tmp_path: Path) -> None:
    one, page = written(mlp(), tmp_path, "one"), tmp_path / "page.html"
    assert report(one, one, "--estimate", "--error", "-o", page).exit_code == 0
    first, second = data_of(page)["models"]
    assert {node["error"] for node in first["nodes"]} == {None}
    assert {node["error"] for node in second["nodes"] if node["operator"] == "Softmax"} == {0.0}
    assert first["calls"][0]["seconds"] is None and first["calls"][0]["cycles"] > 0


def test_errors_of_one_model_are_those_of_its_kernels_beside_its_graph(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = report(written(mlp(), tmp_path, "mlp"), "--dim", "batch=2", "--estimate", "--error", "-o", page)
    assert done.exit_code == 0, done.output
    (view,) = data_of(page)["models"]
    errors = {node["name"]: node["error"] for node in view["nodes"] if node["error"] is not None}
    assert errors.keys() == {"dense", "probabilities"} and all(0 <= error < 1e-5 for error in errors.values())


def test_an_artefact_says_what_it_does_not_hold(tmp_path: Path) -> None:
    compile_artifact(mlp(), options=Options(cache=False, target="neoverse-n1")).save(tmp_path / "net.tw")
    done = report(tmp_path / "net.tw", "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    (view,) = data_of(tmp_path / "page.html")["models"]
    assert view["kind"] == "artefact"
    computed = [[view["nodes"][k]["name"] for k in call["nodes"]] for call in view["calls"]]
    assert computed == [["dense", "bias", "activation"], ["probabilities"]]
    assert any("has no graph" in note for note in view["notes"])
    assert any("estimates" in note or "timed" in note for note in view["notes"])


def test_what_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    (tmp_path / "picture.tw").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    done = report(tmp_path / "picture.tw", "-o", page)
    assert done.exit_code == 1 and "picture.tw" in done.output and not page.exists()
    model = written(mlp(), tmp_path, "mlp")
    whole = tmp_path / "net.tw"
    tilewright.compile(mlp(), cache=False).save(whole)
    (tmp_path / "cut.tw").write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(ArtifactError, match=r"cut\.tw"):
        tilewright.write_report(page, tmp_path / "cut.tw")
    assert report(model, "-o", model, "--estimate").exit_code == 1  # it would be lost
    site = tmp_path / "index.html"
    site.write_text("<!doctype html>\n<title>mine</title>")
    kept = report(model, "-o", site, "--estimate")
    assert kept.exit_code == 1 and "is not a page" in kept.output and "mine" in site.read_text()
    assert report(model, "-o", site, "--estimate", "--force").exit_code == 0
    assert report(model, "-o", site, "--estimate").exit_code == 0  # a page of ours
    assert report(written(unsupported(), tmp_path, "un"), "--estimate", "-o", page).exit_code == 1
    told = report(whole, "--error", "-o", page)
    assert told.exit_code == 2 and "has no graph" in told.output
    assert report(model, "--data", "x.npz", "-o", page).exit_code == 2
    assert report(model, "--estimate", "-o", tmp_path / "no" / "page.html").exit_code == 1
    with pytest.raises(OptionError, match="dicts"):
        tilewright.write_report(page, mlp(), inputs=[1])  # type: ignore[arg-type]
    assert not page.exists()


def test_versions_of_a_model_are_told_apart(tmp_path: Path) -> None:
    model, page = written(mlp(), tmp_path, "mlp"), tmp_path / "page.html"
    done = report(model, "--other-options", "--numerics fast", "--estimate", "--no-cache", "-o", page)
    assert done.exit_code == 0, done.output
    views = data_of(page)["models"]
    assert [view["name"] for view in views] == ["mlp.onnx (numerics=default)", "mlp.onnx (numerics=fast)"]
    assert [dict(view["facts"])["numerics"] for view in views] == ["default", "fast"]
    for wrong in ("--numerics quick", "--nothing", "'"):
        refused = report(model, "--other-options", wrong, "--estimate", "-o", page)
        assert refused.exit_code == 2 and f"--other-options {wrong}" in refused.output


def test_names_that_are_equal_get_folders_or_numbers() -> None:
    views = [ModelView("net.onnx", "model"), ModelView("net.onnx", "model")]
    names = [[v.name for v in with_names(views, [Subject(one), Subject(two)])]
             for one, two in (("a/net.onnx", "b/net.onnx"), ("a/net.onnx", "a/net.onnx"), (b"1", b"2"))]  # fmt: skip
    assert names == [["a/net.onnx", "b/net.onnx"], *[["net.onnx (1)", "net.onnx (2)"]] * 2]


def test_times_of_inputs_that_are_given(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    tilewright.write_report(page, gather(), inputs={"ids": np.array([1, 2])}, sizes={"n": 2}, threads=1, cache=False)
    (view,) = data_of(page)["models"]
    assert view["name"] == "ModelProto" and all(call["seconds"] > 0 for call in view["calls"])


def test_data_never_end_their_element() -> None:
    text = escaped_json({"a": "</script><!--<b>&", "n": float("nan"), "error": float("inf")})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!--<b>&", "n": None, "error": "Infinity"}
