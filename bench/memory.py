"""Memory of models: the arena beside the intermediates it holds, and what is resident beside ONNX Runtime.

    python bench/memory.py [--json] MODEL.onnx [INPUTS.npz] ...

Prints a Markdown table, or with --json a list of rows. Arrays of INPUTS.npz called `in::NAME` are the inputs; without
a file they are zeros, and the model's dims must be fixed. Each engine compiles and runs a model in a process of its
own, on one thread; "resident" is the process's memory after three calls without what it held before the engine was
imported, "peak" its highest (Linux only). "loaded" is tilewright with a saved artefact, whose weights are read from
the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = ("compiled", "loaded", "onnxruntime")
CALLS = 3
MIB = 1 << 20


def resident() -> tuple[int, int]:
    """Bytes that this process holds in memory now, and the most it ever held."""
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    values = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[0] in ("VmRSS:", "VmHWM:")}
    return values["VmRSS"], values["VmHWM"]


def inputs_of(path: str | None) -> dict[str, np.ndarray]:
    if path is None:
        return {}
    with np.load(path) as arrays:
        return {name.removeprefix("in::"): arrays[name] for name in arrays.files if name.startswith("in::")}


def zeros(infos: Iterable[Any], given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The given inputs, and zeros for the others."""
    return {i.name: given[i.name] if i.name in given else np.zeros(i.shape, i.dtype) for i in infos}


def measure(engine: str, model: str, inputs: str | None) -> dict[str, Any]:
    """Run one engine on one model in this process."""
    given = inputs_of(inputs)
    before, _ = resident()
    row = _run_onnxruntime(model, given) if engine == "onnxruntime" else _run_tilewright(engine, model, given)
    now, most = resident()
    return {**row, "resident": now - before, "peak": most - before}


def _run_onnxruntime(model: str, given: Mapping[str, np.ndarray]) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    numbers = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(bool)": "bool"}
    feed = {
        i.name: given.get(i.name, np.zeros(i.shape, numbers.get(i.type, i.type.removeprefix("tensor(")[:-1])))
        for i in session.get_inputs()
        if i.name in given or all(isinstance(d, int) for d in i.shape)
    }
    for _ in range(CALLS):
        session.run(None, feed)
    return {}


def _run_tilewright(engine: str, model: str, given: Mapping[str, np.ndarray]) -> dict[str, Any]:
    import tilewright

    found = (
        tilewright.load(model, threads=1)
        if engine == "loaded"
        else tilewright.compile(model, threads=1, cache=False)
    )
    for _ in range(CALLS):
        found.run(zeros(found.inputs, given))
    report = found.report()
    return {name: getattr(report, name) for name in ("arena", "arena_without_sharing", "constant_bytes")}


def row_of(model: str, inputs: str | None) -> dict[str, Any]:
    """All engines on one model, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        artefact = str(Path(folder) / "model.tw")
        _call("save", model, artefact)
        sources = {"compiled": model, "loaded": artefact, "onnxruntime": model}
        return {
            "model": Path(model).stem,
            **{engine: json.loads(_call(engine, sources[engine], inputs or "")) for engine in ENGINES},
        }


def _call(step: str, *arguments: str) -> str:
    command = [sys.executable, __file__, "--step", step, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown, in MiB."""
    lines = [
        "| model | weights | intermediates | arena | resident: compiled | loaded | ONNX Runtime "
        "| peak: compiled | loaded | ONNX Runtime |",
        "|---|" + "---:|" * 9,
    ]
    for row in rows:
        ours = row["compiled"]
        keys = ("constant_bytes", "arena_without_sharing", "arena")
        cells = [_mib(ours[key]) for key in keys]
        cells += [_mib(row[engine][what]) for what in ("resident", "peak") for engine in ENGINES]
        lines.append(f"| {row['model']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mib(size: int | str) -> str:
    """A number of bytes in MiB; an expression as it is."""
    text = str(size)
    return f"{int(text) / MIB:.1f}" if text.isdigit() else text


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--step", choices=("save", *ENGINES), help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="+", help="models, each followed by its inputs if there are any")
    chosen = parser.parse_args(arguments)
    if chosen.step == "save":
        import tilewright

        tilewright.compile(chosen.files[0], threads=1, cache=False).save(chosen.files[1])
    elif chosen.step:
        print(json.dumps(measure(chosen.step, chosen.files[0], chosen.files[1] or None)))
    else:
        rows = [row_of(model, inputs) for model, inputs in _pairs(chosen.files)]
        print(json.dumps(rows, indent=1) if chosen.json else table(rows))


def _pairs(files: Sequence[str]) -> list[tuple[str, str | None]]:
    """Models with their inputs, from a flat list."""
    pairs: list[tuple[str, str | None]] = []
    for name in files:
        if name.endswith(".npz") and pairs:
            pairs[-1] = (pairs[-1][0], name)
        else:
            pairs.append((name, None))
    return pairs


if __name__ == "__main__":
    main(sys.argv[1:])
