"""Records of what was compiled: their JSON text both ways, what they show, and what reads no such text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright
from tests import models
from tests.runtime.native import static_artifact
from tests.staging.models import compiled
from tilewright.runtime import Artifact
from tilewright.runtime.errors import ArtifactError, Remark, RemarkKind
from tilewright.runtime.report.records import (
    VERSION,
    AddedProgram,
    BlockRecord,
    CallRecord,
    ChannelCount,
    EdgeRecord,
    FlowRecord,
    IntegerMeaning,
    KernelCycles,
    LoopRecord,
    PlacedPart,
    ProductCount,
    ProductForm,
    ProgramReport,
    ScheduleRecord,
    StateRecord,
    TypesOfKernel,
    TypesOfLayer,
    WayRecord,
)
from tilewright.runtime.report.shown import Report

BYTES = ProductForm("u8", "i8", "i32", "vpdpbusd")


def remark(kind: RemarkKind) -> Remark:
    return Remark("fuse", "add", "of that kind", kind)


def full() -> Report:
    """Each field holds something, and each record is in it."""
    return Report(
        nodes=3, numerics="default: ...", parts=2, kernels=4, distinct_kernels=2, arena="64*n",
        arena_without_sharing="128*n", compile_ms={"graph": 1.5, "llvm": 2.0},
        calls=(CallRecord("k0", "dense", ("f32[n, 4]",), "16*n"),
               CallRecord("long", "", ("f32[n, 4]", "i64[]"), "9", "1", "2", "3")),
        products=(ProductCount(BYTES, "12*n"),),
        types=(TypesOfKernel("k0", 2, ("u8", "i8"), (ProductCount(BYTES, "12*n"),), ("i32", "lookups"), ("f32",)),),
        layers=(TypesOfLayer("dense", "MatMul", (ChannelCount(BYTES, "some"),), "both operands are quantised",
                             ("k0",)),),
        integers=(IntegerMeaning("input", "x", "uint8", 0.25, 128),), added_code_bytes=7, added_constant_bytes=8,
        edges=(EdgeRecord("matmul", "add", "v", "f32[2]", False, "apart", "less", ("max",), 2.5, "k0", "k1"),),
        flow=(FlowRecord("choose", "If", "branch", "too much work", "less", (WayRecord("then", ("k0",)),)),),
        blocks=(BlockRecord("layer.*", 2, 1, 7, ((0,), (1, 2))),),
        loops=(LoopRecord("k0", "i", "n", "parallel", 0, True, "shared", False, "no lanes", 2),),
        placed=(PlacedPart("part_0", "webgpu", ("k0",), "16*n", "8", "it costs less there"),),
        simulated=(KernelCycles("k0", "dense", 2, 9.0, "cube", {"cube": 0.5}, {"global -> l1": 64}),),
        schedules=(ScheduleRecord("k0", ("split(i, factor=2)",)),),
        remarks=(remark("missed"), remark("failed")), model="m.onnx", threads=2, inputs=("x: uint8[n, 8]",),
        outputs=("y: float32[n, 4]",), assumed=("n <= 8",),
        states=(StateRecord("h", "float32[4]", "hn", "zeros", "in place"),), target="zen4 (x86_64)", object_bytes=1,
        constant_bytes=2, lent_bytes=3, arena_bytes=None, variants=(AddedProgram({"n": 2}, 4, 128, 10, 0),),
        broadcasting=AddedProgram({}, 5, None, 11, 12), attached={"certificate": {"drop": 0.5}},
    )  # fmt: skip


def test_each_field_and_each_record_goes_through_json() -> None:
    report = full()
    empty = Report()
    assert [f.name for f in fields(report) if getattr(report, f.name) == getattr(empty, f.name)] == [
        "version", "arena_bytes",
    ]  # fmt: skip
    assert Report.from_json(report.to_json()) == report
    assert json.loads(report.to_json()) == report.as_dict()
    assert Report.from_json(empty.to_json()) == empty


def test_the_dict_is_of_plain_data_under_the_names_of_the_fields() -> None:
    def check(value: Any) -> None:
        assert not is_dataclass(value) and not isinstance(value, tuple)
        for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
            check(item)

    found = full().as_dict()
    check(found)
    assert found.keys() == {f.name for f in fields(Report)} and found["version"] == VERSION
    assert found["calls"][0]["kernel"] == "k0" and found["layers"][0]["channels"][0]["form"]["left"] == "u8"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 0}, "version 0, and 1 is known"),
        ({"version": "1"}, "version '1'"),
        ({"kernels": "two"}, "Report.kernels is 'two'"),
        ({"compile_ms": {"graph": "long"}}, "compile_ms"),
        ({"calls": [{"kernel": "k0"}]}, "CallRecord has"),
        ({"remarks": [{"stage": "", "subject": "", "message": "", "kind": "new"}]}, "Remark.kind is 'new'"),
        ({"variants": [{"sizes": {"n": 1.5}}]}, "AddedProgram has"),
        ({"colour": 1}, "'colour'"),
    ],
)
def test_other_data_is_refused_with_the_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ArtifactError, match="the report cannot be read") as caught:
        Report.from_json(json.dumps({**full().as_dict(), **change}))
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "3", "[]", "null", "{}", "[" * 5000])
def test_text_that_is_no_report(text: str) -> None:
    with pytest.raises(ArtifactError, match="the report cannot be read"):
        ProgramReport.from_json(text)


def test_what_a_file_has_of_it_is_what_was_compiled() -> None:
    made = tilewright.compile(models.mlp(), cache=False, profile=True)
    again = tilewright.load(made.artifact.to_bytes(), threads=made.threads)
    assert made.report().compile_ms and not again.report().compile_ms  # times differ from run to run
    assert again.report() == replace(made.report(), compile_ms={}) and again.artifact == made.artifact
    assert Report.from_json(made.report().to_json()) == made.report()
    assert made.report().kernels == len(made.report().calls) == 2 and made.report().layers[0].layer == "dense"


def test_a_program_of_parts_tells_of_all_of_them() -> None:
    nodes = [helper.make_node("Compress", ["x", "go"], ["y"], axis=0), helper.make_node("Tanh", ["y"], ["z"])]
    model = compiled(nodes, [("x", 1, ["n", 2]), ("go", TensorProto.BOOL, ["n"])], ["z"])
    report = tilewright.load(model.artifact.to_bytes()).report()
    assert report.parts == len(model.artifact.parts) and report.kernels == len(report.calls)
    assert report.calls == tuple(call for part in model.artifact.parts for call in part.report.calls)


def test_the_model_is_told_of_without_reading_the_report() -> None:
    """What a start from a file needs is not among thousands of remarks."""
    artifact = static_artifact().reporting(remarks=(remark("missed"), remark("failed"), remark("warning")))
    again = Artifact.load(artifact.to_bytes())
    assert again.urgent == (remark("failed"), remark("warning"))
    assert again.kept_report._report is None
    assert again.report.remarks == artifact.report.remarks


def test_it_prints_values_records_and_tables() -> None:
    report = replace(full(), types=(), layers=(), integers=(), states=(), variants=(), attached={}, broadcasting=None,
                     blocks=(), simulated=(), placed=())  # fmt: skip
    assert str(report).splitlines() == [
        "model: m.onnx",
        "threads: 2",
        "inputs: x: uint8[n, 8]",
        "outputs: y: float32[n, 4]",
        "assumed: n <= 8",
        "target: zen4 (x86_64)",
        "object bytes: 1",
        "constant bytes: 2",
        "lent bytes: 3",
        "nodes: 3",
        "numerics: default: ...",
        "parts: 2",
        "kernels: 4",
        "distinct kernels: 2",
        "arena: 64*n",
        "arena without sharing: 128*n",
        "",
        "compile ms:",
        "  graph: 1.5",
        "  llvm: 2",
        "",
        "calls:",
        "  kernel  node   results           bytes  flops  touched bytes  constant bytes",
        "  k0      dense  f32[n, 4]         16*n                                       ",
        "  long           f32[n, 4], i64[]  9      1      2              3             ",
        "",
        "products:",
        "  form                        count",
        "  u8 x i8 in i32 by vpdpbusd  12*n ",
        "added code bytes: 7",
        "added constant bytes: 8",
        "remarks: 2",
        "  failed: fuse: add: of that kind",
    ]


def test_all_of_it_is_shown() -> None:
    text, html = str(full()), full()._repr_html_()
    for shown in ("vpdpbusd", "both operands are quantised", "in place", "n=2", "lookups", "0.25", "drop=0.5"):
        assert shown in text and shown in html
    assert repr(full()) == (
        "<report: model m.onnx, target zen4 (x86_64), kernels 4, 2 calls, 1 products, 1 types, 1 layers, 2 remarks>"
    )
    assert np.all([name in text for name in ("broadcasting", "variants", "states", "integers")])
