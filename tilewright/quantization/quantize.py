"""`tilewright.quantize`: the whole way from a model and samples to a smaller model with a certificate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.api import with_examples
from tilewright.options import OnProgress
from tilewright.quantization.certificate import name_of
from tilewright.quantization.checks import check_quantised
from tilewright.quantization.decision.judge import Metric
from tilewright.quantization.forms import KINDS
from tilewright.quantization.methods.ranges import METHODS
from tilewright.quantization.network import read_graph
from tilewright.quantization.result import BudgetError, Quantized, check_output
from tilewright.quantization.run import Asked, Quantization
from tilewright.quantization.state import check_work
from tilewright.runtime.errors import OptionError


def quantize(
    model: str | Path | bytes | Any,
    data: Any,
    *,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    max_drop: float,
    metric: Metric = None,
    kinds: Sequence[str] = KINDS,
    calibration: str = "auto",
    confidence: float = 0.95,
    batch: int | None = None,
    threads: int | None = None,
    output: str | Path | None = None,
    work: str | Path | None = None,
    force: bool = False,
    progress: OnProgress | None = None,
) -> Quantized:
    """Make layers of a model (of any format that `compile` takes) smaller where that is faster on this machine, and the
    metric drops by no more than `max_drop` (0.005: half a point) with `confidence`. docs/quantize.md describes every
    step.

    data: a .npz file, a folder of such files, or an iterable of feeds (dicts of arrays by input name), which may hold
        "labels".
    example_inputs, example_kwargs, dynamic_shapes: what a torch.nn.Module is traced with, as for `compile`.
    metric: "accuracy", "top1", "recall", "cosine", "FILE.py:FUNCTION" or a function of (outputs, labels or feeds) that
        gives a score for each item; by default what the outputs are, compared with float32.
    kinds: of "int8", "bf16", "w8", "w4".
    calibration: "auto" (the best for each layer), "min-max", "percentile", "entropy" or "mse".
    batch: samples in a call, where an array holds single samples and the model has a symbolic first dim.
    output: a file to write, .onnx or .tw; findings are kept beside it in `work` until it is written. It may be
        neither the model itself nor a file of another kind, unless `force` is true. Compiled models (.tw) may hold what
        ONNX cannot express.

    Raises InputError and OptionError for what is wrong with the data or the arguments, and BudgetError where something
    would be faster and nothing is within the budget; the float32 model is then written with its certificate.
    """
    asked = _asked(max_drop, confidence, metric, kinds, calibration, threads)
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise OptionError(f"batch={batch!r} is not allowed: give a number of samples from 1 on")
    if output is not None and Path(output).suffix not in (".onnx", ".tw"):
        raise OptionError(f"output={str(output)!r} is not allowed: the suffix is .onnx or .tw")
    if output is not None:
        check_output(Path(output), Path(model) if isinstance(model, str | Path) else None, force)
    folder = _work(output, work)
    if folder is not None:
        check_work(folder)
    loaded = read_graph(with_examples(model, example_inputs, example_kwargs, dynamic_shapes))
    check_quantised(loaded)
    run = Quantization(loaded, name_of(model), data, batch, asked, folder, progress)
    try:
        result = run.result()
    except BudgetError as error:
        if output is not None and error.result is not None:
            error.result.save(output, threads=threads, force=force)
            run.state.done()
        raise
    if output is not None:
        result.save(output, threads=threads, force=force)
    run.state.done()
    return result


def _asked(
    max_drop: float,
    confidence: float,
    metric: Metric,
    kinds: Sequence[str],
    calibration: str,
    threads: int | None,
) -> Asked:
    if isinstance(max_drop, bool) or not isinstance(max_drop, int | float) or not 0 <= max_drop < 1:
        raise OptionError(
            f"max_drop={max_drop!r} is not allowed: give a number from 0 to 1", hint="0.005 is half a percent"
        )
    if not isinstance(confidence, int | float) or not 0.5 <= confidence < 1:
        raise OptionError(
            f"confidence={confidence!r} is not allowed: give a number from 0.5 to 1, such as 0.95"
        )
    chosen = [kinds] if isinstance(kinds, str) else list(kinds)
    for kind in chosen:
        if kind not in KINDS and kind != "float32":
            raise OptionError(f"kinds={kind!r} is not known: of {', '.join(KINDS)}")
    if calibration != "auto" and calibration not in METHODS:
        raise OptionError(f"calibration={calibration!r} is not known: auto, {', '.join(METHODS)}")
    wanted = tuple(kind for kind in KINDS if kind in chosen)
    return Asked(float(max_drop), float(confidence), metric, wanted, calibration, threads)


def _work(output: str | Path | None, work: str | Path | None) -> Path | None:
    if work is not None:
        return Path(work)
    return None if output is None else Path(f"{os.fspath(output)}.work")
