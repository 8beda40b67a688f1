"""Why models are computed as they are: every edge and every loop has a reason, and answers have the model's names."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto, numpy_helper, parser
from rich.console import Console

import tilewright
from tests import models
from tilewright.accounts.explanation import (
    ExplainedDecision,
    costliest,
    explain_calls,
    explain_flow,
    explanations,
    find_calls,
)
from tilewright.cli.app import commands
from tilewright.cli.explained import flow_tree, kernel_tree
from tilewright.compilation import Compilation, Setting
from tilewright.cost.roofline import round_trip_cycles
from tilewright.frontends.onnx.load import load_onnx
from tilewright.graph.fusion.classify import classify, is_operator
from tilewright.ir.core import Module
from tilewright.loops.edit import loops_in
from tilewright.options import Options
from tilewright.runtime.errors import OptionError, Remark
from tilewright.runtime.report.records import CallRecord, EdgeRecord, LoopRecord, ProgramReport
from tilewright.target.named import parse_target

RESIDUAL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[1, 16, 20, 20] x) => (float[1, 8] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w3)
    r = Relu (c)
    d = Conv (r, w1)
    s = Add (d, r)
    e = Conv <strides = [2, 2]> (s, w1)
    t = Relu (e)
    m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (t)
    p = GlobalAveragePool (m)
    f = Flatten (p)
    y = MatMul (f, v)
}"""

ATTENTION = """<ir_version: 9, opset_import: ["" : 20]>
g (float[n, 24, 32] x) => (float[n, 24, 32] y) {
    q = MatMul (x, wq)
    k = MatMul (x, wk)
    kt = Transpose <perm = [0, 2, 1]> (k)
    a = MatMul (q, kt)
    b = Softmax (a)
    c = MatMul (b, x)
    d = Add (c, x)
    l = LayerNormalization (d, scale, bias)
    h = MatMul (l, wk)
    g1 = Gelu (h)
    i = MatMul (g1, wq)
    y = Add (i, l)
}"""

WEIGHTS = {
    "w3": (16, 16, 3, 3), "w1": (16, 16, 1, 1), "v": (16, 8), "wq": (32, 32), "wk": (32, 32), "scale": (32,),
    "bias": (32,),
}  # fmt: skip


def network(text: str) -> bytes:
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    read = {name for node in proto.graph.node for name in node.input}
    for name in read & WEIGHTS.keys():
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(WEIGHTS[name], np.float32), name))
    for node in proto.graph.node:
        node.name = f"/net/{node.output[0]}/{node.op_type}"
    return proto.SerializeToString()


NETWORKS = {"cnn": network(RESIDUAL), "attention": network(ATTENTION), "mlp": models.mlp()}


@pytest.mark.parametrize("source", NETWORKS.values(), ids=NETWORKS)
def test_no_edge_and_no_loop_is_without_a_reason(source: bytes) -> None:
    edges: list[tuple[str, str]] = []

    def observe(stage: str, module: Module) -> None:
        if stage == "graph":
            ops = [op for op in module.main.body.ops if is_operator(op) and not classify(op).is_source]
            pairs = ((v.op, op) for op in ops for v in dict.fromkeys(op.operands))
            edges.extend((source.name, op.name) for source, op in pairs if source in ops)

    setting = Setting.of(Options(profile=True), parse_target("zen4,cores=2"), observe=observe)
    found = Compilation(load_onnx(source), setting).run("scheduled")
    decisions = found.decisions
    said = sorted((e.producer.partition(" of ")[0], e.consumer.partition(" of ")[0]) for e in decisions.edges)
    assert said == sorted(edges) and len(edges) > 4
    kernels = {f.name: f for f in found.module.funcs.values() if f.level == "loops"}
    for edge in decisions.edges:
        assert edge.reason and {edge.source, edge.target} <= {*kernels, ""}
        if not edge.is_fused:
            assert (edge.cycles is None or edge.cycles > 0) and edge.source and edge.target
            assert not edge.others or "one reader alone" in edge.suggestion or "a third kernel" in edge.reason
        elif "by another shape" not in edge.reason:
            assert edge.source == edge.target != ""
    for name, func in kernels.items():
        records = [r for r in decisions.loops if r.kernel == name]
        assert sum(r.count for r in records) == len(loops_in(func.body)) > 0
        assert all(r.threads and r.lanes for r in records)
        assert any(step for s in decisions.schedules if s.kernel == name for step in s.steps) or not records


CALLS = (
    CallRecord("k0_conv", "/stem/Conv", ("f32[2]",), "8", nodes=("/stem/Conv", "/stem/Relu")),
    CallRecord("k1_matmul", "/head/MatMul", ("f32[2]",), "8", nodes=("/head/MatMul",)),
    CallRecord("k11_conv", "/list/list.1/conv/Conv", (), "8", nodes=("/list/list.1/conv/Conv",)),
    CallRecord("k10_add", "odd ' name\n", ("f32[2]",), "8", nodes=("odd ' name\n",)),
)
EDGES = (
    EdgeRecord("conv of '/stem/Conv'", "max of '/stem/Relu'", "c", "f32[2]", True, "both are one contraction kernel",
               source="k0_conv", target="k0_conv"),
    EdgeRecord("max of '/stem/Relu'", "matmul of '/head/MatMul'", "r", "f32[2]", False, "it is needed elsewhere",
               "one reader alone", ("add of 'odd'",), 100.0, "k0_conv", "k1_matmul"),
    EdgeRecord("max of '/stem/Relu'", "add of 'odd'", "r", "f32[2]", False, "of another form", "nothing", (), 300.0,
               "k0_conv", "k10_add"),
)  # fmt: skip
LOOP = LoopRecord("k0_conv", "i0", "8", "parallel", 0, True, "threads take pieces", False, "the lanes are others", 2,
                  lanes_change="a longer axis")
REPORT = ProgramReport(
    calls=CALLS, edges=EDGES, loops=(LOOP,),
    remarks=(Remark("strategy", "k0_conv", "contraction", "applied"), Remark("tiling", "k0_conv", "too few tiles")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "kernels"),
    [
        ("k0_conv", ["k0_conv"]), ("k1", ["k1_matmul"]), ("/stem/Relu", ["k0_conv"]), ("stem", ["k0_conv"]),
        ("/head/", ["k1_matmul"]), ("list.1/conv", ["k11_conv"]), ("list/list.1", ["k11_conv"]),
        ("odd ' name\n", ["k10_add"]),
    ],
)  # fmt: skip
def test_calls_are_found_by_kernels_nodes_and_modules(wanted: str, kernels: list[str]) -> None:
    assert [c.kernel for c in find_calls(REPORT, wanted)] == kernels


@pytest.mark.parametrize(
    ("wanted", "near"), [("/stem/Rel", "/stem/Relu"), ("k1_matmu", "k1_matmul"), ("k12", "k11_conv"), ("", "k0_conv")]
)
def test_unknown_names_suggest_the_nearest(wanted: str, near: str) -> None:
    with pytest.raises(OptionError, match="there is no node or kernel") as caught:
        find_calls(REPORT, wanted)
    assert caught.value.hint is not None and near in caught.value.hint


def test_a_kernel_is_explained_by_its_edges_loops_and_remarks() -> None:
    (found,) = explain_calls(REPORT, "k0")
    assert (found.strategy, found.inside, found.outgoing, found.incoming) == ("contraction", EDGES[:1], EDGES[1:], ())
    assert found.loops == (LOOP,) and [r.message for r in found.remarks] == ["too few tiles"]
    (reader,) = explain_calls(REPORT, "/head/MatMul")
    assert reader.incoming == EDGES[1:2] and reader.loops == ()
    alike = replace(EDGES[1], value="s", producer="max of 'another'", cycles=250.0)
    found_costs = costliest(replace(REPORT, edges=(*EDGES, alike, replace(alike, reason="elsewhere", cycles=None))))
    assert [(m.edge, m.count, m.cycles) for m in found_costs] == [(EDGES[1], 2, 350.0), (EDGES[2], 1, 300.0)]
    assert len(costliest(REPORT, 1)) == 1


def edges_of(proto: ModelProto) -> tuple[EdgeRecord, ...]:
    """Those of a model for a machine that is known, with its nodes named after their results."""
    for node in proto.graph.node:
        node.name = f"/m/{node.output[0]}/{node.op_type}"
    setting = Setting.of(Options(), parse_target("zen4,cores=2"))
    return Compilation(load_onnx(proto.SerializeToString()), setting).run("scheduled").decisions.edges


def test_a_value_with_many_readers_names_some_of_them() -> None:
    """What stands in the way is told by the rule that refused, and of many readers the first."""
    reads = "\n".join(f"a{k} = Softmax (t)" for k in range(20))
    ends = ", ".join(f"float[8, 4] a{k}" for k in range(20))
    head = f"g (float[4, 8] x, float[8, 8] w) => ({ends}, float[4, 8] s)"
    graph = f"{head} {{ s = MatMul (x, w) t = Transpose (s) {reads} }}"
    found = edges_of(parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {graph}'))
    assert len(found) > 20 and all(len(e.others) <= 3 for e in found)
    (moved,) = [e for e in found if e.producer.startswith("matmul") and e.consumer.startswith("transpose")]
    assert moved.others == ("the outputs of the model",) and moved.suggestion.endswith("the outputs of the model")


def test_what_computing_again_takes_is_no_saving() -> None:
    """A value that a product reads would be computed for each of its tiles; one that is moved costs nothing more."""
    graph = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[512, 512] x, float[512, 2048] w) => (float[512, 2048] y, float[2048, 512] z) {
        e = Erf (x)
        y = MatMul (e, w)
        z = Transpose (y)
    }"""
    product, moved = edges_of(parser.parse_model(graph))
    assert not product.is_fused and "again for every tile" in product.reason and product.cycles is None
    assert not moved.is_fused and moved.cycles is not None and moved.cycles > 0
    assert "transpose" in moved.reason or "needed" in moved.reason


def test_parts_of_a_tensor_are_read_alone() -> None:
    """A part that is a view takes no kernel and no traffic; a kernel that moves a part of a tensor reads that part."""
    graph = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[64, 256] x, int64[1] a, int64[1] b, int64[1] k) => (float[n, m] y, int64[n, m] i, float[2, 256] z) {
        s = Softmax (x)
        p = Slice (s, a, b)
        y, i = TopK (p, k)
        t = Softmax (x)
        zero = Constant <value_ints = [0]> ()
        two = Constant <value_ints = [2]> ()
        q = Slice (t, zero, two)
        z = Softmax (q)
    }"""
    found = edges_of(parser.parse_model(graph))
    view, moved = (e for e in found if e.consumer.startswith("slice"))
    assert view.is_fused and "part of it" in view.reason
    whole = 64 * 256 * 4
    assert moved.cycles is not None and moved.cycles < 0.6 * round_trip_cycles(whole, parse_target("zen4,cores=2"))


def test_explanations_have_four_kinds_and_three_fields() -> None:
    remarks = tuple(Remark("s", "k", kind, kind) for kind in ("applied", "missed", "failed", "warning", "analysis"))
    found = explanations(replace(REPORT, remarks=remarks))
    assert [e.kind for e in found[-5:]] == ["passed", "missed", "failure", "analysis", "analysis"]
    subject = "r (f32[2]), from max of '/stem/Relu' to matmul of '/head/MatMul'"
    reason = "it is needed elsewhere"
    missed = ExplainedDecision("missed", "fusion", subject, reason, "one reader alone", 100.0)
    assert missed in found and [e.stage for e in found if "loop 'i0'" in e.subject] == ["threads", "vectors"]
    assert [e.suggestion for e in found if e.stage == "vectors"] == ["a longer axis"]


def test_the_command_answers_in_the_words_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    path = models.written(models.mlp(), tmp_path, "mlp")
    shape = ["--shape", f"x=3,{models.FEATURES}"]
    found = CliRunner().invoke(commands, ["explain", str(path), "probabilities", *shape])
    said = " ".join(found.output.split())
    assert found.exit_code == 0, found.output
    for words in ("computes 1 node of the model", "algorithm: row reduction", "from max of 'activation'",
                  "cannot start before the whole contraction is done", "shared by threads"):
        assert words in said  # fmt: skip
    unknown = CliRunner().invoke(commands, ["explain", str(path), "probabilites", *shape])
    assert unknown.exit_code == 2 and "did you mean 'probabilities'?" in unknown.output


CONTROL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[1, 96] x, bool c, int64 trips) => (float[1, 96] y, float[1, 96] l, float[1, 96] q, float[1, 96] z) {
    [choose] t = If (c) <
      then_branch = a () => (float[1, 96] p) { [dense1] m = MatMul (x, v1) [act1] p = Relu (m) },
      else_branch = b () => (float[1, 96] r) { [dense2] r = MatMul (x, v2) }
    >
    [after] y = Tanh (t)
    true = Constant <value = bool {1}> ()
    [again] l = Loop (trips, true, y) <body = d (int64 i, bool on, float[1, 96] s) => (bool o, float[1, 96] n) {
        o = Identity (on) [turn] n = MatMul (s, v2) }>
    three = Constant <value = int64 {3}> ()
    [thrice] q = Loop (three, true, x) <body = e (int64 j, bool pn, float[1, 96] u) => (bool w, float[1, 96] k) {
        w = Identity (pn) [turned] k = MatMul (u, v1) }>
    [little] z = If (c) <
      then_branch = f () => (float[1, 96] p2) { p2 = Exp (x) }, else_branch = h () => (float[1, 96] r2) { r2 = Abs (x) }
    >
}"""


def test_branches_and_loops_are_explained_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why each stays one, or what it has become, and which kernels are in its ways; none of those of others."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    proto = parser.parse_model(CONTROL)
    for k in (1, 2):
        proto.graph.initializer.append(numpy_helper.from_array(np.full((96, 96), 0.01, np.float32), f"v{k}"))
    report = tilewright.compile(proto.SerializeToString(), profile=True, cache=False).artifact.summary()
    nodes = {call.kernel: call.nodes for call in report.calls}

    def ways(name: str) -> dict[str, list[str]]:
        (found,) = explain_flow(report, name)
        return {way.way: [n for call in way.calls for n in nodes[call.kernel]] for way in found.ways}

    assert ways("choose") == {"then": ["dense1", "act1"], "else": ["dense2"]}
    assert ways("again") == {"body": ["turn"]} and {*ways("thrice")["body"]} == {"turned"}
    outcomes = {flow.node: (flow.operator, flow.outcome) for flow in report.flow}
    assert outcomes == {"choose": ("If", "branch"), "again": ("Loop", "loop"), "thrice": ("Loop", "unrolled"),
                        "little": ("If", "select")}  # fmt: skip
    (chosen,), (again,) = explain_flow(report, "choose"), explain_flow(report, "again")
    assert "matmul of 'dense1'" in chosen.flow.reason and "scalar operations" in chosen.flow.reason
    assert "in calls only" in again.flow.reason and "constant" in again.flow.suggestion
    kinds = {e.subject: e.kind for e in explanations(report) if e.stage == "control flow"}
    assert kinds["If 'choose'"] == kinds["Loop 'again'"] == "missed" and kinds["If 'little'"] == "passed"
    assert find_calls(report, "choose") == [] and find_calls(report, "little")[0].nodes[0]
    with pytest.raises(OptionError) as caught:
        find_calls(report, "chose")
    assert "choose" in (caught.value.hint or "")
    console = Console(width=300, record=True, file=StringIO())
    console.print(flow_tree(chosen, 1e9))
    said = console.export_text()
    for words in ("choose (If)", "stays a branch", "what would change it: ", "then: 1 kernel, ", "(of dense1, act1)"):
        assert words in said


def test_copies_for_outputs_are_named_after_them() -> None:
    graph = "g (float[4] x) => (float[4] y) { y = Identity(x) }"
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {graph}')
    (call,) = tilewright.compile(proto.SerializeToString(), cache=False).artifact.summary().calls
    assert call.nodes == ("y",)


def test_loops_that_are_run_alike_are_one_line() -> None:
    inner = [
        LoopRecord("k0_conv", f"i{n}", f"{n}", "serial", 1, False, f"threads share loop 'o{n}' around it already",
                   False, "the lanes are those of loop 'v' in it") for n in range(2, 12)
    ]  # fmt: skip
    (found,) = explain_calls(replace(REPORT, loops=(LOOP, *inner)), "k0")

    def text(everything: bool) -> str:
        console = Console(width=500, record=True, file=StringIO())
        console.print(kernel_tree(found, 1e9, everything))
        return console.export_text()

    assert "(and 9 like it: i3 of 3, i4 of 4, i5 of 5, i6 of 6, i7 of 7, i8 of 8, ...)" in text(False)
    assert text(False).count("around it already") == 1 and text(True).count("around it already") == 10
    assert "i0 of 8, parallel (2 such loops)" in text(False)
