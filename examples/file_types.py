"""`python examples/file_types.py [FILES]`: the types of files, by a trained model compiled here.

The model is that of the PyPI package `magika` 1.0.3: its ONNX file, configuration and table of content types
are read from the installed package; ONNX Runtime answers beside it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import tilewright
from tilewright.ir.sym import sym
from tilewright.ir.symbolic.parse import parse_sym

MODEL = "standard_v3_3"
ROUNDS = 15
CALLS = 5
PAUSE_S = 0.1  # thread pools spin after a call before they sleep, that of ONNX Runtime for up to 50 ms


@dataclass(frozen=True)
class FileTypes:
    """The package's model: `onnx` is its file, `config` says how bytes become its input and what answers mean."""

    onnx: Path
    config: dict[str, Any]
    kinds: dict[str, Any]

    @classmethod
    def installed(cls) -> FileTypes:
        """That of the installed package (found without importing it)."""
        spec = find_spec("magika")
        if spec is None or spec.origin is None:
            sys.exit("the demo needs the package magika: pip install magika==1.0.3 onnxruntime")
        package = Path(spec.origin).parent
        folder = package / "models" / MODEL
        config = json.loads((folder / "config.min.json").read_text())
        kinds = json.loads((package / "config" / "content_types_kb.min.json").read_text())
        return cls(folder / "model.onnx", config, kinds)

    def encode(self, path: Path) -> np.ndarray:
        """The model's input for a file: int32 of the first bytes and then the last, white space stripped.

        At most `block_size` bytes are read at each end; what is missing of `beg_size` and `end_size` is
        filled with `padding_token`, after the first and before the last bytes.
        """
        begin, end, block = (self.config[name] for name in ("beg_size", "end_size", "block_size"))
        with open(path, "rb") as file:
            first = file.read(block)
            file.seek(max(0, file.seek(0, 2) - block))
            last = file.read(block)
        codes = np.full(begin + end, self.config["padding_token"], np.int32)
        head = np.frombuffer(first.lstrip()[:begin], np.uint8)
        tail = np.frombuffer(last.rstrip()[-end:], np.uint8)
        codes[: head.size] = head
        codes[codes.size - tail.size :] = tail
        return codes

    def answer(self, scores: np.ndarray) -> str:
        """The most likely content type with its score, or that the model is not sure enough to tell."""
        best = int(scores.argmax())
        label = self.config["target_labels_space"][best]
        threshold = self.config["thresholds"].get(label, self.config["medium_confidence_threshold"])
        score = float(scores[best])
        label = self.config["overwrite_map"].get(label, label)
        if score < threshold:
            return f"{'txt' if self.kinds[label]['is_text'] else 'unknown'} (perhaps {label}, {score:.1%})"
        return f"{label} ({score:.2%})"


def main(arguments: Sequence[str]) -> None:
    """Tell the types of the files, by both engines, and what compiling took."""
    paths = [Path(a) for a in arguments] or _examples()
    types = FileTypes.installed()
    smallest = types.config["min_file_size_for_dl"]
    for path in paths:
        if not path.is_file() or path.stat().st_size < smallest:
            sys.exit(f"{path}: not a file of at least {smallest} bytes")
    console = Console(highlight=False)
    start = time.perf_counter()
    with console.status(f"compiling {types.onnx.name} of magika {version('magika')}"):
        model = tilewright.compile(types.onnx, cache=False)
    compile_ms = 1000 * (time.perf_counter() - start)
    session = _onnxruntime(types.onnx, model.threads)
    codes = np.stack([types.encode(path) for path in paths])
    (ours,) = model(codes)
    (theirs,) = session(codes)
    console.print(_answers(paths, types, ours, theirs))
    with console.status("measuring"):
        ms = _interleaved([lambda: model(codes[:1]), lambda: session(codes[:1])])
    gap = float(np.abs(ours - theirs).max())
    console.print(_summary(model.report(), compile_ms, ms, gap, model.threads))


def _examples() -> list[Path]:
    """Files of this repository."""
    root = Path(__file__).parent.parent
    return [root / name for name in ("README.md", "pyproject.toml", "tilewright/compiler.py")]


def _onnxruntime(path: Path, threads: int) -> Callable[[np.ndarray], Sequence[np.ndarray]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda codes: session.run(None, {name: codes})


def _interleaved(engines: Sequence[Callable[[], Any]]) -> list[float]:
    """Median milliseconds of a call of each, taking turns; the pause lets the threads of the last one sleep."""
    seconds: list[list[float]] = [[] for _ in engines]
    for _ in range(ROUNDS):
        for engine, found in zip(engines, seconds, strict=True):
            time.sleep(PAUSE_S)
            engine()
            for _ in range(CALLS):
                start = time.perf_counter()
                engine()
                found.append(time.perf_counter() - start)
    return [1000 * statistics.median(found) for found in seconds]


def _answers(paths: Sequence[Path], types: FileTypes, ours: np.ndarray, theirs: np.ndarray) -> Table:
    table = Table("file", "tilewright", "ONNX Runtime", box=None, header_style="bold")
    for path, our, their in zip(paths, ours, theirs, strict=True):
        table.add_row(escape(_short(path)), types.answer(our), types.answer(their))
    return table


def _short(path: Path) -> str:
    """The path from here, or from this repository, whichever is shorter."""
    roots = (Path.cwd(), Path(__file__).parent.parent)
    return min([str(path), *(str(path.relative_to(r)) for r in roots if path.is_relative_to(r))], key=len)


def _summary(report: tilewright.Report, compile_ms: float, ms: Sequence[float], gap: float, threads: int) -> Table:
    arena = parse_sym(report.arena, lambda name: sym(1))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in (
        ("compiled", f"{report.nodes} graph nodes -> {report.kernels} kernels in {compile_ms:.0f} ms"),
        ("code", f"{report.object_bytes:,} bytes"),
        ("arena", f"{arena.value:,} bytes for one file"),
        ("latency", f"{ms[0]:.2f} ms tilewright, {ms[1]:.2f} ms ONNX Runtime {onnxruntime.__version__} "
                    f"(one file, {threads} threads, medians of interleaved runs)"),
        ("largest difference", f"{gap:.1e} of a probability"),
    ):  # fmt: skip
        table.add_row(name, value)
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
