"""`tilewright bench`: the latency of a model, beside other engines in interleaved rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from tilewright.cli.amounts import Amount
from tilewright.cli.inputs.first_calls import tried_call
from tilewright.cli.inputs.specs import dim_option, input_option, read_dims
from tilewright.cli.models import (
    compile_fields,
    compile_options,
    force_option,
    model_argument,
    need_source,
    open_model,
    threads_option,
)
from tilewright.cli.output import console, json_option, print_json
from tilewright.cli.peers import PEERS, Arrays, Run, load_peer
from tilewright.cli.progress import counting, working
from tilewright.profiling.run import same_states
from tilewright.quantization.data import open_data
from tilewright.runtime import Model
from tilewright.runtime.errors import short_name
from tilewright.runtime.profile import KernelTime
from tilewright.viewer.plots import check_plot, plot_latencies

HELP = """Measure the latency of MODEL (of a known format, or compiled), beside other engines.

All engines live in this process, and take turns in rounds, the order rotating, so that a disturbance of the
machine meets all of them. Between turns there is a pause in which the threads of the last one go to sleep;
the first call of a turn wakes the own ones and does not count.

\b
Examples:
  tilewright bench model.onnx --vs onnxruntime,openvino --threads 1
  tilewright bench model.onnx --input ids=ids.npy --dim batch=8
  tilewright bench model.onnx --data calls/
  tilewright bench model.tw
  tilewright bench model.onnx --kernels --threads 1
"""

OURS = "tilewright"
PAUSE_S = 0.1
"""Seconds between the turns of two engines: thread pools spin after a call before they sleep, that of ONNX Runtime
for up to 50 ms."""


@dataclass
class Contender:
    """An engine with the model loaded: `load_s` is what that took, `seconds` the latency of each call. It runs so many
    `feeds`, one after the other, each behind `begin()`; the `result` is that of the first."""

    name: str
    run: Run
    load_s: float
    feeds: int = 1
    begin: Callable[[], object] = tuple
    seconds: list[float] = field(default_factory=list)
    result: Arrays = ()

    def turn(self, seconds: float) -> None:
        """Call for at least this long, and at least twice: the first call is not counted."""
        self.begin()
        self.result = self.run(0)
        end = time.perf_counter() + seconds
        while True:
            number = len(self.seconds) % self.feeds
            self.begin()
            start = time.perf_counter()
            self.run(number)
            now = time.perf_counter()
            self.seconds.append(now - start)
            if now >= end:
                return


@click.command("bench", help=HELP, short_help="Measure latency beside other engines.")
@model_argument
@click.option(
    "--vs", default="", metavar="ENGINES", help=f"Engines to measure beside, of: {', '.join(PEERS)}."
)
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--turn", type=Amount(), default=0.1, show_default=True, help="Seconds of a turn.")
@click.option("--kernels", is_flag=True, help="Time each kernel of ours instead (x86-64).")
@input_option
@dim_option
@click.option(
    "--data", type=click.Path(path_type=Path),
    help="Recorded inputs, one call after the other: samples as for `tilewright quantize`.",
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Also plot all calls, as .png or .svg.")
@force_option
@json_option
@threads_option
@compile_options
def command(
    model: Path, vs: str, rounds: int, turn: float, kernels: bool, specs: Sequence[str], dims: Sequence[str],
    data: Path | None, plot: Path | None, force: bool, as_json: bool, threads: int | None, **options: Any,
) -> None:  # fmt: skip
    names = _engines(vs)
    if names:
        need_source(model, "--vs")
    if kernels:
        need_source(model, "--kernels")
        if names:
            raise click.UsageError("--kernels times the kernels of ours alone: leave out --vs")
    if data is not None and (specs or dims):
        raise click.UsageError("--data has all inputs: leave out --input and --dim")
    if plot is not None:
        if kernels:
            raise click.UsageError("--plot shows calls: `tilewright profile --plot` has kernels")
        check_plot(plot, sources=[model], force=force)
    sizes = read_dims(dims)
    fields = compile_fields(**options)
    start = time.perf_counter()
    compiled = open_model(model, threads, profile=kernels, **fields)
    loaded_s = time.perf_counter() - start
    feeds: list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    if data is not None:
        samples = open_data(data, compiled.inputs)
        feeds = [samples.read(number).feed for number in range(samples.count)]
    else:
        called = tried_call(compiled, specs or ["random"], sizes)
        feeds, notes = [dict(called.inputs)], called.notes
    if kernels:
        times = compiled.profile(feeds[0], rounds)
        if as_json:
            print_json({"model": str(model), "kernels": [asdict(time) for time in times]})
        else:
            console().print(kernel_table(compiled, times))
            _say(notes)
        return
    contenders = [Contender(OURS, lambda number: compiled.run(feeds[number]), loaded_s, len(feeds),
                            same_states(compiled))]  # fmt: skip
    all_feeds = [{**feed, **fields["constants"]} for feed in feeds]
    for name in names:
        contenders.append(_load(name, partial(load_peer, name, model, all_feeds, compiled.threads), len(feeds)))
    measure(contenders, rounds, turn)
    shapes = ", ".join(f"{short_name(name)} {list(np.shape(array))}" for name, array in feeds[0].items())
    if as_json:
        print_json({"model": str(model), "threads": compiled.threads, "rounds": rounds, "calls": len(feeds),
                    "inputs": {name: list(np.shape(array)) for name, array in feeds[0].items()},
                    "engines": records(contenders)})  # fmt: skip
    else:
        about = shapes if len(feeds) == 1 else f"{len(feeds)} calls of {data}, the first {shapes}"
        shown = console()
        title = short_name(str(model), 1000)
        shown.print(f"{title}: {about}; {compiled.threads} threads, {rounds} rounds", markup=False)
        shown.print(table(contenders))
        _say(notes)
    if plot is not None:  # behind what was measured, which a full disk must not lose
        plot_latencies(plot, f"{model.name}, {compiled.threads} threads", {c.name: c.seconds for c in contenders})


def _say(notes: Sequence[str]) -> None:
    for note in notes:
        console().print(note, markup=False)


def _engines(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise click.UsageError(f"--vs {name}: the engines are {', '.join(PEERS)}")
    return names


def _load(name: str, load: Callable[[], Run], feeds: int) -> Contender:
    start = time.perf_counter()
    with working(f"loading {name}"):
        run = load()
    return Contender(name, run, time.perf_counter() - start, feeds)


def measure(contenders: Sequence[Contender], rounds: int, turn_s: float) -> None:
    """Let all take turns; the first round warms caches and is thrown away."""
    with counting("measuring", (rounds + 1) * len(contenders)) as (progress, task):
        for number in range(rounds + 1):
            first = number % len(contenders)
            for contender in [*contenders[first:], *contenders[:first]]:
                time.sleep(PAUSE_S)
                contender.turn(turn_s)
                progress.advance(task)
            if number == 0:
                for contender in contenders:
                    contender.seconds.clear()


def records(contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    """Of each engine the times in milliseconds, as JSON data."""
    ours = contenders[0]
    found = []
    for contender in contenders:
        low, median, high = map(float, np.percentile(contender.seconds, (10, 50, 90)) * 1000)
        gap = None if contender is ours else difference(ours.result, contender.result)
        found.append(
            {"engine": contender.name, "load_s": contender.load_s, "ms_10": low, "ms_median": median, "ms_90": high,
             "calls": len(contender.seconds), "difference": gap}
        )  # fmt: skip
    return found


def table(contenders: Sequence[Contender]) -> Table:
    """Medians, the middle 80 % of the calls, each median over ours, and how far the outputs differ from ours."""
    ours = contenders[0]
    made = Table(box=None, header_style="bold")
    made.add_column("engine")
    for column in ("load s", "10 % ms", "median ms", "90 % ms", "calls", "/ ours", "difference"):
        made.add_column(column, justify="right", no_wrap=True)
    base = statistics.median(ours.seconds)
    for contender in contenders:
        low, median, high = np.percentile(contender.seconds, (10, 50, 90)) * 1000
        made.add_row(
            contender.name, f"{contender.load_s:.2f}", f"{low:.3f}", f"{median:.3f}", f"{high:.3f}",
            str(len(contender.seconds)), f"{median / base / 1000:.2f}",
            "" if contender is ours else f"{difference(ours.result, contender.result):.1e}",
        )  # fmt: skip
    return made


def kernel_table(model: Model, times: Sequence[KernelTime]) -> Table:
    """Calls of kernels by the time they take, with the work that the report tells of them (where dims are fixed)."""
    made = Table(box=None, header_style="bold")
    for column in ("kernel", "node"):
        made.add_column(column)
    for column in ("ms", "share", "GFLOP/s", "GB/s"):
        made.add_column(column, justify="right", no_wrap=True)
    total = max(sum(time.seconds for time in times), 1e-12)
    sizes = times[0].sizes if times else ""
    if sizes:
        made.title = f"the variant for {sizes}"
    artifact = next((v.artifact for v in model.artifact.variants if v.text == sizes), model.artifact)
    calls = artifact.report.calls
    for found, call in sorted(zip(times, calls, strict=True), key=lambda pair: -pair[0].seconds):
        rates = (_rate(amount, found.seconds / max(found.count, 1)) for amount in (call.flops, call.touched_bytes))
        share = f"{100 * found.seconds / total:.1f} %"
        made.add_row(found.kernel, found.node, f"{1000 * found.seconds:.3f}", share, *rates)
    return made


def _rate(amount: str | None, seconds: float) -> str:
    """Billions a second; nothing for an amount that depends on symbolic dims, or was not counted."""
    return f"{int(amount) / max(seconds, 1e-9) / 1e9:.1f}" if amount is not None and amount.isdecimal() else ""


def difference(ours: Arrays, theirs: Arrays) -> float:
    """The largest difference of two engines' outputs, over the largest magnitude of the output it is in."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not a.size or a.shape != b.shape:
            worst = worst if a.shape == b.shape else float("inf")
            continue
        wide, other = a.astype(np.float64), np.asarray(b).astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinities on both sides
            gap = np.where((wide == other) | (np.isnan(wide) & np.isnan(other)), 0.0, np.abs(wide - other))
        scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
        worst = max(worst, float(np.max(gap)) / (scale or 1.0))
    return worst
