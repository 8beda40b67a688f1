"""Writes what was measured into README.md (in short) and docs/benchmarks.md (all of it). Run by `make docs`.

The results are the JSON lines in bench/results, which `python -m bench COMMAND --out FILE` appends; a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import compile as compile_time
from bench import footprint, peers, ratios, records
from bench.compile import Times
from bench.footprint import Footprint
from bench.peers import OURS
from bench.ratios import Row
from bench.records import Record

ROOT = Path(__file__).parent.parent
RESULTS, README, PAGE = ROOT / "bench" / "results", ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
ROOFLINE, COMPILE, DEPLOYED = "roofline.jsonl", "compile.json", "deployed.jsonl"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
TITLES = {
    "networks": "Networks",
    "operators": "Single operators",
    "random": "Models of random shapes",
    "real": "Trained models",
}
SHOWN = 20
"""Rows of the suites that have hundreds of models: the worst ones."""


def load() -> list[Record]:
    """All results there are."""
    others = (ROOFLINE, DEPLOYED)
    return records.read(path for path in sorted(RESULTS.glob("*.jsonl")) if path.name not in others)


def load_compile() -> list[Times]:
    """The times of compilation, if they were measured."""
    return compile_time.read(RESULTS / COMPILE)


def load_deployed() -> list[Footprint]:
    """What deployed models take, if it was measured."""
    return footprint.read(RESULTS / DEPLOYED)


def load_roofline() -> list[dict[str, Any]]:
    """The latest roofline of each model."""
    path = RESULTS / ROOFLINE
    found = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return list({line["model"]: line for line in found}.values())


def with_table(readme: str, found: Sequence[Record]) -> str:
    """The README with its table replaced."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{short_table(found)}\n{END}{after}"


def short_table(found: Sequence[Record]) -> str:
    """The networks: a row for each, and in each cell the milliseconds for each number of threads."""
    networks = [record for record in found if record.kind == "networks"]
    if not networks:
        return "Not measured yet."
    return f"{markdown(networks)}\n\n{_origin(found, ratios.rows(networks))}"


def markdown(found: Sequence[Record]) -> str:
    """A table of these models, and the geometric mean."""
    rows = ratios.rows(found)
    threads = sorted({row.threads for row in rows})
    engines = _engines(rows)
    heads = [
        "model",
        *(f"**{_title(e)}**" if e == OURS else _title(e) for e in engines),
        "best peer",
        "ours / best",
    ]
    lines = [_cells(heads), "|---|" + "---:|" * (len(heads) - 1)]
    for model in dict.fromkeys(row.model for row in rows):
        of_model = {row.threads: row for row in rows if row.model == model}
        chosen = [of_model.get(n) for n in threads]
        cells = [" / ".join(_ms_of(row, engine) for row in chosen) for engine in engines]
        best = dict.fromkeys(_title(row.best.engine) for row in chosen if row and row.best)
        lines.append(_cells([model, *cells, " / ".join(best), " / ".join(_ratio(row) for row in chosen)]))
    return "\n".join([*lines, "", _means(rows, threads)])


def _engines(rows: Sequence[Row]) -> list[str]:
    """Ours, then the peers that were measured, in the order of their names."""
    tried = {name for row in rows for name, record in row.records.items() if record.median_ms is not None}
    return [OURS, *sorted(tried - {OURS}, key=lambda name: _title(name).lower())]


def _title(engine: str) -> str:
    return peers.describe(engine).title


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ms_of(row: Row | None, engine: str) -> str:
    """A dash for what was not measured or failed; in parentheses what is not exact enough to count."""
    record = row.records.get(engine) if row else None
    if record is None or record.median_ms is None:
        return "-"
    return ms(record.median_ms) if ratios.counts(record) or engine == OURS else f"({ms(record.median_ms)})"


def ms(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(row: Row | None) -> str:
    return "-" if row is None or row.ratio is None else f"{row.ratio:.2f}"


def _means(rows: Sequence[Row], threads: Sequence[int]) -> str:
    parts = []
    for n in threads:
        values = ratios.ratios(row for row in rows if row.threads == n)
        mean = ratios.geometric_mean(values)
        if mean is not None:
            losses = sum(value > 1 for value in values)
            parts.append(
                f"{mean:.2f} with {_count(n, 'thread')} ({losses} of {len(values)} slower than the best peer)"
            )
    return f"Geometric mean of ours / best: {'; '.join(parts)}."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _origin(found: Sequence[Record], rows: Sequence[Row]) -> str:
    """Unit, machine, versions, date."""
    threads = " / ".join(map(str, sorted({row.threads for row in rows})))
    mine = [record for row in rows for record in row.records.values()]
    machines = dict.fromkeys(_machine(record.machine) for record in mine if record.machine)
    versions = {record.engine: record.version for record in mine if record.version and record.median_ms}
    listed = ", ".join(f"{_title(name)} {versions[name]}" for name in sorted(versions))
    dates = sorted({record.date for record in mine if record.date})
    when = f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else "".join(dates)
    told = [
        f"Milliseconds of one inference with {threads} threads, float32, batch 1",
        *machines,
        listed,
        when,
    ]
    return (
        "; ".join(part for part in told if part)
        + ". In parentheses: off by more than 0.001 of the output's scale."
    )


def _machine(facts: Mapping[str, Any]) -> str:
    return f"{_count(facts.get('cpus', 1), 'core')} of {facts.get('cpu', 'an unknown CPU')}, {facts.get('system', '')}"


def page(
    found: Sequence[Record],
    compiled: Sequence[Times],
    roofs: Sequence[Mapping[str, Any]],
    deployed: Sequence[Footprint] = (),
) -> str:
    """docs/benchmarks.md."""
    parts = ["# Benchmarks", INTRODUCTION]
    rows = ratios.rows(found)
    for kind, title in TITLES.items():
        of_kind = [row for row in rows if row.kind == kind]
        if of_kind:
            parts += [f"## {title}", *_suite(of_kind, full=kind in ("networks", "operators"))]
    if compiled:
        parts += ["## Compile time", COMPILE_TEXT, compile_time.table(compiled)]
    if deployed:
        machines = "; ".join(dict.fromkeys(_machine(row.machine) for row in deployed if row.machine))
        versions = {_title(row.engine): row.version for row in deployed if row.version}
        listed = ", ".join(f"{title} {version}" for title, version in versions.items())
        parts += ["## Deployed models", DEPLOYED_TEXT, footprint.table(deployed), f"{machines}; {listed}."]
    if roofs:
        parts += ["## Percent of the bound", ROOFLINE_TEXT, *map(_roof, roofs)]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """Written by `make docs` from the JSON lines in `bench/results`; measure anew as
[README.md](../README.md#speed) tells. Each engine runs in a process of its own; they take turns, the order rotating,
and all others are stopped meanwhile. A turn that other programs disturbed is taken again. `spread` is how far apart the
medians of an engine's turns are; `error` is the largest difference from float64 over the output's largest magnitude. A
peer is the best one only if its error is below 0.001. `memory` is what loading and running the model added to the
process."""
COMPILE_TEXT = """Milliseconds by stage, with nothing cached, after the compiler's imports; `read` is the frontend with
the file's weights, `llvm` what was waited for after all kernels had been handed to LLVM's threads. `cached` is the time
to open the compiled model in a new process, with all imports."""
DEPLOYED_TEXT = """`python -m bench memory MODEL.onnx --beside ENGINES`: each engine with the file that it is deployed
with (ours a `.tw`, OpenVINO its cached blob beside the model, LiteRT what its converter makes of the PyTorch
program), one thread, medians of several processes that take turns. The artefact is what is deployed for the model, the
runtime the packages that run it, without Python and NumPy. The first answer is counted from the start of the
process, with Python's own start and the reading of the inputs; loading includes the import of the engine. Memory is
what was added to the process by loading, and by loading and calls; "private" is the part that is no file's, which other
processes cannot share."""
ROOFLINE_TEXT = """What a kernel must do at least, operations at the peak of the fused multiply-adds or bytes at the
bandwidth of the level of memory that holds them, both metered beside it on the same core, over the time it takes."""


def _suite(rows: Sequence[Row], *, full: bool) -> list[str]:
    threads = sorted({row.threads for row in rows})
    parts = [_means(rows, threads)]
    if not full:
        parts += [_quantiles(rows, threads), f"The {min(SHOWN, len(rows))} models on which we are worst:"]
        rows = ratios.worst(rows, SHOWN)
    heads = ("model", "threads", "engine", "median", "min", "90 %", "spread", "error", "memory, MiB", "load, s",
             "cold load, s", "/ ours")  # fmt: skip
    lines = [_cells(heads), "|---|---:|---|" + "---:|" * (len(heads) - 3)]
    lines += [_record(record, row) for row in rows for record in row.records.values()]
    return [*parts, "\n".join(lines), _origin([], rows)]


def _quantiles(rows: Sequence[Row], threads: Sequence[int]) -> str:
    shares = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    lines = [
        _cells(["threads", *(f"{100 * share:.0f} %" for share in shares)]),
        "|---:|" + "---:|" * len(shares),
    ]
    for n in threads:
        values = ratios.quantiles(ratios.ratios(row for row in rows if row.threads == n), shares)
        lines.append(_cells([str(n), *(f"{value:.2f}" for value in values)]))
    return "\n".join(["Quantiles of ours / best:", "", *lines])


def _record(record: Record, row: Row) -> str:
    ours = row.records.get(OURS)
    base = ours.median_ms if ours else None
    best = row.best is record
    name = f"**{_title(record.engine)}**" if best else _title(record.engine)
    start = [record.model, str(record.threads), name]
    if record.median_ms is None:
        reason = record.failure.replace("|", "\\|").replace("`", "'")[:100]
        return _cells([*start, f"fails: {reason}", *[""] * 8])
    times = [
        ms(value) if value is not None else "" for value in (record.median_ms, record.min_ms, record.p90_ms)
    ]
    return _cells(
        [
            *start,
            *times,
            _number(record.spread, ".1%"),
            _number(record.relative_error, ".1e"),
            _number(record.resident_mib, ".0f"),
            _number(record.load_s, ".2f"),
            _number(record.cold_load_s, ".2f"),
            _number(record.median_ms / base if base else None, ".2f"),
        ]
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _roof(found: Mapping[str, Any]) -> str:
    bandwidth = ", ".join(f"{name} {rate:.0f} GB/s" for name, rate in found["machine"]["bandwidth"].items())
    lines = [
        f"### {found['model']}: {found['percent']:.0f} %",
        "",
        f"{found['ms']:.2f} ms in kernels, {found['gflop']:.2f} GFLOP; peak {found['machine']['peak']:.0f} GFLOP/s, "
        f"{bandwidth}.",
        "",
        "| kernel | calls | ms | share | GFLOP/s | GB/s | bound by | % of the bound |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for kernel in found["kernels"][:10]:
        numbers = [ms(kernel["ms"]), f"{100 * kernel['ms'] / found['ms']:.0f} %", f"{kernel['gflops']:.1f}"]
        numbers += [f"{kernel['gbytes']:.1f}", kernel["by"], f"{kernel['percent']:.0f}"]
        lines.append(_cells([f"`{kernel['kernel']}`", str(kernel["calls"]), *numbers]))
    return "\n".join(lines)


def write() -> None:
    """Both pages, anew."""
    found = load()
    README.write_text(with_table(README.read_text(), found))
    PAGE.write_text(page(found, load_compile(), load_roofline(), load_deployed()))
