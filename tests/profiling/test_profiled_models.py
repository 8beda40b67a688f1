"""Profiles of compiled models: what kernels are said to do equals what one counts by hand."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import numpy_helper, parser

import tilewright
from tests import models
from tilewright.cli.app import commands
from tilewright.cli.measuring.profile import machine_lines
from tilewright.profiling import machine, others
from tilewright.profiling.machine import machine_facts, machine_rates
from tilewright.profiling.others import OtherPrograms
from tilewright.profiling.records import MachineRates, ModelProfile, PeakRate, ReadRate
from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.records import plain
from tilewright.session import Session

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="the cycle counter is x86-64's"
)

RATES = MachineRates(
    {"cpu": "known"}, 2, (PeakRate("f32", "", 50, 100),), (ReadRate("DRAM", None, 10, 20),), "2026-01-01T00:00:00+00:00"
)

NETWORK = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n, 3, 20, 20] x) => (float[n, 16] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu (c)
    p = GlobalAveragePool (r)
    f = Flatten (p)
    y = MatMul (f, v)
}"""


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "measure", lambda facts: RATES)


def network() -> bytes:
    proto = parser.parse_model(NETWORK)
    for node, name in zip(proto.graph.node, ("/stem/Conv", "/stem/act/Relu", "/pool/Pool", "/Flatten", "/head/MatMul"),
                          strict=True):  # fmt: skip
        node.name = name
    rng = np.random.default_rng(0)
    for name, shape in (("w", (16, 3, 3, 3)), ("b", (16,)), ("v", (16, 16))):
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape, np.float32), name))
    return proto.SerializeToString()


@pytest.fixture(scope="module")
def model() -> tilewright.Model:
    return tilewright.compile(network(), threads=2, cache=False, profile=True)


def test_flops_and_bytes_are_those_counted_by_hand(model: tilewright.Model, tmp_path: Path) -> None:
    n = 3
    found = tilewright.profile(model, {"x": np.ones((n, 3, 20, 20), np.float32)}, runs=2, session=Session(tmp_path))
    by_node = {k.nodes[0]: k for k in found.kernels}
    conv, pool, head = by_node["/stem/Conv"], by_node["/pool/Pool"], by_node["/head/MatMul"]
    pixels = n * 16 * 20 * 20
    assert conv.flops == pixels * (2 * 3 * 3 * 3 + 1 + 1)  # products and sums, the bias, the activation
    padded = n * 3 * 22 * 22  # a kernel before writes the zeros around
    assert conv.bytes == 4 * (padded + 16 * 3 * 3 * 3 + 16 + pixels)
    assert pool.flops == pixels + n * 16 and pool.bytes == 4 * (pixels + n * 16)
    assert head.flops == 2 * n * 16 * 16 and head.bytes == 4 * (n * 16 + 16 * 16 + n * 16)
    assert (conv.path, head.path) == ("stem", "head") and "/stem/act/Relu" in conv.nodes
    assert found.sizes == {"n": n} and found.machine == RATES
    assert sum(k.share for k in found.kernels) == pytest.approx(1, abs=1e-4)
    assert all(0 < k.least_ms <= k.median_ms and (k.balance is None or 0 < k.balance <= 1) for k in found.kernels)
    assert {layer.path for layer in found.layers} == {k.path for k in found.kernels}
    assert ModelProfile.from_json(found.to_json()) == found


def counted(
    graph: str, feed: dict[str, np.ndarray], session: Session, numerics: str = "default", **constants: np.ndarray
) -> ModelProfile:
    """The profile of a model."""
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}')
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    model = tilewright.compile(proto.SerializeToString(), threads=1, cache=False, profile=True, numerics=numerics)
    return tilewright.profile(model, feed, runs=1, session=session)


def test_flops_and_bytes_of_a_convolution_with_padding_and_stride(tmp_path: Path) -> None:
    """Of images of 21 x 21, an odd size, 11 x 11 results; the last row of windows ends at the last row of padding."""
    graph = "g (float[n, 16, 21, 21] x) => (float[n, 32, 11, 11] y) {\n" \
        "c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b)\n y = Relu (c) }"  # fmt: skip
    w, b, x = (np.ones(shape, np.float32) for shape in ((32, 16, 3, 3), (32,), (2, 16, 21, 21)))
    found = counted(graph, {"x": x}, Session(tmp_path), w=w, b=b)
    (conv,) = (k for k in found.kernels if "c" in k.nodes and k.flops)
    results = 2 * 32 * 11 * 11
    assert conv.flops == results * (2 * 16 * 3 * 3 + 1 + 1)  # products and sums, the bias, the activation
    assert conv.bytes == 4 * (2 * 16 * 23 * 23 + w.size + b.size + results)  # zeros around are there already
    assert sum(k.flops or 0 for k in found.kernels) == conv.flops
    fast = counted(graph, {"x": x}, Session(tmp_path), numerics="fast", w=w, b=b)
    assert sum(k.flops or 0 for k in fast.kernels) == conv.flops  # whatever types its data are in


def test_flops_and_bytes_of_attention(tmp_path: Path) -> None:
    """Scores stay within the kernel."""
    graph = """g (float[2, 3, 64, 32] q, float[2, 3, 32, 48] k, float[2, 3, 48, 32] v) => (float[2, 3, 64, 32] y) {
        s = MatMul (q, k)
        t = Mul (s, scale)
        p = Softmax <axis = -1> (t)
        y = MatMul (p, v)
    }"""
    shapes = {"q": (2, 3, 64, 32), "k": (2, 3, 32, 48), "v": (2, 3, 48, 32)}
    feed = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    (kernel,) = counted(graph, feed, Session(tmp_path), scale=np.array(0.125, np.float32)).kernels
    rows, scores = 2 * 3 * 64, 2 * 3 * 64 * 48
    softmax = scores * (1 + 1 + 1 + 1) + rows  # the largest, differences, exponentials, their sum; its inverse
    results = rows * 32
    assert kernel.flops == scores * (2 * 32 + 1) + softmax + results * (2 * 48 + 1)  # the scale, the inverse sum
    assert kernel.bytes == 4 * (sum(value.size for value in feed.values()) + rows * 32)


def test_calls_are_timed_on_each_number_of_threads(model: tilewright.Model, tmp_path: Path) -> None:
    feed = {"x": np.ones((1, 3, 20, 20), np.float32)}
    scaling = tilewright.profile(model, feed, runs=1, scaling=True, session=Session(tmp_path)).scaling
    assert scaling is not None and [p.threads for p in scaling.points] == [1, 2]
    assert scaling.batch == "n" and [p.size for p in scaling.growing] == [1, 2]
    assert 0 <= scaling.serial <= 1 and len(scaling.scaled) == 2


def test_a_dim_that_cannot_grow_costs_what_grows_alone(tmp_path: Path) -> None:
    """Positions of a table: there are none for twice the rows."""
    graph = """g (float[n, 4] x) => (float[n, 4] y) {
        s = Shape (x)
        m = Gather <axis = 0> (s, zero)
        r = Range (zero, m, one)
        p = Gather (table, r)
        y = Add (x, p)
    }"""
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}')
    table = np.ones((4, 4), np.float32)
    for name, value in (("zero", np.array(0)), ("one", np.array(1)), ("table", table)):
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    source, feed = proto.SerializeToString(), {"x": np.ones((3, 4), np.float32)}
    model = tilewright.compile(source, threads=2, cache=False, profile=True)
    found = tilewright.profile(model, feed, runs=1, scaling=True, session=Session(tmp_path))
    assert found.scaling is not None and len(found.scaling.points) == 2 and not found.scaling.growing
    assert len(found.notes) == 1 and "growing 'n'" in found.notes[0]
    with pytest.raises(InputError, match="no input has a symbolic dim 'k'"):
        tilewright.profile(model, feed, runs=1, scaling=True, batch="k", session=Session(tmp_path))


def test_states_stay_as_they_are(tmp_path: Path) -> None:
    graph = "g (float[4] x, float[4] h) => (float[4] hn) { hn = Add (h, x) }"
    source = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString()
    model = tilewright.compile(source, threads=1, cache=False, profile=True, states={"h": "hn"})
    x = np.ones(4, np.float32)
    model.run({"x": x})
    tilewright.profile(model, {"x": x}, runs=2, scaling=True, counters=True, session=Session(tmp_path))
    np.testing.assert_array_equal(model.state("h"), x)


def test_a_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(machine, "measure", lambda facts: asked.append(1) or RATES)
    session = Session(tmp_path)
    assert machine_rates(session) == machine_rates(session) == RATES and len(asked) == 1
    machine_rates(session, again=True)
    stopped = replace(RATES, reads=(ReadRate("DRAM", None, 0, 20),))
    for count, kept in enumerate((replace(RATES, peaks=()), replace(RATES, reads=()), stopped, None), 3):  # damaged
        note = b"{" if kept is None else json.dumps(plain(kept)).encode()
        session.note(machine._about(machine_facts()), note)
        assert machine_rates(session) == RATES and len(asked) == count


def test_it_is_said_that_a_machine_was_busy_when_it_was_measured() -> None:
    """The share of time that threads have is that of the clocks: here, half of it."""
    assert not any("other programs" in line for line in machine_lines(RATES))
    said = machine_lines(replace(RATES, share=0.5))
    assert "threads had a core for 50 % of the time" in said[-1] and "info --measure" in said[-1]


def test_a_machine_that_was_busy_is_measured_again(
    model: tilewright.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = replace(RATES, peaks=(PeakRate("f32", "", 1e7, 1e7),), reads=(ReadRate("DRAM", None, 1e7, 1e7),))
    busy = replace(fast, peaks=(PeakRate("f32", "", 1e-6, 1e-6),), reads=(ReadRate("DRAM", None, 1e7, 3e7),))
    readings = iter((busy, fast))
    monkeypatch.setattr(machine, "measure", lambda facts: next(readings))
    session, feed = Session(tmp_path), {"x": np.ones((1, 3, 20, 20), np.float32)}
    best = replace(fast, reads=busy.reads)
    for said in (True, False):
        found = tilewright.profile(model, feed, runs=1, session=session)
        assert found.machine == machine_rates(session) == best
        assert any("measured again" in note for note in found.notes) is said


def test_the_command_profiles_models_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    source, compiled, trace = tmp_path / "net.onnx", tmp_path / "net.tw", tmp_path / "trace.json"
    source.write_bytes(network())
    run = CliRunner().invoke
    assert run(commands, ["compile", str(source), "-o", str(compiled), "--profile"]).exit_code == 0
    found = run(commands, ["profile", str(compiled), "--trace", str(trace), "--runs", "1"])
    assert found.exit_code == 0 and "% of the roofline" in found.output and "/stem/Conv" in found.output
    assert json.loads(trace.read_text())["traceEvents"]
    printed = run(commands, ["profile", str(source), "--json", "--runs", "1", "--dim", "n=2"])
    assert ModelProfile.from_json(printed.stdout).sizes == {"n": 2}
    refused = run(commands, ["profile", str(compiled), "--trace", str(source)])
    assert refused.exit_code == 1 and source.read_bytes() == network()
    missing = run(commands, ["profile", str(compiled), "--trace", str(tmp_path / "none" / "trace.json")])
    assert missing.exit_code == 1 and "existing, writable folder" in " ".join(missing.output.split())
    assert "a call takes" not in missing.output and not (tmp_path / "none").exists()


def test_a_file_without_timers_says_how_to_get_them(tmp_path: Path) -> None:
    path = tmp_path / "plain.tw"
    tilewright.compile(models.mlp(), cache=False).save(path)
    found = CliRunner().invoke(commands, ["profile", str(path)])
    assert found.exit_code == 2 and "tilewright compile --profile" in found.output


def test_other_programs_are_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of two processors for 10 seconds, programs had 18 seconds, of which 12 were this one's."""
    stat = tmp_path / "stat"
    monkeypatch.setattr(others, "STAT", stat)
    monkeypatch.setattr(others.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(others.os, "sysconf", lambda name: 100, raising=False)
    clocks = {"perf_counter": iter([0.0, 10.0]), "process_time": iter([1.0, 13.0])}
    for name, values in clocks.items():
        monkeypatch.setattr(others.time, name, lambda values=values: next(values))
    stat.write_text("cpu  100 0 0 5000 70 0 0 0 50 0\ncpu0 1 2\n")
    watched = OtherPrograms()
    stat.write_text("cpu  1300 200 100 5200 80 100 100 100 999 0\n")
    assert watched.note().startswith("other programs had 30 % of the processors")
    for text in ("", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2"):
        stat.write_text(text)
        assert OtherPrograms().note() == ""
