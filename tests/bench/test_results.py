"""What is made of results: the best peer, ratios, tables, the bound of kernels."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench import compile as compile_time
from bench import ratios, records, roofline, table
from bench.commands.summary import summary_of_ratios
from bench.records import Record
from bench.roofline import Machine, Work
from tilewright.profiling.meters import MemoryLevel, block_sizes
from tilewright.runtime.report.records import CallRecord


def record(
    engine: str, ms: float | None, error: float | None = 1e-6, model: str = "m", threads: int = 1
) -> Record:
    facts = {"cpu": "Abacus 1", "cpus": 2, "system": "Linux x86_64"}
    return Record(
        "networks", model, threads, engine, version="1.2", median_ms=ms, min_ms=ms, p90_ms=ms, relative_error=error,
        date="2026-01-02", machine=facts, failure="" if ms else "has no operator | Foo",
    )  # fmt: skip


FOUND = [
    record("tilewright", 2.0),
    record("onnxruntime", 4.0),
    record("openvino", 3.0),
    record("mnn", 1.0, error=2e-3),  # the fastest, and wrong
    record("ncnn", 1.5, error=None),
    record("jax", None),
    record("tilewright", 150.4, model="n", threads=2),
    record("onnxruntime", 100.0, model="n", threads=2),
    record("tilewright", 1.0, model="alone"),
]


def test_the_best_peer_is_the_fastest_of_those_that_are_right() -> None:
    first, second, third = ratios.rows(FOUND)
    assert first.best is FOUND[2] and first.ratio == pytest.approx(2 / 3)
    assert second.ratio == pytest.approx(1.504) and (second.threads, second.model) == (2, "n")
    assert third.best is None and third.ratio is None
    assert ratios.ratios([first, second, third]) == [first.ratio, second.ratio]
    assert ratios.worst([third, first, second], 1) == [second]


def test_an_error_of_exactly_the_limit_is_too_much() -> None:
    assert not ratios.counts(record("mnn", 1.0, error=1e-3))
    assert ratios.counts(record("mnn", 1.0, error=0.99e-3))


def test_means_and_quantiles() -> None:
    assert ratios.geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    assert ratios.geometric_mean([]) is None
    assert ratios.quantiles([0.4, 0.1, 0.3, 0.2], (0.25, 0.5, 1.0)) == [0.1, 0.2, 0.4]
    assert ratios.quantiles([]) == []


def test_what_is_said_at_the_end_names_losses_failures_and_wrong_results() -> None:
    said = summary_of_ratios(
        ratios.rows(
            [*FOUND, record("tilewright", 1.0, error=0.5, model="broken"), record("mnn", 1.0, 0.25, "broken")]
        )
    )
    assert "1 threads, 1 models" in said and "geometric mean 0.667" in said
    assert "1.50  n: 150.4 ms, onnxruntime 100 ms" in said
    assert "jax on m: has no operator | Foo" in said
    assert "relative error of ours above 0.001:\n  broken: 0.5, peers 0.25" in said


def test_the_short_table_shows_losses_gaps_and_what_does_not_count() -> None:
    made = table.short_table(FOUND)
    head, _, first, second, third = made.splitlines()[:5]
    assert head.startswith("| model | **tilewright** | MNN | ncnn | ONNX Runtime | OpenVINO | best peer |")
    assert first == "| m | 2 / - | (1) / - | (1.5) / - | 4 / - | 3 / - | OpenVINO | 0.67 / - |"
    assert second == "| n | - / 150 | - / - | - / - | - / 100 | - / - | ONNX Runtime | - / 1.50 |"
    assert third.endswith("|  | - / - |")
    assert "0.67 with 1 thread (0 of 1 slower than the best peer); 1.50 with 2 threads (1 of 1" in made
    assert "2 cores of Abacus 1, Linux x86_64; MNN 1.2" in made and "2026-01-02" in made


def test_the_page_has_all_engines_and_why_one_fails() -> None:
    made = table.page(FOUND, [], [])
    assert "| m | 1 | **OpenVINO** | 3 | 3 | 3 |  | 1.0e-06 |  |  |  | 1.50 |" in made
    assert "| m | 1 | JAX | fails: has no operator \\| Foo |" in made
    columns = {line.count("|") - line.count("\\|") for line in made.splitlines() if line.startswith("|")}
    assert columns == {13}


def test_the_page_tells_where_the_time_of_compiling_goes(tmp_path: Path) -> None:
    stages = {"read": 1, "graph": 2, "schedule": 3, "emit": 4, "llvm": 5, "rest": 6}
    row = {"model": "m", "nodes": 9, "kernels": 8, "distinct": 7, "stages": stages, "total": 21, "cached": 10}
    written = tmp_path / "compile.json"
    written.write_text(json.dumps({"rows": [row]}))
    made = table.page([], compile_time.read(written), [])
    assert (
        "| model | nodes | kernels | distinct | read | graph | schedule | emit | llvm | rest | total | cached |"
        in made
    )
    assert "| m | 9 | 8 | 7 | 1 | 2 | 3 | 4 | 5 | 6 | 21 | 10 |" in made
    assert compile_time.read(tmp_path / "none.json") == []


def test_published_failures_name_files_without_their_folders(tmp_path: Path) -> None:
    said = "importer gave 1: at /home/me/cache/model.mlir:193:12: 'a/b' and 1/2 in (/opt/x/lib.so)"
    path = tmp_path / "results" / "new.jsonl"
    records.write(Record("networks", "m", 1, "iree", failure=said), path)
    (found,) = records.read([path])
    assert found.failure == "importer gave 1: at model.mlir:193:12: 'a/b' and 1/2 in (lib.so)"


def test_tables_without_results() -> None:
    assert table.short_table([]) == "Not measured yet."
    assert table.page([], [], []).startswith("# Benchmarks")
    text = f"a\n{table.BEGIN}\nold\n{table.END}\nb"
    assert table.with_table(text, []) == f"a\n{table.BEGIN}\nNot measured yet.\n{table.END}\nb"


MEMORY = [MemoryLevel("L2", 1000), MemoryLevel("DRAM", 1 << 62)]
MACHINE = Machine(peak=100.0, bandwidth={"L2": 50.0, "DRAM": 10.0})


@pytest.mark.parametrize(
    ("work", "all_constants", "nanoseconds", "by"),
    [
        (Work("k", "n", 1000, 10, 10), 100, 10.0, "FMA"),
        (Work("k", "n", 10, 500, 100), 500, 12.0, "L2"),
        (Work("k", "n", 10, 500, 100), 5000, 52.0, "DRAM"),  # the weights of the whole model do not fit
        (Work("k", "n", 10, 0, 2000), 100, 200.0, "DRAM"),
    ],
)
def test_the_bound_is_the_slower_of_arithmetic_and_memory(
    work: Work, all_constants: int, nanoseconds: float, by: str
) -> None:
    found = roofline.bound(work, MACHINE, MEMORY, all_constants)
    assert math.isclose(found.seconds, nanoseconds * 1e-9) and found.by == by


def test_calls_of_a_kernel_are_added_and_the_costliest_is_first() -> None:
    works = [Work("a", "1", 100, 0, 10), Work("b", "2", 300, 0, 30), Work("a", "3", 100, 0, 10)]
    bounds = [roofline.bound(work, MACHINE, MEMORY, 0) for work in works]
    first, second = roofline.lines(works, [4e-9, 6e-9, 4e-9], bounds)
    assert (first.kernel, first.calls, first.ms) == ("a", 2, pytest.approx(8e-6))
    assert (first.gflops, first.gbytes, first.percent) == pytest.approx((25.0, 2.5, 25.0))
    assert (second.kernel, second.percent) == ("b", pytest.approx(50.0))


def test_works_of_symbolic_dims_are_refused() -> None:
    call = CallRecord("k", "n", (), "12", flops="2*batch", touched_bytes="8", constant_bytes="4")
    with pytest.raises(ValueError, match="fix the model's dims"):
        roofline.works_of([call])
    assert roofline.works_of([replace(call, flops="20")]) == [Work("k", "n", 20, 4, 4)]


def test_blocks_of_meters_fit_their_level_and_no_faster_one() -> None:
    known = {"L1": 32 << 10, "L2": 1 << 20, "L3": 36 << 20, "DRAM": 1 << 62}
    found = [MemoryLevel(name, size) for name, size in known.items()]
    sizes = block_sizes(found)
    for size, level, faster in zip(sizes, found, [MemoryLevel("", 0), *found], strict=False):
        assert faster.size < size <= level.size
