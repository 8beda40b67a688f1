"""`tilewright inspect`: the certificate of a quantised model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tilewright.cli.certificates import show_certificate
from tilewright.cli.output import SafeConsole, say
from tilewright.quantization.verify import open_certificate
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.errors import short_name

HELP = """Print the certificate of a quantised MODEL (.onnx or .tw): what was measured, chosen, and why. Of a compiled
one also its inputs and outputs, and what is assumed of their dims.

\b
Examples:
  tilewright inspect small.onnx
  tilewright inspect small.tw --json
"""


@click.command("inspect", help=HELP, short_help="Print the certificate of a quantised model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON data (docs/quantize.md describes it).")
def command(model: Path, as_json: bool) -> None:
    if model.suffix == ".tw" and not as_json:
        say(f"{short_name(model.name)}: {Artifact.load(model, check_weights=False).signature}")
    certificate = open_certificate(model)
    if as_json:
        click.echo(json.dumps(certificate.record(), indent=1))
    else:
        show_certificate(certificate, SafeConsole(soft_wrap=True))
