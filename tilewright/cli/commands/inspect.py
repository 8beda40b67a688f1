"""`tilewright inspect`: the certificate of a quantised model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tilewright.cli.certificates import show_agreement, show_certificate
from tilewright.cli.output import SafeConsole, print_json, say
from tilewright.quantization.decoders.certificate import attached_certificate
from tilewright.quantization.verify import open_certificate
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.errors import short_name

HELP = """Print the certificate of a quantised MODEL (.onnx or .tw): what was measured, chosen, and why. Of a compiled
one also its inputs and outputs, and what is assumed of their dims. A language model that was compiled with --weights
auto has one, too.

\b
Examples:
  tilewright inspect small.onnx
  tilewright inspect small.tw --json
"""


@click.command("inspect", help=HELP, short_help="Print the certificate of a quantised model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON data (docs/quantize.md describes it).")
def command(model: Path, as_json: bool) -> None:
    if model.suffix == ".tw":
        artifact = Artifact.load(model, check_weights=False)
        if not as_json:
            say(f"{short_name(model.name)}: {artifact.signature}")
        agreement = attached_certificate(artifact.attached, str(model))
        if agreement is not None:
            if as_json:
                print_json(agreement.record())
            else:
                show_agreement(agreement, SafeConsole(soft_wrap=True))
            return
    certificate = open_certificate(model)
    if as_json:
        click.echo(json.dumps(certificate.record(), indent=1))
    else:
        show_certificate(certificate, SafeConsole(soft_wrap=True))
