"""`tilewright convert`: a model of any format as standard ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tilewright.cli.models import constant_option, force_option, named_inputs, need_source, shape_option
from tilewright.cli.output import json_option
from tilewright.cli.writing.written import print_written
from tilewright.exporters.convert import convert
from tilewright.exporters.onnx.write import DEFAULT_OPSET, OPSETS

HELP = f"""Write MODEL as standard ONNX, so that every tool can read it: a graph of PyTorch (.pt2), TensorFlow Lite
or StableHLO, or another ONNX model for another operator set.

Nothing is optimised: layers, values and symbolic dims keep their names. What ONNX cannot express is an error that lists
all of it.

\b
Examples:
  tilewright convert model.pt2 -o model.onnx
  tilewright convert model.tflite -o model.onnx --opset 17
  tilewright convert large.pt2 -o large.onnx --external-data

\b
Versions of the operator set: {OPSETS[0]} to {OPSETS[-1]}, by default {DEFAULT_OPSET}, or the first later one that the
model needs.
"""


@click.command("convert", help=HELP, short_help="Write a model of any format as ONNX.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write  [default: MODEL with .onnx]")
@click.option("--opset", type=int, help="Version of ONNX's operator set.")
@click.option("--external-data/--no-external-data", default=None,
              help="Have weights in a file beside the model  [default: where it has 2 GB or more]")  # fmt: skip
@constant_option
@shape_option
@json_option
@force_option
def command(
    model: Path, output: Path | None, opset: int | None, external_data: bool | None, constants: Sequence[str],
    shapes: Sequence[str], as_json: bool, force: bool,
) -> None:  # fmt: skip
    need_source(model, "convert")
    written = convert(
        model, output or model.with_suffix(".onnx"), opset=opset, external_data=external_data, force=force,
        **named_inputs(shapes, constants),
    )  # fmt: skip
    print_written(written, as_json)
