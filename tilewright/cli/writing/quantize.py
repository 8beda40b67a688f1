"""`tilewright quantize`: smaller types for the layers where they pay."""

from __future__ import annotations

from pathlib import Path

import click

from tilewright.cli.amounts import Share, bytes_text
from tilewright.cli.certificates import show_certificate
from tilewright.cli.models import force_option, need_source, threads_option
from tilewright.cli.output import SafeConsole
from tilewright.cli.progress import compiling
from tilewright.quantization.certificate import Certificate
from tilewright.quantization.forms import KINDS
from tilewright.quantization.methods.ranges import METHODS
from tilewright.quantization.quantize import quantize
from tilewright.runtime.storage.files import check_file
from tilewright.viewer.plots import PlottedType, check_plot, plot_trade_off

HELP = """Make layers of MODEL (of any format) smaller where that is faster on this machine, and the loss stays within a
budget. The result is ONNX, or compiled.

The data holds an array for each input: a .npz file whose first axis are samples or batches (of a model with one input
also a .npy file), or a folder of files of a call each (.npz; of one input also .npy, images and .wav). "labels" may be
among them. Without labels and metric, what counts are the outputs of float32.

\b
Examples:
  tilewright quantize model.onnx --data samples.npz --max-drop 0.5% -o small.onnx
  tilewright quantize model.pt2 --data calls/ --max-drop 1% --metric accuracy -o small.tw
  tilewright quantize model.onnx --data calls/ --max-drop 1% --metric score.py:f1 --kinds int8,w8 -o small.onnx

\b
Exit codes: 0 done, 1 wrong data or a budget that cannot be met (float32 is written then, with its certificate),
2 wrong options.
An interrupted run goes on where it was: what it found lies in OUT.work.
"""


@click.command("quantize", help=HELP, short_help="Smaller types for layers, within a budget of loss.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="Samples: a .npz or .npy file, or a folder of them, of images or of sound.",
)
@click.option(
    "--max-drop", required=True, type=Share(), metavar="SHARE", help="Largest drop of the metric: 0.5%."
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write: .onnx or .tw."
)
@click.option("--metric", metavar="NAME", help="accuracy, top1, recall, cosine, or FILE.py:FUNCTION.")
@click.option("--kinds", default=",".join(KINDS), show_default=True, help="Types that layers may take.")
@click.option("--calibration", default="auto", show_default=True, type=click.Choice(["auto", *METHODS]))
@click.option(
    "--confidence", default="95%", show_default=True, type=Share(), help="Of the bound of the drop."
)
@click.option(
    "--batch", type=click.IntRange(min=1), help="Samples in a call, where the first dim is symbolic."
)
@click.option("--work", type=click.Path(path_type=Path), help="Folder of what is found  [default: OUT.work]")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE",
              help="Plot what smaller types of each layer save and cost, as .png or .svg.")
@force_option
@threads_option
def command(
    model: Path, data: Path, max_drop: float, output: Path, metric: str | None, kinds: str, calibration: str,
    confidence: float, batch: int | None, work: Path | None, plot: Path | None, force: bool, threads: int | None,
) -> None:  # fmt: skip
    need_source(model, "quantize")
    if model.exists():
        check_file(output)
    if plot is not None:
        check_plot(plot, sources=[model], force=force)
    with compiling(model.name, "quantizing") as progress:
        result = quantize(
            model, data, max_drop=max_drop, metric=metric, calibration=calibration, confidence=confidence,
            kinds=[kind.strip() for kind in kinds.split(",") if kind.strip()], batch=batch, threads=threads,
            output=output, work=work, force=force, progress=progress,
        )  # fmt: skip
    if plot is not None:
        certificate = result.certificate
        plot_trade_off(plot, f"{model.name}: {certificate.metric}", alternatives(certificate), certificate.max_drop)
    console = SafeConsole(soft_wrap=True)
    console.print(f"{output}: {bytes_text(output.stat().st_size)}", markup=False)
    show_certificate(result.certificate, console)


def alternatives(certificate: Certificate) -> list[PlottedType]:
    """The smaller types whose gain and loss were measured, of each layer."""
    return [
        PlottedType(layer.node, kind, 1000 * seconds, layer.sensitivity[kind], kind == layer.kind)
        for layer in certificate.layers
        for kind, seconds in layer.gains.items()
        if kind in layer.sensitivity
    ]
