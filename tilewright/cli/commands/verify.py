"""`tilewright verify`: measures a quantised model again, and compares with its certificate."""

from __future__ import annotations

from pathlib import Path

import click

from tilewright.cli.models import threads_option
from tilewright.cli.output import SafeConsole
from tilewright.cli.progress import working
from tilewright.quantization.verify import verify

HELP = """Measure a quantised MODEL again with the data of its certificate, beside the float32 model, and compare.

\b
Examples:
  tilewright verify small.onnx --data samples.npz
  tilewright verify small.tw --data calls/ --model model.onnx

\b
Exit codes: 0 where the certificate holds, 1 where it does not.
"""


@click.command("verify", help=HELP, short_help="Recompute the certificate of a quantised model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--data", required=True, type=click.Path(path_type=Path), help="The samples that it was made with."
)
@click.option(
    "--model", "wide", type=click.Path(path_type=Path), help="The float32 model  [default: as certified]"
)
@click.option("--metric", metavar="NAME", help="The metric, where it was a function.")
@click.option("--batch", type=click.IntRange(min=1), help="As for `tilewright quantize`.")
@threads_option
def command(
    model: Path, data: Path, wide: Path | None, metric: str | None, batch: int | None, threads: int | None
) -> None:
    with working(f"verifying {model.name}"):
        found = verify(model, data, model=wide, metric=metric, batch=batch, threads=threads)
    console = SafeConsole(soft_wrap=True)
    finding = found.verdict.finding
    console.print(
        f"{found.verdict.metric}: {finding.before:.6g} before, {finding.after:.6g} after; the drop is "
        f"{100 * finding.drop:.4g} %, at most {100 * found.verdict.bound:.4g} %",
        markup=False,
    )
    for problem in found.problems:
        console.print(problem, markup=False)
    console.print("the certificate holds" if found.holds else "the certificate does not hold")
    if not found.holds:
        click.get_current_context().exit(1)
