"""`tilewright sign`: a compiled model gets a signature."""

from __future__ import annotations

from pathlib import Path

import click

from tilewright.cli.output import json_option, print_json, say
from tilewright.runtime.errors import short_name
from tilewright.runtime.storage.described import ArtifactFile
from tilewright.runtime.storage.fleet import models_of
from tilewright.runtime.storage.loading import sign

HELP = """Sign a compiled MODEL (.tw) with an Ed25519 key, so that `tilewright.load(..., trust=PUBLIC)` takes it.

A compiled model is code: who can change the file decides what the programs do that load it. The signature covers
all of it. The file is replaced, unless --output names another one. Keys are PEM files:

\b
  openssl genpkey -algorithm ed25519 -out key.pem
  openssl pkey -in key.pem -pubout -out public.pem

\b
Examples:
  tilewright sign model.tw --key key.pem
  tilewright sign model.tw --key key.pem -o signed.tw
  tilewright sign fleet/ --key key.pem
"""


@click.command("sign", help=HELP, short_help="Sign a compiled model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), required=True, help="The private key, a PEM file.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write  [default: MODEL]")
@json_option
def command(model: Path, key: Path, output: Path | None, as_json: bool) -> None:
    sign(model, key, output)
    if model.is_dir():
        signed = {name: ArtifactFile.of(path).signed_by for name, path in models_of(model).items()}
        if as_json:
            print_json({"output": str(model), "signed_by": signed})
        else:
            say(f"{short_name(str(model))}: {len(signed)} models signed with the key {next(iter(signed.values()), '')}")
        return
    written = output or model
    signed_by = ArtifactFile.of(written).signed_by
    if as_json:
        print_json({"output": str(written), "signed_by": signed_by})
    else:
        say(f"{short_name(str(written))}: signed with the key {signed_by}")
